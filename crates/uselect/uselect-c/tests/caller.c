// caller: checks that libuselect behaves as its man pages say, over TCP connections of the loopback
// interface. It prints a line for each case, and exits at the first check that fails.
//   caller BACKEND [SOCKET]
#define _GNU_SOURCE
#include <sys/resource.h>
#include <sys/time.h>

#include "caller.h"

static struct uselect_options options;
static volatile sig_atomic_t signals;

static void count_signal(int signal) {
  (void)signal;
  signals++;
}

static int has_socket_info(void) {
  return options.backend == USELECT_BACKEND_BPF;
}

static int tracks(void) {
  return options.backend != USELECT_BACKEND_CALLS;
}

// Before uselect_init each function is the system call.
static void before(void) {
  struct uselect_stats stats;
  struct uselect_info info;
  CHECK(uselect_backend() == USELECT_BACKEND_CALLS);
  CHECK(strstr(uselect_backend_reason(), "uselect_init"));
  struct ends ends = open_ends();
  CHECK(state_of(ends.ours, POLLIN | POLLOUT) == POLLOUT);
  CHECK(uselect_get_socket_state(ends.ours) == POLLOUT);
  CHECK(uselect_track(ends.ours) == 0);
  uselect_untrack(ends.ours);
  uselect_refresh(ends.ours);
  FAILS(uselect_socket_info(ends.ours, &info), ENOENT);
  FAILS(uselect_set_threshold(ends.ours, 2), ENOENT);
  FAILS(uselect_set_kernel_check_interval(1, 1), ENOENT);
  FAILS(uselect_set_spin(1), ENOENT);
  FAILS(uselect_stats(&stats), ENOENT);
  close_ends(ends);
}

static void init(void) {
  const struct uselect_options wrong[] = {
      {.backend = 4}, {.mode = 2}, {.socket = ""}, {.socket = options.socket, .backend = 99}};
  for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++)
    FAILS(uselect_init(&wrong[at]), EINVAL);
  char path[120] = "/";
  memset(path, 'x', sizeof path - 1);
  struct uselect_options far = {.socket = path, .backend = USELECT_BACKEND_BPF};
  FAILS(uselect_init(&far), EINVAL);
  far.socket = "/nowhere/uselectd.sock";
  FAILS(uselect_init(&far), ENOENT);
  CHECK(strstr(uselect_backend_reason(), "uselectd is not running at /nowhere/uselectd.sock"));
  CHECK(uselect_backend() == USELECT_BACKEND_CALLS);
  CHECK(!uselect_init(&options));
  CHECK(uselect_backend() == (int)options.backend && strlen(uselect_backend_reason()) > 0);
  FAILS(uselect_init(NULL), EALREADY);
  CHECK(uselect_backend() == (int)options.backend);
}

