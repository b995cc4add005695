// Shared by pbfcgi and pbprogram: the counts of the programs behind a server, and the sizes in
// their targets.
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pbstream.h"

struct counts {
  _Atomic unsigned long long requests, urls;
};

// Maps the file `path`, which run-case reads, with counts of 0. Exits on errors.
static inline struct counts *pbcounts(const char *path) {
  int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
  if (file < 0 || ftruncate(file, sizeof(struct counts))) {
    perror(path);
    exit(1);
  }
  void *counts = mmap(0, sizeof(struct counts), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (counts == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  close(file);
  return counts;
}

// Counts a request for `target`.
static inline void pbcount(struct counts *counts, const char *target) {
  atomic_fetch_add(&counts->requests, 1);
  atomic_fetch_add(&counts->urls, pbhash(target, strlen(target)));
}

// Returns the size in a target: `prefix`, then 1k, 8k, 64k, 1m or a number of bytes; or -1.
static inline long pbsize(const char *target, const char *prefix) {
  if (strncmp(target, prefix, strlen(prefix))) return -1;
  char *end;
  long size = strtol(target + strlen(prefix), &end, 10);
  if (*end == 'k') size <<= 10;
  else if (*end == 'm') size <<= 20;
  return size < 0 || size > STREAM ? -1 : size;
}
