//! One direction of a transfer as numbers: what has been taken from the source, what the sink has
//! been given, what the application has still to read, and what is to be done next.
//!
//! A flow has no descriptor and calls no kernel: it says a [`Step`], and is told what came of it.
//! So every order in which a source, a sink and a reader can be ready, slow or gone is played in
//! tests from seeds.

use millrace_sys::Errno;

use crate::limits::PIPE_BYTES;
use crate::request::{Close, End, Keep, Side};

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Send what is left of the first bytes; `more`: what is in the pipe goes right behind them.
    First {
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
    Shift {
        /// As for [`Step::Tee`].
        max: usize,
    },
    /// Shut the sink's write side.
    Shut,
    /// Nothing before somebody else does something.
    Wait(Wait),
    /// Nothing ever again.
    Over,
}

/// Who has to do something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
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
enum Source {
    Ready,
    Waits,
    Ended,
    Broken(Errno),
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
enum Sink {
    Ready,
    Waits,
    Shut,
    Gone(Errno),
}

/// One direction, from its source to its sink.
#[derive(Debug)]
pub(crate) struct Flow {
    from: Side,
    source: Source,
    /// Why the source has broken, where somebody else was told: behind what it still has, the
    /// kernel says nothing but that it ended.
    broken: Option<Errno>,
    sink: Sink,
    close: Close,
    keep: Option<Keep>,
    /// Payload that is still to be taken from the source; `None`: all until its close.
    rest: Option<u64>,
    /// Payload that was taken; `forwarded <= taken`.
    pub(crate) taken: u64,
    /// Bytes that have to go before the payload.
    pub(crate) first: usize,
    /// Payload in the pipe; `piped <= PIPE_BYTES`.
    piped: usize,
    /// Payload that the sink took.
    pub(crate) forwarded: u64,
    /// Payload that was put aside for the application and not read; `copied <= max2cache`.
    pub(crate) copied: usize,
    /// How much of both `piped` and `copied` is the same: put aside, and not forwarded yet.
    ahead: usize,
    /// Nothing more can be put aside before the application reads.
    crowded: bool,
    /// Whether the source's bytes are to be moved by a pipe.
    has_pipe: bool,
    /// The kernel had no memory for a step: nothing is done before a pause.
    is_short: bool,
}

impl Flow {
    /// A direction in which nothing has moved: `first` bytes are to go before a payload of `limit`
    /// bytes, or of all until the source closes.
    pub(crate) fn new(
        from: Side,
        first: usize,
        limit: Option<u64>,
        keep: Option<Keep>,
        close: Close,
    ) -> Self {
        Self {
            from,
            source: Source::Ready,
            broken: None,
            sink: Sink::Ready,
            close,
            keep,
            rest: limit,
            taken: 0,
            first,
            piped: 0,
            forwarded: 0,
            copied: 0,
            ahead: 0,
            crowded: false,
            has_pipe: true,
            is_short: false,
        }
    }

    /// What to do next. Whoever asks does it, and tells what came of it before asking again.
    pub(crate) fn step(&self) -> Step {
        if self.end().is_some() {
            return Step::Over;
        }
        if self.is_short {
            return Step::Wait(Wait::Memory);
        }
        if self.piped == 0 && self.source == Source::Ready && self.room() > 0 {
            let max = self.room();
            match self.sink {
                _ if self.has_pipe => return Step::Fill { max },
                Sink::Gone(_) => return Step::Receive { max },
                Sink::Ready if self.first == 0 => return Step::Copy { max },
                _ => {}
            }
        }
        match self.sink {
            Sink::Gone(_) => self.step_for_the_reader(),
            _ => self.step_to_the_sink(),
        }
    }

    /// What to do with what has been taken while there is somebody to send it to.
    fn step_to_the_sink(&self) -> Step {
        if self.first == 0 && self.piped > 0 && self.keep.is_some() && self.ahead == 0 {
            return match self.crowded {
                true => Step::Wait(Wait::Reader),
                false => Step::Tee { max: self.piped },
            };
        }
        if self.first > 0 || self.piped > 0 {
            return match self.sink {
                Sink::Ready if self.first > 0 => Step::First { more: self.piped > 0 },
                Sink::Ready if self.keep.is_some() => Step::Drain { max: self.ahead },
                Sink::Ready => Step::Drain { max: self.piped },
                _ => Step::Wait(Wait::Sink),
            };
        }
        match self.source {
            Source::Ended if self.close == Close::Forwarded && self.sink != Sink::Shut => {
                Step::Shut
            }
            Source::Ready if self.room() > 0 => Step::Wait(Wait::Sink),
            Source::Waits if self.room() > 0 => Step::Wait(Wait::Source),
            _ => Step::Wait(Wait::Reader),
        }
    }

