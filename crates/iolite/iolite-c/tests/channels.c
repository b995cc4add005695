// channels: checks pools and channels of libiolite against their man pages. Prints a line for each
// case.
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "common.h"

#define WAIT_MS 5000
#define JOIN_TRIES 1000

static void pool_without_members(void) {
  struct iol_pool *pool = NULL;
  struct iol_buffer *buffers[2] = {0}, *third = NULL;
  struct iol_pool_stats stats;
  struct iol_aggregate *copy = NULL, *bytes = copied(IOL_COPIED, pattern, 100000);
  CHECK(iol_pool_create(NULL, IOL_POOL_BYTES_MIN, 0, NULL, 0) == -EINVAL);
  CHECK(iol_pool_create(&pool, IOL_POOL_BYTES_MIN - 1, 0, NULL, 0) == -EINVAL);
  CHECK(iol_pool_create(&pool, IOL_POOL_BYTES_MIN, 0, NULL, 1) == -EINVAL && !pool);
  CHECK(iol_pool_create(&pool, IOL_POOL_BYTES_MIN, 0, NULL, 0) == 0 && pool);
  CHECK(iol_pool_number(pool) > 0 && iol_pool_number(NULL) == 0);
  CHECK(iol_pool_copy(pool, bytes, &copy) == 0);
  expect(copy, pattern, 100000);
  CHECK(only_part(copy).id.pool == iol_pool_number(pool));
  CHECK(iol_pool_stats(pool, &stats) == 0 && stats.blocks == 1 && stats.live == 102400);
  iol_aggregate_destroy(copy);
  CHECK(iol_pool_stats(pool, &stats) == 0 && stats.live == 0 && stats.created_blocks == 1);
  for (int at = 0; at < 2; at++)
    CHECK(iol_pool_allocate(pool, 1 << 20, 1 << 20, &buffers[at]) == 0);
  CHECK(iol_pool_allocate(pool, 1, 1, &third) == -ENOSPC);
  CHECK(iol_pool_allocate(pool, 0, 1, &third) == -EINVAL);
  CHECK(iol_pool_allocate(pool, 2, 1, &third) == -EINVAL);
  CHECK(iol_pool_allocate(pool, IOL_BUFFER_BYTES_MAX + 1, SIZE_MAX, &third) == -EINVAL);
  CHECK(iol_pool_allocate(NULL, 1, 1, &third) == -EINVAL && !third);
  CHECK(iol_pool_allocate(pool, 1, 1, NULL) == -EINVAL);
  CHECK(iol_pool_copy(pool, bytes, &copy) == -ENOSPC);
  CHECK(iol_pool_copy(NULL, bytes, &copy) == -EINVAL);
  CHECK(iol_pool_copy(pool, NULL, &copy) == -EINVAL);
  CHECK(iol_pool_copy(pool, bytes, NULL) == -EINVAL);
  iol_buffer_destroy(buffers[1]);
  CHECK(iol_pool_collect(pool) == 0 && iol_pool_collect(NULL) == -EINVAL);
  CHECK(iol_pool_stats(NULL, &stats) == -EINVAL && iol_pool_stats(pool, NULL) == -EINVAL);
  iol_pool_destroy(pool);
  iol_pool_destroy(NULL);
  iol_slice_destroy(filled(buffers[0], pattern, 1000));
  iol_aggregate_destroy(bytes);
}

static struct iol_channel *begin(int socket, uint32_t flags) {
  struct iol_channel_options options = {.slab = slab, .flags = flags};
  struct iol_channel *channel = NULL;
  CHECK(iol_channel_create(&channel, socket, &options) == 0 && channel);
  CHECK(!strcmp(iol_channel_error(channel), ""));
  return channel;
}

// Begins both ends of a channel in this process.
static void begin_both(struct iol_channel *ends[2], uint32_t flags) {
  int fds[2];
  CHECK(iol_channel_sockets(fds) == 0);
  for (int side = 0; side < 2; side++)
    ends[side] = begin(fds[side], flags);
}

