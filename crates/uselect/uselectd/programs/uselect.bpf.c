// uselect: keeps the readiness of each tracked TCP socket in memory that its process reads.
//
// Each program recomputes from the socket itself what poll(2) would report, and never counts
// packets. A call that is missing, late or repeated therefore leaves no wrong state behind once the
// next program runs. docs/design/uselect.md describes the races and why the order of accesses here
// is sufficient; "pairs with" names the other side.
//
// No program is attached to a kernel function (fentry), because a kernel in lockdown refuses that.
//
// The kernel may skip a program. It does so if the tracepoint is hit while the program is already
// running on the same CPU (Linux 6.18, `__bpf_trace_run`), and a hardened kernel may do so in
// processes of its choice. The daemon therefore sweeps all tracked sockets at intervals.
#include "word.h"
#include <bpf/bpf_tracing.h>

// The kernel offers some helpers only to programs under a licence that is compatible with the GPL.
// The files in this directory, apart from libbpf's, are therefore under this licence as well as
// under the project's.
char LICENSE[] SEC("license") = "Dual MIT/GPL";

// Nearly all sockets of a machine have no storage, so this load and comparison is what an untracked
// socket costs.
static __always_inline struct tracked *lookup_tracked(struct sock *sk)
{
    return sk->sk_bpf_storage ? bpf_sk_storage_get(&sockets, sk, NULL, 0) : NULL;
}

// Returns a number that changes with each arrival. For a connection, this is the sequence number of
// the next byte. For a listener, it combines the hash, port and timestamp of the newest connection
// in the accept queue. The address of that connection's structure would not suffice, because the
// kernel may reuse it for the next connection.
static __always_inline __u64 arrival_stamp(struct tcp_sock *tp, __u32 state)
{
    if (state != TCP_LISTEN)
        return READ_ONCE(tp->rcv_nxt);
    struct request_sock *newest = READ_ONCE(tp->inet_conn.icsk_accept_queue.rskq_accept_tail);
    if (!newest)
        return 0;
    __u64 hash = READ_ONCE(newest->__req_common.skc_hash);
    __u64 port = READ_ONCE(newest->__req_common.skc_dport);
    return hash << 32 ^ port << 32 ^ READ_ONCE(newest->ts_recent);
}

static __always_inline __u64 fingerprint(__u64 arrival_stamp, __u32 state)
{
    return arrival_stamp << 4 ^ state;
}

// Data, the end of the stream, or a connection of a listener has arrived.
SEC("tp_btf/sk_data_ready")
int BPF_PROG(on_data_ready, struct sock *sk)
{
    struct tracked *tracked = lookup_tracked(sk);
    if (!tracked)
        return 0;
    struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
    if (!tp)
        return 0;
    tracked->arrival_stamp = arrival_stamp(tp, READ_ONCE(tracked->state));
    update_word(tp, tracked, 1, 0);
    return 0;
}

// The socket has an error. If the error ends the connection, the kernel has stored the new state
// and the shutdown by now.
SEC("tp_btf/inet_sk_error_report")
int BPF_PROG(on_error, struct sock *sk)
{
    struct tracked *tracked = lookup_tracked(sk);
    if (!tracked)
        return 0;
    WRITE_ONCE(tracked->has_failed, 0);
    update_word(bpf_skc_to_tcp_sock(sk), tracked, 0, 0);
    return 0;
}

static __always_inline int announce_state(struct sock *sk, __u8 state)
{
    struct tracked *tracked = lookup_tracked(sk);
    if (!tracked)
        return 0;
    struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
    WRITE_ONCE(tracked->has_failed, state == TCP_CLOSE && READ_ONCE(sk->sk_err));
    WRITE_ONCE(tracked->state, state);
    // The SYN-ACK has moved rcv_nxt, and this event reports it.
    if (tp && state == TCP_ESTABLISHED)
        tracked->arrival_stamp = arrival_stamp(tp, state);
    update_word(tp, tracked, 0, 0);
    return 0;
}

// The state is about to change; the socket is locked, and the kernel stores the state afterwards.
// In an orderly close the kernel has set sk_shutdown before. After a failure it has set sk_err. If
// connect(2) or shutdown(2) disconnects the socket, it has set neither.
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_state_change, struct sock *sk, int old_state, int new_state)
{
    return announce_state(sk, new_state);
}

