// uselect: keeps the readiness of each tracked TCP socket in memory that its process reads.
//
// Each program recomputes what poll(2) would say from the socket itself and never counts events,
// so that a missed or repeated call costs nothing but time. docs/design/uselect.md has the races
// and why the orders here are enough; "pairs with" names the other side.
//
// No program is a trampoline (fentry): kernels that are locked down refuse those.
#include "kernel.h"
#include "layout.h"

// The kernel lends some helpers to programs under these terms alone; so these files are under them
// as well as under the project's.
char terms[] SEC("license") = "Dual MIT/GPL";

#define MASK (USELECT_SOCKETS - 1)
// A writer that finds its value outdated writes again. More often than this only when others write
// at the same time, and those look again themselves.
#define TRIES 8

// What is kept with a socket.
struct tracked {
    __u64 identity;
    __u32 region;
    __u32 index;
    __u32 generation;
    // The state that was announced last. The socket's own is stored after the announcement, so who
    // computes from that could undo what the announcement has just written.
    __u8 state;
    // It has failed, and the kernel shuts both directions down right after the announcement.
    __u8 is_over;
    __u16 padding;
};
struct process {
    __u64 identity;
    __u32 region;
    __u32 padding;
};

struct {
    NUMBER(type, MAP_SK_STORAGE);
    NUMBER(map_flags, NO_PREALLOC);
    TYPE(key, int);
    TYPE(value, struct tracked);
} sockets SEC(".maps");
// By process id: its registration.
struct {
    NUMBER(type, MAP_HASH);
    NUMBER(max_entries, USELECT_REGIONS);
    TYPE(key, __u32);
    TYPE(value, struct process);
} processes SEC(".maps");

// Sizes, not types: of what is named inside a map of maps the compiler describes only the name.
struct shown_map {
    NUMBER(type, MAP_ARRAY);
    NUMBER(map_flags, MMAPABLE);
    NUMBER(max_entries, 1);
    NUMBER(key_size, sizeof(__u32));
    NUMBER(value_size, sizeof(struct uselect_shown));
};
struct own_map {
    NUMBER(type, MAP_ARRAY);
    NUMBER(map_flags, MMAPABLE);
    NUMBER(max_entries, 1);
    NUMBER(key_size, sizeof(__u32));
    NUMBER(value_size, sizeof(struct uselect_own));
};
struct ring_map {
    NUMBER(type, MAP_RINGBUF);
    NUMBER(max_entries, 4096);
};
// By region. Arrays, whose lookup is a load and a comparison; `identity` says whose it is.
struct {
    NUMBER(type, MAP_ARRAY_OF_MAPS);
    NUMBER(max_entries, USELECT_REGIONS);
    TYPE(key, __u32);
    struct shown_map *values[];
} shown_maps SEC(".maps");
struct {
    NUMBER(type, MAP_ARRAY_OF_MAPS);
    NUMBER(max_entries, USELECT_REGIONS);
    TYPE(key, __u32);
    struct own_map *values[];
} own_maps SEC(".maps");
struct {
    NUMBER(type, MAP_ARRAY_OF_MAPS);
    NUMBER(max_entries, USELECT_REGIONS);
    TYPE(key, __u32);
    struct ring_map *values[];
} rings SEC(".maps");

INLINE struct uselect_shown *shown_of(__u32 region, __u64 identity)
{
    void *map = map_lookup(&shown_maps, &region);
    __u32 zero = 0;
    if (!map)
        return 0;
    struct uselect_shown *shown = map_lookup(map, &zero);
    return shown && shown->identity == identity ? shown : 0;
}

INLINE struct uselect_own *own_of(__u32 region)
{
    void *map = map_lookup(&own_maps, &region);
    __u32 zero = 0;
    return map ? map_lookup(map, &zero) : 0;
}

