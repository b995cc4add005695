// caller: checks slabs, slices, aggregates and sealed memory of libiolite against their man pages.
// Prints a line for each case.
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/sendfile.h>

#include "common.h"

#define MODEL_MAX 4096

static uint64_t random_number(uint64_t below) {
  static uint64_t state = 1;
  state = state * 6364136223846793005 + 1442695040888963407;
  return (state >> 33) % below;
}

static void slabs(void) {
  struct iol_slab *other = NULL;
  struct iol_buffer *buffer = NULL, *rest[8] = {0};
  struct iol_slab_stats stats;
  CHECK(iol_slab_create(NULL, IOL_SLAB_BYTES_MIN) == -EINVAL);
  CHECK(iol_slab_create(&other, IOL_SLAB_BYTES_MIN - 1) == -EINVAL && !other);
  CHECK(iol_slab_create(&other, IOL_SLAB_BYTES_MIN + 1) == 0 && other);
  CHECK(iol_slab_stats(other, &stats) == 0 && stats.capacity == IOL_SLAB_BYTES_MIN);
  CHECK(stats.live == 0 && stats.extents == 0);
  const struct {
    const struct iol_slab *slab;
    int kind;
    size_t bytes_min, bytes_max;
    struct iol_buffer **buffer;
  } wrong[] = {
      {NULL, IOL_COPIED, 1, 1, &buffer},
      {other, 2, 1, 1, &buffer},
      {other, IOL_COPIED, 0, 1, &buffer},
      {other, IOL_COPIED, 2, 1, &buffer},
      {other, IOL_COPIED, IOL_COPIED_BYTES_MAX + 1, IOL_COPIED_BYTES_MAX + 1, &buffer},
      {other, IOL_ZERO_COPY, IOL_BUFFER_BYTES_MAX + 1, SIZE_MAX, &buffer},
      {other, IOL_COPIED, 1, 1, NULL},
  };
  for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++)
    CHECK(iol_slab_allocate(wrong[at].slab, wrong[at].kind, wrong[at].bytes_min,
                            wrong[at].bytes_max, wrong[at].buffer) == -EINVAL && !buffer);
  int count = 0, error;
  while (!(error = iol_slab_allocate(other, IOL_ZERO_COPY, IOL_BUFFER_BYTES_MAX, SIZE_MAX,
                                     &rest[count])))
    count++;
  CHECK(error == -ENOSPC && count == 2);
  CHECK(iol_slab_prefault(other) == 0);
  CHECK(iol_slab_stats(other, &stats) == 0);
  CHECK(stats.live == IOL_SLAB_BYTES_MIN && stats.extents == 2 && stats.free == 0);
  CHECK(iol_slab_prefault(NULL) == -EINVAL && iol_slab_stats(NULL, &stats) == -EINVAL);
  CHECK(iol_slab_stats(other, NULL) == -EINVAL);
  // A slab lives as long as its buffers and slices.
  iol_slab_destroy(other);
  struct iol_slice *slice = filled(rest[0], "alive", 5);
  iol_buffer_destroy(rest[1]);
  CHECK(!memcmp(described(slice).bytes, "alive", 5));
  iol_slice_destroy(slice);
  iol_slab_destroy(NULL);
}

