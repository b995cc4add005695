//! An io_uring(7) used by a single thread: requests are queued, one system call submits them and
//! waits, and completions are taken.
//!
//! Only the thread that enabled the ring may use it (IORING_SETUP_SINGLE_ISSUER), and the kernel
//! works on its requests only inside [`Ring::enter`] (IORING_SETUP_DEFER_TASKRUN). So the thread is
//! never interrupted, and nothing happens between its calls. The two flags are the newest features
//! that are used, of Linux 6.1.
//!
//! A ring can run only the operations of this module. It is created disabled, then restricted to
//! them (`restriction`), and only then enabled.
//!
//! Poll requests continue until they are cancelled. Bytes are moved by requests that never wait.
//! They have completed when the [`Ring::enter`] that submits them returns, so memory is never lent
//! to the kernel for longer than that.

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

/// A ring. It stays in the thread that enabled it: it is not `Send`, and the kernel enforces that.
///
/// Positions in the queues are wrapping counts. The submission queue has room for all requests that
/// are queued and not taken by the kernel.
#[derive(Debug)]
pub struct Ring {
    // Declared first, so that it is closed before its memory is unmapped.
    fd: OwnedFd,
    /// The first argument of io_uring_enter(2), and its flag. If the ring is registered with the
    /// thread, the argument is the index of the registration, which saves a lookup in the table of
    /// descriptors. Otherwise it is the descriptor, without a flag.
    enter_fd: (libc::c_int, Flags),
    queues: Queues,
    /// The position up to which requests are queued. It is published by [`Ring::enter`], or when
    /// the queue is full.
    queued: u32,
    /// The memory of requests that move bytes, at the index that their completions carry.
    lent: Vec<Option<LentMemory>>,
    /// Unused indices of `lent`.
    free_slots: Vec<u32>,
}

/// Memory that a request reads or fills, and the caller's number for the request.
#[derive(Debug)]
struct LentMemory {
    data: u64,
    memory: RequestMemory,
}

#[derive(Debug)]
enum RequestMemory {
    ToFill(LeakedBox),
    /// The kernel only reads this memory. The `Vec` may be moved meanwhile: unlike a `Box`, it does
    /// not assert exclusive access to its elements.
    ToSend(Vec<u8>),
}

/// The memory of a `Box` while the kernel writes to it.
///
/// It is a raw pointer because a `Box` may not be moved while something else writes to its memory:
/// moving it asserts exclusive access. Without [`LeakedBox::into_box`] the memory is never freed,
/// since the kernel may still use it.
#[derive(Debug)]
struct LeakedBox(NonNull<[u8]>);

impl LeakedBox {
    fn new(memory: Box<[u8]>) -> Self {
        Self(NonNull::from(Box::leak(memory)))
    }

    /// Returns the address to which the kernel writes up to `bytes` bytes.
    ///
    /// # Panics
    /// Panics if the memory is shorter.
    fn start(&self, bytes: usize) -> *mut u8 {
        assert!(bytes <= self.0.len(), "a receive fits its memory");
        self.0.cast().as_ptr()
    }

    /// Returns the memory.
    ///
    /// # Safety
    /// No request that has the address is queued or outstanding.
    unsafe fn into_box(self) -> Box<[u8]> {
        // SAFETY: the pointer comes from a leaked `Box`, of which this is the only owner, and the
        // caller promises that the kernel no longer uses it.
        unsafe { Box::from_raw(self.0.as_ptr()) }
    }
}

/// The completion of a request. `data` is the number that the request carried.
#[derive(Debug)]
pub enum RingCompletion {
    /// The completion of a poll request.
    Watched {
        /// The number of the request.
        data: u64,
        /// The readiness of the descriptor, in the bits of poll(2), or the reason why it is no
        /// longer watched; ECANCELED after [`Ring::cancel`].
        result: Result<u32>,
        /// Whether the request continues.
        more: bool,
    },
    /// The completion of a receive, like the result of recv(2).
    Received {
        /// The number of the request.
        data: u64,
        /// The lent memory, filled from its start.
        memory: Box<[u8]>,
        /// Number of bytes received.
        result: Result<usize>,
    },
    /// The completion of a send, like the result of send(2).
    Sent {
        /// The number of the request.
        data: u64,
        /// The lent memory.
        memory: Vec<u8>,
        /// Number of bytes that the kernel took.
        result: Result<usize>,
    },
}

