// files: checks the calls for files and pipes against their man pages. Prints a line for each case.
// The arguments are a folder for files, and "shared" if iolited(8) runs at IOLITED_SOCKET and
// shares the files of this folder.
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "common.h"

#define SHARED_FILE_BYTES_MIN (32 << 10)
#define THREADS 4

static const char *folder;
static int is_shared;

// Opens a new file that has no name, with the first `count` bytes of the pattern, at its beginning.
static int file_of(size_t count) {
  char path[4096];
  snprintf(path, sizeof path, "%s/file-XXXXXX", folder);
  int fd = mkstemp(path);
  CHECK(fd >= 0 && !unlink(path));
  CHECK(write(fd, pattern, count) == (ssize_t)count && lseek(fd, 0, SEEK_SET) == 0);
  return fd;
}

static off_t position(int fd) { return lseek(fd, 0, SEEK_CUR); }

static struct iol_aggregate *read_bytes(int fd, size_t length, size_t expected) {
  struct iol_aggregate *aggregate = NULL;
  CHECK(iol_read(fd, length, &aggregate) == (ssize_t)expected && aggregate);
  CHECK(iol_aggregate_length(aggregate) == (int64_t)expected);
  return aggregate;
}

static struct iol_aggregate *read_at(int fd, size_t length, off_t offset, size_t expected) {
  struct iol_aggregate *aggregate = NULL;
  CHECK(iol_pread(fd, length, offset, &aggregate) == (ssize_t)expected && aggregate);
  CHECK(iol_aggregate_length(aggregate) == (int64_t)expected);
  return aggregate;
}

// Checks that the bytes are in memory of the daemon, or are not.
static void expect_shared(const struct iol_aggregate *aggregate, int shared) {
  struct iol_part part;
  uint64_t at = 0;
  while (iol_aggregate_next(aggregate, &at, &part) == 1)
    CHECK((part.id.pool == UINT32_MAX) == shared);
}

// Writes a whole aggregate, and destroys it.
static void write_all(int fd, struct iol_aggregate *aggregate) {
  while (iol_aggregate_length(aggregate) > 0) {
    ssize_t count = iol_write(fd, aggregate);
    CHECK(count > 0 && iol_aggregate_skip(aggregate, (uint64_t)count) == 0);
  }
  iol_aggregate_destroy(aggregate);
}

static void refusals(void) {
  struct iol_aggregate *aggregate = NULL, *bytes = copied(IOL_COPIED, "bytes", 5);
  struct iol_buffer *buffer = NULL;
  int pipes[2], file = file_of(100), wrong[] = {-1, INT_MIN, 1000};
  int read_only = open("/dev/null", O_RDONLY), write_only = open("/dev/null", O_WRONLY);
  int device = open("/dev/full", O_WRONLY), directory = open("/", O_RDONLY | O_DIRECTORY);
  CHECK(!pipe(pipes));
  for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++) {
    int fd = wrong[at];
    CHECK(iol_read(fd, 1, &aggregate) == -EBADF && iol_read(fd, 0, &aggregate) == -EBADF);
    CHECK(iol_pread(fd, 1, 0, &aggregate) == -EBADF && !aggregate);
    CHECK(iol_write(fd, bytes) == -EBADF);
    CHECK(iol_allocate(fd, 1, &buffer) == -EBADF && !buffer);
  }
  CHECK(iol_read(file, 1, NULL) == -EINVAL && iol_pread(file, 1, 0, NULL) == -EINVAL);
  CHECK(position(file) == 0);
  CHECK(iol_pread(file, 1, -1, &aggregate) == -EINVAL);
  CHECK(iol_read(write_only, 1, &aggregate) == -EBADF);
  CHECK(iol_read(pipes[1], 1, &aggregate) == -EBADF);
  CHECK(iol_read(directory, 1, &aggregate) == -EISDIR);
  CHECK(iol_pread(pipes[0], 1, 0, &aggregate) == -ESPIPE && !aggregate);
  CHECK(iol_write(file, NULL) == -EINVAL && iol_write(read_only, bytes) == -EBADF);
  CHECK(iol_write(pipes[0], bytes) == -EBADF && iol_write(device, bytes) == -ENOSPC);
  CHECK(strstr(iol_strerror(-ENOSPC), "device") && strstr(iol_strerror(-EPIPE), "pipe"));
  CHECK(iol_allocate(file, 1, NULL) == -EINVAL && iol_allocate(file, 0, &buffer) == -EINVAL);
  CHECK(iol_allocate(file, IOL_BUFFER_BYTES_MAX + 1, &buffer) == -EINVAL && !buffer);
  expect_and_destroy(bytes, "bytes", 5);
  int all[] = {file, read_only, write_only, device, directory, pipes[0], pipes[1]};
  for (size_t at = 0; at < sizeof all / sizeof *all; at++)
    close(all[at]);
}

