//! Connections that expect bytes. If bytes arrive in quick succession, one edge reports many of
//! them at once.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use uselect::Tracker;

use crate::limits::{EXPECTED_BYTES_MAX, EXPECTED_BYTES_MIN, EXPECTED_GAP_MAX, EXPECTED_TIME_MAX};

/// The connections of an engine that expect bytes, by the number that their events carry.
///
/// A threshold is a number of bytes. The kernel reports no edge of readability until that many
/// bytes have arrived, the stream ends, the connection breaks, or the receive buffer is full.
///
/// ```text
///             fast                        threshold is reached
///  Inactive ───────────> Thresholded ───────────────────────────> Inactive, fast
///    │                        └────────── deadline passes ──────> Inactive, fast or slow
///    └──────── slow ────────────> Measuring ── an edge ─────────> Inactive, fast or slow
/// ```
///
/// A connection has a threshold only while it is `Thresholded`. Otherwise its edges are reported as
/// usual. No bytes are missed when a threshold ends: after an edge the engine receives until
/// nothing is left, and after the deadline the kernel checks the socket.
#[derive(Default)]
pub(super) struct ExpectedBytes {
    expectations: HashMap<u64, Expectation>,
    /// The deadlines of connections with a threshold, in order. Entries of connections that have no
    /// threshold any more may be among them.
    deadlines: VecDeque<(Instant, u64)>,
    /// Number of connections that are being measured or have a threshold.
    active: usize,
}

#[derive(Clone, Copy)]
struct Expectation {
    fd: i32,
    /// Whether bytes arrived quickly at the last measurement or threshold; true at first. A
    /// threshold that is not reached costs an extra wake, so it does not help a body that arrives
    /// slowly.
    is_fast: bool,
    state: ExpectationState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ExpectationState {
    /// No edge is awaited.
    Inactive,
    /// An edge has been awaited since this time, without a threshold.
    Measuring(Instant),
    /// An edge is awaited until this time, with a threshold.
    Thresholded(Instant),
}

impl ExpectedBytes {
    /// Begins to await the next edge of a connection that expects `bytes` more bytes.
    pub(super) fn begin(&mut self, tracker: &Tracker, fd: i32, data: u64, bytes: u64) {
        if bytes < 2 {
            return;
        }
        let new = Expectation { fd, is_fast: true, state: ExpectationState::Inactive };
        let expectation = self.expectations.entry(data).or_insert(new);
        if expectation.state != ExpectationState::Inactive {
            return;
        }
        let now = Instant::now();
        let threshold = bytes.min(u64::from(EXPECTED_BYTES_MAX)) as u32;
        if !expectation.is_fast {
            expectation.state = ExpectationState::Measuring(now);
        } else if tracker.expect_bytes(fd, threshold) {
            let deadline = now + EXPECTED_TIME_MAX;
            expectation.state = ExpectationState::Thresholded(deadline);
            self.deadlines.push_back((deadline, data));
        } else {
            // The connection is not tracked.
            return;
        }
        self.active += 1;
    }

    /// Returns whether an edge of any connection is awaited.
    pub(super) fn has_active(&self) -> bool {
        self.active > 0
    }

    /// Handles an edge that was found at `now`.
    pub(super) fn handle_edge(&mut self, tracker: &Tracker, data: u64, now: Instant) {
        let Some(expectation) = self.expectations.get_mut(&data) else { return };
        match std::mem::replace(&mut expectation.state, ExpectationState::Inactive) {
            ExpectationState::Inactive => return,
            ExpectationState::Measuring(since) => {
                expectation.is_fast = now.saturating_duration_since(since) < EXPECTED_GAP_MAX;
            }
            ExpectationState::Thresholded(_) => {
                tracker.expect_bytes(expectation.fd, 0);
            }
        }
        self.active -= 1;
    }

    /// Removes a connection that the engine no longer watches. The caller then ends its tracking,
    /// which also ends its threshold.
    pub(super) fn remove(&mut self, data: u64) {
        let removed = self.expectations.remove(&data);
        let is_waiting = |it: Expectation| it.state != ExpectationState::Inactive;
        self.active -= usize::from(removed.is_some_and(is_waiting));
    }

    /// Returns the time from `now` until the next threshold ends; `None` if there is none.
    pub(super) fn time_left(&mut self, now: Instant) -> Option<Duration> {
        while let Some((deadline, data)) = self.deadlines.front() {
            if self.has_threshold_until(*data, *deadline) {
                return Some(deadline.saturating_duration_since(now));
            }
            self.deadlines.pop_front();
        }
        None
    }

    /// Ends all overdue thresholds, with a system call each, so that the bytes that are there are
    /// reported. Returns whether any threshold was overdue.
    pub(super) fn end_overdue(&mut self, tracker: &Tracker, now: Instant) -> bool {
        let mut has_ended_any = false;
        while self.time_left(now) == Some(Duration::ZERO) {
            let (_, data) = self.deadlines.pop_front().expect("`time_left` found it");
            let expectation = self.expectations.get_mut(&data).expect("`time_left` checked it");
            expectation.state = ExpectationState::Inactive;
            self.active -= 1;
            tracker.expect_bytes(expectation.fd, 0);
            tracker.refresh(expectation.fd);
            let readable = tracker.state(expectation.fd).map_or(0, |state| state.readable);
            expectation.is_fast = readable >= EXPECTED_BYTES_MIN;
            has_ended_any = true;
        }
        has_ended_any
    }

    fn has_threshold_until(&self, data: u64, deadline: Instant) -> bool {
        self.expectations
            .get(&data)
            .is_some_and(|it| it.state == ExpectationState::Thresholded(deadline))
    }
}
