// The common part of the filter programs in this folder. See README.md.
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef ORDINARY
#include "ordinary.h"
#else
#include <iolite.h>
#endif

// The bytes that one call reads: the pieces in which iolited keeps files.
#define READ_BYTES ((size_t)2 << 20)
// The bytes of a buffer for the output.
#define OUTPUT_BYTES ((size_t)256 << 10)

// The exit status after an error.
#ifndef STATUS_ERROR
#define STATUS_ERROR 1
#endif

static inline void check(int64_t result, const char *call)
{
    if (result < 0)
        errx(STATUS_ERROR, "%s: %s", call, iol_strerror((int)result));
}

// Opens a file; "-" is the standard input. Returns -1 with a message if it cannot be opened.
static inline int open_input(const char *path)
{
    if (strcmp(path, "-") == 0)
        return STDIN_FILENO;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        warn("%s", path);
    return fd;
}

// Writes a whole aggregate to the standard output, and destroys it.
static inline void write_all(struct iol_aggregate *aggregate)
{
    while (iol_aggregate_length(aggregate) > 0) {
        ssize_t count = iol_write(STDOUT_FILENO, aggregate);
        check(count, "write error");
        check(iol_aggregate_skip(aggregate, (uint64_t)count), "iol_aggregate_skip");
    }
    iol_aggregate_destroy(aggregate);
}

// The output that was not written yet: `output_filled` of `output_room` bytes of a buffer.
static struct iol_buffer *output;
static char *output_start;
static size_t output_room, output_filled;

static inline void flush_output(void)
{
    struct iol_slice *slice;
    struct iol_aggregate *aggregate;
    if (!output)
        return;
    check(iol_buffer_advance(output, output_filled), "iol_buffer_advance");
    check(iol_buffer_freeze(output, &slice), "iol_buffer_freeze");
    check(iol_aggregate_create(&aggregate), "iol_aggregate_create");
    check(iol_aggregate_append(aggregate, slice), "iol_aggregate_append");
    iol_slice_destroy(slice);
    write_all(aggregate);
    output = NULL;
    output_room = output_filled = 0;
}

// Copies bytes to the output.
static inline void print(const char *bytes, size_t length)
{
    while (length > 0) {
        if (output_filled == output_room) {
            void *unfilled;
            flush_output();
            check(iol_allocate(STDOUT_FILENO, OUTPUT_BYTES, &output), "iol_allocate");
            check(iol_buffer_unfilled(output, &unfilled, &output_room), "iol_buffer_unfilled");
            output_start = unfilled;
        }
        size_t room = output_room - output_filled, part = length < room ? length : room;
        memcpy(output_start + output_filled, bytes, part);
        output_filled += part;
        bytes += part;
        length -= part;
    }
}