    /// What to do with what has been taken when only the application wants it.
    fn step_for_the_reader(&self) -> Step {
        match (self.ahead, self.piped) {
            (0, 0) if self.source == Source::Waits && self.room() > 0 => Step::Wait(Wait::Source),
            (0, 0) => Step::Wait(Wait::Reader),
            (0, _) if self.crowded => Step::Wait(Wait::Reader),
            (0, piped) => Step::Shift { max: piped },
            (ahead, _) => Step::Discard { max: ahead },
        }
    }

    /// How the direction ended, once nothing of it is left to be done.
    pub(crate) fn end(&self) -> Option<End> {
        let is_gone = matches!(self.sink, Sink::Gone(_));
        let is_sent = self.first == 0 && self.piped == 0;
        let is_over = match self.keep {
            Some(_) => {
                self.has_taken_all() && self.piped + self.copied == 0 && (is_gone || is_sent)
            }
            None => is_gone || (self.has_taken_all() && is_sent && !self.has_to_shut()),
        };
        is_over.then(|| self.how_it_ends())
    }

    fn how_it_ends(&self) -> End {
        match (self.sink, self.source) {
            (Sink::Gone(error), _) => End::Aborted { side: self.from.other(), error },
            _ if self.rest == Some(0) => End::Limit,
            (_, Source::Broken(error)) => End::Aborted { side: self.from, error },
            _ => End::Closed,
        }
    }

    /// Whether the source has nothing more for this transfer.
    fn has_taken_all(&self) -> bool {
        self.rest == Some(0) || matches!(self.source, Source::Ended | Source::Broken(_))
    }

    fn has_to_shut(&self) -> bool {
        self.close == Close::Forwarded && self.source == Source::Ended && self.sink != Sink::Shut
    }

    /// How much may be taken from the source at once.
    fn room(&self) -> usize {
        let kept = self.keep.map_or(PIPE_BYTES, |keep| keep.max2cache - self.copied);
        let rest = self.rest.unwrap_or(u64::MAX);
        if self.has_taken_all() { 0 } else { rest.min(PIPE_BYTES.min(kept) as u64) as usize }
    }

    /// Bytes that the application may read: forwarded, or not to be forwarded any more.
    pub(crate) fn kept(&self) -> usize {
        if matches!(self.sink, Sink::Gone(_)) { self.copied } else { self.copied - self.ahead }
    }

    /// Whether the application is to be told to read: as much as it asked for is there, or no more
    /// will come before it does.
    pub(crate) fn is_readable(&self) -> bool {
        let Some(keep) = self.keep else { return false };
        let enough = self.kept() >= keep.min2read || self.crowded || self.has_forwarded_all();
        self.kept() > 0 && enough
    }

    /// Whether the kept bytes are the last ones.
    pub(crate) fn has_forwarded_all(&self) -> bool {
        self.has_taken_all() && self.piped == 0
    }

    /// Payload in the pipe, and how much of it is put aside as well.
    pub(crate) fn piped(&self) -> (usize, usize) {
        (self.piped, self.ahead)
    }

    /// Whether the application reads the payload too.
    pub(crate) fn is_kept(&self) -> bool {
        self.keep.is_some()
    }

    /// Whether something can still be sent to the sink.
    pub(crate) fn is_sink_open(&self) -> bool {
        matches!(self.sink, Sink::Ready | Sink::Waits)
    }

    /// Whether it goes on after a pause.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short && self.end().is_none()
    }

    /// Whether the sink is gone.
    pub(crate) fn is_sink_gone(&self) -> bool {
        matches!(self.sink, Sink::Gone(_))
    }
}

/// What came of a step, or of waiting.
impl Flow {
    /// Whether the source's bytes are moved by a pipe from now on; they are not while none is free.
    pub(crate) fn use_pipe(&mut self, has_pipe: bool) {
        self.has_pipe = has_pipe;
    }

    /// The kernel had no memory for the step, and did nothing.
    pub(crate) fn ran_short(&mut self) {
        self.is_short = true;
    }

