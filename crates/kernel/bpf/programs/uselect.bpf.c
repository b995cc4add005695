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

// `mark` is SO_RCVLOWAT; below it a window of less than a segment counts.
INLINE int has_bytes(int waiting, int mark, int window, int segment)
{
    return waiting > 0 && (waiting >= mark || window <= segment);
}

INLINE int is_readable(struct tcp_sock *tp)
{
    __u32 next = ONCE(tp->rcv_nxt);
    int window = ONCE(tp->rcv_wup) + ONCE(tp->rcv_wnd) - next;
    int mark = ONCE(((struct sock *)tp)->sk_rcvlowat);
    return has_bytes(next - ONCE(tp->copied_seq), mark, window, ONCE(tp->inet_conn.icsk_ack.rcv_mss));
}

INLINE int has_room(int queued, int bound, __u32 unsent, __u32 low)
{
    return queued < bound && bound - queued >= queued >> 1 && unsent << 1 < low;
}

INLINE int is_writable(struct tcp_sock *tp)
{
    struct sock *sk = (struct sock *)tp;
    __u32 low = ONCE(tp->notsent_lowat);
    if (!low)
        low = ONCE(sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_notsent_lowat);
    __u32 unsent = ONCE(tp->write_seq) - ONCE(tp->snd_nxt);
    return has_room(ONCE(sk->sk_wmem_queued), ONCE(sk->sk_sndbuf), unsent, low);
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

struct settling {
    struct tcp_sock *tp;
    struct tracked *tracked;
    uselect_u64 *place;
    __u64 word;
    __u32 risen;
    __u32 is_changed;
};

static long settle_once(__u32 unused, struct settling *now)
{
    // The process has given the index to another socket.
    if (now->word >> 32 != now->tracked->generation)
        return 1;
    __u64 word = (__u64)now->tracked->generation << 32 | poll_bits(now->tp, now->tracked);
    if (word == now->word)
        return 1;
    __u64 found = __sync_val_compare_and_swap(now->place, now->word, word);
    if (found == now->word) {
        now->risen |= word & ~found;
        now->is_changed = 1;
        found = word;
    }
    now->word = found;
    return 0;
}

// Makes the word what the socket is. The addition of 0 is a read behind a full barrier: what the
// kernel stored before the hook is seen by whoever exchanges the word after this read. By repeat()
// and not by a loop: the verifier would follow each of its rounds.
INLINE void settle(struct tcp_sock *tp, struct tracked *tracked)
{
    struct uselect_shown *shown = shown_of(tracked->region, tracked->identity);
    if (!tp || !shown)
        return;
    uselect_u64 *place = &shown->word[tracked->index & MASK];
    struct settling now = {
        .tp = tp,
        .tracked = tracked,
        .place = place,
        .word = __sync_fetch_and_add(place, 0),
    };
    repeat(TRIES, settle_once, &now, 0);
    if (now.word >> 32 != tracked->generation)
        return;
    number(tp, tracked, shown);
    if (now.is_changed)
        publish(tracked, shown, now.risen);
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

// getsockname(2), which changes nothing, and by which the library makes the kernel look at a socket.
// The socket is locked, so whatever was announced is stored by now.
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

// Room to send is made by acknowledgements, of which nothing tells once they are processed: the
// callback for samples of the round-trip time, which was tried, comes once a round, and not with the
// last of one. So a packet is noted when it arrives, and its socket looked at when the batch that it
// is part of has been processed. That also makes good what the tracepoints miss: one that is hit
// while its program runs already on the same CPU, in the process that the softirq has interrupted,
// is passed over (Linux 6.18, `__bpf_trace_run`).
#define ARRIVALS 128
struct arrival {
    // Its address. By then it may be another socket's, whose cookie is another one.
    __u64 sk;
    __u64 cookie;
    struct tracked tracked;
};
// Packets arrive and batches end in softirqs, which do not interrupt each other on a CPU.
struct arrivals {
    __u32 count;
    struct arrival list[ARRIVALS];
};
struct {
    NUMBER(type, MAP_PERCPU_ARRAY);
    NUMBER(max_entries, 1);
    TYPE(key, __u32);
    TYPE(value, struct arrivals);
} arrivals SEC(".maps");

SEC("cgroup_skb/ingress")
int arriving(struct __sk_buff *context)
{
    struct bpf_sock *sk = context->sk;
    __u32 zero = 0;
    if (!sk)
        return 1;
    sk = to_full(sk);
    if (!sk)
        return 1;
    struct tracked *tracked = storage_get(&sockets, sk, 0, 0);
    if (!tracked || ONCE(tracked->state) == TCP_LISTEN)
        return 1;
    struct arrivals *queue = map_lookup(&arrivals, &zero);
    if (!queue)
        return 1;
    __u32 count = queue->count;
    // Of a socket that has come right before, nothing new is to be noted. One too many is not
    // noted; the library looks again at sockets that stay full.
    if (count >= ARRIVALS || (count && queue->list[count - 1].sk == (__u64)sk))
        return 1;
    queue->list[count].sk = (__u64)sk;
    queue->list[count].cookie = cookie_of(context);
    queue->list[count].tracked = *tracked;
    queue->count = count + 1;
    return 1;
}

#define READ(to, from) read_kernel(&(to), sizeof(to), (const void *)&(from))

// What poll(2) would say but for urgent data, or GONE.
#define GONE (~0U)
INLINE __u32 arrival_bits(struct arrival *arrival)
{
    struct tcp_sock *tp = (struct tcp_sock *)arrival->sk;
    struct sock *sk = (struct sock *)tp;
    int queued = 0, bound = 0, error = 0, mark = 0;
    __u32 written = 0, sent = 0, low = 0, next = 0, copied = 0, wup = 0, window = 0, bits = 0;
    __u16 segment = 0;
    __u8 state = 0, shutdown = 0;
    __u64 cookie = 0;
    READ(state, sk->__sk_common.skc_state);
    READ(shutdown, sk->sk_shutdown);
    READ(error, sk->sk_err);
    READ(queued, sk->sk_wmem_queued);
    READ(bound, sk->sk_sndbuf);
    READ(written, tp->write_seq);
    READ(sent, tp->snd_nxt);
    READ(low, tp->notsent_lowat);
    if (!low) {
        struct net *net = 0;
        READ(net, sk->__sk_common.skc_net.net);
        READ(low, net->ipv4.sysctl_tcp_notsent_lowat);
    }
    READ(next, tp->rcv_nxt);
    READ(copied, tp->copied_seq);
    READ(mark, sk->sk_rcvlowat);
    READ(wup, tp->rcv_wup);
    READ(window, tp->rcv_wnd);
    READ(segment, tp->inet_conn.icsk_ack.rcv_mss);
    // Last: memory of TCP sockets stays that of TCP sockets for the time of a softirq, so what was
    // read before was this one's if it still is.
    READ(cookie, sk->__sk_common.skc_cookie.counter);
    if (cookie != arrival->cookie)
        return GONE;
    if (state == TCP_SYN_SENT || state == TCP_SYN_RECV || state == TCP_LISTEN)
        return 0;
    if (state == TCP_CLOSE || shutdown == SHUTDOWN_MASK)
        bits |= POLL_HUP;
    if (shutdown & RCV_SHUTDOWN)
        bits |= POLL_IN | POLL_RDNORM | POLL_RDHUP;
    if (has_bytes(next - copied, mark, wup + window - next, segment))
        bits |= POLL_IN | POLL_RDNORM;
    if (shutdown & SEND_SHUTDOWN || has_room(queued, bound, written - sent, low))
        bits |= POLL_OUT | POLL_WRNORM;
    return error ? bits | POLL_ERR : bits;
}

struct adding {
    struct arrival *arrival;
    uselect_u64 *place;
    __u64 word;
    __u32 added;
    __u32 is_changed;
};

static long add_once(__u32 unused, struct adding *now)
{
    if (now->word >> 32 != now->arrival->tracked.generation)
        return 1;
    __u32 bits = arrival_bits(now->arrival);
    if (bits == GONE)
        return 1;
    __u64 word = (now->word & ~(__u64)now->added) | bits;
    if (word == now->word)
        return 1;
    __u64 found = __sync_val_compare_and_swap(now->place, now->word, word);
    if (found == now->word) {
        now->added |= word & ~found;
        now->is_changed = 1;
        found = word;
    }
    now->word = found;
    return 0;
}

// As settle(), for a socket that is not locked, and whose state may just be changing: so bits are
// only added, and taken back if they have become wrong meanwhile.
static long add(__u32 at, void *unused)
{
    __u32 zero = 0;
    struct arrivals *queue = map_lookup(&arrivals, &zero);
    if (!queue || at >= ARRIVALS)
        return 1;
    struct arrival *arrival = &queue->list[at];
    struct tracked *tracked = &arrival->tracked;
    struct uselect_shown *shown = shown_of(tracked->region, tracked->identity);
    if (!shown)
        return 0;
    uselect_u64 *place = &shown->word[tracked->index & MASK];
    struct adding now = {
        .arrival = arrival,
        .place = place,
        .word = __sync_fetch_and_add(place, 0),
    };
    repeat(TRIES, add_once, &now, 0);
    if (now.is_changed)
        publish(tracked, shown, now.added);
    return 0;
}

SEC("tp_btf/napi_poll")
int arrived(__u64 *unused)
{
    __u32 zero = 0;
    struct arrivals *queue = map_lookup(&arrivals, &zero);
    if (!queue || !queue->count)
        return 0;
    __u32 count = queue->count;
    repeat(count < ARRIVALS ? count : ARRIVALS, add, 0, 0);
    queue->count = 0;
    return 0;
}
