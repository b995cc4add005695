//! The writing end of a pipe, or a direction of a connection, whose reader may get aggregates.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use millrace_sys::{Errno, PacketEvents};

use crate::aggregate::Aggregate;
use crate::buffer::Buffer;
use crate::channel::{Channel, ChannelError};
use crate::limits::BLOCK_BYTES;
use crate::pool::Pool;
use crate::service::stream_state::{
    Follows, StreamKind, TEXT_BYTES, bytes_before, is_gone, is_without_reader,
};
use crate::service::write::write_bytes;

/// A stream to which this process writes.
#[derive(Debug, Default)]
pub(super) struct StreamWriter {
    kind: StreamKind,
    /// The channel to the reader, once this end was paired.
    channel: Option<Channel>,
    /// Memory that the reader reads where it is, if it trusts this process.
    pool: Option<Pool>,
    /// The bytes of aggregates that were sent.
    sent: u64,
    /// The aggregates that the reader has not returned to its program as a whole, with the values
    /// of `sent` after each. Their first bytes may have been returned.
    unreturned: VecDeque<(u64, Aggregate)>,
    /// Bytes that a reader that is gone has not returned. They are written to the stream before
    /// any others.
    pending: Aggregate,
}

/// The result of writing.
pub(super) struct Written {
    /// The number of bytes; at least one.
    pub(super) bytes: u64,
    /// Whether some of them were sent through the channel.
    pub(super) was_sent: bool,
}

/// The bytes of the pool for one stream. They take memory as they are used.
const POOL_BYTES: usize = 8 * BLOCK_BYTES;
/// Writes up to this length are not mixed with those of other processes (stream(7), PIPE_BUF).
const ATOMIC_BYTES_MAX: u64 = 4096;
/// The bytes that are written to the stream before the channel is tried again: the size of a pipe.
const STREAM_BYTES: u64 = 64 * 1024;
/// Waiting is renewed after this time.
const WAIT_MS: u32 = 60_000;

impl StreamWriter {
    /// Sets the channel on which the reader may take aggregates.
    pub(super) fn pair(&mut self, kind: StreamKind, channel: Channel) {
        self.kind = kind;
        self.channel = Some(channel);
    }

    /// Returns whether all bytes go to the stream.
    pub(super) fn is_plain(&self) -> bool {
        self.channel.is_none() && self.pending.is_empty()
    }

    /// Returns memory for bytes that are written to the stream later, if the reader reads them
    /// where they are.
    pub(super) fn allocate(&mut self, bytes: usize) -> Option<Buffer> {
        let channel = self.channel.as_mut()?;
        if !channel.find_peer().ok()? {
            return None;
        }
        if self.pool.is_none() {
            self.pool = Pool::new(POOL_BYTES, u64::MAX, &mut [channel]).ok();
        }
        self.pool.as_ref()?.allocate(1..=bytes.min(BLOCK_BYTES)).ok()
    }

    /// Writes an aggregate as a whole, like write(2): a signal, or a stream that does not block,
    /// ends it earlier.
    ///
    /// # Errors
    /// Those of write(2), if nothing was written.
    pub(super) fn write(
        &mut self,
        stream: BorrowedFd<'_>,
        bytes: &Aggregate,
    ) -> Result<Written, Errno> {
        let (mut rest, mut was_sent) = (bytes.clone(), false);
        while !rest.is_empty() {
            let step = self.write_some(stream, &rest);
            match step {
                Ok(WriteStep::Sent(count)) => {
                    was_sent = true;
                    rest.skip(count);
                }
                Ok(WriteStep::Written { count, length }) => {
                    rest.skip(count);
                    if count < length {
                        break;
                    }
                }
                Err(error) if rest.len() == bytes.len() => return Err(error),
                Err(_) => break,
            }
        }
        // If this fails, the next call tries again.
        let _ = self.write_pending(stream);
        Ok(Written { bytes: bytes.len() - rest.len(), was_sent })
    }

    /// Sends or writes the first bytes of an aggregate. Only write(2) waits for the reader, which
    /// can take what is in the channel at any time before: a pipe never has room for less.
    fn write_some(
        &mut self,
        stream: BorrowedFd<'_>,
        bytes: &Aggregate,
    ) -> Result<WriteStep, Errno> {
        self.write_pending(stream)?;
        if let Some(count) = self.send(stream, bytes)? {
            return Ok(WriteStep::Sent(count));
        }
        // The channel may have ended just now.
        self.write_pending(stream)?;
        let length = if self.channel.is_some() { STREAM_BYTES } else { u64::MAX };
        let length = length.min(bytes.len());
        let count = write_bytes(stream, &bytes.slice(0..length))?;
        Ok(WriteStep::Written { count, length })
    }

