//! The reading end of a pipe, or a direction of a connection, whose writer may pass aggregates.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use millrace_sys::{DescriptorState, Errno, PacketEvents, waiting_bytes};

use crate::aggregate::Aggregate;
use crate::channel::{Channel, ChannelError, Received};
use crate::limits::PROGRAM_SLAB_BYTES;
use crate::memory_kind::MemoryKind;
use crate::service::stream_state::{PairedStream, StreamKind, StreamState, is_gone};
use crate::slab::Slab;

/// A stream from which this process reads.
#[derive(Debug, Default)]
pub(super) struct StreamReader {
    kind: StreamKind,
    /// The channel from the writer, once this end was paired.
    channel: Option<Channel>,
    /// The memory files that are held of all streams; the bytes of further ones are copied.
    files_max: usize,
    /// The state that the writer knows, or will know.
    state: StreamState,
    /// The number of bytes of the stream that come before `rest`.
    rest_at: u64,
    /// The number of bytes that the stream had got just before the channel was found empty. They
    /// come before each aggregate that is received later. A write(2) of up to PIPE_BUF bytes adds
    /// all its bytes to a pipe at once, so this position is never in the middle of one.
    whole_until: u64,
    /// Received bytes that were not returned to the program yet. If this process ends before, the
    /// writer writes them to the stream.
    rest: Aggregate,
    /// The bytes of aggregates that were returned to the program.
    returned: u64,
}

/// The result of looking for bytes.
pub(super) enum ReadFrom {
    Aggregate(Aggregate),
    /// The stream itself, up to this many bytes. It has these, or has ended, or its writer is no
    /// client.
    Stream(u64),
}

/// Waiting is renewed after this time.
const WAIT_MS: u32 = 60_000;
/// The pause while a socket has reports.
const PAUSE: Duration = Duration::from_millis(1);

impl StreamReader {
    /// Sets the channel on which the writer may pass aggregates.
    pub(super) fn pair(&mut self, paired: PairedStream) {
        let PairedStream { kind, state, waiting, channel, files_max } = paired;
        (self.kind, self.state, self.files_max) = (kind, state, files_max);
        self.channel = Some(channel);
        self.whole_until = state.consumed + waiting;
    }

