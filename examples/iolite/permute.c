// permute: prints all permutations of words, one in a line: "permute WORD...". See README.md.
#include "common.h"

#define WORDS_MAX 12
#define BUFFER_BYTES ((size_t)64 << 10)

static struct iol_buffer *buffer;
static char *start;
static size_t room, filled;

// Writes what is in the buffer.
static void flush(void)
{
    struct iol_slice *slice;
    struct iol_aggregate *aggregate;
    if (!buffer)
        return;
    check(iol_buffer_advance(buffer, filled), "iol_buffer_advance");
    check(iol_buffer_freeze(buffer, &slice), "iol_buffer_freeze");
    check(iol_aggregate_create(&aggregate), "iol_aggregate_create");
    check(iol_aggregate_append(aggregate, slice), "iol_aggregate_append");
    iol_slice_destroy(slice);
    write_all(aggregate);
    buffer = NULL;
    room = filled = 0;
}

static void print(const char *bytes, size_t length)
{
    while (length > 0) {
        if (filled == room) {
            void *unfilled;
            flush();
            check(iol_allocate(STDOUT_FILENO, BUFFER_BYTES, &buffer), "iol_allocate");
            check(iol_buffer_unfilled(buffer, &unfilled, &room), "iol_buffer_unfilled");
            start = unfilled;
        }
        size_t part = length < room - filled ? length : room - filled;
        memcpy(start + filled, bytes, part);
        filled += part;
        bytes += part;
        length -= part;
    }
}

// Prints the permutations of the first `count` of all words, by Heap's algorithm.
static void permute(char **words, int count, int all)
{
    if (count <= 1) {
        for (int i = 0; i < all; i++)
            print(words[i], strlen(words[i]));
        print("\n", 1);
        return;
    }
    for (int i = 0; i < count; i++) {
        permute(words, count - 1, all);
        int other = count % 2 ? 0 : i;
        char *word = words[other];
        words[other] = words[count - 1];
        words[count - 1] = word;
    }
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > WORDS_MAX + 1)
        errx(STATUS_ERROR, "usage: permute WORD... (expected: 1 to %d words)", WORDS_MAX);
    permute(argv + 1, argc - 1, argc - 1);
    flush();
    return 0;
}