static void reading(void) {
  const size_t lengths[] = {0, 1, SHARED_FILE_BYTES_MIN - 1, SHARED_FILE_BYTES_MIN, sizeof pattern};
  for (size_t at = 0; at < sizeof lengths / sizeof *lengths; at++) {
    size_t length = lengths[at], step = 100000, from = 0;
    int fd = file_of(length), shared = is_shared && length >= SHARED_FILE_BYTES_MIN;
    while (from < length) {
      size_t count = length - from < step ? length - from : step;
      struct iol_aggregate *aggregate = read_bytes(fd, step, count);
      expect_shared(aggregate, shared);
      expect_and_destroy(aggregate, pattern + from, count);
      from += count;
      CHECK(position(fd) == (off_t)from);
    }
    iol_aggregate_destroy(read_bytes(fd, step, 0));
    iol_aggregate_destroy(read_bytes(fd, 0, 0));
    CHECK(position(fd) == (off_t)length);
    // From an offset; the position stays.
    expect_and_destroy(read_at(fd, SIZE_MAX, 0, length), pattern, length);
    iol_aggregate_destroy(read_at(fd, 1, (off_t)length, 0));
    iol_aggregate_destroy(read_at(fd, 1, (off_t)1 << 40, 0));
    iol_aggregate_destroy(read_at(fd, 0, 0, 0));
    if (length > 1)
      expect_and_destroy(read_at(fd, 10, 1, 10), pattern + 1, 10);
    CHECK(position(fd) == (off_t)length && lseek(fd, 7, SEEK_END) == (off_t)length + 7);
    iol_aggregate_destroy(read_bytes(fd, 1, 0));
    CHECK(position(fd) == (off_t)length + 7);
    close(fd);
  }
}

static void bytes_that_were_read_stay(void) {
  const size_t length = 3 << 20;
  int fd = file_of(length);
  struct iol_aggregate *before = read_at(fd, length, 0, length);
  CHECK(pwrite(fd, "other", 5, 1000) == 5);
  struct iol_aggregate *after = read_at(fd, 7, 999, 7), *middle = NULL;
  CHECK(iol_aggregate_range(after, 1, 5, &middle) == 0);
  expect_and_destroy(middle, "other", 5);
  iol_aggregate_destroy(after);
  CHECK(!ftruncate(fd, 0));
  iol_aggregate_destroy(read_at(fd, length, 0, 0));
  close(fd);
  expect_and_destroy(before, pattern, length);
}

// A file that is longer than 32 bits can say, most of it a hole.
static void a_large_file(void) {
  const off_t offset = ((off_t)4 << 30) + 12345;
  int fd = file_of(0);
  CHECK(pwrite(fd, pattern, 100000, offset) == 100000 && lseek(fd, offset, SEEK_SET) == offset);
  expect_and_destroy(read_bytes(fd, 200000, 100000), pattern, 100000);
  CHECK(position(fd) == offset + 100000);
  expect_and_destroy(read_at(fd, 1000, offset + 5, 1000), pattern + 5, 1000);
  memset(seen, 0, sizeof seen);
  struct iol_aggregate *hole = read_at(fd, 100, 1 << 30, 100);
  unsigned char bytes[100];
  CHECK(iol_aggregate_read(hole, 0, bytes, 100) == 100 && !memcmp(bytes, seen, 100));
  iol_aggregate_destroy(hole);
  close(fd);
}

static void files_without_a_length(void) {
  int fd = open("/proc/self/cmdline", O_RDONLY);
  char expected[4096];
  ssize_t length = pread(fd, expected, sizeof expected, 0);
  CHECK(length > 0);
  expect_and_destroy(read_bytes(fd, sizeof expected, (size_t)length), expected, (size_t)length);
  iol_aggregate_destroy(read_bytes(fd, sizeof expected, 0));
  close(fd);
  CHECK((fd = open("/dev/zero", O_RDONLY)) >= 0);
  iol_aggregate_destroy(read_bytes(fd, 1000, 1000));
  close(fd);
}

