//! The table of the comparison, and its result.

use std::fmt::Write;

use super::{ComparedPolicy, Misses, PolicyRole, head, play};
use crate::trace::Trace;

/// By how much millrace's miss ratio may exceed that of the best peer.
pub const MISS_RATIO_MARGIN: f64 = 0.02;
/// Sizes of the cache, in percent of a trace's footprint.
pub const SHARES: [u64; 3] = [1, 10, 30];

/// The results for one trace and one size of the cache.
#[derive(Clone, Debug)]
pub struct ComparisonRow {
    /// The trace's name.
    pub trace: &'static str,
    /// The size of the cache in percent of the trace's footprint.
    pub share: u64,
    /// The compared policies.
    pub policies: &'static [ComparedPolicy],
    /// The misses of each policy, in their order.
    pub misses: Vec<Misses>,
}

/// Runs each of `traces` with each size and policy. Passes each row to `done` as soon as it is
/// complete.
pub fn compare(
    traces: &[Trace],
    policies: &'static [ComparedPolicy],
    mut done: impl FnMut(&ComparisonRow),
) -> Vec<ComparisonRow> {
    let mut rows = Vec::new();
    for trace in traces {
        let footprint = trace.footprint();
        let mean = trace.sizes.iter().sum::<u64>() / trace.sizes.len() as u64;
        for share in SHARES {
            let capacity = footprint * share / 100;
            let misses = policies
                .iter()
                .map(|policy| play(trace, &mut *(policy.make)(capacity, mean), capacity))
                .collect();
            let row = ComparisonRow { trace: trace.name, share, policies, misses };
            done(&row);
            rows.push(row);
        }
    }
    rows
}

impl ComparisonRow {
    /// Returns the head of the table.
    pub fn head(policies: &[ComparedPolicy]) -> String {
        head(policies.iter().map(|policy| policy.name))
    }

    /// Returns the row of the table: misses of objects, then of bytes.
    pub fn line(&self) -> String {
        let mut line = format!("| {} | {} % |", self.trace, self.share);
        for misses in &self.misses {
            let _ = write!(line, " {:.3} / {:.3} |", misses.objects, misses.bytes);
        }
        line
    }

    /// Returns where a judged policy exceeds the best peer by more than `margin`.
    pub fn breaches(&self, margin: f64) -> Vec<String> {
        let mut breaches = self.above("requests", margin, |misses| misses.objects);
        breaches.extend(self.above("bytes", margin, |misses| misses.bytes));
        breaches
    }

    fn above(&self, what: &str, margin: f64, of: impl Fn(&Misses) -> f64) -> Vec<String> {
        let with = |role| {
            self.policies
                .iter()
                .zip(self.misses.iter().map(&of))
                .filter(move |(policy, _)| policy.role == role)
        };
        let best = with(PolicyRole::Peer).map(|(_, missed)| missed).fold(1.0, f64::min);
        with(PolicyRole::Judged)
            .filter(|(_, missed)| *missed > best + margin)
            .map(|(policy, missed)| {
                format!(
                    "{} at {} %: {} misses {missed:.3} of the {what}, the best peer {best:.3}",
                    self.trace, self.share, policy.name
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::POLICIES;
    use super::*;
    use crate::trace;

    /// The margin of the small traces. It is wider than [`MISS_RATIO_MARGIN`], because chance has a
    /// larger effect with few objects.
    const SMALL_MARGIN: f64 = 0.05;

    /// If one object has more than this share of all requested bytes, the missed bytes depend
    /// mostly on whether that object was kept.
    const HEAVY: f64 = 0.2;

    /// Returns the largest share of one object in all requested bytes.
    fn heaviest(trace: &Trace) -> f64 {
        let mut requested = vec![0; trace.sizes.len()];
        for &object in &trace.requests {
            requested[object as usize] += trace.sizes[object as usize];
        }
        let most = requested.iter().max().copied().unwrap_or(0);
        most as f64 / requested.iter().sum::<u64>().max(1) as f64
    }

    #[test]
    fn no_peer_is_much_better_on_small_traces() {
        let traces = trace::all(4_000);
        let heavy = traces.iter().filter(|trace| heaviest(trace) > HEAVY);
        let heavy: Vec<&str> = heavy.map(|trace| trace.name).collect();
        assert_eq!(heavy, ["drift and crowds"]);
        let mut above = Vec::new();
        for row in compare(&traces, POLICIES, |_| ()) {
            above.extend(row.above("requests", SMALL_MARGIN, |missed| missed.objects));
            if !heavy.contains(&row.trace) {
                above.extend(row.above("bytes", SMALL_MARGIN, |missed| missed.bytes));
            }
        }
        assert!(above.is_empty(), "{above:#?}");
    }
}
