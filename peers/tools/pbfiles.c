// pbfiles: writes files with the beginning of pborigin's stream, or drops them from the page cache.
//   pbfiles surge FOLDER               FOLDER/BYTES/NUMBER: the objects of pbsurge.h
//   pbfiles write FOLDER COUNT BYTES   FOLDER/NUMBER: COUNT files of BYTES each
//   pbfiles drop FOLDER COUNT          prints the pages that are still cached after that
// A file that has its length already is left as it is. Written files are on the disk at the end.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pbstream.h"
#include "pbsurge.h"

static char *stream;

static void fail(const char *what) {
  perror(what);
  exit(1);
}
static void write_file(const char *path, size_t bytes) {
  struct stat found;
  if (!stat(path, &found) && (size_t)found.st_size == bytes) return;
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0) fail(path);
  for (size_t have = 0; have < bytes;) {
    ssize_t n = write(fd, stream + have, bytes - have);
    if (n < 0) fail(path);
    have += n;
  }
  close(fd);
}
static void make_folder(const char *path) {
  if (mkdir(path, 0755) && errno != EEXIST) fail(path);
}
static void write_surge(const char *folder) {
  static unsigned sizes[OBJECTS];
  char path[4096];
  surge_sizes(sizes);
  for (int i = 0; i < OBJECTS; i++) {
    snprintf(path, sizeof path, "%s/%u", folder, sizes[i]);
    make_folder(path);
    snprintf(path, sizeof path, "%s/%u/%d", folder, sizes[i], i);
    write_file(path, sizes[i]);
  }
}
static void sync_folder(const char *folder) {
  int fd = open(folder, O_RDONLY | O_DIRECTORY);
  if (fd < 0 || syncfs(fd)) fail(folder);
  close(fd);
}
// Drops a file from the page cache. Returns its pages that are still there.
static size_t drop(const char *path) {
  int fd = open(path, O_RDONLY);
  struct stat found;
  if (fd < 0 || fstat(fd, &found)) fail(path);
  if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)) fail(path);
  size_t page = sysconf(_SC_PAGESIZE), pages = (found.st_size + page - 1) / page, cached = 0;
  void *at = mmap(0, found.st_size, PROT_READ, MAP_SHARED, fd, 0);
  unsigned char *in_core = malloc(pages);
  if (at == MAP_FAILED || mincore(at, found.st_size, in_core)) fail(path);
  for (size_t i = 0; i < pages; i++) cached += in_core[i] & 1;
  free(in_core);
  munmap(at, found.st_size);
  close(fd);
  return cached;
}
int main(int argc, char **argv) {
  const char *what = argc > 2 ? argv[1] : "", *folder = argc > 2 ? argv[2] : "";
  char path[4096];
  if (!strcmp(what, "drop") && argc == 4) {
    size_t cached = 0;
    for (int i = 0; i < atoi(argv[3]); i++) {
      snprintf(path, sizeof path, "%s/%d", folder, i);
      cached += drop(path);
    }
    printf("%zu\n", cached);
    return 0;
  }
  pbstream(stream = malloc(STREAM));
  if (!strcmp(what, "surge") && argc == 3) {
    make_folder(folder);
    write_surge(folder);
  } else if (!strcmp(what, "write") && argc == 5) {
    make_folder(folder);
    for (int i = 0; i < atoi(argv[3]); i++) {
      snprintf(path, sizeof path, "%s/%d", folder, i);
      write_file(path, atol(argv[4]));
    }
  } else {
    fprintf(stderr, "pbfiles: invalid arguments (expected: surge FOLDER, write FOLDER COUNT BYTES "
      "or drop FOLDER COUNT)\n");
    return 2;
  }
  sync_folder(folder);
  return 0;
}