INLINE int is_readable(struct tcp_sock *tp)
{
    struct sock *sk = (struct sock *)tp;
    int waiting = ONCE(tp->rcv_nxt) - ONCE(tp->copied_seq);
    int low = ONCE(sk->sk_rcvlowat);
    if (waiting <= 0)
        return 0;
    if (low < 1)
        low = 1;
    if (waiting >= low)
        return 1;
    int window = ONCE(tp->rcv_wup) + ONCE(tp->rcv_wnd) - ONCE(tp->rcv_nxt);
    return window <= ONCE(tp->inet_conn.icsk_ack.rcv_mss);
}

INLINE int is_writable(struct tcp_sock *tp)
{
    struct sock *sk = (struct sock *)tp;
    int queued = ONCE(sk->sk_wmem_queued), room = ONCE(sk->sk_sndbuf);
    if (queued >= room || room - queued < queued >> 1)
        return 0;
    __u32 low = ONCE(tp->notsent_lowat);
    if (!low)
        low = ONCE(sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_notsent_lowat);
    __u32 unsent = ONCE(tp->write_seq) - ONCE(tp->snd_nxt);
    return unsent << 1 < low;
}

// What tcp_poll() of Linux 6.18 says, but for what docs/design/uselect.md lists.
INLINE __u32 poll_bits(struct tcp_sock *tp, struct tracked *tracked)
{
    struct sock *sk = (struct sock *)tp;
    __u8 state = ONCE(tracked->state);
    if (state == TCP_LISTEN)
        return ONCE(tp->inet_conn.icsk_accept_queue.rskq_accept_head) ? POLL_IN | POLL_RDNORM : 0;
    __u32 bits = 0;
    __u8 shutdown = ONCE(tracked->is_over) ? SHUTDOWN_MASK : ONCE(sk->sk_shutdown);
    if (shutdown == SHUTDOWN_MASK || state == TCP_CLOSE)
        bits |= POLL_HUP;
    if (shutdown & RCV_SHUTDOWN)
        bits |= POLL_IN | POLL_RDNORM | POLL_RDHUP;
    if (state != TCP_SYN_SENT && (state != TCP_SYN_RECV || ONCE(tp->fastopen_rsk))) {
        if (is_readable(tp))
            bits |= POLL_IN | POLL_RDNORM;
        if (shutdown & SEND_SHUTDOWN || is_writable(tp))
            bits |= POLL_OUT | POLL_WRNORM;
        if (ONCE(tp->urg_data) & TCP_URG_VALID)
            bits |= POLL_PRI;
    }
    if (ONCE(sk->sk_err) || ONCE(sk->sk_error_queue.qlen))
        bits |= POLL_ERR;
    return bits;
}

INLINE void number(struct tcp_sock *tp, struct tracked *tracked, struct uselect_shown *shown)
{
    struct sock *sk = (struct sock *)tp;
    struct uselect_numbers *numbers = &shown->numbers[tracked->index & MASK];
    int room = ONCE(sk->sk_sndbuf) - ONCE(sk->sk_wmem_queued);
    ONCE(numbers->readable) = ONCE(tracked->state) == TCP_LISTEN
        ? ONCE(sk->sk_ack_backlog)
        : ONCE(tp->rcv_nxt) - ONCE(tp->copied_seq);
    ONCE(numbers->room) = room > 0 ? room : 0;
    ONCE(numbers->window) = ONCE(tp->snd_cwnd);
    ONCE(numbers->rtt_us) = ONCE(tp->srtt_us) >> 3;
}

// Read-modify-write only if the bit is wrong. A writer that was outdated repairs it: it looks at
// the word again behind its own write.
INLINE void set_bit(uselect_u64 *bits, __u32 fd, __u32 wanted)
{
    uselect_u64 *word = &bits[(fd & MASK) / 64], bit = 1ULL << (fd & 63);
    if (!wanted == !(ONCE(*word) & bit))
        return;
    if (wanted)
        __sync_fetch_and_or(word, bit);
    else
        __sync_fetch_and_and(word, ~bit);
}

