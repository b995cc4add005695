// The word of a socket: computes what poll(2) would report, stores it, updates the bitmaps of the
// descriptor, and wakes the thread that waits for it.
#ifndef WORD_H
#define WORD_H

#include "regions.h"

// Fewer bytes than SO_RCVLOWAT (`rcvlowat`) are readable only if the receive window is at most a
// segment.
static __always_inline int has_readable_bytes(int available, int rcvlowat, int window, int segment)
{
    return available > 0 && (available >= rcvlowat || window <= segment);
}

static __always_inline int is_readable(struct tcp_sock *tp, int threshold)
{
    __u32 rcv_nxt = READ_ONCE(tp->rcv_nxt);
    int window = READ_ONCE(tp->rcv_wup) + READ_ONCE(tp->rcv_wnd) - rcv_nxt;
    int rcvlowat = READ_ONCE(((struct sock *)tp)->sk_rcvlowat);
    int segment = READ_ONCE(tp->inet_conn.icsk_ack.rcv_mss);
    if (rcvlowat < threshold)
        rcvlowat = threshold;
    return has_readable_bytes(rcv_nxt - READ_ONCE(tp->copied_seq), rcvlowat, window, segment);
}

static __always_inline int has_send_space(int queued, int sndbuf, __u32 unsent, __u32 notsent_lowat)
{
    return queued < sndbuf && sndbuf - queued >= queued >> 1 && unsent << 1 < notsent_lowat;
}

static __always_inline int is_writable(struct tcp_sock *tp)
{
    struct sock *sk = (struct sock *)tp;
    __u32 notsent_lowat = READ_ONCE(tp->notsent_lowat);
    if (!notsent_lowat)
        notsent_lowat = READ_ONCE(sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_notsent_lowat);
    __u32 unsent = READ_ONCE(tp->write_seq) - READ_ONCE(tp->snd_nxt);
    return has_send_space(READ_ONCE(sk->sk_wmem_queued), READ_ONCE(sk->sk_sndbuf), unsent,
                          notsent_lowat);
}

// Returns what tcp_poll() of Linux 6.18 returns, with the exceptions that docs/design/uselect.md
// lists. In these cases the mask has EPOLLPRI or USELECT_UNCERTAIN, and the process queries the
// kernel:
// - Urgent data is there, expected or just taken: readability depends on the urgent mark, which
//   moves without any hook.
// - SO_RCVLOWAT is above 1: readability depends on the receive window, which moves without any
//   hook.
// - The kernel decrypts (TCP_ULP) or redirects (sockmap) data: it waits in other queues.
static __always_inline __u32 poll_mask(struct tcp_sock *tp, struct tracked *tracked, int threshold)
{
    struct sock *sk = (struct sock *)tp;
    __u8 state = READ_ONCE(tracked->state);
    if (state == TCP_LISTEN)
        return READ_ONCE(tp->inet_conn.icsk_accept_queue.rskq_accept_head) ? EPOLLIN | EPOLLRDNORM
                                                                          : 0;
    __u32 mask = 0;
    __u8 shutdown = READ_ONCE(tracked->has_failed) ? SHUTDOWN_MASK : READ_ONCE(sk->sk_shutdown);
    if (shutdown == SHUTDOWN_MASK || state == TCP_CLOSE)
        mask |= EPOLLHUP;
    if (shutdown & RCV_SHUTDOWN)
        mask |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
    if (state != TCP_SYN_SENT && (state != TCP_SYN_RECV || READ_ONCE(tp->fastopen_rsk))) {
        if (is_readable(tp, threshold))
            mask |= EPOLLIN | EPOLLRDNORM;
        if (shutdown & SEND_SHUTDOWN || is_writable(tp))
            mask |= EPOLLOUT | EPOLLWRNORM;
        if (READ_ONCE(tp->urg_data))
            mask |= EPOLLPRI;
        if (READ_ONCE(sk->sk_rcvlowat) > 1
            || READ_ONCE(sk->__sk_common.skc_prot)->sock_is_readable)
            mask |= USELECT_UNCERTAIN;
    }
    if (READ_ONCE(sk->sk_err) || READ_ONCE(sk->sk_error_queue.qlen))
        mask |= EPOLLERR;
    return mask;
}

#define EPOLL_WRITABLE (EPOLLOUT | EPOLLWRNORM)

static __always_inline void store_numbers(struct uselect_socket_numbers *numbers, __u32 readable,
                                          int send_space, __u32 cwnd, __u32 srtt_us)
{
    WRITE_ONCE(numbers->readable, readable);
    WRITE_ONCE(numbers->send_space, send_space > 0 ? send_space : 0);
    WRITE_ONCE(numbers->cwnd, cwnd);
    // The kernel stores eight times the smoothed round-trip time.
    WRITE_ONCE(numbers->rtt_us, srtt_us >> 3);
}

