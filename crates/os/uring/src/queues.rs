//! The submission and completion queues of a ring, in memory shared with the kernel.

use std::mem::size_of;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::io_uring::{
    IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringFeatureFlags, IoringOp, IoringPollFlags,
    IoringSetupFlags, io_uring_cqe, io_uring_params, io_uring_setup, io_uring_sqe,
};

use crate::Result;
use crate::mapping::Mapping;

/// Sets up a ring that returns every completion, with room for `requests` between two submissions
/// and for `completions` that have not been taken. Both are rounded up to a power of two.
///
/// # Errors
/// Those of io_uring_setup(2); also EINVAL if the kernel lacks a feature of `needed`.
pub(crate) fn setup(
    requests: u32,
    completions: u32,
    flags: IoringSetupFlags,
    needed: IoringFeatureFlags,
) -> Result<(OwnedFd, Layout)> {
    let mut parameters = io_uring_params::default();
    parameters.flags =
        flags | IoringSetupFlags::SUBMIT_ALL | IoringSetupFlags::CQSIZE | IoringSetupFlags::CLAMP;
    parameters.cq_entries = completions;
    // SAFETY: the parameters name no descriptor, since the ring does not share another ring's work
    // queue.
    let fd = unsafe { io_uring_setup(requests, &mut parameters) }?;
    let needed = needed | IoringFeatureFlags::SINGLE_MMAP | IoringFeatureFlags::NODROP;
    if !parameters.features.contains(needed) {
        return Err(Errno::INVAL);
    }
    let (sq, cq) = (&parameters.sq_off, &parameters.cq_off);
    let layout = Layout {
        requests: parameters.sq_entries,
        completions: parameters.cq_entries,
        request_head: sq.head as usize,
        request_tail: sq.tail as usize,
        request_flags: sq.flags as usize,
        request_array: sq.array as usize,
        completion_head: cq.head as usize,
        completion_tail: cq.tail as usize,
        completion_array: cq.cqes as usize,
    };
    Ok((fd, layout))
}

/// The sizes of both queues, which are powers of two, and the offsets of their parts in the mapping
/// of both rings, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    requests: u32,
    completions: u32,
    request_head: usize,
    request_tail: usize,
    request_flags: usize,
    /// The array of indices of requests.
    request_array: usize,
    completion_head: usize,
    completion_tail: usize,
    completion_array: usize,
}

impl Layout {
    /// Returns the size of the mapping of both rings, in bytes.
    pub(crate) fn rings_bytes(&self) -> usize {
        let array_end = self.request_array + self.requests as usize * size_of::<u32>();
        array_end
            .max(self.completion_array + self.completions as usize * size_of::<CompletionEntry>())
    }

    /// Returns the size of the block of requests, in bytes.
    pub(crate) fn requests_bytes(&self) -> usize {
        self.requests as usize * size_of::<io_uring_sqe>()
    }
}

/// The queues. Positions in them are wrapping counts.
#[derive(Debug)]
pub(crate) struct Queues {
    rings: Mapping,
    requests: Mapping,
    layout: Layout,
    request_mask: u32,
    completion_mask: u32,
}

impl Queues {
    /// Maps the queues of a ring with this layout.
    ///
    /// # Errors
    /// ENOMEM, EAGAIN.
    pub(crate) fn map(fd: BorrowedFd<'_>, layout: Layout) -> Result<Self> {
        let rings = Mapping::new(fd, IORING_OFF_SQ_RING, layout.rings_bytes())?;
        let requests = Mapping::new(fd, IORING_OFF_SQES, layout.requests_bytes())?;
        // Each entry of the queue is the request with the same index in the block.
        for index in 0..layout.requests {
            let place = layout.request_array + index as usize * size_of::<u32>();
            rings.word(place).store(index, Ordering::Relaxed);
        }
        let (request_mask, completion_mask) = (layout.requests - 1, layout.completions - 1);
        Ok(Self { rings, requests, layout, request_mask, completion_mask })
    }

    /// Returns how many requests fit into the submission queue.
    pub(crate) fn capacity(&self) -> u32 {
        self.request_mask + 1
    }

    /// Returns the position up to which requests are published to the kernel.
    pub(crate) fn submission_tail(&self) -> u32 {
        self.request_tail().load(Ordering::Relaxed)
    }

    /// Returns the position up to which the kernel has taken requests. It has finished reading
    /// these.
    pub(crate) fn submission_head(&self) -> u32 {
        // Pairs with the kernel's release of the head.
        self.rings.word(self.layout.request_head).load(Ordering::Acquire)
    }

