//! Moving bytes between a socket and a pipe without copying them through user space.

use std::os::fd::AsFd;

use millrace_sys::{self as sys, Errno};

use super::descriptor::{
    Descriptor, DescriptorKind, HeldBeforeSplice, ReceiveOperation, SendOperation,
};
use super::queue::Direction;
use super::send::{hold_unsent, send_parts};
use super::{ReadinessEngine, Watch, completion};
use crate::limits::SPLICE_MAX;
use crate::{Buffer, Completion, CompletionEvent, Error, Fd, Key, Token};

impl<W: Watch> ReadinessEngine<W> {
    /// Opens a pipe with room for one splice. The kernel makes the pipe smaller if the user has too
    /// many pipes already (pipe(7), /proc/sys/fs/pipe-user-pages-soft). If it is smaller than a
    /// [`Buffer`], the call fails, since splicing through it would be slower than copying.
    pub(super) fn open_pipe(&mut self) -> Result<(Fd, Fd), Error> {
        if self.descriptors.len() + 2 > crate::limits::DESCRIPTORS_MAX as usize {
            return Err(Error::OutOfDescriptors);
        }
        let (read, write, capacity) = sys::pipe(SPLICE_MAX).map_err(Error::from_errno)?;
        if capacity < Buffer::SIZE {
            return Err(Error::OutOfMemory);
        }
        let mut insert = |fd| {
            let key = self.descriptors.insert(Descriptor::new(fd, DescriptorKind::Pipe));
            Fd(key.expect("the table has two free slots").slot)
        };
        Ok((insert(read), insert(write)))
    }

    pub(super) fn begin_splice(&mut self, from: &Fd, into: &Fd, max: usize, token: Token) {
        assert!(max > 0, "a splice of 0 bytes would look like the end of the stream");
        let max = max.min(SPLICE_MAX) as u32;
        let (from_key, source) = self.lookup(from);
        let from_pipe = source.kind == DescriptorKind::Pipe;
        let (into_key, target) = self.lookup(into);
        if from_pipe {
            assert_eq!(target.kind, DescriptorKind::Stream, "a pipe is spliced into a stream");
            target.begin_sending(SendOperation::Splice { pipe: from.0, max, token });
            let ready = target.writable;
            self.lookup(from).1.begin_receiving(ReceiveOperation::PipeSource { socket: into.0 });
            if ready {
                self.enqueue(into_key, Direction::Sending);
            }
        } else {
            assert_eq!(target.kind, DescriptorKind::Pipe, "a stream is spliced into a pipe");
            target.begin_sending(SendOperation::PipeTarget { socket: from.0 });
            let source = self.lookup(from).1;
            assert_eq!(source.kind, DescriptorKind::Stream, "a stream is spliced into a pipe");
            source.begin_receiving(ReceiveOperation::Splice { pipe: into.0, max, token });
            if source.readable {
                self.enqueue(from_key, Direction::Receiving);
            }
        }
    }

    /// Splices from the socket at `key` into a pipe. A splice that moved little does not show that
    /// the socket is empty: a pipe is full when all its slots are used, however few bytes each
    /// contains.
    pub(super) fn splice_in(
        &mut self,
        key: Key,
        pipe: u32,
        max: u32,
        token: Token,
    ) -> Option<Completion> {
        let into = self.descriptors.key_at(pipe)?;
        let result = self.splice_once(key, into, max);
        if result == Err(Errno::AGAIN) {
            let source = self.descriptors.get_mut(key)?;
            (source.readable, source.must_drain) = (false, false);
            return None;
        }
        self.descriptors.get_mut(key)?.receiving = ReceiveOperation::Idle;
        self.descriptors.get_mut(into)?.sending = SendOperation::Idle;
        completion(token, CompletionEvent::Spliced(result.map_err(Error::from_errno)))
    }

