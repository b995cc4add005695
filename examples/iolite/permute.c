// permute: prints all permutations of words, one in a line: "permute WORD...". See README.md.
#include "common.h"

#define WORDS_MAX 12

static char **words;
static size_t lengths[WORDS_MAX];
static int words_count;
static int is_used[WORDS_MAX];
static char *line;

// Prints the lines that begin with the first `length` bytes of `line`, which are `count` words.
static void permute(size_t length, int count)
{
    if (count == words_count) {
        line[length] = '\n';
        print(line, length + 1);
        return;
    }
    for (int i = 0; i < words_count; i++) {
        if (is_used[i])
            continue;
        memcpy(line + length, words[i], lengths[i]);
        is_used[i] = 1;
        permute(length + lengths[i], count + 1);
        is_used[i] = 0;
    }
}

int main(int argc, char **argv)
{
    size_t length = 1;
    if (argc < 2 || argc > WORDS_MAX + 1)
        errx(STATUS_ERROR, "usage: permute WORD... (expected: 1 to %d words)", WORDS_MAX);
    words = argv + 1;
    words_count = argc - 1;
    for (int i = 0; i < words_count; i++)
        length += lengths[i] = strlen(words[i]);
    line = malloc(length);
    if (!line)
        err(STATUS_ERROR, "malloc");
    permute(0, 0);
    flush_output();
    return 0;
}
