// The kernel's types and constants that the programs here and in crates/test/lab use: a
// hand-trimmed version of the header that `bpftool btf dump file /sys/kernel/btf/vmlinux format c`
// writes. Structures have only the fields that are read, under their real names. The loader finds
// the offset of each field in the BTF of the running kernel (CO-RE), so the order of fields and the
// gaps between them do not matter. A build needs no kernel header, and the same compiler writes the
// same bytes everywhere.
#ifndef VMLINUX_H
#define VMLINUX_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;

enum bpf_map_type {
    BPF_MAP_TYPE_HASH = 1,
    BPF_MAP_TYPE_ARRAY = 2,
    BPF_MAP_TYPE_PERCPU_ARRAY = 6,
    BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
    BPF_MAP_TYPE_SK_STORAGE = 24,
    BPF_MAP_TYPE_RINGBUF = 27,
    BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum {
    BPF_F_NO_PREALLOC = 1,
    BPF_F_MMAPABLE = 1024,
};
enum {
    BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
    BPF_SK_STORAGE_GET_F_CREATE = 1,
};
enum {
    BPF_RB_FORCE_WAKEUP = 2,
};

enum {
    NET_TX_SOFTIRQ = 2,
    NET_RX_SOFTIRQ = 3,
    NR_SOFTIRQS = 10,
};

enum io_uring_op {
    IORING_OP_SENDMSG = 9,
    IORING_OP_SEND = 26,
    IORING_OP_SEND_ZC = 47,
    IORING_OP_SENDMSG_ZC = 48,
};

enum sock_type {
    SOCK_STREAM = 1,
};
enum {
    IPPROTO_TCP = 6,
};
enum {
    TCP_ESTABLISHED = 1,
    TCP_SYN_SENT = 2,
    TCP_SYN_RECV = 3,
    TCP_CLOSE = 7,
    TCP_LISTEN = 10,
};

// Contexts of cgroup programs. The layout is part of the kernel's stable interface (linux/bpf.h),
// and the verifier translates each access, so these are not relocated.
struct bpf_sock {
    __u32 bound_dev_if;
    __u32 family;
    __u32 type;
    __u32 protocol;
};
struct bpf_sock_addr {
    __u32 user_family;
    __u32 user_ip4;
    __u32 user_ip6[4];
    __u32 user_port;
    __u32 family;
    __u32 type;
    __u32 protocol;
    __u32 msg_src_ip4;
    __u32 msg_src_ip6[4];
    struct bpf_sock *sk;
};
_Static_assert(__builtin_offsetof(struct bpf_sock_addr, sk) == 64, "the offset in linux/bpf.h");

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct seq_file;

struct proto {
    void *sock_is_readable;
};

struct netns_ipv4 {
    unsigned int sysctl_tcp_notsent_lowat;
};

struct ns_common {
    unsigned int inum;
};

struct net {
    struct ns_common ns;
    struct netns_ipv4 ipv4;
};

typedef struct {
    struct net *net;
} possible_net_t;

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

struct inode {
    unsigned short i_mode;
};

struct file {
    struct inode *f_inode;
};

struct fdtable {
    unsigned int max_fds;
    struct file **fd;
};

struct files_struct {
    struct fdtable *fdt;
};

struct nsproxy {
    struct net *net_ns;
};

struct kernfs_node {
    __u64 id;
};

struct cgroup;

struct cgroup_subsys_state {
    struct cgroup *cgroup;
    struct cgroup_subsys_state *parent;
};

struct cgroup {
    struct cgroup_subsys_state self;
    struct kernfs_node *kn;
};

struct css_set {
    struct cgroup *dfl_cgrp;
};

struct task_struct {
    unsigned int flags;
    int pid;
    int tgid;
    struct cred *cred;
    struct files_struct *files;
    struct nsproxy *nsproxy;
    struct css_set *cgroups;
};

// The registers of x86-64.
struct pt_regs {
    unsigned long dx;
    unsigned long di;
    unsigned long orig_ax;
};

struct net_device {
    possible_net_t nd_net;
};

struct sk_buff {
    struct net_device *dev;
};

struct io_kiocb {
    __u8 opcode;
};

struct bpf_map {
    __u32 id;
};

struct bpf_iter_meta {
    union {
        struct seq_file *seq;
    };
};

struct bpf_iter__bpf_map {
    union {
        struct bpf_iter_meta *meta;
    };
    union {
        struct bpf_map *map;
    };
};

struct bpf_iter__bpf_sk_storage_map {
    union {
        struct bpf_iter_meta *meta;
    };
    union {
        struct bpf_map *map;
    };
    union {
        struct sock *sk;
    };
    union {
        void *value;
    };
};

#pragma clang attribute pop

#endif
