//! What one end of a connection sends, step by step: bytes, pauses, and how it ends.

use std::collections::VecDeque;
use std::time::Duration;

use millrace_engine::Instant;
use millrace_sim::{ActorSocket, World};

use super::plan::{Break, How};

/// A step.
#[derive(Debug)]
pub(super) enum Out {
    /// These bytes.
    Bytes(Vec<u8>),
    /// These bytes, so many at a time, every so many milliseconds.
    Drip(Vec<u8>, usize, u64),
    /// A wait of so many milliseconds.
    Pause(u64),
    /// A wait for [`Sending::go_on`], or for so many milliseconds.
    Await(u64),
    /// An answer's last byte is behind, or the last of a request.
    Mark,
    /// The stream ends.
    Finish,
    /// The connection is closed.
    Close,
    /// The connection is reset.
    Reset,
    /// Nothing more is sent, ever.
    Stop,
}

/// What the sender has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    /// Everything was taken, or nothing more is wanted.
    All,
    /// The kernel takes no more now.
    Full,
    /// It waits.
    Until(Instant),
    /// A [`Out::Mark`] was passed; there may be more.
    Mark,
    /// The socket was closed by a step: nobody may use it any more.
    Gone,
}

/// When to look again.
#[derive(Default)]
pub(super) struct Look(pub(super) Option<Instant>);

impl Look {
    pub(super) fn at(&mut self, when: Instant) {
        self.0 = self.0.into_iter().chain([when]).min();
    }
}

/// What is still to be sent.
#[derive(Debug, Default)]
pub(super) struct Sending {
    steps: VecDeque<Out>,
    /// Bytes of the first step that were taken.
    taken: usize,
    /// When the pause, or the drip's wait, at the head of the steps is over.
    until: Option<Instant>,
    stopped: bool,
    /// The stream was ended, or can take nothing more.
    pub(super) over: bool,
    /// The connection broke while something was sent: how its stream ends says nothing.
    pub(super) broke: bool,
    /// Bytes taken in all.
    pub(super) total: u64,
}

impl Sending {
    /// Adds a step.
    pub(super) fn add(&mut self, out: Out) {
        self.steps.push_back(out);
    }

    /// Adds bytes, broken off or halted where `breaks` says.
    pub(super) fn add_broken(&mut self, bytes: Vec<u8>, breaks: Option<Break>) {
        let Some(Break { at, how }) = breaks.filter(|_| !bytes.is_empty()) else {
            return self.add(Out::Bytes(bytes));
        };
        let (before, after) = bytes.split_at(at % bytes.len());
        self.add(Out::Bytes(before.to_vec()));
        match how {
            How::Finish => self.add(Out::Finish),
            How::Close => self.add(Out::Close),
            How::Reset => self.add(Out::Reset),
            How::Stop => self.add(Out::Stop),
            How::Pause(ms) => {
                self.add(Out::Pause(ms));
                self.add(Out::Bytes(after.to_vec()));
            }
        }
    }

    /// Ends a wait for word from the other side.
    pub(super) fn go_on(&mut self) {
        if let Some(Out::Await(_)) = self.steps.front() {
            self.done();
        }
    }

    /// Whether nothing more will be sent, whatever is added.
    pub(super) fn has_ended(&self) -> bool {
        self.stopped || self.over
    }

    /// Whether nothing is left to be sent.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty() || self.has_ended()
    }

    fn done(&mut self) {
        self.steps.pop_front();
        (self.taken, self.until) = (0, None);
    }

    /// Whether the wait that begins, or began, here is over.
    fn waited(&mut self, now: Instant, ms: u64) -> Result<(), Instant> {
        let until = *self.until.get_or_insert(now + Duration::from_millis(ms));
        if now >= until { Ok(()) } else { Err(until) }
    }

    /// Sends what can be sent.
    pub(super) fn step(&mut self, world: &World, socket: ActorSocket) -> Sent {
        let now = world.now();
        loop {
            if self.has_ended() {
                return Sent::All;
            }
            let Some(step) = self.steps.front() else { return Sent::All };
            match step {
                Out::Bytes(bytes) if self.taken == bytes.len() => self.done(),
                Out::Bytes(bytes) => match world.write(socket, &bytes[self.taken..]) {
                    Ok(0) => return Sent::Full,
                    Ok(count) => self.took(count),
                    Err(_) => return self.breaks(),
                },
                Out::Drip(bytes, ..) if self.taken == bytes.len() => self.done(),
                Out::Drip(bytes, size, ms) => {
                    let end = bytes.len().min(self.taken + size);
                    let (piece, ms) = (bytes[self.taken..end].to_vec(), *ms);
                    if let Err(until) = self.waited(now, ms) {
                        return Sent::Until(until);
                    }
                    match world.write(socket, &piece) {
                        Ok(0) => return Sent::Full,
                        Ok(count) => self.took(count),
                        Err(_) => return self.breaks(),
                    }
                    self.until = None;
                }
                Out::Pause(ms) | Out::Await(ms) => {
                    let ms = *ms;
                    match self.waited(now, ms) {
                        Ok(()) => self.done(),
                        Err(until) => return Sent::Until(until),
                    }
                }
                Out::Mark => {
                    self.done();
                    return Sent::Mark;
                }
                Out::Finish => {
                    self.done();
                    self.over = true;
                    world.shutdown_write(socket);
                }
                Out::Close => {
                    world.close(socket);
                    return Sent::Gone;
                }
                Out::Reset => {
                    world.reset(socket);
                    return Sent::Gone;
                }
                Out::Stop => self.stopped = true,
            }
        }
    }

    fn took(&mut self, count: usize) {
        self.taken += count;
        self.total += count as u64;
    }

    fn breaks(&mut self) -> Sent {
        self.steps.clear();
        (self.taken, self.until) = (0, None);
        (self.over, self.broke) = (true, true);
        Sent::All
    }
}