    /// Writes the bytes that a reader that is gone has left.
    ///
    /// # Errors
    /// Those of write(2), with EINTR if a signal has ended it. The rest is kept, except if no
    /// process can read it.
    fn write_pending(&mut self, stream: BorrowedFd<'_>) -> Result<(), Errno> {
        while !self.pending.is_empty() {
            match write_bytes(stream, &self.pending) {
                Ok(count) => self.pending.skip(count),
                Err(error) => {
                    if error == Errno::PIPE {
                        self.pending = Aggregate::new();
                    }
                    return Err(error);
                }
            }
            // The last reader may have closed the stream meanwhile: the next write(2) says so.
            if !self.pending.is_empty() && !is_without_reader(stream, self.kind) {
                return Err(Errno::INTR);
            }
        }
        Ok(())
    }

    /// Sends the first bytes of an aggregate, as far as there is room. Returns their number, or
    /// `None` if bytes have to be written to the stream now. They are read after all that was sent
    /// before.
    fn send(&mut self, stream: BorrowedFd<'_>, bytes: &Aggregate) -> Result<Option<u64>, Errno> {
        let Some(channel) = &mut self.channel else { return Ok(None) };
        let has_peer = channel.find_peer();
        if has_peer.is_err() || is_gone(channel, Some((stream, self.kind))) {
            self.end(stream);
            return Ok(None);
        }
        if has_peer == Ok(false) {
            return Ok(None);
        }
        let Some(follows) = bytes_before(channel, stream, self.kind)? else { return Ok(None) };
        let Ok(room) = channel.room_for(TEXT_BYTES, bytes) else {
            self.end(stream);
            return Ok(None);
        };
        if room == 0 || (room < bytes.len() && bytes.len() <= ATOMIC_BYTES_MAX) {
            return Ok(None);
        }
        let part = bytes.slice(0..room);
        let write = |to: &mut Vec<u8>| {
            if let Follows::Bytes(position) = follows {
                to.extend_from_slice(&position.to_le_bytes());
            }
        };
        match channel.try_send_after_text(write, &part) {
            Ok(true) => {}
            // Nothing was sent, and the channel can be used on.
            Ok(false) | Err(ChannelError::Parts(_) | ChannelError::Memory(_)) => return Ok(None),
            Err(_) => {
                self.end(stream);
                return Ok(None);
            }
        }
        let returned = channel.returned();
        while self.unreturned.front().is_some_and(|(end, _)| *end <= returned) {
            self.unreturned.pop_front();
        }
        self.sent += room;
        self.unreturned.push_back((self.sent, part));
        self.flush(stream);
        Ok(Some(room))
    }

    /// Waits until the socket has taken the packets of an aggregate, which it does at once unless
    /// this user has too many descriptors under way (unix(7), ETOOMANYREFS).
    fn flush(&mut self, stream: BorrowedFd<'_>) {
        while let Some(channel) = &mut self.channel {
            match channel.flush() {
                Ok(true) => return,
                Ok(false) if !is_gone(channel, Some((stream, self.kind))) => {}
                _ => return self.end(stream),
            }
            // The next call on the channel returns its error.
            if let Ok(false) = channel.prepare_to_wait() {
                let both =
                    [(channel.socket(), PacketEvents::Readable), (stream, PacketEvents::None)];
                // A signal does not end it, as a part of the bytes was sent.
                let _ = millrace_sys::wait_for_two(both, WAIT_MS);
            }
        }
    }

    /// Ends the use of the channel. Bytes that the reader has not returned to its program are
    /// written to the stream next.
    fn end(&mut self, stream: BorrowedFd<'_>) {
        let Some(channel) = self.channel.take() else { return };
        self.pool = None;
        let returned = channel.returned();
        if !is_gone(&channel, Some((stream, self.kind))) {
            // It still takes all aggregates that were sent as a whole.
            let has_cut = !channel.is_flushed();
            self.unreturned.drain(..self.unreturned.len() - usize::from(has_cut));
        }
        for (end, mut bytes) in self.unreturned.drain(..) {
            let begin = end - bytes.len();
            bytes.skip(returned.saturating_sub(begin).min(bytes.len()));
            self.pending.concatenate(bytes);
        }
    }

    /// Returns whether the reader needs nothing of this end any more.
    pub(super) fn is_over(&self) -> bool {
        let Some(channel) = &self.channel else { return self.pending.is_empty() };
        let returned = channel.returned();
        is_gone(channel, None) && self.unreturned.iter().all(|(end, _)| *end <= returned)
    }
}

/// A step of writing.
enum WriteStep {
    /// This many bytes were sent through the channel.
    Sent(u64),
    /// `count` of `length` bytes were written to the stream: all, unless a signal came or it
    /// does not block.
    Written { count: u64, length: u64 },
}
