// uselect: keeps the readiness of each tracked TCP socket in memory that its process reads.
//
// Each program recomputes what poll(2) would say from the socket itself and never counts packets,
// so that a missed or repeated call costs nothing but time. docs/design/uselect.md has the races
// and why the orders here are enough; "pairs with" names the other side.
//
// No program is a trampoline (fentry): kernels that are locked down refuse those.
//
// A kernel may leave a program out: one that is hit while it runs already on its CPU, in a process
// that was interrupted (Linux 6.18, `__bpf_trace_run`), and a guarded kernel in processes of its
// choice. So the daemon sweeps all tracked sockets now and then.
#include "word.h"

// The kernel lends some helpers to programs under these terms alone; so these files are under them
// as well as under the project's.
char terms[] SEC("license") = "Dual MIT/GPL";

// The trackers of nearly all sockets of a machine are NULL, so this is what everybody pays.
INLINE struct tracked *tracked_of(struct sock *sk)
{
    return sk->sk_bpf_storage ? storage_get(&sockets, sk, 0, 0) : 0;
}

// Of what a socket has received as a whole, a number that is another one after each arrival. Of a
// connection it is made of who is there and when: the next one may well be at the same address.
INLINE __u64 arrived(struct tcp_sock *tp, __u32 state)
{
    if (state != TCP_LISTEN)
        return ONCE(tp->rcv_nxt);
    struct request_sock *last = ONCE(tp->inet_conn.icsk_accept_queue.rskq_accept_tail);
    if (!last)
        return 0;
    __u64 hash = ONCE(last->__req_common.skc_hash), port = ONCE(last->__req_common.skc_dport);
    return hash << 32 ^ port << 32 ^ ONCE(last->ts_recent);
}

INLINE __u64 fingerprint(__u64 arrived, __u32 state)
{
    return arrived << 4 ^ state;
}

// Bytes, an end, or of a listener a connection are there.
INLINE int arriving(struct sock *sk)
{
    struct tracked *tracked = tracked_of(sk);
    if (!tracked)
        return 0;
    struct tcp_sock *tp = to_tcp(sk);
    if (!tp)
        return 0;
    tracked->arrived = arrived(tp, ONCE(tracked->state));
    settle(tp, tracked, 1, 0);
    return 0;
}

SEC("tp_btf/sk_data_ready")
int data_ready(__u64 *arguments)
{
    return arriving((struct sock *)arguments[0]);
}

// An error is there. Of one that ends the connection the rest has been stored by now.
INLINE int failing(struct sock *sk)
{
    struct tracked *tracked = tracked_of(sk);
    if (!tracked)
        return 0;
    ONCE(tracked->is_over) = 0;
    settle(to_tcp(sk), tracked, 0, 0);
    return 0;
}

SEC("tp_btf/inet_sk_error_report")
int failed(__u64 *arguments)
{
    return failing((struct sock *)arguments[0]);
}

// Comes before the state is stored, with the socket locked. A socket that closes in order has been
// shut down before; one that fails has its error already; one that is dissolved by connect(2) or
// shutdown(2) has neither.
INLINE int changing(struct sock *sk, __u8 state)
{
    struct tracked *tracked = tracked_of(sk);
    if (!tracked)
        return 0;
    struct tcp_sock *tp = to_tcp(sk);
    ONCE(tracked->is_over) = state == TCP_CLOSE && ONCE(sk->sk_err);
    ONCE(tracked->state) = state;
    // The answer to connect(2) has moved what has arrived, which is told by this.
    if (tp && state == TCP_ESTABLISHED)
        tracked->arrived = arrived(tp, state);
    settle(tp, tracked, 0, 0);
    return 0;
}

SEC("tp_btf/inet_sock_set_state")
int changed(__u64 *arguments)
{
    return changing((struct sock *)arguments[0], arguments[2]);
}

INLINE int settle_traced(struct sock *sk)
{
    struct tracked *tracked = tracked_of(sk);
    if (tracked && !tracked->is_lean)
        settle(to_tcp(sk), tracked, 0, 0);
    return 0;
}

// The process has received, by whichever call: its bytes have been counted, and the socket is
// locked.
SEC("tp_btf/tcp_rcv_space_adjust")
int taken(__u64 *arguments)
{
    return settle_traced((struct sock *)arguments[0]);
}

// The process has sent, or tried to.
SEC("tp_btf/sock_send_length")
int sent(__u64 *arguments)
{
    return settle_traced((struct sock *)arguments[0]);
}

// A process has called execve(2). What it has become has not registered, whichever descriptors it
// was left: a sibling that shares the memory could arm slots for it, and it may have privileges.
SEC("tp_btf/sched_process_exec")
int executed(__u64 *arguments)
{
    __u32 id = current_ids() >> 32;
    map_delete(&processes, &id);
    return 0;
}

