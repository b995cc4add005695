// program: checks the functions for programs of libiolite against their man pages. Listens at the
// path of its argument. The variable COMMAND of a request names the case. tests/programs.rs is the
// server.
#define _GNU_SOURCE
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "common.h"

#define KEPT_MAX 10

static const char *path;
static struct iol_program *program;
static struct iol_request *kept[KEPT_MAX];
static int kept_count;

static void interrupt_program(int signal) {
  (void)signal;
  int before = errno;
  CHECK(iol_program_interrupt(program) == 0 && errno == before);
}

// A program that listens at `at` for a moment.
static void create_and_destroy(const char *at) {
  struct iol_program *other = NULL;
  CHECK(iol_program_create(&other, at, 0600) == 0 && other);
  iol_program_destroy(other);
}

static void refusals_of_create(void) {
  struct iol_program *one = NULL, *other = NULL;
  struct iol_request *request = NULL;
  struct iol_aggregate *body = NULL;
  struct stat status;
  char at[100], longest[200];
  // The server connects to `path`.
  snprintf(at, sizeof at, "%s-refused", path);
  CHECK(iol_program_create(NULL, at, 0600) == -EINVAL);
  CHECK(iol_program_create(&other, NULL, 0600) == -EINVAL);
  CHECK(access(at, F_OK) < 0 && errno == ENOENT);
  CHECK(iol_program_create(&other, "", 0600) == -EINVAL);
  // The longest path has 108 bytes.
  snprintf(longest, sizeof longest, "%s%0*d", at, 109 - (int)strlen(at), 0);
  CHECK(iol_program_create(&other, longest, 0600) == -ENAMETOOLONG);
  longest[108] = 0;
  create_and_destroy(longest);
  CHECK(unlink(longest) == 0);
  CHECK(iol_program_create(&other, "/nonexistent/socket", 0600) == -ENOENT);
  CHECK(iol_program_create(&other, "/dev/null/socket", 0600) == -ENOTDIR);
  CHECK(iol_program_create(&other, "/dev/null", 0600) == -EADDRINUSE);
  CHECK(iol_program_create(&other, "/", 0600) == -EADDRINUSE);
  // The umask does not change the permission bits.
  mode_t mask = umask(077);
  CHECK(iol_program_create(&one, at, 0640) == 0 && one);
  CHECK(umask(mask) == 077);
  CHECK(stat(at, &status) == 0 && S_ISSOCK(status.st_mode));
  CHECK((status.st_mode & 07777) == 0640);
  CHECK(iol_program_create(&other, at, 0600) == -EADDRINUSE && !other);
  // The socket stays, and is replaced when no process listens on it.
  CHECK(iol_program_close(one) == 0 && stat(at, &status) == 0);
  create_and_destroy(at);
  CHECK(unlink(at) == 0);

  iol_program_destroy(NULL);
  iol_request_destroy(NULL);
  CHECK(iol_program_close(NULL) == -EINVAL);
  CHECK(iol_program_interrupt(NULL) == -EINVAL);
  CHECK(iol_program_receive(NULL, &request) == -EINVAL && !request);
  CHECK(iol_program_respond(NULL, NULL, "", 0, NULL) == -EINVAL);
  CHECK(iol_request_variable(NULL, "COMMAND") == NULL);
  CHECK(iol_request_body(NULL, &body) == -EINVAL && !body);
}

// Returns NULL after an interrupt.
// There is a descriptor for the socket of a server, but none for its memory.
static void receive_without_descriptors(void) {
  struct iol_request *request = NULL;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  struct rlimit limit, before;
  int server = socket(AF_UNIX, SOCK_SEQPACKET, 0), unused[2];
  snprintf(address.sun_path, sizeof address.sun_path, "%s-limited", path);
  CHECK(iol_program_create(&program, address.sun_path, 0600) == 0);
  CHECK(connect(server, (struct sockaddr *)&address, sizeof address) == 0);
  CHECK((unused[0] = dup(0)) >= 0 && (unused[1] = dup(0)) > unused[0]);
  CHECK(close(unused[0]) == 0 && close(unused[1]) == 0);
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  limit = before;
  limit.rlim_cur = unused[1];
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(iol_program_receive(program, &request) == -EMFILE && !request);
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  // The connection was closed. The program can be used on.
  CHECK(read(server, seen, 1) == 0);
  CHECK(iol_program_interrupt(program) == 0);
  CHECK(iol_program_receive(program, &request) == -EINTR && !request);
  CHECK(close(server) == 0 && iol_program_close(program) == 0);
  CHECK(unlink(address.sun_path) == 0);
}

static struct iol_request *receive(void) {
  struct iol_request *request = NULL;
  int result = iol_program_receive(program, &request);
  CHECK(result == 0 ? request != NULL : result == -EINTR && !request);
  return request;
}

// Responds with the variable TEXT as header.
static void respond(const struct iol_request *request, const struct iol_aggregate *body) {
  const char *text = iol_request_variable(request, "TEXT");
  CHECK(text);
  CHECK(iol_program_respond(program, request, text, strlen(text), body) == 0);
}

static struct iol_aggregate *body_of(const struct iol_request *request) {
  struct iol_aggregate *body = NULL;
  CHECK(iol_request_body(request, &body) == 0 && body);
  return body;
}

// Makes an aggregate of the bytes in `seen`.
static struct iol_aggregate *made(const char *command, size_t count) {
  struct iol_aggregate *body, *part;
  if (count == 0)
    return empty();
  if (!strcmp(command, "sealed"))
    return of_slice(sealed(seen, count));
  if (!strcmp(command, "copied"))
    return copied(IOL_ZERO_COPY, seen, count);
  CHECK(!strcmp(command, "both"));
  body = copied(IOL_COPIED, seen, 1);
  part = of_slice(sealed(seen + 1, count - 2));
  CHECK(iol_aggregate_concatenate(body, part) == 0);
  iol_aggregate_destroy(part);
  part = copied(IOL_COPIED, seen + count - 1, 1);
  CHECK(iol_aggregate_concatenate(body, part) == 0);
  iol_aggregate_destroy(part);
  return body;
}

