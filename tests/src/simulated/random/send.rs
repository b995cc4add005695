//! The send queue of one end of a connection: bytes, pauses, and the end of the stream.

use std::collections::VecDeque;
use std::time::Duration;

use millrace_engine::Instant;
use millrace_sim::World;

use super::plan::{Break, BreakKind};
use crate::simulated::transport::Transport;

/// A step of sending.
#[derive(Debug)]
pub(super) enum SendStep {
    /// These bytes.
    Bytes(Vec<u8>),
    /// These bytes, in parts of a size, with a pause in milliseconds before each part.
    Drip(Vec<u8>, usize, u64),
    /// A pause of this number of milliseconds.
    Pause(u64),
    /// A wait for [`SendQueue::go_on`], at most for this number of milliseconds.
    Await(u64),
    /// A position that the caller notices, such as the end of a message.
    Mark,
    /// The stream ends.
    Finish,
    /// The connection is closed.
    Close,
    /// The connection is reset.
    Reset,
    /// Nothing more is sent, and the connection stays open.
    Stop,
}

/// The result of sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendOutcome {
    /// Everything was accepted, or nothing more is to be sent.
    All,
    /// The kernel accepts no more now.
    Full,
    /// The queue waits until this time.
    Until(Instant),
    /// A [`SendStep::Mark`] was reached; more steps may follow.
    Mark,
    /// A step closed the socket, which must not be used any more.
    Gone,
}

/// When to act again.
#[derive(Default)]
pub(super) struct NextWake(pub(super) Option<Instant>);

impl NextWake {
    pub(super) fn at(&mut self, when: Instant) {
        self.0 = self.0.into_iter().chain([when]).min();
    }
}

/// The steps still to perform.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    steps: VecDeque<SendStep>,
    /// Accepted bytes of the first step.
    taken: usize,
    /// When the pause of the first step ends.
    until: Option<Instant>,
    stopped: bool,
    /// The stream was ended, or accepts nothing more.
    pub(super) over: bool,
    /// The connection broke during a send, so the end of its stream is not checked.
    pub(super) broke: bool,
    /// Accepted bytes in total.
    pub(super) total: u64,
}

impl SendQueue {
    /// Adds a step.
    pub(super) fn add(&mut self, out: SendStep) {
        self.steps.push_back(out);
    }

    /// Adds bytes that break off or pause as `breaks` says.
    pub(super) fn add_broken(&mut self, bytes: Vec<u8>, breaks: Option<Break>) {
        let Some(Break { at, how }) = breaks.filter(|_| !bytes.is_empty()) else {
            return self.add(SendStep::Bytes(bytes));
        };
        let (before, after) = bytes.split_at(at % bytes.len());
        self.add(SendStep::Bytes(before.to_vec()));
        match how {
            BreakKind::Finish => self.add(SendStep::Finish),
            BreakKind::Close => self.add(SendStep::Close),
            BreakKind::Reset => self.add(SendStep::Reset),
            BreakKind::Stop => self.add(SendStep::Stop),
            BreakKind::Pause(ms) => {
                self.add(SendStep::Pause(ms));
                self.add(SendStep::Bytes(after.to_vec()));
            }
        }
    }

    /// Ends a [`SendStep::Await`] at the front of the queue.
    pub(super) fn go_on(&mut self) {
        if let Some(SendStep::Await(_)) = self.steps.front() {
            self.done();
        }
    }

    /// Returns whether nothing more will be sent, even if steps are added.
    pub(super) fn has_ended(&self) -> bool {
        self.stopped || self.over
    }

    /// Returns whether nothing is left to send.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty() || self.has_ended()
    }

    fn done(&mut self) {
        self.steps.pop_front();
        (self.taken, self.until) = (0, None);
    }

    /// Checks whether `ms` milliseconds have passed since the first call for the current step.
    ///
    /// # Errors
    /// Returns the time at which they have passed, if it is in the future.
    fn waited(&mut self, now: Instant, ms: u64) -> Result<(), Instant> {
        let until = *self.until.get_or_insert(now + Duration::from_millis(ms));
        if now >= until { Ok(()) } else { Err(until) }
    }

    /// Sends what can be sent. After [`SendOutcome::Gone`], the connection is closed.
    pub(super) fn step(&mut self, world: &World, open: &mut Option<Transport>) -> SendOutcome {
        let now = world.now();
        loop {
            let Some(transport) = open.as_mut().filter(|_| !self.has_ended()) else {
                return SendOutcome::All;
            };
            let Some(step) = self.steps.front() else { return SendOutcome::All };
            match step {
                SendStep::Bytes(bytes) if self.taken == bytes.len() => self.done(),
                SendStep::Bytes(bytes) => match transport.write(world, &bytes[self.taken..]) {
                    Ok(0) => return SendOutcome::Full,
                    Ok(count) => self.took(count),
                    Err(_) => return self.breaks(),
                },
                SendStep::Drip(bytes, ..) if self.taken == bytes.len() => self.done(),
                SendStep::Drip(bytes, size, ms) => {
                    let end = bytes.len().min(self.taken + size);
                    let (piece, ms) = (bytes[self.taken..end].to_vec(), *ms);
                    if let Err(until) = self.waited(now, ms) {
                        return SendOutcome::Until(until);
                    }
                    match transport.write(world, &piece) {
                        Ok(0) => return SendOutcome::Full,
                        Ok(count) => self.took(count),
                        Err(_) => return self.breaks(),
                    }
                    self.until = None;
                }
                SendStep::Pause(ms) | SendStep::Await(ms) => {
                    let ms = *ms;
                    match self.waited(now, ms) {
                        Ok(()) => self.done(),
                        Err(until) => return SendOutcome::Until(until),
                    }
                }
                SendStep::Mark => {
                    self.done();
                    return SendOutcome::Mark;
                }
                SendStep::Finish => {
                    self.done();
                    self.over = true;
                    transport.shutdown_write(world);
                }
                SendStep::Close => {
                    if !transport.prepare_close(world) {
                        return SendOutcome::Full;
                    }
                    open.take().into_iter().for_each(|it| it.close(world));
                    return SendOutcome::Gone;
                }
                SendStep::Reset => {
                    open.take().into_iter().for_each(|it| it.reset(world));
                    return SendOutcome::Gone;
                }
                SendStep::Stop => self.stopped = true,
            }
        }
    }

    fn took(&mut self, count: usize) {
        self.taken += count;
        self.total += count as u64;
    }

    fn breaks(&mut self) -> SendOutcome {
        self.steps.clear();
        (self.taken, self.until) = (0, None);
        (self.over, self.broke) = (true, true);
        SendOutcome::All
    }
}
