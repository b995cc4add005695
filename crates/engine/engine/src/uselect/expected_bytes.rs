//! Connections of which bytes are expected: where they come in quick succession, an edge waits for
//! many of them at once.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use uselect::Tracker;

use crate::limits::{EXPECTED_BYTES_MAX, EXPECTED_BYTES_MIN, EXPECTED_GAP_MAX, EXPECTED_TIME_MAX};

/// What is expected of the connections of an engine, by their numbers.
///
/// ```text
///           succession is quick            threshold is reached
///  Nothing ─────────────────────> Held ─────────────────────────> Nothing, quick
///    │                             └── time is over ──────────────> Nothing, quick or not known
///    └── not known ──> Tried ── an edge, soon or not ─────────────> Nothing, quick or not
/// ```
///
/// A threshold is there while a connection is held, and no longer: so whatever else is received
/// comes as if there were none. Both ways out are without a race: behind an edge it is received
/// until nothing is left, and when the time is over the kernel looks at the socket.
#[derive(Default)]
pub(super) struct ExpectedBytes {
    expectations: HashMap<u64, Expectation>,
    /// When those that are held are over, in that order; and others, which are held no more.
    deadlines: VecDeque<(Instant, u64)>,
    /// How many are held or tried.
    active: usize,
}

#[derive(Clone, Copy)]
struct Expectation {
    fd: i32,
    /// Whether bytes came quickly when that was last tried, as far as is known. A threshold that
    /// nothing reaches costs a wake of its own, and so is of no use to a body that drips.
    is_quick: bool,
    state: ExpectationState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ExpectationState {
    /// It is not waited for.
    Inactive,
    /// Since then, without a threshold.
    Measuring(Instant),
    /// Until then, with one.
    Thresholded(Instant),
}

impl ExpectedBytes {
    /// So many bytes are expected from now on.
    pub(super) fn begin(&mut self, tracker: &Tracker, fd: i32, data: u64, bytes: u64) {
        if bytes < 2 {
            return;
        }
        let new = Expectation { fd, is_quick: true, state: ExpectationState::Inactive };
        let expectation = self.expectations.entry(data).or_insert(new);
        if expectation.state != ExpectationState::Inactive {
            return;
        }
        let now = Instant::now();
        let threshold = bytes.min(u64::from(EXPECTED_BYTES_MAX)) as u32;
        if !expectation.is_quick {
            expectation.state = ExpectationState::Measuring(now);
        } else if tracker.expect_bytes(fd, threshold) {
            let deadline = now + EXPECTED_TIME_MAX;
            expectation.state = ExpectationState::Thresholded(deadline);
            self.deadlines.push_back((deadline, data));
        } else {
            // Nobody tracks it.
            return;
        }
        self.active += 1;
    }

    /// Whether an edge of any is waited for.
    pub(super) fn has_active(&self) -> bool {
        self.active > 0
    }

    /// There is an edge, found at `now`.
    pub(super) fn handle_edge(&mut self, tracker: &Tracker, data: u64, now: Instant) {
        let Some(expectation) = self.expectations.get_mut(&data) else { return };
        match std::mem::replace(&mut expectation.state, ExpectationState::Inactive) {
            ExpectationState::Inactive => return,
            ExpectationState::Measuring(since) => {
                expectation.is_quick = now.saturating_duration_since(since) < EXPECTED_GAP_MAX;
            }
            ExpectationState::Thresholded(_) => {
                tracker.expect_bytes(expectation.fd, 0);
            }
        }
        self.active -= 1;
    }

    /// The connection is this engine's no more. Its threshold ends with its being tracked.
    pub(super) fn remove(&mut self, data: u64) {
        let forgotten = self.expectations.remove(&data);
        let is_waiting = |it: Expectation| it.state != ExpectationState::Inactive;
        self.active -= usize::from(forgotten.is_some_and(is_waiting));
    }

    /// How long nothing is over, from `now` on; `None`: for ever.
    pub(super) fn time_left(&mut self, now: Instant) -> Option<Duration> {
        while let Some((deadline, data)) = self.deadlines.front() {
            if self.has_threshold_until(*data, *deadline) {
                return Some(deadline.saturating_duration_since(now));
            }
            self.deadlines.pop_front();
        }
        None
    }

    /// Has what is over told of whatever is there, by a system call each. True if there is any.
    pub(super) fn end_overdue(&mut self, tracker: &Tracker, now: Instant) -> bool {
        let mut is_any = false;
        while self.time_left(now) == Some(Duration::ZERO) {
            let (_, data) = self.deadlines.pop_front().expect("it was looked at");
            let expectation = self.expectations.get_mut(&data).expect("it is held");
            expectation.state = ExpectationState::Inactive;
            self.active -= 1;
            tracker.expect_bytes(expectation.fd, 0);
            tracker.refresh(expectation.fd);
            let came = tracker.state(expectation.fd).map_or(0, |state| state.readable);
            expectation.is_quick = came >= EXPECTED_BYTES_MIN;
            is_any = true;
        }
        is_any
    }

    fn has_threshold_until(&self, data: u64, deadline: Instant) -> bool {
        self.expectations
            .get(&data)
            .is_some_and(|it| it.state == ExpectationState::Thresholded(deadline))
    }
}
