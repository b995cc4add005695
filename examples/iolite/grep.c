// grep: prints the lines that contain a string, as "grep -aF" does: "grep [-aF] STRING [FILE]". See
// README.md.
#define STATUS_ERROR 2
#include "common.h"

static struct iol_aggregate *output;
static int has_matched;
// The beginning of a line whose end has not been read yet.
static char *begun;
static size_t begun_length;

static void flush(void)
{
    write_all(output);
    check(iol_aggregate_create(&output), "iol_aggregate_create");
}

// Appends bytes of an aggregate to the output, without copying them.
static void print(const struct iol_aggregate *from, uint64_t position, size_t length)
{
    struct iol_aggregate *line;
    check(iol_aggregate_range(from, position, length, &line), "iol_aggregate_range");
    check(iol_aggregate_concatenate(output, line), "iol_aggregate_concatenate");
    iol_aggregate_destroy(line);
    if (iol_aggregate_slices(output) >= IOL_SLICES_MAX / 2)
        flush();
}

// Appends a copy of bytes to the output.
static void print_copy(const char *bytes, size_t length)
{
    while (length > 0) {
        struct iol_buffer *buffer;
        struct iol_slice *slice;
        size_t size = length < IOL_BUFFER_BYTES_MAX ? length : IOL_BUFFER_BYTES_MAX;
        check(iol_allocate(STDOUT_FILENO, size, &buffer), "iol_allocate");
        ssize_t count = iol_buffer_write(buffer, bytes, size);
        check(count, "iol_buffer_write");
        check(iol_buffer_freeze(buffer, &slice), "iol_buffer_freeze");
        check(iol_aggregate_append(output, slice), "iol_aggregate_append");
        iol_slice_destroy(slice);
        bytes += count;
        length -= (size_t)count;
    }
}

// Keeps bytes of a line that ends later.
static void keep(const char *bytes, size_t length)
{
    if (length == 0)
        return;
    begun = realloc(begun, begun_length + length);
    if (!begun)
        err(STATUS_ERROR, "realloc");
    memcpy(begun + begun_length, bytes, length);
    begun_length += length;
}

// Ends the line that was kept.
static void end_line(const char *string)
{
    // The end of the line is no part of it.
    if (memmem(begun, begun_length - 1, string, strlen(string))) {
        print_copy(begun, begun_length);
        has_matched = 1;
    }
    begun_length = 0;
}

// Prints the matching lines of a part, which begins at `position` of the aggregate.
static void search(const struct iol_aggregate *from, uint64_t position, const char *bytes,
                   size_t length, const char *string)
{
    const char *line = bytes, *end = bytes + length;
    if (begun_length > 0) {
        const char *newline = memchr(line, '\n', length);
        keep(line, (size_t)((newline ? newline + 1 : end) - line));
        if (!newline)
            return;
        end_line(string);
        line = newline + 1;
    }
    const char *last = memrchr(line, '\n', (size_t)(end - line));
    const char *lines_end = last ? last + 1 : line;
    const char *match;
    while (line < lines_end &&
           (match = memmem(line, (size_t)(lines_end - line), string, strlen(string)))) {
        const char *before = memrchr(line, '\n', (size_t)(match - line));
        const char *begin = before ? before + 1 : line;
        const char *newline = memchr(match, '\n', (size_t)(lines_end - match));
        print(from, position + (uint64_t)(begin - bytes), (size_t)(newline + 1 - begin));
        has_matched = 1;
        line = newline + 1;
    }
    keep(lines_end, (size_t)(end - lines_end));
}

int main(int argc, char **argv)
{
    // -a and -F say what this program does anyhow.
    int option;
    while ((option = getopt(argc, argv, "aF")) != -1 && option != '?') {
    }
    if (option == '?' || argc - optind < 1 || argc - optind > 2)
        errx(STATUS_ERROR, "usage: grep [-aF] STRING [FILE]");
    const char *string = argv[optind], *path = argc - optind > 1 ? argv[optind + 1] : "-";
    if (strchr(string, '\n'))
        errx(STATUS_ERROR, "the string has several lines (expected: one line)");
    int fd = open_input(path);
    if (fd < 0)
        return STATUS_ERROR;
    struct iol_aggregate *aggregate;
    ssize_t count;
    check(iol_aggregate_create(&output), "iol_aggregate_create");
    while ((count = iol_read(fd, READ_BYTES, &aggregate)) > 0) {
        struct iol_part part;
        uint64_t position = 0, begin = 0;
        while (iol_aggregate_next(aggregate, &position, &part) == 1) {
            search(aggregate, begin, part.bytes, part.length, string);
            begin = position;
        }
        iol_aggregate_destroy(aggregate);
        flush();
    }
    check(count, path);
    iol_aggregate_destroy(aggregate);
    if (begun_length > 0) {
        keep("\n", 1);
        end_line(string);
    }
    flush();
    return has_matched ? 0 : 1;
}