static void buffers(void) {
  struct iol_buffer *buffer = NULL;
  struct iol_slice *whole = NULL, *early = NULL;
  void *start = NULL;
  size_t room = 0;
  CHECK(iol_slab_allocate(slab, IOL_COPIED, 1, 300, &buffer) == 0);
  CHECK(iol_buffer_unfilled(buffer, &start, &room) == 0 && room == 512);
  memcpy(start, "one ", 4);
  CHECK(iol_buffer_advance(buffer, 513) == -EINVAL && iol_buffer_advance(buffer, 4) == 0);
  CHECK(iol_buffer_slice(buffer, 0, 5, &early) == -EINVAL);
  CHECK(iol_buffer_slice(buffer, SIZE_MAX, 2, &early) == -EINVAL && !early);
  CHECK(iol_buffer_slice(buffer, 0, 3, &early) == 0);
  CHECK(iol_buffer_write(buffer, "two", 3) == 3);
  CHECK(iol_buffer_unfilled(buffer, &start, &room) == 0 && room == 505);
  CHECK(iol_buffer_write(buffer, NULL, 1) == -EINVAL && iol_buffer_write(buffer, NULL, 0) == 0);
  CHECK(iol_buffer_freeze(buffer, NULL) == -EINVAL);
  CHECK(iol_buffer_freeze(buffer, &whole) == 0);
  struct iol_part part = described(whole), first = described(early);
  CHECK(part.length == 7 && !memcmp(part.bytes, "one two", 7));
  CHECK(first.length == 3 && first.bytes == part.bytes);
  CHECK(first.id.offset == part.id.offset && first.id.generation == part.id.generation);
  iol_slice_destroy(whole);
  CHECK(!memcmp(first.bytes, "one", 3));
  iol_slice_destroy(early);

  CHECK(iol_slab_allocate(slab, IOL_COPIED, 1, 256, &buffer) == 0);
  CHECK(iol_buffer_write(buffer, pattern, 1000) == 256);
  CHECK(iol_buffer_unfilled(buffer, &start, &room) == 0 && room == 0);
  iol_buffer_destroy(buffer);
  iol_buffer_destroy(NULL);
  CHECK(iol_buffer_unfilled(NULL, &start, &room) == -EINVAL);
  CHECK(iol_buffer_advance(NULL, 0) == -EINVAL && iol_buffer_write(NULL, "", 0) == -EINVAL);
  CHECK(iol_buffer_slice(NULL, 0, 0, &early) == -EINVAL);
  CHECK(iol_buffer_freeze(NULL, &whole) == -EINVAL);
}

static void slices(void) {
  struct iol_slice *whole = in_slab(IOL_COPIED, "0123456789", 10), *part = NULL, *copy = NULL;
  struct iol_part description, of_whole = described(whole);
  CHECK(of_whole.id.pool == 0 && of_whole.id.length == 10 && of_whole.id.generation > 0);
  CHECK(iol_slice_part(whole, 8, 3, &part) == -EINVAL);
  CHECK(iol_slice_part(whole, 2, SIZE_MAX, &part) == -EINVAL && !part);
  CHECK(iol_slice_part(whole, 2, 3, &part) == 0 && iol_slice_duplicate(whole, &copy) == 0);
  iol_slice_destroy(whole);
  struct iol_id id = described(part).id;
  CHECK(id.offset == of_whole.id.offset + 2 && id.length == 3);
  CHECK(!memcmp(described(part).bytes, "234", 3) && !memcmp(described(copy).bytes, "0123", 4));
  iol_slice_destroy(copy);
  CHECK(iol_slab_is_current(slab, &id) == 1);
  iol_slice_destroy(part);
  CHECK(iol_slab_is_current(slab, &id) == 0);
  // The memory is used again, with another generation.
  whole = in_slab(IOL_COPIED, "abcdefghij", 10);
  CHECK(described(whole).id.offset == of_whole.id.offset);
  CHECK(described(whole).id.generation > of_whole.id.generation);
  CHECK(iol_slab_is_current(slab, &id) == 0);
  CHECK(iol_slab_is_current(NULL, &id) == -EINVAL && iol_slab_is_current(slab, NULL) == -EINVAL);
  CHECK(iol_slice_part(whole, 10, 0, &part) == 0);
  CHECK(described(part).length == 0 && !described(part).bytes);
  iol_slice_destroy(part);
  CHECK(iol_slice_describe(whole, NULL) == -EINVAL);
  CHECK(iol_slice_describe(NULL, &description) == -EINVAL);
  CHECK(iol_slice_part(NULL, 0, 0, &part) == -EINVAL);
  CHECK(iol_slice_part(whole, 0, 0, NULL) == -EINVAL);
  CHECK(iol_slice_duplicate(NULL, &copy) == -EINVAL);
  CHECK(iol_slice_duplicate(whole, NULL) == -EINVAL);
  iol_slice_destroy(whole);
  iol_slice_destroy(NULL);
}

