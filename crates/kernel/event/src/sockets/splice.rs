//! Bytes moved between a socket and a pipe without passing through user space.

use std::os::fd::AsFd;

use millrace_sys::{self as sys, Errno};

use super::descriptor::{Descriptor, Receiving, Role, Sending};
use super::queue::Direction;
use super::{Sockets, Watch, completion};
use crate::limits::SPLICE_MAX;
use crate::{Completion, Error, Event, Fd, Key, Token};

impl<W: Watch> Sockets<W> {
    /// A pipe has as much room as one splice moves, unless the user has too many pipes already
    /// (pipe(7), /proc/sys/fs/pipe-user-pages-soft): splices then move less at a time.
    pub(super) fn open_pipe(&mut self) -> Result<(Fd, Fd), Error> {
        if self.descriptors.len() + 2 > crate::limits::DESCRIPTORS_MAX as usize {
            return Err(Error::OutOfDescriptors);
        }
        let (read, write, _) = sys::pipe(SPLICE_MAX).map_err(Error::of)?;
        let mut keep = |fd| {
            let key = self.descriptors.insert(Descriptor::new(fd, Role::Pipe));
            Fd(key.expect("there is room for both").slot)
        };
        Ok((keep(read), keep(write)))
    }

    pub(super) fn begin_splice(&mut self, from: &Fd, into: &Fd, max: usize, token: Token) {
        assert!(max > 0, "a splice of nothing would look like an end");
        let max = max.min(SPLICE_MAX) as u32;
        let (from_key, source) = self.open(from);
        let from_pipe = source.role == Role::Pipe;
        let (into_key, target) = self.open(into);
        if from_pipe {
            assert_eq!(target.role, Role::Stream, "a pipe is spliced into a stream");
            target.begin_sending(Sending::Splice { pipe: from.0, max, token });
            let ready = target.writable;
            self.open(from).1.begin_receiving(Receiving::Emptied { socket: into.0 });
            if ready {
                self.enqueue(into_key, Direction::Sending);
            }
        } else {
            assert_eq!(target.role, Role::Pipe, "a stream is spliced into a pipe");
            target.begin_sending(Sending::Filled { socket: from.0 });
            let source = self.open(from).1;
            assert_eq!(source.role, Role::Stream, "a stream is spliced into a pipe");
            source.begin_receiving(Receiving::Splice { pipe: into.0, max, token });
            if source.readable {
                self.enqueue(from_key, Direction::Receiving);
            }
        }
    }

    /// From the socket at `key`. A splice that moved little does not show that the socket is
    /// empty: a pipe is full when its slots are, however few bytes are in each.
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
            (source.readable, source.to_be_drained) = (false, false);
            return None;
        }
        self.descriptors.get_mut(key)?.receiving = Receiving::Idle;
        self.descriptors.get_mut(into)?.sending = Sending::Idle;
        completion(token, Event::Spliced(result.map_err(Error::of)))
    }

    /// Into the socket at `key`. Here too only EAGAIN shows that there is no room left: less than
    /// `max` may have been in the pipe.
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
            self.descriptors.get_mut(key)?.writable = false;
            return None;
        }
        self.descriptors.get_mut(key)?.sending = Sending::Idle;
        self.descriptors.get_mut(from)?.receiving = Receiving::Idle;
        completion(token, Event::Spliced(result.map_err(Error::of)))
    }

    fn splice_once(&mut self, from: Key, into: Key, max: u32) -> Result<usize, Errno> {
        let (Some(source), Some(target)) = (self.descriptors.get(from), self.descriptors.get(into))
        else {
            unreachable!("closing either side ends the splice")
        };
        self.counters.splices += 1;
        let result = sys::splice(source.fd.as_fd(), target.fd.as_fd(), max as usize);
        match result {
            Ok(count) => {
                self.moved += count;
                self.counters.bytes_spliced += count as u64;
            }
            Err(Errno::AGAIN) => self.counters.would_block += 1,
            Err(_) => {}
        }
        result
    }

    /// Frees the other side of a splice that one side, taken out of the table, was part of.
    pub(super) fn end_splice(&mut self, ended: &Descriptor) {
        if let Receiving::Splice { pipe: other, .. } | Receiving::Emptied { socket: other } =
            ended.receiving
        {
            self.at(other).sending = Sending::Idle;
        }
        if let Sending::Splice { pipe: other, .. } | Sending::Filled { socket: other } =
            ended.sending
        {
            self.at(other).receiving = Receiving::Idle;
        }
    }
}
