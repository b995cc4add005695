// caller: checks libmrsplice against its man pages over TCP connections of the loopback interface,
// and exits at the first difference. Prints a line for each case.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <mrsplice.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))
#define TOTAL (1 << 20)
#define WAIT_MS 5000

// Two connections, which this program splices:
//
//   source <──TCP──> fd0   this program   fd1 <──TCP──> sink
struct path {
  int source, fd0, fd1, sink;
};

static struct mrsplice *set;
static unsigned char pattern[TOTAL], seen[TOTAL];

static void fail(int line, const char *condition) {
  fprintf(stderr, "caller.c:%d: check failed: %s (errno %d)\n", line, condition, errno);
  exit(1);
}

// Opens a non-blocking connection with small buffers, which few bytes fill.
static void connect_pair(int *one, int *other) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  struct sockaddr *general = (struct sockaddr *)&address;
  socklen_t size = sizeof address;
  int small = 16 * 1024, listener = socket(AF_INET, SOCK_STREAM, 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK((*one = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
  setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  setsockopt(*one, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
  CHECK(!bind(listener, general, size) && !listen(listener, 1));
  CHECK(!getsockname(listener, general, &size));
  CHECK(!connect(*one, general, size));
  CHECK((*other = accept(listener, NULL, NULL)) >= 0);
  CHECK(!fcntl(*one, F_SETFL, O_NONBLOCK) && !fcntl(*other, F_SETFL, O_NONBLOCK));
  close(listener);
}

static struct path open_path(void) {
  struct path path;
  connect_pair(&path.source, &path.fd0);
  connect_pair(&path.fd1, &path.sink);
  return path;
}

static void close_path(const struct path *path) {
  close(path->source);
  close(path->fd0);
  close(path->fd1);
  close(path->sink);
}

// Resets a connection.
static void abort_connection(int fd) {
  struct linger now = {.l_onoff = 1};
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
  close(fd);
}

static void wait_for(int fd, short events) {
  struct pollfd waited = {.fd = fd, .events = events};
  CHECK(poll(&waited, 1, WAIT_MS) == 1);
}

static void send_all(int fd, const void *bytes, size_t count) {
  CHECK(send(fd, bytes, count, 0) == (ssize_t)count);
}

// Forwards until `count` bytes arrived on `fd`, and compares them with `expected`.
static void expect(int fd, const void *expected, size_t count) {
  for (size_t at = 0; at < count;) {
    CHECK(!mrsplice_forward(set, 1));
    ssize_t got = recv(fd, seen + at, count - at, 0);
    CHECK(got > 0 || (got < 0 && errno == EAGAIN));
    at += got > 0 ? got : 0;
  }
  CHECK(!memcmp(seen, expected, count));
}

// Sends `count` bytes of the pattern on `from`, and checks that they arrive at `to`.
static void pump(int from, int to, size_t count) {
  for (size_t sent = 0, got = 0; got < count;) {
    ssize_t moved = sent < count ? send(from, pattern + sent, count - sent, 0) : 0;
    sent += moved > 0 ? moved : 0;
    CHECK(!mrsplice_forward(set, 1));
    moved = recv(to, seen + got, count - got, 0);
    CHECK(moved > 0 || (moved < 0 && errno == EAGAIN));
    got += moved > 0 ? moved : 0;
  }
  CHECK(!memcmp(seen, pattern, count));
}

// Returns the next notice. Waits for it on the descriptor of the set.
static struct mrsplice_notice expect_notice(uint64_t splice, uint32_t event) {
  struct mrsplice_notice notice = {0};
  int result;
  while (!(result = mrsplice_next_notice(set, &notice))) {
    wait_for(mrsplice_fd(set), POLLIN);
    CHECK(!mrsplice_forward(set, 0));
  }
  CHECK(result == 1 && notice.splice == splice && notice.event == event);
  return notice;
}

static void expect_no_notice(void) {
  struct mrsplice_notice notice;
  CHECK(!mrsplice_forward(set, 20) && !mrsplice_next_notice(set, &notice));
}

static struct mrsplice_request request_for(struct path *path, uint32_t flags) {
  return (struct mrsplice_request){
      .fd0 = path->fd0, .fd1 = path->fd1, .flags = flags, .user_data = path};
}

static void bidirectional(void) {
  struct path path = open_path();
  struct mrsplice_request request = request_for(&path, 0), again = request;
  struct mrsplice_released released;
  char byte = 0;
  CHECK(mrsplice_splice(set, &request) == 0);
  CHECK(mrsplice_splice(set, &again) == -EBUSY);
  for (int side = 0; side < 2; side++) {
    CHECK(mrsplice_read(set, request.splice, side, &byte, 1) == -EPERM);
    CHECK(mrsplice_write(set, request.splice, side, &byte, 1) == -EPERM);
  }
  pump(path.source, path.sink, TOTAL);
  shutdown(path.source, SHUT_WR);
  while (recv(path.sink, &byte, 1, 0) != 0)
    CHECK(errno == EAGAIN && !mrsplice_forward(set, 1));
  expect_no_notice();
  pump(path.sink, path.source, 300000);
  shutdown(path.sink, SHUT_WR);
  struct mrsplice_notice notice = expect_notice(request.splice, MRSPLICE_ENDED);
  CHECK(notice.user_data == &path && notice.end == MRSPLICE_END_CLOSED && notice.error == 0);
  CHECK(notice.forwarded[0] == TOTAL && notice.forwarded[1] == 300000);
  expect_no_notice();
  CHECK(mrsplice_unsplice(set, request.splice, &released) == 0);
  CHECK(released.end == MRSPLICE_END_CLOSED && released.error == 0);
  CHECK(released.directions[0].forwarded == TOTAL && !released.directions[0].unsent);
  CHECK(released.directions[1].forwarded == 300000 && !released.directions[1].unsent);
  CHECK(mrsplice_unsplice(set, request.splice, &released) == -ENOENT);
  CHECK(recv(path.source, &byte, 1, 0) == 0);
  close_path(&path);
}

// A payload of known length behind a prefix, on connections that are used again afterwards.
static void limit(void) {
  struct path path = open_path();
  uint32_t flags = MRSPLICE_UNIDIRECTIONAL | MRSPLICE_LIMIT | MRSPLICE_AUTO_RELEASE;
  struct mrsplice_request request = request_for(&path, flags);
  char bytes[16];
  request.limit = 100000;
  request.prefix = "head";
  request.prefix_bytes = 4;
  CHECK(mrsplice_splice(set, &request) == 0);
  expect(path.sink, "head", 4);
  send_all(path.sink, "next", 4);
  wait_for(path.fd1, POLLIN);
  CHECK(mrsplice_read(set, request.splice, 1, bytes, sizeof bytes) == 4);
  CHECK(mrsplice_write(set, request.splice, 1, bytes, 4) == -EPERM);
  CHECK(mrsplice_read(set, request.splice, 0, bytes, 4) == -EPERM);
  CHECK(mrsplice_write(set, request.splice, 0, "request", 7) == 7);
  expect(path.source, "request", 7);
  pump(path.source, path.sink, 99999);
  expect_no_notice();
  send_all(path.source, "!more", 5);
  struct mrsplice_notice notice = expect_notice(request.splice, MRSPLICE_ENDED);
  CHECK(notice.end == MRSPLICE_END_LIMIT && notice.forwarded[0] == 100000);
  CHECK(mrsplice_unsplice(set, request.splice, NULL) == -ENOENT);
  expect(path.sink, "!", 1);
  expect(path.fd0, "more", 4);
  send_all(path.fd1, "after", 5);
  expect(path.sink, "after", 5);
  close_path(&path);
}

static void ends_in_the_call(void) {
  struct path path = open_path();
  struct mrsplice_request request =
      request_for(&path, MRSPLICE_UNIDIRECTIONAL | MRSPLICE_LIMIT);
  request.limit = 1000;
  send_all(path.source, pattern, 1000);
  wait_for(path.fd0, POLLIN);
  CHECK(mrsplice_splice(set, &request) == 1);
  CHECK(request.released.end == MRSPLICE_END_LIMIT);
  CHECK(request.released.directions[0].forwarded == 1000);
  expect(path.sink, pattern, 1000);
  expect_no_notice();
  close_path(&path);
}

// Reads the kept payload from `at` on until the end, and returns the notice of the end.
static struct mrsplice_notice read_copy(uint64_t splice, size_t at, size_t total) {
  struct mrsplice_notice notice = {0};
  while (notice.event != MRSPLICE_ENDED) {
    CHECK(!mrsplice_forward(set, 1));
    ssize_t got = mrsplice_read(set, splice, 0, seen + at, TOTAL - at);
    CHECK(got >= 0 || got == -EAGAIN);
    at += got > 0 ? got : 0;
    while (mrsplice_next_notice(set, &notice) == 1)
      CHECK(notice.splice == splice && (notice.event == MRSPLICE_READABLE || at == total));
  }
  CHECK(at == total && !memcmp(seen, pattern, total));
  return notice;
}

static void keep_copy(void) {
  struct path path = open_path();
  uint32_t flags = MRSPLICE_UNIDIRECTIONAL | MRSPLICE_KEEP_COPY;
  struct mrsplice_request request = request_for(&path, flags);
  struct mrsplice_released released;
  unsigned char input[4000], got[20000];
  request.min2read = 1000;
  request.max2cache = 5000;
  request.input = input;
  request.input_bytes = sizeof input;
  send_all(path.source, pattern, 1500);
  wait_for(path.fd0, POLLIN);
  CHECK(mrsplice_splice(set, &request) == 0);
  CHECK(request.input_filled == 1500 && !memcmp(input, pattern, 1500));
  expect(path.sink, pattern, 1500);
  send_all(path.source, pattern + 1500, 999);
  expect(path.sink, pattern + 1500, 999);
  expect_no_notice();
  // Forwarding stops at 5000 kept bytes, and a read restarts it.
  send_all(path.source, pattern + 2499, 15000);
  CHECK(expect_notice(request.splice, MRSPLICE_READABLE).user_data == &path);
  expect(path.sink, pattern + 2499, 4001);
  expect_no_notice();
  CHECK(recv(path.sink, got, sizeof got, 0) < 0 && errno == EAGAIN);
  memcpy(seen, pattern, 1500);
  CHECK(mrsplice_read(set, request.splice, 0, seen + 1500, 5000) == 5000);
  CHECK(!memcmp(seen + 1500, pattern + 1500, 5000));
  wait_for(path.sink, POLLIN);
  CHECK(recv(path.sink, got, sizeof got, 0) > 0);
  shutdown(path.source, SHUT_WR);
  struct mrsplice_notice notice = read_copy(request.splice, 6500, 17499);
  CHECK(notice.end == MRSPLICE_END_CLOSED && notice.forwarded[0] == 17499);
  CHECK(mrsplice_unsplice(set, request.splice, &released) == 0);
  CHECK(!released.directions[0].kept && !released.directions[0].unsent);
  close_path(&path);
}

// The application gets the whole payload after the destination was reset.
static void destination_aborts(void) {
  struct path path = open_path();
  uint32_t flags = MRSPLICE_UNIDIRECTIONAL | MRSPLICE_LIMIT | MRSPLICE_KEEP_COPY;
  struct mrsplice_request request = request_for(&path, flags | MRSPLICE_AUTO_RELEASE);
  request.limit = 12000;
  request.min2read = 1;
  request.max2cache = 65536;
  send_all(path.source, pattern, 6000);
  CHECK(mrsplice_splice(set, &request) == 0);
  expect(path.sink, pattern, 6000);
  abort_connection(path.sink);
  send_all(path.source, pattern + 6000, 6000);
  struct mrsplice_notice notice = read_copy(request.splice, 0, 12000);
  CHECK(notice.end == MRSPLICE_END_FD1_ABORTED && notice.error < 0);
  path.sink = -1;
  close_path(&path);
}

static void source_aborts(void) {
  struct path path = open_path();
  struct mrsplice_request request = request_for(&path, 0);
  struct mrsplice_released released;
  CHECK(mrsplice_splice(set, &request) == 0);
  pump(path.source, path.sink, 5000);
  abort_connection(path.source);
  path.source = -1;
  struct mrsplice_notice notice = expect_notice(request.splice, MRSPLICE_ENDED);
  CHECK(notice.end == MRSPLICE_END_FD0_ABORTED && notice.error == -ECONNRESET);
  CHECK(mrsplice_unsplice(set, request.splice, &released) == 0);
  CHECK(released.error == -ECONNRESET && released.directions[0].forwarded == 5000);
  CHECK(recv(path.sink, seen, 1, 0) < 0 && errno == EAGAIN);
  close_path(&path);
}

// Sends as many bytes as the connections take while the sink does not read, and returns the count.
static size_t fill_path(const struct path *path, uint64_t splice, size_t *read) {
  size_t sent = 0;
  for (int idle = 0; idle < 20 && sent < TOTAL;) {
    ssize_t moved = send(path->source, pattern + sent, TOTAL - sent, 0);
    idle = moved > 0 ? 0 : idle + 1;
    sent += moved > 0 ? moved : 0;
    CHECK(!mrsplice_forward(set, 2));
    if (read && *read < 10000) {
      moved = mrsplice_read(set, splice, 0, seen + *read, 10000 - *read);
      *read += moved > 0 ? moved : 0;
    }
  }
  return sent;
}

// Unsplices while the sink is full, and sends the rest from user space.
static void unsplice(void) {
  struct path path = open_path();
  struct mrsplice_request request = request_for(&path, MRSPLICE_UNIDIRECTIONAL);
  struct mrsplice_released released;
  CHECK(mrsplice_splice(set, &request) == 0);
  size_t sent = fill_path(&path, request.splice, NULL), got = 0, waiting = 0;
  CHECK(mrsplice_unsplice(set, request.splice, &released) == 0);
  struct mrsplice_direction forth = released.directions[0];
  CHECK(released.end == MRSPLICE_END_NONE && forth.prefix_unsent == 0);
  CHECK(forth.unsent_bytes > 0 && forth.forwarded + forth.unsent_bytes <= sent);
  CHECK(!memcmp(forth.unsent, pattern + forth.forwarded, forth.unsent_bytes));
  CHECK(mrsplice_forward(set, 0) == 0);
  static unsigned char rest[TOTAL];
  memcpy(rest, forth.unsent, waiting = forth.unsent_bytes);
  for (size_t at = 0; got < sent;) {
    ssize_t moved = recv(path.fd0, rest + waiting, sizeof rest - waiting, 0);
    waiting += moved > 0 ? moved : 0;
    moved = send(path.fd1, rest + at, waiting - at, 0);
    at += moved > 0 ? moved : 0;
    moved = recv(path.sink, seen + got, sizeof seen - got, 0);
    got += moved > 0 ? moved : 0;
  }
  CHECK(forth.forwarded + waiting == sent && !memcmp(seen, pattern, sent));
  close_path(&path);
}

// The same with KeepCopy. The payload consists of the bytes that were read, `kept`, `unsent`, and
// the bytes that are left in the source, in this order.
static void unsplice_with_a_copy(void) {
  struct path path = open_path();
  struct mrsplice_request request =
      request_for(&path, MRSPLICE_UNIDIRECTIONAL | MRSPLICE_KEEP_COPY);
  struct mrsplice_released released;
  size_t stored = 0;
  request.min2read = 1;
  request.max2cache = TOTAL;
  CHECK(mrsplice_splice(set, &request) == 0);
  size_t sent = fill_path(&path, request.splice, &stored);
  CHECK(stored == 10000 && mrsplice_unsplice(set, request.splice, &released) == 0);
  struct mrsplice_direction forth = released.directions[0];
  CHECK(forth.prefix_unsent == 0 && stored + forth.kept_bytes == forth.forwarded);
  CHECK(forth.kept_bytes > 0 && forth.kept_bytes + forth.unsent_bytes < TOTAL - stored);
  memcpy(seen + stored, forth.kept, forth.kept_bytes);
  stored += forth.kept_bytes;
  if (forth.unsent_bytes)
    memcpy(seen + stored, forth.unsent, forth.unsent_bytes);
  stored += forth.unsent_bytes;
  for (ssize_t moved; stored < sent; stored += moved)
    CHECK((moved = recv(path.fd0, seen + stored, sent - stored, 0)) > 0);
  CHECK(!memcmp(seen, pattern, sent));
  close_path(&path);
}

static void refusals(void) {
  struct path path = open_path();
  struct mrsplice_request good = request_for(&path, 0), request = good;
  struct mrsplice_notice notice;
  struct mrsplice *none = NULL;
  char byte;
  CHECK(mrsplice_new(NULL, 0) == -EINVAL);
  CHECK(mrsplice_fd(none) == -EINVAL && mrsplice_forward(none, 0) == -EINVAL);
  CHECK(mrsplice_splice(set, NULL) == -EINVAL && mrsplice_next_notice(set, NULL) == -EINVAL);
  CHECK(mrsplice_unsplice(set, 12345, NULL) == -ENOENT);
  CHECK(mrsplice_read(set, 12345, 0, &byte, 1) == -ENOENT);
  CHECK(mrsplice_read(set, 12345, 2, &byte, 1) == -EINVAL);
  CHECK(mrsplice_read(set, 12345, 0, NULL, 1) == -EINVAL);
  request.flags = 1 << 10;
  CHECK(mrsplice_splice(set, &request) == -EINVAL);
  request.flags = MRSPLICE_LIMIT;
  CHECK(mrsplice_splice(set, &request) == -EINVAL);
  request.flags = MRSPLICE_KEEP_COPY;
  request.min2read = request.max2cache = 1;
  CHECK(mrsplice_splice(set, &request) == -EINVAL);
  request = good;
  request.flags = MRSPLICE_UNIDIRECTIONAL | MRSPLICE_KEEP_COPY;
  CHECK(mrsplice_splice(set, &request) == -EINVAL);
  // Fields without their flag, and sizes without a pointer, are errors.
  unsigned char room[1];
  const struct mrsplice_request invalid[] = {
      {.limit = 1},
      {.min2read = 1},
      {.max2cache = 1},
      {.input = room},
      {.input_bytes = 1},
      {.input = room, .input_bytes = 1},
      {.prefix_bytes = 1},
      {.reserved = 1},
      {.flags = MRSPLICE_KEEP_COPY, .min2read = 1, .max2cache = 1, .input_bytes = 1},
  };
  for (size_t at = 0; at < sizeof invalid / sizeof *invalid; at++) {
    request = invalid[at];
    request.fd0 = path.fd0;
    request.fd1 = path.fd1;
    request.flags |= MRSPLICE_UNIDIRECTIONAL;
    CHECK(mrsplice_splice(set, &request) == -EINVAL);
  }
  request = good;
  request.fd1 = request.fd0;
  CHECK(mrsplice_splice(set, &request) == -EINVAL);
  int datagrams = socket(AF_INET, SOCK_DGRAM, 0), local = socket(AF_UNIX, SOCK_STREAM, 0);
  int unconnected = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), closed = dup(0);
  CHECK(datagrams >= 0 && local >= 0 && unconnected >= 0 && closed >= 0 && !close(closed));
  const struct {
    int fd, error;
  } wrong[] = {{-1, -EBADF},          {closed, -EBADF},   {mrsplice_fd(set), -ENOTSOCK},
               {datagrams, -ENOTCONN}, {local, -ENOTCONN}, {unconnected, -ENOTCONN}};
  for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++)
    for (int side = 0; side < 2; side++) {
      request = good;
      *(side ? &request.fd1 : &request.fd0) = wrong[at].fd;
      CHECK(mrsplice_splice(set, &request) == wrong[at].error);
    }
  close(datagrams);
  close(local);
  close(unconnected);
  CHECK(!fcntl(path.fd0, F_SETFL, 0));
  CHECK(mrsplice_splice(set, &good) == -EBADFD);
  CHECK(!fcntl(path.fd0, F_SETFL, O_NONBLOCK));
  CHECK(mrsplice_next_notice(set, &notice) == 0);
  close_path(&path);
}

// The texts are those of mrsplice(7), otherwise those of strerror(3).
static void error_texts(void) {
  const int own[] = {EINVAL, ENOTCONN, EBADFD, EBUSY, ENOSPC, ENOENT, EPERM, EAGAIN, ENOTRECOVERABLE};
  for (int error = 0; error < 200; error++) {
    int is_own = 0;
    for (size_t at = 0; at < sizeof own / sizeof *own; at++)
      is_own |= error == own[at];
    // strerror(3) would allocate memory for unknown numbers and never free it.
    char room[64];
    const char *expected = strerror_r(error, room, sizeof room);
    CHECK(is_own == !!strcmp(mrsplice_strerror(-error), expected));
    CHECK(is_own == !!strcmp(mrsplice_strerror(error), expected));
  }
  CHECK(strstr(mrsplice_strerror(-EPERM), "splice"));
  CHECK(strstr(mrsplice_strerror(-EBADFD), "O_NONBLOCK"));
  CHECK(strlen(mrsplice_strerror(INT_MIN)) > 0);
}

static int descriptors(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  while (readdir(folder))
    count++;
  closedir(folder);
  return count;
}

// Freeing a set ends its splices and leaves the connections open.
static void free_with_splices(void) {
  struct path path = open_path();
  struct mrsplice_request request = request_for(&path, 0);
  char byte = 'x';
  CHECK(mrsplice_splice(set, &request) == 0);
  pump(path.source, path.sink, 200000);
  mrsplice_free(set);
  CHECK(mrsplice_new(&set, 0) == 0);
  send_all(path.source, &byte, 1);
  wait_for(path.fd0, POLLIN);
  CHECK(recv(path.fd0, &byte, 1, 0) == 1);
  close_path(&path);
}

int main(void) {
  static const struct {
    const char *name;
    void (*run)(void);
  } cases[] = {
      {"bidirectional", bidirectional},
      {"limit", limit},
      {"ends in the call", ends_in_the_call},
      {"KeepCopy", keep_copy},
      {"destination aborts", destination_aborts},
      {"source aborts", source_aborts},
      {"unsplice", unsplice},
      {"unsplice with a copy", unsplice_with_a_copy},
      {"refusals", refusals},
      {"error texts", error_texts},
      {"free with splices", free_with_splices},
  };
  signal(SIGPIPE, SIG_IGN);
  alarm(120); // No case takes a second: a longer wait is a failure.
  for (size_t at = 0, state = 1; at < sizeof pattern; at++)
    pattern[at] = (state = state * 6364136223846793005 + 1442695040888963407) >> 56;
  int before = descriptors();
  // KeepCopy needs two pipes; with one pipe it copies.
  for (int pipes = 1; pipes <= 2; pipes++)
    for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
      CHECK(mrsplice_new(&set, pipes) == 0);
      cases[at].run();
      mrsplice_free(set);
      CHECK(descriptors() == before);
      printf("%s, pipes: %d: as the man pages say\n", cases[at].name, pipes);
    }
  mrsplice_free(NULL);
  return 0;
}
