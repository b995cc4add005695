//! Every scenario, against the real program and in the simulator.
//!
//! `SCENARIO=name` plays only scenarios whose name contains it. `SEEDS=n` plays n seeds of each
//! (16). `SEED=n` plays only that seed, twice, and compares the runs. A failure prints the trace of
//! the seed. `ENGINE=name` plays the real program only on that engine; without it, on each.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use millrace_sim::{Faults, World};
use millrace_tests::scenario::Scenario;
use millrace_tests::{real, simulated};

/// Returns the selected scenarios, at least one: a mistyped name must not look like a success.
fn chosen() -> impl Iterator<Item = Scenario> {
    let wanted = std::env::var("SCENARIO").unwrap_or_default();
    let mut chosen = Scenario::all();
    chosen.retain(|scenario| scenario.name.contains(&wanted));
    assert!(!chosen.is_empty(), "no scenario's name contains SCENARIO={wanted}");
    chosen.into_iter()
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// Plays scenarios on several threads. Returns the failures.
fn failures_of(
    threads: usize,
    scenarios: impl Iterator<Item = Scenario>,
    play: impl Fn(&Scenario) -> Result<(), String> + Sync,
) -> Vec<String> {
    let scenarios: Vec<Scenario> = scenarios.collect();
    let next = AtomicUsize::new(0);
    let play_some = || {
        let mut failures = Vec::new();
        while let Some(scenario) = scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
            failures.extend(play(scenario).err());
        }
        failures
    };
    std::thread::scope(|scope| {
        let players: Vec<_> = (0..threads).map(|_| scope.spawn(play_some)).collect();
        players
            .into_iter()
            .flat_map(|player| player.join().expect("a thread does not panic"))
            .collect()
    })
}

fn assert_none(failures: &[String]) {
    let count = failures.len();
    assert!(failures.is_empty(), "{count} scenarios fail\n{}", failures.join("\n\n"));
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Plays the seeds of every scenario.
fn play_seeds(faults: Faults) {
    let is_played = |scenario: &Scenario| match faults {
        Faults::Hostile => scenario.simulated && scenario.hostile,
        Faults::None | Faults::Benign => scenario.simulated,
    };
    let play = |scenario: &Scenario| play_seeds_of(scenario, faults);
    assert_none(&failures_of(cores(), chosen().filter(is_played), play));
}

/// Plays the seeds of a scenario up to the first that fails. Seed 0 and a seed that `SEED` selects
/// are played twice. The world without faults is played once, before the working worlds.
fn play_seeds_of(scenario: &Scenario, faults: Faults) -> Result<(), String> {
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(16),
    };
    for seed in seeds {
        if faults == Faults::Benign && seed == 0 {
            play(scenario, seed, Faults::None)?;
        }
        let first = play(scenario, seed, faults);
        if seed == 0 || number("SEED").is_some() {
            let second = play(scenario, seed, faults);
            if first != second {
                return Err(format!("{}: seed {seed} does not repeat exactly", scenario.name));
            }
        }
        first?;
    }
    Ok(())
}

fn play(scenario: &Scenario, seed: u64, faults: Faults) -> Result<u64, String> {
    let played = catch_unwind(AssertUnwindSafe(|| simulated::play(scenario, seed, faults)));
    played.unwrap_or_else(|_| {
        Err(format!("{} with SEED={seed} {faults:?}: a panic, see above", scenario.name))
    })
}

#[test]
fn scenarios_hold_in_working_simulated_worlds() {
    play_seeds(Faults::Benign);
}

#[test]
fn scenarios_hold_in_hostile_simulated_worlds() {
    play_seeds(Faults::Hostile);
}

/// Scenarios with wrong expectations: both runners have to report them.
#[test]
fn wrong_expectations_fail() {
    let get = r#"send "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n""#;
    let ok = r#"send "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok""#;
    let right = ("expect request GET /", ok, "expect response 200\n    body \"ok\"");
    for (at_origin, says, at_client) in [
        ("expect request GET /other", ok, right.2),
        ("expect request GET /\n    has X-Missing", ok, right.2),
        ("expect request GET /\n    absent Host", ok, right.2),
        ("expect request GET /\n    body \"x\"", ok, right.2),
        (right.0, ok, "expect response 201\n    body \"ok\""),
        (right.0, ok, "expect response 200"),
        (right.0, ok, "expect response 200\n    body \"no\""),
        (right.0, ok, "expect response 200\n    field Via: me\n    body any"),
        (right.0, ok, "expect response 200\n    framing chunked\n    body any"),
        (right.0, ok, "expect truncated response 200\n    body \"ok\""),
        (right.0, ok, "expect header of response 200"),
        (right.0, ok, "expect response 200\n    body any\n  expect bytes \"more\""),
        (right.0, ok, "expect end"),
        (right.0, ok, &format!("{}\n  expect end\n  expect reset after end", right.2)),
        (right.0, "send \"nonsense\\r\\n\\r\\n\"", right.2),
        ("expect request GET /\n  expect request GET /", ok, right.2),
    ] {
        let text = format!(
            "proxy boost --origin http://{{o1}} --limit idle_ms=1s\n\
             origin o1\n  accept\n  {at_origin}\n  {says}\nclient c1\n  {get}\n  {at_client}\n"
        );
        let scenario = Scenario::parse("wrong", &text).unwrap();
        for faults in [Faults::None, Faults::Benign] {
            assert!(simulated::play(&scenario, 1, faults).is_err(), "passed unexpectedly:\n{text}");
        }
    }
    let text = format!(
        "proxy boost --origin http://{{o1}}\norigin o1\n  accept\n  {}\n  {}\n\
         client c1\n  {get}\n  {}\n",
        right.0, right.1, right.2
    );
    let scenario = Scenario::parse("right", &text).unwrap();
    assert!(simulated::play(&scenario, 1, Faults::Benign).is_ok());
}

