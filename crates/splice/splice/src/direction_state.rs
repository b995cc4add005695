//! One direction of a transfer as numbers: what has been taken from the source, what the sink has
//! been given, what the application has still to read, and what is to be done next.
//!
//! A flow has no descriptor and calls no kernel: it says a [`Step`], and is told what came of it.
//! So every order in which a source, a sink and a reader can be ready, slow or gone is played in
//! tests from seeds.

use millrace_sys::Errno;

use crate::limits::PIPE_BYTES;
use crate::request::{End, HalfClose, KeepCopy, Side};

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Send what is left of the first bytes; `more`: what is in the pipe goes right behind them.
    SendPrefix {
        /// Whether the pipe holds something.
        more: bool,
    },
    /// Move up to `max` bytes from the source into the pipe, which is empty.
    Fill {
        /// `1 <= max <= PIPE_BYTES`.
        max: usize,
    },
    /// Send up to `max` bytes of the source by copy, and take from it what the sink took.
    Copy {
        /// As for [`Step::Fill`].
        max: usize,
    },
    /// Receive up to `max` bytes for the application alone.
    Receive {
        /// As for [`Step::Fill`].
        max: usize,
    },
    /// Repeat up to `max` bytes of the pipe for the application: all that it holds.
    Tee {
        /// `1 <= max <= PIPE_BYTES`.
        max: usize,
    },
    /// Move up to `max` bytes from the pipe to the sink.
    Drain {
        /// As for [`Step::Tee`].
        max: usize,
    },
    /// Throw `max` bytes of the pipe away: the application has them, and the sink is gone.
    Discard {
        /// As for [`Step::Tee`].
        max: usize,
    },
    /// Move up to `max` bytes from the pipe to those for the application: the sink is gone.
    MoveToCopy {
        /// As for [`Step::Tee`].
        max: usize,
    },
    /// Shut the sink's write side.
    ShutdownWrite,
    /// Nothing before somebody else does something.
    Wait(WaitFor),
    /// Nothing ever again.
    Done,
}

/// Who has to do something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitFor {
    /// The source has to bring something.
    Source,
    /// The sink has to take something.
    Sink,
    /// The application has to read.
    Reader,
    /// The kernel had no memory: there has to be a pause.
    Memory,
}

/// Where bytes come from.
///
/// ```text
///          nothing there            the end
///   Ready ───────────────> Waits    Ready ──────> Ended
///         <───────────────          Ready ──────> Broken
///          it became ready               an error
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SourceState {
    Ready,
    Empty,
    Ended,
    Failed(Errno),
}

/// Where bytes go.
///
/// ```text
///          took nothing             all was sent, and close is forwarded
///   Ready ───────────────> Waits    Ready, Waits ──────> Shut
///         <───────────────          Ready, Waits ──────> Gone
///          it became ready                      an error
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SinkState {
    Ready,
    Full,
    Shut,
    Failed(Errno),
}

/// One direction, from its source to its sink.
#[derive(Debug)]
pub(crate) struct DirectionState {
    side: Side,
    source: SourceState,
    /// Why the source has broken, where somebody else was told: behind what it still has, the
    /// kernel says nothing but that it ended.
    pending_error: Option<Errno>,
    sink: SinkState,
    half_close: HalfClose,
    keep_copy: Option<KeepCopy>,
    /// Payload that is still to be taken from the source; `None`: all until its close.
    remaining: Option<u64>,
    /// Payload that was taken; `forwarded <= taken`.
    pub(crate) taken: u64,
    /// Bytes that have to go before the payload.
    pub(crate) prefix: usize,
    /// Payload in the pipe; `piped <= PIPE_BYTES`.
    piped: usize,
    /// Payload that the sink took.
    pub(crate) forwarded: u64,
    /// Payload that was put aside for the application and not read; `copied <= max2cache`.
    pub(crate) copied: usize,
    /// How much of both `piped` and `copied` is the same: put aside, and not forwarded yet.
    copied_ahead: usize,
    /// Nothing more can be put aside before the application reads.
    is_copy_full: bool,
    /// Whether the source's bytes are to be moved by a pipe.
    has_pipe: bool,
    /// The kernel had no memory for a step: nothing is done before a pause.
    lacks_memory: bool,
}