// Which slot the thread that runs has armed, or -1. At most USELECT_PROBES are looked at. Neither
// inlined nor static: then the verifier looks at it once, not at each way through the loop with all
// that follows.
__attribute__((noinline)) int armed_slot(__u32 region, __u32 thread)
{
    struct uselect_own *own = own_of(region);
    if (!own)
        return -1;
    for (__u32 i = 0; i < USELECT_PROBES; i++) {
        __u32 at = (thread + i) & (USELECT_THREADS - 1);
        if (ONCE(own->slot[at].thread) == thread)
            return ONCE(own->slot[at].armed) ? at : -1;
    }
    return -1;
}

struct claim {
    struct uselect_shown *shown;
    struct uselect_own *own;
    struct uselect_slot *slot;
    struct tracked tracked;
};

// Whether a process has not become more than it was: one may get here that has executed a program
// with privileges while the daemon registered it. Who was root may be anybody.
INLINE int is_as_registered(struct process *process)
{
    struct cred *now = current_task()->cred;
    return !process->user
        || (ONCE(now->euid.val) == process->user && ONCE(now->egid.val) == process->group);
}

// Whether the thread that runs wants its next socket tracked, and as what.
INLINE int claim(struct claim *claim, __u8 state)
{
    __u64 ids = current_ids();
    __u32 id = ids >> 32;
    struct process *process = map_lookup(&processes, &id);
    if (!process || !is_as_registered(process))
        return 0;
    claim->own = own_of(process->region);
    claim->shown = shown_of(process->region, process->identity);
    if (!claim->own || !claim->shown)
        return 0;
    int at = armed_slot(process->region, ids);
    if (at < 0)
        return 0;
    claim->slot = &claim->own->slot[at & (USELECT_THREADS - 1)];
    __u32 index = ONCE(claim->slot->armed);
    if (!index || index >= USELECT_SOCKETS)
        return 0;
    claim->tracked = (struct tracked){
        .identity = process->identity,
        .region = process->region,
        .index = index,
        .generation = __sync_fetch_and_add(&claim->shown->generations, 1) + 1,
        .state = state,
        .is_lean = process->is_lean,
    };
    return 1;
}

// The word is there before the kernel's hooks know the socket, and before the process does.
INLINE void take(struct claim *claim, __u32 bits)
{
    __u32 index = claim->tracked.index & MASK;
    __u64 word = (__u64)claim->tracked.generation << 32 | bits;
    // What the last socket of this index had is not this one's.
    store_numbers(&claim->shown->numbers[index], 0, 0, 0, 0);
    ONCE(claim->own->threshold[index]) = 0;
    __sync_lock_test_and_set(&claim->shown->word[index], word);
}

INLINE void tell(struct claim *claim)
{
    ONCE(claim->slot->generation) = claim->tracked.generation;
    ONCE(claim->slot->taken) = claim->tracked.index;
    ONCE(claim->slot->armed) = 0;
}

// socket(2). A fresh socket says that it is closed, and that a write would not wait.
SEC("cgroup/sock_create")
int created(struct bpf_sock *context)
{
    struct claim new;
    if (context->type != SOCK_STREAM || context->protocol != IPPROTO_TCP)
        return 1;
    if (context->family != AF_INET && context->family != AF_INET6)
        return 1;
    if (!claim(&new, TCP_CLOSE))
        return 1;
    take(&new, POLL_OUT | POLL_WRNORM | POLL_HUP);
    if (storage_get(&sockets, context, &new.tracked, STORAGE_CREATE))
        tell(&new);
    return 1;
}

// Whether the socket is still what a registered process tracks by another descriptor, or another
// process does: then it stays so.
INLINE int is_in_use(struct tracked *tracked)
{
    struct uselect_shown *shown = shown_of(tracked->region, tracked->identity);
    struct uselect_own *own = own_of(tracked->region);
    if (!shown || !own)
        return 0;
    __u32 index = tracked->index & MASK;
    return ONCE(shown->word[index]) >> 32 == tracked->generation && ONCE(own->descriptor[index]);
}

// Who looks at a socket without its lock (sent(), look_at()) finds what it was, what it is, or that
// it is nobody's. A part of either would be enough to spoil the word of another socket, as each
// region counts generations for itself. Pairs with settle(): the identity goes first and comes
// last; there it is read first and, behind the rest, once more.
INLINE void give(struct tracked *tracked, struct tracked *new)
{
    __u64 identity = new->identity;
    __sync_lock_test_and_set(&tracked->identity, 0);
    new->identity = 0;
    *tracked = *new;
    __sync_lock_test_and_set(&tracked->identity, identity);
}

// Tracks a socket that is there and locked, if the thread that runs wants that.
INLINE void adopt(struct bpf_sock *sk)
{
    struct claim new;
    struct tcp_sock *tp = to_tcp(sk);
    if (!tp || !claim(&new, ((struct sock *)tp)->__sk_common.skc_state))
        return;
    struct tracked *tracked = storage_get(&sockets, sk, 0, 0);
    if (tracked && is_in_use(tracked))
        return;
    take(&new, 0);
    if (tracked)
        give(tracked, &new.tracked);
    else
        tracked = storage_get(&sockets, sk, &new.tracked, STORAGE_CREATE);
    // A thread that adopts the same socket at the same time has been first.
    if (!tracked || tracked->generation != new.tracked.generation)
        return;
    tracked->arrived = arrived(tp, new.tracked.state);
    settle(tp, tracked, 0, 1);
    tell(&new);
}