    /// There was a pause: there may be memory again.
    pub(crate) fn has_paused(&mut self) {
        self.is_short = false;
    }

    /// The source may have something.
    pub(crate) fn source_ready(&mut self) {
        if self.source == Source::Waits {
            self.source = Source::Ready;
        }
    }

    /// The source has nothing.
    pub(crate) fn source_waits(&mut self) {
        self.source = Source::Waits;
    }

    /// The source closed, as far as the kernel says.
    pub(crate) fn source_ended(&mut self) {
        self.source = self.broken.map_or(Source::Ended, Source::Broken);
    }

    /// Somebody who sent to the source was told that it broke.
    pub(crate) fn source_breaks(&mut self, error: Errno) {
        self.broken = Some(error);
    }

    /// The source's connection was aborted, or failed.
    pub(crate) fn source_broke(&mut self, error: Errno) {
        self.source = Source::Broken(error);
    }

    /// The sink may take something.
    pub(crate) fn sink_ready(&mut self) {
        if self.sink == Sink::Waits {
            self.sink = Sink::Ready;
        }
    }

    /// The sink takes nothing.
    pub(crate) fn sink_waits(&mut self) {
        self.sink = Sink::Waits;
    }

    /// The sink's connection was aborted, or failed. The first error says why.
    pub(crate) fn sink_gone(&mut self, error: Errno) {
        if self.is_sink_open() {
            self.sink = Sink::Gone(error);
        }
    }

    /// The sink's write side was shut.
    pub(crate) fn shut(&mut self) {
        self.sink = Sink::Shut;
    }

    /// So many of the first bytes were sent.
    pub(crate) fn first_sent(&mut self, bytes: usize) {
        assert!(bytes <= self.first, "no more is sent than there is");
        self.first -= bytes;
    }

    /// So many bytes, at least one, went from the source into the pipe.
    pub(crate) fn filled(&mut self, bytes: usize) {
        self.took(bytes);
        self.piped += bytes;
    }

    /// So many bytes, at least one, went from the source to the sink and, if they are kept, to the
    /// application's.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.took(bytes);
        self.forwarded += bytes as u64;
        self.copied += if self.keep.is_some() { bytes } else { 0 };
        self.has_pipe = true;
    }

    /// So many bytes, at least one, went from the source to the application's alone.
    pub(crate) fn received(&mut self, bytes: usize) {
        self.took(bytes);
        self.copied += bytes;
        self.has_pipe = true;
    }

    /// So many bytes of the pipe were put aside as well.
    pub(crate) fn teed(&mut self, bytes: usize) {
        assert!(self.ahead == 0 && bytes <= self.piped, "no more is repeated than was there");
        self.ahead = bytes;
        self.copied += bytes;
    }

    /// Nothing more can be put aside before the application reads.
    pub(crate) fn crowded(&mut self) {
        self.crowded = true;
    }

    /// So many bytes went from the pipe to the sink.
    pub(crate) fn drained(&mut self, bytes: usize) {
        self.left_the_pipe(bytes);
        self.forwarded += bytes as u64;
        self.ahead -= if self.keep.is_some() { bytes } else { 0 };
    }

    /// So many bytes of the pipe, all put aside before, were thrown away.
    pub(crate) fn discarded(&mut self, bytes: usize) {
        self.left_the_pipe(bytes);
        self.ahead -= bytes;
    }

    /// So many bytes went from the pipe to the application's.
    pub(crate) fn shifted(&mut self, bytes: usize) {
        self.left_the_pipe(bytes);
        self.copied += bytes;
    }

    /// The application read so many of the kept bytes.
    pub(crate) fn read(&mut self, bytes: usize) {
        assert!(bytes <= self.kept(), "no more is read than was kept");
        self.copied -= bytes;
        self.crowded = false;
    }

    /// Takes nothing more from the source. What is left to be done is tried once more.
    pub(crate) fn stop(&mut self) {
        self.is_short = false;
        self.rest = Some(0);
    }

    fn took(&mut self, bytes: usize) {
        assert!((1..=self.room()).contains(&bytes), "no more is taken than was asked for");
        self.taken += bytes as u64;
        self.rest = self.rest.map(|rest| rest - bytes as u64);
    }

    fn left_the_pipe(&mut self, bytes: usize) {
        assert!(bytes <= self.piped, "no more leaves a pipe than was in it");
        self.piped -= bytes;
    }
}

#[cfg(test)]
mod tests;
