// wc: counts lines, words and bytes: "wc [-clw] [FILE]...". See README.md.
#include "common.h"

struct counts {
    uint64_t lines, words, bytes;
    int is_in_word;
};

static int prints_lines, prints_words, prints_bytes;

static int is_space(unsigned char byte)
{
    // Without a branch.
    return (byte == ' ') | ((unsigned char)(byte - '\t') <= '\r' - '\t');
}

// The loops count this many bytes at a time, so that each sum fits in a byte. Then compilers use
// vector instructions for them (-O3).
#define BLOCK_BYTES ((size_t)240)

// The bytes between a block and the one that is fetched meanwhile.
#define AHEAD_BYTES 2048

// Has the processor fetch a later block: it does so by itself only within a page.
static void fetch_ahead(const unsigned char *block)
{
    for (size_t i = 0; i < BLOCK_BYTES; i += 64)
        __builtin_prefetch(block + AHEAD_BYTES + i);
}

// Counts the ends of lines.
static void count_lines(struct counts *counts, const unsigned char *bytes, size_t length)
{
    for (size_t begin = 0; begin < length; begin += BLOCK_BYTES) {
        size_t end = length - begin < BLOCK_BYTES ? length : begin + BLOCK_BYTES;
        uint8_t lines = 0;
        fetch_ahead(bytes + begin);
        for (size_t i = begin; i < end; i++)
            lines += bytes[i] == '\n';
        counts->lines += lines;
    }
}

// Counts the beginnings of words.
static void count_words(struct counts *counts, const unsigned char *bytes, size_t length)
{
    counts->words += (uint64_t)(!counts->is_in_word && !is_space(bytes[0]));
    for (size_t begin = 1; begin < length; begin += BLOCK_BYTES) {
        size_t end = length - begin < BLOCK_BYTES ? length : begin + BLOCK_BYTES;
        uint8_t words = 0;
        fetch_ahead(bytes + begin);
        for (size_t i = begin; i < end; i++)
            words += is_space(bytes[i - 1]) > is_space(bytes[i]);
        counts->words += words;
    }
    counts->is_in_word = !is_space(bytes[length - 1]);
}

static void print_counts(const struct counts *counts, const char *path)
{
    const char *space = "";
    const struct { int is_printed; uint64_t count; } all[] = {
        {prints_lines, counts->lines}, {prints_words, counts->words}, {prints_bytes, counts->bytes}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].is_printed) {
            printf("%s%llu", space, (unsigned long long)all[i].count);
            space = " ";
        }
    }
    printf("%s%s\n", path ? " " : "", path ? path : "");
}

// Counts a file, prints its counts, and adds them to `total`. Returns the exit status.
static int count_file(const char *path, const char *name, struct counts *total)
{
    struct counts counts = {0};
    struct iol_aggregate *aggregate;
    ssize_t count;
    int fd = open_input(path);
    if (fd < 0)
        return STATUS_ERROR;
    while ((count = iol_read(fd, READ_BYTES, &aggregate)) > 0) {
        struct iol_part part;
        uint64_t position = 0;
        while (iol_aggregate_next(aggregate, &position, &part) == 1) {
            if (prints_lines)
                count_lines(&counts, part.bytes, part.length);
            if (prints_words)
                count_words(&counts, part.bytes, part.length);
        }
        counts.bytes += (uint64_t)count;
        iol_aggregate_destroy(aggregate);
    }
    if (count < 0)
        warnx("%s: %s", path, iol_strerror((int)count));
    else
        iol_aggregate_destroy(aggregate);
    if (fd != STDIN_FILENO)
        close(fd);
    print_counts(&counts, name);
    total->lines += counts.lines;
    total->words += counts.words;
    total->bytes += counts.bytes;
    return count < 0 ? STATUS_ERROR : 0;
}

int main(int argc, char **argv)
{
    struct counts total = {0};
    int option, status = 0;
    while ((option = getopt(argc, argv, "clw")) != -1) {
        if (option == '?')
            errx(STATUS_ERROR, "usage: wc [-clw] [FILE]...");
        prints_bytes |= option == 'c';
        prints_lines |= option == 'l';
        prints_words |= option == 'w';
    }
    if (!prints_bytes && !prints_lines && !prints_words)
        prints_bytes = prints_lines = prints_words = 1;
    // A writer that changes bytes while they are counted harms only its own result.
    check(iol_trust_user(), "iol_trust_user");
    if (optind == argc)
        status = count_file("-", NULL, &total);
    for (int i = optind; i < argc; i++)
        status |= count_file(argv[i], argv[i], &total);
    if (argc - optind > 1)
        print_counts(&total, "total");
    if (fflush(stdout) != 0)
        err(STATUS_ERROR, "write error");
    return status;
}
