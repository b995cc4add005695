// A socket's word and bits: what poll(2) would say, stored and told.
#ifndef WORD_H
#define WORD_H

#include "regions.h"

// `mark` is SO_RCVLOWAT; below it a window of less than a segment counts.
INLINE int has_bytes(int waiting, int mark, int window, int segment)
{
    return waiting > 0 && (waiting >= mark || window <= segment);
}

INLINE int is_readable(struct tcp_sock *tp, int threshold)
{
    __u32 next = ONCE(tp->rcv_nxt);
    int window = ONCE(tp->rcv_wup) + ONCE(tp->rcv_wnd) - next;
    int mark = ONCE(((struct sock *)tp)->sk_rcvlowat);
    int segment = ONCE(tp->inet_conn.icsk_ack.rcv_mss);
    if (mark < threshold)
        mark = threshold;
    return has_bytes(next - ONCE(tp->copied_seq), mark, window, segment);
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

// What tcp_poll() of Linux 6.18 says, but for what docs/design/uselect.md lists. With urgent data
// at hand, to come, or just taken out, it depends on a mark that moves without a word, and with
// SO_RCVLOWAT on a window that does; what the kernel decrypts (TCP_ULP) or redirects (sockmap) waits
// in other queues: POLL_PRI and DOUBT say that the kernel has to be asked.
INLINE __u32 poll_bits(struct tcp_sock *tp, struct tracked *tracked, int threshold)
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
        if (is_readable(tp, threshold))
            bits |= POLL_IN | POLL_RDNORM;
        if (shutdown & SEND_SHUTDOWN || is_writable(tp))
            bits |= POLL_OUT | POLL_WRNORM;
        if (ONCE(tp->urg_data))
            bits |= POLL_PRI;
        if (ONCE(sk->sk_rcvlowat) > 1 || ONCE(sk->__sk_common.skc_prot)->sock_is_readable)
            bits |= USELECT_DOUBT;
    }
    if (ONCE(sk->sk_err) || ONCE(sk->sk_error_queue.qlen))
        bits |= POLL_ERR;
    return bits;
}

#define ROOM (POLL_OUT | POLL_WRNORM)

INLINE void store_numbers(struct uselect_numbers *numbers, __u32 readable, int room, __u32 window,
                          __u32 rtt)
{
    ONCE(numbers->readable) = readable;
    ONCE(numbers->room) = room > 0 ? room : 0;
    ONCE(numbers->window) = window;
    // The kernel keeps eight times the time.
    ONCE(numbers->rtt_us) = rtt >> 3;
}

