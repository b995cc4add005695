// files: checks iol_read(3) and iol_write(3) with files of the folder FOLDER and with pipes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/wait.h>

#include "common.h"

// Opens a file of the folder, which is the working directory.
static int open_file(const char *name, int flags) {
  int fd = open(name, flags | O_CREAT | O_CLOEXEC, 0600);
  CHECK(fd >= 0);
  return fd;
}

static void fill(int fd, size_t length) {
  for (size_t at = 0; at < length; at += (size_t)write(fd, pattern + at, length - at))
    ;
  CHECK(lseek(fd, 0, SEEK_SET) == 0);
}

static void wrong_arguments(void) {
  struct iol_aggregate *aggregate = NULL, *bytes = copied(IOL_COPIED, "hello", 5);
  struct iol_buffer *buffer = NULL;
  int ends[2], write_only = open_file("short", O_WRONLY), full = open("/dev/full", O_WRONLY);
  int folder = open(".", O_RDONLY), read_only = open("short", O_RDONLY);
  CHECK(full >= 0 && folder >= 0 && read_only >= 0 && pipe(ends) == 0);
  CHECK(iol_read(-1, 1, &aggregate) == -EBADF && iol_read(9999, 1, &aggregate) == -EBADF);
  CHECK(iol_read(read_only, 1, NULL) == -EINVAL);
  CHECK(iol_read(write_only, 1, &aggregate) == -EBADF);
  CHECK(iol_read(folder, 1, &aggregate) == -EISDIR);
  CHECK(iol_read(ends[1], 1, &aggregate) == -EBADF);
  CHECK(iol_pread(read_only, 1, -1, &aggregate) == -EINVAL);
  CHECK(iol_pread(read_only, 1, 0, NULL) == -EINVAL);
  CHECK(iol_pread(ends[0], 1, 0, &aggregate) == -ESPIPE && !aggregate);
  CHECK(iol_write(write_only, NULL) == -EINVAL && iol_write(-1, bytes) == -EBADF);
  CHECK(iol_write(read_only, bytes) == -EBADF && iol_write(full, bytes) == -ENOSPC);
  CHECK(iol_write(ends[0], bytes) == -EBADF);
  CHECK(iol_allocate(-1, 1, &buffer) == -EBADF && iol_allocate(write_only, 1, NULL) == -EINVAL);
  CHECK(iol_allocate(write_only, 0, &buffer) == -EINVAL);
  CHECK(iol_allocate(write_only, IOL_BUFFER_BYTES_MAX + 1, &buffer) == -EINVAL && !buffer);
  close(ends[0]);
  CHECK(iol_write(ends[1], bytes) == -EPIPE);
  iol_aggregate_destroy(bytes);
  for (int fds[] = {ends[1], write_only, full, folder, read_only}, i = 0; i < 5; i++)
    close(fds[i]);
}

static void read_files(void) {
  static const size_t lengths[] = {0, 5, 40000, sizeof pattern - 1};
  for (int i = 0; i < 4; i++) {
    int fd = open_file("read", O_RDWR | O_TRUNC);
    fill(fd, lengths[i]);
    struct iol_aggregate *part = NULL;
    size_t position = 0;
    ssize_t count;
    CHECK(iol_read(fd, 0, &part) == 0 && part);
    iol_aggregate_destroy(part);
    while ((count = iol_read(fd, 1000003, &part)) > 0) {
      expect_and_destroy(part, pattern + position, (size_t)count);
      position += (size_t)count;
      CHECK(lseek(fd, 0, SEEK_CUR) == (off_t)position);
    }
    CHECK(count == 0 && position == lengths[i] && iol_aggregate_length(part) == 0);
    iol_aggregate_destroy(part);
    size_t from = lengths[i] / 2;
    CHECK(iol_pread(fd, SIZE_MAX, (off_t)from, &part) == (ssize_t)(lengths[i] - from));
    CHECK(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_CUR) == (off_t)position);
    expect_and_destroy(part, pattern + from, lengths[i] - from);
    close(fd);
  }
}