static void channel_options(void) {
  struct iol_channel *channel = NULL;
  struct iol_account *account = NULL;
  int fds[2];
  CHECK(iol_account_create(&account, 1 << 20) == 0);
  const struct iol_channel_options wrong[] = {
      {.slab = NULL},
      {.slab = slab, .flags = 4},
      {.slab = slab, .reserved = 1},
      {.slab = slab, .ring_frames = IOL_RING_FRAMES_MAX + 1},
      {.slab = slab, .ring_frames = 1, .flags = IOL_NO_RING},
  };
  for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++) {
    CHECK(iol_channel_sockets(fds) == 0);
    CHECK(iol_channel_create(&channel, fds[0], &wrong[at]) == -EINVAL && !channel);
    CHECK(close(fds[0]) < 0 && errno == EBADF); // It was taken over.
    close(fds[1]);
  }
  struct iol_channel_options all = {.slab = slab, .account = account, .ring_frames = 2,
      .copied_max = 1, .in_flight_max = 1 << 20, .flags = IOL_JOIN_POOLS};
  CHECK(iol_channel_create(&channel, -1, &all) == -EBADF);
  CHECK(iol_channel_create(&channel, 1 << 20, &all) == -EBADF);
  CHECK(iol_channel_create(&channel, open("/dev/null", O_RDWR), &all) == -ENOTSOCK);
  CHECK(iol_channel_sockets(fds) == 0 && iol_channel_sockets(NULL) == -EINVAL);
  CHECK(iol_channel_create(NULL, fcntl(fds[0], F_DUPFD_CLOEXEC, 0), &all) == -EINVAL);
  CHECK(iol_channel_create(&channel, fcntl(fds[0], F_DUPFD_CLOEXEC, 0), NULL) == -EINVAL);
  CHECK(iol_channel_create(&channel, fds[0], &all) == 0 && channel);
  struct iol_channel *other = begin(fds[1], 0);
  // Even the shortest slice travels as a file, which is charged to the account.
  struct iol_aggregate *sent = copied(IOL_COPIED, "bytes", 5), *received = NULL;
  CHECK(iol_channel_send(channel, sent) == 0 && iol_channel_try_receive(other, &received) == 1);
  expect_and_destroy(received, "bytes", 5);
  iol_aggregate_destroy(sent);
  sent = of_slice(sealed("file", 4));
  CHECK(iol_channel_send(other, sent) == 0 && iol_channel_receive(channel, &received) == 1);
  CHECK(iol_account_held(account) == 65536);
  expect_and_destroy(received, "file", 4);
  iol_aggregate_destroy(sent);
  iol_channel_destroy(channel);
  CHECK(iol_account_held(account) == 0);
  iol_channel_destroy(other);
  iol_channel_destroy(NULL);
  iol_account_destroy(account);
}

