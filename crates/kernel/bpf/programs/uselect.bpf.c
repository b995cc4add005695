// uselect: keeps the readiness of each tracked TCP socket in memory that its process reads.
//
// Each program recomputes what poll(2) would say from the socket itself and never counts events,
// so that a missed or repeated call costs nothing but time. docs/design/uselect.md has the races
// and why the orders here are enough; "pairs with" names the other side.
//
// No program is a trampoline (fentry): kernels that are locked down refuse those.
#include "arrivals.h"
#include "word.h"

// The kernel lends some helpers to programs under these terms alone; so these files are under them
// as well as under the project's.
char terms[] SEC("license") = "Dual MIT/GPL";

// The trackers of nearly all sockets of a machine are NULL, so this is what everybody pays.
INLINE struct tracked *tracked_of(struct sock *sk)
{
    return sk->sk_bpf_storage ? storage_get(&sockets, sk, 0, 0) : 0;
}

INLINE int settle_traced(struct sock *sk)
{
    struct tracked *tracked = tracked_of(sk);
    if (tracked)
        settle(to_tcp(sk), tracked);
    return 0;
}

// Bytes, an end, or of a listener a connection are there.
SEC("tp_btf/sk_data_ready")
int data_ready(__u64 *arguments)
{
    return settle_traced((struct sock *)arguments[0]);
}

// The process has received, or tried to.
SEC("tp_btf/sock_recv_length")
int received(__u64 *arguments)
{
    return settle_traced((struct sock *)arguments[0]);
}

// The same for splice(2) and sendfile(2), which the above does not tell of.
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

// An error is there. Of one that ends the connection the rest has been stored by now.
SEC("tp_btf/inet_sk_error_report")
int failed(__u64 *arguments)
{
    struct sock *sk = (struct sock *)arguments[0];
    struct tracked *tracked = tracked_of(sk);
    if (!tracked)
        return 0;
    ONCE(tracked->is_over) = 0;
    settle(to_tcp(sk), tracked);
    return 0;
}

// Comes before the state is stored, with the socket locked. A socket that closes in order has been
// shut down before; one that fails has its error already; one that is dissolved by connect(2) or
// shutdown(2) has neither.
SEC("tp_btf/inet_sock_set_state")
int changed(__u64 *arguments)
{
    struct sock *sk = (struct sock *)arguments[0];
    struct tracked *tracked = tracked_of(sk);
    if (!tracked)
        return 0;
    ONCE(tracked->is_over) = arguments[2] == TCP_CLOSE && ONCE(sk->sk_err);
    ONCE(tracked->state) = arguments[2];
    settle(to_tcp(sk), tracked);
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
    struct uselect_slot *slot;
    struct tracked tracked;
};

// Whether the thread that runs wants its next socket tracked, and as what.
INLINE int claim(struct claim *claim, __u8 state)
{
    __u64 ids = current_ids();
    __u32 id = ids >> 32;
    struct process *process = map_lookup(&processes, &id);
    if (!process)
        return 0;
    struct uselect_own *own = own_of(process->region);
    claim->shown = shown_of(process->region, process->identity);
    if (!own || !claim->shown)
        return 0;
    int at = armed_slot(process->region, ids);
    if (at < 0)
        return 0;
    claim->slot = &own->slot[at & (USELECT_THREADS - 1)];
    __u32 index = ONCE(claim->slot->armed);
    if (!index || index >= USELECT_SOCKETS)
        return 0;
    claim->tracked = (struct tracked){
        .identity = process->identity,
        .region = process->region,
        .index = index,
        .generation = __sync_fetch_and_add(&claim->shown->generations, 1) + 1,
        .state = state,
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

// accept4(2) with room for an address, before the descriptor is there; also getpeername(2), but
// then no slot is armed. The socket is locked.
INLINE int accepted(struct bpf_sock_addr *context)
{
    struct claim new;
    struct bpf_sock *sk = context->sk;
    if (!sk || sk->protocol != IPPROTO_TCP)
        return 1;
    struct tcp_sock *tp = to_tcp(sk);
    if (!tp || !claim(&new, ((struct sock *)tp)->__sk_common.skc_state))
        return 1;
    take(&new, 0);
    struct tracked *tracked =
        storage_get(&sockets, sk, &new.tracked, STORAGE_CREATE);
    if (!tracked)
        return 1;
    // It was somebody's already: then the slot stays armed and the socket whose it was.
    if (tracked->generation != new.tracked.generation ||
        tracked->identity != new.tracked.identity)
        return 1;
    settle(tp, tracked);
    tell(&new);
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
// socket. That is locked, so whatever was announced is stored by now.
INLINE int looked_at(struct bpf_sock_addr *context)
{
    struct bpf_sock *sk = context->sk;
    struct tracked *tracked = sk ? storage_get(&sockets, sk, 0, 0) : 0;
    if (!tracked)
        return 1;
    ONCE(tracked->is_over) = 0;
    settle(to_tcp(sk), tracked);
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