static void sockets(void) {
  struct sockaddr_in address, peer, name;
  socklen_t size = sizeof peer;
  struct uselect_info info;
  int listener = listen_at(&address), theirs = connect_to(&address);
  wait_for(listener, POLLIN, POLLIN);
  CHECK(uselect_get_socket_state(listener) == POLLIN);
  int ours = uselect_accept4(listener, (struct sockaddr *)&peer, &size, SOCK_CLOEXEC);
  CHECK(ours >= 0 && size == sizeof peer && fcntl(ours, F_GETFD) == FD_CLOEXEC);
  CHECK(!(fcntl(ours, F_GETFL) & O_NONBLOCK));
  CHECK(!getsockname(theirs, (struct sockaddr *)&name, &size) && name.sin_port == peer.sin_port);
  CHECK(state_of(listener, POLLIN) == 0);
  CHECK(uselect_get_socket_state(listener) == 0);
  FAILS(uselect_accept4(listener, NULL, NULL, 0), EAGAIN);
  FAILS(uselect_accept4(-1, NULL, NULL, 0), EBADF);
  FAILS(uselect_socket(AF_INET, -1, 0), EINVAL);
  FAILS(uselect_close(-1), EBADF);
  FAILS(uselect_shutdown(-1, SHUT_RD), EBADF);
  FAILS(uselect_get_socket_state(-1), EBADF);
  FAILS(uselect_socket_info(ours, NULL), EFAULT);
  send_bytes(theirs, 5);
  wait_for(ours, POLLIN, POLLIN);
  if (has_socket_info()) {
    CHECK(!uselect_socket_info(ours, &info) && info.readable == 5 && info.edges > 0);
    CHECK(info.events & POLLIN && info.send_space > 10000 && info.cwnd > 0 && info.rtt_us > 0);
  }
  CHECK(!uselect_shutdown(ours, SHUT_WR));
  receive_bytes(ours, 5);
  CHECK(state_of(ours, POLLIN | POLLRDHUP) == 0);
  CHECK(!shutdown(theirs, SHUT_WR));
  wait_for(ours, POLLRDHUP, POLLRDHUP | POLLHUP);
  close_ends((struct ends){ours, theirs});
  CHECK(!uselect_close(listener));
  FAILS(uselect_get_socket_state(listener), EBADF);
  FAILS(uselect_socket_info(listener, &info), ENOENT);
}

// The descriptor of a closed socket is reused for another file.
static void reused_descriptors(void) {
  struct ends ends = open_ends();
  int ours = ends.ours, pipes[2];
  send_bytes(ends.theirs, 1);
  wait_for(ours, POLLIN, POLLIN);
  CHECK(!uselect_close(ours) && !pipe(pipes));
  CHECK(pipes[0] == ours || pipes[1] == ours);
  CHECK(state_of(pipes[0], POLLIN) == 0 && state_of(pipes[1], POLLOUT) == POLLOUT);
  CHECK(uselect_track(pipes[0]) == 0 && uselect_track(-1) == 0 && uselect_track(70000) == 0);
  CHECK(!close(ends.theirs));
  ends = open_ends();
  send_bytes(ends.theirs, 1);
  wait_for(ends.ours, POLLIN, POLLIN);
  uselect_untrack(ends.ours);
  CHECK(state_of(ends.ours, POLLIN) == POLLIN && dup2(pipes[0], ends.ours) == ends.ours);
  CHECK(state_of(ends.ours, POLLIN) == 0);
  CHECK(!close(pipes[0]) && !close(pipes[1]));
  close_ends(ends);
}

// A socket that was opened without the library is tracked afterwards.
static void track(void) {
  struct sockaddr_in address;
  int listener = listen_at(&address), theirs = connect_to(&address);
  wait_for(listener, POLLIN, POLLIN);
  int ours = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
  uselect_refresh(listener);
  CHECK(state_of(listener, POLLIN) == 0);
  send_bytes(theirs, 3);
  wait_for(ours, POLLIN, POLLIN);
  CHECK(uselect_track(ours) == tracks() && uselect_track(ours) == tracks());
  CHECK(state_of(ours, POLLIN | POLLOUT) == (POLLIN | POLLOUT));
  receive_bytes(ours, 3);
  CHECK(state_of(ours, POLLIN | POLLOUT) == POLLOUT);
  int copy = dup(ours);
  CHECK(state_of(copy, POLLOUT) == POLLOUT);
  CHECK(!close(copy) && !uselect_close(listener));
  close_ends((struct ends){ours, theirs});
}

