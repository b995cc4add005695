//! Outlier detection: whether an origin is used, by the failures and responses that a worker has
//! seen. This module owns the decision alone. `pick.rs` picks the origin of a request, `verdict.rs`
//! decides what counts as a failure, and `shared_health.rs` has what the workers share.

use std::time::Duration;

use millrace_engine::Instant;

use millrace_config::limits::Limits;

/// An origin is out until its time is over and a probe was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ejection {
    pub(crate) since: Instant,
    pub(crate) until: Instant,
    /// Ejections in a row, this one included; at least 1.
    pub(crate) count: u32,
}

impl Ejection {
    /// The one that follows `before`. The time doubles with each ejection that no response came
    /// between.
    pub(crate) fn new(before: Option<Self>, now: Instant, limits: &Limits) -> Self {
        let count = before.map_or(0, |before| before.count).saturating_add(1);
        let doubled = limits.eject_ms.saturating_mul(1 << (count - 1).min(31));
        let time_ms = doubled.min(limits.eject_ms_max.max(limits.eject_ms));
        Self { since: now, until: now + Duration::from_millis(time_ms), count }
    }
}

/// How an origin stands with a worker.
///
/// ```text
///       `eject_failures` in a row          its time is over, and a request is sent to probe it
///  Well ────────────────────> Ejected ──────────────────────────────> Probed
///   ^                         │   ^ ^                                 │ │ │
///   │ an answer to a request  │   │ └─── the probe failed: for twice ─┘ │ │
///   │ sent there in spite <───┘   │      as long                        │ │
///   │                             └─── the probe came to nothing ───────┘ │
///   └──────────────────────────────────── the probe was answered <────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum HealthState {
    #[default]
    Healthy,
    Ejected(Ejection),
    /// One request is under way to find out.
    Probing(Ejection),
}

/// Why a request goes to an origin that it goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum PickReason {
    /// The origin was well when it was picked; and so it is for a verdict that was passed already.
    #[default]
    Normal,
    /// To find out whether it is well again.
    Probe,
    /// It was ejected, but so were all others.
    LastResort,
}

/// What changed by a failure or a response: all workers are told at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HealthChange {
    Ejected(Ejection),
    Readmitted,
}

/// What is new about failures, to be told by and by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PendingReport {
    /// Whether there was a response. The failures are those after it.
    pub(crate) responded: bool,
    pub(crate) failures: u32,
}

/// The health of one origin, as one worker knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Health {
    state: HealthState,
    /// Failures in a row, those heard of included; 0 while it is not well.
    failures: u32,
    pending: PendingReport,
}

impl Health {
    pub(crate) fn is_healthy(&self) -> bool {
        self.state == HealthState::Healthy
    }

    /// Whether a response would change nothing.
    pub(crate) fn is_pristine(&self) -> bool {
        self.failures == 0 && self.state == HealthState::Healthy
    }

    /// What was not told yet; from now on it was.
    pub(crate) fn take_pending(&mut self) -> PendingReport {
        std::mem::take(&mut self.pending)
    }

    /// A request failed by the origin's fault.
    pub(crate) fn record_failure(
        &mut self,
        trial: PickReason,
        now: Instant,
        limits: &Limits,
    ) -> Option<HealthChange> {
        let before = match (self.state, trial) {
            (HealthState::Healthy, _) if limits.eject_failures == 0 => return None,
            // It was ejected before nothing was to be ejected any more.
            (HealthState::Probing(_), PickReason::Probe) if limits.eject_failures == 0 => {
                *self = Self::default();
                return Some(HealthChange::Readmitted);
            }
            (HealthState::Healthy, _) => {
                self.failures += 1;
                self.pending.failures += 1;
                if u64::from(self.failures) < limits.eject_failures {
                    return None;
                }
                None
            }
            (HealthState::Probing(ejection), PickReason::Probe) => Some(ejection),
            // Sent before it was ejected, or in spite of that: nothing that was not known.
            (HealthState::Ejected(_) | HealthState::Probing(_), _) => return None,
        };
        let ejection = Ejection::new(before, now, limits);
        *self = Self { state: HealthState::Ejected(ejection), ..Self::default() };
        Some(HealthChange::Ejected(ejection))
    }

