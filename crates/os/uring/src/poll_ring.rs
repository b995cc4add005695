//! A ring that threads share, one at a time, and that tells of events of sockets. Of a ring only
//! what that needs is here: requests that poll until they are cancelled (multishot, since Linux
//! 5.13), and their completions.
//!
//! Completions are made when the thread that has asked is in the kernel (IORING_SETUP_COOP_TASKRUN,
//! since 5.19): no thread is interrupted for them, and a flag in shared memory says that there are
//! some to be fetched by a call. A thread that sleeps is woken to make them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, TryLockError};

use rustix::io::Errno;
use rustix::io_uring::{
    IoringAsyncCancelFlags, IoringEnterFlags, IoringFeatureFlags, IoringRegisterOp,
    IoringSetupFlags, IoringSqFlags, io_uring_enter, io_uring_register, io_uring_sync_cancel_reg,
};
use rustix::time::Timespec;

use crate::Result;
use crate::queues::{Queues, poll_request, setup};

/// A ring whose requests poll. `F` is what its owner keeps the descriptor in.
#[derive(Debug)]
pub struct PollRing<F> {
    // Closed before its memory goes.
    fd: F,
    queues: Queues,
    /// Who has it may queue requests and take completions.
    lock: Mutex<()>,
}

/// What became of a request that polls.
#[derive(Debug)]
pub struct PollCompletion {
    /// The number that the request carries.
    pub data: u64,
    /// What its socket was ready for when this was made, in the bits of poll(2).
    pub events: Result<u32>,
    /// Whether it goes on.
    pub has_more: bool,
}

impl<F: AsFd> PollRing<F> {
    /// With room for `requests` between two submissions, and for `completions` that nobody has
    /// taken; what is more than that is kept by the kernel. `keep` gets the descriptor.
    ///
    /// # Errors
    /// ENOSYS: no io_uring, or a filter of system calls hides it. EPERM: forbidden by
    /// kernel.io_uring_disabled, or a filter. EINVAL: older than Linux 6.0. ENOMEM, EMFILE, ENFILE.
    pub fn new(requests: u32, completions: u32, keep: impl FnOnce(OwnedFd) -> F) -> Result<Self> {
        let flags = IoringSetupFlags::COOP_TASKRUN | IoringSetupFlags::TASKRUN_FLAG;
        let (fd, layout) = setup(requests, completions, flags, IoringFeatureFlags::empty())?;
        let fd = keep(fd);
        let queues = Queues::map(fd.as_fd(), layout)?;
        let ring = Self { fd, queues, lock: Mutex::new(()) };
        // Cancelling came last, with Linux 6.0: before it that is EINVAL.
        match ring.cancel(0) {
            Ok(()) | Err(Errno::NOENT) => Ok(ring),
            Err(error) => Err(error),
        }
    }

    /// Whether there are completions, or a call would give some. Without the turn this is a hint:
    /// it holds for what has happened before.
    pub fn has_completions(&self) -> bool {
        self.queues.has_entries() || self.needs_call()
    }

    fn needs_call(&self) -> bool {
        !self.flags().intersection(IoringSqFlags::TASKRUN | IoringSqFlags::CQ_OVERFLOW).is_empty()
    }

    fn flags(&self) -> IoringSqFlags {
        IoringSqFlags::from_bits_retain(self.queues.flags())
    }

    /// The right to queue and to take. Nothing while another thread has it, or one that this, as a
    /// signal handler, has interrupted.
    pub fn try_lock(&self) -> Option<RingGuard<'_, F>> {
        let _guard = match self.lock.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(RingGuard { ring: self, _guard })
    }

    /// Ends the request that carries `data`. It completes, and lets go of its socket, before this
    /// returns if this thread made it; otherwise when the thread that did is next in the kernel.
    /// Takes no turn, so a signal handler may do it.
    ///
    /// # Errors
    /// ENOENT: there is none.
    pub fn cancel(&self, data: u64) -> Result<()> {
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
    pub fn cancel_all(&self) {
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
impl<F: AsFd> AsFd for PollRing<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The right to queue and to take.
#[derive(Debug)]
pub struct RingGuard<'a, F> {
    ring: &'a PollRing<F>,
    _guard: MutexGuard<'a, ()>,
}

impl<F: AsFd> RingGuard<'_, F> {
    /// Requests that fit into the queue.
    pub fn capacity(&self) -> usize {
        self.ring.queues.capacity() as usize
    }

    /// Submits requests that tell of edges of sockets, and of what each is ready for already: as
    /// many as there is room for; each is a socket and the number that it carries. Gives how many
    /// the kernel has taken, always the first ones.
    pub fn submit(&mut self, requests: &[(i32, u64)], events: u32) -> usize {
        let queues = &self.ring.queues;
        let begin = queues.submission_tail();
        for (step, (fd, data)) in requests.iter().enumerate().take(self.capacity()) {
            let position = begin.wrapping_add(step as u32);
            // SAFETY: this is the turn, and all that was queued before is taken; the request names
            // no memory.
            unsafe { queues.write_request(position, poll_request(*fd, events, *data)) };
        }
        let count = requests.len().min(self.capacity()) as u32;
        queues.publish_tail(begin.wrapping_add(count));
        // It may want memory: what it has not taken is asked for another time.
        let _ = self.ring.enter(count);
        let taken = queues.submission_head();
        // The kernel looks at the tail in a call alone, so what is left can be taken back.
        queues.publish_tail(taken);
        taken.wrapping_sub(begin) as usize
    }

    /// Has the kernel make the completions that are due, if there are any; gives whether that took
    /// a call.
    pub fn fetch_completions(&mut self) -> bool {
        let is_due = self.ring.needs_call();
        if is_due {
            let _ = self.ring.enter(0);
        }
        is_due
    }

    /// Whether completions did not fit, and the kernel keeps them until there is room.
    pub fn has_overflowed(&self) -> bool {
        self.ring.flags().contains(IoringSqFlags::CQ_OVERFLOW)
    }

    /// The next completion that is there.
    pub fn next_completion(&mut self) -> Option<PollCompletion> {
        // SAFETY: this is the turn, so nobody else takes completions.
        let entry = unsafe { self.ring.queues.next_entry() }?;
        Some(PollCompletion {
            data: entry.data,
            events: entry.result(),
            has_more: entry.has_more(),
        })
    }
}
