//! The state machine of one direction: the bytes taken from the source, sent to the sink and left
//! for the application, and the next action.
//!
//! It has no descriptor and makes no system call: it returns an [`Action`], and the caller records
//! the result. So tests can play every order in which source, sink and reader become ready, slow or
//! fail.

use millrace_sys::Errno;

use crate::limits::PIPE_BYTES;
use crate::request::{End, HalfClose, KeepCopy, Side};

/// The next operation of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Send the rest of the prefix.
    SendPrefix {
        /// Whether the bytes in the pipe follow immediately.
        more: bool,
    },
    /// Move up to `max` bytes from the source into the pipe, which is empty.
    Fill {
        /// `1 <= max <= PIPE_BYTES`.
        max: usize,
    },
    /// Send up to `max` bytes of the source by copying, and remove the sent ones from the source.
    Copy {
        /// `1 <= max <= PIPE_BYTES`.
        max: usize,
    },
    /// Receive up to `max` bytes for the application alone.
    Receive {
        /// `1 <= max <= PIPE_BYTES`.
        max: usize,
    },
    /// Duplicate up to `max` bytes of the pipe for the application. `max` is the number of all
    /// bytes in the pipe.
    Tee {
        /// `1 <= max <= PIPE_BYTES`.
        max: usize,
    },
    /// Move up to `max` bytes from the pipe to the sink.
    Drain {
        /// `1 <= max <= PIPE_BYTES`.
        max: usize,
    },
    /// Drop up to `max` bytes of the pipe: the application has them, and the sink failed.
    Discard {
        /// `1 <= max <= PIPE_BYTES`.
        max: usize,
    },
    /// Move up to `max` bytes from the pipe to the application's copy: the sink failed.
    MoveToCopy {
        /// `1 <= max <= PIPE_BYTES`.
        max: usize,
    },
    /// Shut down the write side of the sink.
    ShutdownWrite,
    /// Wait for an event.
    Wait(WaitFor),
    /// Nothing; the direction has ended.
    Done,
}

/// The event that a direction waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitFor {
    /// The source has bytes.
    Source,
    /// The sink has room.
    Sink,
    /// The application reads.
    Reader,
    /// The pause after a lack of memory is over.
    Memory,
}

/// The state of the source.
///
/// ```text
///         no bytes                 end of stream
///  Ready ───────────────> Empty    Ready ──────> Ended
///        <───────────────          Ready ──────> Failed
///         readable                      error
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SourceState {
    Ready,
    Empty,
    Ended,
    Failed(Errno),
}

/// The state of the sink.
///
/// ```text
///         no room                  all was sent, and the close is forwarded
///  Ready ───────────────> Full     Ready, Full ──────> Shut
///        <───────────────          Ready, Full ──────> Failed
///         writable                            error
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SinkState {
    Ready,
    Full,
    Shut,
    Failed(Errno),
}

/// The state of one direction, from its source to its sink.
#[derive(Debug)]
pub(crate) struct DirectionState {
    side: Side,
    source: SourceState,
    /// The error of the source that the kernel reported to the application. Behind the remaining
    /// bytes, the kernel reports only an end of the stream.
    pending_error: Option<Errno>,
    sink: SinkState,
    half_close: HalfClose,
    keep_copy: Option<KeepCopy>,
    /// Payload bytes still to be taken from the source; `None`: until its close.
    remaining: Option<u64>,
    /// Payload bytes taken from the source; `forwarded <= taken`.
    pub(crate) taken: u64,
    /// Prefix bytes still to be sent before the payload.
    pub(crate) prefix: usize,
    /// Payload bytes in the pipe; `piped <= PIPE_BYTES`.
    piped: usize,
    /// Payload bytes sent to the sink.
    pub(crate) forwarded: u64,
    /// Payload bytes copied for the application and not read; `copied <= max2cache`.
    pub(crate) copied: usize,
    /// Payload bytes that are in both `piped` and `copied`: copied and not yet forwarded.
    copied_ahead: usize,
    /// The copy has no room until the application reads.
    is_copy_full: bool,
    /// Whether bytes of the source go through a pipe.
    uses_pipe: bool,
    /// The kernel had no memory for an action. The direction waits for the end of a pause.
    lacks_memory: bool,
}

