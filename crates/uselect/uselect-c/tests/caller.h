// What the test programs in C share: sockets, and what must hold.
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

#define CHECK(condition) ((condition) ? (void)0 : broken(__FILE__, __LINE__, #condition))
// The call fails with this errno.
#define FAILS(call, error) CHECK((errno = 0, (call) == -1) && errno == (error))
#define LONG_MS 10000

static inline void broken(const char *file, int line, const char *condition) {
  fprintf(stderr, "%s:%d: this does not hold: %s (errno %d)\n", file, line, condition, errno);
  exit(1);
}

// A listener at a free port of loopback.
static inline int listen_at(struct sockaddr_in *address) {
  socklen_t size = sizeof *address;
  int fd = uselect_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  *address = (struct sockaddr_in){.sin_family = AF_INET};
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)address, size) && !listen(fd, 64));
  CHECK(!getsockname(fd, (struct sockaddr *)address, &size));
  return fd;
}

// A connection to there, by the system calls: the library does not know of it.
static inline int connect_to(const struct sockaddr_in *address) {
  int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(fd >= 0 && !connect(fd, (const struct sockaddr *)address, sizeof *address));
  CHECK(!setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
  return fd;
}

// Two ends of a connection: the library knows of `ours`.
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

static inline void say(int fd, size_t count) {
  static const char bytes[65536];
  CHECK(uselect_send(fd, bytes, count, MSG_NOSIGNAL) == (ssize_t)count);
}

static inline void hear(int fd, size_t count) {
  static char bytes[65536];
  while (count > 0) {
    struct pollfd waited = {.fd = fd, .events = POLLIN};
    CHECK(poll(&waited, 1, LONG_MS) == 1);
    ssize_t got = uselect_recv(fd, bytes, count < sizeof bytes ? count : sizeof bytes, 0);
    CHECK(got > 0);
    count -= (size_t)got;
  }
}

// Sends until there is no room.
static inline size_t stuff(int fd) {
  static const char bytes[65536];
  size_t sent = 0;
  ssize_t moved;
  while ((moved = uselect_send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
    sent += (size_t)moved;
  CHECK(errno == EAGAIN);
  return sent;
}

// Ends a connection by a reset.
static inline void abort_connection(int fd) {
  struct linger now = {.l_onoff = 1};
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) && !close(fd));
}

// What poll(2) and the library's say of a descriptor, which is the same.
static inline short state_of(int fd, short events) {
  struct pollfd ours = {.fd = fd, .events = events}, real = ours;
  int found = upoll(&ours, 1, 0);
  CHECK(poll(&real, 1, 0) == found && ours.revents == real.revents);
  return ours.revents;
}

// Waits until it says so.
static inline void wait_for(int fd, short events, short expected) {
  struct pollfd waited = {.fd = fd, .events = events};
  CHECK(upoll(&waited, 1, LONG_MS) == 1 && waited.revents == expected);
}

// Makes the tracker that the arguments name: BACKEND SOCKET.
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
