// Sockets that packets have come for, looked at when those have been processed.
#ifndef ARRIVALS_H
#define ARRIVALS_H

#include "word.h"

// Room to send is made by acknowledgements, of which nothing tells once they are processed: the
// callback for samples of the round-trip time, which was tried, comes once a round, and not with
// the last of one. So a packet is noted when it arrives, and its socket looked at when the batch
// that it is part of has been processed. That also makes good what the tracepoints miss: one that
// is hit while its program runs already on the same CPU, in the process that the softirq has
// interrupted, is passed over (Linux 6.18, `__bpf_trace_run`).
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

#endif
