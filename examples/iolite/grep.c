// grep: prints the lines that contain a string, as "grep -aF" does: "grep [-aF] STRING [FILE]". See
// README.md.
#define STATUS_ERROR 2
#include "common.h"

// Shorter lines are copied to the output, as that costs less than writing a slice of the input.
#define COPIED_BYTES_MAX 4096

static int has_matched;
// The beginning of a line whose end has not been read yet.
static char *begun;
static size_t begun_length;

// Writes bytes of an aggregate, without copying them.
static void write_range(const struct iol_aggregate *from, uint64_t position, size_t length)
{
    struct iol_aggregate *range;
    flush_output();
    check(iol_aggregate_range(from, position, length, &range), "iol_aggregate_range");
    write_all(range);
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
        print(begun, begun_length);
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
        size_t line_length = (size_t)(newline + 1 - begin);
        if (line_length > COPIED_BYTES_MAX)
            write_range(from, position + (uint64_t)(begin - bytes), line_length);
        else
            print(begin, line_length);
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
    while ((count = iol_read(fd, READ_BYTES, &aggregate)) > 0) {
        struct iol_part part;
        uint64_t position = 0, begin = 0;
        while (iol_aggregate_next(aggregate, &position, &part) == 1) {
            search(aggregate, begin, part.bytes, part.length, string);
            begin = position;
        }
        iol_aggregate_destroy(aggregate);
        flush_output();
    }
    check(count, path);
    iol_aggregate_destroy(aggregate);
    if (begun_length > 0) {
        keep("\n", 1);
        end_line(string);
    }
    flush_output();
    return has_matched ? 0 : 1;
}