static void writing(void) {
  const size_t length = 3 << 20;
  int fd = file_of(0);
  struct iol_aggregate *bytes = copied(IOL_ZERO_COPY, pattern, length), *none = empty();
  CHECK(iol_write(fd, none) == 0 && position(fd) == 0);
  // The aggregate stays as it is.
  CHECK(iol_write(fd, bytes) == (ssize_t)length && position(fd) == (off_t)length);
  CHECK(iol_aggregate_length(bytes) == (int64_t)length);
  expect_and_destroy(read_at(fd, length, 0, length), pattern, length);
  // At a position, and at the end whatever the position is.
  CHECK(lseek(fd, 10, SEEK_SET) == 10);
  write_all(fd, copied(IOL_COPIED, "ab", 2));
  CHECK(position(fd) == 12 && !fcntl(fd, F_SETFL, O_APPEND) && lseek(fd, 0, SEEK_SET) == 0);
  write_all(fd, copied(IOL_COPIED, "cd", 2));
  CHECK(position(fd) == (off_t)length + 2);
  expect_and_destroy(read_at(fd, 2, 10, 2), "ab", 2);
  expect_and_destroy(read_at(fd, 10, (off_t)length, 2), "cd", 2);
  iol_aggregate_destroy(none);
  iol_aggregate_destroy(bytes);
  close(fd);
  // Sealed memory becomes the memory of the file.
  struct iol_slice *memory = sealed(pattern, 1 << 20);
  fd = file_of(0);
  write_all(fd, of_slice(memory));
  struct iol_aggregate *again = read_at(fd, 1 << 20, 0, 1 << 20);
  expect_shared(again, is_shared);
  expect_and_destroy(again, pattern, 1 << 20);
  close(fd);
}

// A write stops where it would exceed the limit, and the next one fails.
static void a_full_file(void) {
  struct rlimit before, limit;
  int fd = file_of(0);
  struct iol_aggregate *bytes = copied(IOL_ZERO_COPY, pattern, 100000);
  signal(SIGXFSZ, SIG_IGN);
  CHECK(!getrlimit(RLIMIT_FSIZE, &before));
  limit = before;
  limit.rlim_cur = 60000;
  CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
  CHECK(iol_write(fd, bytes) == 60000 && iol_write(fd, bytes) == -EFBIG);
  CHECK(!setrlimit(RLIMIT_FSIZE, &before) && position(fd) == 60000);
  expect_and_destroy(read_at(fd, 100000, 0, 60000), pattern, 60000);
  iol_aggregate_destroy(bytes);
  close(fd);
}

// Returns an aggregate with these bytes in buffers for a descriptor.
static struct iol_aggregate *allocated(int fd, const unsigned char *bytes, size_t count) {
  struct iol_aggregate *aggregate = empty();
  while (count > 0) {
    struct iol_buffer *buffer = NULL;
    struct iol_slice *slice = NULL;
    size_t part = count < 300000 ? count : 300000;
    CHECK(iol_allocate(fd, part, &buffer) == 0 && buffer);
    ssize_t written = iol_buffer_write(buffer, bytes, part);
    CHECK(written > 0 && iol_buffer_freeze(buffer, &slice) == 0);
    CHECK(iol_aggregate_append(aggregate, slice) == 0);
    iol_slice_destroy(slice);
    bytes += written, count -= (size_t)written;
  }
  return aggregate;
}

static void allocating(void) {
  const size_t sizes[] = {1, IOL_COPIED_BYTES_MAX, IOL_COPIED_BYTES_MAX + 1, IOL_BUFFER_BYTES_MAX};
  struct iol_buffer *buffers[33] = {0};
  int fd = file_of(0), other = file_of(0), count = 0, error;
  for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
    void *start;
    size_t room;
    CHECK(iol_allocate(fd, sizes[at], &buffers[0]) == 0);
    CHECK(iol_buffer_unfilled(buffers[0], &start, &room) == 0 && room >= sizes[at]);
    iol_buffer_destroy(buffers[0]);
  }
  // The bytes may be written anywhere.
  struct iol_aggregate *bytes = allocated(fd, pattern, 1 << 20);
  CHECK(iol_write(fd, bytes) == 1 << 20 && iol_write(other, bytes) == 1 << 20);
  iol_aggregate_destroy(bytes);
  expect_and_destroy(read_at(other, 1 << 20, 0, 1 << 20), pattern, 1 << 20);
  while (!(error = iol_allocate(fd, IOL_BUFFER_BYTES_MAX, &buffers[count])))
    count++;
  CHECK(error == -ENOMEM && count > 0 && count <= 32);
  // Reading goes on, in other memory.
  expect_and_destroy(read_at(fd, 1 << 20, 0, 1 << 20), pattern, 1 << 20);
  while (count > 0)
    iol_buffer_destroy(buffers[--count]);
  close(fd);
  close(other);
}