static void aggregates(void) {
  struct iol_aggregate *none = empty(), *large = copied(IOL_ZERO_COPY, pattern, sizeof pattern);
  struct iol_aggregate *copy = NULL;
  struct iol_slice *slice = NULL;
  struct iol_part part;
  CHECK(iol_aggregate_length(none) == 0 && iol_aggregate_slices(none) == 0);
  CHECK(iol_aggregate_slices(large) >= 3);
  CHECK(iol_aggregate_duplicate(large, &copy) == 0);
  iol_aggregate_destroy(large);
  // The slices are contiguous parts, in order.
  uint64_t position = 0, before = 0;
  int count = 0;
  while (iol_aggregate_next(copy, &position, &part) == 1) {
    CHECK(part.length == position - before && part.length <= IOL_BUFFER_BYTES_MAX);
    CHECK(!memcmp(part.bytes, pattern + before, part.length));
    before = position, count++;
  }
  CHECK(position == sizeof pattern && count == iol_aggregate_slices(copy));
  position = 10;
  CHECK(iol_aggregate_next(copy, &position, &part) == 1 && !memcmp(part.bytes, pattern + 10, 9));
  CHECK(iol_aggregate_slice(copy, 10, &slice) == 0);
  struct iol_part same = described(slice);
  CHECK(!memcmp(&same, &part, sizeof part));
  iol_slice_destroy(slice);
  CHECK(iol_aggregate_slice(copy, sizeof pattern, &slice) == -EINVAL);
  position = UINT64_MAX;
  CHECK(iol_aggregate_next(copy, &position, &part) == 0 && position == UINT64_MAX);
  CHECK(iol_aggregate_read(copy, sizeof pattern - 3, seen, 10) == 3);
  CHECK(!memcmp(seen, pattern + sizeof pattern - 3, 3));
  CHECK(iol_aggregate_read(copy, sizeof pattern, seen, 10) == 0);
  CHECK(iol_aggregate_read(copy, UINT64_MAX, seen, 10) == 0);
  CHECK(iol_aggregate_read(copy, 0, NULL, 0) == 0);
  CHECK(iol_aggregate_read(copy, 0, NULL, 1) == -EINVAL);
  CHECK(iol_aggregate_read(copy, 0, seen, SIZE_MAX) == -EINVAL);
  expect_and_destroy(copy, pattern, sizeof pattern);
  expect_and_destroy(copied(IOL_COPIED, pattern, 100000), pattern, 100000);
  expect_and_destroy(copied(IOL_COPIED, NULL, 0), "", 0);
  CHECK(iol_aggregate_from_bytes(slab, 2, "", 1, &copy) == -EINVAL);
  CHECK(iol_aggregate_from_bytes(NULL, 0, "", 1, &copy) == -EINVAL);
  CHECK(iol_aggregate_from_bytes(slab, 0, NULL, 1, &copy) == -EINVAL);
  CHECK(iol_aggregate_from_bytes(slab, 0, "", 1, NULL) == -EINVAL);
  CHECK(iol_aggregate_create(NULL) == -EINVAL && iol_aggregate_duplicate(NULL, &copy) == -EINVAL);
  CHECK(iol_aggregate_length(NULL) == -EINVAL && iol_aggregate_slices(NULL) == -EINVAL);
  CHECK(iol_aggregate_next(none, NULL, &part) == -EINVAL);
  CHECK(iol_aggregate_next(none, &position, NULL) == -EINVAL);
  CHECK(iol_aggregate_read(NULL, 0, seen, 1) == -EINVAL);
  iol_aggregate_destroy(none);
  iol_aggregate_destroy(NULL);
}