static void channel_in_one_process(void) {
  const uint32_t flags[] = {0, IOL_NO_RING};
  for (int variant = 0; variant < 2; variant++) {
    struct iol_channel *ends[2];
    struct iol_aggregate *received = NULL, *sent = copied(IOL_COPIED, pattern, 50000);
    begin_both(ends, flags[variant]);
    CHECK(iol_channel_try_receive(ends[1], &received) == -EAGAIN && !received);
    CHECK(iol_channel_prepare_to_wait(ends[1]) == 0);
    struct pollfd waited = {.fd = iol_channel_fd(ends[1]), .events = POLLIN};
    CHECK(poll(&waited, 1, 0) == 0);
    CHECK(iol_channel_send(ends[0], sent) == 0);
    CHECK(poll(&waited, 1, WAIT_MS) == 1);
    CHECK(iol_channel_try_receive(ends[1], &received) == 1);
    expect_and_destroy(received, pattern, 50000);
    // The ring of an end has room for 128 frames; a socket has room for some packets.
    int count = 0;
    while (iol_channel_try_send(ends[0], sent) == 0)
      count++;
    CHECK(count > 0 && iol_channel_flush(ends[0]) == -EAGAIN);
    CHECK(iol_channel_prepare_to_wait(ends[1]) >= 0);
    for (int at = 0; at < count; at++) {
      int got;
      while ((got = iol_channel_try_receive(ends[1], &received)) == -EAGAIN)
        iol_channel_flush(ends[0]);
      CHECK(got == 1);
      expect_and_destroy(received, pattern, 50000);
    }
    CHECK(iol_channel_try_receive(ends[1], &received) == -EAGAIN);
    CHECK(iol_channel_flush(ends[0]) == 0 && iol_channel_maps(ends[1]) == 0);
    CHECK(iol_channel_close(ends[0]) == 0);
    CHECK(iol_channel_prepare_to_wait(ends[1]) >= 0);
    CHECK(iol_channel_receive(ends[1], &received) == 0);
    CHECK(iol_channel_try_receive(ends[1], &received) == 0);
    CHECK(iol_channel_send(ends[1], sent) == -EPIPE);
    CHECK(strstr(iol_channel_error(ends[1]), "closed"));
    CHECK(iol_channel_close(ends[1]) == -EPIPE);
    iol_aggregate_destroy(sent);
  }
}

static void channel_refusals(void) {
  struct iol_channel *ends[2];
  struct iol_aggregate *many = empty(), *received = NULL, *kept[1024];
  struct iol_slice *slice = in_slab(IOL_COPIED, "ab", 2);
  begin_both(ends, 0);
  // Adjacent slices in the same order would be joined.
  for (int at = 0; at <= IOL_SLICES_MAX; at++)
    CHECK(iol_aggregate_append(many, slice) == 0);
  CHECK(iol_channel_send(ends[0], many) == -E2BIG);
  CHECK(strstr(iol_channel_error(ends[0]), "2049 parts"));
  iol_aggregate_destroy(many);
  CHECK(iol_channel_try_receive(ends[1], &received) == -EAGAIN);
  CHECK(iol_channel_send(NULL, received) == -EINVAL && iol_channel_send(ends[0], NULL) == -EINVAL);
  CHECK(iol_channel_try_send(ends[0], NULL) == -EINVAL);
  CHECK(iol_channel_try_send(NULL, NULL) == -EINVAL && iol_channel_flush(NULL) == -EINVAL);
  CHECK(iol_channel_receive(NULL, &received) == -EINVAL);
  CHECK(iol_channel_receive(ends[0], NULL) == -EINVAL);
  CHECK(iol_channel_try_receive(NULL, &received) == -EINVAL);
  CHECK(iol_channel_try_receive(ends[0], NULL) == -EINVAL);
  CHECK(iol_channel_prepare_to_wait(NULL) == -EINVAL && iol_channel_fd(NULL) == -EINVAL);
  CHECK(iol_channel_maps(NULL) == -EINVAL && iol_channel_close(NULL) == -EINVAL);
  CHECK(!strcmp(iol_channel_error(NULL), ""));
  struct iol_pool *pool = NULL;
  struct iol_channel *twice[] = {ends[0], ends[0]}, *null[] = {ends[0], NULL};
  CHECK(iol_pool_create(&pool, IOL_POOL_BYTES_MIN, 0, twice, 2) == -EINVAL);
  CHECK(iol_pool_create(&pool, IOL_POOL_BYTES_MIN, 0, null, 2) == -EINVAL && !pool);
  iol_channel_destroy(ends[0]);
  CHECK(iol_channel_receive(ends[1], &received) == 0);
  iol_channel_destroy(ends[1]);
  iol_slice_destroy(slice);

  // A slab without room is an error that passes.
  begin_both(ends, 0);
  struct iol_aggregate *sent = copied(IOL_COPIED, pattern, 16000);
  int count = 0, error;
  struct iol_slab *small = NULL, *large = slab;
  CHECK(iol_slab_create(&small, IOL_SLAB_BYTES_MIN) == 0);
  iol_channel_destroy(ends[0]);
  iol_channel_destroy(ends[1]);
  slab = small;
  begin_both(ends, 0);
  slab = large;
  do
    CHECK(iol_channel_send(ends[0], sent) == 0);
  while ((error = iol_channel_try_receive(ends[1], &kept[count])) == 1 && ++count < 1024);
  CHECK(error == -ENOBUFS && iol_channel_try_receive(ends[1], &received) == -ENOBUFS);
  CHECK(strstr(iol_channel_error(ends[1]), "memory"));
  while (count > 0)
    iol_aggregate_destroy(kept[--count]);
  CHECK(iol_channel_try_receive(ends[1], &received) == 1);
  expect_and_destroy(received, pattern, 16000);
  iol_channel_destroy(ends[0]);
  iol_channel_destroy(ends[1]);
  iol_slab_destroy(small);
  iol_aggregate_destroy(sent);
}

