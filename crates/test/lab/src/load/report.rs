//! The results of a run.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Duration;

/// The results of a run.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LoadReport {
    /// Requests whose planned time came.
    pub planned: u64,
    /// Requests that were sent in full.
    pub sent: u64,
    /// Requests with a complete response, whatever its status.
    pub completed: u64,
    /// Complete responses with another length or other bytes than those of the object.
    pub wrong: u64,
    /// Responses that ended before their last byte.
    pub cut: u64,
    /// Requests without a complete response when the run ended.
    pub unfinished: u64,
    /// Requests without a complete response by the error that ended them, and idle connections that
    /// the server used without a request.
    pub errors: BTreeMap<String, u64>,
    /// Complete responses by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Times from planned times to the last bytes of complete responses.
    pub latency: TimeSummary,
    /// How late the generator noticed planned times. A late generator makes other figures of the
    /// run useless.
    pub lateness: TimeSummary,
    /// Requests under way, those in the queue included: the mean over the planned time.
    pub outstanding_mean: f64,
    /// The most requests under way.
    pub outstanding_max: u64,
    /// Bytes of the bodies of complete responses.
    pub body_bytes: u64,
    /// Connections that were opened, also those that failed.
    pub connections: u64,
    /// The planned time of the run, or the time until its failure.
    pub time: Duration,
    /// The CPU time of the generator.
    pub cpu: Duration,
    /// The reason why the run ended early. Its other figures are then those of an incomplete run.
    pub failure: Option<String>,
}

/// The distribution of times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimeSummary {
    /// The mean.
    pub mean: Duration,
    /// The median.
    pub p50: Duration,
    /// The time that 90 % do not exceed.
    pub p90: Duration,
    /// The time that 99 % do not exceed.
    pub p99: Duration,
    /// The longest time.
    pub max: Duration,
}

impl TimeSummary {
    /// Summarizes times in microseconds; all are 0 if there are none.
    pub(super) fn new(mut times: Vec<u32>) -> Self {
        times.sort_unstable();
        let Some(last) = times.len().checked_sub(1) else { return Self::default() };
        let sum: u64 = times.iter().map(|&time| u64::from(time)).sum();
        // The nearest rank: the least time that the part does not exceed.
        let at = |part: f64| {
            let rank = (times.len() as f64 * part).ceil() as usize;
            Duration::from_micros(times[rank.saturating_sub(1).min(last)].into())
        };
        let mean = Duration::from_micros(sum / times.len() as u64);
        Self { mean, p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }

    fn json(&self) -> String {
        let ms = milliseconds;
        let Self { mean, p50, p90, p99, max } = self;
        format!(
            "{{\"mean\":{},\"p50\":{},\"p90\":{},\"p99\":{},\"max\":{}}}",
            ms(mean),
            ms(p50),
            ms(p90),
            ms(p99),
            ms(max)
        )
    }
}

impl LoadReport {
    /// Returns whether the run is complete, and all responses with status 200 are right.
    pub fn is_valid(&self) -> bool {
        self.failure.is_none() && self.wrong == 0 && self.cut == 0
    }