// Replaces `length` bytes of the model at `at`, and returns its new length.
static size_t replace(unsigned char *model, size_t total, size_t at, size_t length,
                      const unsigned char *with, size_t count) {
  memmove(model + at + count, model + at + length, total - at - length);
  memcpy(model + at, with, count);
  return total - length + count;
}

// Applies one operation to the aggregate and to the model, and returns the model's length.
static size_t edit(struct iol_aggregate **edited, unsigned char *model, size_t total) {
  struct iol_aggregate *aggregate = *edited, *other = NULL;
  size_t at = random_number(total + 1), length = random_number(total - at + 1);
  const unsigned char *bytes = pattern + random_number(100000);
  size_t count = 1 + random_number(40);
  struct iol_slice *slice = in_slab(IOL_COPIED, bytes, count);
  switch (random_number(9)) {
  case 0:
    CHECK(iol_aggregate_append(aggregate, slice) == 0);
    total = replace(model, total, total, 0, bytes, count);
    break;
  case 1:
    CHECK(iol_aggregate_prepend(aggregate, slice) == 0);
    total = replace(model, total, 0, 0, bytes, count);
    break;
  case 2:
    CHECK(iol_aggregate_concatenate(aggregate, aggregate) == 0);
    memcpy(model + total, model, total);
    total *= 2;
    break;
  case 3:
    CHECK(iol_aggregate_truncate(aggregate, total - total / 8) == 0);
    total -= total / 8;
    break;
  case 4:
    CHECK(iol_aggregate_skip(aggregate, total / 8) == 0);
    total = replace(model, total, 0, total / 8, bytes, 0);
    break;
  case 5: // splits it, and exchanges the two parts
    CHECK(iol_aggregate_split(aggregate, at, &other) == 0);
    CHECK(iol_aggregate_concatenate(other, aggregate) == 0);
    memcpy(seen, model, at);
    memmove(model, model + at, total - at);
    memcpy(model + total - at, seen, at);
    iol_aggregate_destroy(aggregate);
    *edited = other;
    break;
  case 6:
    CHECK(iol_aggregate_range(aggregate, at, length, &other) == 0);
    expect_and_destroy(other, model + at, length);
    break;
  case 7:
    other = of_slice(slice);
    slice = NULL;
    CHECK(iol_aggregate_replace(aggregate, at, length, other) == 0);
    total = replace(model, total, at, length, bytes, count);
    iol_aggregate_destroy(other);
    break;
  default:
    CHECK(iol_aggregate_write(aggregate, at, bytes, length, slab, IOL_COPIED) == 0);
    memcpy(model + at, bytes, length);
  }
  iol_slice_destroy(slice);
  return total;
}

// Random operations on an aggregate and on an array have the same results.
static void editing(void) {
  static unsigned char model[2 * MODEL_MAX + 64];
  struct iol_aggregate *aggregate = empty();
  size_t total = 0;
  for (int round = 0; round < 3000; round++) {
    total = edit(&aggregate, model, total);
    expect(aggregate, model, total);
    if (total > MODEL_MAX) {
      CHECK(iol_aggregate_truncate(aggregate, 16) == 0);
      total = 16;
    }
  }
  iol_aggregate_destroy(aggregate);
}

