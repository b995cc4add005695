// uselect.h: select, poll and epoll served from memory that the kernel keeps up to date. See
// uselect(7) for an overview; each function has a man page.
//
// The terms are those of "Kernel Support for Faster Web Proxies", section 2. On error, functions
// return -1 and set errno, like the system calls that they replace. If nothing is tracked, they
// make these calls. All functions are thread-safe; none may be called from a signal handler.
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

// How waits are served.
enum {
  USELECT_BACKEND_AUTO = 0,      // the first available one of those below
  USELECT_BACKEND_BPF = 1,       // eBPF programs that uselectd(8) loads
  USELECT_BACKEND_MULTISHOT = 2, // io_uring, which reports the sockets that are not idle
  USELECT_BACKEND_CALLS = 3,     // every wait is the system call
};

// Which events the eBPF programs follow.
enum {
  USELECT_MODE_EXACT = 0, // arrivals, and receives and sends of the process
  USELECT_MODE_LEAN = 1,  // arrivals only; the process must use uselect_recv and uselect_send
};

// Options of uselect_init. Zero the structure first: 0 and NULL are the defaults.
struct uselect_options {
  const char *socket; // the socket of uselectd; NULL: /run/uselectd.sock
  uint32_t backend;   // USELECT_BACKEND_*
  uint32_t mode;      // USELECT_MODE_*
};

// The state of a tracked socket as of its last event.
struct uselect_info {
  uint32_t events;     // the result of poll(2) if all events were requested
  uint32_t edges;      // the number of events so far, modulo 65536
  uint32_t readable;   // bytes that can be received; of a listener, connections to accept
  uint32_t send_space; // bytes that can be sent without blocking
  uint32_t cwnd;       // the congestion window, in segments
  uint32_t rtt_us;     // the smoothed round-trip time, in microseconds
};

// An event of a descriptor in an epoll instance, with the number of changes.
struct uepoll_counted_event {
  epoll_data_t data; // the value that was passed to uepoll_ctl
  uint32_t events;   // the events that are ready now: EPOLLIN and so on
  uint32_t edges;    // changes since the last event of this descriptor; 0: not counted
};

// Counters of waits since uselect_init.
struct uselect_stats {
  uint64_t waits;           // calls of uselect, upoll, uepoll_wait and their variants
  uint64_t without_syscall; // waits that made no system call that could sleep
  uint64_t sleeps;          // system calls that could sleep
};

// uselect_init(3): starts tracking this process's TCP sockets. NULL: all options are 0.
int uselect_init(const struct uselect_options *options);
// Returns the USELECT_BACKEND_* in use; before uselect_init, USELECT_BACKEND_CALLS.
int uselect_backend(void);
// Returns why this backend is in use, or why uselect_init failed: one line without a newline, valid
// until the calling thread calls this function again.
const char *uselect_backend_reason(void);

// uselect(3): select(2) and pselect(2), with sets of any length.
int uselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
            struct timeval *timeout);
int upselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds,
             const struct timespec *timeout, const sigset_t *sigmask);
// upoll(3): poll(2) and ppoll(2).
int upoll(struct pollfd *fds, nfds_t nfds, int timeout);
int uppoll(struct pollfd *fds, nfds_t nfds, const struct timespec *timeout,
           const sigset_t *sigmask);
// uepoll(3): epoll_create1(2), epoll_ctl(2), epoll_wait(2) and epoll_pwait(2). Close the descriptor
// with uselect_close.
int uepoll_create(int flags);
int uepoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int uepoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout);
int uepoll_pwait(int epfd, struct epoll_event *events, int maxevents, int timeout,
                 const sigset_t *sigmask);
// uepoll_pwait_counted(3): like uepoll_pwait, with the number of changes of each descriptor.
int uepoll_pwait_counted(int epfd, struct uepoll_counted_event *events, int maxevents,
                         const struct timespec *timeout, const sigset_t *sigmask);

// uselect_socket(3): socket(2) and accept4(2), tracked if possible.
int uselect_socket(int domain, int type, int protocol);
int uselect_accept4(int sockfd, struct sockaddr *addr, socklen_t *addrlen, int flags);
// Starts tracking an open TCP socket. Returns 1 if it is tracked now, else 0.
int uselect_track(int fd);
// Stops tracking. Call it before the descriptor is closed or replaced without uselect_close.
void uselect_untrack(int fd);
// close(2) and shutdown(2).
int uselect_close(int fd);
int uselect_shutdown(int sockfd, int how);
// Updates the recorded state of a socket, after changes that the kernel does not report.
void uselect_refresh(int fd);

// uselect_recv(3): recv(2) and send(2); required in lean mode.
ssize_t uselect_recv(int sockfd, void *buf, size_t len, int flags);
ssize_t uselect_send(int sockfd, const void *buf, size_t len, int flags);

// uselect_get_socket_state(3): returns the events that are ready, in the bits of poll(2).
int uselect_get_socket_state(int fd);
// uselect_socket_info(3): stores the recorded state of a tracked socket.
int uselect_socket_info(int fd, struct uselect_info *info);
// uselect_set_threshold(3): sets how many bytes make a socket readable.
int uselect_set_threshold(int fd, uint32_t bytes);

// uselect_set_kernel_check_interval(3): sets after how many consecutive waits, or microseconds, a
// wait calls the kernel for descriptors that are not tracked.
int uselect_set_kernel_check_interval(uint32_t waits, uint32_t time_us);
// Sets how many microseconds a wait may spin on memory before it sleeps; 0: no spinning.
int uselect_set_spin(uint32_t max_us);
// Stores the counters of waits.
int uselect_stats(struct uselect_stats *stats);

// The sizes of the ABI of libuselect.so.0; the library asserts the same.
#if defined(__LP64__) && (defined(__cplusplus) || __STDC_VERSION__ >= 201112L)
#ifdef __cplusplus
#define USELECT_ASSERT static_assert
#else
#define USELECT_ASSERT _Static_assert
#endif
USELECT_ASSERT(sizeof(struct uselect_options) == 16, "uselect_options has 16 bytes");
USELECT_ASSERT(sizeof(struct uselect_info) == 24, "uselect_info has 24 bytes");
USELECT_ASSERT(sizeof(struct uepoll_counted_event) == 16, "uepoll_counted_event has 16 bytes");
USELECT_ASSERT(sizeof(struct uselect_stats) == 24, "uselect_stats has 24 bytes");
#undef USELECT_ASSERT
#endif

#ifdef __cplusplus
}
#endif

#endif
