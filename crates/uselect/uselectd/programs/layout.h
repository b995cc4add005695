// What a registered process shares with the kernel's programs: two pieces of memory and a ring.
// Mirrored by crates/uselect/uselect/src/layout.rs; tests/objects.rs compares them.
//
// `shown` is written by the programs alone: its map is frozen, so nobody can map it for writing.
// `own` is the process's too: what a program reads there is checked like any input.
#ifndef USELECT_LAYOUT_H
#define USELECT_LAYOUT_H

// Sockets are numbered by `index`, 0 < index < USELECT_SOCKETS, descriptors by themselves,
// 0 <= fd < USELECT_SOCKETS. Both are masked before use, so this is a power of two.
#define USELECT_SOCKETS 65536
#define USELECT_WORDS (USELECT_SOCKETS / 64)
// Threads that accept or open tracked sockets at the same time. A thread's slot is one of the
// USELECT_PROBES that follow its number modulo USELECT_THREADS.
#define USELECT_THREADS 1024
#define USELECT_PROBES 8
#define USELECT_REGIONS 256
// Threads of a process that sleep at the same time, each told by a ring of its own.
#define USELECT_SLEEPERS 64

// The lower half of a word: the sixteen bits of poll(2), of which the kernel has no use for the
// highest; here it says that memory does not know when the socket is readable: poll_bits().
#define USELECT_DOUBT 0x8000

typedef unsigned char uselect_u8;
typedef unsigned short uselect_u16;
typedef unsigned int uselect_u32;
typedef unsigned long long uselect_u64;

// As of the last event of the socket: bytes that can be received (of a listener: connections that
// wait), bytes of room to send, the congestion window in segments, the smoothed round-trip time.
struct uselect_numbers {
    uselect_u32 readable;
    uselect_u32 room;
    uselect_u32 window;
    uselect_u32 rtt_us;
};

struct uselect_shown {
    // Of the registration; never used twice while the programs are loaded. 0 is nobody.
    uselect_u64 identity;
    // Counts the sockets that were ever tracked here.
    uselect_u32 generations;
    uselect_u32 padding[13];
    // By index: the socket's generation << 32 | events so far << 16 | what poll(2) would say. An
    // event is what would wake a process that waits by edges (EPOLLET of epoll(7)).
    uselect_u64 word[USELECT_SOCKETS];
    struct uselect_numbers numbers[USELECT_SOCKETS];
};

// By which a thread and the programs that run in its system calls agree on an index.
struct uselect_slot {
    // The thread's number, gettid(2); 0: free.
    uselect_u32 thread;
    // The index that the next socket of the thread shall have; 0: it shall have none.
    uselect_u32 armed;
    // The index that was given, and the generation that its word has from then on.
    uselect_u32 taken;
    uselect_u32 generation;
};

struct uselect_sleeper {
    // 1: its thread sleeps, or is about to, and wants to be told. Whoever makes it 0 tells it.
    uselect_u32 sleeping;
    uselect_u32 padding;
    // By word of `changed`: one of its bits was set, of a descriptor of its interest. A watcher takes
    // it back. With the padding a sleeper has three cache lines to itself.
    uselect_u64 changed_words[USELECT_WORDS / 64];
    uselect_u32 more_padding[14];
};

struct uselect_own {
    struct uselect_sleeper sleeper[USELECT_SLEEPERS];
    // Bits by descriptor: whether it is tracked, what select(2) would say of reading and writing,
    // and whether the kernel has to be asked (an error, urgent data, doubt).
    uselect_u64 active[USELECT_WORDS];
    uselect_u64 read[USELECT_WORDS];
    uselect_u64 write[USELECT_WORDS];
    uselect_u64 except[USELECT_WORDS];
    // Something has happened since the process has taken the bit back.
    uselect_u64 changed[USELECT_WORDS];
    // By index: the descriptor + 1; 0: none. By descriptor: the index; 0: not tracked.
    uselect_u32 descriptor[USELECT_SOCKETS];
    uselect_u32 index[USELECT_SOCKETS];
    // By descriptor: the sleeper << 16 | the bits of poll(2) that it waits for; 0: nobody.
    uselect_u32 interest[USELECT_SOCKETS];
    // By index: so many bytes make the socket readable; 0: one does.
    uselect_u32 threshold[USELECT_SOCKETS];
    struct uselect_slot slot[USELECT_THREADS];
};

#endif
