//! The reading end of a pipe whose writer may pass aggregates.

use std::os::fd::BorrowedFd;

use millrace_sys::{Errno, PacketEvents, waiting_bytes};

use crate::aggregate::Aggregate;
use crate::channel::{Channel, ChannelError, Received};
use crate::service::pipe_writer::StreamState;

/// A pipe from which this process reads.
#[derive(Debug, Default)]
pub(super) struct PipeReader {
    /// The channel from the writer, once this end was paired.
    channel: Option<Channel>,
    /// The bytes that were read from the pipe since it was paired.
    consumed: u64,
    /// Those of them after which `rest` follows.
    rest_at: u64,
    /// Received bytes that were not returned yet.
    rest: Aggregate,
}

/// The result of looking for bytes.
pub(super) enum ReadFrom {
    Aggregate(Aggregate),
    /// The pipe itself, up to this many bytes.
    Pipe(u64),
}

/// Waiting is renewed after this time.
const WAIT_MS: u32 = 60_000;

impl PipeReader {
    /// Sets the channel on which the writer may pass aggregates.
    pub(super) fn pair(&mut self, channel: Channel) {
        self.channel = Some(channel);
    }

    /// Waits for up to `length` bytes, and returns where they are.
    ///
    /// # Errors
    /// EAGAIN if the pipe does not block; EIO if the writer breaks the protocol; ENOMEM.
    pub(super) fn next(&mut self, pipe: BorrowedFd<'_>, length: u64) -> Result<ReadFrom, Errno> {
        let mut has_waited = false;
        loop {
            if !self.rest.is_empty() {
                let before = self.rest_at.saturating_sub(self.consumed);
                // Another process may have read them.
                let before = if before > 0 { before.min(waiting_bytes(pipe)?) } else { 0 };
                if before > 0 {
                    return Ok(ReadFrom::Pipe(length.min(before)));
                }
                let later = self.rest.split_off(length.min(self.rest.len()));
                return Ok(ReadFrom::Aggregate(std::mem::replace(&mut self.rest, later)));
            }
            let Some(channel) = &mut self.channel else { return Ok(ReadFrom::Pipe(length)) };
            match channel.try_receive() {
                Ok(Received::Aggregate(aggregate)) => {
                    let text = channel.text().first_chunk();
                    self.rest_at = text.map_or(0, |text| u64::from_le_bytes(*text));
                    // A process that reads from the pipe after this one does not get them again.
                    channel.pass_received();
                    self.rest = aggregate;
                }
                Ok(Received::Nothing) if has_waited => return Ok(ReadFrom::Pipe(length)),
                Ok(Received::Nothing) => has_waited = self.wait(pipe)?,
                Ok(Received::Ended) | Err(ChannelError::Closed) => self.channel = None,
                Err(ChannelError::NoMemory(_) | ChannelError::Memory(_)) => {
                    return Err(Errno::NOMEM);
                }
                Err(_) => {
                    self.channel = None;
                    return Err(Errno::IO);
                }
            }
        }
    }

    /// Lets the writer know that bytes are being read from the pipe.
    pub(super) fn begin(&mut self) {
        if let Some(channel) = &self.channel {
            channel
                .set_stream(StreamState { consumed: self.consumed, is_reading: true }.to_number());
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

    /// Waits for the channel or the pipe. Returns whether the pipe has bytes or has ended, unless
    /// an aggregate has come before them.
    fn wait(&mut self, pipe: BorrowedFd<'_>) -> Result<bool, Errno> {
        let channel = self.channel.as_mut().expect("the caller has used it");
        if channel.prepare_to_wait().map_err(|_| Errno::IO)? {
            return Ok(false);
        }
        let wait_ms = if millrace_sys::is_nonblocking(pipe)? { 0 } else { WAIT_MS };
        let both = [(channel.socket(), PacketEvents::Readable), (pipe, PacketEvents::Readable)];
        let [from_channel, from_pipe] = millrace_sys::wait_for_two(both, wait_ms)?;
        let has_pipe = from_pipe.is_ready || from_pipe.is_gone;
        let has_channel = from_channel.is_ready || from_channel.is_gone;
        if wait_ms == 0 && !has_pipe && !has_channel { Err(Errno::AGAIN) } else { Ok(has_pipe) }
    }
}