static void short_pipes(void) {
  int ends[2], sockets[2];
  struct iol_aggregate *aggregate = NULL, *bytes = copied(IOL_COPIED, "0123456789", 10);
  struct iol_aggregate *none = empty();
  CHECK(!pipe(ends));
  CHECK(iol_write(ends[1], none) == 0 && iol_write(ends[1], bytes) == 10);
  iol_aggregate_destroy(read_bytes(ends[0], 0, 0));
  expect_and_destroy(read_bytes(ends[0], 4, 4), "0123", 4);
  expect_and_destroy(read_bytes(ends[0], 100, 6), "456789", 6);
  CHECK(!fcntl(ends[0], F_SETFL, O_NONBLOCK) && !fcntl(ends[1], F_SETFL, O_NONBLOCK));
  CHECK(iol_read(ends[0], 1, &aggregate) == -EAGAIN && !aggregate);
  int error;
  while ((error = (int)iol_write(ends[1], bytes)) > 0) {
  }
  CHECK(error == -EAGAIN);
  expect_and_destroy(read_bytes(ends[0], 10, 10), "0123456789", 10);
  close(ends[0]);
  CHECK(iol_write(ends[1], bytes) == -EPIPE);
  close(ends[1]);
  CHECK(!pipe(ends) && iol_write(ends[1], bytes) == 10 && !close(ends[1]));
  expect_and_destroy(read_bytes(ends[0], 100, 10), "0123456789", 10);
  iol_aggregate_destroy(read_bytes(ends[0], 100, 0));
  iol_aggregate_destroy(read_bytes(ends[0], 100, 0));
  close(ends[0]);
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) && iol_write(sockets[0], bytes) == 10);
  expect_and_destroy(read_bytes(sockets[1], 100, 10), "0123456789", 10);
  CHECK(!close(sockets[0]));
  iol_aggregate_destroy(read_bytes(sockets[1], 100, 0));
  close(sockets[1]);
  iol_aggregate_destroy(bytes);
  iol_aggregate_destroy(none);
}

// Writes the pattern four times, from memory of each kind, the first time in parts of many lengths.
static void write_stream(int to) {
  int file = file_of(sizeof pattern);
  size_t at = 0;
  for (size_t length = 1; at < sizeof pattern; at += length, length = length * 3 / 2 + 1) {
    if (length > sizeof pattern - at)
      length = sizeof pattern - at;
    write_all(to, allocated(to, pattern + at, length));
  }
  write_all(to, read_at(file, SIZE_MAX, 0, sizeof pattern));
  write_all(to, copied(IOL_ZERO_COPY, pattern, sizeof pattern));
  write_all(to, of_slice(sealed(pattern, sizeof pattern)));
  close(file);
}

// Reads until the end. Checks the bytes of `write_stream`.
static void read_stream(int from) {
  struct iol_aggregate *aggregate = NULL;
  uint64_t total = 0;
  ssize_t count;
  while ((count = iol_read(from, 1 << 20, &aggregate)) > 0) {
    CHECK(iol_aggregate_read(aggregate, 0, seen, (size_t)count) == count);
    for (ssize_t at = 0; at < count; at++)
      CHECK(seen[at] == pattern[(total + (uint64_t)at) % sizeof pattern]);
    total += (uint64_t)count;
    iol_aggregate_destroy(aggregate);
  }
  CHECK(count == 0 && total == 4 * sizeof pattern);
  iol_aggregate_destroy(aggregate);
}

static void write_by_calls(int to) {
  for (size_t at = 0, count; at < 4 * sizeof pattern; at += count) {
    size_t from = at % sizeof pattern;
    ssize_t written = write(to, pattern + from, sizeof pattern - from);
    CHECK(written > 0);
    count = (size_t)written;
  }
}

static void read_by_calls(int from) {
  size_t total = 0;
  ssize_t count;
  while ((count = read(from, seen, sizeof pattern - total % sizeof pattern)) > 0) {
    CHECK(!memcmp(seen, pattern + total % sizeof pattern, (size_t)count));
    total += (size_t)count;
  }
  CHECK(count == 0 && total == 4 * sizeof pattern);
}

static void trust_and_read_stream(int from) {
  CHECK(iol_trust_user() == 0);
  read_stream(from);
}

