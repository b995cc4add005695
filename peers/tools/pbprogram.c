// pbprogram: a program that hands its responses over to millrace without a copy, on libiolite.
//   pbprogram SOCKET COUNTS
// It serves /n/SIZE as pbfcgi does, from one document of each size in sealed memory. For /new/SIZE
// it makes a document for each request: a shorter one than COPIED_MAX in its slab, from where it is
// copied, and a longer one in sealed memory. COUNTS is as for pbfcgi.
#include <err.h>
#include <iolite.h>

#include "pbcounts.h"

#define SIZES_MAX 16
#define SLAB_BYTES (64 << 20)
// New sealed memory costs more than copies up to about this size, because the kernel clears it.
#define COPIED_MAX (256 << 10)
// From this capacity on, sealed memory has huge pages, which cost less to send. Only for documents
// that are kept: each takes 2 MB.
#define HUGE_MIN (512 << 10)

static char *stream;
static struct iol_slab *slab;
static struct document {
  long size;
  struct iol_aggregate *body;
} documents[SIZES_MAX];

static int check(int result, const char *call) {
  if (result < 0) errx(1, "%s: %s", call, iol_strerror(result));
  return result;
}
static struct iol_aggregate *seal_document(long size, long capacity) {
  struct iol_unsealed *memory;
  struct iol_slice *slice;
  struct iol_aggregate *document;
  void *start;
  size_t room;
  check(iol_aggregate_create(&document), "iol_aggregate_create");
  check(iol_unsealed_create(&memory, capacity), "iol_unsealed_create");
  check(iol_unsealed_unfilled(memory, &start, &room), "iol_unsealed_unfilled");
  memcpy(start, stream, size);
  check(iol_unsealed_advance(memory, size), "iol_unsealed_advance");
  check(iol_unsealed_seal(memory, &slice), "iol_unsealed_seal");
  check(iol_aggregate_append(document, slice), "iol_aggregate_append");
  iol_slice_destroy(slice);
  return document;
}
static struct iol_aggregate *new_document(long size) {
  if (size > COPIED_MAX) return seal_document(size, size);
  struct iol_aggregate *document;
  check(iol_aggregate_from_bytes(slab, IOL_COPIED, stream, size, &document),
        "iol_aggregate_from_bytes");
  return document;
}
// Returns a reference to the document of this size, which is made for the first request.
static struct iol_aggregate *kept_document(long size) {
  for (struct document *it = documents; it < documents + SIZES_MAX; it++) {
    long capacity = size < HUGE_MIN ? HUGE_MIN : size;
    if (!it->body) *it = (struct document){size, seal_document(size, capacity)};
    struct iol_aggregate *found;
    if (it->size == size) {
      check(iol_aggregate_duplicate(it->body, &found), "iol_aggregate_duplicate");
      return found;
    }
  }
  errx(1, "more than %d sizes", SIZES_MAX);
}
static void respond(struct iol_program *program, struct iol_request *request, const char *header,
                    struct iol_aggregate *body) {
  check(iol_program_respond(program, request, header, strlen(header), body),
        "iol_program_respond");
  iol_aggregate_destroy(body);
}
int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "pbprogram: invalid arguments (expected: SOCKET COUNTS)\n");
    return 2;
  }
  struct counts *counts = pbcounts(argv[2]);
  struct iol_program *program;
  pbstream(stream = malloc(STREAM));
  check(iol_slab_create(&slab, SLAB_BYTES), "iol_slab_create");
  check(iol_program_create(&program, argv[1], 0666), "iol_program_create");
  for (;;) {
    struct iol_request *request;
    check(iol_program_receive(program, &request), "iol_program_receive");
    const char *target = iol_request_variable(request, "REQUEST_URI");
    long kept = target ? pbsize(target, "/n/") : -1, new = target ? pbsize(target, "/new/") : -1;
    if (kept < 0 && new < 0) {
      respond(program, request, "Status: 404 Not Found\n\n", new_document(0));
    } else {
      pbcount(counts, target);
      respond(program, request,
              "Content-Type: application/octet-stream\nCache-Control: no-store\n\n",
              kept < 0 ? new_document(new) : kept_document(kept));
    }
    iol_request_destroy(request);
  }
}