// Each event of poll(2) for a connection.
static void polled(void) {
  struct ends ends = open_ends();
  short all = POLLIN | POLLPRI | POLLOUT | POLLRDHUP;
  CHECK(state_of(ends.ours, all) == POLLOUT);
  CHECK(send(ends.theirs, "!", 1, MSG_OOB) == 1);
  wait_for(ends.ours, POLLPRI, POLLPRI);
  CHECK(uselect_recv(ends.ours, &(char){0}, 1, MSG_OOB) == 1);
  CHECK(state_of(ends.ours, POLLPRI) == 0);
  size_t sent = fill_send_buffer(ends.ours);
  CHECK(state_of(ends.ours, POLLOUT) == 0);
  receive_bytes(ends.theirs, sent);
  wait_for(ends.ours, POLLOUT, POLLOUT);
  CHECK(!shutdown(ends.theirs, SHUT_WR));
  wait_for(ends.ours, POLLRDHUP, POLLRDHUP);
  CHECK(state_of(ends.ours, all) == (POLLIN | POLLOUT | POLLRDHUP));
  close_ends(ends);
  ends = open_ends();
  reset_connection(ends.theirs);
  wait_for(ends.ours, 0, POLLERR | POLLHUP);
  int error;
  socklen_t size = sizeof error;
  CHECK(!getsockopt(ends.ours, SOL_SOCKET, SO_ERROR, &error, &size) && error == ECONNRESET);
  uselect_refresh(ends.ours);
  CHECK(state_of(ends.ours, 0) == POLLHUP);
  CHECK(!uselect_close(ends.ours));
}

// Without tracking the limit is that of the system call, which valgrind does not apply.
static void too_many_are_polled(void) {
  struct rlimit limit;
  CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
  if (!tracks() || limit.rlim_cur > 1 << 21)
    return;
  struct pollfd *fds = calloc(limit.rlim_cur + 1, sizeof *fds);
  CHECK(fds);
  for (rlim_t at = 0; at <= limit.rlim_cur; at++)
    fds[at].fd = -1;
  CHECK(upoll(fds, limit.rlim_cur, 0) == 0);
  FAILS(upoll(fds, limit.rlim_cur + 1, 0), EINVAL);
  free(fds);
}

static void poll_semantics(void) {
  struct ends ends = open_ends();
  int pipes[2], closed = dup(0);
  CHECK(!pipe(pipes) && !close(closed));
  send_bytes(ends.theirs, 1);
  struct pollfd fds[] = {{.fd = -1, .events = POLLIN, .revents = 1},
                         {.fd = closed, .events = POLLIN},
                         {.fd = ends.ours, .events = POLLIN},
                         {.fd = pipes[0], .events = POLLIN},
                         {.fd = pipes[1], .events = POLLOUT},
                         {.fd = ends.ours, .events = POLLOUT}};
  wait_for(ends.ours, POLLIN, POLLIN);
  CHECK(!uselect_set_kernel_check_interval(0, 0));
  CHECK(upoll(fds, 6, -1) == 4 && fds[0].revents == 0 && fds[1].revents == POLLNVAL);
  CHECK(fds[2].revents == POLLIN && fds[3].revents == 0 && fds[4].revents == POLLOUT);
  CHECK(fds[5].revents == POLLOUT);
  CHECK(!uselect_set_kernel_check_interval(64, 10000));
  receive_bytes(ends.ours, 1);
  // At first nothing is ready, so each wait ends by its timeout. Then the pipe becomes readable.
  struct pollfd both[] = {{.fd = ends.ours, .events = POLLIN}, {.fd = pipes[0], .events = POLLIN}};
  CHECK(upoll(both, 2, 0) == 0 && upoll(both, 2, 20) == 0 && upoll(NULL, 0, 1) == 0);
  CHECK(write(pipes[1], "x", 1) == 1);
  CHECK(upoll(both, 2, LONG_MS) == 1 && both[1].revents == POLLIN && both[0].revents == 0);
  // The pipe is omitted for at most one kernel-check interval.
  send_bytes(ends.theirs, 1);
  wait_for(ends.ours, POLLIN, POLLIN);
  int waits = 0;
  while (upoll(both, 2, -1) != 2)
    CHECK(++waits <= 64);
  FAILS(upoll(NULL, 1, 0), EFAULT);
  too_many_are_polled();
  const struct timespec wrong[] = {{-1, 0}, {0, -1}, {0, 1000000000}};
  for (int at = 0; at < 3; at++)
    FAILS(uppoll(both, 2, &wrong[at], NULL), EINVAL);
  const struct timespec brief = {0, 5000000};
  receive_bytes(ends.ours, 1);
  CHECK(uppoll(both, 1, &brief, NULL) == 0 && brief.tv_nsec == 5000000);
  close(pipes[0]);
  close(pipes[1]);
  close_ends(ends);
}

