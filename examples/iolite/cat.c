// cat: copies files to the standard output: "cat [FILE]...". See README.md.
#include "common.h"

// Returns the exit status.
static int copy(const char *path)
{
    struct iol_aggregate *aggregate;
    ssize_t count;
    int fd = open_input(path);
    if (fd < 0)
        return STATUS_ERROR;
    while ((count = iol_read(fd, READ_BYTES, &aggregate)) > 0)
        write_all(aggregate);
    if (count < 0)
        warnx("%s: %s", path, iol_strerror((int)count));
    else
        iol_aggregate_destroy(aggregate);
    if (fd != STDIN_FILENO)
        close(fd);
    return count < 0 ? STATUS_ERROR : 0;
}

int main(int argc, char **argv)
{
    int status = 0;
    if (getopt(argc, argv, "") != -1)
        errx(STATUS_ERROR, "usage: cat [FILE]...");
    if (optind == argc)
        return copy("-");
    for (int i = optind; i < argc; i++)
        status |= copy(argv[i]);
    return status;
}
