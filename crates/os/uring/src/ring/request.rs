//! The requests of a ring.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::io_uring::{
    IoringAsyncCancelFlags, IoringEnterFlags, IoringOp, IoringSqeFlags, io_uring_sqe,
};
use rustix::net::{RecvFlags, SendFlags};

use super::{CANCELLED, LENT_BIT, LeakedBox, LentMemory, RequestMemory, Ring};
use crate::Result;
use crate::queues;

impl Ring {
    /// Watches a connection until it is cancelled, for edges of readability, writability, urgent
    /// data, and the end of either direction. The current readiness is reported too.
    ///
    /// The ring keeps the open file until the request has ended. A descriptor that is closed before
    /// that sends no FIN. Bit 31 of `data` must be 0.
    ///
    /// # Errors
    /// Those of [`Ring::enter`] if the queue was full. If the watch itself fails, the request
    /// completes with the error.
    pub fn watch_connection(&mut self, fd: BorrowedFd<'_>, data: u64) -> Result<()> {
        // The band bit distinguishes the kernel's hints from checked readiness
        // (`Readiness::is_hint`).
        let read = EventFlags::IN | EventFlags::PRI | EventFlags::RDBAND | EventFlags::RDHUP;
        self.watch(fd, read | EventFlags::OUT, data)
    }

    /// Watches a listener or an eventfd for edges of readability. If several rings watch the same
    /// listener, only one or a few of them are woken.
    ///
    /// # Errors
    /// As [`Ring::watch_connection`].
    pub fn watch_listener(&mut self, fd: BorrowedFd<'_>, data: u64) -> Result<()> {
        self.watch(fd, EventFlags::IN | EventFlags::EXCLUSIVE, data)
    }

    fn watch(&mut self, fd: BorrowedFd<'_>, events: EventFlags, data: u64) -> Result<()> {
        assert_eq!(data & LENT_BIT, 0, "bit 31 is reserved for the ring");
        self.push(queues::poll_request(fd.as_raw_fd(), events.bits(), data))
    }

    /// Cancels the watch that carries `data`, which completes with ECANCELED. Without such a watch,
    /// nothing happens.
    ///
    /// # Errors
    /// Those of [`Ring::enter`] if the queue was full.
    pub fn cancel(&mut self, data: u64) -> Result<()> {
        // IORING_OP_POLL_REMOVE fails with EALREADY while an event of the watch is on its way
        // (Linux 6.18). The watch would then stay active and keep the file open.
        let mut request = request(IoringOp::AsyncCancel, -1);
        request.flags = IoringSqeFlags::CQE_SKIP_SUCCESS;
        request.addr_or_splice_off_in.user_data.u64_ = data;
        request.user_data.u64_ = CANCELLED;
        self.push(request)
    }

    /// Receives up to `max` bytes into `memory` without waiting. The ring owns the memory until the
    /// completion.
    ///
    /// # Errors
    /// Those of [`Ring::enter`] if the queue was full. The memory is then lost.
    ///
    /// # Panics
    /// Panics if `memory` is shorter than `max`.
    pub fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        data: u64,
        memory: Box<[u8]>,
        max: usize,
    ) -> Result<()> {
        let memory = LeakedBox::new(memory);
        let mut request = request(IoringOp::Recv, fd.as_raw_fd());
        request.addr_or_splice_off_in.addr.ptr = memory.start(max).cast();
        request.len.len = max as u32;
        request.op_flags.recv_flags = RecvFlags::DONTWAIT;
        self.push_lent(request, LentMemory { data, memory: RequestMemory::ToFill(memory) })
    }

    /// Sends `memory` without waiting for room, and without a signal if the connection is closed.
    /// The ring owns the memory until the completion.
    ///
    /// # Errors
    /// As [`Ring::receive`]; EINVAL for memory of 4 GiB or more.
    pub fn send(&mut self, fd: BorrowedFd<'_>, data: u64, memory: Vec<u8>) -> Result<()> {
        let mut request = request(IoringOp::Send, fd.as_raw_fd());
        request.addr_or_splice_off_in.addr.ptr = memory.as_ptr().cast_mut().cast();
        request.len.len = u32::try_from(memory.len()).map_err(|_| Errno::INVAL)?;
        request.op_flags.send_flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        self.push_lent(request, LentMemory { data, memory: RequestMemory::ToSend(memory) })
    }

    fn push_lent(&mut self, mut request: io_uring_sqe, lent: LentMemory) -> Result<()> {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.lent.push(None);
            self.lent.len() as u32 - 1
        });
        request.user_data.u64_ = u64::from(slot) | LENT_BIT;
        // The memory is stored before the kernel can use it. If the queue is full, `push` first
        // submits the earlier requests, without this one.
        self.lent[slot as usize] = Some(lent);
        self.push(request)
    }

    /// Cancels every request. Each completes when the kernel has released its file, during this
    /// call or a later [`Ring::enter`].
    pub(super) fn cancel_all(&mut self) -> Result<()> {
        let mut request = request(IoringOp::AsyncCancel, -1);
        request.op_flags.cancel_flags = IoringAsyncCancelFlags::ALL | IoringAsyncCancelFlags::ANY;
        request.user_data.u64_ = CANCELLED;
        self.push(request)?;
        self.enter(Some(Duration::ZERO))
    }

    pub(super) fn push(&mut self, request: io_uring_sqe) -> Result<()> {
        let room = self.queues.capacity();
        if self.unsubmitted() >= room {
            self.submit(room - 1, IoringEnterFlags::empty())?;
        }
        // SAFETY: this thread owns the ring, and the entry is free, since fewer requests are queued
        // than fit; the memory that the request names is in `lent` until it completes.
        unsafe { self.queues.write_request(self.queued, request) };
        self.queued = self.queued.wrapping_add(1);
        Ok(())
    }
}

