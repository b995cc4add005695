//! io_uring(7) as one thread uses it for itself: requests go in, one system call submits and waits,
//! completions come out.
//!
//! The ring is set up so that only the thread that enabled it may use it (IORING_SETUP_SINGLE_ISSUER),
//! and so that the kernel does nothing for its requests but inside [`Ring::enter`]
//! (IORING_SETUP_DEFER_TASKRUN): no interrupt of the thread, and no work between its turns. Both
//! together are the newest that is used; they came with Linux 6.1.
//!
//! A ring does what is asked for here and nothing else: it begins disabled, is restricted to the
//! operations of this module (`restriction`), and only then enabled.
//!
//! Watches go on until they are cancelled. Bytes are moved by requests that never wait: they are
//! over when the [`Ring::enter`] that submits them returns, so the memory lent to the kernel is
//! never lent for longer than that.

mod request;
mod restriction;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags as Flags, IoringFeatureFlags, IoringRegisterOp, IoringSetupFlags,
    io_uring_getevents_arg, io_uring_register, io_uring_rsrc_update,
};
use rustix::time::Timespec;

use crate::Result;
use crate::queues::{CompletionEntry, Layout, Queues, setup};

/// A ring. It stays in the thread that enabled it: it is not `Send`, and the kernel holds it to that.
///
/// `submitted <= queued <= submitted + entries`, as wrapping counts; likewise for completions.
#[derive(Debug)]
pub struct Ring {
    // Closed before its memory goes.
    fd: OwnedFd,
    /// What io_uring_enter(2) knows the ring by: an index of the thread's registered rings, which
    /// spares the look into the table of descriptors, or its descriptor.
    enter_fd: (libc::c_int, Flags),
    queues: Queues,
    /// Where requests end; the kernel knows it since the last [`Ring::enter`] or a full queue.
    queued: u32,
    /// Memory of the requests that move bytes, each at the place that its completion names.
    lent: Vec<Option<LentMemory>>,
    /// Places of `lent` that are free.
    free_slots: Vec<u32>,
}

/// Memory that a request reads or fills, and the number that it completes with.
#[derive(Debug)]
struct LentMemory {
    data: u64,
    memory: RequestMemory,
}

#[derive(Debug)]
enum RequestMemory {
    ToFill(LeakedBox),
    /// The kernel only reads it, and moving a `Vec` claims nothing about its elements.
    ToSend(Vec<u8>),
}

/// The memory of a `Box`, while the kernel writes to it.
///
/// It is a raw pointer, since a `Box` may not be moved while something else writes to its memory: a
/// move asserts that nothing else does. Without [`LeakedBox::into_box`] the memory is never freed, as
/// the kernel may still have it.
#[derive(Debug)]
struct LeakedBox(NonNull<[u8]>);

impl LeakedBox {
    fn new(memory: Box<[u8]>) -> Self {
        Self(NonNull::from(Box::leak(memory)))
    }

    /// The address that the kernel writes to, with at least `bytes` bytes.
    ///
    /// # Panics
    /// When the memory is shorter.
    fn start(&self, bytes: usize) -> *mut u8 {
        assert!(bytes <= self.0.len(), "a receive fits its memory");
        self.0.cast().as_ptr()
    }

    /// Gives the memory back.
    ///
    /// # Safety
    /// No request that has the address is queued or outstanding.
    unsafe fn into_box(self) -> Box<[u8]> {
        // SAFETY: the pointer comes from a `Box` that was leaked, of which this is the only owner,
        // and the caller promises that the kernel has it no more.
        unsafe { Box::from_raw(self.0.as_ptr()) }
    }
}

/// What became of a request. `data` is the number that it carried.
#[derive(Debug)]
pub enum RingCompletion {
    /// Of a watch.
    Watched {
        /// As it was given.
        data: u64,
        /// What its descriptor is ready for, in the bits of poll(2), or why it is watched no
        /// longer; ECANCELED: as asked.
        result: Result<u32>,
        /// Whether the watch goes on.
        more: bool,
    },
    /// Of a receive: as by recv(2), with the memory given back.
    Received {
        /// As it was given.
        data: u64,
        /// Filled from its start.
        memory: Box<[u8]>,
        /// How many bytes were received.
        result: Result<usize>,
    },
    /// Of a send: as by send(2), with the memory given back.
    Sent {
        /// As it was given.
        data: u64,
        /// What was to be sent.
        memory: Vec<u8>,
        /// How many bytes of it the kernel took.
        result: Result<usize>,
    },
}

/// A ring that is set up and not enabled yet (IORING_SETUP_R_DISABLED). No thread owns it: it may be
/// moved to the thread that enables it.
///
/// The kernel allocates a ring's memory at set-up, and since Linux 6.14 counts it against
/// RLIMIT_MEMLOCK, per user, unless the process has CAP_IPC_LOCK. Rings that are set up together
/// are therefore certain to be there later.
#[derive(Debug)]
pub struct DisabledRing {
    fd: OwnedFd,
    layout: Layout,
}

