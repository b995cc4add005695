//! The layout of the shared memory. It must equal `crates/uselect/uselectd/programs/layout.h`; a
//! test of uselectd compares them.
//!
//! The eBPF programs and other threads write this memory at any time, so every field is atomic.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// The limit of tracked sockets and of descriptors. A socket has an index with `0 < index <
/// SOCKETS`. Descriptors from this number on are never tracked.
pub const SOCKETS: usize = 65_536;
/// Words of a bitmap with a bit for each descriptor.
pub const WORDS: usize = SOCKETS / 64;
/// The number of slots: at most this many threads can open or accept tracked sockets at the same
/// time. A thread that finds no free slot gets untracked sockets.
pub const THREADS: usize = 1024;
/// The number of slots that a thread may use. They are adjacent and begin at its thread ID modulo
/// [`THREADS`].
pub const PROBES: usize = 8;
/// How many processes can be registered at the same time.
pub const REGIONS: u32 = 256;
/// How many threads of a process can sleep at the same time, each woken by its own ring. Further
/// threads sleep in poll(2) or epoll_wait(2).
pub const SLEEPERS: usize = 64;
/// A bit of a socket's word beside those of poll(2): memory does not show whether the socket is
/// readable, so the kernel must be called.
pub const UNCERTAIN: u32 = 0x8000;

/// A bit for each descriptor.
pub type Bitmap = [AtomicU64; WORDS];

/// Values of a socket, as of the last run of an eBPF program for it.
#[derive(Debug)]
#[repr(C)]
pub struct SocketNumbers {
    /// Bytes that can be received, and 1 for a FIN; for a listener, connections to accept.
    pub readable: AtomicU32,
    /// Bytes of free send space.
    pub send_space: AtomicU32,
    /// The congestion window, in segments.
    pub cwnd: AtomicU32,
    /// The smoothed round-trip time.
    pub rtt_us: AtomicU32,
}

/// Memory that the eBPF programs write. The process can only read it.
#[repr(C)]
pub struct ReadOnlyPages {
    /// Identifies the registration; 0 means none.
    pub identity: AtomicU64,
    /// The number of sockets that were ever tracked.
    pub generations: AtomicU32,
    padding: [u32; 13],
    /// By index: generation of the socket << 32 | event count << 16 | the result of poll(2).
    pub word: [AtomicU64; SOCKETS],
    /// By index.
    pub numbers: [SocketNumbers; SOCKETS],
}

/// A slot in which a thread offers an index to the programs that run in its system calls.
#[repr(C)]
pub struct ThreadSlot {
    /// The thread ID (gettid(2)); 0: free.
    pub thread: AtomicU32,
    /// The index that the thread's next socket shall get; 0: none.
    pub armed: AtomicU32,
    /// The index that a socket got; 0: none.
    pub taken: AtomicU32,
    /// The generation in the word of that socket.
    pub generation: AtomicU32,
}

/// The wake-up state of a sleeper.
#[repr(C)]
pub struct SleeperFlag {
    /// 1: the thread sleeps or is about to. A program that clears it wakes the thread by its ring.
    /// The thread clears it when its sleep ends.
    pub sleeping: AtomicU32,
    padding: u32,
    /// One bit for each word of [`WritablePages::changed`]. The programs set it when they set a bit
    /// of that word and this sleeper is interested in the descriptor. A watcher clears it.
    pub changed_words: [AtomicU64; WORDS / 64],
    more_padding: [u32; 14],
}

/// Memory that both the process and the eBPF programs write.
#[repr(C)]
pub struct WritablePages {
    /// By sleeper number.
    pub sleeper: [SleeperFlag; SLEEPERS],
    /// By descriptor: whether it is tracked (A-bits in the paper). Only the process writes it.
    pub active: Bitmap,
    /// By descriptor: whether it is readable in the sense of select(2) (R-bits).
    pub read: Bitmap,
    /// By descriptor: whether it is writable in the sense of select(2) (W-bits).
    pub write: Bitmap,
    /// By descriptor: whether the kernel must be called, because of an error, urgent data, or
    /// `UNCERTAIN` (E-bits).
    pub except: Bitmap,
    /// By descriptor: whether something happened since the bit was cleared.
    pub changed: Bitmap,
    /// By index: the descriptor + 1; 0: none.
    pub descriptor: [AtomicU32; SOCKETS],
    /// By descriptor: the index; 0: not tracked.
    pub index: [AtomicU32; SOCKETS],
    /// By descriptor: sleeper number << 16 | the bits of poll(2) that it waits for; 0: no interest.
    /// A watcher also sets bit 31, which the programs ignore.
    pub interest: [AtomicU32; SOCKETS],
    /// By index: the number of bytes that make the socket readable; 0: any byte.
    pub threshold: [AtomicU32; SOCKETS],
    /// The slots of threads. See [`PROBES`] for those that a thread may use.
    pub slot: [ThreadSlot; THREADS],
}

const _: () = {
    assert!(size_of::<ReadOnlyPages>() == 64 + SOCKETS * 24);
    assert!(
        size_of::<WritablePages>() == 192 * SLEEPERS + 5 * WORDS * 8 + SOCKETS * 16 + THREADS * 16
    );
    assert!(SOCKETS.is_power_of_two() && THREADS.is_power_of_two() && PROBES <= THREADS);
    assert!(SLEEPERS.is_power_of_two());
};
