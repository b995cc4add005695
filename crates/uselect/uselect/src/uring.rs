//! `Uring`: an io_uring instance (io_uring(7)) that tells of events of sockets.
//!
//! Beside `kernel`, the other door to Linux. Of a ring only what a filter needs is here: requests
//! that poll until they are cancelled (multishot, since Linux 5.13), and their completions.
//!
//! Completions are made when the thread that has asked is in the kernel (IORING_SETUP_COOP_TASKRUN,
//! since 5.19): no thread is interrupted for them, and a flag in shared memory says that there are
//! some to be fetched by a call. A thread that sleeps is woken to make them.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use rustix::io_uring::{
    IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringAsyncCancelFlags, IoringCqeFlags, IoringEnterFlags,
    IoringFeatureFlags, IoringOp, IoringPollFlags, IoringRegisterOp, IoringSetupFlags,
    IoringSqFlags, io_uring_cqe, io_uring_enter, io_uring_params, io_uring_register,
    io_uring_setup, io_uring_sqe, io_uring_sync_cancel_reg,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::time::Timespec;

use crate::hidden::Hidden;
use crate::kernel::{Errno, Result};

pub(crate) struct Uring {
    fd: Hidden,
    rings: Memory,
    requests: Memory,
    places: Places,
    request_mask: u32,
    completion_mask: u32,
    /// Who has it may queue requests and take completions.
    turn: Mutex<()>,
}

/// Where the words of the rings are, in bytes.
struct Places {
    request_head: usize,
    request_tail: usize,
    request_flags: usize,
    completion_head: usize,
    completion_tail: usize,
    completions: usize,
}

/// What became of a request that polls.
pub(crate) struct Completion {
    /// The number that the request carries.
    pub(crate) data: u64,
    /// What its socket was ready for when this was made.
    pub(crate) events: Result<u32>,
    /// Whether it goes on.
    pub(crate) has_more: bool,
}

impl Uring {
    /// With room for `requests` between two submissions, and for `completions` that nobody has
    /// taken; what is more than that is kept by the kernel.
    ///
    /// # Errors
    /// ENOSYS: no io_uring, or a filter of system calls hides it. EPERM: forbidden by
    /// kernel.io_uring_disabled, or a filter. EINVAL: older than Linux 6.0. ENOMEM, EMFILE, ENFILE.
    pub(crate) fn new(requests: u32, completions: u32) -> Result<Self> {
        let mut parameters = io_uring_params::default();
        parameters.flags = IoringSetupFlags::COOP_TASKRUN
            | IoringSetupFlags::TASKRUN_FLAG
            | IoringSetupFlags::SUBMIT_ALL
            | IoringSetupFlags::CQSIZE
            | IoringSetupFlags::CLAMP;
        parameters.cq_entries = completions;
        // SAFETY: no other ring's work queue is attached to, so no descriptor is named.
        let fd = unsafe { io_uring_setup(requests, &mut parameters) };
        let fd = Hidden::of(fd)?;
        let needed = IoringFeatureFlags::SINGLE_MMAP | IoringFeatureFlags::NODROP;
        if !parameters.features.contains(needed) {
            return Err(Errno::INVAL);
        }
        let uring = Self::map(fd, &parameters)?;
        // Cancelling came last, with Linux 6.0: before it that is EINVAL.
        match uring.cancel(0) {
            Ok(()) | Err(Errno::NOENT) => Ok(uring),
            Err(error) => Err(error),
        }
    }

    fn map(fd: Hidden, parameters: &io_uring_params) -> Result<Self> {
        let (sq, cq) = (&parameters.sq_off, &parameters.cq_off);
        let (sq_entries, cq_entries) = (parameters.sq_entries, parameters.cq_entries);
        let sq_end = sq.array as usize + sq_entries as usize * size_of::<u32>();
        let cq_end = cq.cqes as usize + cq_entries as usize * size_of::<Entry>();
        let rings = Memory::new(fd.as_fd(), IORING_OFF_SQ_RING, sq_end.max(cq_end))?;
        let length = sq_entries as usize * size_of::<io_uring_sqe>();
        let requests = Memory::new(fd.as_fd(), IORING_OFF_SQES, length)?;
        // The request at each place of the queue is the one at the same place of the block.
        for index in 0..sq_entries {
            let place = sq.array as usize + index as usize * size_of::<u32>();
            rings.word(place).store(index, Ordering::Relaxed);
        }
        let places = Places {
            request_head: sq.head as usize,
            request_tail: sq.tail as usize,
            request_flags: sq.flags as usize,
            completion_head: cq.head as usize,
            completion_tail: cq.tail as usize,
            completions: cq.cqes as usize,
        };
        let (request_mask, completion_mask) = (sq_entries - 1, cq_entries - 1);
        let turn = Mutex::new(());
        Ok(Self { fd, rings, requests, places, request_mask, completion_mask, turn })
    }

