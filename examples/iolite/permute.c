// permute: prints all permutations of the words of its arguments, one in a line. See README.md.
#include "common.h"

static struct iol_buffer *buffer;
static char *next;
static size_t room;

// Writes the full buffer, and allocates another one.
static void flush(int is_last)
{
    struct iol_slice *slice;
    struct iol_aggregate *aggregate;
    if (buffer) {
        check(iol_buffer_freeze(buffer, &slice), "iol_buffer_freeze");
        check(iol_aggregate_create(&aggregate), "iol_aggregate_create");
        check(iol_aggregate_append(aggregate, slice), "iol_aggregate_append");
        iol_slice_destroy(slice);
        write_all(1, aggregate);
    }
    buffer = NULL;
    if (!is_last) {
        void *start;
        check(iol_allocate(1, 64 << 10, &buffer), "iol_allocate");
        check(iol_buffer_unfilled(buffer, &start, &room), "iol_buffer_unfilled");
        next = start;
    }
}

static void print(char **words, const size_t *lengths, int count, size_t line)
{
    if (!buffer || room < line)
        flush(0);
    char *to = next;
    for (int i = 0; i < count; i++) {
        memcpy(to, words[i], lengths[i]);
        to += lengths[i];
    }
    *to = '\n';
    next += line;
    room -= line;
    check(iol_buffer_advance(buffer, line), "iol_buffer_advance");
}

// Heap's algorithm.
static void permute(char **words, size_t *lengths, int count, int all, size_t line)
{
    if (count <= 1) {
        print(words, lengths, all, line);
        return;
    }
    for (int i = 0; i < count; i++) {
        permute(words, lengths, count - 1, all, line);
        int other = count % 2 ? 0 : i;
        char *word = words[other];
        size_t length = lengths[other];
        words[other] = words[count - 1];
        words[count - 1] = word;
        lengths[other] = lengths[count - 1];
        lengths[count - 1] = length;
    }
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 13)
        errx(2, "usage: permute WORD... (expected: 1 to 12 words)");
    size_t lengths[12], line = 1;
    for (int i = 1; i < argc; i++)
        line += lengths[i - 1] = strlen(argv[i]);
    if (line > 64 << 10)
        errx(2, "the words are too long (expected: less than 65536 bytes)");
    permute(argv + 1, lengths, argc - 1, argc - 1, line);
    flush(1);
    return 0;
}