impl DirectionState {
    /// A direction in which nothing has moved: `prefix` bytes are to go before a payload of `limit`
    /// bytes, or of all until the source closes.
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
            has_pipe: true,
            lacks_memory: false,
        }
    }

    /// What to do next. Whoever asks does it, and tells what came of it before asking again.
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
                _ if self.has_pipe => return Action::Fill { max },
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

    /// What to do with what has been taken while there is somebody to send it to.
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

    /// What to do with what has been taken when only the application wants it.
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

    /// How the direction ended, once nothing of it is left to be done.
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

    /// Whether the source has nothing more for this transfer.
    fn has_taken_all(&self) -> bool {
        self.remaining == Some(0)
            || matches!(self.source, SourceState::Ended | SourceState::Failed(_))
    }

    fn must_shut_down(&self) -> bool {
        self.half_close == HalfClose::Forwarded
            && self.source == SourceState::Ended
            && self.sink != SinkState::Shut
    }

    /// How much may be taken from the source at once.
    fn intake_max(&self) -> usize {
        let kept = self.keep_copy.map_or(PIPE_BYTES, |keep| keep.max2cache - self.copied);
        let rest = self.remaining.unwrap_or(u64::MAX);
        if self.has_taken_all() { 0 } else { rest.min(PIPE_BYTES.min(kept) as u64) as usize }
    }

    /// Bytes that the application may read: forwarded, or not to be forwarded any more.
    pub(crate) fn readable_bytes(&self) -> usize {
        if matches!(self.sink, SinkState::Failed(_)) {
            self.copied
        } else {
            self.copied - self.copied_ahead
        }
    }

    /// Whether the application is to be told to read: as much as it asked for is there, or no more
    /// will come before it does.
    pub(crate) fn is_readable(&self) -> bool {
        let Some(keep) = self.keep_copy else { return false };
        let enough =
            self.readable_bytes() >= keep.min2read || self.is_copy_full || self.has_forwarded_all();
        self.readable_bytes() > 0 && enough
    }

    /// Whether the kept bytes are the last ones.
    pub(crate) fn has_forwarded_all(&self) -> bool {
        self.has_taken_all() && self.piped == 0
    }

    /// Payload in the pipe, and how much of it is put aside as well.
    pub(crate) fn piped(&self) -> (usize, usize) {
        (self.piped, self.copied_ahead)
    }

    /// Whether the application reads the payload too.
    pub(crate) fn has_copy(&self) -> bool {
        self.keep_copy.is_some()
    }

    /// Whether something can still be sent to the sink.
    pub(crate) fn is_sink_open(&self) -> bool {
        matches!(self.sink, SinkState::Ready | SinkState::Full)
    }

    /// Whether it goes on after a pause.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.lacks_memory && self.end().is_none()
    }

    /// Whether the sink is gone.
    pub(crate) fn is_sink_failed(&self) -> bool {
        matches!(self.sink, SinkState::Failed(_))
    }
}

/// What came of a step, or of waiting.
impl DirectionState {
    /// Whether the source's bytes are moved by a pipe from now on; they are not while none is free.
    pub(crate) fn set_use_pipe(&mut self, has_pipe: bool) {
        self.has_pipe = has_pipe;
    }

    /// The kernel had no memory for the step, and did nothing.
    pub(crate) fn note_out_of_memory(&mut self) {
        self.lacks_memory = true;
    }

    /// There was a pause: there may be memory again.
    pub(crate) fn note_pause_end(&mut self) {
        self.lacks_memory = false;
    }

    /// The source may have something.
    pub(crate) fn note_source_ready(&mut self) {
        if self.source == SourceState::Empty {
            self.source = SourceState::Ready;
        }
    }

    /// The source has nothing.
    pub(crate) fn note_source_empty(&mut self) {
        self.source = SourceState::Empty;
    }

    /// The source closed, as far as the kernel says.
    pub(crate) fn note_source_end(&mut self) {
        self.source = self.pending_error.map_or(SourceState::Ended, SourceState::Failed);
    }

