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

mod mapping;
mod request;
mod restriction;

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;
use rustix::io_uring::{
    IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringFeatureFlags, IoringRegisterOp, IoringSetupFlags,
    io_uring_cqe, io_uring_getevents_arg, io_uring_params, io_uring_register, io_uring_rsrc_update,
    io_uring_setup, io_uring_sqe,
};
use rustix::time::Timespec;

use crate::{Readiness, Result};
use mapping::Mapping;

/// A ring. It stays in the thread that enabled it: it is not `Send`, and the kernel holds it to that.
///
/// `submitted <= queued <= submitted + entries`, as wrapping counts; likewise for completions.
#[derive(Debug)]
pub struct Ring {
    // Closed before its memory goes.
    fd: OwnedFd,
    /// What io_uring_enter(2) knows the ring by: an index of the thread's registered rings, which
    /// spares the look into the table of descriptors, or its descriptor.
    name: (libc::c_int, libc::c_uint),
    rings: Mapping,
    requests: Mapping,
    /// Where requests end; the kernel knows it since the last [`Ring::enter`] or a full queue.
    queued: u32,
    /// Memory of the requests that move bytes, each at the place that its completion names.
    lent: Vec<Option<Lent>>,
    /// Places of `lent` that are free.
    places: Vec<u32>,
    request_mask: u32,
    offsets: Offsets,
    completion_mask: u32,
}

/// Places in the mapping of both rings, in bytes.
#[derive(Debug)]
struct Offsets {
    request_head: usize,
    request_tail: usize,
    completion_head: usize,
    completion_tail: usize,
    completions: usize,
}

/// Memory that a request reads or fills, and the number that it completes with.
#[derive(Debug)]
struct Lent {
    data: u64,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    ToFill(Lease),
    /// The kernel only reads it, and moving a `Vec` claims nothing about its elements.
    ToSend(Vec<u8>),
}

/// The memory of a `Box`, while the kernel writes to it.
///
/// It is a raw pointer, since a `Box` may not be moved while something else writes to its memory: a
/// move asserts that nothing else does. Without [`Lease::into_box`] the memory is never freed, as
/// the kernel may still have it.
#[derive(Debug)]
struct Lease(NonNull<[u8]>);

impl Lease {
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
        /// What its descriptor is ready for, or why it is watched no longer; ECANCELED: as asked.
        result: Result<Readiness>,
        /// Whether the watch goes on.
        more: bool,
    },
    /// Of a receive: as [`receive`](crate::receive), with the memory given back.
    Received {
        /// As it was given.
        data: u64,
        /// Filled from its start.
        memory: Box<[u8]>,
        /// How many bytes were received.
        result: Result<usize>,
    },
    /// Of a send: as [`send`](crate::send), with the memory given back.
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
    entries: Entries,
    offsets: Offsets,
    /// Where the kernel put the array of request indices.
    request_array: usize,
}