static void editing_refusals(void) {
  struct iol_aggregate *aggregate = copied(IOL_COPIED, "0123456789", 10), *other = NULL;
  struct iol_slice *slice = in_slab(IOL_COPIED, "x", 1);
  CHECK(iol_aggregate_split(aggregate, 11, &other) == -EINVAL);
  CHECK(iol_aggregate_range(aggregate, 5, 6, &other) == -EINVAL);
  CHECK(iol_aggregate_range(aggregate, 5, UINT64_MAX, &other) == -EINVAL && !other);
  CHECK(iol_aggregate_replace(aggregate, 5, 6, aggregate) == -EINVAL);
  CHECK(iol_aggregate_write(aggregate, 9, "xy", 2, slab, IOL_COPIED) == -EINVAL);
  CHECK(iol_aggregate_write(aggregate, UINT64_MAX, "xy", 2, slab, IOL_COPIED) == -EINVAL);
  CHECK(iol_aggregate_write(aggregate, 0, "xy", 2, slab, 7) == -EINVAL);
  CHECK(iol_aggregate_write(aggregate, 0, NULL, 2, slab, IOL_COPIED) == -EINVAL);
  CHECK(iol_aggregate_write(aggregate, 0, "xy", 2, NULL, IOL_COPIED) == -EINVAL);
  CHECK(iol_aggregate_write(NULL, 0, "xy", 2, slab, IOL_COPIED) == -EINVAL);
  CHECK(iol_aggregate_append(aggregate, NULL) == -EINVAL);
  CHECK(iol_aggregate_append(NULL, slice) == -EINVAL);
  CHECK(iol_aggregate_prepend(aggregate, NULL) == -EINVAL);
  CHECK(iol_aggregate_prepend(NULL, slice) == -EINVAL);
  CHECK(iol_aggregate_concatenate(aggregate, NULL) == -EINVAL);
  CHECK(iol_aggregate_concatenate(NULL, aggregate) == -EINVAL);
  CHECK(iol_aggregate_replace(aggregate, 0, 0, NULL) == -EINVAL);
  CHECK(iol_aggregate_replace(NULL, 0, 0, aggregate) == -EINVAL);
  CHECK(iol_aggregate_truncate(NULL, 0) == -EINVAL && iol_aggregate_skip(NULL, 0) == -EINVAL);
  CHECK(iol_aggregate_split(NULL, 0, &other) == -EINVAL);
  CHECK(iol_aggregate_split(aggregate, 0, NULL) == -EINVAL);
  CHECK(iol_aggregate_range(NULL, 0, 0, &other) == -EINVAL);
  CHECK(iol_aggregate_truncate(aggregate, 11) == 0);
  expect(aggregate, "0123456789", 10);
  CHECK(iol_aggregate_skip(aggregate, UINT64_MAX) == 0);
  expect_and_destroy(aggregate, "", 0);
  iol_slice_destroy(slice);
}

static void writing(void) {
  struct iol_aggregate *aggregate = copied(IOL_COPIED, "0123456789", 10), *shared = NULL;
  struct iol_part before = only_part(aggregate);
  CHECK(iol_aggregate_write(aggregate, 2, "ab", 2, slab, IOL_COPIED) == 0);
  struct iol_part after = only_part(aggregate);
  CHECK(after.bytes == before.bytes && after.id.offset == before.id.offset);
  CHECK(after.id.generation > before.id.generation);
  CHECK(!iol_slab_is_current(slab, &before.id) && iol_slab_is_current(slab, &after.id));
  // A slice that another aggregate holds stays as it is.
  CHECK(iol_aggregate_duplicate(aggregate, &shared) == 0);
  CHECK(iol_aggregate_write(aggregate, 4, "cd", 2, slab, IOL_COPIED) == 0);
  CHECK(iol_aggregate_slices(aggregate) == 3);
  expect(aggregate, "01abcd6789", 10);
  expect_and_destroy(shared, "01ab456789", 10);
  CHECK(iol_aggregate_copy(aggregate, slab, IOL_COPIED, &shared) == 0);
  CHECK(iol_aggregate_slices(shared) == 1);
  expect_and_destroy(shared, "01abcd6789", 10);

  struct iol_slice *whole = NULL, *again = NULL;
  CHECK(iol_aggregate_contiguous(aggregate, slab, IOL_COPIED, &whole) == 0);
  CHECK(described(whole).length == 10 && !memcmp(described(whole).bytes, "01abcd6789", 10));
  iol_aggregate_destroy(aggregate);
  aggregate = of_slice(whole);
  CHECK(iol_aggregate_contiguous(aggregate, slab, IOL_COPIED, &again) == 0);
  CHECK(described(again).bytes == only_part(aggregate).bytes);
  iol_slice_destroy(again);
  CHECK(iol_aggregate_contiguous(aggregate, slab, 7, &again) == -EINVAL);
  CHECK(iol_aggregate_contiguous(aggregate, NULL, 0, &again) == -EINVAL);
  CHECK(iol_aggregate_contiguous(NULL, slab, 0, &again) == -EINVAL);
  CHECK(iol_aggregate_contiguous(aggregate, slab, 0, NULL) == -EINVAL);
  CHECK(iol_aggregate_copy(aggregate, slab, 7, &shared) == -EINVAL);
  CHECK(iol_aggregate_copy(NULL, slab, 0, &shared) == -EINVAL);
  CHECK(iol_aggregate_copy(aggregate, slab, 0, NULL) == -EINVAL);
  iol_aggregate_destroy(aggregate);
  aggregate = copied(IOL_COPIED, pattern, IOL_COPIED_BYTES_MAX + 1);
  CHECK(iol_aggregate_contiguous(aggregate, slab, IOL_COPIED, &again) == -EMSGSIZE);
  CHECK(iol_aggregate_contiguous(aggregate, slab, IOL_ZERO_COPY, &again) == 0);
  CHECK(!memcmp(described(again).bytes, pattern, IOL_COPIED_BYTES_MAX + 1));
  iol_slice_destroy(again);
  iol_aggregate_destroy(aggregate);
  aggregate = empty();
  CHECK(iol_aggregate_contiguous(aggregate, slab, IOL_COPIED, &again) == 0);
  CHECK(described(again).length == 0);
  iol_slice_destroy(again);
  iol_aggregate_destroy(aggregate);
}

