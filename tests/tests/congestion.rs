//! The effects of the options `congestion` and `origin-congestion` on the engine. The tests of
//! `crates/engine/engine` and the interop tests cover the kernel's side.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;

use millrace_sim::{Faults, World};
use millrace_tests::scenario::Scenario;
use millrace_tests::simulated;

/// Returns which congestion control was set on which sockets by a proxy with these options, after
/// one request.
fn set_by(options: &str, origin: &str) -> BTreeSet<String> {
    let text = format!(
        "proxy boost --origin {{o1.url}} --workers 1 {options}\n\
         origin o1 {origin}\n  accept\n    expect request GET /\n    \
         send \"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok\"\n\
         client c1\n  send \"GET / HTTP/1.1\\r\\nHost: a.test\\r\\n\\r\\n\"\n  \
         expect response 200\n    body \"ok\"\n"
    );
    let url = if origin == "unix" { "{o1}" } else { "http://{o1}" };
    let scenario = Scenario::parse("congestion", &text.replace("{o1.url}", url)).unwrap();
    let world = World::new(1, Faults::None);
    simulated::play_in(&world, &scenario, 1, Faults::None).unwrap();
    let trace = world.trace();
    let lines = trace.lines().filter_map(|line| line.split_once(" congestion "));
    lines.map(|(_, what)| what.trim().to_owned()).collect()
}

fn expected<const N: usize>(lines: [&str; N]) -> BTreeSet<String> {
    lines.map(str::to_owned).into()
}

#[test]
fn the_default_sets_nothing() {
    assert_eq!(set_by("", "tcp"), expected([]));
    assert_eq!(set_by("--congestion system --origin-congestion system", "tcp"), expected([]));
}

#[test]
fn a_name_is_set_on_the_listener_and_on_each_origin_connection() {
    let both = "--congestion reno --origin-congestion cubic";
    assert_eq!(set_by(both, "tcp"), expected(["reno on listener", "cubic on connecting side"]));
    assert_eq!(set_by("--origin-congestion reno", "tcp"), expected(["reno on connecting side"]));
    assert_eq!(set_by("--origin-congestion reno", "unix"), expected([]));
}

/// The simulated system's default is bbr, and its peers are on loopback.
#[test]
fn auto_takes_cubic_for_peers_close_by() {
    assert_eq!(set_by("--congestion auto", "tcp"), expected(["cubic on listener"]));
    assert_eq!(set_by("--origin-congestion auto", "tcp"), expected(["cubic on connecting side"]));
    assert_eq!(set_by("--origin-congestion auto", "unix"), expected([]));
}
