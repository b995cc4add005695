// relay: moves bytes both ways between pairs of TCP connections, in one thread. Part of
// scripts/in-kernel-trial, which describes the trial.
//
//   relay copy|splice|kernel PORT TARGET TARGET_PORT LIMITED [SOCKETS COOKIES FLOWS PASSES MARK]
//
// Each connection to PORT is joined with a new one to TARGET:TARGET_PORT. If LIMITED is 1, a
// connection begins with the limit, a little-endian number of 8 bytes. The payload up to the limit
// is relayed unchanged. The bytes after it are relayed with all bits inverted, which shows where
// the limit was. copy is recv(2) and send(2); splice is splice(2) through a pipe, without limits.
// With `kernel` the verdict forwards.
// SOCKETS, COOKIES, FLOWS and PASSES are descriptors of its maps. MARK is the backlog in bytes from
// which the verdict passes bytes to this program instead. Prints "listening" on stdout, and at
// SIGTERM one JSON line with its counts.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "maps.h"

#define BUFFER (256 << 10)
// After this number of rounds a flow waits for the others.
#define ROUNDS 8
#define EVENTS 256
// tcpi_state, as net/tcp_states.h of the kernel has it.
enum { SYN_SENT = 2, CLOSED = 7 };

struct side {
  struct pair *pair;
  struct side *other;
  struct flow *flow; // of the bytes that this socket receives
  int fd, pipe[2];
  size_t in_pipe;
  u64 before; // bytes received that are no part of the flow
  u64 read;   // bytes of `flow->passed` that were read
  u64 queued; // what the other socket had queued before the flow's first byte
  unsigned char *held; // what was read and not written yet: [at, end)
  size_t at, end;
  bool is_joined, is_shut;
};
struct pair {
  struct side sides[2];
  enum { FREE, CONNECTING, LIMIT_COMES, MOVING } state;
  bool is_due; // looked at again without an event
};

static struct pair pairs[PAIRS];
static enum { COPY, SPLICE, KERNEL } kind;
static int listener, epoll_fd, due_count;
static bool is_limited;
static u64 mark;
// Counts for the line at the end; sums over the flows of pairs that are closed.
static u64 served, aborted, refused, unjoined, waits, seen_twice, queued_twice;
static u64 forwarded, passed, passes, cuts;
static const char a_pass; // its address marks epoll events of the ring of passes
static struct sockaddr_in target;
static volatile sig_atomic_t over;
static unsigned char scratch[BUFFER];

static void stop(int signal) {
  (void)signal;
  over = 1;
}
static u32 index_of(struct side *s) { return 2 * (s->pair - pairs) + (s - s->pair->sides); }

static struct tcp_info info_of(int fd) {
  struct tcp_info info;
  socklen_t length = sizeof info;
  memset(&info, 0, sizeof info);
  getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length);
  return info;
}
// Returns the number of bytes that were ever queued in a socket: acknowledged and outstanding ones,
// read at one moment.
static u64 queued_of(int fd) {
  for (;;) {
    u64 acked = info_of(fd).tcpi_bytes_acked;
    int out = 0;
    ioctl(fd, SIOCOUTQ, &out);
    if (info_of(fd).tcpi_bytes_acked == acked) return acked + out;
  }
}
static void look_again(struct pair *p) {
  due_count += !p->is_due;
  p->is_due = true;
}

// Counts errors: the verdict saw more bytes than the socket received, or the other socket queued
// more bytes than were forwarded and written.
static void look_for_repeats(struct side *s) {
  u64 seen = s->before + load(&s->flow->forwarded) + load(&s->flow->passed);
  seen_twice += seen > info_of(s->fd).tcpi_bytes_received;
  u64 queued = queued_of(s->other->fd) - s->queued;
  queued_twice += queued > load(&s->flow->forwarded) + s->flow->written;
}
static void close_pair(struct pair *p, bool is_abort) {
  for (int i = 0; i < 2; i++)
    if (p->sides[i].is_joined && !p->sides[i].is_shut) look_for_repeats(&p->sides[i]);
  for (int i = 0; i < 2; i++) {
    struct side *s = &p->sides[i];
    struct linger now = {1, 0};
    forwarded += load(&s->flow->forwarded);
    passed += load(&s->flow->passed);
    passes += load(&s->flow->passes);
    cuts += s->flow->cuts;
    if (is_abort) setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    if (kind == KERNEL) leave_maps(s->fd);
    close(s->fd);
    if (s->in_pipe) { // No other flow may get the bytes of a broken one.
      close(s->pipe[0]);
      close(s->pipe[1]);
      s->pipe[1] = 0;
    }
  }
  due_count -= p->is_due;
  p->is_due = false;
  p->state = FREE;
  *(is_abort ? &aborted : &served) += 1;
}

