// A program that hands its responses over to `millrace` without a copy. See README.md.
//
// /new makes a document for each request, /echo sends the body of the request back, and each other
// path has the same document.
#include <err.h>
#include <iolite.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check(int result, const char *call)
{
    if (result < 0)
        errx(1, "%s: %s", call, iol_strerror(result));
    return result;
}

// Makes a document in memory that nothing can change any more. The server sends it from there.
static struct iol_aggregate *make_document(size_t length, char first)
{
    struct iol_unsealed *memory;
    struct iol_slice *slice;
    struct iol_aggregate *document;
    void *start;
    size_t room;
    check(iol_unsealed_create(&memory, length), "iol_unsealed_create");
    check(iol_unsealed_unfilled(memory, &start, &room), "iol_unsealed_unfilled");
    memset(start, first, length);
    check(iol_unsealed_advance(memory, length), "iol_unsealed_advance");
    check(iol_unsealed_seal(memory, &slice), "iol_unsealed_seal");
    check(iol_aggregate_create(&document), "iol_aggregate_create");
    check(iol_aggregate_append(document, slice), "iol_aggregate_append");
    iol_slice_destroy(slice);
    return document;
}

int main(int argc, char **argv)
{
    const char header[] = "Content-Type: text/plain\n\n";
    size_t length = argc > 2 ? strtoul(argv[2], NULL, 10) : 65536;
    struct iol_program *program;
    struct iol_request *request;
    struct iol_aggregate *same, *body;
    if (argc < 2 || argc > 3 || length == 0) {
        fprintf(stderr, "usage: program SOCKET [BYTES]\n");
        return 2;
    }
    check(iol_program_create(&program, argv[1], 0666), "iol_program_create");
    same = make_document(length, 'a');
    for (int number = 0;; number++) {
        check(iol_program_receive(program, &request), "iol_program_receive");
        const char *path = iol_request_variable(request, "PATH_INFO");
        if (path && strcmp(path, "/new") == 0)
            body = make_document(length, (char)('0' + number % 10));
        else if (path && strcmp(path, "/echo") == 0)
            check(iol_request_body(request, &body), "iol_request_body");
        else
            check(iol_aggregate_duplicate(same, &body), "iol_aggregate_duplicate");
        check(iol_program_respond(program, request, header, strlen(header), body),
              "iol_program_respond");
        iol_aggregate_destroy(body);
        iol_request_destroy(request);
    }
}