    /// Returns one JSON object in one line. Times are in milliseconds, except `seconds`.
    pub fn json(&self) -> String {
        let errors = self.errors.iter().map(|(kind, count)| (kind.as_str(), *count));
        let statuses: Vec<_> = self.statuses.iter().map(|(s, n)| (s.to_string(), *n)).collect();
        let failure = self.failure.as_deref().map_or("null".to_owned(), quote);
        let mut json = String::from("{");
        for (name, count) in [
            ("planned", self.planned),
            ("sent", self.sent),
            ("completed", self.completed),
            ("wrong", self.wrong),
            ("cut", self.cut),
            ("unfinished", self.unfinished),
            ("connections", self.connections),
            ("body_bytes", self.body_bytes),
            ("outstanding_max", self.outstanding_max),
        ] {
            let _ = write!(json, "\"{name}\":{count},");
        }
        let _ = write!(
            json,
            "\"outstanding_mean\":{:.3},\"seconds\":{:.3},\"cpu_ms\":{},\"latency_ms\":{},\
             \"lateness_ms\":{},\"errors\":{},\"statuses\":{},\"failure\":{failure}}}",
            self.outstanding_mean,
            self.time.as_secs_f64(),
            milliseconds(&self.cpu),
            self.latency.json(),
            self.lateness.json(),
            counts_json(errors),
            counts_json(statuses.iter().map(|(status, count)| (status.as_str(), *count))),
        );
        json
    }
}

fn milliseconds(time: &Duration) -> String {
    format!("{:.3}", time.as_secs_f64() * 1e3)
}

fn counts_json<'a>(counts: impl Iterator<Item = (&'a str, u64)>) -> String {
    let members: Vec<_> = counts.map(|(name, count)| format!("{}:{count}", quote(name))).collect();
    format!("{{{}}}", members.join(","))
}

/// Returns a JSON string.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted + "\""
}

impl fmt::Display for TimeSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = milliseconds;
        let Self { mean, p50, p90, p99, max } = self;
        write!(f, "mean {}, p50 {}, p90 {}, ", ms(mean), ms(p50), ms(p90))?;
        write!(f, "p99 {}, max {} ms", ms(p99), ms(max))
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { planned, sent, completed, wrong, cut, unfinished, .. } = self;
        writeln!(f, "requests    {planned} planned, {sent} sent, {completed} completed")?;
        writeln!(f, "responses   {wrong} wrong, {cut} cut, {unfinished} unfinished")?;
        for (status, count) in &self.statuses {
            writeln!(f, "status      {status}: {count}")?;
        }
        for (kind, count) in &self.errors {
            writeln!(f, "error       {kind}: {count}")?;
        }
        writeln!(f, "latency     {}", self.latency)?;
        let (mean, max) = (self.outstanding_mean, self.outstanding_max);
        writeln!(f, "outstanding mean {mean:.3}, max {max}")?;
        let seconds = self.time.as_secs_f64();
        let rate = self.completed as f64 / seconds;
        writeln!(f, "transfer    {} bytes of bodies, {rate:.1} responses/s", self.body_bytes)?;
        writeln!(f, "connections {}", self.connections)?;
        writeln!(f, "generator   {:.3} s of CPU time in {seconds:.3} s", self.cpu.as_secs_f64())?;
        writeln!(f, "lateness    {}", self.lateness)?;
        match &self.failure {
            Some(failure) => writeln!(f, "FAILED      {failure}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_nearest_ranks() {
        let ms = Duration::from_millis;
        let summary = TimeSummary::new((1..=1000).rev().map(|ms| ms * 1000).collect());
        let expected = TimeSummary {
            mean: Duration::from_micros(500_500),
            p50: ms(500),
            p90: ms(900),
            p99: ms(990),
            max: ms(1000),
        };
        assert_eq!(summary, expected);
        assert_eq!(TimeSummary::new(vec![7]).p50, Duration::from_micros(7));
        assert_eq!(TimeSummary::new(Vec::new()), TimeSummary::default());
    }

    #[test]
    fn json_is_one_object() {
        let mut report = LoadReport { planned: 3, failure: Some("a\n\"".into()), ..<_>::default() };
        report.errors.insert("cut \\".into(), 2);
        report.statuses.extend([(200, 1), (503, 4)]);
        let json = report.json();
        assert!(json.starts_with("{\"planned\":3,\"sent\":0,"), "{json}");
        let end = "\"errors\":{\"cut \\\\\":2},\"statuses\":{\"200\":1,\"503\":4},\
                   \"failure\":\"a\\u000a\\\"\"}";
        assert!(json.ends_with(end), "{json}");
        assert!(!report.is_valid());
    }
}
