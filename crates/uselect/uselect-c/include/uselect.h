// uselect.h: select, poll and epoll answered from memory that the kernel keeps up to date;
// uselect(7) tells how it is used.
//
// The words are those of "Kernel Support for Faster Web Proxies", section 2. Each function has a man
// page. They give -1 and set errno, as the system calls do whose names they have; where nothing is
// tracked they are those calls. Any thread may call any of them; no signal handler may.
#ifndef USELECT_H
#define USELECT_H

#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

// Who tells of sockets.
enum {
  USELECT_BACKEND_AUTO = 0,      // the first of those below that there is
  USELECT_BACKEND_BPF = 1,       // eBPF programs, which uselectd(8) loads
  USELECT_BACKEND_MULTISHOT = 2, // io_uring, in the process itself: which sockets are idle
  USELECT_BACKEND_CALLS = 3,     // nobody: every wait is the system call
};

// What eBPF programs follow.
enum {
  USELECT_MODE_EXACT = 0, // what comes, and what the process receives and sends
  USELECT_MODE_LEAN = 1,  // what comes; what is taken and sent goes through uselect_recv(3)
};

// What uselect_init is to do. Set all to 0 first: what is not said is 0 or NULL.
struct uselect_options {
  const char *socket; // uselectd's; NULL: /run/uselectd.sock
  uint32_t backend;   // USELECT_BACKEND_*
  uint32_t mode;      // USELECT_MODE_*
};

// What is known of a socket, as of its last event.
struct uselect_info {
  uint32_t events;   // what poll(2) would say of all that it can be asked
  uint32_t edges;    // events so far, modulo 65536
  uint32_t readable; // bytes that can be received; of a listener, connections that wait
  uint32_t room;     // bytes of room to send
  uint32_t window;   // the congestion window, in segments
  uint32_t rtt_us;   // the smoothed round-trip time, in microseconds
};

// What changed about a descriptor of an epoll instance.
struct uselect_change {
  epoll_data_t data; // what uepoll_ctl was given with it
  uint32_t events;   // what it is ready for now: EPOLLIN and so on
  uint32_t edges;    // its events since it was told of last; 0: not counted, as it is not tracked
};

// What waits have cost since uselect_init.
struct uselect_stats {
  uint64_t waits;        // calls of uselect, upoll, uepoll_wait, uselect_changes and their like
  uint64_t without_call; // of these, answered without a system call
  uint64_t sleeps;       // system calls that were made to sleep
};

// uselect_init(3): has this process's TCP sockets tracked, from now on. NULL: all options are 0.
int uselect_init(const struct uselect_options *options);
// What tracks them: USELECT_BACKEND_*, before uselect_init USELECT_BACKEND_CALLS.
int uselect_backend(void);
// Why it is that one, or why uselect_init failed: a line without its end, which stays until the
// calling thread asks again.
const char *uselect_why(void);

// uselect(3): select(2) and pselect(2), with sets of any length.
int uselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
            struct timeval *timeout);
int upselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
             const struct timespec *timeout, const sigset_t *sigmask);
// upoll(3): poll(2) and ppoll(2).
int upoll(struct pollfd *fds, nfds_t nfds, int timeout);
int uppoll(struct pollfd *fds, nfds_t nfds, const struct timespec *timeout,
           const sigset_t *sigmask);
// uepoll(3): epoll_create1(2), epoll_ctl(2), epoll_wait(2) and epoll_pwait(2). The descriptor is
// to be closed by uselect_close.
int uepoll_create(int flags);
int uepoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int uepoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout);
int uepoll_pwait(int epfd, struct epoll_event *events, int maxevents, int timeout,
                 const sigset_t *sigmask);
// uselect_changes(3): as uepoll_pwait, with how often each changed.
int uselect_changes(int epfd, struct uselect_change *changes, int maxchanges,
                    const struct timespec *timeout, const sigset_t *sigmask);

// uselect_socket(3): socket(2) and accept4(2), tracked if possible.
int uselect_socket(int domain, int type, int protocol);
int uselect_accept4(int sockfd, struct sockaddr *addr, socklen_t *addrlen, int flags);
// Has an open TCP socket tracked from now on. 1: it is; 0: it cannot be.
int uselect_adopt(int fd);
// Not tracked any more: right before the number is closed or another file's by other means.
void uselect_forget(int fd);
// close(2) and shutdown(2).
int uselect_close(int fd);
int uselect_shutdown(int sockfd, int how);
// Looks at a socket: after what the kernel does not tell of.
void uselect_refresh(int fd);

// uselect_recv(3): recv(2) and send(2), which lean mode has to know of.
ssize_t uselect_recv(int sockfd, void *buf, size_t len, int flags);
ssize_t uselect_send(int sockfd, const void *buf, size_t len, int flags);

// uselect_get_socket_state(3): what a descriptor is ready for now, in the bits of poll(2).
int uselect_get_socket_state(int fd);
// uselect_socket_info(3): what is known of a tracked socket.
int uselect_socket_info(int fd, struct uselect_info *info);
// uselect_set_threshold(3): readable only with so many bytes, or when no more will come.
int uselect_set_threshold(int fd, uint32_t bytes);

// uselect_set_passes(3): waits in a row, and microseconds, without a look at what is not tracked.
int uselect_set_passes(uint32_t count, uint32_t time_us);
// Microseconds at most to look at memory before a sleep; 0: never.
int uselect_set_spin(uint32_t max_us);
// What waits have cost.
int uselect_stats(struct uselect_stats *stats);

// What libuselect.so.0 was built with; the library asserts the same of its side.
#if defined(__LP64__) && (defined(__cplusplus) || __STDC_VERSION__ >= 201112L)
#ifdef __cplusplus
#define USELECT_ASSERT static_assert
#else
#define USELECT_ASSERT _Static_assert
#endif
USELECT_ASSERT(sizeof(struct uselect_options) == 16, "uselect_options has 16 bytes");
USELECT_ASSERT(sizeof(struct uselect_info) == 24, "uselect_info has 24 bytes");
USELECT_ASSERT(sizeof(struct uselect_change) == 16, "uselect_change has 16 bytes");
USELECT_ASSERT(sizeof(struct uselect_stats) == 24, "uselect_stats has 24 bytes");
#undef USELECT_ASSERT
#endif

#ifdef __cplusplus
}
#endif

#endif