INLINE void number(struct tcp_sock *tp, __u32 state, struct uselect_numbers *numbers)
{
    struct sock *sk = (struct sock *)tp;
    __u32 readable = state == TCP_LISTEN
        ? ONCE(sk->sk_ack_backlog)
        : ONCE(tp->rcv_nxt) - ONCE(tp->copied_seq);
    int room = ONCE(sk->sk_sndbuf) - ONCE(sk->sk_wmem_queued);
    store_numbers(numbers, readable, room, ONCE(tp->snd_cwnd), ONCE(tp->srtt_us));
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

INLINE __u32 reading(__u32 bits)
{
    return bits & (POLL_IN | POLL_HUP | POLL_ERR);
}

INLINE __u32 writing(__u32 bits)
{
    return bits & (POLL_OUT | POLL_ERR);
}

INLINE __u32 excepting(__u32 bits)
{
    return bits & (POLL_PRI | POLL_ERR | USELECT_DOUBT);
}

// The bits of a descriptor are made those of whichever socket it is now: one that was closed and
// opened anew meanwhile gets its own again by whoever spoils them. The word of index 0 is always 0,
// so no socket is no bits. Pairs with Pages::publish: numbers are stored, then the word read.
INLINE void show(struct uselect_own *own, struct uselect_shown *shown, __u32 fd)
{
    for (int i = 0; i < TRIES; i++) {
        __u32 index = ONCE(own->index[fd & MASK]);
        __u64 word = ONCE(shown->word[index & MASK]);
        set_bit(own->read, fd, reading(word));
        set_bit(own->write, fd, writing(word));
        set_bit(own->except, fd, excepting(word));
        if (ONCE(own->index[fd & MASK]) == index && ONCE(shown->word[index & MASK]) == word)
            break;
    }
}

// Lean: what has happened is added. A bit too many, for a descriptor that was opened anew, is one
// read that finds nothing.
INLINE void add(struct uselect_own *own, __u32 fd, __u32 told)
{
    if (reading(told))
        set_bit(own->read, fd, 1);
    if (writing(told))
        set_bit(own->write, fd, 1);
    if (excepting(told))
        set_bit(own->except, fd, 1);
}

// Pairs with Sleeper::begin (`sleeping` is stored, then words and bits read).
INLINE void wake(struct uselect_sleeper *sleeper, __u32 region, __u32 at)
{
    if (!ONCE(sleeper->sleeping) || !__sync_lock_test_and_set(&sleeper->sleeping, 0))
        return;
    __u32 place = region * USELECT_SLEEPERS + at;
    void *ring = map_lookup(&rings, &place);
    __u64 nothing = 0;
    if (ring)
        ring_output(ring, &nothing, sizeof(nothing), RING_FORCE_WAKEUP);
}

struct settling {
    struct tcp_sock *tp;
    struct tracked *tracked;
    // Whose socket it is, and which: the tracked one's, as they were together.
    __u32 region;
    __u32 index;
    __u32 generation;
    uselect_u64 *place;
    __u64 word;
    int threshold;
    // What an arrival may tell of, though it may have been told before; 0 where nothing has come.
    __u32 arrived;
    // Bits to tell of: those that were added, or that the event is about.
    __u32 told;
    __u32 fallen;
    __u32 is_changed;
};

static long settle_once(__u32 unused, struct settling *now)
{
    // The process has given the index to another socket.
    if (now->word >> 32 != now->generation)
        return 1;
    __u32 bits = poll_bits(now->tp, now->tracked, now->threshold), before = now->word & 0xFFFF;
    if (bits == before && !now->arrived)
        return 1;
    // Without branches, each of which the verifier would follow with each value of the bits.
    __u32 told = bits & (now->arrived | ~before);
    __u32 edges = (now->word >> 16) + ((told + 0xFFFF) >> 16) & 0xFFFF;
    __u64 word = (__u64)now->generation << 32 | edges << 16 | bits;
    __u64 found = __sync_val_compare_and_swap(now->place, now->word, word);
    if (found == now->word) {
        now->told |= told;
        now->fallen |= before & ~bits;
        now->is_changed |= bits ^ before;
        now->arrived = 0;
        found = word;
    }
    now->word = found;
    return 0;
}

// Bitmaps after the word; who is told after the bitmaps.
INLINE void publish(struct settling *now, struct uselect_shown *shown, struct uselect_own *own,
                    int is_exact)
{
    __u32 fd = ONCE(own->descriptor[now->index & MASK]) - 1;
    if (fd >= USELECT_SOCKETS)
        return;
    // Who is told of anything is told of room that there is, too.
    if (!is_exact)
        add(own, fd, now->told | (now->word & ROOM));
    else
        show(own, shown, fd);
    // Of room that has gone somebody wants to know when it is back.
    if (!now->told && !(now->fallen & POLL_OUT))
        return;
    set_bit(own->changed, fd, 1);
    __u32 interest = ONCE(own->interest[fd & MASK]);
    if (!interest)
        return;
    __u32 at = interest >> 16 & (USELECT_SLEEPERS - 1);
    struct uselect_sleeper *sleeper = &own->sleeper[at];
    // Also if the bit above was there: who has taken this back may not have read that yet. Pairs
    // with State::scan, which takes this before it reads that.
    set_bit(sleeper->changed_words, (fd & MASK) / 64, 1);
    if (now->told & interest)
        wake(sleeper, now->region, at);
}

// Makes the word what the socket is, until it stays so: the socket may be changed by others
// meanwhile, who then find the word as they want it and write nothing. The word is read behind a
// full barrier, as they store what they changed before one and look behind it: an addition of 0,
// which a compiler leaves one while the result is read. By repeat() and not by a loop: the verifier
// would follow each of its rounds.
//
// Exact is what its process wants, and who is asked to look: `is_asked`.
INLINE void settle(struct tcp_sock *tp, struct tracked *tracked, __u32 is_event, int is_asked)
{
    __u64 identity = ONCE(tracked->identity);
    struct settling now = {
        .tp = tp,
        .tracked = tracked,
        .region = ONCE(tracked->region),
        .index = ONCE(tracked->index),
        .generation = ONCE(tracked->generation),
        // Without room, which is there before: else bytes short of a threshold were told by it.
        .arrived = is_event ? ~ROOM : 0,
    };
    struct uselect_shown *shown = shown_of(now.region, identity);
    struct uselect_own *own = own_of(now.region);
    // Pairs with give(): what was read is of one process, or the socket is given to another one.
    if (!tp || !shown || !own || ONCE(tracked->identity) != identity)
        return;
    // Read anew where it is used: kept, it has the verifier follow each way for both. It may be
    // another process's by now, but then the socket has no descriptor in this one.
    int is_exact = is_asked || !ONCE(tracked->is_lean);
    now.place = &shown->word[now.index & MASK];
    now.threshold = ONCE(own->threshold[now.index & MASK]) & ((1 << 30) - 1);
    now.word = __sync_fetch_and_add(now.place, 0);
    repeat(TRIES, settle_once, &now, 0);
    if (now.word >> 32 != now.generation)
        return;
    number(tp, ONCE(tracked->state), &shown->numbers[now.index & MASK]);
    // In lean mode the bits are not what the word is: the process clears them.
    if (now.told || now.is_changed || (is_exact && ONCE(tracked->is_lean)))
        publish(&now, shown, own, is_exact);
}

#endif
