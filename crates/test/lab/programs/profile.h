// Shared by the profiler's programs and src/profile: the kinds of selections and system calls, the
// parts of time, and the figures of each CPU.
#ifndef PROFILE_H
#define PROFILE_H

// The kinds of selections.
enum selection {
    // The threads of a process.
    SELECT_PROCESS,
    // The processes of a cgroup of version 2 and of its descendants.
    SELECT_CGROUP,
    // All that runs on a CPU. The programs select everything, and the reader takes one CPU.
    SELECT_CORE,
    // The processes of a network namespace, and the packets that its devices receive.
    SELECT_NAMESPACE,
};

// The parts of time.
enum part {
    // Nothing has happened on the CPU since the begin.
    PART_UNKNOWN,
    PART_USER,
    // The kernel in process context, except in the parts below.
    PART_KERNEL,
    PART_SOCKET_WRITE,
    // A send of io_uring. The reader adds it to PART_SOCKET_WRITE.
    PART_RING_SEND,
    // Packets received in softirqs (NET_RX).
    PART_RECEIVE,
    // Packets received in process context, as from a TUN device.
    PART_DIRECT_RECEIVE,
    // Packets sent in softirqs (NET_TX).
    PART_SEND,
    // All other softirqs.
    PART_SOFTIRQ,
    PART_INTERRUPT,
    PART_IDLE,
    // Processes that are not selected, in user and kernel mode.
    PART_OTHERS,
};

// The time of a part that belongs to the selection is counted at `part | SELECTED`.
#define SELECTED 16
#define SLOTS 32

// How a system call is counted.
enum call {
    CALL_OTHER,
    // Sends to a socket.
    CALL_SEND,
    // Sends if the descriptor in the first argument is a socket.
    CALL_WRITE_FIRST,
    // Sends if the descriptor in the third argument is a socket.
    CALL_WRITE_THIRD,
    // May change the network namespace of the thread.
    CALL_NAMESPACE,
};

// A power of two. System calls with greater numbers count as number modulo this.
#define CALLS 512

// The state and the figures of one CPU. All fields are 64 bits wide.
struct cpu {
    // All time before this is charged, in ns of CLOCK_MONOTONIC; 0: nothing is.
    __u64 since;
    // The address of the thread that `base` describes.
    __u64 thread;
    // The part of the innermost level is that of the present: `interrupt`, `softirq`, `receive`,
    // `base`. Each is a slot, or 0 if the CPU is not at this level.
    __u64 base;
    __u64 receive;
    __u64 softirq;
    __u64 interrupt;
    // The softirq has received no packet yet.
    __u64 is_before_packets;
    // The softirq has received a packet of the selection.
    __u64 has_selected_packet;
    // Nanoseconds of each slot.
    __u64 times[SLOTS];
    // Softirqs of each kind.
    __u64 softirqs[10];
    // Softirqs that received a packet of the selection.
    __u64 selected_receives;
    __u64 device_interrupts;
    // Interrupts of timers and from other CPUs.
    __u64 local_interrupts;
    // Packets received and sent: those outside of the selection, and those of it.
    __u64 received[2];
    __u64 sent[2];
    // Switches to a thread of the selection.
    __u64 switches;
    __u64 socket_writes;
    // System calls of the selection, by number.
    __u64 calls[CALLS];
};

// The time that is measured, in ns of CLOCK_MONOTONIC. `begin` is 0 before the begin; `end` is 0
// before the end.
struct window {
    __u64 begin;
    __u64 end;
};

#endif