    /// Splices from a pipe into the socket at `key`. Only EAGAIN shows that the socket has no room
    /// left: a splice that moved less than `max` may have emptied the pipe.
    pub(super) fn splice_out(
        &mut self,
        key: Key,
        pipe: u32,
        max: u32,
        token: Token,
    ) -> Option<Completion> {
        let from = self.descriptors.key_at(pipe)?;
        let result = self.splice_once(from, key, max);
        if result == Err(Errno::AGAIN) {
            self.descriptors.get_mut(key)?.mark_unwritable(&mut self.watch);
            return None;
        }
        self.descriptors.get_mut(key)?.sending = SendOperation::Idle;
        self.descriptors.get_mut(from)?.receiving = ReceiveOperation::Idle;
        completion(token, CompletionEvent::Spliced(result.map_err(Error::from_errno)))
    }

    /// Splices from a stream into an empty pipe without waiting.
    pub(super) fn splice_in_now(
        &mut self,
        from: &Fd,
        into: &Fd,
        max: usize,
    ) -> Option<Result<usize, Error>> {
        assert!(max > 0, "a splice of 0 bytes would look like the end of the stream");
        let (into_key, target) = self.lookup(into);
        assert_eq!(target.kind, DescriptorKind::Pipe, "a stream is spliced into a pipe");
        assert!(matches!(target.sending, SendOperation::Idle), "no other operation fills the pipe");
        let (from_key, source) = self.lookup(from);
        assert_eq!(source.kind, DescriptorKind::Stream, "a stream is spliced into a pipe");
        assert!(
            matches!(source.receiving, ReceiveOperation::Idle),
            "one receiving operation at a time"
        );
        if !source.readable {
            return None;
        }
        match self.splice_once(from_key, into_key, max.min(SPLICE_MAX) as u32) {
            // Either the splice stopped before urgent data (tcp_read_sock), or there is nothing to
            // read. Only a receive shows which, and only a receive gets past urgent data.
            Err(Errno::AGAIN) if self.lookup(from).1.must_drain => Some(Ok(0)),
            Err(Errno::AGAIN) => {
                self.lookup(from).1.readable = false;
                None
            }
            result => Some(result.map_err(Error::from_errno)),
        }
    }

    /// Duplicates the bytes of one pipe into another.
    pub(super) fn tee_now(&mut self, from: &Fd, into: &Fd, max: usize) -> Result<usize, Error> {
        assert!(max > 0, "a result of 0 bytes would be ambiguous");
        let into = self.idle_pipe_end(into);
        let from = self.idle_pipe_end(from);
        let fd = |key| self.descriptors.get(key).expect("`idle_pipe_end` found it").fd.as_fd();
        let result = sys::tee(fd(from), fd(into), max.min(SPLICE_MAX));
        would_block_as_zero(result)
    }

    /// Reads from a pipe into the caller's memory.
    pub(super) fn read_pipe_now(&mut self, from: &Fd, memory: &mut [u8]) -> Result<usize, Error> {
        assert!(!memory.is_empty(), "a result of 0 bytes would be ambiguous");
        let from = self.idle_pipe_end(from);
        let pipe = self.descriptors.get(from).expect("`idle_pipe_end` found it").fd.as_fd();
        would_block_as_zero(sys::read_pipe(pipe, memory))
    }

    /// Returns the key of an end of a pipe. Panics if an operation is outstanding for it.
    fn idle_pipe_end(&mut self, fd: &Fd) -> Key {
        let (key, descriptor) = self.lookup(fd);
        assert_eq!(descriptor.kind, DescriptorKind::Pipe, "only pipes are duplicated and read");
        let is_idle = matches!(descriptor.receiving, ReceiveOperation::Idle)
            && matches!(descriptor.sending, SendOperation::Idle);
        assert!(is_idle, "no other operation uses the pipe");
        key
    }