static void checksums(void) {
  const unsigned char example[] = {0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}; // RFC 1071
  struct iol_slice *slice = in_slab(IOL_COPIED, example, sizeof example), *odd = NULL;
  struct iol_slab_stats before, after;
  CHECK(iol_slice_checksum(slice) == 0x220d);
  CHECK(iol_slab_stats(slab, &before) == 0);
  CHECK(iol_slice_checksum(slice) == 0x220d);
  CHECK(iol_slab_stats(slab, &after) == 0);
  CHECK(after.sums_computed == before.sums_computed);
  CHECK(after.sums_reused == before.sums_reused + 1);
  struct iol_aggregate *parts = empty();
  CHECK(iol_aggregate_checksum(parts) == 0xffff);
  CHECK(iol_slice_part(slice, 0, 3, &odd) == 0 && iol_aggregate_append(parts, odd) == 0);
  iol_slice_destroy(odd);
  CHECK(iol_slice_part(slice, 3, 5, &odd) == 0);
  // In another extent, so that the parts stay two slices.
  struct iol_aggregate *second = of_slice(in_slab(IOL_COPIED, described(odd).bytes, 5));
  CHECK(iol_aggregate_concatenate(parts, second) == 0 && iol_aggregate_slices(parts) == 2);
  CHECK(iol_aggregate_checksum(parts) == 0x220d);
  CHECK(iol_aggregate_checksum(NULL) == -EINVAL && iol_slice_checksum(NULL) == -EINVAL);
  iol_aggregate_destroy(second);
  iol_aggregate_destroy(parts);
  iol_slice_destroy(odd);
  iol_slice_destroy(slice);
}

static void sendfile_sources(void) {
  struct iol_slice *slice = in_slab(IOL_ZERO_COPY, pattern, 10000), *part = NULL;
  struct iol_slice *small = in_slab(IOL_COPIED, pattern, 10);
  int fd = -1, ends[2];
  uint64_t offset = 0;
  CHECK(!pipe(ends));
  CHECK(iol_slice_part(slice, 5000, 100, &part) == 0);
  CHECK(iol_slice_sendfile_source(part, &fd, &offset) == 0 && fd >= 0);
  off_t from = offset;
  CHECK(sendfile(ends[1], fd, &from, 100) == 100 && read(ends[0], seen, 200) == 100);
  CHECK(!memcmp(seen, pattern + 5000, 100));
  CHECK(iol_slice_sendfile_source(small, &fd, &offset) == -EOPNOTSUPP);
  CHECK(iol_slice_sendfile_source(NULL, &fd, &offset) == -EINVAL);
  CHECK(iol_slice_sendfile_source(part, NULL, &offset) == -EINVAL);
  CHECK(iol_slice_sendfile_source(part, &fd, NULL) == -EINVAL);
  close(ends[0]);
  close(ends[1]);
  iol_slice_destroy(small);
  iol_slice_destroy(part);
  // Bytes that were sent are not changed in place.
  struct iol_aggregate *aggregate = of_slice(slice);
  CHECK(iol_aggregate_write(aggregate, 0, "x", 1, slab, IOL_ZERO_COPY) == 0);
  CHECK(iol_aggregate_slices(aggregate) == 2);
  iol_aggregate_destroy(aggregate);
}