static void put(unsigned long *set, int fd) {
  set[fd / 64] |= 1ul << fd % 64;
}

static int has(const unsigned long *set, int fd) {
  return set[fd / 64] >> fd % 64 & 1;
}

static void select_semantics(void) {
  struct ends ends = open_ends();
  fd_set read, write, except;
  FD_ZERO(&read);
  FD_ZERO(&write);
  FD_ZERO(&except);
  FD_SET(ends.ours, &read);
  FD_SET(ends.ours, &write);
  FD_SET(ends.ours, &except);
  int nfds = ends.ours + 1;
  CHECK(uselect(nfds, &read, &write, &except, NULL) == 1);
  CHECK(!FD_ISSET(ends.ours, &read) && FD_ISSET(ends.ours, &write));
  CHECK(!FD_ISSET(ends.ours, &except));
  FD_SET(ends.ours, &read);
  struct timeval wait = {0, 1020000};
  send_bytes(ends.theirs, 1);
  wait_for(ends.ours, POLLIN, POLLIN);
  CHECK(uselect(nfds, &read, NULL, NULL, &wait) == 1 && FD_ISSET(ends.ours, &read));
  CHECK(wait.tv_sec <= 1 && wait.tv_usec < 1000000 && (wait.tv_sec || wait.tv_usec > 500000));
  receive_bytes(ends.ours, 1);
  wait = (struct timeval){0, 20000};
  CHECK(uselect(nfds, &read, NULL, NULL, &wait) == 0 && !FD_ISSET(ends.ours, &read));
  CHECK(wait.tv_sec == 0 && wait.tv_usec == 0);
  FD_SET(ends.ours, &read);
  struct timespec spec = {0, 20000000};
  CHECK(upselect(nfds, &read, NULL, NULL, &spec, NULL) == 0 && spec.tv_nsec == 20000000);
  CHECK(uselect(0, NULL, NULL, NULL, &wait) == 0);
  // Urgent data.
  CHECK(send(ends.theirs, "!", 1, MSG_OOB) == 1);
  FD_SET(ends.ours, &except);
  CHECK(uselect(nfds, NULL, NULL, &except, NULL) == 1 && FD_ISSET(ends.ours, &except));
  // Bits from nfds on are not checked, and are clear afterwards.
  FD_SET(ends.ours, &write);
  FD_SET(nfds, &write);
  CHECK(uselect(nfds, NULL, &write, NULL, NULL) == 1 && !FD_ISSET(nfds, &write));
  // Sets that share memory are passed to select(2).
  FD_ZERO(&write);
  FD_SET(ends.ours, &write);
  CHECK(uselect(nfds, &write, &write, NULL, NULL) >= 1 && FD_ISSET(ends.ours, &write));
  close_ends(ends);
}

static void select_errors(void) {
  struct ends ends = open_ends();
  fd_set read, kept;
  int closed = dup(0);
  CHECK(!close(closed));
  FD_ZERO(&read);
  FD_SET(closed, &read);
  FD_SET(ends.ours, &read);
  kept = read;
  int nfds = (closed > ends.ours ? closed : ends.ours) + 1;
  FD_SET(nfds, &read);
  FD_SET(nfds, &kept);
  FAILS(uselect(nfds, &read, NULL, NULL, NULL), EBADF);
  CHECK(!memcmp(&read, &kept, sizeof read));
  FAILS(uselect(-1, &read, NULL, NULL, NULL), EINVAL);
  FAILS(uselect(nfds, &read, NULL, NULL, &((struct timeval){-1, 0})), EINVAL);
  FAILS(uselect(nfds, &read, NULL, NULL, &((struct timeval){0, -1})), EINVAL);
  FAILS(upselect(nfds, &read, NULL, NULL, &((struct timespec){0, 1000000000}), NULL), EINVAL);
  CHECK(!memcmp(&read, &kept, sizeof read));
  close_ends(ends);
}

