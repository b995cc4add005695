//! Counts the events of a run.

use std::time::Duration;

use crate::load::report::{LoadReport, TimeSummary};
use crate::load::response::ReceivedResponse;

/// The figures of a run so far. Times are since its start.
pub(super) struct Recorder {
    pub(super) report: LoadReport,
    latencies: Vec<u32>,
    lateness: Vec<u32>,
    /// Requests under way.
    outstanding: u64,
    /// The sum of `outstanding` over time in seconds, until `summed_to`.
    request_seconds: f64,
    summed_to: Duration,
}

impl Recorder {
    pub(super) fn new(time: Duration) -> Self {
        Self {
            report: LoadReport { time, ..LoadReport::default() },
            latencies: Vec::new(),
            lateness: Vec::new(),
            outstanding: 0,
            request_seconds: 0.0,
            summed_to: Duration::ZERO,
        }
    }

    /// Returns the number of requests under way.
    pub(super) fn outstanding(&self) -> u64 {
        self.outstanding
    }

    pub(super) fn begin(&mut self, planned: Duration, now: Duration) {
        self.sum_to(now);
        self.report.planned += 1;
        self.outstanding += 1;
        self.report.outstanding_max = self.report.outstanding_max.max(self.outstanding);
        self.lateness.push(microseconds(now.saturating_sub(planned)));
    }

    pub(super) fn complete(
        &mut self,
        planned: Duration,
        response: &ReceivedResponse,
        now: Duration,
    ) {
        self.end_one(now);
        self.report.completed += 1;
        *self.report.statuses.entry(response.status).or_default() += 1;
        self.report.wrong += u64::from(response.is_wrong);
        self.report.body_bytes += response.body_bytes;
        self.latencies.push(microseconds(now.saturating_sub(planned)));
    }

    pub(super) fn fail(&mut self, is_cut: bool, kind: String, now: Duration) {
        self.end_one(now);
        self.report.cut += u64::from(is_cut);
        self.count_error(kind);
    }

    pub(super) fn count_error(&mut self, kind: String) {
        *self.report.errors.entry(kind).or_default() += 1;
    }

    /// Ends the run.
    pub(super) fn finish(mut self, now: Duration, cpu: Duration) -> LoadReport {
        self.sum_to(now);
        if self.report.failure.is_some() {
            self.report.time = self.report.time.min(now);
        }
        self.report.outstanding_mean = self.request_seconds / self.report.time.as_secs_f64();
        self.report.unfinished = self.outstanding;
        self.report.latency = TimeSummary::new(self.latencies);
        self.report.lateness = TimeSummary::new(self.lateness);
        self.report.cpu = cpu;
        self.report
    }

    fn end_one(&mut self, now: Duration) {
        self.sum_to(now);
        self.outstanding -= 1;
    }

    /// Sums up the requests under way until now, but not beyond the planned time.
    fn sum_to(&mut self, now: Duration) {
        let now = now.min(self.report.time);
        let passed = now.saturating_sub(self.summed_to);
        self.request_seconds += self.outstanding as f64 * passed.as_secs_f64();
        self.summed_to = now;
    }
}

fn microseconds(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_requests_under_way_is_one_over_time() {
        let second = Duration::from_secs(1);
        let response =
            ReceivedResponse { status: 200, body_bytes: 5, is_persistent: true, is_wrong: false };
        let mut recorder = Recorder::new(4 * second);
        recorder.begin(Duration::ZERO, Duration::ZERO);
        recorder.begin(second, 2 * second);
        recorder.complete(second, &response, 3 * second);
        recorder.fail(true, "cut".to_owned(), 9 * second);
        let report = recorder.finish(10 * second, second);
        // One for 2 s, two for 1 s, one for 1 s; the rest is beyond the planned time.
        assert!((report.outstanding_mean - 5.0 / 4.0).abs() < 1e-9);
        assert_eq!((report.planned, report.completed, report.cut), (2, 1, 1));
        assert_eq!((report.outstanding_max, report.unfinished), (2, 0));
        assert_eq!(report.latency.max, 2 * second);
        assert_eq!(report.lateness.max, second);
        assert_eq!(report.time, 4 * second);

        let mut recorder = Recorder::new(4 * second);
        recorder.report.failure = Some("no descriptors".to_owned());
        recorder.begin(Duration::ZERO, Duration::ZERO);
        let report = recorder.finish(2 * second, second);
        assert_eq!((report.time, report.unfinished), (2 * second, 1));
        assert!((report.outstanding_mean - 1.0).abs() < 1e-9);
    }
}
