//! One script on one connection. [`Play`] does no I/O: it returns the next [`Need`] of the script,
//! and the runner passes the received bytes to it. So both runners play scripts in the same way.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use super::check::{MatchResult, excerpt};
use super::{
    Action, Expected, FileChange, MessagePart, Piece, Placeholders, Script, Step, Tolerance,
};

/// Signals between scripts, and their tasks for the runner.
#[derive(Clone, Default, Debug)]
pub struct ScriptSignals(Arc<Mutex<SignalState>>);

#[derive(Default, Debug)]
struct SignalState {
    signals: BTreeSet<String>,
    /// The tasks in the order of their requests, each with its outcome once it is known.
    tasks: Vec<(RunnerTask, Option<Result<(), String>>)>,
}

/// A task for the runner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RunnerTask {
    /// Make the proxy apply the configuration of this name.
    Reload(String),
    /// Change a file.
    Write(FileChange),
}

/// The number of a task that a script requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskNumber(usize);

impl ScriptSignals {
    fn lock(&self) -> MutexGuard<'_, SignalState> {
        self.0.lock().expect("no thread panics with the lock")
    }

    /// Sets a signal for all scripts.
    pub fn signal(&self, name: &str) {
        self.lock().signals.insert(name.to_owned());
    }

    /// Returns the number of changes so far.
    pub fn count(&self) -> usize {
        let state = self.lock();
        let done = state.tasks.iter().filter(|(_, outcome)| outcome.is_some()).count();
        state.signals.len() + state.tasks.len() + done
    }

    /// Returns whether the signal is set.
    pub fn is_set(&self, name: &str) -> bool {
        self.lock().signals.contains(name)
    }

    /// Requests a task from the runner.
    pub fn request_task(&self, task: RunnerTask) -> TaskNumber {
        let mut state = self.lock();
        state.tasks.push((task, None));
        TaskNumber(state.tasks.len() - 1)
    }

    /// Returns the first task without an outcome. For the runner.
    pub fn pending_task(&self) -> Option<(TaskNumber, RunnerTask)> {
        let state = self.lock();
        let number = state.tasks.iter().position(|(_, outcome)| outcome.is_none())?;
        Some((TaskNumber(number), state.tasks[number].0.clone()))
    }

    /// Records the outcome of a task. For the runner.
    pub fn finish_task(&self, task: TaskNumber, outcome: Result<(), String>) {
        self.lock().tasks[task.0].1 = Some(outcome);
    }

    fn outcome(&self, task: TaskNumber) -> Option<Result<(), String>> {
        self.lock().tasks[task.0].1.clone()
    }
}

/// The end of a connection, as seen by a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// An orderly end.
    Finished,
    /// A reset or another error.
    Reset,
}

/// The next need of a script.
#[derive(Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// Write these bytes, possibly none, and report progress by [`Play::written`]. The second value
    /// is the time in milliseconds at which the step ends even if bytes are left; `None`: never.
    Write(&'a [u8], Option<u64>),
    /// More bytes, or the end.
    Read,
    /// More bytes or the end; call again at that time in milliseconds at the latest.
    ReadUntil(u64),
    /// Call again at that time in milliseconds.
    Until(u64),
    /// A change of the signals.
    Signal,
    /// Half-close, once; see [`Play::advance`].
    Finish,
    /// Close the connection; the script has ended.
    Close,
    /// Reset.
    Reset,
    /// The script has ended; the connection stays open.
    Over,
    /// An expectation failed.
    Failed(String),
}

/// A script and its progress.
#[derive(Debug)]
pub struct Play {
    steps: Arc<[Step]>,
    /// The index of the current step; `steps.len()` after the last one.
    step_index: usize,
    names: Placeholders,
    signals: ScriptSignals,
    /// The deviations that faults of the world may cause: see [`Play::given_up`].
    tolerance: Tolerance,
    given_up: bool,
    /// Received bytes that no step has used.
    inbox: Vec<u8>,
    end: Option<End>,
    /// The bytes that the step at `step_index` sends or expects, computed when it begins.
    bytes: Option<Vec<u8>>,
    /// Number of bytes of `bytes` that have been written.
    written: usize,
    broken: bool,
    /// When the step at `step_index` ends, if it waits for a time.
    until: Option<u64>,
    /// The task that the step at `step_index` waits for.
    task: Option<TaskNumber>,
}

