//! Sending parts, and then shared bytes or bytes of a file: by reference to the pages of a file, or
//! by copying.

use std::os::fd::{AsFd, BorrowedFd};

use millrace_sys::{self as sys, Errno};

use super::descriptor::{Descriptor, DescriptorKind, SendOperation, UnsentSource};
use super::queue::Direction;
use super::send::{hold_unsent, send_parts};
use super::{EngineStats, ReadinessEngine, Watch, completion};
use crate::{Completion, CompletionEvent, Error, Fd, Key, SendSource, Token};

impl<W: Watch> ReadinessEngine<W> {
    /// Sends `parts` and the bytes of `source`. If the socket has room, there is no pause between
    /// them: one call sends both if the source is copied, two calls if it is sent by reference.
    pub(super) fn begin_send_source(
        &mut self,
        fd: &Fd,
        parts: &[&[u8]],
        source: SendSource<'_>,
        token: Token,
    ) {
        let key = self.lookup(fd).0;
        let Some(descriptor) = self.descriptors.get_mut(key) else { return };
        assert_eq!(
            descriptor.kind,
            DescriptorKind::Stream,
            "shared bytes and files are sent to streams only"
        );
        descriptor.begin_sending(SendOperation::Idle);
        let mut sent = SentCounts::default();
        let result = match descriptor.writable {
            true => sent.send_more(descriptor, parts, source, &mut self.stats),
            false => Ok(false),
        };
        self.bytes_moved += sent.parts + sent.source;
        if result == Ok(false) {
            descriptor.mark_unwritable(&mut self.watch);
            self.stats.short_sends += 1;
            let before = hold_unsent(&self.budget, parts, sent.parts);
            let rest = UnsentSource { before, source: source.hold(), sent: sent.source };
            descriptor.sending = SendOperation::SendSource { token, rest: Box::new(rest) };
            return;
        }
        descriptor.sending = SendOperation::Sent { token, result: result.map(|_| ()) };
        self.enqueue(key, Direction::Sending);
    }

    /// Continues a send that has a source. Returns `None` if it has to wait for room again.
    pub(super) fn continue_send_source(&mut self, key: Key) -> Option<Completion> {
        let descriptor = self.descriptors.get_mut(key)?;
        // `send_more` borrows the descriptor, so the operation is moved out, and back in below if
        // it is unfinished.
        let operation = std::mem::replace(&mut descriptor.sending, SendOperation::Idle);
        let SendOperation::SendSource { token, mut rest } = operation else {
            unreachable!("only a send that has a source continues here")
        };
        let mut sent = SentCounts { parts: 0, source: rest.sent };
        let source = rest.source.source();
        let result = sent.send_more(descriptor, &[&rest.before], source, &mut self.stats);
        self.bytes_moved += sent.parts + sent.source - rest.sent;
        if result == Ok(false) {
            rest.before.consume(sent.parts);
            rest.sent = sent.source;
            descriptor.mark_unwritable(&mut self.watch);
            descriptor.sending = SendOperation::SendSource { token, rest };
            return None;
        }
        completion(token, CompletionEvent::Sent(result.map(|_| ())))
    }
}

/// The numbers of bytes that a socket has taken.
#[derive(Default)]
struct SentCounts {
    /// Bytes of the parts before the source.
    parts: usize,
    /// Bytes of the source.
    source: usize,
}

impl SentCounts {
    /// Sends `parts`, and the bytes of `source` after those that were sent before, until the socket
    /// is full. Returns whether everything was sent.
    fn send_more(
        &mut self,
        descriptor: &Descriptor,
        parts: &[&[u8]],
        source: SendSource<'_>,
        stats: &mut EngineStats,
    ) -> Result<bool, Error> {
        let (file, start) = match source {
            SendSource::Shared(shared) => match shared.file() {
                Some(found) => found,
                None => return self.send_copied(descriptor, parts, shared.bytes(), stats),
            },
            SendSource::File { file, at, .. } => {
                (file.descriptor().expect("only simulated files have no descriptor"), at)
            }
        };
        self.parts = send_parts(descriptor, parts, true, stats).map_err(Error::from_errno)?;
        stats.bytes_sent += self.parts as u64;
        if self.parts < bytes_of(parts) {
            return Ok(false);
        }
        self.send_file(descriptor, file, start, source.byte_count(), stats)
    }

    /// Sends `parts` and the rest of `bytes` by copying.
    fn send_copied(
        &mut self,
        descriptor: &Descriptor,
        parts: &[&[u8]],
        bytes: &[u8],
        stats: &mut EngineStats,
    ) -> Result<bool, Error> {
        let (total, rest) = (bytes_of(parts), &bytes[self.source..]);
        let mut all = [&[][..]; sys::PARTS_MAX];
        all[..parts.len()].copy_from_slice(parts);
        all[parts.len()] = rest;
        let sent = send_parts(descriptor, &all[..=parts.len()], false, stats);
        let count = sent.map_err(Error::from_errno)?;
        stats.bytes_sent += count as u64;
        self.parts = count.min(total);
        self.source += count - self.parts;
        Ok(count == total + rest.len())
    }

    /// Sends the rest of the `length` bytes at offset `start` of a file by reference.
    fn send_file(
        &mut self,
        descriptor: &Descriptor,
        file: BorrowedFd<'_>,
        start: u64,
        length: usize,
        stats: &mut EngineStats,
    ) -> Result<bool, Error> {
        while self.source < length {
            let at = start + self.source as u64;
            match sys::sendfile(descriptor.fd.as_fd(), file, at, length - self.source) {
                Ok(0) => return Err(Error::FileEnded),
                Ok(count) => {
                    self.source += count;
                    stats.bytes_zero_copy += count as u64;
                }
                Err(Errno::AGAIN) => {
                    stats.would_block += 1;
                    return Ok(false);
                }
                Err(error) => return Err(Error::from_sendfile(error)),
            }
        }
        Ok(true)
    }
}

/// Returns the number of bytes of all parts.
fn bytes_of(parts: &[&[u8]]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}
