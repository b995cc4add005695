//! The reading end of a pipe whose writer may pass aggregates.

use std::os::fd::BorrowedFd;

use millrace_sys::{Errno, PacketEvents, waiting_bytes};

use crate::aggregate::Aggregate;
use crate::channel::{Channel, ChannelError, Received};
use crate::limits::PROGRAM_SLAB_BYTES;
use crate::memory_kind::MemoryKind;
use crate::service::stream_state::{StreamState, is_gone};
use crate::slab::Slab;

/// A pipe from which this process reads.
#[derive(Debug, Default)]
pub(super) struct StreamReader {
    /// The channel from the writer, once this end was paired.
    channel: Option<Channel>,
    /// The bytes that were read from the pipe since it was paired.
    consumed: u64,
    /// Those of them after which `rest` follows.
    rest_at: u64,
    /// Those of them that were there before an aggregate that is received next was sent. No short
    /// write(2) of another process (PIPE_BUF) begins before this and ends behind it.
    whole_until: u64,
    /// Received bytes that were not returned to the program yet. If this process ends before, the
    /// writer writes them to the pipe.
    rest: Aggregate,
    /// The bytes of aggregates that were returned to the program.
    returned: u64,
}

/// The result of looking for bytes.
pub(super) enum ReadFrom {
    Aggregate(Aggregate),
    /// The pipe itself, up to this many bytes. It has these, or has ended, or its writer is no
    /// client.
    Stream(u64),
}

/// The received files that are held as they are; further ones are copied. Each takes a descriptor,
/// of which a process has 1024 by default.
const FILES_MAX: usize = 128;
/// Waiting is renewed after this time.
const WAIT_MS: u32 = 60_000;

impl StreamReader {
    /// Sets the channel on which the writer may pass aggregates. Before there was one, this many
    /// bytes waited in the pipe.
    pub(super) fn pair(&mut self, channel: Channel, waiting: u64) {
        self.channel = Some(channel);
        self.whole_until = waiting;
    }

    /// Reads memory of the writer where it is from now on.
    pub(super) fn trust_writer(&mut self) {
        if let Some(channel) = &mut self.channel
            && !channel.options().joins_pools
        {
            // The next call on the channel returns its error.
            let _ = channel.join_pools();
        }
    }

    /// Waits for up to `length` bytes, at least one, and returns where they are. The wait ends at
    /// once if `is_nonblocking`.
    ///
    /// # Errors
    /// EAGAIN if the pipe does not block; EINTR; EIO if the writer breaks the protocol; ENOMEM.
    pub(super) fn next(
        &mut self,
        pipe: BorrowedFd<'_>,
        length: u64,
        is_nonblocking: bool,
    ) -> Result<ReadFrom, Errno> {
        let wait_ms = if is_nonblocking { 0 } else { WAIT_MS };
        let mut has_ended = false;
        loop {
            if !self.rest.is_empty() {
                return self.next_of_rest(pipe, length);
            }
            if self.channel.is_none() {
                return Ok(ReadFrom::Stream(length));
            }
            // The aggregates that were sent before these bytes are in the channel now.
            let waiting = waiting_bytes(pipe)?;
            if self.receive()? {
                continue;
            }
            self.whole_until = self.consumed + waiting;
            if waiting > 0 {
                return Ok(ReadFrom::Stream(length.min(waiting)));
            }
            if has_ended {
                return Ok(ReadFrom::Stream(length));
            }
            has_ended = self.wait(pipe, wait_ms)?;
        }
    }

    /// Returns received bytes, or the bytes of the pipe that they follow.
    fn next_of_rest(&mut self, pipe: BorrowedFd<'_>, length: u64) -> Result<ReadFrom, Errno> {
        let before = self.rest_at.saturating_sub(self.consumed);
        // Another process may have read them.
        let before = if before > 0 { before.min(waiting_bytes(pipe)?) } else { 0 };
        if before > 0 {
            return Ok(ReadFrom::Stream(length.min(before)));
        }
        let later = self.rest.split_off(length.min(self.rest.len()));
        let bytes = std::mem::replace(&mut self.rest, later);
        self.returned += bytes.len();
        if let Some(channel) = &self.channel {
            channel.set_returned(self.returned);
        }
        Ok(ReadFrom::Aggregate(bytes))
    }

