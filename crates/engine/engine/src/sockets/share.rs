//! Bytes sent from where they rest: by reference to the pages of their file, or by copy.

use std::os::fd::{AsFd, BorrowedFd};

use millrace_sys::{self as sys, Errno};

use super::descriptor::{Descriptor, Rest, Role, Sending};
use super::queue::Direction;
use super::send::{ended, hold, send_parts};
use super::{Counters, Sockets, Watch, completion};
use crate::{Completion, Event, Fd, Key, Shared, Token};

impl<W: Watch> Sockets<W> {
    /// Where the socket has room, `parts` and the shared bytes go out without a pause between them:
    /// by copy in one call, by reference in two.
    pub(super) fn begin_send_shared(
        &mut self,
        fd: &Fd,
        parts: &[&[u8]],
        shared: &dyn Shared,
        token: Token,
    ) {
        let key = self.open(fd).0;
        let Some(descriptor) = self.descriptors.get_mut(key) else { return };
        assert_eq!(descriptor.role, Role::Stream, "a datagram is sent from memory");
        descriptor.begin_sending(Sending::Idle);
        let mut sent = Sent::default();
        let result = match descriptor.writable {
            true => sent.send(descriptor, parts, shared, &mut self.counters),
            false => Ok(false),
        };
        self.moved += sent.before + sent.shared;
        if result == Ok(false) {
            descriptor.lack_room(&mut self.watch);
            self.counters.short_sends += 1;
            let before = hold(&self.budget, parts, sent.before);
            let rest = Box::new(Rest { before, shared: shared.share(), sent: sent.shared });
            descriptor.sending = Sending::SendShared { token, rest };
            return;
        }
        descriptor.sending = Sending::Sent { token, result: ended(result) };
        self.enqueue(key, Direction::Sending);
    }

    /// Goes on with such a send; `None` when it has to wait on.
    pub(super) fn send_shared_rest(&mut self, key: Key) -> Option<Completion> {
        let descriptor = self.descriptors.get_mut(key)?;
        // Moved out and back, for what it needs of the descriptor.
        let operation = std::mem::replace(&mut descriptor.sending, Sending::Idle);
        let Sending::SendShared { token, mut rest } = operation else {
            unreachable!("only a send of shared bytes goes on here")
        };
        let before = rest.len();
        let result = rest.send_on(descriptor, &mut self.counters);
        self.moved += before - rest.len();
        if result == Ok(false) {
            descriptor.lack_room(&mut self.watch);
            descriptor.sending = Sending::SendShared { token, rest };
            return None;
        }
        completion(token, Event::Sent(ended(result)))
    }
}

/// Bytes that a socket took of what goes before shared bytes, and of those.
#[derive(Default)]
struct Sent {
    before: usize,
    shared: usize,
}

impl Sent {
    /// Sends `parts` and what is shared, until the socket is full: whether that was all.
    fn send(
        &mut self,
        descriptor: &Descriptor,
        parts: &[&[u8]],
        shared: &dyn Shared,
        counters: &mut Counters,
    ) -> Result<bool, Errno> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let bytes = shared.bytes();
        let Some(file) = shared.file() else {
            let mut all = [&[][..]; sys::PARTS_MAX];
            all[..parts.len()].copy_from_slice(parts);
            all[parts.len()] = bytes;
            let count = send_parts(descriptor, &all[..=parts.len()], false, counters)?;
            counters.bytes_sent += count as u64;
            (self.before, self.shared) = (count.min(total), count.saturating_sub(total));
            return Ok(self.shared == bytes.len());
        };
        self.before = send_parts(descriptor, parts, true, counters)?;
        counters.bytes_sent += self.before as u64;
        if self.before < total {
            return Ok(false);
        }
        send_file(descriptor, file, bytes.len(), &mut self.shared, counters)
    }
}

impl Rest {
    /// Whether all of it was sent.
    fn send_on(&mut self, descriptor: &Descriptor, counters: &mut Counters) -> Result<bool, Errno> {
        if !self.before.is_empty() {
            let taken = send_parts(descriptor, &[&self.before], true, counters)?;
            counters.bytes_sent += taken as u64;
            self.before.consume(taken);
            if !self.before.is_empty() {
                return Ok(false);
            }
        }
        send_bytes(descriptor, &*self.shared, &mut self.sent, counters)
    }
}

/// Sends what comes after the first `sent` bytes, until the socket is full: whether that was all.
fn send_bytes(
    descriptor: &Descriptor,
    shared: &dyn Shared,
    sent: &mut usize,
    counters: &mut Counters,
) -> Result<bool, Errno> {
    if let Some(file) = shared.file() {
        return send_file(descriptor, file, shared.bytes().len(), sent, counters);
    }
    let rest = &shared.bytes()[*sent..];
    let count = send_parts(descriptor, &[rest], false, counters)?;
    *sent += count;
    counters.bytes_sent += count as u64;
    Ok(count == rest.len())
}

/// Sends, by reference, what comes after the first `sent` of `length` bytes, which are in a file from
/// a place on, until the socket is full: whether that was all.
fn send_file(
    descriptor: &Descriptor,
    (file, start): (BorrowedFd<'_>, u64),
    length: usize,
    sent: &mut usize,
    counters: &mut Counters,
) -> Result<bool, Errno> {
    while *sent < length {
        let at = start + *sent as u64;
        match sys::send_file(descriptor.fd.as_fd(), file, at, length - *sent) {
            // The file is shorter than what it is said to hold.
            Ok(0) => return Err(Errno::IO),
            Ok(count) => {
                *sent += count;
                counters.bytes_referred += count as u64;
            }
            Err(Errno::AGAIN) => {
                counters.would_block += 1;
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
