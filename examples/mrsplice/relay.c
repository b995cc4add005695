// relay: a TCP proxy whose bytes never come into its memory.
//   relay PORT HOST HOST_PORT
// Takes connections at 127.0.0.1:PORT (0: a free one, which is printed), opens one to HOST for
// each, and splices the two until both are closed. Says of each pair how many bytes went either
// way. SIGINT and SIGTERM end it, and whatever is under way.
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

// A client's connection and the one to HOST; under way, in a ring with the others.
struct pair {
  int fds[2];
  uint64_t splice;
  struct pair *before, *after;
};

static struct pair ring = {.before = &ring, .after = &ring};
static char **asked; // PORT, HOST and HOST_PORT, from 1 on.

static int port_of(const char *text) {
  char *rest;
  unsigned long port = strtoul(text, &rest, 10);
  if (!*text || *rest || port > 65535)
    errx(1, "a port is a number up to 65535, unlike %s", text);
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

// A connection to the first of HOST's addresses that answers, or -1. Others wait meanwhile, which a
// proxy for more than a try would not let them do.
static int connect_to(const struct addrinfo *address) {
  for (; address; address = address->ai_next) {
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !connect(fd, address->ai_addr, address->ai_addrlen) &&
        !fcntl(fd, F_SETFL, O_NONBLOCK))
      return fd;
    if (!address->ai_next)
      warn("cannot connect to %s:%s", asked[2], asked[3]);
    close(fd);
  }
  return -1;
}

// Says what went through a pair, and closes it: by a reset where a close would look like the end.
static void end(struct pair *pair, const struct mrsplice_released *released) {
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
static void begin(struct mrsplice *set, int client, const struct addrinfo *host) {
  struct pair *pair = malloc(sizeof *pair);
  if (!pair)
    err(1, "cannot go on");
  *pair = (struct pair){{client, connect_to(host)}, 0, ring.before, &ring};
  struct mrsplice_request request = {.fd0 = client, .fd1 = pair->fds[1], .data = pair};
  int result = pair->fds[1] < 0 ? 1 : mrsplice_splice(set, &request); // 1: it is over.
  if (result == 0) {
    pair->splice = request.splice;
    pair->before->after = ring.before = pair;
    return;
  }
  if (result < 0)
    request.released.error = result;
  end(pair, &request.released);
}

// Releases the splice of a pair that is under way, and ends the pair.
static void unsplice(struct mrsplice *set, struct pair *pair) {
  struct mrsplice_released released;
  int result = mrsplice_unsplice(set, pair->splice, &released);
  if (result < 0)
    errx(1, "cannot unsplice: %s", mrsplice_strerror(result));
  pair->before->after = pair->after;
  pair->after->before = pair->before;
  end(pair, &released);
}

int main(int count, char **arguments) {
  struct addrinfo *host, hints = {.ai_socktype = SOCK_STREAM};
  struct mrsplice_notice notice;
  struct mrsplice *set;
  sigset_t ending;
  int client, result;
  asked = arguments;
  if (count != 4)
    errx(1, "usage: relay PORT HOST HOST_PORT");
  port_of(asked[3]); // Whether it is one: getaddrinfo does not mind, and cuts it to 16 bits.
  if ((result = getaddrinfo(asked[2], asked[3], &hints, &host)))
    errx(1, "%s: %s", asked[2], gai_strerror(result));
  signal(SIGPIPE, SIG_IGN);
  sigemptyset(&ending);
  sigaddset(&ending, SIGINT);
  sigaddset(&ending, SIGTERM);
  sigprocmask(SIG_BLOCK, &ending, NULL);
  setvbuf(stdout, NULL, _IOLBF, 0);
  if ((result = mrsplice_new(&set, 0)) < 0)
    errx(1, "no set: %s", mrsplice_strerror(result));
  struct pollfd waited[] = {{.fd = signalfd(-1, &ending, SFD_CLOEXEC), .events = POLLIN},
                            {.fd = mrsplice_fd(set), .events = POLLIN},
                            {.fd = listen_at(port_of(asked[1])), .events = POLLIN}};
  while (poll(waited, 3, waited[2].events ? -1 : 1000) >= 0 && !waited[0].revents) {
    waited[2].events = POLLIN;
    if (waited[2].revents &&
        (client = accept4(waited[2].fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) < 0) {
      warn("cannot take a client, who waits for a second");
      waited[2].events = 0;
    } else if (waited[2].revents)
      begin(set, client, host);
    if ((result = mrsplice_turn(set, 0)) < 0)
      errx(1, "cannot go on: %s", mrsplice_strerror(result));
    while (mrsplice_next(set, &notice) == 1)
      unsplice(set, notice.data);
  }
  while (ring.after != &ring)
    unsplice(set, ring.after);
  mrsplice_free(set);
  freeaddrinfo(host);
  return 0;
}
