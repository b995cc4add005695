// echo: sends back what comes, and waits by each of the calls that libuselect has.
//   echo WAY [BACKEND [SOCKET]]
// WAY: select, poll, level, edge, once (those of epoll) or changes. BACKEND: auto, bpf, multishot,
// calls, or lean, which is bpf in that mode; SOCKET is uselectd's. Listens at a free port of
// 127.0.0.1, which is printed. SIGINT and SIGTERM end it, and it says what its waits have cost.
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uselect.h>

#define DESCRIPTORS 65536
#define BITS (8 * sizeof(long))
#define EVENTS 64

// A client, whose bytes from `sent` to `filled` are still to be sent back.
struct client {
  size_t sent, filled;
  short events; // what is waited for
  char bytes[16384];
};

// A way to wait. `events` are those of poll(2), which are epoll's too.
struct way {
  const char *name;
  void (*begin)(void);
  void (*ask)(int fd, short events, short before); // 0: it is new
  void (*drop)(int fd);
  int (*wait)(const sigset_t *mask); // handles what is ready; -1: errno
};

static struct client *clients[DESCRIPTORS];
static const struct way *way;
static int listener, instance;
static volatile sig_atomic_t is_over;

static void end(int signal) {
  (void)signal;
  is_over = 1;
}

static void leave(int fd) {
  way->drop(fd);
  free(clients[fd]);
  clients[fd] = NULL;
  uselect_close(fd);
}

// Moves what can be moved, until the socket has neither bytes nor room.
static void serve(int fd) {
  struct client *client = clients[fd];
  for (;;) {
    int has_bytes = client->sent < client->filled;
    ssize_t moved = has_bytes
        ? uselect_send(fd, client->bytes + client->sent, client->filled - client->sent, MSG_NOSIGNAL)
        : uselect_recv(fd, client->bytes, sizeof client->bytes, 0);
    if (moved < 0 && errno == EAGAIN) {
      short before = client->events;
      client->events = has_bytes ? POLLOUT : POLLIN;
      way->ask(fd, client->events, before);
      return;
    }
    if (moved <= 0) {
      leave(fd);
      return;
    }
    client->sent = has_bytes ? client->sent + (size_t)moved : 0;
    client->filled = has_bytes ? client->filled : (size_t)moved;
  }
}

static void handle(int fd) {
  if (fd != listener) {
    if (clients[fd])
      serve(fd);
    return;
  }
  int taken;
  while ((taken = uselect_accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
    if (taken >= DESCRIPTORS || !(clients[taken] = calloc(1, sizeof(struct client)))) {
      uselect_close(taken);
      continue;
    }
    clients[taken]->events = POLLIN;
    way->ask(taken, POLLIN, 0);
  }
  if (errno != EAGAIN && errno != ECONNABORTED)
    warn("cannot take a client");
  way->ask(listener, POLLIN, POLLIN);
}

// poll: an array of all descriptors, sorted by nothing, and where each is in it.
static struct pollfd fds[DESCRIPTORS];
static nfds_t fds_count;
static int place[DESCRIPTORS];

static void poll_begin(void) {}

static void poll_ask(int fd, short events, short before) {
  if (!before)
    place[fd] = (int)fds_count++;
  fds[place[fd]] = (struct pollfd){.fd = fd, .events = events};
}

static void poll_drop(int fd) {
  fds[place[fd]] = fds[--fds_count];
  place[fds[place[fd]].fd] = place[fd];
}

static int poll_wait(const sigset_t *mask) {
  int ready = uppoll(fds, fds_count, NULL, mask);
  // Backwards: who leaves is replaced by the last one, which has been looked at.
  for (nfds_t at = ready > 0 ? fds_count : 0; at-- > 0;)
    if (at < fds_count && fds[at].revents)
      handle(fds[at].fd);
  return ready;
}

// select: sets of as many bits as are needed; an fd_set has 1024.
static unsigned long asked[2][DESCRIPTORS / BITS], found[2][DESCRIPTORS / BITS];
static int nfds;

static void select_ask(int fd, short events, short before) {
  (void)before;
  for (int set = 0; set < 2; set++) {
    unsigned long bit = 1ul << fd % BITS;
    int is_asked = events & (set ? POLLOUT : POLLIN);
    asked[set][fd / BITS] = (asked[set][fd / BITS] & ~bit) | (is_asked ? bit : 0);
  }
  nfds = fd >= nfds ? fd + 1 : nfds;
}

static void select_drop(int fd) {
  select_ask(fd, 0, POLLIN);
}

static int select_wait(const sigset_t *mask) {
  memcpy(found, asked, sizeof found);
  int ready = upselect(nfds, (fd_set *)found[0], (fd_set *)found[1], NULL, NULL, mask);
  for (size_t at = 0; ready > 0 && at < DESCRIPTORS / BITS; at++)
    for (unsigned long bits = found[0][at] | found[1][at]; bits; bits &= bits - 1)
      handle((int)(at * BITS) + __builtin_ctzl(bits));
  return ready;
}

// epoll: level-triggered, edge-triggered and once; and the changes alone.
static void epoll_begin(void) {
  if ((instance = uepoll_create(EPOLL_CLOEXEC)) < 0)
    err(1, "cannot make an instance");
}

static void control(int op, int fd, uint32_t events) {
  struct epoll_event event = {.events = events, .data.fd = fd};
  if (uepoll_ctl(instance, op, fd, &event))
    err(1, "cannot wait for descriptor %d", fd);
}

static void level_ask(int fd, short events, short before) {
  if (events != before)
    control(before ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, (uint32_t)events);
}

static void once_ask(int fd, short events, short before) {
  control(before ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, (uint32_t)events | EPOLLONESHOT);
}

// Told once, for good: a client is served until it has neither bytes nor room.
static void edge_ask(int fd, short events, short before) {
  (void)events;
  if (!before)
    control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLET);
}