// Descriptors beyond the 1024 bits of fd_set.
static void long_sets(void) {
  struct rlimit limit;
  struct ends ends = open_ends();
  unsigned long read[4096 / 64] = {0};
  CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
  if (limit.rlim_max < 4096) {
    printf("skipped: at most %lu descriptors\n", (unsigned long)limit.rlim_max);
    close_ends(ends);
    return;
  }
  limit.rlim_cur = 4096;
  CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
  int far = fcntl(ends.ours, F_DUPFD_CLOEXEC, 3000);
  CHECK(far == 3000 && !uselect_close(ends.ours) && uselect_track(far) == tracks());
  put(read, far);
  struct timeval none = {0};
  CHECK(uselect(3001, (fd_set *)read, NULL, NULL, &none) == 0 && !has(read, far));
  send_bytes(ends.theirs, 1);
  put(read, far);
  CHECK(uselect(3001, (fd_set *)read, NULL, NULL, NULL) == 1 && has(read, far));
  close_ends((struct ends){far, ends.theirs});
}

// A blocked signal is handled only during the wait, and ends it.
static void masks(void) {
  struct ends ends = open_ends();
  struct sigaction action = {.sa_handler = count_signal};
  sigset_t blocked, none;
  sigemptyset(&none);
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  CHECK(!sigaction(SIGUSR1, &action, NULL) && !sigaction(SIGALRM, &action, NULL));
  CHECK(!sigprocmask(SIG_BLOCK, &blocked, NULL));
  struct pollfd waited = {.fd = ends.ours, .events = POLLIN};
  unsigned long read[1024 / 64] = {0}, before[1024 / 64];
  put(read, ends.ours);
  memcpy(before, read, sizeof read);
  signals = 0;
  CHECK(!raise(SIGUSR1) && upoll(&waited, 1, 1) == 0 && signals == 0);
  FAILS(uppoll(&waited, 1, NULL, &none), EINTR);
  CHECK(signals == 1 && !raise(SIGUSR1));
  FAILS(upselect(ends.ours + 1, (fd_set *)read, NULL, NULL, NULL, &none), EINTR);
  CHECK(signals == 2 && !memcmp(read, before, sizeof read));
  // A signal during the sleep ends the wait, even with SA_RESTART.
  const struct itimerval soon = {.it_value = {0, 20000}};
  action.sa_flags = SA_RESTART;
  CHECK(!sigaction(SIGALRM, &action, NULL) && !setitimer(ITIMER_REAL, &soon, NULL));
  FAILS(upoll(&waited, 1, -1), EINTR);
  struct timeval wait = {5, 0};
  CHECK(signals == 3 && !setitimer(ITIMER_REAL, &soon, NULL));
  FAILS(uselect(ends.ours + 1, (fd_set *)read, NULL, NULL, &wait), EINTR);
  CHECK(signals == 4 && wait.tv_sec == 4 && !sigprocmask(SIG_UNBLOCK, &blocked, NULL));
  close_ends(ends);
}

static void threshold(void) {
  struct ends ends = open_ends();
  struct pollfd waited = {.fd = ends.ours, .events = POLLIN};
  if (!has_socket_info()) {
    FAILS(uselect_set_threshold(ends.ours, 10), ENOENT);
    close_ends(ends);
    return;
  }
  FAILS(uselect_set_threshold(-1, 10), ENOENT);
  CHECK(!uselect_set_threshold(ends.ours, 10));
  send_bytes(ends.theirs, 9);
  CHECK(upoll(&waited, 1, 30) == 0);
  send_bytes(ends.theirs, 1);
  CHECK(upoll(&waited, 1, LONG_MS) == 1 && waited.revents == POLLIN);
  receive_bytes(ends.ours, 9);
  CHECK(upoll(&waited, 1, 0) == 0);
  CHECK(!uselect_set_threshold(ends.ours, 0) && upoll(&waited, 1, 0) == 1);
  CHECK(!uselect_set_threshold(ends.ours, 10) && upoll(&waited, 1, 0) == 0);
  CHECK(!shutdown(ends.theirs, SHUT_WR) && upoll(&waited, 1, LONG_MS) == 1);
  close_ends(ends);
}

