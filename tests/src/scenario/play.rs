//! One script being played over one connection. It does no I/O: it says what it needs next and is
//! told what came, so that both runners play the same.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use super::check::{Verdict, shown};
use super::{Action, Expected, Extent, Names, Piece, Script, Step};

/// What scripts tell each other, and what they ask of their runner.
#[derive(Clone, Default, Debug)]
pub struct Board(Arc<Mutex<Told>>);

#[derive(Default, Debug)]
struct Told {
    signals: BTreeSet<String>,
    /// Reloads in the order in which they were asked for, each with its outcome once it has one.
    reloads: Vec<(String, Option<Result<(), String>>)>,
}

/// A reload that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked(usize);

impl Board {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().expect("nobody panics with the lock")
    }

    /// Tells everybody.
    pub fn signal(&self, name: &str) {
        self.lock().signals.insert(name.to_owned());
    }

    /// How much was told.
    pub fn told(&self) -> usize {
        let told = self.lock();
        let done = told.reloads.iter().filter(|(_, outcome)| outcome.is_some()).count();
        told.signals.len() + told.reloads.len() + done
    }

    /// Whether it was told.
    pub fn has(&self, name: &str) -> bool {
        self.lock().signals.contains(name)
    }

    /// Asks the runner for a reload.
    pub fn ask(&self, name: &str) -> Asked {
        let mut told = self.lock();
        told.reloads.push((name.to_owned(), None));
        Asked(told.reloads.len() - 1)
    }

    /// For the runner: the first reload without an outcome, and its name.
    pub fn asked(&self) -> Option<(Asked, String)> {
        let told = self.lock();
        let at = told.reloads.iter().position(|(_, outcome)| outcome.is_none())?;
        Some((Asked(at), told.reloads[at].0.clone()))
    }

    /// For the runner: a reload was done, or refused.
    pub fn answer(&self, asked: Asked, outcome: Result<(), String>) {
        self.lock().reloads[asked.0].1 = Some(outcome);
    }

    fn outcome(&self, asked: Asked) -> Option<Result<(), String>> {
        self.lock().reloads[asked.0].1.clone()
    }
}

/// How a connection ended, as seen by a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// In order.
    Finished,
    /// By a reset or another error.
    Reset,
}

/// What a script needs next.
#[derive(Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// These bytes are to be written, at the latest at that time, in milliseconds; see
    /// [`Play::written`]. None: until that fails.
    Write(&'a [u8], Option<u64>),
    /// More bytes, or the end.
    Read,
    /// The same, but at the latest at that time, in milliseconds.
    ReadUntil(u64),
    /// Nothing until that time, in milliseconds.
    Until(u64),
    /// A word on the board.
    Board,
    /// Half-close, once; see [`Play::advance`].
    Finish,
    /// The script has ended: close, abort, or leave the connection as it is.
    Close,
    /// Abort.
    Reset,
    /// Nothing more.
    Over,
    /// An expectation failed.
    Failed(String),
}

/// A script and how far it is.
#[derive(Debug)]
pub struct Play {
    steps: Arc<[Step]>,
    /// `at <= steps.len()`.
    at: usize,
    names: Names,
    board: Board,
    /// Connections may be cut and the proxy may answer for a broken origin: see [`Play::given_up`].
    hostile: bool,
    given_up: bool,
    /// Came and was not taken by a step.
    inbox: Vec<u8>,
    end: Option<End>,
    /// What the step at `at` sends or expects; made when it begins.
    bytes: Option<Vec<u8>>,
    /// Of `bytes`, what was written.
    written: usize,
    broken: bool,
    /// When the step at `at` ends, if it waits for time.
    until: Option<u64>,
    /// The reload that the step at `at` waits for.
    asked: Option<Asked>,
}

impl Play {
    /// The beginning of a script.
    pub fn new(script: &Script, names: &Names, board: &Board, hostile: bool) -> Self {
        Self {
            steps: script.steps.clone().into(),
            at: 0,
            names: names.clone(),
            board: board.clone(),
            hostile,
            given_up: false,
            inbox: Vec::new(),
            end: None,
            bytes: None,
            written: 0,
            broken: false,
            until: None,
            asked: None,
        }
    }

    /// Bytes came.
    pub fn received(&mut self, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
    }