impl Play {
    /// Creates a play at the first step of `script`.
    pub fn new(
        script: &Script,
        names: &Placeholders,
        signals: &ScriptSignals,
        tolerance: Tolerance,
    ) -> Self {
        Self {
            steps: script.steps.clone().into(),
            step_index: 0,
            names: names.clone(),
            signals: signals.clone(),
            tolerance,
            given_up: false,
            inbox: Vec::new(),
            end: None,
            bytes: None,
            written: 0,
            broken: false,
            until: None,
            task: None,
        }
    }

    /// Adds received bytes.
    pub fn received(&mut self, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
    }

    /// Records the end of the connection for reading.
    pub fn ended(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    /// Returns whether [`Play::ended`] was called.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Records that `count` bytes of [`Need::Write`] were accepted.
    pub fn written(&mut self, count: usize) {
        self.written += count;
    }

    /// Records that writing is no longer possible.
    pub fn broken(&mut self) {
        self.broken = true;
    }

    /// Ends the current step. For [`Need::Finish`].
    pub fn advance(&mut self) {
        self.step_index += 1;
        (self.bytes, self.written, self.until, self.task) = (None, 0, None, None);
    }

    /// Returns whether every step was performed, or the script gave up in a hostile world.
    pub fn is_over(&self) -> bool {
        self.step_index == self.steps.len()
    }

    /// Returns whether the script ended early because the world is hostile: by a cut or by the
    /// proxy's own response, with only correct bytes before.
    pub fn given_up(&self) -> bool {
        self.given_up
    }

    /// Returns whether the world may cut connections.
    pub fn is_hostile(&self) -> bool {
        self.tolerance != Tolerance::Exact
    }

    /// Returns the line of the current step, or of the last one.
    pub fn line(&self) -> usize {
        self.steps.get(self.step_index).or(self.steps.last()).map_or(0, |step| step.line)
    }

    /// Returns received bytes that no step has used.
    pub fn inbox(&self) -> &[u8] {
        &self.inbox
    }

    /// Continues as far as possible at time `now` in milliseconds.
    pub fn need(&mut self, now: u64) -> Need<'_> {
        loop {
            let steps = Arc::clone(&self.steps);
            let Some(step) = steps.get(self.step_index) else {
                return if self.given_up { Need::Close } else { Need::Over };
            };
            let is_for_others = matches!(
                step.action,
                Action::Signal(_) | Action::Reload { .. } | Action::Write { .. }
            );
            if self.given_up && !is_for_others {
                self.advance();
                continue;
            }
            match self.try_step(&step.action, now) {
                StepResult::Done => self.advance(),
                StepResult::Wait(wait) => return self.wait(wait),
                StepResult::Failed(_) if self.is_hostile() && self.may_be_missing(&step.action) => {
                    self.give_up()
                }
                StepResult::Failed(why) => {
                    return Need::Failed(format!("line {}: {why}", step.line));
                }
            }
        }
    }

    /// Ends the script because of a fault of the world. Its remaining signals and tasks still
    /// happen, in order, because other scripts depend on them.
    pub fn give_up(&mut self) {
        self.given_up = true;
    }