// accept4(2) with room for an address, before the descriptor is there; also getpeername(2), but
// then no slot is armed.
INLINE int accepted(struct bpf_sock_addr *context)
{
    struct bpf_sock *sk = context->sk;
    if (sk && sk->protocol == IPPROTO_TCP)
        adopt(sk);
    return 1;
}

SEC("cgroup/getpeername4")
int accepted4(struct bpf_sock_addr *context)
{
    return accepted(context);
}

SEC("cgroup/getpeername6")
int accepted6(struct bpf_sock_addr *context)
{
    return accepted(context);
}

// getsockname(2), which changes nothing, and by which the library makes the kernel look at a
// socket, or take it over if a slot is armed. It is locked, so whatever was announced is stored by
// now.
INLINE int looked_at(struct bpf_sock_addr *context)
{
    struct bpf_sock *sk = context->sk;
    if (!sk || sk->protocol != IPPROTO_TCP)
        return 1;
    adopt(sk);
    struct tracked *tracked = storage_get(&sockets, sk, 0, 0);
    if (!tracked)
        return 1;
    struct tcp_sock *tp = to_tcp(sk);
    if (!tp)
        return 1;
    // Its announcement may have been passed over.
    __u8 state = ((struct sock *)tp)->__sk_common.skc_state;
    __u64 now = arrived(tp, state);
    int is_event = now != tracked->arrived;
    ONCE(tracked->state) = state;
    ONCE(tracked->is_over) = 0;
    tracked->arrived = now;
    settle(tp, tracked, is_event, 1);
    return 1;
}

SEC("cgroup/getsockname4")
int looked4(struct bpf_sock_addr *context)
{
    return looked_at(context);
}

SEC("cgroup/getsockname6")
int looked6(struct bpf_sock_addr *context)
{
    return looked_at(context);
}

// Makes what is told of a socket what it is. True if an event seems to be untold: the socket is not
// locked, so what differs may just be on its way to be told, and counts only if the look before has
// doubted the same. What was told is read first: what is told meanwhile differs from nothing then.
INLINE int look_at(struct sock *sk, struct tracked *tracked)
{
    struct tcp_sock *tp = to_tcp(sk);
    if (!tp)
        return 0;
    __u32 told = ONCE(tracked->state), state = ONCE(sk->__sk_common.skc_state);
    __u64 before = ONCE(tracked->arrived), now = arrived(tp, state);
    // A queue that was emptied is nothing that came.
    if (state == TCP_LISTEN && !now)
        now = before;
    __u64 found = fingerprint(now, state);
    int differs = found != fingerprint(before, told), is_event = 0;
    if (differs && found == tracked->doubted) {
        // Unless it is told right now. What was assumed of the last state is over.
        if (__sync_val_compare_and_swap(&tracked->state, told, state) == told && told != state)
            ONCE(tracked->is_over) = 0;
        is_event = __sync_val_compare_and_swap(&tracked->arrived, before, now) == before;
        differs = 0;
    }
    tracked->doubted = differs ? found : 0;
    settle(tp, tracked, is_event && now != before, 0);
    return differs;
}

// Writes a byte for each socket, so that who reads so many has had so many looked at: 1 for one that
// is to be looked at again.
SEC("iter/bpf_sk_storage_map")
int swept(__u64 *arguments)
{
    struct seq_file *file = *(struct seq_file **)arguments[0];
    struct sock *sk = (struct sock *)arguments[2];
    struct tracked *tracked = (struct tracked *)arguments[3];
    if (!sk || !tracked)
        return 0;
    __u8 is_doubted = look_at(sk, tracked);
    if (is_doubted)
        storage_get(&doubted, sk, 0, STORAGE_CREATE);
    seq_write(file, &is_doubted, 1);
    return 0;
}

SEC("iter/bpf_sk_storage_map")
int doubted_again(__u64 *arguments)
{
    struct sock *sk = (struct sock *)arguments[2];
    struct tracked *tracked = sk ? tracked_of(sk) : 0;
    if (!tracked)
        return 0;
    storage_delete(&doubted, sk);
    look_at(sk, tracked);
    return 0;
}

// Writes the number of each map of the machine: what is there, whoever has it.
SEC("iter/bpf_map")
int counted(__u64 *arguments)
{
    struct seq_file *file = *(struct seq_file **)arguments[0];
    struct bpf_map *map = (struct bpf_map *)arguments[1];
    __u32 id = map ? map->id : 0;
    if (id)
        seq_write(file, &id, sizeof(id));
    return 0;
}