    /// Publishes the requests up to `position` to the kernel. All of them were written.
    pub(crate) fn publish_tail(&self, position: u32) {
        // Pairs with the kernel's acquire of the tail: the requests are written before it.
        self.request_tail().store(position, Ordering::Release);
    }

    fn request_tail(&self) -> &AtomicU32 {
        self.rings.word(self.layout.request_tail)
    }

    /// Returns the ring's flags IORING_SQ_* (io_uring_enter(2)).
    pub(crate) fn flags(&self) -> u32 {
        self.rings.word(self.layout.request_flags).load(Ordering::Acquire)
    }

    /// Writes a request to the entry of `position`.
    ///
    /// # Safety
    /// No other thread writes requests at the same time, and the entry is free. Memory that the
    /// request names belongs to the kernel from the submission until the request completes.
    pub(crate) unsafe fn write_request(&self, position: u32, request: io_uring_sqe) {
        let place = (position & self.request_mask) as usize * size_of::<io_uring_sqe>();
        // SAFETY: the place is inside the mapping, which is page-aligned.
        let place = unsafe { self.requests.start().byte_add(place) }.cast::<io_uring_sqe>();
        // SAFETY: as above; the caller promises that no other thread accesses the entry, and the
        // kernel does not before the position is published.
        unsafe { place.write(request) };
    }

    /// Returns whether there are completions. If another thread may take completions, the result
    /// may be outdated.
    pub(crate) fn has_entries(&self) -> bool {
        // Pairs with the kernel's release of the tail.
        let end = self.rings.word(self.layout.completion_tail).load(Ordering::Acquire);
        end != self.rings.word(self.layout.completion_head).load(Ordering::Acquire)
    }

    /// Takes the next completion.
    ///
    /// # Safety
    /// No other thread takes completions at the same time.
    pub(crate) unsafe fn next_entry(&self) -> Option<CompletionEntry> {
        let head = self.rings.word(self.layout.completion_head);
        let position = head.load(Ordering::Relaxed);
        // Pairs with the kernel's release of the tail: completions are written before it.
        let end = self.rings.word(self.layout.completion_tail).load(Ordering::Acquire);
        if position == end {
            return None;
        }
        let index = (position & self.completion_mask) as usize;
        let place = self.layout.completion_array + index * size_of::<CompletionEntry>();
        // SAFETY: the place is inside the mapping, and aligned as the kernel lays it out.
        let place = unsafe { self.rings.start().byte_add(place) }.cast::<CompletionEntry>();
        // SAFETY: as above; the kernel wrote it before the tail, and does not write it again until
        // the head has passed it, which only this function moves.
        let entry = unsafe { place.read() };
        // Pairs with the kernel's acquire of the head: the entry was read before it.
        head.store(position.wrapping_add(1), Ordering::Release);
        Some(entry)
    }
}

/// A completion as the kernel writes it: `struct io_uring_cqe` of 16 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CompletionEntry {
    /// The number that its request carried.
    pub(crate) data: u64,
    result: i32,
    flags: u32,
}

const _: () = assert!(size_of::<CompletionEntry>() == size_of::<io_uring_cqe>());
const _: () = assert!(size_of::<io_uring_sqe>() == 64);

impl CompletionEntry {
    /// Returns the result of its request.
    pub(crate) fn result(&self) -> Result<u32> {
        match self.result {
            number @ 0.. => Ok(number as u32),
            error => Err(Errno::from_raw_os_error(-error)),
        }
    }

    /// Returns whether its request continues.
    pub(crate) fn has_more(&self) -> bool {
        self.flags & MORE != 0
    }
}

/// IORING_CQE_F_MORE.
const MORE: u32 = rustix::io_uring::IoringCqeFlags::MORE.bits();

/// Returns a request that polls until it is cancelled. Such a request reports edges by default
/// (since Linux 5.13).
pub(crate) fn poll_request(fd: i32, events: u32, data: u64) -> io_uring_sqe {
    let mut request = io_uring_sqe { opcode: IoringOp::PollAdd, fd, ..Default::default() };
    request.len.poll_flags = IoringPollFlags::ADD_MULTI;
    // The kernel reads the events as two half-words, the low one first.
    let events = if cfg!(target_endian = "big") { events.rotate_left(16) } else { events };
    request.op_flags.poll32_events = events;
    request.user_data.u64_ = data;
    request
}
