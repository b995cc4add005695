//! The sending direction: opening connections and sending bytes.

use std::os::fd::AsFd;

use millrace_sys::{self as sys, Errno};

use super::descriptor::{Descriptor, DescriptorKind, ReceiveOperation, SendOperation};
use super::queue::Direction;
use super::{EngineStats, ReadinessEngine, Watch, completion};
use crate::limits::{BATCH_MAX, BATCHED_SEND_MAX};
use crate::{Address, Completion, CompletionEvent, Error, Fd, HeldBytes, Key, Token};

impl<W: Watch> ReadinessEngine<W> {
    /// Opens a socket and begins to connect it. Returns an error if the socket cannot be created or
    /// watched, or if a Unix path is too long. Every error of connect(2) is reported by a
    /// completion, even if it is known already.
    pub(super) fn begin_connect(&mut self, address: &Address, token: Token) -> Result<Fd, Error> {
        let (opened, kind) = match address {
            Address::Tcp(address) => (sys::connect_tcp(*address), DescriptorKind::Stream),
            Address::Udp(address) => (sys::connect_udp(*address), DescriptorKind::Datagram),
            Address::Unix(path) => (sys::connect_unix(path), DescriptorKind::Stream),
        };
        let (fd, connected) = opened.map_err(Error::from_errno)?;
        let mut descriptor = Descriptor::new(fd, kind);
        descriptor.sending = match connected {
            Ok(false) => SendOperation::Connect { token },
            Ok(true) => SendOperation::Connected { token, result: Ok(()) },
            // The backlog of a Unix listener is full. No event announces when it has room again.
            Err(Errno::AGAIN) => SendOperation::Connected { token, result: Err(Error::Refused) },
            Err(error) => SendOperation::Connected { token, result: Err(Error::from_errno(error)) },
        };
        descriptor.writable = connected == Ok(true);
        let ended = matches!(descriptor.sending, SendOperation::Connected { .. });
        // The socket is registered only now, since epoll would report a socket that has not begun
        // to connect as hung up.
        let fd = self.register(descriptor)?;
        if ended {
            let (key, _) = self.lookup(&fd);
            self.enqueue(key, Direction::Sending);
        }
        Ok(fd)
    }

    pub(super) fn begin_send(&mut self, fd: &Fd, parts: &[&[u8]], token: Token) {
        let total = parts.iter().map(|part| part.len()).sum();
        let key = self.lookup(fd).0;
        let may_batch = self.should_batch() && self.batch.sends.len() < BATCH_MAX;
        let Some(descriptor) = self.descriptors.get_mut(key) else { return };
        assert!(matches!(descriptor.kind, DescriptorKind::Stream | DescriptorKind::Datagram));
        descriptor.begin_sending(SendOperation::Idle);
        if may_batch
            && descriptor.writable
            && descriptor.kind == DescriptorKind::Stream
            && (1..=BATCHED_SEND_MAX).contains(&total)
        {
            descriptor.sending = SendOperation::Batched { token, length: total as u32 };
            return self.batch.add_send(key, parts);
        }
        let sent = send_parts(descriptor, parts, false, &mut self.stats);
        let taken = sent.unwrap_or(0);
        self.bytes_moved += taken;
        self.stats.bytes_sent += taken as u64;
        if sent.is_ok() && taken < total {
            descriptor.mark_unwritable(&mut self.watch);
            let rest = Box::new(hold_unsent(&self.budget, parts, taken));
            descriptor.sending = SendOperation::Send { token, rest };
            self.stats.short_sends += 1;
            return;
        }
        descriptor.sending = SendOperation::Sent { token, result: send_result(sent) };
        self.enqueue(key, Direction::Sending);
    }

    /// Returns the completion of a finished operation, or continues the operation of a descriptor
    /// that may have room.
    pub(super) fn run_send(&mut self, key: Key) -> Option<Completion> {
        let descriptor = self.descriptors.get_mut(key)?;
        descriptor.send_queued = false;
        match descriptor.sending {
            SendOperation::Sent { token, result } => {
                descriptor.sending = SendOperation::Idle;
                completion(token, CompletionEvent::Sent(result))
            }
            SendOperation::Spliced { token, result } => {
                descriptor.sending = SendOperation::Idle;
                completion(token, CompletionEvent::Spliced(result.map(|count| count as usize)))
            }
            SendOperation::Connected { token, result } => {
                descriptor.sending = SendOperation::Idle;
                completion(token, CompletionEvent::Connected(result))
            }
            SendOperation::Connect { token } => {
                let result = sys::take_error(descriptor.fd.as_fd()).map_err(Error::from_errno);
                descriptor.sending = SendOperation::Idle;
                descriptor.writable = result.is_ok();
                completion(token, CompletionEvent::Connected(result))
            }
            SendOperation::Send { token, .. } => {
                let result = self.send_held(key, false)?;
                completion(token, CompletionEvent::Sent(result))
            }
            SendOperation::SendSource { .. } => self.continue_send_source(key),
            SendOperation::SendThenSplice { pipe, token, ref before } => {
                let max = before.max;
                match self.send_held(key, true)? {
                    Ok(()) => {
                        self.descriptors.get_mut(key)?.sending =
                            SendOperation::Splice { pipe, max, token };
                        self.splice_out(key, pipe, max, token)
                    }
                    Err(error) => {
                        self.descriptor_at(pipe).receiving = ReceiveOperation::Idle;
                        completion(token, CompletionEvent::Spliced(Err(error)))
                    }
                }
            }
            SendOperation::Splice { pipe, max, token } => self.splice_out(key, pipe, max, token),
            SendOperation::Idle
            | SendOperation::PipeTarget { .. }
            | SendOperation::Batched { .. } => None,
        }
    }