static __always_inline void update_numbers(struct tcp_sock *tp, __u32 state,
                                           struct uselect_socket_numbers *numbers)
{
    struct sock *sk = (struct sock *)tp;
    __u32 readable = state == TCP_LISTEN
        ? READ_ONCE(sk->sk_ack_backlog)
        : READ_ONCE(tp->rcv_nxt) - READ_ONCE(tp->copied_seq);
    int send_space = READ_ONCE(sk->sk_sndbuf) - READ_ONCE(sk->sk_wmem_queued);
    store_numbers(numbers, readable, send_space, READ_ONCE(tp->snd_cwnd), READ_ONCE(tp->srtt_us));
}

// Writes only if the bit is wrong. If the value of sync_bitmaps() was outdated, that function
// corrects the bit afterwards, because it compares the word again after this write.
static __always_inline void set_bit(uselect_u64 *bitmap, __u32 fd, __u32 is_set)
{
    uselect_u64 *word = &bitmap[(fd & INDEX_MASK) / 64], bit = 1ULL << (fd & 63);
    if (!is_set == !(READ_ONCE(*word) & bit))
        return;
    if (is_set)
        __sync_fetch_and_or(word, bit);
    else
        __sync_fetch_and_and(word, ~bit);
}

static __always_inline __u32 read_bits(__u32 mask)
{
    return mask & (EPOLLIN | EPOLLHUP | EPOLLERR);
}

static __always_inline __u32 write_bits(__u32 mask)
{
    return mask & (EPOLLOUT | EPOLLERR);
}

static __always_inline __u32 except_bits(__u32 mask)
{
    return mask & (EPOLLPRI | EPOLLERR | USELECT_UNCERTAIN);
}

// Exact mode: makes the bits of a descriptor agree with the word of the socket that has the
// descriptor now. If the descriptor was closed and reused, a late program of the old socket thus
// repairs the bits of the new one. The word of index 0 is always 0, so a descriptor without a
// tracked socket has no bits. Pairs with SharedPages::publish, which stores the index of the
// descriptor and then reads the word.
static __always_inline void sync_bitmaps(struct uselect_writable_pages *rw_pages,
                                         struct uselect_read_only_pages *ro_pages, __u32 fd)
{
    for (int i = 0; i < UPDATE_ROUNDS_MAX; i++) {
        __u32 index = READ_ONCE(rw_pages->index[fd & INDEX_MASK]);
        __u64 word = READ_ONCE(ro_pages->word[index & INDEX_MASK]);
        set_bit(rw_pages->read, fd, read_bits(word));
        set_bit(rw_pages->write, fd, write_bits(word));
        set_bit(rw_pages->except, fd, except_bits(word));
        if (READ_ONCE(rw_pages->index[fd & INDEX_MASK]) == index
            && READ_ONCE(ro_pages->word[index & INDEX_MASK]) == word)
            break;
    }
}

// Lean mode: sets the bits of an event and clears none. If the descriptor was reused meanwhile, a
// bit that is wrongly set costs one read that finds nothing.
static __always_inline void add_bits(struct uselect_writable_pages *rw_pages, __u32 fd, __u32 mask)
{
    if (read_bits(mask))
        set_bit(rw_pages->read, fd, 1);
    if (write_bits(mask))
        set_bit(rw_pages->write, fd, 1);
    if (except_bits(mask))
        set_bit(rw_pages->except, fd, 1);
}

// Wakes a thread that sleeps, once for each sleep. Pairs with Sleeper::begin_sleep, which stores
// `sleeping` and then reads words and bits.
static __always_inline void wake_sleeper(struct uselect_sleeper *sleeper, __u32 region,
                                         __u32 number)
{
    if (!READ_ONCE(sleeper->sleeping) || !__sync_lock_test_and_set(&sleeper->sleeping, 0))
        return;
    __u32 ring_index = region * USELECT_SLEEPERS + number;
    void *ring = bpf_map_lookup_elem(&rings, &ring_index);
    __u64 record = 0;
    if (ring)
        bpf_ringbuf_output(ring, &record, sizeof(record), BPF_RB_FORCE_WAKEUP);
}

// One call of update_word().
struct word_update {
    struct tcp_sock *tp;
    struct tracked *tracked;
    // Copies of the fields of `tracked`, which were read together.
    __u32 region;
    __u32 index;
    __u32 generation;
    uselect_u64 *word;
    // The value of `word` when it was last read or stored.
    __u64 current;
    int threshold;
    // Bits that are reported although they were set before, because data has arrived. 0 if this
    // update is not for an arrival, and after the first store.
    __u32 arrival_mask;
    // Bits to report: those that were added, and those of an arrival.
    __u32 reported;
    // Bits that were cleared.
    __u32 cleared;
    __u32 has_changed;
};