// Bitmaps after the word; who is told after the bitmaps. The bits are made those of whichever
// socket the descriptor is now: a descriptor that was closed and opened anew meanwhile gets its own
// again by whoever spoils them. The word of index 0 is always 0, so no socket is no bits.
// Pairs with Pages::publish (numbers are stored, then the word read) and Sleep::begin (`sleeping`
// is stored, then words and bits read).
INLINE void publish(struct tracked *tracked, struct uselect_shown *shown, __u32 risen)
{
    struct uselect_own *own = own_of(tracked->region);
    if (!own)
        return;
    __u32 fd = ONCE(own->descriptor[tracked->index & MASK]) - 1;
    if (fd >= USELECT_SOCKETS)
        return;
    for (int i = 0; i < TRIES; i++) {
        __u32 index = ONCE(own->index[fd & MASK]);
        __u64 word = ONCE(shown->word[index & MASK]);
        set_bit(own->read, fd, word & (POLL_IN | POLL_HUP | POLL_ERR));
        set_bit(own->write, fd, word & (POLL_OUT | POLL_ERR));
        set_bit(own->except, fd, word & POLL_PRI);
        if (ONCE(own->index[fd & MASK]) == index && ONCE(shown->word[index & MASK]) == word)
            break;
    }
    if (!ONCE(own->sleeping) || !(ONCE(own->interest[fd & MASK]) & risen))
        return;
    if (!__sync_lock_test_and_set(&own->sleeping, 0))
        return;
    void *ring = map_lookup(&rings, &tracked->region);
    __u64 nothing = 0;
    if (ring)
        ring_output(ring, &nothing, sizeof(nothing), RING_FORCE_WAKEUP);
}

// Makes the word what the socket is. The addition of 0 is a read behind a full barrier: what the
// kernel stored before the hook is seen by whoever exchanges the word after this read.
INLINE void settle(struct tcp_sock *tp, struct tracked *tracked)
{
    struct uselect_shown *shown = shown_of(tracked->region, tracked->identity);
    if (!tp || !shown)
        return;
    uselect_u64 *place = &shown->word[tracked->index & MASK];
    __u64 generation = (__u64)tracked->generation << 32;
    __u64 word = __sync_fetch_and_add(place, 0);
    __u32 risen = 0, is_changed = 0;
    for (int i = 0; i < TRIES; i++) {
        // The process has given the index to another socket.
        if (word >> 32 != tracked->generation)
            return;
        __u64 now = generation | poll_bits(tp, tracked);
        if (now == word)
            break;
        __u64 found = __sync_val_compare_and_swap(place, word, now);
        if (found == word) {
            risen |= now & ~word;
            is_changed = 1;
            word = now;
        } else {
            word = found;
        }
    }
    number(tp, tracked, shown);
    if (is_changed)
        publish(tracked, shown, risen);
}

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
    int callbacks = OPS_RTT_FLAG;
    set_option(context, SOL_TCP, SOCK_OPS_CB_FLAGS, &callbacks, sizeof(callbacks));
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

// An acknowledgement with a sample of the round-trip time, after what it acknowledged was freed:
// the only word of room to send that there is without a trampoline.
SEC("sockops")
int acknowledged(struct bpf_sock_ops *context)
{
    if (context->op != OPS_RTT && context->op != OPS_ACTIVE_ESTABLISHED)
        return 1;
    struct bpf_sock *sk = context->sk;
    if (!sk)
        return 1;
    struct tracked *tracked = storage_get(&sockets, sk, 0, 0);
    if (!tracked)
        return 1;
    if (context->op == OPS_ACTIVE_ESTABLISHED)
        set_callbacks(context, context->callbacks | OPS_RTT_FLAG);
    settle(to_tcp(sk), tracked);
    return 1;
}
