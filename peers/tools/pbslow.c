// pbslow: stalled clients for 127.0.0.1, in one thread.
//  -p PORT  -l LORIS  -s STALLED  [-u PATH]  [-r RATE]  [-a AGAIN]
// LORIS connections send a request header section, one byte a second and never the last one.
// STALLED connections request PATH (default /n/1m) with the smallest receive buffer and read
// nothing. A connection that the server closes is made again AGAIN (default 1) seconds later. Both
// kinds are mixed, RATE (default 2000) a second. Prints "connected" to stderr when all have
// connected once, and at SIGTERM one JSON line to stdout: connections made, those that the server
// ended, and those that are open.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long u64;
struct slow {
  int fd;
  u64 due; // time of the next connection or the next byte; 0: never
};

#define SECOND 1000000000ull
#define EVENTS 512

static const char loris_head[] = "GET /n/1k HTTP/1.1\r\nHost: bench.test\r\nX-Slow: ";
static char stalled_head[600];
static struct sockaddr_in address;
static struct slow *all;
static int loris, stalled, epoll_fd;
static u64 made, ended, again = SECOND;
static volatile sig_atomic_t over;

static u64 now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * SECOND + t.tv_nsec;
}
static void stop(int signal) {
  (void)signal;
  over = 1;
}

static void retry_later(struct slow *c) {
  close(c->fd);
  c->fd = -1;
  c->due = now() + again;
}
static void dial(int i) {
  struct slow *c = &all[i];
  int least = 4096;
  c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (c->fd < 0) {
    perror("socket");
    exit(1);
  }
  if (i >= loris) setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &least, sizeof least);
  if (connect(c->fd, (void *)&address, sizeof address) && errno != EINPROGRESS) {
    retry_later(c);
    return;
  }
  struct epoll_event e = {.events = EPOLLOUT, .data.u32 = i};
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &e);
  c->due = 0;
}
static void connected(int i) {
  struct slow *c = &all[i];
  struct epoll_event e = {.events = EPOLLRDHUP, .data.u32 = i};
  epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
  const char *head = i < loris ? loris_head : stalled_head;
  if (send(c->fd, head, strlen(head), MSG_NOSIGNAL) < 0) {
    retry_later(c);
    return;
  }
  made++;
  c->due = i < loris ? now() + SECOND : 0;
}
static void look(int i, unsigned events) {
  struct slow *c = &all[i];
  if (c->fd < 0) return;
  if (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
    ended++;
    retry_later(c);
  } else connected(i);
}
static void tick(int i, u64 t) {
  struct slow *c = &all[i];
  if (!c->due || c->due > t) return;
  if (c->fd < 0) dial(i);
  else {
    c->due = t + SECOND;
    if (send(c->fd, "y", 1, MSG_NOSIGNAL) < 0 && errno != EAGAIN) retry_later(c);
  }
}

int main(int argc, char **argv) {
  int o, port = 0, rate = 2000;
  const char *path = "/n/1m";
  while ((o = getopt(argc, argv, "p:l:s:u:r:a:")) != -1) switch (o) {
    case 'p': port = atoi(optarg); break;
    case 'l': loris = atoi(optarg); break;
    case 's': stalled = atoi(optarg); break;
    case 'u': path = optarg; break;
    case 'r': rate = atoi(optarg); break;
    case 'a': again = atoi(optarg) * SECOND; break;
    default: return 2;
  }
  int count = loris + stalled;
  if (count < 1 || rate < 1 || strlen(path) > 512) return 2;
  snprintf(stalled_head, sizeof stalled_head, "GET %s HTTP/1.1\r\nHost: bench.test\r\n\r\n", path);
  struct rlimit limit = {1 << 17, 1 << 17};
  setrlimit(RLIMIT_NOFILE, &limit);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGTERM, stop);
  address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port),
    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  epoll_fd = epoll_create1(0);
  all = calloc(count, sizeof *all);
  u64 begin = now();
  for (int i = 0; i < count; i++) {
    // Both kinds are spread evenly over the time of all connections.
    u64 nth = i < loris ? (u64)i * count / loris : (u64)(i - loris) * count / stalled;
    all[i] = (struct slow){.fd = -1, .due = begin + nth * SECOND / rate};
  }
  bool reported = false;
  while (!over) {
    struct epoll_event events[EVENTS];
    int n = epoll_wait(epoll_fd, events, EVENTS, 5);
    for (int k = 0; k < n; k++) look(events[k].data.u32, events[k].events);
    u64 t = now();
    for (int i = 0; i < count; i++) tick(i, t);
    if (!reported && made >= (u64)count) {
      reported = true;
      fprintf(stderr, "connected\n");
    }
  }
  int open = 0;
  for (int i = 0; i < count; i++) open += all[i].fd >= 0;
  printf("{\"made\":%llu,\"ended\":%llu,\"open\":%d}\n", made, ended, open);
  return 0;
}
