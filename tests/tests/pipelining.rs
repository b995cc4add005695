//! Pipelining to origins that do something wrong at random: see `millrace_tests::pipelined`.
//! `REQUESTS` is the number of requests (20,000), `FIRST` the first seed.
#![forbid(unsafe_code)]

use std::env;

use millrace_tests::pipelined::{Tally, play};
use millrace_tests::real;

/// Requests of a round, which has one process and its origins.
const ROUND: u32 = 5000;

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

#[test]
fn each_client_gets_its_own_response_or_an_error() {
    let requests = number("REQUESTS").unwrap_or(20_000);
    let first = number("FIRST").unwrap_or(0);
    let program = real::program().unwrap_or_else(|wrong| panic!("{wrong}"));
    let mut all = Tally::default();
    let engines = real::engines();
    let rounds = requests.div_ceil(u64::from(ROUND)) as usize;
    for (seed, engine) in (first..).zip(engines.iter().cycle()).take(rounds) {
        match play(&program, engine, seed, ROUND) {
            Ok(tally) => all += tally,
            Err(why) => panic!("{why}"),
        }
    }
    println!("{all:?}");
    assert!(all.right > 9 * (all.errors + all.cut), "most requests succeed: {all:?}");
    assert!(all.pipelined * 20 > all.right, "connections were shared: {all:?}");
}
