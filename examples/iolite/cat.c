// cat: copies files, or the standard input, to the standard output. See README.md.
#include "common.h"

static void copy(int fd)
{
    struct iol_aggregate *aggregate;
    ssize_t count;
    while ((count = iol_read(fd, READ_BYTES, &aggregate)) > 0)
        write_all(1, aggregate);
    check_transfer(count, "iol_read");
    iol_aggregate_destroy(aggregate);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        copy(0);
    for (int i = 1; i < argc; i++) {
        int fd = open_input(argv[i]);
        copy(fd);
        if (fd > 0)
            close(fd);
    }
    return 0;
}