/// A ring that is set up but not enabled (IORING_SETUP_R_DISABLED). It may be moved to the thread
/// that enables it.
///
/// The kernel allocates a ring's memory during set-up. Since Linux 6.14 it counts that memory
/// against RLIMIT_MEMLOCK, per user, unless the process has CAP_IPC_LOCK. Setting up all rings
/// together makes sure that there is memory for all of them later.
#[derive(Debug)]
pub struct DisabledRing {
    fd: OwnedFd,
    layout: Layout,
}

impl DisabledRing {
    /// Sets up a ring with room for `requests` between two submissions, and for `completions`
    /// between two waits before the kernel has to allocate. Both are rounded up to a power of two.
    ///
    /// # Errors
    /// ENOSYS: the kernel has no io_uring, or a filter hides it. EPERM:
    /// /proc/sys/kernel/io_uring_disabled or a filter forbids it. EINVAL: the kernel is older than
    /// Linux 6.1. ENOMEM: there is no memory, or none within RLIMIT_MEMLOCK. EMFILE, ENFILE.
    pub fn new(requests: u32, completions: u32) -> Result<Self> {
        let flags = IoringSetupFlags::SINGLE_ISSUER
            | IoringSetupFlags::DEFER_TASKRUN
            | IoringSetupFlags::R_DISABLED;
        let (fd, layout) = setup(requests, completions, flags, IoringFeatureFlags::EXT_ARG)?;
        Ok(Self { fd, layout })
    }

    /// Returns how many bytes the kernel allocated for both queues and the requests, in whole
    /// pages.
    pub fn memory_bytes(&self) -> usize {
        let page = rustix::param::page_size();
        let blocks = [self.layout.rings_bytes(), self.layout.requests_bytes()];
        blocks.into_iter().map(|bytes| bytes.next_multiple_of(page)).sum()
    }

    /// Enables the ring for the calling thread, which becomes its single issuer.
    ///
    /// # Errors
    /// ENOMEM; the error of a filter of system calls that allowed only the set-up.
    pub fn enable(self) -> Result<Ring> {
        let Self { fd, layout } = self;
        let queues = Queues::map(fd.as_fd(), layout)?;
        // This comes before the restriction, which forbids registering the descriptor.
        let enter_fd = register_ring_fd(fd.as_fd()).unwrap_or((fd.as_raw_fd(), Flags::empty()));
        restriction::restrict(fd.as_fd())?;
        let (lent, free_slots, queued) = (Vec::new(), Vec::new(), queues.submission_tail());
        let mut ring = Ring { fd, enter_fd, queues, queued, lent, free_slots };
        // A filter may allow the set-up and refuse this call.
        ring.call(0, Flags::GETEVENTS, None)?;
        Ok(ring)
    }
}

impl Ring {
    /// Sets up a ring and enables it for the calling thread: [`DisabledRing::new`] and
    /// [`DisabledRing::enable`].
    ///
    /// # Errors
    /// As [`DisabledRing::new`] and [`DisabledRing::enable`].
    pub fn new(requests: u32, completions: u32) -> Result<Self> {
        DisabledRing::new(requests, completions)?.enable()
    }

    /// Returns the number of requests that are queued and that the kernel has not taken.
    fn unsubmitted(&self) -> u32 {
        self.queued.wrapping_sub(self.queues.submission_head())
    }

    /// Submits queued requests without waiting, until at most `left` of them remain.
    ///
    /// If the kernel lacks memory, it takes only some of them. The others must not wait for a later
    /// call, since their descriptors may be closed by then.
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