static void stats(void) {
  struct ends ends = open_ends();
  struct uselect_stats before, after;
  struct pollfd waited = {.fd = ends.ours, .events = POLLOUT};
  FAILS(uselect_stats(NULL), EFAULT);
  CHECK(!uselect_set_spin(50) && !uselect_stats(&before));
  for (int round = 0; round < 1000; round++)
    CHECK(upoll(&waited, 1, -1) == 1);
  CHECK(!uselect_stats(&after));
  if (tracks())
    CHECK(after.waits == before.waits + 1000);
  if (has_socket_info())
    CHECK(after.without_syscall > before.without_syscall + 900);
  waited.events = POLLIN;
  CHECK(upoll(&waited, 1, 2) == 0 && !uselect_set_spin(0) && !uselect_stats(&before));
  CHECK(!tracks() || before.sleeps > after.sleeps);
  close_ends(ends);
}

// A child of fork(2) inherits the sockets, and waits with the system calls.
static void child(void) {
  struct ends ends = open_ends();
  send_bytes(ends.theirs, 1);
  wait_for(ends.ours, POLLIN, POLLIN);
  pid_t process = fork();
  if (process == 0) {
    struct uselect_options none = {.backend = USELECT_BACKEND_CALLS};
    CHECK(uselect_backend() == USELECT_BACKEND_CALLS);
    CHECK(strstr(uselect_backend_reason(), "child of fork"));
    CHECK(state_of(ends.ours, POLLIN | POLLOUT) == (POLLIN | POLLOUT));
    receive_bytes(ends.ours, 1);
    CHECK(state_of(ends.ours, POLLIN | POLLOUT) == POLLOUT);
    send_bytes(ends.ours, 2);
    struct ends own = open_ends();
    send_bytes(own.theirs, 1);
    wait_for(own.ours, POLLIN, POLLIN);
    // It may initialize the library again.
    struct uselect_options wrong = {.socket = "/nowhere/u", .backend = USELECT_BACKEND_BPF};
    FAILS(uselect_init(&wrong), ENOENT);
    CHECK(strstr(uselect_backend_reason(), "uselectd is not running at /nowhere/u"));
    CHECK(!uselect_init(&none) && !strcmp(uselect_backend_reason(), "system calls"));
    FAILS(uselect_init(&none), EALREADY);
    close_ends(own);
    _exit(0);
  }
  int status;
  receive_bytes(ends.theirs, 2);
  CHECK(waitpid(process, &status, 0) == process && WIFEXITED(status) && !WEXITSTATUS(status));
  uselect_refresh(ends.ours);
  CHECK(state_of(ends.ours, POLLIN | POLLOUT) == POLLOUT);
  close_ends(ends);
}

static const struct {
  const char *name;
  void (*run)(void);
} cases[] = {
    {"before uselect_init", before},
    {"uselect_init", init},
    {"sockets", sockets},
    {"reused descriptors", reused_descriptors},
    {"uselect_track", track},
    {"events of poll(2)", polled},
    {"upoll", poll_semantics},
    {"uselect", select_semantics},
    {"errors of uselect", select_errors},
    {"long sets", long_sets},
    {"signal masks", masks},
    {"thresholds", threshold},
    {"stats", stats},
    {"a child", child},
};

int main(int count, char **arguments) {
  options = options_of(count, arguments);
  for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
    cases[at].run();
    printf("%s: as the man pages say\n", cases[at].name);
    fflush(stdout);
  }
  return 0;
}