    /// The connection ended for reading.
    pub fn ended(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    /// Whether [`Play::ended`] was said.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// So many bytes of [`Need::Write`] were taken.
    pub fn written(&mut self, count: usize) {
        self.written += count;
    }

    /// Nothing can be written any more.
    pub fn broken(&mut self) {
        self.broken = true;
    }

    /// Ends the present step; for [`Need::Finish`].
    pub fn advance(&mut self) {
        self.at += 1;
        (self.bytes, self.written, self.until, self.asked) = (None, 0, None, None);
    }

    /// Whether every step was done, or given up in a hostile world.
    pub fn is_over(&self) -> bool {
        self.at == self.steps.len()
    }

    /// Whether it ended early because the world is hostile: by a cut or an answer of the proxy's
    /// own, after only right bytes.
    pub fn given_up(&self) -> bool {
        self.given_up
    }

    /// Whether the world may cut connections.
    pub fn is_hostile(&self) -> bool {
        self.hostile
    }

    /// The line of the step at which it is, or of the last one.
    pub fn line(&self) -> usize {
        self.steps.get(self.at).or(self.steps.last()).map_or(0, |step| step.line)
    }

    /// What came and was not taken.
    pub fn inbox(&self) -> &[u8] {
        &self.inbox
    }

    /// Goes on as far as possible at time `now`, in milliseconds.
    pub fn need(&mut self, now: u64) -> Need<'_> {
        loop {
            let steps = Arc::clone(&self.steps);
            let Some(step) = steps.get(self.at) else {
                return if self.given_up { Need::Close } else { Need::Over };
            };
            if self.given_up && !matches!(step.action, Action::Signal(_) | Action::Reload { .. }) {
                self.advance();
                continue;
            }
            match self.try_step(&step.action, now) {
                Did::Done => self.advance(),
                Did::Wait(wait) => return self.wait(wait),
                Did::Failed(_) if self.hostile && self.excused(&step.action) => self.give_up(),
                Did::Failed(why) => return Need::Failed(format!("line {}: {why}", step.line)),
            }
        }
    }

    /// Ends the script, where the world is to blame. What is left of it for others still happens:
    /// its signals and its reloads, in their order.
    pub fn give_up(&mut self) {
        self.given_up = true;
    }