// Inverts the bytes of `held` that are beyond the limit.
static void turn_over(struct side *s, size_t length) {
  u64 position = load(&s->flow->forwarded) + s->read;
  for (size_t i = 0; i < length; i++)
    if (position + i >= s->flow->limit) s->held[i] ^= 0xff;
}
// Returns whether all forwarded and all written bytes are in the other socket's queue.
static bool is_drained(struct side *s) {
  if (!s->is_joined) return true;
  u64 done = load(&s->flow->forwarded) + s->flow->written;
  return queued_of(s->other->fd) - s->queued == done;
}
// Returns whether the verdict has seen all bytes before the source's FIN, which counts as a byte.
static bool is_all_seen(struct side *s) {
  if (!s->is_joined) return true;
  u64 seen = s->before + load(&s->flow->forwarded) + load(&s->flow->passed);
  return info_of(s->fd).tcpi_bytes_received == seen + 1;
}

enum outcome { WAITS, GOES_ON, BROKEN };

// Handles the end of the source. The end is forwarded once all bytes are queued.
static enum outcome end(struct side *s) {
  if (s->is_shut) return WAITS;
  if (!is_all_seen(s) || load(&s->flow->passed) != s->read || !is_drained(s)) {
    waits++;
    look_again(s->pair);
    return WAITS;
  }
  s->is_shut = true;
  return shutdown(s->other->fd, SHUT_WR) ? BROKEN : WAITS;
}
static enum outcome write_held(struct side *s) {
  if (!is_drained(s)) {
    waits++;
    look_again(s->pair);
    return WAITS;
  }
  ssize_t n = send(s->other->fd, s->held + s->at, s->end - s->at, MSG_NOSIGNAL);
  if (n < 0) return errno == EAGAIN ? WAITS : BROKEN;
  s->at += n;
  __atomic_store_n(&s->flow->written, s->flow->written + n, __ATOMIC_RELEASE);
  return GOES_ON;
}
static enum outcome read_more(struct side *s) {
  ssize_t n = recv(s->fd, scratch, sizeof scratch, 0);
  if (n == 0) return end(s);
  if (n < 0 && errno != EAGAIN) return BROKEN;
  if (n < 0) {
    // The verdict counts the bytes a moment before the socket has them.
    if (s->is_joined && load(&s->flow->passed) != s->read) look_again(s->pair);
    return WAITS;
  }
  if (!s->is_joined) s->flow->passed += n;
  s->held = realloc(s->held, n);
  if (!s->held) die("realloc");
  memcpy(s->held, scratch, n);
  if (is_limited) turn_over(s, n);
  s->read += n;
  s->at = 0;
  s->end = n;
  return GOES_ON;
}
static enum outcome move_by_copy(struct side *s) {
  return s->at < s->end ? write_held(s) : read_more(s);
}
static enum outcome move_by_pipe(struct side *s) {
  if (!s->in_pipe) {
    ssize_t n = splice(s->fd, NULL, s->pipe[1], NULL, BUFFER, SPLICE_F_NONBLOCK);
    if (n == 0) return end(s);
    if (n < 0) return errno == EAGAIN ? WAITS : BROKEN;
    s->in_pipe = n;
    s->read += n;
    s->flow->passed += n;
  }
  ssize_t n = splice(s->pipe[0], NULL, s->other->fd, NULL, s->in_pipe, SPLICE_F_NONBLOCK);
  if (n < 0) return errno == EAGAIN ? WAITS : BROKEN;
  s->in_pipe -= n;
  s->flow->written += n;
  return GOES_ON;
}
static void move_pair(struct pair *p) {
  for (int i = 0; i < 2; i++) {
    struct side *s = &p->sides[i];
    enum outcome outcome = GOES_ON;
    for (int round = 0; round < ROUNDS && outcome == GOES_ON; round++)
      outcome = kind == SPLICE ? move_by_pipe(s) : move_by_copy(s);
    if (outcome == GOES_ON) look_again(p);
    if (outcome == BROKEN) {
      close_pair(p, true);
      return;
    }
  }
  if (p->sides[0].is_shut && p->sides[1].is_shut) close_pair(p, false);
}

