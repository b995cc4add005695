//! The writing end of a pipe whose reader may get aggregates.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use millrace_sys::{Errno, PacketEvents};

use crate::aggregate::Aggregate;
use crate::buffer::Buffer;
use crate::channel::{Channel, ChannelError};
use crate::limits::{BLOCK_BYTES, PARTS_SENT_MAX};
use crate::pool::Pool;

/// A pipe to which this process writes.
#[derive(Debug, Default)]
pub(super) struct PipeWriter {
    /// The channel to the reader, once this end was paired.
    channel: Option<Channel>,
    /// Memory that the reader reads where it is, if it trusts this process.
    pool: Option<Pool>,
    /// The aggregates that the reader has not passed yet, with the positions after their frames.
    unpassed: VecDeque<(u64, Aggregate)>,
}

/// The result of sending an aggregate.
pub(super) enum Sent {
    /// This many bytes of it were sent.
    Bytes(u64),
    /// The channel is not used, or not any more: these have to be written to the pipe instead.
    ToPipe(Vec<Aggregate>),
}

/// How far the reader has read the pipe. With the bytes that wait in the pipe, it says after which
/// bytes an aggregate follows, also if another process has written them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StreamState {
    /// The bytes that were read from the pipe since it was paired.
    pub(super) consumed: u64,
    /// More are being read now.
    pub(super) is_reading: bool,
}

impl StreamState {
    pub(super) fn to_number(self) -> u64 {
        self.consumed << 1 | u64::from(self.is_reading)
    }

    fn from_number(number: u64) -> Self {
        Self { consumed: number >> 1, is_reading: number & 1 == 1 }
    }
}

/// The length of the text before an aggregate that follows bytes in the pipe: their position.
pub(super) const TEXT_BYTES: usize = 8;
/// How often the position is read while the reader reads.
const POSITION_TRIES: usize = 100;
/// The bytes of the pool for one pipe. They take memory as they are used.
const POOL_BYTES: usize = 8 * BLOCK_BYTES;
/// The bytes that are sent at a time.
const SENT_BYTES_MAX: u64 = 4 << 20;
/// Waiting is renewed after this time.
const WAIT_MS: u32 = 60_000;

impl PipeWriter {
    /// Sets the channel on which the reader may take aggregates.
    pub(super) fn pair(&mut self, channel: Channel) {
        self.channel = Some(channel);
    }

    /// Returns memory for bytes that are written to the pipe later, if the reader reads them where
    /// they are.
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

    /// Sends an aggregate, or the first parts of a long one, and waits for room.
    ///
    /// # Errors
    /// Those of poll(2).
    pub(super) fn send(
        &mut self,
        pipe: BorrowedFd<'_>,
        aggregate: &Aggregate,
    ) -> Result<Sent, Errno> {
        let has_peer = self.channel.as_mut().is_some_and(|of| of.find_peer().unwrap_or(false));
        if !has_peer {
            return Ok(Sent::ToPipe(vec![aggregate.clone()]));
        }
        let parts = aggregate.slices().take(PARTS_SENT_MAX / 2);
        let bytes: u64 = parts.map(|slice| slice.len() as u64).sum();
        let part = aggregate.slice(0..bytes.min(SENT_BYTES_MAX));
        loop {
            if self.is_reader_gone(pipe)? {
                return Ok(Sent::ToPipe(self.end(Some(part))));
            }
            let channel = self.channel.as_ref().expect("it was just checked");
            let follows = bytes_before(channel, pipe)?;
            if let Follows::Unknown = follows {
                // They are read after all that was sent before.
                return Ok(Sent::ToPipe(vec![part]));
            }
            match self.try_send(follows, &part) {
                Ok(true) => break,
                Ok(false) => self.wait(pipe)?,
                Err(_) => return Ok(Sent::ToPipe(self.end(Some(part)))),
            }
        }
        // From now on it is among those that the reader has not passed.
        while !self.flush() {
            if self.channel.is_none() || self.is_reader_gone(pipe)? {
                return Ok(Sent::ToPipe(self.end(None)));
            }
            self.wait(pipe)?;
        }
        Ok(Sent::Bytes(part.len()))
    }

    /// Returns whether all frames were sent.
    fn flush(&mut self) -> bool {
        let flushed = self.channel.as_mut().map(Channel::flush);
        matches!(flushed, Some(Ok(true)))
    }

    fn is_reader_gone(&self, pipe: BorrowedFd<'_>) -> Result<bool, Errno> {
        let channel = self.channel.as_ref().expect("the caller has checked it");
        let both = [(channel.socket(), PacketEvents::None), (pipe, PacketEvents::None)];
        let [channel, reader] = millrace_sys::wait_for_two(both, 0)?;
        Ok(channel.is_gone || reader.is_gone)
    }

    /// Begins to send an aggregate if there is room.
    fn try_send(&mut self, follows: Follows, aggregate: &Aggregate) -> Result<bool, ChannelError> {
        let channel = self.channel.as_mut().expect("the caller has used it");
        let write = |to: &mut Vec<u8>| {
            if let Follows::Bytes(position) = follows {
                to.extend_from_slice(&position.to_le_bytes());
            }
        };
        if !channel.try_send_after_text(write, aggregate)? {
            return Ok(false);
        }
        let (sent, passed) = channel.positions();
        while self.unpassed.front().is_some_and(|(end, _)| *end <= passed) {
            self.unpassed.pop_front();
        }
        self.unpassed.push_back((sent, aggregate.clone()));
        Ok(true)
    }

    /// Waits for room in the channel, or for the end of the reader.
    fn wait(&mut self, pipe: BorrowedFd<'_>) -> Result<(), Errno> {
        let channel = self.channel.as_mut().expect("the caller has used it");
        // The next call on the channel returns its error.
        if let Ok(false) = channel.prepare_to_wait() {
            let both = [(channel.socket(), PacketEvents::Readable), (pipe, PacketEvents::None)];
            millrace_sys::wait_for_two(both, WAIT_MS)?;
        }
        Ok(())
    }

    /// Ends the use of the channel. Returns the aggregates that the reader has not passed, and a
    /// new one.
    fn end(&mut self, new: Option<Aggregate>) -> Vec<Aggregate> {
        let passed = self.channel.take().map_or(0, |mut channel| {
            // The positions are read once more.
            let _ = channel.flush();
            channel.positions().1
        });
        let unpassed = self.unpassed.drain(..);
        let unpassed = unpassed.filter(|(end, _)| *end > passed).map(|(_, aggregate)| aggregate);
        unpassed.chain(new).collect()
    }
}

/// The bytes of a pipe that an aggregate follows.
enum Follows {
    Nothing,
    /// Those before this position.
    Bytes(u64),
    /// The reader reads now.
    Unknown,
}

/// Returns the bytes that an aggregate follows which is sent now.
fn bytes_before(channel: &Channel, pipe: BorrowedFd<'_>) -> Result<Follows, Errno> {
    let state = || StreamState::from_number(channel.stream());
    for _ in 0..POSITION_TRIES {
        let before = state();
        let waiting = millrace_sys::waiting_bytes(pipe)?;
        if before == state() && !before.is_reading {
            return Ok(match waiting {
                0 => Follows::Nothing,
                _ => Follows::Bytes(before.consumed + waiting),
            });
        }
        std::thread::yield_now();
    }
    Ok(Follows::Unknown)
}
