// A program that hands its responses over to `millrace` without a copy. See README.md.
//
// /new makes a document for each request, /echo sends the body of the request back, and each other
// path has the same document.
#include <err.h>
#include <errno.h>
#include <iolite.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct iol_program *program;

static void check(int result, const char *call)
{
    if (result < 0)
        errx(1, "%s: %s", call, iol_strerror(result));
}

static void stop(int number)
{
    (void)number;
    iol_program_interrupt(program);
}

// Makes a document in memory that nothing can change any more. The server sends it from there.
static int make_document(size_t length, int first, struct iol_aggregate **document)
{
    struct iol_unsealed *memory;
    struct iol_slice *slice;
    void *start;
    size_t room;
    int result = iol_unsealed_create(&memory, length);
    if (result < 0)
        return result;
    check(iol_unsealed_unfilled(memory, &start, &room), "iol_unsealed_unfilled");
    memset(start, first, length);
    check(iol_unsealed_advance(memory, length), "iol_unsealed_advance");
    result = iol_unsealed_seal(memory, &slice);
    if (result < 0)
        return result;
    check(iol_aggregate_create(document), "iol_aggregate_create");
    check(iol_aggregate_append(*document, slice), "iol_aggregate_append");
    iol_slice_destroy(slice);
    return 0;
}

static int make_body(const struct iol_request *request, const struct iol_aggregate *same,
                     size_t length, struct iol_aggregate **body)
{
    static unsigned number;
    const char *path = iol_request_variable(request, "PATH_INFO");
    if (path && strcmp(path, "/new") == 0)
        return make_document(length, '0' + (int)(number++ % 10), body);
    if (path && strcmp(path, "/echo") == 0)
        return iol_request_body(request, body);
    return iol_aggregate_duplicate(same, body);
}

int main(int argc, char **argv)
{
    size_t length = argc > 2 ? strtoul(argv[2], NULL, 10) : 65536;
    struct iol_request *request;
    struct iol_aggregate *same;
    int result;
    if (argc < 2 || argc > 3 || length == 0) {
        fprintf(stderr, "usage: program SOCKET [BYTES]\n");
        return 2;
    }
    check(iol_program_create(&program, argv[1], 0666), "iol_program_create");
    check(make_document(length, 'a', &same), "a document");
    signal(SIGTERM, stop);
    while ((result = iol_program_receive(program, &request)) == 0) {
        const char *header = "Content-Type: text/plain\n\n";
        struct iol_aggregate *body = NULL;
        if (make_body(request, same, length, &body) < 0)
            header = "Status: 500 Internal Server Error\n\n";
        check(iol_program_respond(program, request, header, strlen(header), body),
              "iol_program_respond");
        iol_aggregate_destroy(body);
        iol_request_destroy(request);
    }
    if (result != -EINTR)
        check(result, "iol_program_receive");
    signal(SIGTERM, SIG_DFL); // a second one ends the wait for servers
    check(iol_program_close(program), "iol_program_close");
    return 0;
}