// If the kernel does not accept a socket, its flow is copied, and so is the flow in the other
// direction, which then has no target.
static bool join(struct side *s) {
  s->is_joined = join_maps(s->fd, index_of(s));
  unjoined += !s->is_joined;
  return s->is_joined;
}
// The verdict does not see bytes that were queued before the socket was joined until more arrive.
// Setting the low-water mark makes the kernel check the queue. A packet of which a part was read
// would be forwarded whole, so join() follows a recv(2) that found nothing.
static void wake_verdict(struct side *s) {
  int one = 1;
  setsockopt(s->fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
}
static void watch(struct side *s, int change, u32 events) {
  struct epoll_event e = {.events = events | EPOLLRDHUP | EPOLLOUT | EPOLLET, .data.ptr = s};
  if (epoll_ctl(epoll_fd, change, s->fd, &e)) die("epoll_ctl");
}
// Reads all bytes that have arrived already, and counts them as passed.
static bool drain(struct side *s) {
  for (;;) {
    ssize_t n = recv(s->fd, scratch, sizeof scratch, 0);
    if (n < 0) return errno == EAGAIN;
    if (n == 0) return true;
    s->held = realloc(s->held, s->end + n);
    if (!s->held) die("realloc");
    memcpy(s->held + s->end, scratch, n);
    s->end += n;
    s->read += n;
    s->flow->passed += n;
  }
}
static void begin(struct pair *p) {
  p->state = MOVING;
  for (int i = 0; i < 2 && kind == KERNEL; i++) {
    struct side *s = &p->sides[i];
    s->queued = queued_of(s->other->fd);
    if (!drain(s)) {
      close_pair(p, true);
      return;
    }
    for (size_t at = 0; at < s->end && is_limited; at++)
      if (at >= s->flow->limit) s->held[at] ^= 0xff;
  }
  if (kind == KERNEL && join(&p->sides[0]) && join(&p->sides[1]))
    // The ring reports received bytes, the sockets report the end.
    for (int i = 0; i < 2; i++) watch(&p->sides[i], EPOLL_CTL_MOD, 0);
  for (int i = 0; i < 2; i++)
    if (p->sides[i].is_joined) wake_verdict(&p->sides[i]);
  move_pair(p);
}
static void read_limit(struct pair *p) {
  struct side *s = &p->sides[0];
  u64 limit;
  ssize_t n = recv(s->fd, &limit, sizeof limit, MSG_PEEK);
  if (n == 0 || (n < 0 && errno != EAGAIN)) {
    close_pair(p, true);
    return;
  }
  if (n < (ssize_t)sizeof limit) return;
  recv(s->fd, &limit, sizeof limit, 0);
  s->before = sizeof limit;
  s->flow->limit = limit;
  begin(p);
}
// A closed socket was reset if this program had not shut down its sending side, or if no FIN
// arrived. The kernel reports a reset once, possibly to its own thread.
static bool is_reset(struct pair *p) {
  for (int i = 0; i < 2; i++) {
    struct side *s = &p->sides[i];
    bool is_closed = info_of(s->fd).tcpi_state == CLOSED;
    if (is_closed && (!s->other->is_shut || !is_all_seen(s))) return true;
  }
  return false;
}
static void look_at(struct pair *p, bool is_doubtful) {
  struct side *to = &p->sides[1];
  if (p->state == CONNECTING) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(to->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error) close_pair(p, true);
    if (error || info_of(to->fd).tcpi_state == SYN_SENT) return;
    p->state = LIMIT_COMES;
    if (!is_limited) begin(p);
  }
  if (p->state == LIMIT_COMES) read_limit(p);
  if (p->state == MOVING && is_doubtful && is_reset(p)) close_pair(p, true);
  if (p->state == MOVING) move_pair(p);
}