// Sends back a copy of the body.
static void respond_from(const char *command, const struct iol_request *request) {
  struct iol_aggregate *body = body_of(request);
  ssize_t count = iol_aggregate_read(body, 0, seen, sizeof seen);
  CHECK(count >= 0 && count == iol_aggregate_length(body));
  iol_aggregate_destroy(body);
  body = made(command, count);
  respond(request, body);
  iol_aggregate_destroy(body);
}

static void respond_with_many_slices(const struct iol_request *request) {
  struct iol_aggregate *many = empty();
  struct iol_slice *slice = in_slab(IOL_COPIED, "a", 1);
  for (int at = 0; at <= IOL_SLICES_MAX; at++)
    CHECK(iol_aggregate_append(many, slice) == 0);
  CHECK(iol_program_respond(program, request, "no", 2, many) == -E2BIG);
  CHECK(iol_aggregate_truncate(many, IOL_SLICES_MAX) == 0);
  respond(request, many);
  iol_aggregate_destroy(many);
  iol_slice_destroy(slice);
}

static void respond_after_refusals(const struct iol_request *request) {
  CHECK(iol_program_receive(program, NULL) == -EINVAL);
  CHECK(iol_program_respond(program, NULL, "no", 2, NULL) == -EINVAL);
  CHECK(iol_program_respond(program, request, NULL, 1, NULL) == -EINVAL);
  CHECK(iol_program_respond(program, request, "no", SIZE_MAX, NULL) == -EINVAL);
  CHECK(iol_request_body(request, NULL) == -EINVAL);
  CHECK(iol_request_variable(request, NULL) == NULL);
  CHECK(iol_request_variable(request, "UNSET") == NULL);
  CHECK(iol_request_variable(request, "COMMAN") == NULL);
  CHECK(iol_request_variable(request, "ZERO_BYTE") == NULL);
  CHECK(!strcmp(iol_request_variable(request, "EMPTY"), ""));
  CHECK(!strcmp(iol_request_variable(request, "PIECES"), "in pieces"));
  // No header and no body.
  CHECK(iol_program_respond(program, request, NULL, 0, NULL) == 0);
}

// Responds to the kept requests, the last one first. The server of some may have gone.
static void respond_to_kept(void) {
  while (kept_count > 0) {
    respond(kept[--kept_count], NULL);
    iol_request_destroy(kept[kept_count]);
  }
}

// Responds more often than a channel has room for.
static void respond_often(const struct iol_request *request) {
  for (int at = 0; at < 1000; at++)
    CHECK(iol_program_respond(program, request, &at, sizeof at, NULL) == 0);
}

// Requests and bodies stay valid.
static void destroy_program(const struct iol_request *request) {
  struct iol_aggregate *body = body_of(request);
  iol_program_destroy(program);
  program = NULL;
  CHECK(!strcmp(iol_request_variable(request, "COMMAND"), "destroy"));
  expect_and_destroy(body, "still there", 11);
}

// Interrupts the program twice before it receives: that counts once.
static void interrupt_early(const struct iol_request *request) {
  struct iol_request *next = NULL;
  respond(request, NULL);
  CHECK(iol_program_interrupt(program) == 0 && iol_program_interrupt(program) == 0);
  CHECK(iol_program_receive(program, &next) == -EINTR && !next);
}

// Serves until a command or SIGTERM ends it.
static void serve(void) {
  CHECK(iol_program_create(&program, path, 0600) == 0 && program);
  CHECK(signal(SIGTERM, interrupt_program) != SIG_ERR);
  for (int is_last = 0; !is_last;) {
    struct iol_request *request = receive();
    if (!request) {
      CHECK(signal(SIGTERM, SIG_DFL) != SIG_ERR);
      CHECK(iol_program_close(program) == 0);
      break;
    }
    const char *command = iol_request_variable(request, "COMMAND");
    CHECK(command);
    if (!strcmp(command, "echo")) {
      struct iol_aggregate *body = body_of(request);
      respond(request, body);
      iol_aggregate_destroy(body);
    } else if (!strcmp(command, "slices")) {
      respond_with_many_slices(request);
    } else if (!strcmp(command, "refusals")) {
      respond_after_refusals(request);
    } else if (!strcmp(command, "keep")) {
      CHECK(kept_count < KEPT_MAX);
      kept[kept_count++] = request;
      continue;
    } else if (!strcmp(command, "respond")) {
      respond_to_kept();
      respond(request, NULL);
    } else if (!strcmp(command, "interrupt")) {
      interrupt_early(request);
    } else if (!strcmp(command, "terminate")) {
      respond_often(request);
      CHECK(raise(SIGTERM) == 0);
    } else if (!strcmp(command, "close")) {
      respond_often(request);
      CHECK(iol_program_close(program) == 0);
      is_last = 1;
    } else if (!strcmp(command, "destroy")) {
      destroy_program(request);
      is_last = 1;
    } else {
      respond_from(command, request);
    }
    iol_request_destroy(request);
  }
}

int main(int argc, char **argv) {
  static const struct test_case cases[] = {
      {"refusals of create", refusals_of_create},
      {"no descriptors", receive_without_descriptors},
      {"requests", serve},
  };
  CHECK(argc == 2);
  path = argv[1];
  run_cases(cases, sizeof cases / sizeof *cases);
  return 0;
}