    /// Returns whether all bytes come from the stream.
    pub(super) fn is_plain(&self) -> bool {
        self.channel.is_none() && self.rest.is_empty()
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
    /// EAGAIN if the stream does not block, or after its timeout; EINTR; EIO if the writer breaks
    /// the protocol; ENOMEM.
    pub(super) fn next(
        &mut self,
        stream: BorrowedFd<'_>,
        length: u64,
        is_nonblocking: bool,
    ) -> Result<ReadFrom, Errno> {
        let (mut wait_time, mut has_ended) = (WaitTime::new(is_nonblocking), false);
        loop {
            if !self.rest.is_empty() {
                match self.next_of_rest(stream, length, &mut wait_time)? {
                    Some(from) => return Ok(from),
                    None => continue,
                }
            }
            if self.channel.is_none() {
                return Ok(ReadFrom::Stream(length));
            }
            // The aggregates that were sent before these bytes are in the channel now.
            let waiting = waiting_bytes(stream)?;
            if self.receive()? {
                continue;
            }
            self.whole_until = self.state.consumed + waiting;
            self.confirm(stream)?;
            if waiting > 0 {
                return Ok(ReadFrom::Stream(length.min(waiting)));
            }
            if has_ended {
                return Ok(ReadFrom::Stream(length));
            }
            has_ended = self.wait(stream, &mut wait_time)?;
        }
    }

    /// Returns received bytes, or the bytes of the stream that they follow. Returns `None` after it
    /// has waited for these.
    fn next_of_rest(
        &mut self,
        stream: BorrowedFd<'_>,
        length: u64,
        wait_time: &mut WaitTime,
    ) -> Result<Option<ReadFrom>, Errno> {
        let before = self.rest_at.saturating_sub(self.state.consumed);
        if before > 0 {
            // TCP may still be carrying them. Other streams have all bytes at once.
            let have_arrived = match self.kind {
                StreamKind::Tcp { .. } => {
                    millrace_sys::tcp_counters(stream)?.received >= self.rest_at
                }
                _ => true,
            };
            let before = before.min(waiting_bytes(stream)?);
            if before > 0 {
                return Ok(Some(ReadFrom::Stream(length.min(before))));
            }
            // Otherwise another process has read them.
            if !have_arrived {
                let events = [PacketEvents::ReadableOrEnded, PacketEvents::None];
                let [state, _] =
                    wait_time.wait(self.kind, events.map(|of| (stream, of)), stream)?;
                // A connection that was reset may have lost them.
                return Ok(state.is_hung_up.then_some(ReadFrom::Stream(length)));
            }
        }
        let later = self.rest.split_off(length.min(self.rest.len()));
        let bytes = std::mem::replace(&mut self.rest, later);
        self.returned += bytes.len();
        if let Some(channel) = &self.channel {
            channel.set_returned(self.returned);
        }
        Ok(Some(ReadFrom::Aggregate(bytes)))
    }

    /// Lets the writer know once that this end is still open, so that it may pass aggregates.
    fn confirm(&mut self, stream: BorrowedFd<'_>) -> Result<(), Errno> {
        let Some(channel) = &mut self.channel else { return Ok(()) };
        if self.state.is_confirmed || channel.find_peer() != Ok(true) {
            return Ok(());
        }
        let is_open = match self.kind {
            StreamKind::Tcp { .. } => millrace_sys::tcp_counters(stream)?.is_established,
            _ => true,
        };
        if is_open {
            self.state.is_confirmed = true;
            channel.set_stream(self.state.to_number());
        }
        Ok(())
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
                if channel.options().account.charges() > self.files_max {
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

    /// Lets the writer know that bytes are being read from the stream.
    pub(super) fn begin(&mut self) {
        self.set_state(StreamState { is_reading: true, ..self.state });
    }

    /// Lets the writer know that this many bytes were read.
    pub(super) fn end(&mut self, bytes: u64) {
        let consumed = self.state.consumed + bytes;
        self.set_state(StreamState { consumed, is_reading: false, ..self.state });
    }

    fn set_state(&mut self, state: StreamState) {
        if let Some(channel) = &self.channel {
            self.state = state;
            channel.set_stream(state.to_number());
        }
    }

    /// Returns whether the writer has not passed anything that is left, and never will.
    pub(super) fn is_over(&self) -> bool {
        self.rest.is_empty() && self.channel.as_ref().is_none_or(|of| is_gone(of, None))
    }

    /// Waits for the channel or the stream. Returns whether the stream has ended.
    fn wait(&mut self, stream: BorrowedFd<'_>, wait_time: &mut WaitTime) -> Result<bool, Errno> {
        let Some(channel) = &mut self.channel else { return Ok(false) };
        if channel.prepare_to_wait().map_err(|_| Errno::IO)? {
            return Ok(false);
        }
        let events =
            [(channel.socket(), PacketEvents::Readable), (stream, PacketEvents::ReadableOrEnded)];
        let [_, state] = wait_time.wait(self.kind, events, stream)?;
        if self.kind != StreamKind::Pipe && state.is_gone && !state.is_hung_up {
            // An error of the connection, or reports about single packets that the program has not
            // read (MSG_ERRQUEUE). These do not end, so the next wait begins later.
            millrace_sys::take_error(stream)?;
            std::thread::sleep(PAUSE);
        }
        Ok(state.has_ended || state.is_hung_up)
    }
}

/// How long a call waits.
struct WaitTime {
    is_nonblocking: bool,
    /// When the wait ends, once the call waits; `None`: never (SO_RCVTIMEO).
    until: Option<Option<Instant>>,
}

impl WaitTime {
    fn new(is_nonblocking: bool) -> Self {
        Self { is_nonblocking, until: None }
    }

    /// Waits for two descriptors. Waits without a limit are renewed by the caller.
    ///
    /// # Errors
    /// EAGAIN if nothing has happened in time; EINTR.
    fn wait(
        &mut self,
        kind: StreamKind,
        events: [(BorrowedFd<'_>, PacketEvents); 2],
        stream: BorrowedFd<'_>,
    ) -> Result<[DescriptorState; 2], Errno> {
        if self.until.is_none() && !self.is_nonblocking {
            let timeout = match kind {
                StreamKind::Pipe => None,
                _ => millrace_sys::receive_timeout(stream)?,
            };
            self.until = Some(timeout.map(|timeout| Instant::now() + timeout));
        }
        let until = self.until.flatten();
        let wait_ms = match until {
            _ if self.is_nonblocking => 0,
            Some(until) => {
                let rest = until.saturating_duration_since(Instant::now());
                rest.as_micros().div_ceil(1000).min(u128::from(WAIT_MS)) as u32
            }
            None => WAIT_MS,
        };
        let states = millrace_sys::wait_for_two(events, wait_ms)?;
        let has_event = states.iter().any(|of| of.is_ready || of.is_gone || of.has_ended);
        if wait_ms == 0 && !has_event { Err(Errno::AGAIN) } else { Ok(states) }
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
