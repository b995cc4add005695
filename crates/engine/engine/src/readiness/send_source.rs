//! Sending shared bytes: by reference to the pages of their file, or by copying.

use std::os::fd::{AsFd, BorrowedFd};

use millrace_sys::{self as sys, Errno};

use super::descriptor::{Descriptor, DescriptorKind, SendOperation, UnsentSource};
use super::queue::Direction;
use super::send::{hold_unsent, send_parts, send_result};
use super::{EngineStats, ReadinessEngine, Watch, completion};
use crate::{Completion, CompletionEvent, Fd, Key, SharedBytes, Token};

impl<W: Watch> ReadinessEngine<W> {
    /// Sends `parts` and the shared bytes. If the socket has room, there is no pause between them:
    /// one call sends both if the shared bytes are copied, two calls if they are sent by reference.
    pub(super) fn begin_send_source(
        &mut self,
        fd: &Fd,
        parts: &[&[u8]],
        shared: &dyn SharedBytes,
        token: Token,
    ) {
        let key = self.lookup(fd).0;
        let Some(descriptor) = self.descriptors.get_mut(key) else { return };
        assert_eq!(
            descriptor.kind,
            DescriptorKind::Stream,
            "shared bytes are sent to streams only"
        );
        descriptor.begin_sending(SendOperation::Idle);
        let mut sent = SentCounts::default();
        let result = match descriptor.writable {
            true => sent.send(descriptor, parts, shared, &mut self.stats),
            false => Ok(false),
        };
        self.bytes_moved += sent.before + sent.shared;
        if result == Ok(false) {
            descriptor.mark_unwritable(&mut self.watch);
            self.stats.short_sends += 1;
            let before = hold_unsent(&self.budget, parts, sent.before);
            let rest =
                Box::new(UnsentSource { before, shared: shared.clone_box(), sent: sent.shared });
            descriptor.sending = SendOperation::SendSource { token, rest };
            return;
        }
        descriptor.sending = SendOperation::Sent { token, result: send_result(result) };
        self.enqueue(key, Direction::Sending);
    }

    /// Continues a send of shared bytes. Returns `None` if it has to wait for room again.
    pub(super) fn continue_send_source(&mut self, key: Key) -> Option<Completion> {
        let descriptor = self.descriptors.get_mut(key)?;
        // `send_more` borrows the descriptor, so the operation is moved out, and back in below if
        // it is unfinished.
        let operation = std::mem::replace(&mut descriptor.sending, SendOperation::Idle);
        let SendOperation::SendSource { token, mut rest } = operation else {
            unreachable!("only a send of shared bytes continues here")
        };
        let before = rest.len();
        let result = rest.send_more(descriptor, &mut self.stats);
        self.bytes_moved += before - rest.len();
        if result == Ok(false) {
            descriptor.mark_unwritable(&mut self.watch);
            descriptor.sending = SendOperation::SendSource { token, rest };
            return None;
        }
        completion(token, CompletionEvent::Sent(send_result(result)))
    }
}

/// The numbers of bytes that a socket has taken.
#[derive(Default)]
struct SentCounts {
    /// Bytes of the parts before the shared bytes.
    before: usize,
    /// Shared bytes.
    shared: usize,
}

impl SentCounts {
    /// Sends `parts` and the shared bytes until the socket is full. Returns whether everything was
    /// sent.
    fn send(
        &mut self,
        descriptor: &Descriptor,
        parts: &[&[u8]],
        shared: &dyn SharedBytes,
        stats: &mut EngineStats,
    ) -> Result<bool, Errno> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let bytes = shared.bytes();
        let Some(file) = shared.file() else {
            let mut all = [&[][..]; sys::PARTS_MAX];
            all[..parts.len()].copy_from_slice(parts);
            all[parts.len()] = bytes;
            let count = send_parts(descriptor, &all[..=parts.len()], false, stats)?;
            stats.bytes_sent += count as u64;
            (self.before, self.shared) = (count.min(total), count.saturating_sub(total));
            return Ok(self.shared == bytes.len());
        };
        self.before = send_parts(descriptor, parts, true, stats)?;
        stats.bytes_sent += self.before as u64;
        if self.before < total {
            return Ok(false);
        }
        send_file(descriptor, file, bytes.len(), &mut self.shared, stats)
    }
}

impl UnsentSource {
    /// Sends more bytes, and returns whether everything was sent.
    fn send_more(
        &mut self,
        descriptor: &Descriptor,
        stats: &mut EngineStats,
    ) -> Result<bool, Errno> {
        if !self.before.is_empty() {
            let taken = send_parts(descriptor, &[&self.before], true, stats)?;
            stats.bytes_sent += taken as u64;
            self.before.consume(taken);
            if !self.before.is_empty() {
                return Ok(false);
            }
        }
        send_shared_bytes(descriptor, &*self.shared, &mut self.sent, stats)
    }
}

/// Sends the bytes after the first `sent` ones until the socket is full. Returns whether everything
/// was sent.
fn send_shared_bytes(
    descriptor: &Descriptor,
    shared: &dyn SharedBytes,
    sent: &mut usize,
    stats: &mut EngineStats,
) -> Result<bool, Errno> {
    if let Some(file) = shared.file() {
        return send_file(descriptor, file, shared.bytes().len(), sent, stats);
    }
    let rest = &shared.bytes()[*sent..];
    let count = send_parts(descriptor, &[rest], false, stats)?;
    *sent += count;
    stats.bytes_sent += count as u64;
    Ok(count == rest.len())
}

/// Sends the `length` bytes at offset `start` of a file by reference, except the first `sent`,
/// until the socket is full. Returns whether everything was sent.
fn send_file(
    descriptor: &Descriptor,
    (file, start): (BorrowedFd<'_>, u64),
    length: usize,
    sent: &mut usize,
    stats: &mut EngineStats,
) -> Result<bool, Errno> {
    while *sent < length {
        let at = start + *sent as u64;
        match sys::sendfile(descriptor.fd.as_fd(), file, at, length - *sent) {
            // The file is shorter than promised.
            Ok(0) => return Err(Errno::IO),
            Ok(count) => {
                *sent += count;
                stats.bytes_zero_copy += count as u64;
            }
            Err(Errno::AGAIN) => {
                stats.would_block += 1;
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