impl DirectionState {
    /// Creates the state of a direction that has moved no byte. It sends `prefix` bytes, and then
    /// `limit` bytes of payload, or all payload until the source closes.
    pub(crate) fn new(
        side: Side,
        prefix: usize,
        limit: Option<u64>,
        keep_copy: Option<KeepCopy>,
        half_close: HalfClose,
    ) -> Self {
        Self {
            side,
            source: SourceState::Ready,
            pending_error: None,
            sink: SinkState::Ready,
            half_close,
            keep_copy,
            remaining: limit,
            taken: 0,
            prefix,
            piped: 0,
            forwarded: 0,
            copied: 0,
            copied_ahead: 0,
            is_copy_full: false,
            uses_pipe: true,
            lacks_memory: false,
        }
    }

    /// Returns the next action. The caller performs it and records the result before the next call.
    pub(crate) fn next_action(&self) -> Action {
        if self.end().is_some() {
            return Action::Done;
        }
        if self.lacks_memory {
            return Action::Wait(WaitFor::Memory);
        }
        if self.piped == 0 && self.source == SourceState::Ready && self.intake_max() > 0 {
            let max = self.intake_max();
            match self.sink {
                _ if self.uses_pipe => return Action::Fill { max },
                SinkState::Failed(_) => return Action::Receive { max },
                SinkState::Ready if self.prefix == 0 => return Action::Copy { max },
                _ => {}
            }
        }
        match self.sink {
            SinkState::Failed(_) => self.action_for_reader(),
            _ => self.action_for_sink(),
        }
    }

    /// Returns the next action while the sink is open.
    fn action_for_sink(&self) -> Action {
        if self.prefix == 0 && self.piped > 0 && self.keep_copy.is_some() && self.copied_ahead == 0
        {
            return match self.is_copy_full {
                true => Action::Wait(WaitFor::Reader),
                false => Action::Tee { max: self.piped },
            };
        }
        if self.prefix > 0 || self.piped > 0 {
            return match self.sink {
                SinkState::Ready if self.prefix > 0 => Action::SendPrefix { more: self.piped > 0 },
                SinkState::Ready if self.keep_copy.is_some() => {
                    Action::Drain { max: self.copied_ahead }
                }
                SinkState::Ready => Action::Drain { max: self.piped },
                _ => Action::Wait(WaitFor::Sink),
            };
        }
        match self.source {
            SourceState::Ended
                if self.half_close == HalfClose::Forwarded && self.sink != SinkState::Shut =>
            {
                Action::ShutdownWrite
            }
            SourceState::Ready if self.intake_max() > 0 => Action::Wait(WaitFor::Sink),
            SourceState::Empty if self.intake_max() > 0 => Action::Wait(WaitFor::Source),
            _ => Action::Wait(WaitFor::Reader),
        }
    }

    /// Returns the next action after the sink failed: the application alone gets the payload.
    fn action_for_reader(&self) -> Action {
        match (self.copied_ahead, self.piped) {
            (0, 0) if self.source == SourceState::Empty && self.intake_max() > 0 => {
                Action::Wait(WaitFor::Source)
            }
            (0, 0) => Action::Wait(WaitFor::Reader),
            (0, _) if self.is_copy_full => Action::Wait(WaitFor::Reader),
            (0, piped) => Action::MoveToCopy { max: piped },
            (ahead, _) => Action::Discard { max: ahead },
        }
    }

    /// Returns how the direction ended, after the last action.
    pub(crate) fn end(&self) -> Option<End> {
        let is_gone = matches!(self.sink, SinkState::Failed(_));
        let is_sent = self.prefix == 0 && self.piped == 0;
        let is_over = match self.keep_copy {
            Some(_) => {
                self.has_taken_all() && self.piped + self.copied == 0 && (is_gone || is_sent)
            }
            None => is_gone || (self.has_taken_all() && is_sent && !self.must_shut_down()),
        };
        is_over.then(|| self.end_reason())
    }

