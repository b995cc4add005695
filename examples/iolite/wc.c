// wc: counts lines, words and bytes of a file or of the standard input. "wc -l" counts lines only.
// See README.md.
#include "common.h"

static uint64_t lines, words, bytes;
static int in_word;

static void count_lines(const char *start, size_t length)
{
    const char *end = start + length;
    while (start < end && (start = memchr(start, '\n', (size_t)(end - start)))) {
        lines++;
        start++;
    }
}

static void count_words(const char *start, size_t length)
{
    for (const char *end = start + length; start < end; start++) {
        int is_space = *start == ' ' || (*start >= '\t' && *start <= '\r');
        words += (uint64_t)(in_word && is_space);
        in_word = !is_space;
    }
}

int main(int argc, char **argv)
{
    int only_lines = argc > 1 && strcmp(argv[1], "-l") == 0;
    if (argc > 2 + only_lines || (argc > 1 && !only_lines && argv[1][0] == '-' && argv[1][1]))
        errx(1, "usage: wc [-l] [FILE]");
    const char *name = argc > 1 + only_lines ? argv[1 + only_lines] : NULL;
    int fd = name ? open_input(name) : 0;
    struct iol_aggregate *aggregate;
    ssize_t count;
    // A writer that changes bytes while they are counted harms only its own result.
    check(iol_trust_user(), "iol_trust_user");
    while ((count = iol_read(fd, READ_BYTES, &aggregate)) > 0) {
        struct iol_part part;
        uint64_t position = 0;
        while (iol_aggregate_next(aggregate, &position, &part) == 1) {
            count_lines(part.bytes, part.length);
            if (!only_lines)
                count_words(part.bytes, part.length);
        }
        bytes += (uint64_t)count;
        iol_aggregate_destroy(aggregate);
    }
    check_transfer(count, "iol_read");
    iol_aggregate_destroy(aggregate);
    words += (uint64_t)in_word;
    printf("%llu", (unsigned long long)lines);
    if (!only_lines)
        printf(" %llu %llu", (unsigned long long)words, (unsigned long long)bytes);
    printf("%s%s\n", name ? " " : "", name ? name : "");
    return fflush(stdout) == 0 ? 0 : 1;
}