// Returns a memory file of `total` bytes, of which the first `count` are written, with seals.
static int memory_file(size_t total, size_t count, int seals) {
  int fd = memfd_create("caller", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(fd >= 0 && !ftruncate(fd, total) && write(fd, pattern, count) == (ssize_t)count);
  CHECK(!fcntl(fd, F_ADD_SEALS, seals));
  return fd;
}

static void sealed_memory(void) {
  const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  struct iol_unsealed *memory = NULL;
  struct iol_slice *slice = NULL, *accepted = NULL;
  struct iol_account *account = NULL;
  void *start;
  size_t room;
  CHECK(iol_unsealed_create(&memory, 0) == -EINVAL && iol_unsealed_create(NULL, 1) == -EINVAL);
  CHECK(iol_unsealed_create(&memory, 10000) == 0);
  CHECK(iol_unsealed_unfilled(memory, &start, &room) == 0 && room == 10000);
  memcpy(start, "sealed ", 7);
  CHECK(iol_unsealed_advance(memory, 10001) == -EINVAL && iol_unsealed_advance(memory, 7) == 0);
  CHECK(iol_unsealed_write(memory, "bytes", 5) == 5);
  CHECK(iol_unsealed_write(memory, NULL, 5) == -EINVAL);
  CHECK(iol_unsealed_seal(memory, NULL) == -EINVAL && iol_unsealed_seal(NULL, &slice) == -EINVAL);
  CHECK(iol_unsealed_seal(memory, &slice) == 0);
  CHECK(described(slice).length == 12 && described(slice).id.pool == UINT32_MAX);

  int fd = iol_slice_sealed_file(slice);
  const int files[] = {memory_file(100, 100, all & ~F_SEAL_WRITE), memory_file(100000, 4096, all),
      open("/dev/null", O_RDONLY), memory_file(1 << 20, 1 << 20, all), -1};
  const int errors[] = {-EBADFD, -ENODATA, -ENODEV, -EDQUOT, -EBADF};
  CHECK(fd >= 0 && write(fd, "x", 1) < 0);
  CHECK(iol_account_create(&account, 200000) == 0);
  for (size_t at = 0; at < sizeof files / sizeof *files; at++)
    CHECK(iol_slice_accept(files[at], account, &accepted) == errors[at] && !accepted);
  CHECK(iol_account_held(account) == 0);
  CHECK(iol_slice_accept(fcntl(fd, F_DUPFD_CLOEXEC, 0), NULL, &accepted) == -EINVAL);
  CHECK(iol_slice_accept(fcntl(fd, F_DUPFD_CLOEXEC, 0), account, NULL) == -EINVAL);
  CHECK(iol_slice_accept(fcntl(fd, F_DUPFD_CLOEXEC, 0), account, &accepted) == 0);
  CHECK(iol_account_held(account) == 65536);
  iol_slice_destroy(slice);
  CHECK(described(accepted).length == 12 && !memcmp(described(accepted).bytes, "sealed bytes", 12));
  iol_account_destroy(account);
  iol_slice_destroy(accepted);
  CHECK(iol_account_create(NULL, 1) == -EINVAL && iol_account_held(NULL) == -EINVAL);
  slice = in_slab(IOL_COPIED, "x", 1);
  CHECK(iol_slice_sealed_file(slice) == -EOPNOTSUPP && iol_slice_sealed_file(NULL) == -EINVAL);
  iol_slice_destroy(slice);
  CHECK(iol_unsealed_create(&memory, 1) == 0);
  iol_unsealed_destroy(memory);
  CHECK(iol_unsealed_create(&memory, 1) == 0 && iol_unsealed_seal(memory, &slice) == 0);
  CHECK(described(slice).length == 0 && !described(slice).bytes);
  expect_and_destroy(of_slice(slice), "", 0);
  // Huge pages are not cut.
  slice = sealed(pattern, 600000);
  CHECK(iol_account_create(&account, 4 << 20) == 0);
  fd = fcntl(iol_slice_sealed_file(slice), F_DUPFD_CLOEXEC, 0);
  CHECK(iol_slice_accept(fd, account, &accepted) == 0);
  CHECK(described(slice).length == 600000 && described(accepted).length == 2 << 20);
  CHECK(!memcmp(described(accepted).bytes, pattern, 600000));
  iol_account_destroy(account);
  iol_slice_destroy(accepted);
  iol_slice_destroy(slice);
  iol_unsealed_destroy(NULL);
  iol_account_destroy(NULL);
  CHECK(iol_unsealed_unfilled(NULL, &start, &room) == -EINVAL);
  CHECK(iol_unsealed_advance(NULL, 0) == -EINVAL && iol_unsealed_write(NULL, "", 0) == -EINVAL);
}

static void *use_slice(void *shared) {
  for (int round = 0; round < 200; round++) {
    struct iol_slice *copy = NULL, *own = in_slab(IOL_COPIED, pattern, 1000);
    CHECK(iol_slice_duplicate(shared, &copy) == 0);
    CHECK(iol_slice_checksum(copy) == iol_slice_checksum(own));
    iol_slice_destroy(copy);
    iol_slice_destroy(own);
  }
  return NULL;
}

static void threads(void) {
  pthread_t running[4];
  struct iol_slice *shared = in_slab(IOL_COPIED, pattern, 1000);
  for (int at = 0; at < 4; at++)
    CHECK(!pthread_create(&running[at], NULL, use_slice, shared));
  for (int at = 0; at < 4; at++)
    CHECK(!pthread_join(running[at], NULL));
  iol_slice_destroy(shared);
}

// The texts are those of iolite(7), otherwise those of strerror(3).
static void error_texts(void) {
  const int own[] = {E2BIG, EAGAIN, EBADFD, EDQUOT, EINTR, EINVAL, EMSGSIZE, ENOBUFS, ENODATA,
      ENODEV, ENOSPC, ENOSYS, ENOTRECOVERABLE, EOPNOTSUPP, EPIPE, EPROTO};
  for (int error = 0; error < 200; error++) {
    int is_own = 0;
    for (size_t at = 0; at < sizeof own / sizeof *own; at++)
      is_own |= error == own[at];
    // strerror(3) would allocate memory for unknown numbers and never free it.
    char room[64];
    const char *expected = strerror_r(error, room, sizeof room);
    CHECK(is_own == !!strcmp(iol_strerror(-error), expected));
    CHECK(is_own == !!strcmp(iol_strerror(error), expected));
  }
  CHECK(strstr(iol_strerror(-ENOSPC), "slab") && strlen(iol_strerror(INT_MIN)) > 0);
}

int main(void) {
  static const struct test_case cases[] = {
      {"slabs", slabs},
      {"buffers", buffers},
      {"slices", slices},
      {"aggregates", aggregates},
      {"editing", editing},
      {"editing refusals", editing_refusals},
      {"writing", writing},
      {"checksums", checksums},
      {"sendfile", sendfile_sources},
      {"sealed memory", sealed_memory},
      {"error texts", error_texts},
      {"threads", threads},
  };
  run_cases(cases, sizeof cases / sizeof *cases);
  return 0;
}