    /// Submits the queued requests, runs work that is due, and waits until there is a completion,
    /// for at most `wait_max` (`None`: no bound).
    ///
    /// # Errors
    /// EAGAIN, ENOMEM or EBUSY if the kernel has no memory for requests, even after many attempts;
    /// the error of a filter of system calls. The ring is unusable then. A signal, or a lack of
    /// memory that only ends the wait, is no error.
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
        let (fd, registered) = self.enter_fd;
        // SAFETY: this thread owns the ring; the argument and its timeout outlive the call; the
        // queued requests are fully written, and the memory that they name is in `lent` until they
        // complete.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                fd,
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
        Err(Errno::from_io_error(&error).expect("a failed system call sets errno"))
    }

    /// Returns the next completion.
    pub fn next_completion(&mut self) -> Option<RingCompletion> {
        loop {
            // SAFETY: this thread owns the ring, so no other thread takes completions.
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
        let slot = entry.data as u32 & !(LENT_BIT as u32);
        let lent = self.lent.get_mut(slot as usize).and_then(Option::take);
        let LentMemory { data, memory } = lent.expect("a request completes once");
        self.free_slots.push(slot);
        let result = result.map(|count| count as usize);
        match memory {
            RequestMemory::ToFill(memory) => {
                // SAFETY: the request that has the address has just completed. No other request had
                // its index until then, so no other request has the address.
                let memory = unsafe { memory.into_box() };
                RingCompletion::Received { data, memory, result }
            }
            RequestMemory::ToSend(memory) => RingCompletion::Sent { data, memory, result },
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // If a ring is closed with outstanding requests, another thread ends them some time later,
        // and their files stay open until then.
        let cancelled = self.cancel_all().is_ok();
        // Linux 6.13 and newer cancel about twenty requests in a call, and create a completion for
        // each. So the loop continues as long as calls create completions. A request that stayed
        // active would consume the wakes of an eventfd that a later ring watches.
        while self.next_completion().is_some() {
            while self.next_completion().is_some() {}
            if cancelled {
                let _ = self.enter(Some(Duration::ZERO));
            }
        }
        // Requests that move bytes complete during their submission. If that failed, the memory is
        // leaked, since the kernel may still use it.
        self.lent.drain(..).flatten().for_each(std::mem::forget);
        if self.enter_fd.1 == Flags::REGISTERED_RING {
            unregister_ring_fd(self.fd.as_fd(), self.enter_fd.0);
        }
    }
}

/// Returns whether repeating io_uring_enter(2) may succeed.
fn is_transient(error: Errno) -> bool {
    matches!(error, Errno::INTR | Errno::AGAIN | Errno::NOMEM | Errno::BUSY)
}

/// How often a submission is retried when the kernel has no memory.
const SUBMIT_TRIES_MAX: u32 = 10_000;
/// The number that cancelling requests carry (`user_data`).
const CANCELLED: u64 = u64::MAX;
/// A bit of the number that a request carries. It is set if the request has lent memory; the other
/// bits are then the index in [`Ring::lent`]. Callers must not set it.
const LENT_BIT: u64 = 1 << 31;

/// Registers the ring with this thread (since Linux 5.18). Returns the value of [`Ring::enter_fd`].
fn register_ring_fd(fd: BorrowedFd<'_>) -> Option<(libc::c_int, Flags)> {
    let mut update = io_uring_rsrc_update::default();
    update.offset = u32::MAX;
    update.data.ptr = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
    let argument = std::ptr::from_mut(&mut update).cast_const().cast();
    // SAFETY: the argument is one update, mutable, and outlives the call.
    let count = unsafe { io_uring_register(fd, IoringRegisterOp::RegisterRingFds, argument, 1) };
    (count == Ok(1)).then_some((update.offset as libc::c_int, Flags::REGISTERED_RING))
}

/// Undoes [`register_ring_fd`]. Otherwise the thread would keep the ring open.
fn unregister_ring_fd(fd: BorrowedFd<'_>, index: libc::c_int) {
    let mut update = io_uring_rsrc_update::default();
    update.offset = index as u32;
    let argument = std::ptr::from_ref(&update).cast();
    // SAFETY: the argument is one update, which outlives the call.
    let _ = unsafe { io_uring_register(fd, IoringRegisterOp::UnregisterRingFds, argument, 1) };
}

/// Returns a ring for a test. If io_uring is not available, prints that and returns `None`.
#[cfg(test)]
fn test_ring(entries: u32) -> Option<Ring> {
    match Ring::new(entries, entries) {
        Ok(ring) => Some(ring),
        Err(error @ (Errno::NOSYS | Errno::PERM | Errno::INVAL)) => {
            println!("skip: no io_uring with the features of Linux 6.1: {error}");
            None
        }
        Err(error) => panic!("io_uring_setup: {error}"),
    }
}