/// Lengths of both queues: powers of two.
#[derive(Clone, Copy, Debug)]
struct Entries {
    requests: u32,
    completions: u32,
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
        let mut parameters = io_uring_params::default();
        parameters.flags = IoringSetupFlags::SINGLE_ISSUER
            | IoringSetupFlags::DEFER_TASKRUN
            | IoringSetupFlags::SUBMIT_ALL
            | IoringSetupFlags::CQSIZE
            | IoringSetupFlags::CLAMP
            | IoringSetupFlags::R_DISABLED;
        parameters.cq_entries = completions;
        // SAFETY: no other ring's work queue is attached to, so no descriptor is named.
        let fd = unsafe { io_uring_setup(requests, &mut parameters) }?;
        let needed = IoringFeatureFlags::SINGLE_MMAP
            | IoringFeatureFlags::NODROP
            | IoringFeatureFlags::EXT_ARG;
        if !parameters.features.contains(needed) {
            return Err(Errno::INVAL);
        }
        let (sq, cq) = (&parameters.sq_off, &parameters.cq_off);
        Ok(Self {
            fd,
            entries: Entries {
                requests: parameters.sq_entries,
                completions: parameters.cq_entries,
            },
            offsets: Offsets {
                request_head: sq.head as usize,
                request_tail: sq.tail as usize,
                completion_head: cq.head as usize,
                completion_tail: cq.tail as usize,
                completions: cq.cqes as usize,
            },
            request_array: sq.array as usize,
        })
    }

    /// Bytes that the kernel allocated for both queues and the requests: whole pages.
    pub fn memory_bytes(&self) -> usize {
        let page = rustix::param::page_size();
        self.rings_bytes().next_multiple_of(page) + self.requests_bytes().next_multiple_of(page)
    }

    fn rings_bytes(&self) -> usize {
        let Entries { requests, completions } = self.entries;
        let array_end = self.request_array + requests as usize * size_of::<u32>();
        array_end.max(self.offsets.completions + completions as usize * size_of::<Entry>())
    }

    fn requests_bytes(&self) -> usize {
        self.entries.requests as usize * size_of::<io_uring_sqe>()
    }

    /// Enables the ring for the calling thread, which becomes its single issuer.
    ///
    /// # Errors
    /// ENOMEM; what a filter of system calls returns that allowed the set-up.
    pub fn enable(self) -> Result<Ring> {
        let rings = Mapping::new(self.fd.as_fd(), IORING_OFF_SQ_RING, self.rings_bytes())?;
        let requests = Mapping::new(self.fd.as_fd(), IORING_OFF_SQES, self.requests_bytes())?;
        let Self { fd, entries, offsets, request_array } = self;
        // The request at each place of the queue is the one at the same place of the block.
        for index in 0..entries.requests {
            let place = request_array + index as usize * size_of::<u32>();
            rings.word(place).store(index, Ordering::Relaxed);
        }
        // Before it is restricted, which rules out what registers its descriptor.
        let name = register(fd.as_fd()).unwrap_or((fd.as_raw_fd(), 0));
        restriction::restrict(fd.as_fd())?;
        let mut ring = Ring {
            name,
            lent: Vec::new(),
            places: Vec::new(),
            queued: rings.word(offsets.request_tail).load(Ordering::Relaxed),
            request_mask: entries.requests - 1,
            completion_mask: entries.completions - 1,
            offsets,
            fd,
            rings,
            requests,
        };
        // A filter may allow the set-up and refuse this.
        ring.call(0, enter_flags::GETEVENTS, None)?;
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
    fn waiting(&self) -> u32 {
        // Pairs with the kernel's release of the head: it has read the requests before it.
        let taken = self.rings.word(self.offsets.request_head).load(Ordering::Acquire);
        self.queued.wrapping_sub(taken)
    }

    /// Submits what is queued without waiting, until at most `left` requests are queued.
    ///
    /// Without memory the kernel takes a part of them. The rest must not wait for another turn,
    /// when their descriptors may be closed.
    fn submit(&mut self, left: u32, flags: u32) -> Result<()> {
        let mut tries = SUBMIT_TRIES_MAX;
        while self.waiting() > left {
            match self.call(0, flags, None) {
                Ok(()) => {}
                Err(error) if is_passing(error) && tries > 0 => {
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
        let result = match wait_max.filter(|_| wanted > 0) {
            None => self.call(wanted, enter_flags::GETEVENTS, None),
            Some(wait) => {
                let timeout = Timespec {
                    tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: wait.subsec_nanos().into(),
                };
                self.call(wanted, enter_flags::GETEVENTS, Some(&timeout))
            }
        };
        self.submit(0, enter_flags::GETEVENTS)?;
        match result {
            Err(Errno::TIME) => Ok(()),
            Err(error) if is_passing(error) => Ok(()),
            other => other,
        }
    }

    fn call(&mut self, wanted: u32, flags: u32, timeout: Option<&Timespec>) -> Result<()> {
        let waiting = self.waiting();
        // Released to the kernel's load of the tail: the requests are written before it.
        self.rings.word(self.offsets.request_tail).store(self.queued, Ordering::Release);
        let argument = timeout.map(|timeout| {
            let mut argument = io_uring_getevents_arg::default();
            argument.ts.ptr = std::ptr::from_ref(timeout).cast_mut().cast();
            argument
        });
        let (pointer, size, extended) = match &argument {
            Some(argument) => {
                (std::ptr::from_ref(argument), size_of_val(argument), enter_flags::EXT_ARG)
            }
            None => (std::ptr::null(), 0, 0),
        };
        let (name, registered) = self.name;
        // SAFETY: the ring is this thread's; the argument and its timeout outlive the call; the
        // queued requests are whole, and what memory they name is in `lent` until they complete.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                name,
                waiting,
                wanted,
                flags | extended | registered,
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
            let head = self.rings.word(self.offsets.completion_head);
            let position = head.load(Ordering::Relaxed);
            // Pairs with the kernel's release of the tail: completions are written before it.
            let end = self.rings.word(self.offsets.completion_tail).load(Ordering::Acquire);
            if position == end {
                return None;
            }
            let index = (position & self.completion_mask) as usize;
            let place = self.offsets.completions + index * size_of::<Entry>();
            // SAFETY: the place is inside the mapping, and aligned as the kernel lays it out.
            let place = unsafe { self.rings.start.byte_add(place) }.cast::<Entry>();
            // SAFETY: as above; the kernel wrote it before the tail, and not again until the head
            // is past it.
            let entry = unsafe { place.read() };
            // Released to the kernel's load of the head: the place was read before it.
            head.store(position.wrapping_add(1), Ordering::Release);
            if entry.data != CANCELLED {
                return Some(self.completion(entry));
            }
        }
    }

    fn completion(&mut self, entry: Entry) -> RingCompletion {
        let result = match entry.result {
            number @ 0.. => Ok(number as u32),
            error => Err(Errno::from_raw_os_error(-error)),
        };
        if entry.data & MOVES == 0 {
            let (result, more) = (result.map(Readiness::of), entry.flags & MORE != 0);
            return RingCompletion::Watched { data: entry.data, result, more };
        }
        let place = entry.data as u32 & !(MOVES as u32);
        let lent = self.lent.get_mut(place as usize).and_then(Option::take);
        let Lent { data, memory } = lent.expect("a request completes once");
        self.places.push(place);
        let result = result.map(|count| count as usize);
        match memory {
            Memory::ToFill(memory) => {
                // SAFETY: the request that has the address has just completed. Its place was its
                // own until then, so no other request has it.
                let memory = unsafe { memory.into_box() };
                RingCompletion::Received { data, memory, result }
            }
            Memory::ToSend(memory) => RingCompletion::Sent { data, memory, result },
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
        if self.name.1 == enter_flags::REGISTERED {
            unregister(self.fd.as_fd(), self.name.0);
        }
    }
}

/// Whether io_uring_enter(2) may do better when it is called again.
fn is_passing(error: Errno) -> bool {
    matches!(error, Errno::INTR | Errno::AGAIN | Errno::NOMEM | Errno::BUSY)
}

/// Times that a submission is tried again for want of memory.
const SUBMIT_TRIES_MAX: u32 = 10_000;
/// What a cancelling request carries.
const CANCELLED: u64 = u64::MAX;
/// Set in what a request that moves bytes carries, beside its place; in no number of a caller.
const MOVES: u64 = 1 << 31;

/// A completion as the kernel writes it: `struct io_uring_cqe` of 16 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    data: u64,
    result: i32,
    flags: u32,
}

const _: () = assert!(size_of::<Entry>() == size_of::<io_uring_cqe>());
const _: () = assert!(size_of::<io_uring_sqe>() == 64);

/// IORING_CQE_F_MORE.
const MORE: u32 = rustix::io_uring::IoringCqeFlags::MORE.bits();

/// Flags of io_uring_enter(2) as plain numbers.
mod enter_flags {
    use rustix::io_uring::IoringEnterFlags;

    pub(super) const GETEVENTS: u32 = IoringEnterFlags::GETEVENTS.bits();
    pub(super) const EXT_ARG: u32 = IoringEnterFlags::EXT_ARG.bits();
    pub(super) const REGISTERED: u32 = IoringEnterFlags::REGISTERED_RING.bits();
}

/// Registers the ring with this thread (since Linux 5.18), which gives what [`Ring::name`] holds.
fn register(fd: BorrowedFd<'_>) -> Option<(libc::c_int, libc::c_uint)> {
    let mut update = io_uring_rsrc_update::default();
    update.offset = u32::MAX;
    update.data.ptr = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
    let argument = std::ptr::from_mut(&mut update).cast_const().cast();
    // SAFETY: the argument is one update, mutable, and outlives the call.
    let count = unsafe { io_uring_register(fd, IoringRegisterOp::RegisterRingFds, argument, 1) };
    (count == Ok(1)).then_some((update.offset as libc::c_int, enter_flags::REGISTERED))
}

/// Undoes [`register`]: the thread would keep the ring open.
fn unregister(fd: BorrowedFd<'_>, index: libc::c_int) {
    let mut update = io_uring_rsrc_update::default();
    update.offset = index as u32;
    let argument = std::ptr::from_ref(&update).cast();
    // SAFETY: the argument is one update, which outlives the call.
    let _ = unsafe { io_uring_register(fd, IoringRegisterOp::UnregisterRingFds, argument, 1) };
}

/// A ring of so many entries; `None` where there is none to test with, which is said.
#[cfg(test)]
fn ring_to_test_with(entries: u32) -> Option<Ring> {
    match Ring::new(entries, entries) {
        Ok(ring) => Some(ring),
        Err(error @ (Errno::NOSYS | Errno::PERM | Errno::INVAL)) => {
            println!("skip: io_uring as of Linux 6.1 cannot be had here: {error}");
            None
        }
        Err(error) => panic!("a ring: {error}"),
    }
}