    fn end_reason(&self) -> End {
        match (self.sink, self.source) {
            (SinkState::Failed(error), _) => End::Aborted { side: self.side.other(), error },
            _ if self.remaining == Some(0) => End::Limit,
            (_, SourceState::Failed(error)) => End::Aborted { side: self.side, error },
            _ => End::Closed,
        }
    }

    /// Returns whether all payload was taken from the source.
    fn has_taken_all(&self) -> bool {
        self.remaining == Some(0)
            || matches!(self.source, SourceState::Ended | SourceState::Failed(_))
    }

    fn must_shut_down(&self) -> bool {
        self.half_close == HalfClose::Forwarded
            && self.source == SourceState::Ended
            && self.sink != SinkState::Shut
    }

    /// Returns how many bytes may be taken from the source at once.
    fn intake_max(&self) -> usize {
        let kept = self.keep_copy.map_or(PIPE_BYTES, |keep| keep.max2cache - self.copied);
        let rest = self.remaining.unwrap_or(u64::MAX);
        if self.has_taken_all() { 0 } else { rest.min(PIPE_BYTES.min(kept) as u64) as usize }
    }

    /// Returns how many bytes the application may read: those that were forwarded, or, after the
    /// sink failed, all copied ones.
    pub(crate) fn readable_bytes(&self) -> usize {
        if matches!(self.sink, SinkState::Failed(_)) {
            self.copied
        } else {
            self.copied - self.copied_ahead
        }
    }

    /// Returns whether the application can be notified: `min2read` bytes can be read, or no more
    /// arrive before a read.
    pub(crate) fn is_readable(&self) -> bool {
        let Some(keep) = self.keep_copy else { return false };
        let enough =
            self.readable_bytes() >= keep.min2read || self.is_copy_full || self.is_copy_complete();
        self.readable_bytes() > 0 && enough
    }

    /// Returns whether no payload will be added to the copy.
    pub(crate) fn is_copy_complete(&self) -> bool {
        self.has_taken_all() && self.piped == 0
    }

    /// Returns the payload bytes in the pipe, and how many of them are also copied.
    pub(crate) fn piped(&self) -> (usize, usize) {
        (self.piped, self.copied_ahead)
    }

    /// Returns whether the application reads the payload too.
    pub(crate) fn has_copy(&self) -> bool {
        self.keep_copy.is_some()
    }

    /// Returns whether bytes can still be sent to the sink.
    pub(crate) fn is_sink_open(&self) -> bool {
        matches!(self.sink, SinkState::Ready | SinkState::Full)
    }

    /// Returns whether the direction waits for the end of a pause.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.lacks_memory && self.end().is_none()
    }

    /// Returns whether the sink failed.
    pub(crate) fn is_sink_failed(&self) -> bool {
        matches!(self.sink, SinkState::Failed(_))
    }
}

/// Results of actions and of waits.
impl DirectionState {
    /// Records whether a pipe is available for the bytes of the source.
    pub(crate) fn set_use_pipe(&mut self, uses_pipe: bool) {
        self.uses_pipe = uses_pipe;
    }

    /// Records that the kernel had no memory for the action and did nothing.
    pub(crate) fn note_out_of_memory(&mut self) {
        self.lacks_memory = true;
    }

    /// Records the end of a pause.
    pub(crate) fn note_pause_end(&mut self) {
        self.lacks_memory = false;
    }

    /// Records that the source may have bytes.
    pub(crate) fn note_source_ready(&mut self) {
        if self.source == SourceState::Empty {
            self.source = SourceState::Ready;
        }
    }

    /// Records that the source has no bytes.
    pub(crate) fn note_source_empty(&mut self) {
        self.source = SourceState::Empty;
    }

    /// Records that the kernel reported the end of the stream.
    pub(crate) fn note_source_end(&mut self) {
        self.source = self.pending_error.map_or(SourceState::Ended, SourceState::Failed);
    }

    /// Records an error of the source that the kernel reported to the application.
    pub(crate) fn set_source_error(&mut self, error: Errno) {
        self.pending_error = Some(error);
    }

