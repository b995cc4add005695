// The common part of the filter programs in this folder. See README.md.
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <iolite.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The bytes that one call reads: the pieces in which iolited keeps files.
#define READ_BYTES ((size_t)2 << 20)

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