impl DisabledRing {
    /// Sets up a ring with room for `requests` between two submissions, and for `completions`
    /// between two waits before the kernel has to allocate; each is rounded up to a power of two.
    ///
    /// # Errors
    /// ENOSYS: the kernel has no io_uring, or a filter hides it. EPERM:
    /// /proc/sys/kernel/io_uring_disabled or a filter forbids it. EINVAL: older than Linux 6.1.
    /// ENOMEM: no memory, or none within RLIMIT_MEMLOCK. EMFILE, ENFILE.
    pub fn new(requests: u32, completions: u32) -> Result<Self> {
        let flags = IoringSetupFlags::SINGLE_ISSUER
            | IoringSetupFlags::DEFER_TASKRUN
            | IoringSetupFlags::R_DISABLED;
        let (fd, layout) = setup(requests, completions, flags, IoringFeatureFlags::EXT_ARG)?;
        Ok(Self { fd, layout })
    }

    /// Bytes that the kernel allocated for both queues and the requests: whole pages.
    pub fn memory_bytes(&self) -> usize {
        let page = rustix::param::page_size();
        let blocks = [self.layout.rings_bytes(), self.layout.requests_bytes()];
        blocks.into_iter().map(|bytes| bytes.next_multiple_of(page)).sum()
    }

    /// Enables the ring for the calling thread, which becomes its single issuer.
    ///
    /// # Errors
    /// ENOMEM; what a filter of system calls returns that allowed the set-up.
    pub fn enable(self) -> Result<Ring> {
        let Self { fd, layout } = self;
        let queues = Queues::map(fd.as_fd(), layout)?;
        // Before it is restricted, which rules out what registers its descriptor.
        let name = register_ring_fd(fd.as_fd()).unwrap_or((fd.as_raw_fd(), Flags::empty()));
        restriction::restrict(fd.as_fd())?;
        let (lent, places, queued) = (Vec::new(), Vec::new(), queues.submission_tail());
        let mut ring = Ring { fd, enter_fd: name, queues, queued, lent, free_slots: places };
        // A filter may allow the set-up and refuse this.
        ring.call(0, Flags::GETEVENTS, None)?;
        Ok(ring)
    }
}

impl Ring {
    /// A ring of this thread: [`DisabledRing::new`], enabled at once.
    ///
    /// # Errors
    /// As [`DisabledRing::new`] and [`DisabledRing::enable`].
    pub fn new(requests: u32, completions: u32) -> Result<Self> {
        DisabledRing::new(requests, completions)?.enable()
    }

    /// Requests queued and not taken by the kernel yet.
    fn unsubmitted(&self) -> u32 {
        self.queued.wrapping_sub(self.queues.submission_head())
    }