    /// Records that the connection of the source failed.
    pub(crate) fn note_source_failed(&mut self, error: Errno) {
        self.source = SourceState::Failed(error);
    }

    /// Records that the sink may have room.
    pub(crate) fn note_sink_ready(&mut self) {
        if self.sink == SinkState::Full {
            self.sink = SinkState::Ready;
        }
    }

    /// Records that the sink has no room.
    pub(crate) fn note_sink_full(&mut self) {
        self.sink = SinkState::Full;
    }

    /// Records that the connection of the sink failed. Only the first error counts.
    pub(crate) fn note_sink_failed(&mut self, error: Errno) {
        if self.is_sink_open() {
            self.sink = SinkState::Failed(error);
        }
    }

    /// Records that the write side of the sink was shut down.
    pub(crate) fn note_shutdown(&mut self) {
        self.sink = SinkState::Shut;
    }

    /// Records that prefix bytes were sent.
    pub(crate) fn note_prefix_sent(&mut self, bytes: usize) {
        assert!(bytes <= self.prefix, "at most the prefix is sent");
        self.prefix -= bytes;
    }

    /// Records that bytes, at least one, went from the source into the pipe.
    pub(crate) fn note_filled(&mut self, bytes: usize) {
        self.count_taken(bytes);
        self.piped += bytes;
    }

    /// Records that bytes, at least one, were copied from the source to the sink and, with
    /// KeepCopy, to the application.
    pub(crate) fn note_sent(&mut self, bytes: usize) {
        self.count_taken(bytes);
        self.forwarded += bytes as u64;
        self.copied += if self.keep_copy.is_some() { bytes } else { 0 };
        self.uses_pipe = true;
    }

    /// Records that bytes, at least one, went from the source to the application alone.
    pub(crate) fn note_received(&mut self, bytes: usize) {
        self.count_taken(bytes);
        self.copied += bytes;
        self.uses_pipe = true;
    }

    /// Records that bytes of the pipe were duplicated for the application.
    pub(crate) fn note_teed(&mut self, bytes: usize) {
        assert!(
            self.copied_ahead == 0 && bytes <= self.piped,
            "at most the bytes of the pipe are duplicated"
        );
        self.copied_ahead = bytes;
        self.copied += bytes;
    }

    /// Records that the copy has no room.
    pub(crate) fn note_copy_full(&mut self) {
        self.is_copy_full = true;
    }

    /// Records that bytes went from the pipe to the sink.
    pub(crate) fn note_drained(&mut self, bytes: usize) {
        self.count_removed(bytes);
        self.forwarded += bytes as u64;
        self.copied_ahead -= if self.keep_copy.is_some() { bytes } else { 0 };
    }

    /// Records that bytes of the pipe, all copied before, were dropped.
    pub(crate) fn note_discarded(&mut self, bytes: usize) {
        self.count_removed(bytes);
        self.copied_ahead -= bytes;
    }

    /// Records that bytes went from the pipe to the application's copy.
    pub(crate) fn note_moved_to_copy(&mut self, bytes: usize) {
        self.count_removed(bytes);
        self.copied += bytes;
    }

    /// Records that the application read kept bytes.
    pub(crate) fn note_read(&mut self, bytes: usize) {
        assert!(bytes <= self.readable_bytes(), "at most the kept bytes are read");
        self.copied -= bytes;
        self.is_copy_full = false;
    }

    /// Stops taking bytes from the source. An action for which the kernel had no memory is tried
    /// once more.
    pub(crate) fn stop(&mut self) {
        self.lacks_memory = false;
        self.remaining = Some(0);
    }

    fn count_taken(&mut self, bytes: usize) {
        assert!((1..=self.intake_max()).contains(&bytes), "at most the requested bytes are taken");
        self.taken += bytes as u64;
        self.remaining = self.remaining.map(|rest| rest - bytes as u64);
    }

    fn count_removed(&mut self, bytes: usize) {
        assert!(bytes <= self.piped, "a pipe loses at most its bytes");
        self.piped -= bytes;
    }
}

#[cfg(test)]
mod tests;
