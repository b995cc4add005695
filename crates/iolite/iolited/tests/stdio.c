// Streams of libiolite-stdio: "stdio print", "stdio copy" or "stdio results", with pipes as
// standard input and output. A failed check ends it with status 1.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
            exit(1); \
        } \
    } while (0)

// The lines that are printed.
#define LINES 100000

// Returns how many sockets this process has open. Each end of a channel is one.
static int sockets(void)
{
    int count = 0;
    struct stat status;
    struct dirent *entry;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder);
    while ((entry = readdir(folder)))
        count += fstat(atoi(entry->d_name), &status) == 0 && S_ISSOCK(status.st_mode);
    closedir(folder);
    return count;
}

static void print_lines(void)
{
    for (int i = 0; i < LINES; i++)
        CHECK(printf("line %d of some text, %08x\n", i, i * 2654435761U) > 0);
}

// Copies the standard input by lines. Near the end, it prints the number of sockets to the standard
// error.
static void copy_lines(void)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    for (int i = 0; (length = getline(&line, &size, stdin)) > 0; i++) {
        CHECK(fwrite(line, 1, (size_t)length, stdout) == (size_t)length);
        if (i == LINES - LINES / 10)
            fprintf(stderr, "sockets: %d\n", sockets());
    }
    CHECK(feof(stdin) && !ferror(stdin));
    CHECK(fflush(stdout) == 0);
    free(line);
}

// The calls whose results are those of ordinary streams.
static void call(void)
{
    char text[64];
    CHECK(fileno(stdin) == 0 && fileno(stdout) == 1 && fileno(stderr) == 2);
    CHECK(fileno_unlocked(stdin) == 0);
    // Pipes have no position.
    CHECK(fseek(stdin, 0, SEEK_SET) == -1 && errno == ESPIPE);
    CHECK(ftell(stdin) == -1 && errno == ESPIPE);
    CHECK(getc(stdin) == 'l' && ungetc('L', stdin) == 'L');
    CHECK(fgets(text, 5, stdin) && strcmp(text, "Line") == 0);

    FILE *child = popen("cat; exit 3", "w");
    CHECK(child && fputs("to a child\n", child) >= 0);
    fflush(stdout);
    CHECK(WEXITSTATUS(pclose(child)) == 3);
    child = popen("echo from a child", "r");
    CHECK(child && fgets(text, sizeof text, child) && strcmp(text, "from a child\n") == 0);
    CHECK(pclose(child) == 0);
    child = popen("cat; exit 3", "w");
    // The compiler knows that it should be pclose; the C library takes both.
    int (*volatile close_any)(FILE *) = fclose;
    CHECK(child && fputs("to another child\n", child) >= 0);
    CHECK(WEXITSTATUS(close_any(child)) == 3);

    int ends[2];
    CHECK(pipe(ends) == 0);
    FILE *reader = fdopen(ends[0], "re"), *writer = fdopen(ends[1], "w");
    CHECK(reader && writer && fileno(reader) == ends[0]);
    CHECK(fdopen(ends[0], "w") == NULL && errno == EINVAL);
    CHECK(fputs("itself", writer) >= 0 && fclose(writer) == 0);
    CHECK(fread(text, 1, sizeof text, reader) == 6 && memcmp(text, "itself", 6) == 0);
    CHECK(feof(reader) && fclose(reader) == 0);
    CHECK(close(ends[0]) == -1 && errno == EBADF);

    CHECK(freopen(NULL, "w", stdin) == NULL && errno == EINVAL);
    CHECK(freopen("/dev/null", "r", stdin) == stdin && fileno(stdin) == 0 && getchar() == EOF);
    CHECK(freopen("/no/file", "w", stdout) == NULL && errno == ENOENT);
    CHECK(close(0) == 0 && freopen("/dev/zero", "r", stdin) == stdin && getchar() == 0);
    CHECK(puts("the end") >= 0);
    CHECK(freopen("/dev/full", "w", stdout) == stdout && puts("lost") >= 0);
    CHECK(fflush(stdout) == EOF && errno == ENOSPC && ferror(stdout));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    switch (argv[1][0]) {
    case 'p':
        print_lines();
        break;
    case 'c':
        copy_lines();
        break;
    default:
        call();
    }
    return 0;
}