    /// Submits what is queued without waiting, until at most `left` requests are queued.
    ///
    /// Without memory the kernel takes a part of them. The rest must not wait for another turn,
    /// when their descriptors may be closed.
    fn submit(&mut self, left: u32, flags: Flags) -> Result<()> {
        let mut tries = SUBMIT_TRIES_MAX;
        while self.unsubmitted() > left {
            match self.call(0, flags, None) {
                Ok(()) => {}
                Err(error) if is_transient(error) && tries > 0 => {
                    tries -= 1;
                    std::thread::yield_now();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Submits what is queued, runs what is due, and waits until there is a completion or, at
    /// most, `wait_max` (`None`: for ever).
    ///
    /// # Errors EAGAIN, ENOMEM or EBUSY when the kernel has no memory for requests, however often
    /// it is asked; what a filter of system calls gives. The ring is of no more use then. A signal
    /// or a want of memory that only ends the wait is none.
    pub fn enter(&mut self, wait_max: Option<Duration>) -> Result<()> {
        let wanted = u32::from(wait_max != Some(Duration::ZERO));
        let timeout = wait_max.filter(|_| wanted > 0).map(|wait| Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        });
        let result = self.call(wanted, Flags::GETEVENTS, timeout.as_ref());
        self.submit(0, Flags::GETEVENTS)?;
        match result {
            Err(Errno::TIME) => Ok(()),
            Err(error) if is_transient(error) => Ok(()),
            other => other,
        }
    }

    fn call(&mut self, wanted: u32, flags: Flags, timeout: Option<&Timespec>) -> Result<()> {
        let waiting = self.unsubmitted();
        self.queues.publish_tail(self.queued);
        let argument = timeout.map(|timeout| {
            let mut argument = io_uring_getevents_arg::default();
            argument.ts.ptr = std::ptr::from_ref(timeout).cast_mut().cast();
            argument
        });
        let (pointer, size, extended) = match &argument {
            Some(argument) => (std::ptr::from_ref(argument), size_of_val(argument), Flags::EXT_ARG),
            None => (std::ptr::null(), 0, Flags::empty()),
        };
        let (name, registered) = self.enter_fd;
        // SAFETY: the ring is this thread's; the argument and its timeout outlive the call; the
        // queued requests are whole, and what memory they name is in `lent` until they complete.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                name,
                waiting,
                wanted,
                (flags | extended | registered).bits(),
                pointer,
                size,
            )
        };
        if result >= 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        Err(Errno::from_io_error(&error).expect("a system call fails with a number"))
    }

    /// The next completion that is there.
    pub fn next_completion(&mut self) -> Option<RingCompletion> {
        loop {
            // SAFETY: the ring is this thread's, so nobody else takes completions.
            let entry = unsafe { self.queues.next_entry() }?;
            if entry.data != CANCELLED {
                return Some(self.completion(entry));
            }
        }
    }

    fn completion(&mut self, entry: CompletionEntry) -> RingCompletion {
        let result = entry.result();
        if entry.data & LENT_BIT == 0 {
            return RingCompletion::Watched { data: entry.data, result, more: entry.has_more() };
        }
        let place = entry.data as u32 & !(LENT_BIT as u32);
        let lent = self.lent.get_mut(place as usize).and_then(Option::take);
        let LentMemory { data, memory } = lent.expect("a request completes once");
        self.free_slots.push(place);
        let result = result.map(|count| count as usize);
        match memory {
            RequestMemory::ToFill(memory) => {
                // SAFETY: the request that has the address has just completed. Its place was its
                // own until then, so no other request has it.
                let memory = unsafe { memory.into_box() };
                RingCompletion::Received { data, memory, result }
            }
            RequestMemory::ToSend(memory) => RingCompletion::Sent { data, memory, result },
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A ring that is closed with requests outstanding ends them some time later, in another
        // thread, and what they watch is open for as long.
        let cancelled = self.cancel_all().is_ok();
        // Linux 6.13 and newer end some twenty of them in a call; each completes when it has. One
        // that is left takes the wakes of an eventfd that a successor watches.
        while self.next_completion().is_some() {
            while self.next_completion().is_some() {}
            if cancelled {
                let _ = self.enter(Some(Duration::ZERO));
            }
        }
        // What moves bytes is over once it is submitted. If that failed, the memory is not freed:
        // the kernel may still have it.
        self.lent.drain(..).flatten().for_each(std::mem::forget);
        if self.enter_fd.1 == Flags::REGISTERED_RING {
            unregister_ring_fd(self.fd.as_fd(), self.enter_fd.0);
        }
    }
}

/// Whether io_uring_enter(2) may do better when it is called again.
fn is_transient(error: Errno) -> bool {
    matches!(error, Errno::INTR | Errno::AGAIN | Errno::NOMEM | Errno::BUSY)
}

/// Times that a submission is tried again for want of memory.
const SUBMIT_TRIES_MAX: u32 = 10_000;
/// What a cancelling request carries.
const CANCELLED: u64 = u64::MAX;
/// Set in what a request that moves bytes carries, beside its place; in no number of a caller.
const LENT_BIT: u64 = 1 << 31;

/// Registers the ring with this thread (since Linux 5.18), which gives what [`Ring::enter_fd`] holds.
fn register_ring_fd(fd: BorrowedFd<'_>) -> Option<(libc::c_int, Flags)> {
    let mut update = io_uring_rsrc_update::default();
    update.offset = u32::MAX;
    update.data.ptr = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
    let argument = std::ptr::from_mut(&mut update).cast_const().cast();
    // SAFETY: the argument is one update, mutable, and outlives the call.
    let count = unsafe { io_uring_register(fd, IoringRegisterOp::RegisterRingFds, argument, 1) };
    (count == Ok(1)).then_some((update.offset as libc::c_int, Flags::REGISTERED_RING))
}

/// Undoes [`register_ring_fd`]: the thread would keep the ring open.
fn unregister_ring_fd(fd: BorrowedFd<'_>, index: libc::c_int) {
    let mut update = io_uring_rsrc_update::default();
    update.offset = index as u32;
    let argument = std::ptr::from_ref(&update).cast();
    // SAFETY: the argument is one update, which outlives the call.
    let _ = unsafe { io_uring_register(fd, IoringRegisterOp::UnregisterRingFds, argument, 1) };
}

/// A ring of so many entries; `None` where there is none to test with, which is said.
#[cfg(test)]
fn test_ring(entries: u32) -> Option<Ring> {
    match Ring::new(entries, entries) {
        Ok(ring) => Some(ring),
        Err(error @ (Errno::NOSYS | Errno::PERM | Errno::INVAL)) => {
            println!("skip: io_uring as of Linux 6.1 cannot be had here: {error}");
            None
        }
        Err(error) => panic!("a ring: {error}"),
    }
}
