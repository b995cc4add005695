// What the programs need of the kernel: its helpers and constants by their numbers, which are
// stable (linux/bpf.h), and of its structures the fields that are read, which the loader finds by
// name in the kernel's own description of types (CO-RE). So no header is needed to build them, and
// whoever builds them with the same compiler gets the same bytes.
#ifndef KERNEL_H
#define KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
// For maps: the loader reads these numbers from the types.
#define NUMBER(name, value) int(*name)[value]
#define TYPE(name, value) typeof(value) *name
// One load that the compiler neither repeats nor leaves out: others write there meanwhile.
#define ONCE(place) (*(volatile typeof(place) *)&(place))

enum {
    MAP_HASH = 1,
    MAP_ARRAY = 2,
    MAP_ARRAY_OF_MAPS = 12,
    MAP_SK_STORAGE = 24,
    MAP_RINGBUF = 27,
};
enum { NO_PREALLOC = 1, MMAPABLE = 1 << 10 };
enum { STORAGE_CREATE = 1, RING_FORCE_WAKEUP = 2 };

struct seq_file;
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_delete)(void *map, const void *key) = (void *)3;
static __u64 (*const current_ids)(void) = (void *)14;
static void *(*const storage_get)(void *map, void *sk, void *value, __u64 flags) = (void *)107;
static long (*const storage_delete)(void *map, void *sk) = (void *)108;
static long (*const seq_write)(struct seq_file *file, const void *bytes, __u32 count) = (void *)127;
static long (*const ring_output)(void *ring, void *data, __u64 size, __u64 flags) = (void *)130;
static struct tcp_sock *(*const to_tcp)(void *sk) = (void *)137;
static struct task_struct *(*const current_task)(void) = (void *)158;
static long (*const repeat)(__u32 count, void *step, void *context, __u64 flags) = (void *)181;

// What programs of cgroups get, as far as it is read.
struct bpf_sock {
    __u32 bound_dev_if;
    __u32 family;
    __u32 type;
    __u32 protocol;
};
struct bpf_sock_addr {
    __u32 addresses[16];
    struct bpf_sock *sk;
};
_Static_assert(__builtin_offsetof(struct bpf_sock_addr, sk) == 64, "as linux/bpf.h has it");

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_map {
    __u32 id;
};
struct netns_ipv4 {
    unsigned int sysctl_tcp_notsent_lowat;
};
struct net {
    struct netns_ipv4 ipv4;
};
typedef struct {
    struct net *net;
} possible_net_t;
struct proto {
    void *sock_is_readable;
};
struct sock_common {
    unsigned short skc_family;
    volatile unsigned char skc_state;
    __u16 skc_dport;
    __u32 skc_hash;
    struct proto *skc_prot;
    possible_net_t skc_net;
};
struct sk_buff_head {
    __u32 qlen;
};
typedef struct {
    __u32 val;
} kuid_t;
typedef struct {
    __u32 val;
} kgid_t;
struct cred {
    kuid_t euid;
    kgid_t egid;
};
struct task_struct {
    struct cred *cred;
};
struct sock {
    struct sock_common __sk_common;
    struct sk_buff_head sk_error_queue;
    int sk_rcvlowat;
    int sk_err;
    int sk_wmem_queued;
    int sk_sndbuf;
    __u16 sk_protocol;
    __u8 sk_shutdown;
    __u32 sk_ack_backlog;
    void *sk_bpf_storage;
};
struct request_sock {
    struct sock_common __req_common;
    __u32 ts_recent;
};
struct request_sock_queue {
    struct request_sock *rskq_accept_head;
    struct request_sock *rskq_accept_tail;
};
struct inet_connection_sock {
    struct request_sock_queue icsk_accept_queue;
    struct {
        __u16 rcv_mss;
    } icsk_ack;
};
struct tcp_sock {
    struct inet_connection_sock inet_conn;
    __u32 rcv_nxt;
    __u32 copied_seq;
    __u32 rcv_wup;
    __u32 rcv_wnd;
    __u32 write_seq;
    __u32 snd_nxt;
    __u32 notsent_lowat;
    __u32 snd_cwnd;
    __u32 srtt_us;
    __u16 urg_data;
    void *fastopen_rsk;
};

#pragma clang attribute pop

// net/tcp_states.h, include/net/sock.h and include/net/tcp.h of the kernel.
enum {
    TCP_ESTABLISHED = 1,
    TCP_SYN_SENT = 2,
    TCP_SYN_RECV = 3,
    TCP_CLOSE = 7,
    TCP_LISTEN = 10,
};
enum { RCV_SHUTDOWN = 1, SEND_SHUTDOWN = 2, SHUTDOWN_MASK = 3 };
// linux/socket.h and linux/in.h.
enum { SOCK_STREAM = 1, IPPROTO_TCP = 6, AF_INET = 2, AF_INET6 = 10 };
// linux/eventpoll.h; poll(2) has the same bits.
enum {
    POLL_IN = 0x001,
    POLL_PRI = 0x002,
    POLL_OUT = 0x004,
    POLL_ERR = 0x008,
    POLL_HUP = 0x010,
    POLL_RDNORM = 0x040,
    POLL_WRNORM = 0x100,
    POLL_RDHUP = 0x2000,
};

#endif
