// The memory that a registered process shares with the eBPF programs. Mirrored by
// crates/uselect/uselect/src/layout.rs; tests/objects.rs compares both.
//
// Only programs write `uselect_read_only_pages`: its map is frozen, so no process can map it
// writable. The process also writes `uselect_writable_pages`: programs check what they read there
// like any input.
#ifndef USELECT_LAYOUT_H
#define USELECT_LAYOUT_H

// Tracked sockets have an index, 0 < index < USELECT_SOCKETS. Arrays by descriptor are indexed by
// its number, 0 <= fd < USELECT_SOCKETS. Programs mask both before use, so this is a power of two.
#define USELECT_SOCKETS 65536
#define USELECT_WORDS (USELECT_SOCKETS / 64)
// Slots for threads that open or accept tracked sockets at the same time. A thread uses one of
// USELECT_PROBES consecutive slots; the first is its thread id modulo USELECT_THREADS.
#define USELECT_THREADS 1024
#define USELECT_PROBES 8
#define USELECT_REGIONS 256
// Threads of a process that sleep at the same time. Each has a ring buffer of its own.
#define USELECT_SLEEPERS 64

// A bit of a word, the highest of the sixteen bits of poll(2), which the kernel does not use. It
// means that the shared memory does not show whether the socket is readable, so the kernel must be
// queried. See poll_mask().
#define USELECT_UNCERTAIN 0x8000

typedef unsigned char uselect_u8;
typedef unsigned short uselect_u16;
typedef unsigned int uselect_u32;
typedef unsigned long long uselect_u64;

// Values at the last event of the socket.
struct uselect_socket_numbers {
    // Bytes that can be received; of a listener, connections in the accept queue.
    uselect_u32 readable;
    // Bytes of free space in the send buffer.
    uselect_u32 send_space;
    // Congestion window in segments.
    uselect_u32 cwnd;
    // Smoothed round-trip time in microseconds.
    uselect_u32 rtt_us;
};

struct uselect_read_only_pages {
    // The registration; never reused while the programs are loaded. 0: none.
    uselect_u64 identity;
    // The number of sockets that were ever tracked here.
    uselect_u32 generations;
    uselect_u32 padding[13];
    // By index: generation of the socket << 32 | number of events << 16 | what poll(2) would
    // report. An event is anything that would wake an edge-triggered waiter (EPOLLET of epoll(7)).
    uselect_u64 word[USELECT_SOCKETS];
    struct uselect_socket_numbers numbers[USELECT_SOCKETS];
};

// The place where a thread and the programs that run in its system calls exchange an index.
struct uselect_thread_slot {
    // The thread id, gettid(2); 0: the slot is free.
    uselect_u32 thread;
    // The index for the next socket that the thread opens or accepts; 0: none.
    uselect_u32 armed;
    // The index that a program has used, and the generation that its word has since then.
    uselect_u32 taken;
    uselect_u32 generation;
};

// Padded to three cache lines, so that no two sleepers share one.
struct uselect_sleeper {
    // 1: the thread sleeps, or is about to. A program or thread that sets this to 0 has to wake it.
    uselect_u32 sleeping;
    uselect_u32 padding;
    // One bit for each word of `changed`: a program has set a bit of that word for a descriptor in
    // which this sleeper is interested. A watcher clears the bit here.
    uselect_u64 changed_words[USELECT_WORDS / 64];
    uselect_u32 more_padding[14];
};

struct uselect_writable_pages {
    struct uselect_sleeper sleeper[USELECT_SLEEPERS];
    // Bitmaps by descriptor. `active`: it is tracked. `read`, `write`: select(2) would report it
    // readable or writable. `except`: the kernel must be queried, because of an error, urgent data
    // or USELECT_UNCERTAIN. `changed`: an event has happened since the process cleared the bit.
    uselect_u64 active[USELECT_WORDS];
    uselect_u64 read[USELECT_WORDS];
    uselect_u64 write[USELECT_WORDS];
    uselect_u64 except[USELECT_WORDS];
    uselect_u64 changed[USELECT_WORDS];
    // By index: the descriptor + 1; 0: none.
    uselect_u32 descriptor[USELECT_SOCKETS];
    // By descriptor: the index; 0: not tracked.
    uselect_u32 index[USELECT_SOCKETS];
    // By descriptor: the number of the sleeper << 16 | the bits of poll(2) that it waits for.
    // 0: none.
    uselect_u32 interest[USELECT_SOCKETS];
    // By index: the number of bytes from which on the socket counts as readable; 0: one byte.
    uselect_u32 threshold[USELECT_SOCKETS];
    struct uselect_thread_slot slot[USELECT_THREADS];
};

#endif