    fn wait(&self, wait: StepWait) -> Need<'_> {
        match wait {
            StepWait::Write => {
                let bytes = &self.bytes.as_deref().unwrap_or_default()[self.written..];
                Need::Write(bytes, self.until)
            }
            StepWait::Read => Need::Read,
            StepWait::ReadUntil(until) => Need::ReadUntil(until),
            StepWait::Until(until) => Need::Until(until),
            StepWait::Signal => Need::Signal,
            StepWait::Finish => Need::Finish,
            StepWait::Close => Need::Close,
            StepWait::Reset => Need::Reset,
        }
    }

    fn try_step(&mut self, action: &Action, now: u64) -> StepResult {
        match action {
            Action::Send { pieces, may_fail, time } => {
                if let Some(time) = time
                    && now >= *self.until.get_or_insert(now + time)
                {
                    return StepResult::Done;
                }
                let bytes = self.bytes.get_or_insert_with(|| self.names.bytes(pieces));
                match (self.written == bytes.len(), self.broken) {
                    (true, _) => StepResult::Done,
                    (false, true) if *may_fail => StepResult::Done,
                    (false, true) => StepResult::Failed("writing failed".to_owned()),
                    (false, false) => StepResult::Wait(StepWait::Write),
                }
            }
            Action::Bytes(pieces) => self.try_bytes(pieces),
            Action::Message(expected) => self.try_message(expected),
            Action::End { allowed } => self.try_end(allowed),
            // After the end of the stream, reading does not show a reset. A write does, even an
            // empty one.
            Action::ResetAfterEnd if self.broken => StepResult::Done,
            Action::ResetAfterEnd => StepResult::Wait(StepWait::Write),
            Action::Nothing(time) => {
                let until = *self.until.get_or_insert(now + time);
                match (self.inbox.is_empty() && self.end.is_none(), now >= until) {
                    (true, true) => StepResult::Done,
                    (true, false) => StepResult::Wait(StepWait::ReadUntil(until)),
                    (false, _) => {
                        StepResult::Failed(format!("{:?} after {}", self.end, excerpt(&self.inbox)))
                    }
                }
            }
            Action::Finish => StepResult::Wait(StepWait::Finish),
            Action::Close => StepResult::Wait(StepWait::Close),
            Action::Reset => StepResult::Wait(StepWait::Reset),
            Action::Pause(time) => {
                let until = *self.until.get_or_insert(now + time);
                if now >= until {
                    StepResult::Done
                } else {
                    StepResult::Wait(StepWait::Until(until))
                }
            }
            Action::Signal(name) => {
                self.signals.signal(name);
                StepResult::Done
            }
            Action::Await(name) if self.signals.is_set(name) => StepResult::Done,
            Action::Await(_) => StepResult::Wait(StepWait::Signal),
            Action::Reload { name, refused } => {
                self.try_task(*refused, |_| RunnerTask::Reload(name.clone()))
            }
            Action::Write { folder, path, pieces, is_in_place } => self.try_task(false, |names| {
                RunnerTask::Write(FileChange {
                    folder: folder.clone(),
                    path: path.clone(),
                    bytes: names.bytes(pieces),
                    is_in_place: *is_in_place,
                })
            }),
        }
    }

    /// Requests the task of the current step, once, and waits for its outcome.
    fn try_task(
        &mut self,
        refused: bool,
        task: impl FnOnce(&Placeholders) -> RunnerTask,
    ) -> StepResult {
        let number = *self.task.get_or_insert_with(|| self.signals.request_task(task(&self.names)));
        match (self.signals.outcome(number), refused) {
            (None, _) => StepResult::Wait(StepWait::Signal),
            (Some(Ok(())), false) | (Some(Err(_)), true) => StepResult::Done,
            (Some(Ok(())), true) => StepResult::Failed("it was not refused".to_owned()),
            (Some(Err(why)), false) => StepResult::Failed(format!("it was refused: {why}")),
        }
    }

    fn try_bytes(&mut self, pieces: &[Piece]) -> StepResult {
        let bytes = self.bytes.get_or_insert_with(|| self.names.bytes(pieces));
        let received_length = self.inbox.len().min(bytes.len());
        if self.inbox[..received_length] != bytes[..received_length] {
            return StepResult::Failed(format!(
                "{} instead of {}",
                excerpt(&self.inbox),
                excerpt(bytes)
            ));
        }
        match (received_length < bytes.len(), self.end) {
            (true, None) => return StepResult::Wait(StepWait::Read),
            (true, Some(end)) => {
                return StepResult::Failed(format!("{end:?} after {received_length} bytes"));
            }
            (false, _) => drop(self.inbox.drain(..received_length)),
        }
        StepResult::Done
    }

    fn try_message(&mut self, expected: &Expected) -> StepResult {
        if let Some(pieces) = &expected.body {
            self.bytes.get_or_insert_with(|| self.names.bytes(pieces));
        }
        if matches!(expected.part, MessagePart::Truncated | MessagePart::FinTruncated) {
            return self.try_truncated(expected);
        }
        let ended = self.end == Some(End::Finished);
        let cut = self.end == Some(End::Reset);
        let (body, world) = (self.bytes.as_deref(), self.tolerance);
        match expected.match_bytes(&self.names, body, &self.inbox, ended, world) {
            MatchResult::Matched(count) => {
                self.inbox.drain(..count);
                StepResult::Done
            }
            MatchResult::More if cut => {
                StepResult::Failed(format!("reset: {}", excerpt(&self.inbox)))
            }
            MatchResult::More => StepResult::Wait(StepWait::Read),
            MatchResult::OwnResponse => StepResult::Failed(format!(
                "a response of the proxy's own: {}",
                excerpt(&self.inbox)
            )),
            MatchResult::Failed(why) => StepResult::Failed(why),
        }
    }

    fn try_truncated(&mut self, expected: &Expected) -> StepResult {
        let Some(end) = self.end else { return StepResult::Wait(StepWait::Read) };
        let body = self.bytes.as_deref();
        let finished = end == End::Finished;
        if expected.part == MessagePart::FinTruncated && !finished {
            return StepResult::Failed(format!("{end:?} after {}", excerpt(&self.inbox)));
        }
        if matches!(
            expected.match_bytes(&self.names, body, &self.inbox, finished, self.tolerance),
            MatchResult::Matched(_)
        ) {
            return StepResult::Failed(format!(
                "the message is complete: {}",
                excerpt(&self.inbox)
            ));
        }
        match expected.match_truncated(body, &self.inbox, self.tolerance) {
            Ok(()) => {
                self.inbox.clear();
                StepResult::Done
            }
            Err(why) => StepResult::Failed(why),
        }
    }

    fn try_end(&self, allowed: &[End]) -> StepResult {
        match self.end {
            _ if !self.inbox.is_empty() => {
                StepResult::Failed(format!("bytes before the end: {}", excerpt(&self.inbox)))
            }
            Some(end) if !allowed.contains(&end) => {
                StepResult::Failed(format!("{end:?} instead of {allowed:?}"))
            }
            Some(_) => StepResult::Done,
            None => StepResult::Wait(StepWait::Read),
        }
    }

    /// Returns whether a fault of the world may explain the failed step. It may if the received
    /// bytes are a beginning of the expected ones, or if the proxy reported a failed origin.
    fn may_be_missing(&self, action: &Action) -> bool {
        match action {
            Action::Send { .. } => true,
            Action::Bytes(_) => {
                let bytes = self.bytes.as_deref().unwrap_or_default();
                self.end.is_some() && bytes.starts_with(&self.inbox)
            }
            Action::Message(expected) => {
                let body = self.bytes.as_deref();
                let finished = self.end == Some(End::Finished);
                let (names, world) = (&self.names, self.tolerance);
                match expected.match_bytes(names, body, &self.inbox, finished, world) {
                    MatchResult::OwnResponse => true,
                    _ => {
                        self.end.is_some()
                            && expected.match_truncated(body, &self.inbox, world).is_ok()
                    }
                }
            }
            Action::End { .. } | Action::ResetAfterEnd | Action::Nothing(_) => {
                self.inbox.is_empty()
            }
            _ => false,
        }
    }
}

/// The result of trying a step.
enum StepResult {
    Done,
    Wait(StepWait),
    Failed(String),
}

/// The wait of a step: [`Need`] without its borrowed data.
enum StepWait {
    Write,
    Read,
    ReadUntil(u64),
    Until(u64),
    Signal,
    Finish,
    Close,
    Reset,
}