// A round of update_word(). Returns 1 when the word is up to date.
static long update_word_once(__u32 round, struct word_update *update)
{
    // The process has given the index to another socket.
    if (update->current >> 32 != update->generation)
        return 1;
    __u32 mask = poll_mask(update->tp, update->tracked, update->threshold);
    __u32 before = update->current & 0xFFFF;
    if (mask == before && !update->arrival_mask)
        return 1;
    // Arithmetic instead of branches, because the verifier would follow each branch for each value
    // of the bits.
    __u32 reported = mask & (update->arrival_mask | ~before);
    __u32 events = (update->current >> 16) + ((reported + 0xFFFF) >> 16) & 0xFFFF;
    __u64 word = (__u64)update->generation << 32 | events << 16 | mask;
    __u64 found = __sync_val_compare_and_swap(update->word, update->current, word);
    if (found == update->current) {
        update->reported |= reported;
        update->cleared |= before & ~mask;
        update->has_changed |= mask ^ before;
        update->arrival_mask = 0;
        found = word;
    }
    update->current = found;
    return 0;
}

// Updates the bitmaps, after the word, and then wakes the thread that waits for the descriptor.
static __always_inline void publish(struct word_update *update,
                                    struct uselect_read_only_pages *ro_pages,
                                    struct uselect_writable_pages *rw_pages, int is_exact)
{
    __u32 fd = READ_ONCE(rw_pages->descriptor[update->index & INDEX_MASK]) - 1;
    if (fd >= USELECT_SOCKETS)
        return;
    // An event of any kind also reports send space if there is some.
    if (!is_exact)
        add_bits(rw_pages, fd, update->reported | (update->current & EPOLL_WRITABLE));
    else
        sync_bitmaps(rw_pages, ro_pages, fd);
    // If the send space is used up, `changed` is set too: the process then polls for new space.
    if (!update->reported && !(update->cleared & EPOLLOUT))
        return;
    set_bit(rw_pages->changed, fd, 1);
    __u32 interest = READ_ONCE(rw_pages->interest[fd & INDEX_MASK]);
    if (!interest)
        return;
    __u32 number = interest >> 16 & (USELECT_SLEEPERS - 1);
    struct uselect_sleeper *sleeper = &rw_pages->sleeper[number];
    // This bit is set even if the bit in `changed` was set before: a scan may have cleared this bit
    // and may not have read `changed` yet. Pairs with WatchList::scan, which clears this bit before
    // it reads `changed`.
    set_bit(sleeper->changed_words, (fd & INDEX_MASK) / 64, 1);
    if (update->reported & interest)
        wake_sleeper(sleeper, update->region, number);
}

// Recomputes the word of a socket until it agrees with the socket, then updates numbers and
// bitmaps.
//
// The socket may change meanwhile, because some programs run without its lock. The program that
// runs for that change may find the word up to date and store nothing. It has read the word behind
// a full barrier. So this program, which computes the word again after each store, sees the change.
// The atomic addition of 0 is such a read; the compiler keeps it atomic because its result is used.
//
// bpf_loop() is used because the verifier would follow each round of an ordinary loop.
//
// `is_event`: data has arrived, so bits are reported even if they were set before. `is_requested`:
// the process has requested this update, so bitmaps are made exact also in lean mode.
static __always_inline void update_word(struct tcp_sock *tp, struct tracked *tracked,
                                        __u32 is_event, int is_requested)
{
    __u64 identity = READ_ONCE(tracked->identity);
    struct word_update update = {
        .tp = tp,
        .tracked = tracked,
        .region = READ_ONCE(tracked->region),
        .index = READ_ONCE(tracked->index),
        .generation = READ_ONCE(tracked->generation),
        // The mask has no bits of send space. They were set before the arrival, so with them each
        // arrival below the threshold would be reported as an event of send space.
        .arrival_mask = is_event ? ~EPOLL_WRITABLE : 0,
    };
    struct uselect_read_only_pages *ro_pages = lookup_ro_pages(update.region, identity);
    struct uselect_writable_pages *rw_pages = lookup_rw_pages(update.region);
    // Pairs with reassign(): if the identity is still the same, all fields that were read belong to
    // the same registration.
    if (!tp || !ro_pages || !rw_pages || READ_ONCE(tracked->identity) != identity)
        return;
    // `is_lean` is read again below and not kept in a variable: with a variable the verifier
    // follows each path once for each mode. The socket may belong to another process by then, but
    // then it has no descriptor in this region.
    int is_exact = is_requested || !READ_ONCE(tracked->is_lean);
    update.word = &ro_pages->word[update.index & INDEX_MASK];
    update.threshold = READ_ONCE(rw_pages->threshold[update.index & INDEX_MASK]) & ((1 << 30) - 1);
    update.current = __sync_fetch_and_add(update.word, 0);
    bpf_loop(UPDATE_ROUNDS_MAX, update_word_once, &update, 0);
    if (update.current >> 32 != update.generation)
        return;
    update_numbers(tp, READ_ONCE(tracked->state), &ro_pages->numbers[update.index & INDEX_MASK]);
    // In lean mode the process clears bits, so the bitmaps may differ from the word although the
    // word has not changed.
    if (update.reported || update.has_changed || (is_exact && READ_ONCE(tracked->is_lean)))
        publish(&update, ro_pages, rw_pages, is_exact);
}

#endif