    /// Sends held bytes. Returns the result once all bytes are sent or the send has failed. `more`
    /// notifies the kernel that the bytes of a pipe follow at once.
    fn send_held(&mut self, key: Key, more: bool) -> Option<Result<(), Error>> {
        let descriptor = self.descriptors.get_mut(key)?;
        let rest = match &mut descriptor.sending {
            SendOperation::Send { rest, .. } => &mut **rest,
            SendOperation::SendThenSplice { before, .. } => &mut before.rest,
            _ => return None,
        };
        self.stats.sends += 1;
        let result = match sys::send(descriptor.fd.as_fd(), &[&*rest], more) {
            Ok(taken) => {
                self.bytes_moved += taken;
                self.stats.bytes_sent += taken as u64;
                rest.consume(taken);
                if !rest.is_empty() {
                    descriptor.mark_unwritable(&mut self.watch);
                    return None;
                }
                Ok(())
            }
            Err(Errno::AGAIN) => {
                descriptor.mark_unwritable(&mut self.watch);
                self.stats.would_block += 1;
                return None;
            }
            Err(error) => Err(Error::from_errno(error)),
        };
        descriptor.sending = SendOperation::Idle;
        Some(result)
    }

    pub(super) fn bytes_unsent(&self, fd: &Fd) -> usize {
        match self.descriptor(fd).map(|descriptor| &descriptor.sending) {
            Some(SendOperation::Send { rest, .. }) => rest.len(),
            Some(SendOperation::Batched { length, .. }) => *length as usize,
            Some(SendOperation::SendThenSplice { before, .. }) => before.rest.len(),
            Some(SendOperation::SendSource { rest, .. }) => rest.len(),
            _ => 0,
        }
    }
}

impl<W: Watch> ReadinessEngine<W> {
    /// Sends at once the bytes that the turn has collected for the descriptor at `key`, which is
    /// about to be closed.
    pub(super) fn send_batched(&mut self, key: Key) {
        let Some(index) = self.batch.sends.iter().position(|(of, _)| *of == key) else { return };
        let (_, bytes) = self.batch.sends.remove(index);
        if let Some(descriptor) = self.descriptors.get_mut(key) {
            self.stats.sends += 1;
            let _ = sys::send(descriptor.fd.as_fd(), &[&bytes], false);
            descriptor.sending = SendOperation::Idle;
        }
        self.batch.spare_memory.push(bytes);
    }
}

/// Sends as many bytes of `parts` as the kernel takes, and returns their number; 0 while there is
/// no room. A stream that took less than offered is full, and an edge announces room. `more`: more
/// bytes follow at once.
pub(super) fn send_parts(
    descriptor: &Descriptor,
    parts: &[&[u8]],
    more: bool,
    stats: &mut EngineStats,
) -> Result<usize, Errno> {
    // The parts before a splice or before shared bytes are often empty, and need no call.
    if !descriptor.writable || parts.iter().all(|part| part.is_empty()) {
        return Ok(0);
    }
    let mut groups = parts.chunks(sys::PARTS_MAX).peekable();
    let mut taken = 0;
    while let Some(group) = groups.next() {
        let more = more || groups.peek().is_some();
        assert!(
            !more || descriptor.kind == DescriptorKind::Stream,
            "a datagram is sent by one call"
        );
        stats.sends += 1;
        match sys::send(descriptor.fd.as_fd(), group, more) {
            Ok(count) => {
                taken += count;
                if count < group.iter().map(|part| part.len()).sum() {
                    break;
                }
            }
            Err(Errno::AGAIN) => {
                stats.would_block += 1;
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

/// Converts the result of a send, ignoring the value.
pub(super) fn send_result<T>(result: Result<T, Errno>) -> Result<(), Error> {
    result.map(|_| ()).map_err(Error::from_errno)
}

/// Copies the bytes of `parts` after the first `taken` ones.
pub(super) fn hold_unsent(budget: &crate::Budget, parts: &[&[u8]], mut taken: usize) -> HeldBytes {
    let mut rests = Vec::with_capacity(parts.len());
    for part in parts {
        let skipped = taken.min(part.len());
        taken -= skipped;
        rests.push(&part[skipped..]);
    }
    HeldBytes::copy(budget, &rests)
}