fn request(operation: IoringOp, fd: i32) -> io_uring_sqe {
    io_uring_sqe { opcode: operation, fd, ..io_uring_sqe::default() }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use millrace_sys::EventFd;

    use super::*;
    use crate::RingCompletion;
    use crate::ring::test_ring;

    #[test]
    fn each_receive_returns_its_memory_with_its_bytes() {
        let Some(mut ring) = test_ring(64) else { return };
        let mut pairs: Vec<_> = (0..40).map(|_| UnixStream::pair().unwrap()).collect();
        // The vector of lent memory grows, and moves, while the first requests are queued.
        for (pair, number) in pairs.iter_mut().zip(1_u8..) {
            pair.1.write_all(&[number; 100]).unwrap();
            let memory = vec![0; 64].into_boxed_slice();
            ring.receive(pair.0.as_fd(), number.into(), memory, 50).unwrap();
        }
        ring.enter(Some(Duration::ZERO)).unwrap();
        let mut numbers = Vec::new();
        while let Some(completion) = ring.next_completion() {
            let RingCompletion::Received { data, memory, result } = completion else {
                panic!("{completion:?}");
            };
            assert_eq!((result, memory.len()), (Ok(50), 64));
            assert!(memory[..50].iter().all(|byte| u64::from(*byte) == data), "{memory:?}");
            assert_eq!(memory[50..], [0; 14]);
            numbers.push(data);
        }
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=40).collect::<Vec<u64>>());
    }

    #[test]
    #[should_panic(expected = "a receive fits its memory")]
    fn memory_that_is_too_short_is_a_bug_of_the_caller() {
        LeakedBox::new(Box::new([0; 8])).start(9);
    }

    #[test]
    fn a_dropped_ring_consumes_no_wake_of_a_later_ring() {
        for _ in 0..50 {
            let Some(mut ring) = test_ring(1024) else { return };
            let eventfd = EventFd::new().unwrap();
            // Far more than the kernel cancels in one call.
            let pairs: Vec<_> = (0..200).map(|_| UnixStream::pair().unwrap()).collect();
            for (pair, data) in pairs.iter().zip(1..) {
                ring.watch_connection(pair.0.as_fd(), data).unwrap();
            }
            ring.watch_listener(eventfd.as_fd(), 0).unwrap();
            ring.enter(Some(Duration::ZERO)).unwrap();
            drop(ring);
            let Some(mut ring) = test_ring(1024) else { return };
            ring.watch_listener(eventfd.as_fd(), 7).unwrap();
            ring.enter(Some(Duration::ZERO)).unwrap();
            eventfd.signal();
            ring.enter(Some(Duration::from_secs(10))).unwrap();
            let woken = ring.next_completion();
            assert!(matches!(woken, Some(RingCompletion::Watched { data: 7, .. })), "{woken:?}");
        }
    }
}
