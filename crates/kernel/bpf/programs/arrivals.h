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

// Of a socket, by its address.
struct reading {
    int queued;
    int bound;
    int error;
    int mark;
    __u32 written;
    __u32 sent;
    __u32 low;
    __u32 next;
    __u32 copied;
    __u32 update;
    __u32 window;
    __u32 segments;
    __u32 rtt;
    __u16 segment;
    __u16 urgent;
    __u8 state;
    __u8 shutdown;
};

// 0 if the socket is gone.
INLINE int read_socket(struct arrival *arrival, struct reading *reading)
{
    struct tcp_sock *tp = (struct tcp_sock *)arrival->sk;
    struct sock *sk = (struct sock *)tp;
    __u64 cookie = 0;
    READ(reading->state, sk->__sk_common.skc_state);
    READ(reading->shutdown, sk->sk_shutdown);
    READ(reading->error, sk->sk_err);
    READ(reading->queued, sk->sk_wmem_queued);
    READ(reading->bound, sk->sk_sndbuf);
    READ(reading->written, tp->write_seq);
    READ(reading->sent, tp->snd_nxt);
    READ(reading->low, tp->notsent_lowat);
    if (!reading->low) {
        struct net *net = 0;
        READ(net, sk->__sk_common.skc_net.net);
        READ(reading->low, net->ipv4.sysctl_tcp_notsent_lowat);
    }
    READ(reading->next, tp->rcv_nxt);
    READ(reading->copied, tp->copied_seq);
    READ(reading->mark, sk->sk_rcvlowat);
    READ(reading->update, tp->rcv_wup);
    READ(reading->window, tp->rcv_wnd);
    READ(reading->segment, tp->inet_conn.icsk_ack.rcv_mss);
    READ(reading->urgent, tp->urg_data);
    READ(reading->segments, tp->snd_cwnd);
    READ(reading->rtt, tp->srtt_us);
    // Last: memory of TCP sockets stays that of TCP sockets for the time of a softirq, so what was
    // read before was this one's if it still is.
    READ(cookie, sk->__sk_common.skc_cookie.counter);
    return cookie == arrival->cookie;
}

// As poll_bits().
INLINE __u32 reading_bits(struct reading *reading)
{
    __u32 bits = 0;
    __u8 state = reading->state, shutdown = reading->shutdown;
    int window = reading->update + reading->window - reading->next;
    if (state == TCP_SYN_SENT || state == TCP_SYN_RECV || state == TCP_LISTEN)
        return 0;
    if (state == TCP_CLOSE || shutdown == SHUTDOWN_MASK)
        bits |= POLL_HUP;
    if (shutdown & RCV_SHUTDOWN)
        bits |= POLL_IN | POLL_RDNORM | POLL_RDHUP;
    if (has_bytes(reading->next - reading->copied, reading->mark, window, reading->segment))
        bits |= POLL_IN | POLL_RDNORM;
    if (shutdown & SEND_SHUTDOWN ||
        has_room(reading->queued, reading->bound, reading->written - reading->sent, reading->low))
        bits |= POLL_OUT | POLL_WRNORM;
    if (reading->urgent)
        bits |= POLL_PRI;
    return reading->error ? bits | POLL_ERR : bits;
}

struct adding {
    struct arrival *arrival;
    struct uselect_numbers *numbers;
    uselect_u64 *place;
    __u64 word;
    __u32 added;
    __u32 is_changed;
};

static long add_once(__u32 unused, struct adding *now)
{
    if (now->word >> 32 != now->arrival->tracked.generation)
        return 1;
    struct reading reading = {};
    if (!read_socket(now->arrival, &reading))
        return 1;
    store_numbers(now->numbers, reading.next - reading.copied, reading.bound - reading.queued,
                  reading.segments, reading.rtt);
    __u64 word = (now->word & ~(__u64)now->added) | reading_bits(&reading);
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
        .numbers = &shown->numbers[tracked->index & MASK],
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
