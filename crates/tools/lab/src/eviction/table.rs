//! The table of the comparison, and its verdict.

use std::fmt::Write;

use super::{Misses, POLICIES, Role, play};
use crate::trace::Trace;

/// How far above the best peer millrace's miss ratio may lie.
pub const BAR: f64 = 0.02;
/// Sizes of the cache, in percent of the bytes that a trace asks for.
pub const SHARES: [u64; 3] = [1, 10, 30];

/// One trace with one size of the cache.
#[derive(Clone, Debug)]
pub struct Row {
    /// The trace's name.
    pub trace: &'static str,
    /// The size of the cache in percent of the trace's footprint.
    pub share: u64,
    /// What each of [`POLICIES`] missed, in their order.
    pub misses: Vec<Misses>,
}

/// Plays each of `traces` with each size and policy.
pub fn compare(traces: &[Trace], mut done: impl FnMut(&Row)) -> Vec<Row> {
    let mut rows = Vec::new();
    for trace in traces {
        let footprint = trace.footprint();
        let mean = trace.sizes.iter().sum::<u64>() / trace.sizes.len() as u64;
        for share in SHARES {
            let capacity = footprint * share / 100;
            let misses = POLICIES
                .iter()
                .map(|policy| play(trace, &mut *(policy.make)(capacity, mean), capacity))
                .collect();
            let row = Row { trace: trace.name, share, misses };
            done(&row);
            rows.push(row);
        }
    }
    rows
}

impl Row {
    /// The head of the table.
    pub fn head() -> String {
        let mut head = String::from("| trace | cache |");
        let mut rule = String::from("| --- | ---: |");
        for policy in POLICIES {
            let _ = write!(head, " {} |", policy.name);
            rule.push_str(" ---: |");
        }
        format!("{head}\n{rule}")
    }

    /// The row of the table: misses of objects, then of bytes.
    pub fn line(&self) -> String {
        let mut line = format!("| {} | {} % |", self.trace, self.share);
        for misses in &self.misses {
            let _ = write!(line, " {:.3} / {:.3} |", misses.objects, misses.bytes);
        }
        line
    }

    /// Where a judged policy lies more than `bar` above the best peer.
    pub fn breaches(&self, bar: f64) -> Vec<String> {
        let mut said = self.above("requests", bar, |misses| misses.objects);
        said.extend(self.above("bytes", bar, |misses| misses.bytes));
        said
    }

    fn above(&self, what: &str, bar: f64, of: impl Fn(&Misses) -> f64) -> Vec<String> {
        let with = |role| {
            POLICIES
                .iter()
                .zip(self.misses.iter().map(&of))
                .filter(move |(policy, _)| policy.role == role)
        };
        let best = with(Role::Peer).map(|(_, missed)| missed).fold(1.0, f64::min);
        with(Role::Judged)
            .filter(|(_, missed)| *missed > best + bar)
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
    use super::*;
    use crate::trace;

    /// The bar is that of 100,000 objects, too many for a test. With a few thousand, single large
    /// objects decide how many bytes are missed, so requests alone are judged, with more room.
    #[test]
    fn no_peer_is_much_better_on_small_traces() {
        let rows = compare(&trace::all(4_000), |_| ());
        let above: Vec<String> = rows
            .iter()
            .flat_map(|row| row.above("requests", 0.05, |missed| missed.objects))
            .collect();
        assert!(above.is_empty(), "{above:#?}");
    }
}