    /// Somebody who sent to the source was told that it broke.
    pub(crate) fn set_source_error(&mut self, error: Errno) {
        self.pending_error = Some(error);
    }

    /// The source's connection was aborted, or failed.
    pub(crate) fn note_source_failed(&mut self, error: Errno) {
        self.source = SourceState::Failed(error);
    }

    /// The sink may take something.
    pub(crate) fn note_sink_ready(&mut self) {
        if self.sink == SinkState::Full {
            self.sink = SinkState::Ready;
        }
    }

    /// The sink takes nothing.
    pub(crate) fn note_sink_full(&mut self) {
        self.sink = SinkState::Full;
    }

    /// The sink's connection was aborted, or failed. The first error says why.
    pub(crate) fn note_sink_failed(&mut self, error: Errno) {
        if self.is_sink_open() {
            self.sink = SinkState::Failed(error);
        }
    }

    /// The sink's write side was shut.
    pub(crate) fn note_shutdown(&mut self) {
        self.sink = SinkState::Shut;
    }

    /// So many of the first bytes were sent.
    pub(crate) fn note_prefix_sent(&mut self, bytes: usize) {
        assert!(bytes <= self.prefix, "no more is sent than there is");
        self.prefix -= bytes;
    }

    /// So many bytes, at least one, went from the source into the pipe.
    pub(crate) fn note_filled(&mut self, bytes: usize) {
        self.count_taken(bytes);
        self.piped += bytes;
    }

    /// So many bytes, at least one, went from the source to the sink and, if they are kept, to the
    /// application's.
    pub(crate) fn note_sent(&mut self, bytes: usize) {
        self.count_taken(bytes);
        self.forwarded += bytes as u64;
        self.copied += if self.keep_copy.is_some() { bytes } else { 0 };
        self.has_pipe = true;
    }

    /// So many bytes, at least one, went from the source to the application's alone.
    pub(crate) fn note_received(&mut self, bytes: usize) {
        self.count_taken(bytes);
        self.copied += bytes;
        self.has_pipe = true;
    }

    /// So many bytes of the pipe were put aside as well.
    pub(crate) fn note_teed(&mut self, bytes: usize) {
        assert!(
            self.copied_ahead == 0 && bytes <= self.piped,
            "no more is repeated than was there"
        );
        self.copied_ahead = bytes;
        self.copied += bytes;
    }

    /// Nothing more can be put aside before the application reads.
    pub(crate) fn note_copy_full(&mut self) {
        self.is_copy_full = true;
    }

    /// So many bytes went from the pipe to the sink.
    pub(crate) fn note_drained(&mut self, bytes: usize) {
        self.count_removed(bytes);
        self.forwarded += bytes as u64;
        self.copied_ahead -= if self.keep_copy.is_some() { bytes } else { 0 };
    }

    /// So many bytes of the pipe, all put aside before, were thrown away.
    pub(crate) fn note_discarded(&mut self, bytes: usize) {
        self.count_removed(bytes);
        self.copied_ahead -= bytes;
    }

    /// So many bytes went from the pipe to the application's.
    pub(crate) fn note_moved_to_copy(&mut self, bytes: usize) {
        self.count_removed(bytes);
        self.copied += bytes;
    }

    /// The application read so many of the kept bytes.
    pub(crate) fn note_read(&mut self, bytes: usize) {
        assert!(bytes <= self.readable_bytes(), "no more is read than was kept");
        self.copied -= bytes;
        self.is_copy_full = false;
    }

    /// Takes nothing more from the source. What is left to be done is tried once more.
    pub(crate) fn stop(&mut self) {
        self.lacks_memory = false;
        self.remaining = Some(0);
    }

    fn count_taken(&mut self, bytes: usize) {
        assert!((1..=self.intake_max()).contains(&bytes), "no more is taken than was asked for");
        self.taken += bytes as u64;
        self.remaining = self.remaining.map(|rest| rest - bytes as u64);
    }

    fn count_removed(&mut self, bytes: usize) {
        assert!(bytes <= self.piped, "no more leaves a pipe than was in it");
        self.piped -= bytes;
    }
}

#[cfg(test)]
mod tests;