    fn wait(&self, wait: Wait) -> Need<'_> {
        match wait {
            Wait::Write => {
                let bytes = &self.bytes.as_deref().unwrap_or_default()[self.written..];
                Need::Write(bytes, self.until)
            }
            Wait::Read => Need::Read,
            Wait::ReadUntil(until) => Need::ReadUntil(until),
            Wait::Until(until) => Need::Until(until),
            Wait::Board => Need::Board,
            Wait::Finish => Need::Finish,
            Wait::Close => Need::Close,
            Wait::Reset => Need::Reset,
        }
    }

    fn try_step(&mut self, action: &Action, now: u64) -> Did {
        match action {
            Action::Send { pieces, may_fail, time } => {
                if let Some(time) = time
                    && now >= *self.until.get_or_insert(now + time)
                {
                    return Did::Done;
                }
                let bytes = self.bytes.get_or_insert_with(|| self.names.bytes(pieces));
                match (self.written == bytes.len(), self.broken) {
                    (true, _) => Did::Done,
                    (false, true) if *may_fail => Did::Done,
                    (false, true) => Did::Failed("the connection takes no more".to_owned()),
                    (false, false) => Did::Wait(Wait::Write),
                }
            }
            Action::Bytes(pieces) => self.try_bytes(pieces),
            Action::Message(expected) => self.try_message(expected),
            Action::End { allowed } => self.try_end(allowed),
            // A reader learns nothing more: only a write, if of no byte, fails from then on.
            Action::ResetAfterEnd if self.broken => Did::Done,
            Action::ResetAfterEnd => Did::Wait(Wait::Write),
            Action::Nothing(time) => {
                let until = *self.until.get_or_insert(now + time);
                match (self.inbox.is_empty() && self.end.is_none(), now >= until) {
                    (true, true) => Did::Done,
                    (true, false) => Did::Wait(Wait::ReadUntil(until)),
                    (false, _) => {
                        Did::Failed(format!("{:?} after {}", self.end, shown(&self.inbox)))
                    }
                }
            }
            Action::Finish => Did::Wait(Wait::Finish),
            Action::Close => Did::Wait(Wait::Close),
            Action::Reset => Did::Wait(Wait::Reset),
            Action::Pause(time) => {
                let until = *self.until.get_or_insert(now + time);
                if now >= until { Did::Done } else { Did::Wait(Wait::Until(until)) }
            }
            Action::Signal(name) => {
                self.board.signal(name);
                Did::Done
            }
            Action::Await(name) if self.board.has(name) => Did::Done,
            Action::Await(_) => Did::Wait(Wait::Board),
            Action::Reload { name, refused } => {
                let asked = *self.asked.get_or_insert_with(|| self.board.ask(name));
                match (self.board.outcome(asked), refused) {
                    (None, _) => Did::Wait(Wait::Board),
                    (Some(Ok(())), false) | (Some(Err(_)), true) => Did::Done,
                    (Some(Ok(())), true) => Did::Failed(format!("{name} was not refused")),
                    (Some(Err(why)), false) => Did::Failed(format!("{name} was refused: {why}")),
                }
            }
        }
    }

    fn try_bytes(&mut self, pieces: &[Piece]) -> Did {
        let bytes = self.bytes.get_or_insert_with(|| self.names.bytes(pieces));
        let came = self.inbox.len().min(bytes.len());
        if self.inbox[..came] != bytes[..came] {
            return Did::Failed(format!("{} for {}", shown(&self.inbox), shown(bytes)));
        }
        match (came < bytes.len(), self.end) {
            (true, None) => return Did::Wait(Wait::Read),
            (true, Some(end)) => return Did::Failed(format!("{end:?} after {came} bytes")),
            (false, _) => drop(self.inbox.drain(..came)),
        }
        Did::Done
    }

    fn try_message(&mut self, expected: &Expected) -> Did {
        if let Some(pieces) = &expected.body {
            self.bytes.get_or_insert_with(|| self.names.bytes(pieces));
        }
        if matches!(expected.extent, Extent::Truncated | Extent::FinTruncated) {
            return self.try_broken(expected);
        }
        let ended = self.end == Some(End::Finished);
        let cut = self.end == Some(End::Reset);
        match expected.judge(&self.names, self.bytes.as_deref(), &self.inbox, ended) {
            Verdict::Met(count) => {
                self.inbox.drain(..count);
                Did::Done
            }
            Verdict::More if cut => Did::Failed(format!("reset: {}", shown(&self.inbox))),
            Verdict::More => Did::Wait(Wait::Read),
            Verdict::OwnAnswer => Did::Failed(format!("own: {}", shown(&self.inbox))),
            Verdict::Failed(why) => Did::Failed(why),
        }
    }

    fn try_broken(&mut self, expected: &Expected) -> Did {
        let Some(end) = self.end else { return Did::Wait(Wait::Read) };
        let body = self.bytes.as_deref();
        let finished = end == End::Finished;
        if expected.extent == Extent::FinTruncated && !finished {
            return Did::Failed(format!("{end:?} after {}", shown(&self.inbox)));
        }
        if matches!(expected.judge(&self.names, body, &self.inbox, finished), Verdict::Met(_)) {
            return Did::Failed(format!("it is whole: {}", shown(&self.inbox)));
        }
        match expected.judge_cut(body, &self.inbox) {
            Ok(()) => {
                self.inbox.clear();
                Did::Done
            }
            Err(why) => Did::Failed(why),
        }
    }

    fn try_end(&self, allowed: &[End]) -> Did {
        match self.end {
            _ if !self.inbox.is_empty() => {
                Did::Failed(format!("more came before the end: {}", shown(&self.inbox)))
            }
            Some(end) if !allowed.contains(&end) => {
                Did::Failed(format!("{end:?} instead of {allowed:?}"))
            }
            Some(_) => Did::Done,
            None => Did::Wait(Wait::Read),
        }
    }

    /// Whether a failed step can be the world's fault: what came is right as far as it goes, or the
    /// proxy said in its own words that an origin failed.
    fn excused(&self, action: &Action) -> bool {
        match action {
            Action::Send { .. } => true,
            Action::Bytes(_) => {
                let bytes = self.bytes.as_deref().unwrap_or_default();
                self.end.is_some() && bytes.starts_with(&self.inbox)
            }
            Action::Message(expected) => {
                let body = self.bytes.as_deref();
                let finished = self.end == Some(End::Finished);
                match expected.judge(&self.names, body, &self.inbox, finished) {
                    Verdict::OwnAnswer => true,
                    _ => self.end.is_some() && expected.judge_cut(body, &self.inbox).is_ok(),
                }
            }
            Action::End { .. } | Action::ResetAfterEnd | Action::Nothing(_) => {
                self.inbox.is_empty()
            }
            _ => false,
        }
    }
}

/// Where a step stands.
enum Did {
    Done,
    Wait(Wait),
    Failed(String),
}

/// What a step waits for; [`Need`] without what it borrows.
enum Wait {
    Write,
    Read,
    ReadUntil(u64),
    Until(u64),
    Board,
    Finish,
    Close,
    Reset,
}