    /// Whether there are completions, or a call would give some.
    pub(crate) fn has_news(&self) -> bool {
        // Pairs with the kernel's release of the tail. Without the turn this is a hint: it holds
        // for what has happened before.
        let tail = self.rings.word(self.places.completion_tail).load(Ordering::Acquire);
        let head = self.rings.word(self.places.completion_head).load(Ordering::Acquire);
        tail != head || self.needs_call()
    }

    fn needs_call(&self) -> bool {
        !self.flags().intersection(IoringSqFlags::TASKRUN | IoringSqFlags::CQ_OVERFLOW).is_empty()
    }

    fn flags(&self) -> IoringSqFlags {
        let flags = self.rings.word(self.places.request_flags).load(Ordering::Acquire);
        IoringSqFlags::from_bits_retain(flags)
    }

    /// Nothing while another thread has it, or one that this, as a signal handler, has interrupted.
    pub(crate) fn turn(&self) -> Option<Turn<'_>> {
        match self.turn.try_lock() {
            Ok(guard) => Some(Turn { uring: self, _guard: guard }),
            Err(TryLockError::Poisoned(guard)) => {
                Some(Turn { uring: self, _guard: guard.into_inner() })
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Ends the request that carries `data`. It completes, and lets go of its socket, before this
    /// returns if this thread made it; otherwise when the thread that did is next in the kernel.
    /// Takes no turn, so a signal handler may do it.
    ///
    /// # Errors
    /// ENOENT: there is none.
    pub(crate) fn cancel(&self, data: u64) -> Result<()> {
        self.cancel_by(data, IoringAsyncCancelFlags::empty()).map(|_| ())
    }

    fn cancel_by(&self, data: u64, flags: IoringAsyncCancelFlags) -> Result<u32> {
        let mut request = io_uring_sync_cancel_reg::default();
        (request.fd, request.flags, request.addr.u64_) = (-1, flags, data);
        request.timeout = Timespec { tv_sec: -1, tv_nsec: -1 };
        let argument = std::ptr::from_ref(&request).cast();
        // SAFETY: the argument is one such request, which outlives the call.
        unsafe {
            io_uring_register(self.fd.as_fd(), IoringRegisterOp::RegisterSyncCancel, argument, 1)
        }
    }

    /// Ends all requests. Those of a ring that is closed would live on for a while, and their
    /// sockets with them.
    pub(crate) fn end(&self) {
        // Linux 6.13 and newer end some twenty of them in a call.
        let all = IoringAsyncCancelFlags::ANY | IoringAsyncCancelFlags::ALL;
        while self.cancel_by(0, all).is_ok_and(|count| count > 0) {}
    }

    fn enter(&self, submitted: u32) -> Result<u32> {
        let flags = IoringEnterFlags::GETEVENTS;
        // SAFETY: what is queued is whole, and its requests name no memory.
        unsafe { io_uring_enter(self.fd.as_fd(), submitted, 0, flags) }
    }
}

/// Readable while there are completions.
impl AsFd for Uring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The right to queue and to take.
pub(crate) struct Turn<'a> {
    uring: &'a Uring,
    _guard: MutexGuard<'a, ()>,
}

impl Turn<'_> {
    /// Requests that fit into the queue.
    pub(crate) fn room(&self) -> usize {
        self.uring.request_mask as usize + 1
    }

    /// Submits requests that tell of edges of sockets, and of what each is ready for already: as
    /// many as there is room for; each is a socket and the number that it carries. Gives how many
    /// the kernel has taken, always the first ones.
    pub(crate) fn submit(&mut self, requests: &[(i32, u64)], events: u32) -> usize {
        let uring = self.uring;
        let tail = uring.rings.word(uring.places.request_tail);
        let begin = tail.load(Ordering::Relaxed);
        for (step, (fd, data)) in requests.iter().enumerate().take(self.room()) {
            self.write(begin.wrapping_add(step as u32), request(*fd, *data, events));
        }
        let count = requests.len().min(self.room()) as u32;
        // Released to the kernel's load of the tail: the requests are written before it.
        tail.store(begin.wrapping_add(count), Ordering::Release);
        // It may want memory: what it has not taken is asked for another time.
        let _ = uring.enter(count);
        // Pairs with the kernel's release of the head: it has read the requests before it.
        let taken = uring.rings.word(uring.places.request_head).load(Ordering::Acquire);
        // The kernel looks at the tail in a call alone, so what is left can be taken back.
        tail.store(taken, Ordering::Release);
        taken.wrapping_sub(begin) as usize
    }