    /// A request was answered.
    pub(crate) fn record_response(&mut self, trial: PickReason) -> Option<HealthChange> {
        match (self.state, trial) {
            (HealthState::Healthy, _) => {
                if self.failures > 0 {
                    self.failures = 0;
                    self.pending = PendingReport { responded: true, failures: 0 };
                }
                None
            }
            // Sent before it was ejected: others that were sent with it have failed since.
            (HealthState::Ejected(_) | HealthState::Probing(_), PickReason::Normal) => None,
            (
                HealthState::Ejected(_) | HealthState::Probing(_),
                PickReason::Probe | PickReason::LastResort,
            ) => {
                *self = Self::default();
                Some(HealthChange::Readmitted)
            }
        }
    }

    /// Whether a request may go there to find out: its time is over, and no other is on its way.
    /// One that could not be sent elsewhere after it failed is spared, until there was as much time
    /// again for others.
    pub(crate) fn may_probe(&self, now: Instant, repeatable: bool) -> bool {
        let HealthState::Ejected(ejection) = self.state else { return false };
        let spared = if repeatable { Duration::ZERO } else { ejection.until.since(ejection.since) };
        now >= ejection.until + spared
    }

    /// A request goes there to find out.
    pub(crate) fn begin_probe(&mut self) {
        let HealthState::Ejected(ejection) = self.state else {
            unreachable!("only what was ejected is probed");
        };
        self.state = HealthState::Probing(ejection);
    }

    /// The probe ended without a verdict: another one may go.
    pub(crate) fn end_probe(&mut self) {
        if let HealthState::Probing(ejection) = self.state {
            self.state = HealthState::Ejected(ejection);
        }
    }

