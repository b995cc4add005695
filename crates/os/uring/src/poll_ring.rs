//! A ring that reports events of sockets and is shared by threads, one at a time. It supports only
//! multishot poll requests (since Linux 5.13), which poll until they are cancelled, and their
//! completions.
//!
//! The kernel creates completions when the thread that queued the request enters the kernel
//! (IORING_SETUP_COOP_TASKRUN, since 5.19). So no thread is interrupted for them, and a flag in
//! shared memory shows that a call would return some. A thread that sleeps is woken to create them.

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

/// A ring of poll requests. `F` is the owner's type for the descriptor.
#[derive(Debug)]
pub struct PollRing<F> {
    // Declared first, so that it is closed before its memory is unmapped.
    fd: F,
    queues: Queues,
    /// The holder of the lock may queue requests and take completions.
    lock: Mutex<()>,
}

/// A completion of a poll request.
#[derive(Debug)]
pub struct PollCompletion {
    /// The number that the request carries.
    pub data: u64,
    /// The readiness of the socket when the completion was created, in the bits of poll(2).
    pub events: Result<u32>,
    /// Whether the request continues.
    pub has_more: bool,
}

impl<F: AsFd> PollRing<F> {
    /// Sets up a ring with room for `requests` between two submissions, and for `completions` that
    /// have not been taken. The kernel keeps further completions itself. `convert` converts the
    /// descriptor.
    ///
    /// # Errors
    /// ENOSYS: the kernel has no io_uring, or a filter of system calls hides it. EPERM:
    /// kernel.io_uring_disabled or a filter forbids it. EINVAL: the kernel is older than Linux 6.0.
    /// ENOMEM, EMFILE, ENFILE.
    pub fn new(
        requests: u32,
        completions: u32,
        convert: impl FnOnce(OwnedFd) -> F,
    ) -> Result<Self> {
        let flags = IoringSetupFlags::COOP_TASKRUN | IoringSetupFlags::TASKRUN_FLAG;
        let (fd, layout) = setup(requests, completions, flags, IoringFeatureFlags::empty())?;
        let fd = convert(fd);
        let queues = Queues::map(fd.as_fd(), layout)?;
        let ring = Self { fd, queues, lock: Mutex::new(()) };
        // Synchronous cancelling is the newest feature used, of Linux 6.0. Older kernels return
        // EINVAL.
        match ring.cancel(0) {
            Ok(()) | Err(Errno::NOENT) => Ok(ring),
            Err(error) => Err(error),
        }
    }

    /// Returns whether there are completions, or a call would create some. Without the lock the
    /// result may be outdated.
    pub fn has_completions(&self) -> bool {
        self.queues.has_entries() || self.needs_call()
    }

    fn needs_call(&self) -> bool {
        !self.flags().intersection(IoringSqFlags::TASKRUN | IoringSqFlags::CQ_OVERFLOW).is_empty()
    }

    fn flags(&self) -> IoringSqFlags {
        IoringSqFlags::from_bits_retain(self.queues.flags())
    }

    /// Locks the ring for queueing requests and taking completions. Returns `None` while another
    /// thread holds the lock, or if this is a signal handler that interrupted a holder.
    pub fn try_lock(&self) -> Option<RingGuard<'_, F>> {
        let _guard = match self.lock.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(RingGuard { ring: self, _guard })
    }

    /// Cancels the request that carries `data`. If this thread queued the request, the request
    /// completes and releases its socket before the call returns. If another thread queued it, that
    /// happens when that thread next enters the kernel. Takes no lock, so a signal handler may call
    /// it.
    ///
    /// # Errors
    /// ENOENT if there is no such request.
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

    /// Cancels all requests. Requests of a closed ring would stay active for a while, and keep
    /// their sockets open.
    pub fn cancel_all(&self) {
        // Linux 6.13 and newer cancel about twenty of them in a call.
        let all = IoringAsyncCancelFlags::ANY | IoringAsyncCancelFlags::ALL;
        while self.cancel_by(0, all).is_ok_and(|count| count > 0) {}
    }

    fn enter(&self, submitted: u32) -> Result<u32> {
        let flags = IoringEnterFlags::GETEVENTS;
        // SAFETY: the queued requests are fully written, and name no memory.
        unsafe { io_uring_enter(self.fd.as_fd(), submitted, 0, flags) }
    }
}

/// The descriptor of the ring, which is readable while there are completions.
impl<F: AsFd> AsFd for PollRing<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The right to queue requests and to take completions.
#[derive(Debug)]
pub struct RingGuard<'a, F> {
    ring: &'a PollRing<F>,
    _guard: MutexGuard<'a, ()>,
}

impl<F: AsFd> RingGuard<'_, F> {
    /// Returns how many requests fit into the queue.
    pub fn capacity(&self) -> usize {
        self.ring.queues.capacity() as usize
    }

    /// Submits requests that report edges of sockets, and their current readiness. Each element is
    /// a socket and the number that its request carries. Elements beyond the capacity of the queue
    /// are ignored. Returns how many the kernel has taken; these are always the first ones.
    pub fn submit(&mut self, requests: &[(i32, u64)], events: u32) -> usize {
        let queues = &self.ring.queues;
        let begin = queues.submission_tail();
        for (step, (fd, data)) in requests.iter().enumerate().take(self.capacity()) {
            let position = begin.wrapping_add(step as u32);
            // SAFETY: the lock is held, and the kernel has taken everything that was queued before;
            // the request names no memory.
            unsafe { queues.write_request(position, poll_request(*fd, events, *data)) };
        }
        let count = requests.len().min(self.capacity()) as u32;
        queues.publish_tail(begin.wrapping_add(count));
        // The kernel may lack memory. The caller retries the requests that are not taken.
        let _ = self.ring.enter(count);
        let taken = queues.submission_head();
        // The kernel reads the tail only during a call, so the remaining requests can be withdrawn.
        queues.publish_tail(taken);
        taken.wrapping_sub(begin) as usize
    }

    /// Makes the kernel create the completions that are due, if there are any. Returns whether that
    /// took a call.
    pub fn fetch_completions(&mut self) -> bool {
        let is_due = self.ring.needs_call();
        if is_due {
            let _ = self.ring.enter(0);
        }
        is_due
    }

    /// Returns whether completions did not fit, and the kernel keeps them until there is room.
    pub fn has_overflowed(&self) -> bool {
        self.ring.flags().contains(IoringSqFlags::CQ_OVERFLOW)
    }

    /// Returns the next completion.
    pub fn next_completion(&mut self) -> Option<PollCompletion> {
        // SAFETY: the lock is held, so no other thread takes completions.
        let entry = unsafe { self.ring.queues.next_entry() }?;
        Some(PollCompletion {
            data: entry.data,
            events: entry.result(),
            has_more: entry.has_more(),
        })
    }
}