static __always_inline int update_if_exact(struct sock *sk)
{
    struct tracked *tracked = lookup_tracked(sk);
    if (tracked && !tracked->is_lean)
        update_word(bpf_skc_to_tcp_sock(sk), tracked, 0, 0);
    return 0;
}

// The process has received, by any system call. The socket is locked, and copied_seq includes the
// bytes.
SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(on_recv, struct sock *sk)
{
    return update_if_exact(sk);
}

// The process has sent, or has tried to.
SEC("tp_btf/sock_send_length")
int BPF_PROG(on_send, struct sock *sk)
{
    return update_if_exact(sk);
}

// The process has called execve(2). The new program has not registered, whichever descriptors it
// inherited. It may have privileges, and another process that shares the memory could arm slots for
// it and watch its sockets.
SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec)
{
    __u32 pid = bpf_get_current_pid_tgid() >> 32;
    bpf_map_delete_elem(&processes, &pid);
    return 0;
}

// Returns the number of the slot that the current thread has armed, or -1. Checks at most
// USELECT_PROBES slots. The verifier checks a global function like this one only once. In a static
// function it would follow the code after the call once for each path through the loop.
__noinline int find_armed_slot(__u32 region, __u32 thread)
{
    struct uselect_writable_pages *rw_pages = lookup_rw_pages(region);
    if (!rw_pages)
        return -1;
    for (__u32 i = 0; i < USELECT_PROBES; i++) {
        __u32 number = (thread + i) & (USELECT_THREADS - 1);
        if (READ_ONCE(rw_pages->slot[number].thread) == thread)
            return READ_ONCE(rw_pages->slot[number].armed) ? number : -1;
    }
    return -1;
}

// A socket that the current thread wants to have tracked.
struct new_socket {
    struct uselect_read_only_pages *ro_pages;
    struct uselect_writable_pages *rw_pages;
    struct uselect_thread_slot *slot;
    struct tracked tracked;
};

// Whether the process has the effective user and group that it had at connect(2). If it has others,
// it may have executed a set-user-ID program while the daemon registered it. For a process that was
// root at connect(2), each user and group is accepted.
static __always_inline int has_same_credentials(struct process *process)
{
    struct cred *cred = bpf_get_current_task_btf()->cred;
    return !process->uid
        || (READ_ONCE(cred->euid.val) == process->uid && READ_ONCE(cred->egid.val) == process->gid);
}

// Fills `new` if the current thread has armed a slot for its next socket. Returns 0 if it has not.
static __always_inline int prepare_new_socket(struct new_socket *new, __u8 state)
{
    __u64 pid_tgid = bpf_get_current_pid_tgid();
    __u32 pid = pid_tgid >> 32;
    struct process *process = bpf_map_lookup_elem(&processes, &pid);
    if (!process || !has_same_credentials(process))
        return 0;
    new->rw_pages = lookup_rw_pages(process->region);
    new->ro_pages = lookup_ro_pages(process->region, process->identity);
    if (!new->rw_pages || !new->ro_pages)
        return 0;
    int number = find_armed_slot(process->region, pid_tgid);
    if (number < 0)
        return 0;
    new->slot = &new->rw_pages->slot[number & (USELECT_THREADS - 1)];
    __u32 index = READ_ONCE(new->slot->armed);
    if (!index || index >= USELECT_SOCKETS)
        return 0;
    new->tracked = (struct tracked){
        .identity = process->identity,
        .region = process->region,
        .index = index,
        .generation = __sync_fetch_and_add(&new->ro_pages->generations, 1) + 1,
        .state = state,
        .is_lean = process->is_lean,
    };
    return 1;
}

// Initializes the word of a new socket, before the socket has storage with this index and before
// ack_slot(). Hooks and the process therefore never find a tracked socket without its word.
static __always_inline void init_word(struct new_socket *new, __u32 mask)
{
    __u32 index = new->tracked.index & INDEX_MASK;
    __u64 word = (__u64)new->tracked.generation << 32 | mask;
    // Removes the values of the previous socket with this index.
    store_numbers(&new->ro_pages->numbers[index], 0, 0, 0, 0);
    WRITE_ONCE(new->rw_pages->threshold[index], 0);
    __sync_lock_test_and_set(&new->ro_pages->word[index], word);
}

