//! Outlier detection: decides by the failures and responses that a worker has seen whether an
//! origin receives requests. `pick.rs` picks the origin of a request, `outcome.rs` decides what
//! counts as a failure, and `shared_health.rs` holds the state that workers share.

use std::time::Duration;

use millrace_engine::Instant;

use millrace_config::limits::Limits;

/// The ejection of an origin: it receives no ordinary requests until the time is over and a probe
/// succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ejection {
    pub(crate) since: Instant,
    pub(crate) until: Instant,
    /// Ejections without a response in between, this one included; at least 1.
    pub(crate) count: u32,
}

impl Ejection {
    /// Creates the ejection that follows `before`. Its time doubles with each ejection in a row,
    /// up to `eject_ms_max`.
    pub(crate) fn new(before: Option<Self>, now: Instant, limits: &Limits) -> Self {
        let count = before.map_or(0, |before| before.count).saturating_add(1);
        let doubled = limits.eject_ms.saturating_mul(1 << (count - 1).min(31));
        let time_ms = doubled.min(limits.eject_ms_max.max(limits.eject_ms));
        Self { since: now, until: now + Duration::from_millis(time_ms), count }
    }
}

/// The health of an origin, as one worker sees it.
///
/// ```text
///         `eject_failures` in a row         the time is over; a request probes the origin
///  Healthy ──────────────────────> Ejected ──────────────────────────────────> Probing
///   ^                              │   ^ ^                                     │ │ │
///   │ a response to a request      │   │ └── the probe failed: twice the time ─┘ │ │
///   │ of `LastResort` <────────────┘   └── the probe ended without a result ─────┘ │
///   └───────────────────────────────────── the probe got a response <──────────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum HealthState {
    #[default]
    Healthy,
    Ejected(Ejection),
    /// One request is in progress as a probe.
    Probing(Ejection),
}

/// Why an origin was picked for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum PickReason {
    /// The origin was healthy, or the outcome of the request was recorded already.
    #[default]
    Normal,
    /// The request tests whether the ejected origin has recovered.
    Probe,
    /// The origin was not healthy, but neither was any other origin of the route.
    LastResort,
}

/// A change of health by a failure or a response. It is published to all workers at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HealthChange {
    Ejected(Ejection),
    Readmitted,
}

/// The failures and responses of a worker that are not published yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PendingReport {
    /// Whether a response ended the failures that were known before.
    pub(crate) responded: bool,
    /// Failures since that response, or since the last report.
    pub(crate) failures: u32,
}

/// The health of one origin with the failures that one worker knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Health {
    state: HealthState,
    /// Failures in a row, the published ones of other workers included; 0 unless healthy.
    failures: u32,
    pending: PendingReport,
}

impl Health {
    pub(crate) fn is_healthy(&self) -> bool {
        self.state == HealthState::Healthy
    }

    /// Returns whether a response would change nothing.
    pub(crate) fn is_pristine(&self) -> bool {
        self.failures == 0 && self.state == HealthState::Healthy
    }

    /// Returns the report of what is not published yet, and resets it.
    pub(crate) fn take_pending(&mut self) -> PendingReport {
        std::mem::take(&mut self.pending)
    }

    /// Records a failure that the origin caused. `reason` is why the origin was picked.
    pub(crate) fn record_failure(
        &mut self,
        reason: PickReason,
        now: Instant,
        limits: &Limits,
    ) -> Option<HealthChange> {
        let before = match (self.state, reason) {
            (HealthState::Healthy, _) if limits.eject_failures == 0 => return None,
            // A reload has turned ejection off since this origin was ejected.
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
            // The request was sent before the ejection, or as a last resort: nothing changes.
            (HealthState::Ejected(_) | HealthState::Probing(_), _) => return None,
        };
        let ejection = Ejection::new(before, now, limits);
        *self = Self { state: HealthState::Ejected(ejection), ..Self::default() };
        Some(HealthChange::Ejected(ejection))
    }