// A process that sends anything else is noticed.
static void hostile_peer(void) {
  int fds[2];
  struct iol_aggregate *received = NULL;
  CHECK(iol_channel_sockets(fds) == 0);
  struct iol_channel *channel = begin(fds[0], 0);
  CHECK(send(fds[1], "not a frame", 11, 0) == 11);
  CHECK(iol_channel_receive(channel, &received) == -EPROTO);
  CHECK(!strcmp(iol_channel_error(channel), "the other process sent a frame that is not valid"));
  CHECK(iol_channel_try_receive(channel, &received) == -EPROTO);
  CHECK(iol_channel_send(channel, NULL) == -EINVAL && iol_channel_flush(channel) == -EPROTO);
  iol_channel_destroy(channel);
  close(fds[1]);
}

// Another process: receives aggregates until the end of the channel. Sends back a text for each,
// with its checksum, the number of maps, and the pool of its first slice.
static void member(int socket) {
  struct iol_aggregate *received = NULL, *kept = NULL;
  CHECK(iol_slab_create(&slab, IOL_SLAB_BYTES_MIN) == 0);
  struct iol_channel *channel = begin(socket, IOL_JOIN_POOLS);
  int got;
  while ((got = iol_channel_receive(channel, &received)) == 1) {
    char text[100];
    uint64_t position = 0;
    struct iol_part part = {0};
    iol_aggregate_next(received, &position, &part);
    int length = snprintf(text, sizeof text, "%d %d %u", iol_aggregate_checksum(received),
                          (int)iol_channel_maps(channel), part.id.pool);
    iol_aggregate_destroy(kept);
    kept = received;
    struct iol_aggregate *reply = copied(IOL_COPIED, text, length);
    CHECK(iol_channel_send(channel, reply) == 0);
    iol_aggregate_destroy(reply);
  }
  CHECK(got == 0);
  iol_aggregate_destroy(kept);
  iol_channel_destroy(channel);
  iol_slab_destroy(slab);
  _exit(0);
}

// Sends an aggregate, and compares the checksum in the reply. Destroys the aggregate. Returns the
// number of maps of the process.
static int pass_any(struct iol_channel *channel, struct iol_aggregate *sent, unsigned *pool) {
  struct iol_aggregate *reply = NULL;
  char text[100] = "";
  int sum, maps;
  CHECK(iol_channel_send(channel, sent) == 0);
  CHECK(iol_channel_receive(channel, &reply) == 1);
  CHECK(iol_aggregate_read(reply, 0, text, sizeof text - 1) > 0);
  CHECK(sscanf(text, "%d %d %u", &sum, &maps, pool) == 3);
  CHECK(sum == iol_aggregate_checksum(sent));
  iol_aggregate_destroy(reply);
  iol_aggregate_destroy(sent);
  return maps;
}

// Sends an aggregate, and compares the reply. Destroys the aggregate.
static void pass(struct iol_channel *channel, struct iol_aggregate *sent, int maps, long pool) {
  unsigned pool_there;
  CHECK(pass_any(channel, sent, &pool_there) == maps);
  CHECK(pool < 0 ? pool_there != 0 && pool_there != UINT32_MAX : pool_there == pool);
}