// Runs `writer` in this process and `reader` in a child, or the other way round. The child has a
// client of its own, and inherits no object.
static void through_a_pipe(void (*writer)(int), void (*reader)(int), int child_writes) {
  int ends[2], status;
  CHECK(!pipe(ends));
  iol_slab_destroy(slab);
  fflush(stdout);
  pid_t child = fork();
  CHECK(child >= 0);
  CHECK(iol_slab_create(&slab, SLAB_BYTES) == 0);
  int writes = (child == 0) == child_writes;
  close(ends[!writes]);
  (writes ? writer : reader)(ends[writes]);
  close(ends[writes]);
  if (!child) {
    iol_slab_destroy(slab);
    _exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void pipes_between_processes(void) {
  for (int child_writes = 0; child_writes < 2; child_writes++) {
    through_a_pipe(write_stream, read_stream, child_writes);
    through_a_pipe(write_stream, read_by_calls, child_writes);
    through_a_pipe(write_by_calls, read_stream, child_writes);
  }
  // The parent reads without trust.
  through_a_pipe(write_stream, trust_and_read_stream, 0);
}

static void children(void) {
  int fd = file_of(sizeof pattern), status;
  iol_aggregate_destroy(read_at(fd, SIZE_MAX, 0, sizeof pattern));
  pid_t child = fork();
  CHECK(child >= 0);
  if (!child) {
    struct iol_aggregate *aggregate = read_bytes(fd, 1000000, 1000000);
    expect_shared(aggregate, is_shared);
    expect_and_destroy(aggregate, pattern, 1000000);
    _exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child && status == 0 && position(fd) == 1000000);
  expect_and_destroy(read_bytes(fd, 10, 10), pattern + 1000000, 10);
  close(fd);
}

static void mappings(void) {
  int fd = file_of(3000000);
  void *mapping = NULL, *none = NULL;
  struct iol_aggregate *aggregate = read_at(fd, 3000000, 0, 3000000), *nothing = empty();
  CHECK(iol_mmap(NULL, &none) == -EINVAL && iol_mmap(aggregate, NULL) == -EINVAL);
  CHECK(iol_mmap(nothing, &none) == -EINVAL && !none);
  CHECK(iol_mmap(aggregate, &mapping) == 0 && !memcmp(mapping, pattern, 3000000));
  char *start = mapping;
  // A change of the mapping is not one of the file, and the other way around.
  start[5000] ^= 1;
  CHECK(pwrite(fd, "new", 3, 2000000) == 3);
  expect_and_destroy(aggregate, pattern, 3000000);
  CHECK(start[5000] == (char)(pattern[5000] ^ 1) && !memcmp(start + 5001, pattern + 5001, 2900000));
  // System calls read it and write to it.
  CHECK(pwrite(fd, start, 3000000, 0) == 3000000);
  CHECK(pread(fd, start + 100, 4, 5000) == 4 && start[100] == (char)(pattern[5000] ^ 1));
  CHECK(!munmap(start, 3000000));
  iol_aggregate_destroy(nothing);
  close(fd);
}

static void *read_often(void *argument) {
  int fd = *(int *)argument;
  for (size_t at = 0; at < 50; at++) {
    unsigned char bytes[1000];
    off_t offset = (off_t)(at * 100003);
    struct iol_aggregate *aggregate = read_at(fd, sizeof bytes, offset, sizeof bytes);
    CHECK(iol_aggregate_read(aggregate, 0, bytes, sizeof bytes) == sizeof bytes);
    CHECK(!memcmp(bytes, pattern + offset, sizeof bytes));
    iol_aggregate_destroy(aggregate);
  }
  return NULL;
}

static void threads(void) {
  pthread_t all[THREADS];
  int fd = file_of(sizeof pattern);
  for (int at = 0; at < THREADS; at++)
    CHECK(!pthread_create(&all[at], NULL, read_often, &fd));
  for (int at = 0; at < THREADS; at++)
    CHECK(!pthread_join(all[at], NULL));
  close(fd);
}

int main(int argc, char **argv) {
  static const struct test_case cases[] = {
      {"refusals", refusals},
      {"reading", reading},
      {"bytes that were read stay", bytes_that_were_read_stay},
      {"a large file", a_large_file},
      {"files without a length", files_without_a_length},
      {"writing", writing},
      {"a full file", a_full_file},
      {"allocating", allocating},
      {"short pipes", short_pipes},
      {"pipes between processes", pipes_between_processes},
      {"children", children},
      {"mappings", mappings},
      {"threads", threads},
  };
  CHECK(argc == 2 || (argc == 3 && !strcmp(argv[2], "shared")));
  folder = argv[1];
  is_shared = argc == 3;
  // The library keeps a connection to the daemon, pieces of files, and what went beside a pipe.
  keeps_objects = is_shared;
  run_cases(cases, sizeof cases / sizeof *cases);
  return 0;
}