static void make_side(struct pair *p, int which, int fd) {
  struct side *s = &p->sides[which];
  int pipe_fds[2] = {s->pipe[0], s->pipe[1]};
  unsigned char *held = s->held;
  memset(s, 0, sizeof *s);
  *s = (struct side){.pair = p, .other = &p->sides[!which], .fd = fd, .held = held};
  s->flow = &flows[index_of(s)];
  memset(s->flow, 0, sizeof *s->flow);
  s->flow->limit = which == 0 && is_limited ? 0 : ~0ull;
  s->flow->mark = mark;
  memcpy(s->pipe, pipe_fds, sizeof pipe_fds);
  if (kind == SPLICE && s->pipe[1] == 0) {
    if (pipe2(s->pipe, O_NONBLOCK)) die("pipe2");
    fcntl(s->pipe[0], F_SETPIPE_SZ, BUFFER);
  }
  watch(s, EPOLL_CTL_ADD, EPOLLIN);
}
static void take_in(void) {
  for (;;) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0) return;
    struct pair *p = pairs;
    while (p < pairs + PAIRS && p->state != FREE) p++;
    int to = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    bool is_full = p == pairs + PAIRS || to < 0;
    if (is_full || (connect(to, (void *)&target, sizeof target) && errno != EINPROGRESS)) {
      refused++;
      close(fd);
      if (to >= 0) close(to);
      continue;
    }
    make_side(p, 0, fd);
    make_side(p, 1, to);
    p->state = CONNECTING;
  }
}
// Bytes were passed to this program. All pairs are checked, as the ring may have been full.
static void read_passes(void) {
  __atomic_store_n(passes_read, load(passes_filled), __ATOMIC_RELEASE);
  for (struct pair *p = pairs; p < pairs + PAIRS; p++)
    for (int i = 0; i < 2 && p->state == MOVING; i++)
      if (load(&p->sides[i].flow->passed) != p->sides[i].read) look_at(p, false);
}
static void serve(void) {
  struct epoll_event events[EVENTS];
  while (!over) {
    // No event reports an empty backlog, so it is polled each millisecond.
    int count = epoll_wait(epoll_fd, events, EVENTS, due_count ? 1 : -1);
    for (int i = 0; i < count; i++) {
      void *whose = events[i].data.ptr;
      if (!whose) take_in();
      else if (whose == &a_pass) read_passes();
      else look_at(((struct side *)whose)->pair, events[i].events & (EPOLLERR | EPOLLHUP));
    }
    for (struct pair *p = pairs; due_count && p < pairs + PAIRS; p++) {
      if (!p->is_due) continue;
      p->is_due = false;
      due_count--;
      look_at(p, true);
    }
  }
}

static void tell_open(struct side *s) {
  struct tcp_info info = info_of(s->fd);
  fprintf(stderr, "open: forwarded %llu passed %llu read %llu written %llu held %zu queued %llu ",
          load(&s->flow->forwarded), load(&s->flow->passed), s->read, s->flow->written,
          s->end - s->at, queued_of(s->other->fd) - s->queued);
  fprintf(stderr, "received %llu of them %llu before, state %d joined %d shut %d\n",
          (u64)info.tcpi_bytes_received, s->before, info.tcpi_state, s->is_joined, s->is_shut);
}
static void listen_at(int port) {
  struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
  int one = 1;
  listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, (void *)&any, sizeof any) || listen(listener, 1024)) die("listen");
  epoll_fd = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL};
  if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &e)) die("epoll_ctl");
}
int main(int count, char **words) {
  if (count != 6 && count != 11) {
    fprintf(stderr, "relay: see the comment at its top\n");
    return 2;
  }
  kind = words[1][0] == 'k' ? KERNEL : words[1][0] == 's' ? SPLICE : COPY;
  target = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(words[4]))};
  if (inet_pton(AF_INET, words[3], &target.sin_addr) != 1) die("TARGET");
  is_limited = atoi(words[5]);
  signal(SIGTERM, stop);
  listen_at(atoi(words[2]));
  if (kind == KERNEL) {
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = (void *)&a_pass};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, take_maps(words + 6), &e)) die("epoll_ctl");
    mark = strtoull(words[10], NULL, 10);
  }
  puts("listening");
  fflush(stdout);
  serve();
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  u64 user = used.ru_utime.tv_sec * 1000000ull + used.ru_utime.tv_usec;
  u64 system = used.ru_stime.tv_sec * 1000000ull + used.ru_stime.tv_usec;
  u64 open = 0;
  for (struct pair *p = pairs; p < pairs + PAIRS; p++) {
    if (p->state == FREE) continue;
    open++;
    for (int i = 0; i < 2; i++) tell_open(&p->sides[i]);
  }
  printf("{\"open\":%llu,\"served\":%llu,\"aborted\":%llu,\"refused\":%llu,", open, served, aborted,
         refused);
  printf("\"unjoined\":%llu,\"cuts\":%llu,", unjoined, cuts);
  printf("\"seen twice\":%llu,\"queued twice\":%llu,", seen_twice, queued_twice);
  printf("\"forwarded\":%llu,\"passed\":%llu,\"passes\":%llu,\"waits\":%llu,\"cpu_us\":%llu}\n",
         forwarded, passed, passes, waits, user + system);
  return 0;
}