    /// Sends `parts` and, if the socket has room for all of them, splices the pipe before the
    /// function returns. The kernel holds back the last bytes of `parts` until more bytes follow
    /// (MSG_MORE). If the pipe were spliced in a later turn, these bytes would wait for it.
    pub(super) fn begin_send_then_splice(
        &mut self,
        parts: &[&[u8]],
        from: &Fd,
        into: &Fd,
        max: usize,
        token: Token,
    ) {
        assert!(max > 0, "a splice of 0 bytes would look like the end of the stream");
        let max = max.min(SPLICE_MAX) as u32;
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let (from_key, source) = self.lookup(from);
        assert_eq!(source.kind, DescriptorKind::Pipe, "a pipe is spliced into a stream");
        assert!(
            matches!(source.receiving, ReceiveOperation::Idle),
            "no other operation reads the pipe"
        );
        let into_key = self.lookup(into).0;
        let Some(target) = self.descriptors.get_mut(into_key) else { return };
        assert_eq!(target.kind, DescriptorKind::Stream, "a pipe is spliced into a stream");
        target.begin_sending(SendOperation::Idle);
        let sent = send_parts(target, parts, true, &mut self.stats);
        let taken = sent.unwrap_or(0);
        self.bytes_moved += taken;
        self.stats.bytes_sent += taken as u64;
        let sending = match sent {
            Ok(_) if taken < total => {
                target.mark_unwritable(&mut self.watch);
                self.stats.short_sends += 1;
                let before =
                    HeldBeforeSplice { rest: hold_unsent(&self.budget, parts, taken), max };
                SendOperation::SendThenSplice { pipe: from.0, token, before: Box::new(before) }
            }
            Ok(_) => match self.splice_once(from_key, into_key, max) {
                Err(Errno::AGAIN) => {
                    if let Some(target) = self.descriptors.get_mut(into_key) {
                        target.mark_unwritable(&mut self.watch);
                    }
                    SendOperation::Splice { pipe: from.0, max, token }
                }
                Ok(count) => SendOperation::Spliced { token, result: Ok(count as u32) },
                Err(error) => {
                    SendOperation::Spliced { token, result: Err(Error::from_errno(error)) }
                }
            },
            Err(error) => SendOperation::Spliced { token, result: Err(Error::from_errno(error)) },
        };
        if matches!(sending, SendOperation::Spliced { .. }) {
            self.enqueue(into_key, Direction::Sending);
        } else {
            self.descriptor_at(from.0)
                .begin_receiving(ReceiveOperation::PipeSource { socket: into.0 });
        }
        self.descriptor_at(into.0).sending = sending;
    }

    fn splice_once(&mut self, from: Key, into: Key, max: u32) -> Result<usize, Errno> {
        let (Some(source), Some(target)) = (self.descriptors.get(from), self.descriptors.get(into))
        else {
            unreachable!("both ends are open: closing one ends the splice")
        };
        let result = sys::splice(source.fd.as_fd(), target.fd.as_fd(), max as usize);
        match result {
            Ok(count) => {
                self.bytes_moved += count;
                self.stats.bytes_spliced += count as u64;
            }
            Err(Errno::AGAIN) => self.stats.would_block += 1,
            Err(_) => {}
        }
        result
    }

    /// If a removed descriptor was one side of a splice, marks the other side as idle.
    pub(super) fn release_splice_partner(&mut self, ended: &Descriptor) {
        if let ReceiveOperation::Splice { pipe: other, .. }
        | ReceiveOperation::PipeSource { socket: other } = ended.receiving
        {
            self.descriptor_at(other).sending = SendOperation::Idle;
        }
        if let SendOperation::Splice { pipe: other, .. }
        | SendOperation::SendThenSplice { pipe: other, .. }
        | SendOperation::PipeTarget { socket: other } = ended.sending
        {
            self.descriptor_at(other).receiving = ReceiveOperation::Idle;
        }
    }
}

/// Converts EAGAIN to 0: an empty source pipe or a full target pipe is no error for an operation
/// that does not wait.
fn would_block_as_zero(result: Result<usize, Errno>) -> Result<usize, Error> {
    match result {
        Err(Errno::AGAIN) => Ok(0),
        result => result.map_err(Error::from_errno),
    }
}