    /// Records a response. `reason` is why the origin was picked for the request.
    pub(crate) fn record_response(&mut self, reason: PickReason) -> Option<HealthChange> {
        match (self.state, reason) {
            (HealthState::Healthy, _) => {
                if self.failures > 0 {
                    self.failures = 0;
                    self.pending = PendingReport { responded: true, failures: 0 };
                }
                None
            }
            // The request was sent before the ejection, and others of that time have failed since.
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

    /// Returns whether a request may probe the origin: the ejection time is over, and no other
    /// probe is in progress. A request that may not be sent again if it fails has to wait for
    /// twice the time, so that a repeatable request probes first.
    pub(crate) fn may_probe(&self, now: Instant, is_repeatable: bool) -> bool {
        let HealthState::Ejected(ejection) = self.state else { return false };
        let extra =
            if is_repeatable { Duration::ZERO } else { ejection.until.since(ejection.since) };
        now >= ejection.until + extra
    }

    /// Begins a probe.
    ///
    /// # Panics
    /// If the origin is not ejected.
    pub(crate) fn begin_probe(&mut self) {
        let HealthState::Ejected(ejection) = self.state else {
            unreachable!("only an ejected origin is probed");
        };
        self.state = HealthState::Probing(ejection);
    }

    /// Ends a probe that had no result, so that another request may probe.
    pub(crate) fn end_probe(&mut self) {
        if let HealthState::Probing(ejection) = self.state {
            self.state = HealthState::Ejected(ejection);
        }
    }

    /// Applies the published state of all workers. A probe of this worker continues, unless another
    /// worker has readmitted the origin.
    pub(crate) fn apply_published(&mut self, failures: u32, ejection: Option<Ejection>) {
        let state = match (ejection, self.state) {
            (None, _) => HealthState::Healthy,
            (Some(_), HealthState::Probing(own)) => HealthState::Probing(own),
            (Some(theirs), HealthState::Ejected(own)) if own.until > theirs.until => {
                HealthState::Ejected(own)
            }
            (Some(theirs), _) => HealthState::Ejected(theirs),
        };
        // The failures that are not published yet are added.
        let (pending, failures) = match state {
            HealthState::Healthy if self.pending.responded => (self.pending, self.pending.failures),
            HealthState::Healthy => (self.pending, failures.saturating_add(self.pending.failures)),
            _ => (PendingReport::default(), 0),
        };
        *self = Self { state, failures, pending };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    static LIMITS: LazyLock<Limits> = LazyLock::new(|| Limits {
        eject_failures: 3,
        eject_ms: 10_000,
        eject_ms_max: 30_000,
        ..Limits::default()
    });

    fn at(seconds: u64) -> Instant {
        Instant::default() + Duration::from_secs(seconds)
    }

    /// Returns the health of an origin that was ejected at `seconds`.
    fn ejected(seconds: u64) -> Health {
        let mut health = Health::default();
        for _ in 0..2 {
            assert_eq!(health.record_failure(PickReason::Normal, at(seconds), &LIMITS), None);
        }
        let change = health.record_failure(PickReason::Normal, at(seconds), &LIMITS);
        assert!(matches!(change, Some(HealthChange::Ejected(Ejection { count: 1, .. }))));
        health
    }

    #[test]
    fn only_failures_in_a_row_eject() {
        let mut health = Health::default();
        for _ in 0..10 {
            assert_eq!(health.record_failure(PickReason::Normal, at(1), &LIMITS), None);
            assert_eq!(health.record_failure(PickReason::Normal, at(1), &LIMITS), None);
            assert_eq!(health.record_response(PickReason::Normal), None);
            assert!(health.is_pristine());
        }
        assert!(!ejected(1).is_healthy());
    }

    #[test]
    fn a_limit_of_zero_ejects_nothing() {
        let mut health = Health::default();
        for _ in 0..1000 {
            let never = Limits { eject_failures: 0, ..LIMITS.clone() };
            assert_eq!(health.record_failure(PickReason::Normal, at(1), &never), None);
        }
        assert!(health.is_pristine());
        // Other workers readmitted the origin during a probe, and a reload set the limit to 0.
        let mut health = ejected(0);
        health.begin_probe();
        health.apply_published(0, None);
        let never = Limits { eject_failures: 0, ..LIMITS.clone() };
        assert_eq!(health.record_failure(PickReason::Probe, at(10), &never), None);
        // The same without the other workers.
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
            // Failures of requests from before the ejection, or of a last resort, change nothing.
            assert_eq!(health.record_failure(PickReason::Normal, at(now), &LIMITS), None);
            assert_eq!(health.record_failure(PickReason::LastResort, at(now), &LIMITS), None);
            assert!(health.record_failure(PickReason::Probe, at(now), &LIMITS).is_some());
            assert!(!health.may_probe(at(now + time - 1), true));
            now += time;
        }
        health.begin_probe();
        assert_eq!(health.record_response(PickReason::Probe), Some(HealthChange::Readmitted));
        assert_eq!(health, Health::default());
    }

    #[test]
    fn a_probe_without_a_result_lets_another_request_probe() {
        let mut health = ejected(0);
        health.begin_probe();
        health.end_probe();
        assert!(health.may_probe(at(10), true));
    }

    #[test]
    fn requests_that_cannot_be_repeated_leave_probing_to_others_first() {
        let health = ejected(0);
        assert!(!health.may_probe(at(19), false));
        assert!(health.may_probe(at(20), false));
    }

    #[test]
    fn only_a_response_to_a_request_from_after_the_ejection_readmits() {
        let mut health = ejected(0);
        assert_eq!(health.record_response(PickReason::Normal), None);
        assert!(!health.is_healthy());
        assert_eq!(health.record_response(PickReason::LastResort), Some(HealthChange::Readmitted));
    }

    #[test]
    fn published_failures_and_ejections_are_applied() {
        let theirs = Ejection { since: at(5), until: at(15), count: 1 };
        let mut health = Health::default();
        health.apply_published(2, None);
        let change = health.record_failure(PickReason::Normal, at(6), &LIMITS);
        assert!(
            matches!(change, Some(HealthChange::Ejected(_))),
            "two published failures and one of this worker"
        );
        health.apply_published(0, Some(theirs));
        assert!(!health.may_probe(at(15), true), "the ejection of this worker ends later");
        health.apply_published(0, None);
        assert!(health.is_pristine());
        health.apply_published(0, Some(theirs));
        assert!(health.may_probe(at(15), true));
        health.begin_probe();
        health.apply_published(0, Some(Ejection { until: at(99), ..theirs }));
        assert_eq!(health.record_response(PickReason::Probe), Some(HealthChange::Readmitted));
    }
}