    /// Receives an aggregate, or the end of the channel. Returns whether there was anything.
    fn receive(&mut self) -> Result<bool, Errno> {
        let Some(channel) = &mut self.channel else { return Ok(false) };
        let mut received = channel.try_receive();
        if let Err(ChannelError::NoMemory(_)) = received {
            renew_slab(channel)?;
            received = channel.try_receive();
        }
        match received {
            Ok(Received::Aggregate(aggregate)) => {
                let text = channel.text().first_chunk();
                let position = text.map_or(0, |text| u64::from_le_bytes(*text));
                // Bytes behind the position may have been read, up to the middle of a write(2).
                self.rest_at = position.max(self.whole_until);
                channel.pass_received();
                self.rest = aggregate;
                if channel.options().account.charges() > FILES_MAX {
                    self.rest = copy_of(&self.rest, channel)?;
                }
            }
            // A packet that the ring has announced may still be behind others.
            Ok(Received::Nothing) => return Ok(channel.has_frame()),
            Ok(Received::Ended) | Err(ChannelError::Closed) => self.channel = None,
            Err(ChannelError::NoMemory(_) | ChannelError::Memory(_)) => return Err(Errno::NOMEM),
            Err(_) => {
                self.channel = None;
                return Err(Errno::IO);
            }
        }
        Ok(true)
    }

    /// Lets the writer know that bytes are being read from the pipe.
    pub(super) fn begin(&mut self) {
        if let Some(channel) = &self.channel {
            let state = StreamState { consumed: self.consumed, is_reading: true };
            channel.set_stream(state.to_number());
        }
    }

    /// Lets the writer know that this many bytes were read.
    pub(super) fn end(&mut self, bytes: u64) {
        if let Some(channel) = &self.channel {
            self.consumed += bytes;
            let state = StreamState { consumed: self.consumed, is_reading: false };
            channel.set_stream(state.to_number());
        }
    }

    /// Returns whether the writer has not passed anything that is left, and never will.
    pub(super) fn is_over(&self) -> bool {
        self.rest.is_empty() && self.channel.as_ref().is_none_or(|of| is_gone(of, None))
    }

    /// Waits for the channel or the pipe. Returns whether the pipe has ended.
    fn wait(&mut self, pipe: BorrowedFd<'_>, wait_ms: u32) -> Result<bool, Errno> {
        let Some(channel) = &mut self.channel else { return Ok(false) };
        if channel.prepare_to_wait().map_err(|_| Errno::IO)? {
            return Ok(false);
        }
        let both = [(channel.socket(), PacketEvents::Readable), (pipe, PacketEvents::Readable)];
        let [from_channel, from_pipe] = millrace_sys::wait_for_two(both, wait_ms)?;
        let has_event = [from_channel, from_pipe].iter().any(|of| of.is_ready || of.is_gone);
        if wait_ms == 0 && !has_event { Err(Errno::AGAIN) } else { Ok(from_pipe.is_gone) }
    }
}

/// Gives a channel a new slab, because the program keeps what is in the last one.
fn renew_slab(channel: &mut Channel) -> Result<(), Errno> {
    channel.options().slab = Slab::on_heap(PROGRAM_SLAB_BYTES).map_err(|_| Errno::NOMEM)?;
    Ok(())
}

/// Returns a copy of an aggregate in the slab of a channel.
fn copy_of(aggregate: &Aggregate, channel: &mut Channel) -> Result<Aggregate, Errno> {
    let kind = MemoryKind::for_copy(aggregate.len());
    if let Ok(copy) = aggregate.copy(&channel.options().slab, kind, 0) {
        return Ok(copy);
    }
    renew_slab(channel)?;
    aggregate.copy(&channel.options().slab, kind, 0).map_err(|_| Errno::NOMEM)
}