// Closing takes it out of the instance.
static void epoll_drop(int fd) {
  (void)fd;
}

static int epoll_pass(const sigset_t *mask) {
  struct epoll_event events[EVENTS];
  int ready = uepoll_pwait(instance, events, EVENTS, -1, mask);
  for (int at = 0; at < ready; at++)
    handle(events[at].data.fd);
  return ready;
}

static int changes_pass(const sigset_t *mask) {
  struct uselect_change changes[EVENTS];
  int ready = uselect_changes(instance, changes, EVENTS, NULL, mask);
  for (int at = 0; at < ready; at++)
    handle(changes[at].data.fd);
  return ready;
}

static const struct way ways[] = {
    {"select", poll_begin, select_ask, select_drop, select_wait},
    {"poll", poll_begin, poll_ask, poll_drop, poll_wait},
    {"level", epoll_begin, level_ask, epoll_drop, epoll_pass},
    {"edge", epoll_begin, edge_ask, epoll_drop, epoll_pass},
    {"once", epoll_begin, once_ask, epoll_drop, epoll_pass},
    {"changes", epoll_begin, edge_ask, epoll_drop, changes_pass},
};
static const char *const backends[] = {"auto", "bpf", "multishot", "calls", "lean"};
#define LEAN 4

static void listen_at_a_free_port(void) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  struct sockaddr *general = (struct sockaddr *)&address;
  socklen_t size = sizeof address;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  listener = uselect_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener < 0 || bind(listener, general, size) || listen(listener, 512) ||
      getsockname(listener, general, &size))
    err(1, "cannot listen");
  printf("listening at 127.0.0.1:%d\n", ntohs(address.sin_port));
}

int main(int count, char **arguments) {
  struct uselect_options options = {.socket = count > 3 ? arguments[3] : NULL};
  for (size_t at = 0; count > 1 && at < sizeof ways / sizeof *ways; at++)
    if (!strcmp(arguments[1], ways[at].name))
      way = &ways[at];
  while (count > 2 && options.backend <= LEAN && strcmp(arguments[2], backends[options.backend]))
    options.backend++;
  if (!way || options.backend > LEAN || count > 4)
    errx(2, "echo select|poll|level|edge|once|changes [auto|bpf|multishot|calls|lean [SOCKET]]");
  if (options.backend == LEAN) {
    options.backend = USELECT_BACKEND_BPF;
    options.mode = USELECT_MODE_LEAN;
  }
  // Signals are handled during waits alone, so that none is missed.
  sigset_t ends, none;
  sigemptyset(&none);
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  sigprocmask(SIG_BLOCK, &ends, NULL);
  signal(SIGINT, end);
  signal(SIGTERM, end);
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (uselect_init(&options))
    err(1, "cannot track sockets: %s", uselect_why());
  printf("waits are answered by %s\n", uselect_why());
  listen_at_a_free_port();
  way->begin();
  way->ask(listener, POLLIN, 0);
  while (!is_over)
    if (way->wait(&none) < 0 && errno != EINTR)
      err(1, "cannot wait");
  struct uselect_stats stats;
  if (uselect_stats(&stats))
    err(1, "no numbers");
  printf("%llu waits, %llu of them without a system call\n", (unsigned long long)stats.waits,
         (unsigned long long)stats.without_call);
}
