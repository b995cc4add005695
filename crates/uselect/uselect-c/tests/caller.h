// Helpers of the test programs in C: sockets and checks.
#ifndef CALLER_H
#define CALLER_H

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uselect.h>

#define CHECK(condition) ((condition) ? (void)0 : check_failed(__FILE__, __LINE__, #condition))
// The call must fail with this errno.
#define FAILS(call, error) CHECK((errno = 0, (call) == -1) && errno == (error))
#define LONG_MS 10000

static inline void check_failed(const char *file, int line, const char *condition) {
  fprintf(stderr, "%s:%d: check failed: %s (errno %d)\n", file, line, condition, errno);
  exit(1);
}

// Opens a listener on a free port of the loopback interface.
static inline int listen_at(struct sockaddr_in *address) {
  socklen_t size = sizeof *address;
  int fd = uselect_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  *address = (struct sockaddr_in){.sin_family = AF_INET};
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)address, size) && !listen(fd, 64));
  CHECK(!getsockname(fd, (struct sockaddr *)address, &size));
  return fd;
}

// Connects to that address with the system calls, so that the library does not track the socket.
static inline int connect_to(const struct sockaddr_in *address) {
  int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(fd >= 0 && !connect(fd, (const struct sockaddr *)address, sizeof *address));
  CHECK(!setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
  return fd;
}

// The two ends of a connection. The library tracks `ours` only.
struct ends {
  int ours, theirs;
};

static inline struct ends open_ends(void) {
  struct sockaddr_in address;
  struct pollfd waited = {.fd = listen_at(&address), .events = POLLIN};
  struct ends ends = {.theirs = connect_to(&address)};
  CHECK(upoll(&waited, 1, LONG_MS) == 1 && waited.revents == POLLIN);
  CHECK((ends.ours = uselect_accept4(waited.fd, NULL, NULL, SOCK_NONBLOCK)) >= 0);
  CHECK(!uselect_close(waited.fd));
  return ends;
}

static inline void close_ends(struct ends ends) {
  CHECK(!uselect_close(ends.ours) && !close(ends.theirs));
}

static inline void send_bytes(int fd, size_t count) {
  static const char bytes[65536];
  CHECK(uselect_send(fd, bytes, count, MSG_NOSIGNAL) == (ssize_t)count);
}

static inline void receive_bytes(int fd, size_t count) {
  static char bytes[65536];
  while (count > 0) {
    struct pollfd waited = {.fd = fd, .events = POLLIN};
    CHECK(poll(&waited, 1, LONG_MS) == 1);
    ssize_t got = uselect_recv(fd, bytes, count < sizeof bytes ? count : sizeof bytes, 0);
    CHECK(got > 0);
    count -= (size_t)got;
  }
}

// Sends until the send buffer is full, and returns the number of bytes.
static inline size_t fill_send_buffer(int fd) {
  static const char bytes[65536];
  size_t sent = 0;
  ssize_t moved;
  while ((moved = uselect_send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
    sent += (size_t)moved;
  CHECK(errno == EAGAIN);
  return sent;
}

// Resets a connection.
static inline void reset_connection(int fd) {
  struct linger now = {.l_onoff = 1};
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) && !close(fd));
}

// Returns what upoll reports of a descriptor, which must be what poll(2) reports.
static inline short state_of(int fd, short events) {
  struct pollfd ours = {.fd = fd, .events = events}, real = ours;
  int found = upoll(&ours, 1, 0);
  CHECK(poll(&real, 1, 0) == found && ours.revents == real.revents);
  return ours.revents;
}

// Waits until the descriptor is ready, for exactly the expected events.
static inline void wait_for(int fd, short events, short expected) {
  struct pollfd waited = {.fd = fd, .events = events};
  CHECK(upoll(&waited, 1, LONG_MS) == 1 && waited.revents == expected);
}

// Returns the options of uselect_init for the arguments BACKEND SOCKET.
static inline struct uselect_options options_of(int count, char **arguments) {
  const char *const backends[] = {"auto", "bpf", "multishot", "calls", "lean"};
  struct uselect_options options = {.socket = count > 2 ? arguments[2] : NULL};
  CHECK(count > 1);
  while (options.backend < 5 && strcmp(arguments[1], backends[options.backend]))
    options.backend++;
  CHECK(options.backend < 5);
  if (options.backend == 4) {
    options.backend = USELECT_BACKEND_BPF;
    options.mode = USELECT_MODE_LEAN;
  }
  return options;
}

#endif
