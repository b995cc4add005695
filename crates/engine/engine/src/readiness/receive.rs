//! The receiving direction: accepting connections and receiving bytes.

use std::os::fd::AsFd;

use millrace_sys::{self as sys, Errno};

use super::descriptor::{DescriptorKind, ReceiveOperation};
use super::queue::{Direction, ReadyEntry};
use super::{ReadinessEngine, Watch, completion, data_of};
use crate::limits::ACCEPTS_MAX;
use crate::{Buffer, Completion, CompletionEvent, Error, Fd, Key, Token};

impl<W: Watch> ReadinessEngine<W> {
    pub(super) fn begin_receive(&mut self, fd: &Fd, max: usize, token: Token) {
        assert!((1..=Buffer::SIZE).contains(&max), "a receive fits one buffer");
        let (key, descriptor) = self.lookup(fd);
        assert!(matches!(descriptor.kind, DescriptorKind::Stream | DescriptorKind::Datagram));
        descriptor.begin_receiving(ReceiveOperation::Receive { max: max as u32, token });
        if descriptor.readable {
            self.enqueue(key, Direction::Receiving);
        }
    }

    pub(super) fn begin_poll_readable(&mut self, fd: &Fd, token: Token) {
        let (key, descriptor) = self.lookup(fd);
        assert!(matches!(descriptor.kind, DescriptorKind::Stream | DescriptorKind::Polled));
        descriptor.begin_receiving(ReceiveOperation::PollReadable { token });
        if descriptor.readable {
            self.enqueue(key, Direction::Receiving);
        }
    }

    pub(super) fn begin_accept(&mut self, listener: &Fd, token: Token) {
        let turn = self.turn;
        let (key, descriptor) = self.lookup(listener);
        assert_eq!(descriptor.kind, DescriptorKind::Listener);
        descriptor.begin_receiving(ReceiveOperation::Accept { token, turn, count: 0 });
        let fd = self.descriptors.get(key).expect("`lookup` found it").fd.as_fd();
        self.watch.add_listener(fd, data_of(key)).expect("a listener can be watched");
        // Connections may be pending already, so the first attempt is made now and not at the next
        // edge.
        self.enqueue(key, Direction::Receiving);
    }

    /// Stops watching a listener, so that other engines waiting for it get its edges.
    pub(super) fn stop_accepting(&mut self, key: Key) {
        let Some(descriptor) = self.descriptors.get_mut(key) else { return };
        assert_eq!(descriptor.kind, DescriptorKind::Listener);
        if matches!(descriptor.receiving, ReceiveOperation::Accept { .. }) {
            descriptor.receiving = ReceiveOperation::Idle;
            self.watch.remove(descriptor.fd.as_fd(), data_of(key));
        }
    }

    /// Runs the operation of a descriptor that may find something.
    pub(super) fn run_receive(&mut self, key: Key) -> Option<Completion> {
        let may_receive = !self.budget.is_exhausted();
        let may_batch = self.should_batch();
        let descriptor = self.descriptors.get_mut(key)?;
        descriptor.receive_queued = false;
        descriptor.parked = false;
        match descriptor.receiving {
            ReceiveOperation::Receive { .. } if !may_receive => {
                descriptor.receive_queued = true;
                descriptor.parked = true;
                self.stats.parked_receives += 1;
                self.queue.parked.push_back(ReadyEntry { key, direction: Direction::Receiving });
                None
            }
            ReceiveOperation::Receive { .. }
                if may_batch && descriptor.kind == DescriptorKind::Stream =>
            {
                descriptor.receive_queued = true;
                self.batch.receives.push(key);
                None
            }
            ReceiveOperation::Receive { max, token } => self.receive(key, max as usize, token),
            ReceiveOperation::Accept { token, turn, count } => {
                let count = if turn == self.turn { count } else { 0 };
                self.accept_one(key, token, count)
            }
            ReceiveOperation::Splice { pipe, max, token } => self.splice_in(key, pipe, max, token),
            ReceiveOperation::PollReadable { token } => {
                descriptor.receiving = ReceiveOperation::Idle;
                // Its owner receives everything now, and later bytes cause an edge.
                descriptor.readable &= descriptor.kind != DescriptorKind::Polled;
                completion(token, CompletionEvent::Readable)
            }
            ReceiveOperation::Idle | ReceiveOperation::PipeSource { .. } => None,
        }
    }

    fn receive(&mut self, key: Key, max: usize, token: Token) -> Option<Completion> {
        let mut buffer = self.spare_buffers.pop().unwrap_or_default();
        let descriptor = self.descriptors.get_mut(key)?;
        let result = sys::receive(descriptor.fd.as_fd(), &mut buffer.block_mut()[..max]);
        self.update_readable(key, max, &result);
        self.complete_receive(key, token, buffer, result)
    }