/// Returns the capacities among these with which `text` fails. A peer over TLS that pauses has full
/// buffers then, and at some capacities all bytes but the announced end of the stream fit.
fn failing_capacities(text: &str, capacities: std::ops::Range<usize>) -> Vec<usize> {
    let scenario = Scenario::parse("full buffers", text).expect("the scenario is valid");
    let fails = |capacity: &usize| {
        let seed = *capacity as u64;
        let world = World::new(seed, Faults::None);
        let mut plan = world.plan();
        plan.streams.send_capacity = *capacity;
        plan.streams.receive_capacity = 1024;
        world.set_plan(plan);
        simulated::play_in(&world, &scenario, seed, Faults::None).is_err()
    };
    capacities.filter(fails).collect()
}

#[test]
fn the_announced_end_of_a_body_reaches_a_client_with_full_buffers() {
    let get = r#"send "GET / HTTP/1.0\r\nHost: a.test\r\n\r\n""#;
    for (limits, pause, capacities) in [
        ("--limit linger_ms=0", "pause 20000", 1150..1250),
        ("", "pause 20000", 1150..1250),
        ("", "pause 1000\n  finish\n  pause 1000", 1150..1250),
    ] {
        let text = format!(
            "proxy boost --origin {{o1}} {limits}\n\
             origin o1 unix\n  accept\n  expect request GET /\n  \
             send \"HTTP/1.0 200 OK\\r\\n\\r\\n\" pattern 2000 1\n  close\n\
             client c1\n  {get}\n  {pause}\n  \
             expect response 200\n    framing close\n    body pattern 2000 1\n  expect end\n"
        );
        let failing = failing_capacities(&text, capacities);
        assert!(failing.is_empty(), "{failing:?}\n{text}");
    }
}

#[test]
fn a_client_without_the_end_of_its_stream_is_not_shed_first() {
    let text = r#"
proxy boost --origin http://{o1} --workers 1 --limit connections=3
origin o1
  accept
    expect request GET /
    send "HTTP/1.0 200 OK\r\n\r\n" pattern 2000 1
    close
client c1
  send "GET / HTTP/1.0\r\nHost: a.test\r\n\r\n"
  signal sent
  pause 4000
  expect response 200
    framing close
    body pattern 2000 1
  expect end
  signal served
client slow1 when sent
  send "GET / HTTP/1.1\r\nHost: a.test\r\nX-"
  await served
client slow2 when sent
  send "GET / HTTP/1.1\r\nHost: a.test\r\nX-"
  await served
client late when sent
  pause 2000
  send "GET / HTTP/1.1\r\nHost: a.test\r\nX-"
  await served
"#;
    let failing = failing_capacities(text, 1150..1250);
    assert!(failing.is_empty(), "{failing:?}");
}

/// Returns a scenario of a tunnel whose origin reads nothing for 20 s, then all bytes, then `end`.
fn slow_origin(limits: &str, end: &str) -> String {
    format!(
        r#"
proxy boost --origin http://{{o1}} {limits}
origin o1
  accept
    expect header of request GET /
    send "HTTP/1.1 101 Switching Protocols\r\nUpgrade: a\r\nConnection: Upgrade\r\n\r\n"
    finish
    pause 20000
    expect bytes pattern 2000 1
    expect {end}
client c1
  send "GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: a\r\nConnection: Upgrade\r\n\r\n"
  expect header of response 101
  expect end
  send pattern 2000 1
  finish
"#
    )
}

#[test]
fn the_announced_end_of_a_tunnel_reaches_an_origin_with_full_buffers() {
    let failing = failing_capacities(&slow_origin("", "end"), 900..1200);
    assert!(failing.is_empty(), "{failing:?}");
}

#[test]
fn an_origin_without_the_announced_end_keeps_the_bytes_of_its_tunnel() {
    let limits = "--limit tunnel_idle_ms=5000";
    let unannounced = failing_capacities(&slow_origin(limits, "end"), 970..1070);
    let incomplete = failing_capacities(&slow_origin(limits, "cut"), 970..1070);
    assert!(unannounced.iter().any(|capacity| !incomplete.contains(capacity)));
}

#[test]
fn scenarios_hold_for_the_real_program() {
    let program = real::program().unwrap_or_else(|wrong| panic!("{wrong}"));
    let mut failures = Vec::new();
    for engine in real::engines() {
        let play = |scenario: &Scenario| {
            real::play(scenario, &program, &engine)
                .map_err(|why| format!("{} on {engine}:\n{why}", scenario.name))
        };
        // Most of a real run is waiting.
        let threads = 4 * cores();
        failures.extend(failures_of(threads, chosen().filter(|scenario| scenario.real), play));
    }
    assert_none(&failures);
}
