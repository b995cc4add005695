//! The shared memory, as `crates/uselect/uselectd/programs/layout.h` has it.
//!
//! The kernel's programs and other threads write here at any time, so every field is an atomic.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// Sockets are numbered by an index, `0 < index < SOCKETS`; descriptors from this on are never
/// tracked.
pub const SOCKETS: usize = 65_536;
/// Words of a bitmap with a bit for each descriptor.
pub const WORDS: usize = SOCKETS / 64;
/// Threads that open or accept tracked sockets at the same time; those beyond get untracked ones.
pub const THREADS: usize = 1024;
/// A thread's slot is one of so many that follow its number modulo [`THREADS`].
pub const PROBES: usize = 8;
/// Processes that are registered at the same time.
pub const REGIONS: u32 = 256;
/// Threads of a process that sleep at the same time, each told by a ring of its own; those beyond
/// sleep in the system call that they stand for.
pub const SLEEPERS: usize = 64;
/// In a word, beside the bits of poll(2): when the socket is readable memory does not know.
pub const DOUBT: u32 = 0x8000;

/// A bit for each descriptor.
pub type Bitmap = [AtomicU64; WORDS];

/// A socket, as of its last event.
#[derive(Debug)]
#[repr(C)]
pub struct SocketNumbers {
    /// Bytes that can be received; of a listener, connections that wait.
    pub readable: AtomicU32,
    /// Bytes of room to send.
    pub room: AtomicU32,
    /// The congestion window, in segments.
    pub window: AtomicU32,
    /// The smoothed round-trip time.
    pub rtt_us: AtomicU32,
}

/// What the programs alone write.
#[repr(C)]
pub struct ReadOnlyPages {
    /// Of the registration; 0 is nobody.
    pub identity: AtomicU64,
    /// Counts the sockets that were ever tracked.
    pub generations: AtomicU32,
    padding: [u32; 13],
    /// By index: the socket's generation << 32 | events so far << 16 | what poll(2) would say.
    pub word: [AtomicU64; SOCKETS],
    /// By index.
    pub numbers: [SocketNumbers; SOCKETS],
}

/// By which a thread and the programs that run in its system calls agree on an index.
#[repr(C)]
pub struct ThreadSlot {
    /// The thread's number (gettid(2)); 0: free.
    pub thread: AtomicU32,
    /// The index that the thread's next socket shall have; 0: none.
    pub armed: AtomicU32,
    /// The index that was given.
    pub taken: AtomicU32,
    /// The upper half of its word from then on.
    pub generation: AtomicU32,
}

/// A thread that may sleep.
#[repr(C)]
pub struct SleeperFlag {
    /// 1: it sleeps, or is about to. Whoever makes it 0 tells it by its ring.
    pub sleeping: AtomicU32,
    padding: u32,
    /// By word of [`Own::changed`]: one of its bits was set, of a descriptor that it is interested
    /// in. A watcher takes it back.
    pub changed_words: [AtomicU64; WORDS / 64],
    more_padding: [u32; 14],
}

/// What the process writes too.
#[repr(C)]
pub struct WritablePages {
    /// By the number of the sleeper.
    pub sleeper: [SleeperFlag; SLEEPERS],
    /// By descriptor: whether it is tracked (the paper's A-bits). Written by the process alone.
    pub active: Bitmap,
    /// By descriptor: what select(2) says of reading (R-bits).
    pub read: Bitmap,
    /// Of writing (W-bits).
    pub write: Bitmap,
    /// Whether the kernel has to be asked: an error, urgent data, doubt (E-bits).
    pub except: Bitmap,
    /// Something has happened since the bit was taken back.
    pub changed: Bitmap,
    /// By index: the descriptor + 1; 0: none.
    pub descriptor: [AtomicU32; SOCKETS],
    /// By descriptor: the index; 0: not tracked.
    pub index: [AtomicU32; SOCKETS],
    /// By descriptor: the sleeper << 16 | the bits of poll(2) that it waits for; 0: nobody.
    pub interest: [AtomicU32; SOCKETS],
    /// By index: so many bytes make the socket readable; 0: one does.
    pub threshold: [AtomicU32; SOCKETS],
    /// By thread number, modulo.
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
