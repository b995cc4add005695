// pbfcgifloor: a single-threaded epoll HTTP server before a FastCGI program that only moves bytes,
// as the least cost of such a server.
//
//   pbfcgifloor PORT SOCKET
//
// It passes on the request target and nothing else, over persistent connections to the Unix socket
// SOCKET. The header section of the program becomes that of the response as it is, so it must have
// a Content-Length. The contents of all records of one recv go to the client by one sendmsg.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>
#define MAXFD 131072
#define BUFFER (256 << 10)
#define PARTS 512
enum { END_REQUEST = 3, STDOUT = 6 };

// A connection of a client or to the program; `peer` is the other side or -1. Of a client, `have`
// bytes of a request are in `in`, and `pend` has the bytes that its socket could not take. Of the
// program, the first `have` bytes of a record's header are in `in`; `content` and `padding` bytes
// of the record are to come.
struct side {
  int peer, have, content, padding, type;
  char is_client, began, *pend;
  size_t offset, length;
  char in[4096];
};
static struct side *S[MAXFD];
static int ep, idle[MAXFD], nidle;
static char buffer[BUFFER];
static struct sockaddr_un program = {.sun_family = AF_UNIX};

static struct side *add(int fd, char is_client) {
  struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
  struct side *s = S[fd] = malloc(sizeof *s);
  memset(s, 0, offsetof(struct side, in));
  s->peer = -1;
  s->is_client = is_client;
  epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
  return s;
}
static void drop(int fd) {
  int peer = S[fd]->peer;
  for (int i = 0; i < nidle; i++)
    if (idle[i] == fd) idle[i--] = idle[--nidle];
  free(S[fd]->pend);
  free(S[fd]);
  S[fd] = 0;
  close(fd);
  if (peer >= 0 && S[peer]) {
    S[peer]->peer = -1;
    drop(peer);
  }
}
static void set_events(int fd, unsigned events) {
  struct epoll_event e = {.events = events, .data.fd = fd};
  epoll_ctl(ep, EPOLL_CTL_MOD, fd, &e);
}
// Returns an idle connection to the program, or a new one.
static int take_program(void) {
  if (nidle) return idle[--nidle];
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0 || connect(fd, (void *)&program, sizeof program)) {
    perror("program");
    exit(1);
  }
  fcntl(fd, F_SETFL, O_NONBLOCK);
  add(fd, 0);
  return fd;
}
static char *put_record(char *p, int type, int length) {
  memcpy(p, (char[]){1, type, 0, 1, length >> 8, length, 0, 0}, 8);
  return p + 8;
}
static char *put_pair(char *p, const char *name, const char *value, int length) {
  *p++ = strlen(name);
  *p++ = length;
  p = stpcpy(p, name);
  memcpy(p, value, length);
  return p + length;
}
// Passes on the request that a client has sent. False: it is not one.
static int request(int fd) {
  struct side *c = S[fd];
  char out[1024], *target = memchr(c->in, ' ', c->have);
  if (!target) return 0;
  target++;
  char *end = memchr(target, ' ', c->in + c->have - target);
  if (!end || end - target > 127) return 0;
  char *p = put_record(out, 1, 8);
  memcpy(p, "\0\1\1\0\0\0\0\0", 8); // a responder that keeps the connection
  char *params = p + 8;
  p = put_pair(params + 8, "REQUEST_METHOD", "GET", 3);
  p = put_pair(p, "REQUEST_URI", target, end - target);
  put_record(params, 4, p - params - 8);
  p = put_record(put_record(p, 4, 0), 5, 0);
  int to = take_program();
  c->have = 0;
  c->peer = to;
  S[to]->peer = fd;
  S[to]->began = 0;
  return send(to, out, p - out, MSG_NOSIGNAL) == p - out;
}
static int client_readable(int fd) {
  struct side *c = S[fd];
  ssize_t n = recv(fd, c->in + c->have, sizeof c->in - c->have, 0);
  if (n < 0 && errno == EAGAIN) return 1;
  if (n <= 0) return 0;
  c->have += n;
  return c->have < 4 || memcmp(c->in + c->have - 4, "\r\n\r\n", 4) || request(fd);
}
// Sends parts to a client. If its socket takes only some, keeps the rest and stops reading from
// the program until it is sent.
static int send_parts(int fd, struct iovec *parts, int count) {
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
  ssize_t n = count ? sendmsg(fd, &message, MSG_NOSIGNAL) : 0;
  if (n < 0 && errno != EAGAIN) return 0;
  if (n < 0) n = 0;
  struct side *c = S[fd];
  for (int i = 0; i < count; i++) {
    size_t sent = (size_t)n < parts[i].iov_len ? (size_t)n : parts[i].iov_len;
    size_t rest = parts[i].iov_len - sent;
    n -= sent;
    if (!rest) continue;
    if (!c->pend) c->pend = malloc(2 * BUFFER);
    memcpy(c->pend + c->length, (char *)parts[i].iov_base + sent, rest);
    c->length += rest;
  }
  if (c->length) {
    set_events(fd, EPOLLOUT);
    if (c->peer >= 0) set_events(c->peer, 0);
  }
  return 1;
}
// Takes bytes of the program apart and sends the contents of its records.
static int take(int fd, char *p, char *end) {
  static char first[] = "HTTP/1.1 200 OK\r\n";
  struct side *s = S[fd];
  struct iovec parts[PARTS + 1];
  int count = 0, client = s->peer, is_over = 0;
  if (client < 0) return 0;
  while (p < end && count < PARTS) {
    if (!s->content && !s->padding) {
      while (s->have < 8 && p < end) s->in[s->have++] = *p++;
      if (s->have < 8) break;
      unsigned char *h = (unsigned char *)s->in;
      s->type = h[1];
      s->content = h[4] << 8 | h[5];
      s->padding = h[6];
      s->have = 0;
    }
    int n = s->content < end - p ? s->content : end - p;
    if (n && s->type == STDOUT) {
      if (!s->began) parts[count++] = (struct iovec){first, sizeof first - 1};
      s->began = 1;
      parts[count++] = (struct iovec){p, n};
    }
    s->content -= n;
    p += n;
    if (s->content) break;
    n = s->padding < end - p ? s->padding : end - p;
    s->padding -= n;
    p += n;
    if (s->type == END_REQUEST && !s->padding) is_over = 1;
  }
  if (p < end) return 0; // more records than a program with buffers sends
  if (!send_parts(client, parts, count)) return 0;
  if (is_over) {
    if (S[client]->peer == fd) S[client]->peer = -1;
    if (S[client]->length) set_events(fd, EPOLLIN);
    s->peer = -1;
    idle[nidle++] = fd;
  }
  return 1;
}
static int program_readable(int fd) {
  ssize_t n = recv(fd, buffer, sizeof buffer, 0);
  if (n < 0 && errno == EAGAIN) return 1;
  return n > 0 && take(fd, buffer, buffer + n);
}
static int writable(int fd) {
  struct side *c = S[fd];
  ssize_t n = send(fd, c->pend + c->offset, c->length - c->offset, MSG_NOSIGNAL);
  if (n < 0) return errno == EAGAIN;
  if ((c->offset += n) < c->length) return 1;
  c->offset = c->length = 0;
  set_events(fd, EPOLLIN);
  if (c->peer >= 0) set_events(c->peer, EPOLLIN);
  return 1;
}
static void accept_all(int listener) {
  int fd;
  while ((fd = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
    if (fd < MAXFD) add(fd, 1);
    else close(fd);
  }
}
int main(int argc, char **argv) {
  if (argc != 3 || strlen(argv[2]) >= sizeof program.sun_path) return 2;
  strcpy(program.sun_path, argv[2]);
  signal(SIGPIPE, SIG_IGN);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])),
    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); // accepted sockets inherit it
  if (bind(listener, (void *)&a, sizeof a) || listen(listener, 4096)) {
    perror("bind");
    return 1;
  }
  ep = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, ev[512];
  epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e);
  for (;;) {
    int n = epoll_wait(ep, ev, 512, -1);
    for (int i = 0; i < n; i++) {
      int fd = ev[i].data.fd, good;
      if (fd == listener) {
        accept_all(listener);
        continue;
      }
      if (!S[fd]) continue; // a stale event
      if (ev[i].events & EPOLLOUT) good = writable(fd);
      else good = S[fd]->is_client ? client_readable(fd) : program_readable(fd);
      if (!good) drop(fd);
    }
  }
}
