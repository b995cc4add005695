//! `eviction [OBJECTS [TRACE | shards | pieces]]`: the comparison of eviction policies.
//!
//! Prints a table of the miss ratios of millrace and of other policies (docs/design/cache.md), for
//! all traces or for TRACE. The status is 1 if a miss ratio of millrace exceeds that of the best
//! peer by more than the margin. With `shards`, prints the additional misses when the cache is
//! divided into shards; with `pieces`, the misses of the pieces of files that iolited caches.

use std::process::ExitCode;

use millrace_lab::eviction::{
    ComparisonRow, MISS_RATIO_MARGIN, PIECE_POLICIES, POLICIES, ShardingRow, compare,
    compare_shards,
};
use millrace_lab::trace::{self, Trace};

/// The scale of the published table.
const OBJECTS: u32 = 100_000;

/// Runs the command with its arguments.
pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let objects = match arguments.next().map(|text| text.parse()) {
        None => OBJECTS,
        Some(Ok(objects)) if (1_000..=1_000_000).contains(&objects) => objects,
        Some(_) => {
            eprintln!("millrace-lab: the number of objects is 1000 to 1000000");
            return ExitCode::from(2);
        }
    };
    let mut traces = trace::all(objects);
    match arguments.next() {
        Some(word) if word == "shards" => return print_sharding(&traces),
        Some(word) if word == "pieces" => return print_pieces(&traces),
        Some(name) => {
            let names: Vec<&str> = traces.iter().map(|trace| trace.name).collect();
            if !names.contains(&name.as_str()) {
                eprintln!("millrace-lab: no trace {name}; there are {}", names.join(", "));
                return ExitCode::from(2);
            }
            traces.retain(|trace| trace.name == name);
        }
        None => {}
    }
    print_comparison(&traces)
}

fn print_comparison(traces: &[Trace]) -> ExitCode {
    println!("{}", ComparisonRow::head(POLICIES));
    let rows = compare(traces, POLICIES, |row| println!("{}", row.line()));
    let breaches: Vec<String> =
        rows.iter().flat_map(|row| row.breaches(MISS_RATIO_MARGIN)).collect();
    println!();
    for breach in &breaches {
        println!("missed: {breach}");
    }
    if breaches.is_empty() {
        println!("in no row more than {MISS_RATIO_MARGIN} above the best peer");
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn print_pieces(traces: &[Trace]) -> ExitCode {
    println!("{}", ComparisonRow::head(PIECE_POLICIES));
    let traces: Vec<Trace> = traces.iter().map(trace::pieces).collect();
    compare(&traces, PIECE_POLICIES, |row| println!("{}", row.line()));
    ExitCode::SUCCESS
}

fn print_sharding(traces: &[Trace]) -> ExitCode {
    println!("{}", ShardingRow::head());
    compare_shards(traces, |row| println!("{}", row.line()));
    ExitCode::SUCCESS
}