static void write_files(void) {
  int fd = open_file("written", O_RDWR | O_TRUNC);
  struct iol_aggregate *all = of_slice(sealed(pattern, 300000)), *rest = NULL;
  CHECK(iol_aggregate_concatenate(all, rest = copied(IOL_ZERO_COPY, pattern + 7, 100000)) == 0);
  iol_aggregate_destroy(rest);
  CHECK(iol_write(fd, all) == 400000 && lseek(fd, 0, SEEK_CUR) == 400000);
  CHECK(pread(fd, seen, sizeof seen, 0) == 400000 && !memcmp(seen, pattern, 300000));
  CHECK(!memcmp(seen + 300000, pattern + 7, 100000));
  iol_aggregate_destroy(all);
  CHECK(iol_pread(fd, SIZE_MAX, 0, &all) == 400000);
  struct iol_buffer *buffer = NULL;
  CHECK(iol_allocate(fd, 70000, &buffer) == 0 && buffer);
  struct iol_aggregate *more = of_slice(filled(buffer, pattern, 70000));
  CHECK(iol_write(fd, more) == 70000 && pread(fd, seen, 70000, 400000) == 70000);
  CHECK(!memcmp(seen, pattern, 70000) && iol_aggregate_length(all) == 400000);
  iol_aggregate_destroy(more);
  // Bytes that were read are written to another file.
  int copy = open_file("copy", O_RDWR | O_TRUNC);
  CHECK(iol_write(copy, all) == 400000 && pread(copy, seen, sizeof seen, 0) == 400000);
  CHECK(!memcmp(seen, pattern, 300000) && !memcmp(seen + 300000, pattern + 7, 100000));
  CHECK(iol_write(copy, more = empty()) == 0);
  iol_aggregate_destroy(more);
  iol_aggregate_destroy(all);
  close(fd);
  close(copy);
}

// Reads a pipe to its end, and compares each part.
static void reader(int pipe) {
  struct iol_aggregate *part = NULL;
  size_t position = 0;
  ssize_t count;
  CHECK(iol_trust_user() == 0);
  while ((count = iol_read(pipe, 700000, &part)) > 0) {
    size_t at = position % 1000000;
    if (at + (size_t)count > 1000000) {
      struct iol_aggregate *next = NULL;
      CHECK(iol_aggregate_split(part, 1000000 - at, &next) == 0);
      expect_and_destroy(part, pattern + at, 1000000 - at);
      expect_and_destroy(next, pattern, at + (size_t)count - 1000000);
    } else {
      expect_and_destroy(part, pattern + at, (size_t)count);
    }
    position += (size_t)count;
  }
  CHECK(count == 0 && position == 20000000);
  iol_aggregate_destroy(part);
}

static void two_processes(void) {
  int ends[2], status;
  CHECK(pipe(ends) == 0);
  fflush(stdout);
  pid_t child = fork();
  CHECK(child >= 0);
  close(ends[child ? 0 : 1]);
  if (!child) {
    reader(ends[0]);
    _exit(0);
  }
  for (int i = 0; i < 20; i++) {
    struct iol_aggregate *all = of_slice(sealed(pattern, 1000000));
    ssize_t count;
    while (iol_aggregate_length(all) > 0) {
      CHECK((count = iol_write(ends[1], all)) > 0);
      CHECK(iol_aggregate_skip(all, (uint64_t)count) == 0);
    }
    iol_aggregate_destroy(all);
  }
  close(ends[1]);
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
  static const struct test_case cases[] = {
      {"wrong arguments", wrong_arguments},
      {"read files", read_files},
      {"write files", write_files},
      {"two processes", two_processes},
  };
  CHECK(argc == 2 && chdir(argv[1]) == 0);
  prepare();
  for (size_t at = 0; at < sizeof cases / sizeof *cases; at++)
    run_case(&cases[at]);
  return 0;
}
