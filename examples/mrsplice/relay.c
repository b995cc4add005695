// relay: a TCP proxy whose bytes never come into its memory.
//   relay PORT HOST HOST_PORT
// Takes connections at 127.0.0.1:PORT (0: a free one, which is printed), opens one to HOST for
// each, and splices the two until both are closed. Says of each pair how many bytes went either
// way. SIGINT and SIGTERM end it, and whatever is under way.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mrsplice.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// A client's connection and the one to HOST; under way, in a ring with the others.
struct pair {
  int fds[2];
  uint64_t splice;
  struct pair *before, *after;
};

static struct pair ring = {.before = &ring, .after = &ring};
static volatile sig_atomic_t over;

static void stop(int signal) {
  (void)signal;
  over = 1;
}

static void fail(const char *what, const char *why) {
  fprintf(stderr, "relay: %s: %s\n", what, why);
  exit(1);
}

static int listen_at(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
  struct sockaddr *general = (struct sockaddr *)&address;
  socklen_t size = sizeof address;
  int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (fd < 0 || bind(fd, general, size) || listen(fd, 512) || getsockname(fd, general, &size))
    fail("cannot listen", strerror(errno));
  printf("listening at 127.0.0.1:%d\n", ntohs(address.sin_port));
  return fd;
}

// A connection to the first of HOST's addresses that answers. Others wait meanwhile, which a proxy
// for more than a try would not let them do.
static int connect_to(const struct addrinfo *address) {
  for (; address; address = address->ai_next) {
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && !connect(fd, address->ai_addr, address->ai_addrlen) &&
        !fcntl(fd, F_SETFL, O_NONBLOCK))
      return fd;
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

// Takes one client, if there is one.
static void begin(struct mrsplice *set, int listener, const struct addrinfo *host) {
  int client = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (client < 0)
    return;
  struct pair *pair = calloc(1, sizeof *pair);
  if (!pair)
    fail("cannot go on", "no memory");
  pair->fds[0] = client;
  pair->fds[1] = connect_to(host);
  struct mrsplice_request request = {.fd0 = client, .fd1 = pair->fds[1], .data = pair};
  int result = mrsplice_splice(set, &request);
  if (result == 0) {
    pair->splice = request.splice;
    pair->before = ring.before;
    pair->after = &ring;
    pair->before->after = pair->after->before = pair;
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
    fail("cannot unsplice", mrsplice_strerror(result));
  pair->before->after = pair->after;
  pair->after->before = pair->before;
  end(pair, &released);
}

int main(int count, char **arguments) {
  struct addrinfo *host, hints = {.ai_socktype = SOCK_STREAM};
  struct sigaction stopping = {.sa_handler = stop};
  struct mrsplice_notice notice;
  struct mrsplice *set;
  sigset_t waiting;
  if (count != 4)
    fail("usage", "relay PORT HOST HOST_PORT");
  int result = getaddrinfo(arguments[2], arguments[3], &hints, &host);
  if (result)
    fail(arguments[2], gai_strerror(result));
  signal(SIGPIPE, SIG_IGN);
  sigaction(SIGINT, &stopping, NULL);
  sigaction(SIGTERM, &stopping, NULL);
  // Signals come while ppoll waits, and never between a look at `over` and the wait.
  sigfillset(&stopping.sa_mask);
  sigprocmask(SIG_BLOCK, &stopping.sa_mask, &waiting);
  setvbuf(stdout, NULL, _IOLBF, 0);
  if ((result = mrsplice_new(&set, 0)) < 0)
    fail("no set", mrsplice_strerror(result));
  struct pollfd waited[] = {{.fd = listen_at(atoi(arguments[1])), .events = POLLIN},
                            {.fd = mrsplice_fd(set), .events = POLLIN}};
  while (!over && (ppoll(waited, 2, NULL, &waiting) >= 0 || errno == EINTR)) {
    if (waited[0].revents)
      begin(set, waited[0].fd, host);
    if ((result = mrsplice_turn(set, 0)) < 0)
      fail("cannot go on", mrsplice_strerror(result));
    while (mrsplice_next(set, &notice) == 1)
      unsplice(set, notice.data);
  }
  while (ring.after != &ring)
    unsplice(set, ring.after);
  mrsplice_free(set);
  freeaddrinfo(host);
  return 0;
}