    /// Takes over what all workers together know. A probe of our own is left to its end.
    pub(crate) fn apply_published(&mut self, failures: u32, ejection: Option<Ejection>) {
        let state = match (ejection, self.state) {
            (None, _) => HealthState::Healthy,
            (Some(_), HealthState::Probing(own)) => HealthState::Probing(own),
            (Some(theirs), HealthState::Ejected(own)) if own.until > theirs.until => {
                HealthState::Ejected(own)
            }
            (Some(theirs), _) => HealthState::Ejected(theirs),
        };
        // What was not told yet comes on top.
        let (news, failures) = match state {
            HealthState::Healthy if self.pending.responded => (self.pending, self.pending.failures),
            HealthState::Healthy => (self.pending, failures.saturating_add(self.pending.failures)),
            _ => (PendingReport::default(), 0),
        };
        *self = Self { state, failures, pending: news };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    static RULES: LazyLock<Limits> = LazyLock::new(|| Limits {
        eject_failures: 3,
        eject_ms: 10_000,
        eject_ms_max: 30_000,
        ..Limits::default()
    });

    fn at(seconds: u64) -> Instant {
        Instant::default() + Duration::from_secs(seconds)
    }

    /// One that was ejected at `seconds`.
    fn ejected(seconds: u64) -> Health {
        let mut health = Health::default();
        for _ in 0..2 {
            assert_eq!(health.record_failure(PickReason::Normal, at(seconds), &RULES), None);
        }
        let change = health.record_failure(PickReason::Normal, at(seconds), &RULES);
        assert!(matches!(change, Some(HealthChange::Ejected(Ejection { count: 1, .. }))));
        health
    }

    #[test]
    fn only_failures_in_a_row_eject() {
        let mut health = Health::default();
        for _ in 0..10 {
            assert_eq!(health.record_failure(PickReason::Normal, at(1), &RULES), None);
            assert_eq!(health.record_failure(PickReason::Normal, at(1), &RULES), None);
            assert_eq!(health.record_response(PickReason::Normal), None);
            assert!(health.is_pristine());
        }
        assert!(!ejected(1).is_healthy());
    }

    #[test]
    fn nothing_ejects_where_the_limit_is_zero() {
        let mut health = Health::default();
        for _ in 0..1000 {
            let never = Limits { eject_failures: 0, ..RULES.clone() };
            assert_eq!(health.record_failure(PickReason::Normal, at(1), &never), None);
        }
        assert!(health.is_pristine());
        // Others readmitted it while it was probed here, and a reload set the limit.
        let mut health = ejected(0);
        health.begin_probe();
        health.apply_published(0, None);
        let never = Limits { eject_failures: 0, ..RULES.clone() };
        assert_eq!(health.record_failure(PickReason::Probe, at(10), &never), None);
        // The same without the others.
        let mut health = ejected(0);
        health.begin_probe();
        let change = health.record_failure(PickReason::Probe, at(10), &never);
        assert_eq!(change, Some(HealthChange::Readmitted));
        assert_eq!(health, Health::default());
    }

    #[test]
    fn one_probe_at_a_time_decides_and_failing_ones_double_the_time_up_to_the_bound() {
        let mut health = ejected(100);
        assert!(!health.may_probe(at(109), true));
        let mut now = 110;
        for time in [20, 30, 30] {
            assert!(health.may_probe(at(now), true));
            health.begin_probe();
            assert!(!health.may_probe(at(now + 1000), true), "one at a time");
            // Requests from before the ejection, or in spite of it, decide nothing by failing.
            assert_eq!(health.record_failure(PickReason::Normal, at(now), &RULES), None);
            assert_eq!(health.record_failure(PickReason::LastResort, at(now), &RULES), None);
            assert!(health.record_failure(PickReason::Probe, at(now), &RULES).is_some());
            assert!(!health.may_probe(at(now + time - 1), true));
            now += time;
        }
        health.begin_probe();
        assert_eq!(health.record_response(PickReason::Probe), Some(HealthChange::Readmitted));
        assert_eq!(health, Health::default());
    }

    #[test]
    fn a_probe_without_a_verdict_lets_another_go() {
        let mut health = ejected(0);
        health.begin_probe();
        health.end_probe();
        assert!(health.may_probe(at(10), true));
    }

    #[test]
    fn requests_that_cannot_be_repeated_probe_only_what_nobody_else_does() {
        let health = ejected(0);
        assert!(!health.may_probe(at(19), false));
        assert!(health.may_probe(at(20), false));
    }

    #[test]
    fn an_answer_readmits_only_what_was_asked_after_its_ejection() {
        let mut health = ejected(0);
        assert_eq!(health.record_response(PickReason::Normal), None);
        assert!(!health.is_healthy());
        assert_eq!(health.record_response(PickReason::LastResort), Some(HealthChange::Readmitted));
    }

    #[test]
    fn what_others_know_is_taken_over() {
        let theirs = Ejection { since: at(5), until: at(15), count: 1 };
        let mut health = Health::default();
        health.apply_published(2, None);
        let change = health.record_failure(PickReason::Normal, at(6), &RULES);
        assert!(matches!(change, Some(HealthChange::Ejected(_))), "two of theirs and one of ours");
        health.apply_published(0, Some(theirs));
        assert!(!health.may_probe(at(15), true), "ours ends later");
        health.apply_published(0, None);
        assert!(health.is_pristine());
        health.apply_published(0, Some(theirs));
        assert!(health.may_probe(at(15), true));
        health.begin_probe();
        health.apply_published(0, Some(Ejection { until: at(99), ..theirs }));
        assert_eq!(health.record_response(PickReason::Probe), Some(HealthChange::Readmitted));
    }
}