    /// Updates the readiness of a descriptor from the result of a receive of up to `max` bytes.
    pub(super) fn update_readable(&mut self, key: Key, max: usize, result: &sys::Result<usize>) {
        self.stats.receives += 1;
        let Some(descriptor) = self.descriptors.get_mut(key) else { return };
        match result {
            Ok(count) => {
                // A stream that returned less than requested is empty, and its next bytes cause an
                // edge (epoll(7), question 9).
                let emptied = *count < max && descriptor.kind == DescriptorKind::Stream;
                descriptor.readable = !emptied || descriptor.must_drain;
            }
            Err(Errno::AGAIN) => {
                descriptor.readable = false;
                descriptor.must_drain = false;
                self.stats.would_block += 1;
            }
            Err(_) => {}
        }
    }

    /// Returns the completion of a finished receive, or `None` if the receive found nothing.
    pub(super) fn complete_receive(
        &mut self,
        key: Key,
        token: Token,
        mut buffer: Buffer,
        result: sys::Result<usize>,
    ) -> Option<Completion> {
        let descriptor = self.descriptors.get_mut(key)?;
        let received = match result {
            // An empty datagram is neither data nor an end of the stream, so the next one is
            // received.
            Ok(0) if descriptor.kind == DescriptorKind::Datagram => {
                self.keep_spare_buffer(buffer);
                self.enqueue(key, Direction::Receiving);
                return None;
            }
            Err(Errno::AGAIN) => {
                self.keep_spare_buffer(buffer);
                return None;
            }
            // The failed send has consumed the socket's pending error (socket(7), SO_ERROR), so the
            // break now looks like an end of the stream. The caller does not know of the failed
            // send yet, since its completion has not been returned.
            Ok(0) if descriptor.has_failed_send() => Err(Error::Reset),
            result => result.map_err(Error::from_errno),
        };
        descriptor.receiving = ReceiveOperation::Idle;
        let received = match received {
            Ok(count) => {
                buffer.set_filled(count);
                self.lent += 1;
                self.bytes_moved += count;
                Ok(buffer)
            }
            Err(error) => {
                self.keep_spare_buffer(buffer);
                Err(error)
            }
        };
        completion(token, CompletionEvent::Received(received))
    }

    /// Receives from a stream into the caller's memory without waiting.
    pub(super) fn recv_into_now(
        &mut self,
        from: &Fd,
        memory: &mut [u8],
    ) -> Option<Result<usize, Error>> {
        assert!(!memory.is_empty(), "a receive of 0 bytes would look like the end of the stream");
        let (key, source) = self.lookup(from);
        assert_eq!(source.kind, DescriptorKind::Stream, "only a stream is received from");
        assert!(
            matches!(source.receiving, ReceiveOperation::Idle),
            "one receiving operation at a time"
        );
        if !source.readable {
            return None;
        }
        let result = sys::receive(source.fd.as_fd(), memory);
        self.update_readable(key, memory.len(), &result);
        match result {
            Err(Errno::AGAIN) => None,
            // As in `complete_receive`.
            Ok(0) if self.lookup(from).1.has_failed_send() => Some(Err(Error::Reset)),
            Ok(count) => {
                self.bytes_moved += count;
                Some(Ok(count))
            }
            Err(error) => Some(Err(Error::from_errno(error))),
        }
    }

    /// Accepts one connection. The listener is then queued behind everything else that is ready.
    fn accept_one(&mut self, key: Key, token: Token, count: u32) -> Option<Completion> {
        let turn = self.turn;
        let descriptor = self.descriptors.get_mut(key)?;
        if count >= ACCEPTS_MAX {
            descriptor.receive_queued = true;
            self.queue.deferred.push(ReadyEntry { key, direction: Direction::Receiving });
            return None;
        }
        let accepted = sys::accept(descriptor.fd.as_fd());
        descriptor.receiving = ReceiveOperation::Accept { token, turn, count: count + 1 };
        let result = match accepted {
            Ok((connection, peer)) => self.register_ready(connection).map(|fd| (fd, peer)),
            Err(Errno::AGAIN) => {
                descriptor.readable = false;
                self.stats.would_block += 1;
                return None;
            }
            Err(error) if is_connection_error(error) => {
                self.enqueue(key, Direction::Receiving);
                return None;
            }
            Err(error) => Err(Error::from_errno(error)),
        };
        if result.is_ok() {
            self.enqueue(key, Direction::Receiving);
        } else {
            self.stop_accepting(key);
        }
        completion(token, CompletionEvent::Accepted(result))
    }
}

/// Returns whether accept(2) failed because of the one connection that it took from the backlog.
/// Linux passes on errors that are pending on the new socket (accept(2), "Error handling").
fn is_connection_error(error: Errno) -> bool {
    [
        Errno::CONNABORTED,
        Errno::NETDOWN,
        Errno::PROTO,
        Errno::NOPROTOOPT,
        Errno::HOSTDOWN,
        Errno::NONET,
        Errno::HOSTUNREACH,
        Errno::NETUNREACH,
        Errno::TIMEDOUT,
        Errno::PERM,
    ]
    .contains(&error)
}
