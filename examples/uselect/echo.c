// echo: an echo server that waits with one of the functions of libuselect.
//   echo WAIT [BACKEND [SOCKET]]
// WAIT: select, poll, level, edge or oneshot (epoll), or counted (epoll with counts of events).
// BACKEND: auto, bpf, multishot, calls, or lean (bpf in lean mode). SOCKET: the socket of uselectd.
// It listens on a free port of 127.0.0.1 and prints it. SIGINT and SIGTERM end it; it then prints
// how its waits were served.
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

// A client. The bytes from `sent` to `filled` are still to be sent back.
struct client {
  size_t sent, filled;
  short events; // the event that the server waits for
  char bytes[16384];
};

// A method of waiting. `events` are bits of poll(2), which are those of epoll too.
struct method {
  const char *name;
  void (*init)(void);
  void (*set)(int fd, short events, short before); // before is 0: a new descriptor
  void (*remove)(int fd);
  int (*wait)(const sigset_t *mask); // handles the ready descriptors; -1: errno
};

static struct client *clients[DESCRIPTORS];
static const struct method *method;
static int listener, instance;
static volatile sig_atomic_t is_over;

static void end(int signal) {
  (void)signal;
  is_over = 1;
}

static void close_client(int fd) {
  method->remove(fd);
  free(clients[fd]);
  clients[fd] = NULL;
  uselect_close(fd);
}