// Records in the slot that the socket is tracked.
static __always_inline void ack_slot(struct new_socket *new)
{
    WRITE_ONCE(new->slot->generation, new->tracked.generation);
    WRITE_ONCE(new->slot->taken, new->tracked.index);
    WRITE_ONCE(new->slot->armed, 0);
}

// socket(2). poll(2) reports a new socket as hung up and writable.
SEC("cgroup/sock_create")
int on_sock_create(struct bpf_sock *ctx)
{
    struct new_socket new;
    if (ctx->type != SOCK_STREAM || ctx->protocol != IPPROTO_TCP)
        return 1;
    if (ctx->family != AF_INET && ctx->family != AF_INET6)
        return 1;
    if (!prepare_new_socket(&new, TCP_CLOSE))
        return 1;
    init_word(&new, EPOLLOUT | EPOLLWRNORM | EPOLLHUP);
    if (bpf_sk_storage_get(&sockets, ctx, &new.tracked, BPF_SK_STORAGE_GET_F_CREATE))
        ack_slot(&new);
    return 1;
}

// Whether this process, by any descriptor, or another registered process already tracks the socket.
// Such a socket is not adopted again.
static __always_inline int is_in_use(struct tracked *tracked)
{
    struct uselect_read_only_pages *ro_pages = lookup_ro_pages(tracked->region, tracked->identity);
    struct uselect_writable_pages *rw_pages = lookup_rw_pages(tracked->region);
    if (!ro_pages || !rw_pages)
        return 0;
    __u32 index = tracked->index & INDEX_MASK;
    return READ_ONCE(ro_pages->word[index]) >> 32 == tracked->generation
        && READ_ONCE(rw_pages->descriptor[index]);
}

// Gives a tracked socket to another region. Programs that run without the socket's lock (on_send(),
// check_socket()) must find either all old fields, or all new ones, or no owner: a mixture could
// spoil the word of another socket, because each region counts its own generations. The identity is
// therefore cleared first and stored last. Pairs with update_word(), which reads the identity
// before the other fields and again after them.
static __always_inline void reassign(struct tracked *tracked, struct tracked *new)
{
    __u64 identity = new->identity;
    __sync_lock_test_and_set(&tracked->identity, 0);
    new->identity = 0;
    *tracked = *new;
    __sync_lock_test_and_set(&tracked->identity, identity);
}

// Tracks a socket that exists already, if the current thread has armed a slot. The socket is
// locked.
static __always_inline void adopt(struct bpf_sock *sk)
{
    struct new_socket new;
    struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
    if (!tp || !prepare_new_socket(&new, ((struct sock *)tp)->__sk_common.skc_state))
        return;
    struct tracked *tracked = bpf_sk_storage_get(&sockets, sk, NULL, 0);
    if (tracked && is_in_use(tracked))
        return;
    init_word(&new, 0);
    if (tracked)
        reassign(tracked, &new.tracked);
    else
        tracked = bpf_sk_storage_get(&sockets, sk, &new.tracked, BPF_SK_STORAGE_GET_F_CREATE);
    // Another thread that adopted the same socket at the same time may have been first.
    if (!tracked || tracked->generation != new.tracked.generation)
        return;
    tracked->arrival_stamp = arrival_stamp(tp, new.tracked.state);
    update_word(tp, tracked, 0, 1);
    ack_slot(&new);
}

// accept4(2) with a buffer for the address, before the descriptor exists. getpeername(2) also comes
// here, but then no slot is armed.
static __always_inline int handle_accept(struct bpf_sock_addr *ctx)
{
    struct bpf_sock *sk = ctx->sk;
    if (sk && sk->protocol == IPPROTO_TCP)
        adopt(sk);
    return 1;
}

SEC("cgroup/getpeername4")
int on_accept_ipv4(struct bpf_sock_addr *ctx)
{
    return handle_accept(ctx);
}

SEC("cgroup/getpeername6")
int on_accept_ipv6(struct bpf_sock_addr *ctx)
{
    return handle_accept(ctx);
}

