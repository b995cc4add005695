// The calls of iolite.h that the filters make, by read(2) and write(2): with -DORDINARY a filter is
// an ordinary program. The benchmark `programs` of iolited compares both. See README.md.
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum {
    // The bytes of one read(2), as of cat(1).
    ORDINARY_READ_BYTES = 128 << 10,
};

// The bytes from `begin` to `end` of memory that the kernel fills, or that is written.
struct iol_aggregate {
    char *memory;
    size_t begin, end, size;
};
#define iol_slice iol_aggregate
#define iol_buffer iol_aggregate
struct iol_part {
    const void *bytes;
    size_t length;
};

// At most one of each is in use at a time.
static struct iol_aggregate ordinary_input, ordinary_range, ordinary_buffer, ordinary_output;

static inline const char *iol_strerror(int error)
{
    return strerror(-error);
}

static inline int ordinary_reserve(struct iol_aggregate *aggregate, size_t size)
{
    if (aggregate->size < size) {
        char *memory = realloc(aggregate->memory, size);
        if (!memory)
            return -ENOMEM;
        aggregate->memory = memory;
        aggregate->size = size;
    }
    return 0;
}

static inline ssize_t iol_read(int fd, size_t length, struct iol_aggregate **aggregate)
{
    (void)length;
    if (ordinary_reserve(&ordinary_input, ORDINARY_READ_BYTES) < 0)
        return -ENOMEM;
    ssize_t count = read(fd, ordinary_input.memory, ORDINARY_READ_BYTES);
    if (count < 0)
        return -errno;
    ordinary_input.begin = 0;
    ordinary_input.end = (size_t)count;
    *aggregate = &ordinary_input;
    return count;
}

static inline ssize_t iol_write(int fd, const struct iol_aggregate *aggregate)
{
    ssize_t count = write(fd, aggregate->memory + aggregate->begin, aggregate->end - aggregate->begin);
    return count < 0 ? -errno : count;
}

static inline int iol_trust_user(void)
{
    return 0;
}

static inline uint64_t iol_aggregate_length(const struct iol_aggregate *aggregate)
{
    return aggregate->end - aggregate->begin;
}

static inline int iol_aggregate_skip(struct iol_aggregate *aggregate, uint64_t count)
{
    aggregate->begin += count;
    return 0;
}

static inline int iol_aggregate_next(const struct iol_aggregate *aggregate, uint64_t *position,
                                     struct iol_part *part)
{
    size_t begin = aggregate->begin + (size_t)*position;
    *part = (struct iol_part){aggregate->memory + begin, aggregate->end - begin};
    *position += part->length;
    return part->length > 0;
}

static inline int iol_aggregate_range(const struct iol_aggregate *aggregate, uint64_t position,
                                      uint64_t length, struct iol_aggregate **range)
{
    ordinary_range = *aggregate;
    ordinary_range.begin += position;
    ordinary_range.end = ordinary_range.begin + length;
    *range = &ordinary_range;
    return 0;
}

static inline int iol_aggregate_create(struct iol_aggregate **aggregate)
{
    ordinary_output.begin = ordinary_output.end = 0;
    *aggregate = &ordinary_output;
    return 0;
}

static inline void iol_aggregate_destroy(struct iol_aggregate *aggregate)
{
    (void)aggregate;
}

// The memory of a slice becomes that of the aggregate, so that nothing is copied.
static inline int iol_aggregate_append(struct iol_aggregate *aggregate, struct iol_slice *slice)
{
    struct iol_aggregate empty = *aggregate;
    *aggregate = *slice;
    *slice = empty;
    return 0;
}

static inline void iol_slice_destroy(struct iol_slice *slice)
{
    (void)slice;
}

static inline int iol_allocate(int fd, size_t bytes, struct iol_buffer **buffer)
{
    (void)fd;
    ordinary_buffer.begin = ordinary_buffer.end = 0;
    *buffer = &ordinary_buffer;
    return ordinary_reserve(&ordinary_buffer, bytes);
}

static inline int iol_buffer_unfilled(struct iol_buffer *buffer, void **start, size_t *room)
{
    *start = buffer->memory + buffer->end;
    *room = buffer->size - buffer->end;
    return 0;
}

static inline int iol_buffer_advance(struct iol_buffer *buffer, size_t count)
{
    buffer->end += count;
    return 0;
}

static inline int iol_buffer_freeze(struct iol_buffer *buffer, struct iol_slice **slice)
{
    *slice = buffer;
    return 0;
}