// Receives and sends until the socket has neither bytes to read nor send space.
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
      method->set(fd, client->events, before);
      return;
    }
    if (moved <= 0) {
      close_client(fd);
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
  int accepted;
  while ((accepted = uselect_accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
    if (accepted >= DESCRIPTORS || !(clients[accepted] = calloc(1, sizeof(struct client)))) {
      uselect_close(accepted);
      continue;
    }
    clients[accepted]->events = POLLIN;
    method->set(accepted, POLLIN, 0);
  }
  if (errno != EAGAIN && errno != ECONNABORTED)
    warn("cannot accept a client");
  method->set(listener, POLLIN, POLLIN);
}

// poll: an unsorted array of all descriptors, and the index of each descriptor in it.
static struct pollfd fds[DESCRIPTORS];
static nfds_t fds_count;
static int index_of[DESCRIPTORS];

static void poll_init(void) {}

static void poll_set(int fd, short events, short before) {
  if (!before)
    index_of[fd] = (int)fds_count++;
  fds[index_of[fd]] = (struct pollfd){.fd = fd, .events = events};
}

static void poll_remove(int fd) {
  fds[index_of[fd]] = fds[--fds_count];
  index_of[fds[index_of[fd]].fd] = index_of[fd];
}

static int poll_wait(const sigset_t *mask) {
  int ready = uppoll(fds, fds_count, NULL, mask);
  // Backwards: poll_remove replaces an entry with the last one, which has been handled already.
  for (nfds_t at = ready > 0 ? fds_count : 0; at-- > 0;)
    if (at < fds_count && fds[at].revents)
      handle(fds[at].fd);
  return ready;
}

// select: sets for reading and writing with a bit for each descriptor; an fd_set has only 1024.
static unsigned long wanted[2][DESCRIPTORS / BITS], found[2][DESCRIPTORS / BITS];
static int nfds;

static void select_set(int fd, short events, short before) {
  (void)before;
  for (int set = 0; set < 2; set++) {
    unsigned long bit = 1ul << fd % BITS;
    int is_wanted = events & (set ? POLLOUT : POLLIN);
    wanted[set][fd / BITS] = (wanted[set][fd / BITS] & ~bit) | (is_wanted ? bit : 0);
  }
  nfds = fd >= nfds ? fd + 1 : nfds;
}

static void select_remove(int fd) {
  select_set(fd, 0, POLLIN);
}

static int select_wait(const sigset_t *mask) {
  memcpy(found, wanted, sizeof found);
  int ready = upselect(nfds, (fd_set *)found[0], (fd_set *)found[1], NULL, NULL, mask);
  for (size_t at = 0; ready > 0 && at < DESCRIPTORS / BITS; at++)
    for (unsigned long bits = found[0][at] | found[1][at]; bits; bits &= bits - 1)
      handle((int)(at * BITS) + __builtin_ctzl(bits));
  return ready;
}

// epoll: level-triggered, edge-triggered and one-shot.
static void epoll_init(void) {
  if ((instance = uepoll_create(EPOLL_CLOEXEC)) < 0)
    err(1, "cannot create an epoll instance");
}

static void control(int op, int fd, uint32_t events) {
  struct epoll_event event = {.events = events, .data.fd = fd};
  if (uepoll_ctl(instance, op, fd, &event))
    err(1, "cannot wait for descriptor %d", fd);
}

static void level_set(int fd, short events, short before) {
  if (events != before)
    control(before ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, (uint32_t)events);
}

static void oneshot_set(int fd, short events, short before) {
  control(before ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, (uint32_t)events | EPOLLONESHOT);
}

// Registers a descriptor once for all events: serve() continues until nothing is ready.
static void edge_set(int fd, short events, short before) {
  (void)events;
  if (!before)
    control(EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLET);
}

// uselect_close removes a descriptor from the instance.
static void epoll_remove(int fd) {
  (void)fd;
}

static int epoll_wait_events(const sigset_t *mask) {
  struct epoll_event events[EVENTS];
  int ready = uepoll_pwait(instance, events, EVENTS, -1, mask);
  for (int at = 0; at < ready; at++)
    handle(events[at].data.fd);
  return ready;
}

static int counted_wait(const sigset_t *mask) {
  struct uepoll_counted_event events[EVENTS];
  int ready = uepoll_pwait_counted(instance, events, EVENTS, NULL, mask);
  for (int at = 0; at < ready; at++)
    handle(events[at].data.fd);
  return ready;
}

static const struct method methods[] = {
    {"select", poll_init, select_set, select_remove, select_wait},
    {"poll", poll_init, poll_set, poll_remove, poll_wait},
    {"level", epoll_init, level_set, epoll_remove, epoll_wait_events},
    {"edge", epoll_init, edge_set, epoll_remove, epoll_wait_events},
    {"oneshot", epoll_init, oneshot_set, epoll_remove, epoll_wait_events},
    {"counted", epoll_init, edge_set, epoll_remove, counted_wait},
};
static const char *const backends[] = {"auto", "bpf", "multishot", "calls", "lean"};
#define LEAN 4

static void open_listener(void) {
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
  for (size_t at = 0; count > 1 && at < sizeof methods / sizeof *methods; at++)
    if (!strcmp(arguments[1], methods[at].name))
      method = &methods[at];
  while (count > 2 && options.backend <= LEAN && strcmp(arguments[2], backends[options.backend]))
    options.backend++;
  if (!method || options.backend > LEAN || count > 4)
    errx(2, "usage: echo select|poll|level|edge|oneshot|counted "
            "[auto|bpf|multishot|calls|lean [SOCKET]]");
  if (options.backend == LEAN) {
    options.backend = USELECT_BACKEND_BPF;
    options.mode = USELECT_MODE_LEAN;
  }
  // Signals are handled only during waits, so none can arrive between the check of is_over and a
  // wait.
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
    err(1, "cannot track sockets: %s", uselect_backend_reason());
  printf("backend: %s\n", uselect_backend_reason());
  open_listener();
  method->init();
  method->set(listener, POLLIN, 0);
  while (!is_over)
    if (method->wait(&none) < 0 && errno != EINTR)
      err(1, "cannot wait");
  struct uselect_stats stats;
  if (uselect_stats(&stats))
    err(1, "cannot read the counters");
  printf("%llu waits, %llu of them without a system call\n", (unsigned long long)stats.waits,
         (unsigned long long)stats.without_syscall);
}
