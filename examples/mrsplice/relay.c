// relay: a TCP proxy that never copies the forwarded bytes into its memory.
//   relay PORT HOST HOST_PORT
// Listens at 127.0.0.1:PORT (0: a free port, which is printed). Opens a connection to HOST for each
// client, splices the two until both are closed, and prints the byte counts of both directions.
// SIGINT and SIGTERM end the program and all connections.
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <mrsplice.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

// The connection of a client and the one to HOST. Active pairs form a ring.
struct pair {
  int fds[2];
  uint64_t splice;
  struct pair *previous, *next;
};

static struct pair ring = {.previous = &ring, .next = &ring};
static char **options; // PORT, HOST and HOST_PORT at index 1 to 3.

static int parse_port(const char *text) {
  char *rest;
  unsigned long port = strtoul(text, &rest, 10);
  if (!*text || *rest || port > 65535)
    errx(1, "invalid port \"%s\" (expected: a number up to 65535)", text);
  return port;
}

static int listen_at(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
  struct sockaddr *general = (struct sockaddr *)&address;
  socklen_t size = sizeof address;
  int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (fd < 0 || bind(fd, general, size) || listen(fd, 512) || getsockname(fd, general, &size))
    err(1, "cannot listen at port %d", port);
  printf("listening at 127.0.0.1:%d\n", ntohs(address.sin_port));
  return fd;
}

// Returns a connection to the first address of HOST that accepts one, or -1. connect(2) blocks all
// other clients here; a production proxy would connect without blocking.
static int connect_to(const struct addrinfo *address) {
  for (; address; address = address->ai_next) {
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !connect(fd, address->ai_addr, address->ai_addrlen) &&
        !fcntl(fd, F_SETFL, O_NONBLOCK))
      return fd;
    if (!address->ai_next)
      warn("cannot connect to %s:%s", options[2], options[3]);
    close(fd);
  }
  return -1;
}

// Prints the byte counts of a pair and closes it; by a reset if its data is incomplete.
static void close_pair(struct pair *pair, const struct mrsplice_released *released) {
  struct linger reset = {.l_onoff = released->end != MRSPLICE_END_CLOSED};
  printf("%llu bytes from the client, %llu bytes to it%s%s\n",
         (unsigned long long)released->directions[0].forwarded,
         (unsigned long long)released->directions[1].forwarded, released->error ? ": " : "",
         released->error ? mrsplice_strerror(released->error) : "");
  for (int side = 0; side < 2; side++) {
    setsockopt(pair->fds[side], SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(pair->fds[side]);
  }
  free(pair);
}

// Splices a client to HOST.
static void start(struct mrsplice *set, int client, const struct addrinfo *host) {
  struct pair *pair = malloc(sizeof *pair);
  if (!pair)
    err(1, "cannot allocate memory");
  *pair = (struct pair){{client, connect_to(host)}, 0, ring.previous, &ring};
  struct mrsplice_request request = {.fd0 = client, .fd1 = pair->fds[1], .user_data = pair};
  int result = pair->fds[1] < 0 ? 1 : mrsplice_splice(set, &request); // 1: nothing to splice.
  if (result == 0) {
    pair->splice = request.splice;
    pair->previous->next = ring.previous = pair;
    return;
  }
  if (result < 0)
    request.released.error = result;
  close_pair(pair, &request.released);
}

// Releases the splice of an active pair and closes the pair.
static void unsplice(struct mrsplice *set, struct pair *pair) {
  struct mrsplice_released released;
  int result = mrsplice_unsplice(set, pair->splice, &released);
  if (result < 0)
    errx(1, "cannot unsplice: %s", mrsplice_strerror(result));
  pair->previous->next = pair->next;
  pair->next->previous = pair->previous;
  close_pair(pair, &released);
}

int main(int count, char **arguments) {
  struct addrinfo *host, hints = {.ai_socktype = SOCK_STREAM};
  struct mrsplice_notice notice;
  struct mrsplice *set;
  sigset_t signals;
  int client, result;
  options = arguments;
  if (count != 4)
    errx(1, "usage: relay PORT HOST HOST_PORT");
  parse_port(options[3]); // getaddrinfo accepts larger numbers and truncates them to 16 bits.
  if ((result = getaddrinfo(options[2], options[3], &hints, &host)))
    errx(1, "%s: %s", options[2], gai_strerror(result));
  signal(SIGPIPE, SIG_IGN);
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigprocmask(SIG_BLOCK, &signals, NULL);
  setvbuf(stdout, NULL, _IOLBF, 0);
  if ((result = mrsplice_new(&set, 0)) < 0)
    errx(1, "cannot create a set of splices: %s", mrsplice_strerror(result));
  struct pollfd fds[] = {{.fd = signalfd(-1, &signals, SFD_CLOEXEC), .events = POLLIN},
                         {.fd = mrsplice_fd(set), .events = POLLIN},
                         {.fd = listen_at(parse_port(options[1])), .events = POLLIN}};
  while (poll(fds, 3, fds[2].events ? -1 : 1000) >= 0 && !fds[0].revents) {
    fds[2].events = POLLIN;
    if (fds[2].revents &&
        (client = accept4(fds[2].fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) < 0) {
      warn("cannot accept a client; trying again in a second");
      fds[2].events = 0;
    } else if (fds[2].revents)
      start(set, client, host);
    if ((result = mrsplice_forward(set, 0)) < 0)
      errx(1, "cannot forward: %s", mrsplice_strerror(result));
    while (mrsplice_next_notice(set, &notice) == 1)
      unsplice(set, notice.user_data);
  }
  while (ring.next != &ring)
    unsplice(set, ring.next);
  mrsplice_free(set);
  freeaddrinfo(host);
  return 0;
}
