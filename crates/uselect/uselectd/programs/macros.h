// Macros of the kernel that the programs use. BTF does not describe macros, so vmlinux.h cannot
// have them.
#ifndef MACROS_H
#define MACROS_H

// asm-generic/rwonce.h: exactly one access, because the kernel and other processes write to the
// same memory at the same time.
#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, val) (*(volatile typeof(x) *)&(x) = (val))

// linux/sched.h.
#define PF_KTHREAD 0x00200000

// linux/stat.h.
#define S_IFMT 0170000
#define S_IFSOCK 0140000

// linux/socket.h.
#define AF_INET 2
#define AF_INET6 10

// net/sock.h.
#define RCV_SHUTDOWN 1
#define SEND_SHUTDOWN 2
#define SHUTDOWN_MASK 3

// linux/eventpoll.h. poll(2) has the same bits.
#define EPOLLIN 0x001
#define EPOLLPRI 0x002
#define EPOLLOUT 0x004
#define EPOLLERR 0x008
#define EPOLLHUP 0x010
#define EPOLLRDNORM 0x040
#define EPOLLWRNORM 0x100
#define EPOLLRDHUP 0x2000

#endif