// getsockname(2), which changes nothing. The library calls it to have a socket updated, or adopted
// if a slot is armed. The socket is locked, so the kernel has stored every state that it announced.
static __always_inline int handle_refresh(struct bpf_sock_addr *ctx)
{
    struct bpf_sock *sk = ctx->sk;
    if (!sk || sk->protocol != IPPROTO_TCP)
        return 1;
    adopt(sk);
    struct tracked *tracked = bpf_sk_storage_get(&sockets, sk, NULL, 0);
    if (!tracked)
        return 1;
    struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
    if (!tp)
        return 1;
    // The kernel may have skipped the program that would have reported the state.
    __u8 state = ((struct sock *)tp)->__sk_common.skc_state;
    __u64 stamp = arrival_stamp(tp, state);
    int is_event = stamp != tracked->arrival_stamp;
    WRITE_ONCE(tracked->state, state);
    WRITE_ONCE(tracked->has_failed, 0);
    tracked->arrival_stamp = stamp;
    update_word(tp, tracked, is_event, 1);
    return 1;
}

SEC("cgroup/getsockname4")
int on_refresh_ipv4(struct bpf_sock_addr *ctx)
{
    return handle_refresh(ctx);
}

SEC("cgroup/getsockname6")
int on_refresh_ipv6(struct bpf_sock_addr *ctx)
{
    return handle_refresh(ctx);
}

// Recomputes the word of a socket. Returns nonzero if an event seems to have been missed. The
// socket is not locked, so a mismatch may be a notification in flight: it counts only if the
// previous check found the same mismatch. The reported state is read before the socket: if a
// notification comes between the two reads, the exchanges below fail and nothing is reported.
static __always_inline int check_socket(struct sock *sk, struct tracked *tracked)
{
    struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
    if (!tp)
        return 0;
    __u32 reported_state = READ_ONCE(tracked->state);
    __u32 state = READ_ONCE(sk->__sk_common.skc_state);
    __u64 reported_stamp = READ_ONCE(tracked->arrival_stamp), stamp = arrival_stamp(tp, state);
    // An accept queue that was emptied is not an arrival.
    if (state == TCP_LISTEN && !stamp)
        stamp = reported_stamp;
    __u64 found = fingerprint(stamp, state);
    int is_suspect = found != fingerprint(reported_stamp, reported_state), is_event = 0;
    if (is_suspect && found == tracked->suspect) {
        // The exchanges fail if a program reports the event right now. A new state ends the
        // assumption of `has_failed`.
        if (__sync_val_compare_and_swap(&tracked->state, reported_state, state) == reported_state
            && reported_state != state)
            WRITE_ONCE(tracked->has_failed, 0);
        is_event = __sync_val_compare_and_swap(&tracked->arrival_stamp, reported_stamp, stamp)
            == reported_stamp;
        is_suspect = 0;
    }
    tracked->suspect = is_suspect ? found : 0;
    update_word(tp, tracked, is_event && stamp != reported_stamp, 0);
    return is_suspect;
}

// Checks a tracked socket and writes a byte to the iterator: 1 if the socket has to be checked
// again soon. The number of bytes that the daemon reads is therefore the number of sockets checked.
SEC("iter/bpf_sk_storage_map")
int sweep(struct bpf_iter__bpf_sk_storage_map *ctx)
{
    struct seq_file *seq = ctx->meta->seq;
    struct sock *sk = ctx->sk;
    struct tracked *tracked = ctx->value;
    if (!sk || !tracked)
        return 0;
    __u8 is_suspect = check_socket(sk, tracked);
    if (is_suspect)
        bpf_sk_storage_get(&suspects, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
    bpf_seq_write(seq, &is_suspect, 1);
    return 0;
}

// Checks a socket of `suspects` again and removes it from there.
SEC("iter/bpf_sk_storage_map")
int recheck(struct bpf_iter__bpf_sk_storage_map *ctx)
{
    struct sock *sk = ctx->sk;
    struct tracked *tracked = sk ? lookup_tracked(sk) : NULL;
    if (!tracked)
        return 0;
    bpf_sk_storage_delete(&suspects, sk);
    check_socket(sk, tracked);
    return 0;
}

// Writes the id of each BPF map of the machine, whichever process has it.
SEC("iter/bpf_map")
int list_maps(struct bpf_iter__bpf_map *ctx)
{
    struct seq_file *seq = ctx->meta->seq;
    struct bpf_map *map = ctx->map;
    __u32 id = map ? map->id : 0;
    if (id)
        bpf_seq_write(seq, &id, sizeof(id));
    return 0;
}
