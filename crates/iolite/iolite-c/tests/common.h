// Helpers of the programs that check libiolite: they exit at the first failure.
#ifndef COMMON_H
#define COMMON_H

#include <dirent.h>
#include <errno.h>
#include <iolite.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLAB_BYTES (32 << 20)
#define CHECK(condition) ((condition) ? (void)0 : fail(__FILE__, __LINE__, #condition))

static struct iol_slab *slab;
// Whether the library keeps descriptors and memory after a case.
static int keeps_objects;
static unsigned char pattern[5 << 20], seen[sizeof pattern];

static inline void fail(const char *file, int line, const char *condition) {
  fprintf(stderr, "%s:%d: check failed: %s (errno %d)\n", file, line, condition, errno);
  exit(1);
}

static inline struct iol_aggregate *empty(void) {
  struct iol_aggregate *aggregate = NULL;
  CHECK(iol_aggregate_create(&aggregate) == 0 && aggregate);
  return aggregate;
}

static inline struct iol_aggregate *copied(int kind, const void *bytes, size_t count) {
  struct iol_aggregate *aggregate = NULL;
  CHECK(iol_aggregate_from_bytes(slab, kind, bytes, count, &aggregate) == 0 && aggregate);
  return aggregate;
}

static inline struct iol_aggregate *of_slice(struct iol_slice *slice) {
  struct iol_aggregate *aggregate = empty();
  CHECK(iol_aggregate_append(aggregate, slice) == 0);
  iol_slice_destroy(slice);
  return aggregate;
}

static inline struct iol_slice *filled(struct iol_buffer *buffer, const void *bytes, size_t count) {
  struct iol_slice *slice = NULL;
  CHECK(iol_buffer_write(buffer, bytes, count) == (ssize_t)count);
  CHECK(iol_buffer_freeze(buffer, &slice) == 0 && slice);
  return slice;
}

static inline struct iol_slice *in_slab(int kind, const void *bytes, size_t count) {
  struct iol_buffer *buffer = NULL;
  CHECK(iol_slab_allocate(slab, kind, count, count, &buffer) == 0 && buffer);
  return filled(buffer, bytes, count);
}

static inline struct iol_slice *in_pool(struct iol_pool *pool, const void *bytes, size_t count) {
  struct iol_buffer *buffer = NULL;
  CHECK(iol_pool_allocate(pool, count, count, &buffer) == 0 && buffer);
  return filled(buffer, bytes, count);
}

static inline struct iol_slice *sealed(const void *bytes, size_t count) {
  struct iol_unsealed *memory = NULL;
  struct iol_slice *slice = NULL;
  CHECK(iol_unsealed_create(&memory, count) == 0 && memory);
  CHECK(iol_unsealed_write(memory, bytes, count) == (ssize_t)count);
  CHECK(iol_unsealed_seal(memory, &slice) == 0 && slice);
  return slice;
}

static inline struct iol_part described(const struct iol_slice *slice) {
  struct iol_part part;
  CHECK(iol_slice_describe(slice, &part) == 0 && part.length == part.id.length);
  return part;
}

// Returns the slice of an aggregate that has only one.
static inline struct iol_part only_part(const struct iol_aggregate *aggregate) {
  uint64_t position = 0;
  struct iol_part part;
  CHECK(iol_aggregate_slices(aggregate) == 1);
  CHECK(iol_aggregate_next(aggregate, &position, &part) == 1 && position == part.length);
  return part;
}

static inline void expect(const struct iol_aggregate *aggregate, const void *bytes,
                          size_t count) {
  CHECK(iol_aggregate_length(aggregate) == (int64_t)count);
  CHECK(iol_aggregate_read(aggregate, 0, seen, sizeof seen) == (ssize_t)count);
  CHECK(!memcmp(seen, bytes, count));
}

// Checks the bytes, and destroys the aggregate.
static inline void expect_and_destroy(struct iol_aggregate *aggregate, const void *bytes,
                                      size_t count) {
  expect(aggregate, bytes, count);
  iol_aggregate_destroy(aggregate);
}

static inline int descriptors(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  while (readdir(folder))
    count++;
  closedir(folder);
  return count;
}

struct test_case {
  const char *name;
  void (*run)(void);
};

// Runs the cases, each with a slab of its own. A case leaves no object and no descriptor, unless
// the library keeps some.
static inline void run_cases(const struct test_case *cases, size_t count) {
  signal(SIGPIPE, SIG_IGN);
  alarm(240); // No case takes a second: a longer wait is a failure.
  for (size_t at = 0, state = 1; at < sizeof pattern; at++)
    pattern[at] = (state = state * 6364136223846793005 + 1442695040888963407) >> 56;
  int before = descriptors();
  for (size_t at = 0; at < count; at++) {
    struct iol_slab_stats stats;
    CHECK(iol_slab_create(&slab, SLAB_BYTES) == 0);
    cases[at].run();
    CHECK(iol_slab_stats(slab, &stats) == 0 && (keeps_objects || stats.extents == 0));
    iol_slab_destroy(slab);
    CHECK(keeps_objects || descriptors() == before);
    printf("%s: as the man pages say\n", cases[at].name);
  }
}

#endif