static void two_processes(void) {
  int fds[2], status;
  CHECK(iol_channel_sockets(fds) == 0);
  // The child inherits no object.
  iol_slab_destroy(slab);
  fflush(stdout);
  pid_t child = fork();
  CHECK(child >= 0);
  close(fds[child ? 1 : 0]);
  if (!child)
    member(fds[1]);
  CHECK(iol_slab_create(&slab, SLAB_BYTES) == 0);
  struct iol_channel *channel = begin(fds[0], 0);
  struct iol_pool *pool = NULL;
  struct iol_pool_stats stats;
  CHECK(iol_pool_create(&pool, 2 * IOL_POOL_BYTES_MIN, UINT64_MAX, &channel, 1) == 0);
  pass(channel, copied(IOL_COPIED, "hello", 5), 0, 0);
  // Slices of the pool are copied until the process has joined it.
  unsigned pool_there = 0;
  int maps = 0;
  for (int i = 0; i < JOIN_TRIES && pool_there == 0; i++)
    maps = pass_any(channel, of_slice(in_pool(pool, pattern, 300000)), &pool_there);
  CHECK(maps == 1 && pool_there != 0 && pool_there != UINT32_MAX);
  CHECK(iol_channel_flush(channel) == 0 && iol_pool_stats(pool, &stats) == 0);
  CHECK(stats.passed_extents == 1 && stats.excluded_members == 0);
  pass(channel, of_slice(sealed(pattern, 100000)), 1, UINT32_MAX);
  struct iol_aggregate *both = of_slice(in_pool(pool, pattern + 1, 1000)), *other = NULL;
  CHECK(iol_aggregate_concatenate(both, other = of_slice(sealed(pattern + 2, 1001))) == 0);
  iol_aggregate_destroy(other);
  CHECK(iol_aggregate_duplicate(both, &other) == 0);
  pass(channel, both, 1, -1);
  // Bytes that another process may read are not changed in place.
  CHECK(iol_aggregate_write(other, 0, "x", 1, slab, IOL_COPIED) == 0);
  CHECK(iol_aggregate_slices(other) == 3);
  iol_aggregate_destroy(other);
  pass(channel, empty(), 1, 0);
  // The process holds nothing of the pool any more.
  CHECK(iol_channel_flush(channel) == 0 && iol_pool_collect(pool) == 0);
  CHECK(iol_pool_stats(pool, &stats) == 0 && stats.passed_extents == 0 && stats.live == 0);
  CHECK(iol_channel_close(channel) == 0);
  iol_pool_destroy(pool);
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

// The end of another process is noticed.
static void killed_process(void) {
  int fds[2], status;
  struct iol_aggregate *received = NULL;
  CHECK(iol_channel_sockets(fds) == 0);
  iol_slab_destroy(slab);
  pid_t child = fork();
  CHECK(child >= 0);
  close(fds[child ? 1 : 0]);
  if (!child)
    member(fds[1]);
  CHECK(iol_slab_create(&slab, SLAB_BYTES) == 0);
  struct iol_channel *channel = begin(fds[0], 0);
  pass(channel, copied(IOL_COPIED, "hello", 5), 0, 0);
  CHECK(!kill(child, SIGKILL));
  CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
  CHECK(iol_channel_receive(channel, &received) == 0);
  struct iol_aggregate *sent = copied(IOL_COPIED, "hello", 5);
  CHECK(iol_channel_send(channel, sent) == -EPIPE);
  iol_aggregate_destroy(sent);
  iol_channel_destroy(channel);
}

int main(void) {
  static const struct test_case cases[] = {
      {"pool without members", pool_without_members},
      {"channel options", channel_options},
      {"channel in one process", channel_in_one_process},
      {"channel refusals", channel_refusals},
      {"hostile peer", hostile_peer},
      {"two processes", two_processes},
      {"killed process", killed_process},
  };
  run_cases(cases, sizeof cases / sizeof *cases);
  return 0;
}