    fn write(&mut self, position: u32, request: io_uring_sqe) {
        let uring = self.uring;
        let place = (position & uring.request_mask) as usize * size_of::<io_uring_sqe>();
        // SAFETY: the place is inside the mapping, which is page-aligned, and nothing at it is
        // queued: all that was is taken.
        let place = unsafe { uring.requests.start.byte_add(place) }.cast::<io_uring_sqe>();
        // SAFETY: as above; only who has the turn, and the kernel in a call, look at it.
        unsafe { place.write(request) };
    }

    /// Has the kernel make the completions that are due, if there are any; gives whether that took
    /// a call.
    pub(crate) fn fetch(&mut self) -> bool {
        let is_due = self.uring.needs_call();
        if is_due {
            let _ = self.uring.enter(0);
        }
        is_due
    }

    /// Whether completions did not fit, and the kernel keeps them until there is room.
    pub(crate) fn is_overflown(&self) -> bool {
        self.uring.flags().contains(IoringSqFlags::CQ_OVERFLOW)
    }

    pub(crate) fn next_completion(&mut self) -> Option<Completion> {
        let uring = self.uring;
        let head = uring.rings.word(uring.places.completion_head);
        let position = head.load(Ordering::Relaxed);
        // Pairs with the kernel's release of the tail: completions are written before it.
        let end = uring.rings.word(uring.places.completion_tail).load(Ordering::Acquire);
        if position == end {
            return None;
        }
        let index = (position & uring.completion_mask) as usize;
        let place = uring.places.completions + index * size_of::<Entry>();
        // SAFETY: the place is inside the mapping, and aligned as the kernel lays it out.
        let place = unsafe { uring.rings.start.byte_add(place) }.cast::<Entry>();
        // SAFETY: as above; the kernel wrote it before the tail, and not again until the head is
        // past it.
        let entry = unsafe { place.read() };
        // Released to the kernel's load of the head: the place was read before it.
        head.store(position.wrapping_add(1), Ordering::Release);
        let events = u32::try_from(entry.result);
        let events = events.map_err(|_| Errno::from_raw_os_error(-entry.result));
        let has_more = entry.flags & IoringCqeFlags::MORE.bits() != 0;
        Some(Completion { data: entry.data, events, has_more })
    }
}

fn request(fd: i32, data: u64, events: u32) -> io_uring_sqe {
    let mut request = io_uring_sqe { opcode: IoringOp::PollAdd, fd, ..Default::default() };
    // Edges are what a request that goes on gives unless told otherwise.
    request.len.poll_flags = IoringPollFlags::ADD_MULTI;
    // The kernel reads two half-words in little-endian order.
    let is_big = cfg!(target_endian = "big");
    request.op_flags.poll32_events = if is_big { events.rotate_left(16) } else { events };
    request.user_data.u64_ = data;
    request
}

/// `struct io_uring_cqe`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    data: u64,
    result: i32,
    flags: u32,
}

const _: () = assert!(size_of::<Entry>() == size_of::<io_uring_cqe>());
const _: () = assert!(size_of::<io_uring_sqe>() == 64);

/// What the ring's descriptor has mapped.
struct Memory {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it is memory like any other; what is not an atomic of it is looked at in a turn alone.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(fd: BorrowedFd<'_>, offset: u64, length: usize) -> Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel picks the address, so nothing that is mapped is touched.
        let start = unsafe { mmap(std::ptr::null_mut(), length, access, flags, fd, offset) }?;
        let start = NonNull::new(start.cast()).expect("mmap gives no address 0");
        Ok(Self { start, length })
    }

    /// The kernel says where its words are, so what it said is checked.
    fn word(&self, place: usize) -> &AtomicU32 {
        assert!(place.is_multiple_of(4) && place + 4 <= self.length);
        // SAFETY: the place is inside the mapping.
        let place = unsafe { self.start.byte_add(place) };
        // SAFETY: it is aligned, as the mapping is by pages; it is mapped as long as `self` lives,
        // and both sides access it atomically.
        unsafe { AtomicU32::from_ptr(place.as_ptr().cast()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference any more, as they borrow `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
