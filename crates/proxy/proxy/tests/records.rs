//! The access log record of an exchange whose request arrives slowly.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::Duration;

use millrace_config::from_arguments;
use millrace_dns::ResolverConfig;
use millrace_engine::{Address, Instant, mailbox, mailbox_mesh};
use millrace_proxy::{Setup, SharedState, Worker};
use millrace_sim::{Faults, ReadResult, SimDetached, SimEngine, SimWaker, SimWorker, World, run};
use millrace_splice::Thresholds;

struct Driven(Worker<SimEngine>);

impl SimWorker for Driven {
    fn run_turn(&mut self) -> bool {
        self.0.run_turn()
    }
}

const ADDRESS: &str = "127.0.0.1:2001";
const SECOND: Duration = Duration::from_secs(1);

/// A forward proxy with an access log, in a world of its own.
fn proxy(world: &World) -> Driven {
    let words = ["forward", "--listen", ADDRESS, "--workers", "1", "--access-log", "/log"];
    let config = from_arguments(words.into_iter().chain(["--log-format", "json"])).unwrap();
    let shared = SharedState::new(1, "millrace-test".to_owned(), None, None, |_| {}, None);
    let (_, inbox) = mailbox(4);
    let mail =
        mailbox_mesh::<millrace_proxy::WorkerMessage<SimDetached>, SimWaker>(1, 4).pop().unwrap();
    let setup = Setup {
        config: Arc::new(config),
        index: 0,
        listeners: vec![(0, world.listen(&Address::Tcp(ADDRESS.parse().unwrap())))],
        inbox,
        mail,
        shared,
        names: Arc::new(ResolverConfig::parse(b"", b"", &[])),
        verifier: millrace_proxy::auth::VerifierHandle::unavailable(),
        descriptors: 100,
        thresholds: Thresholds::FIXED,
    };
    Driven(Worker::new(world.engine(1 << 20), setup).unwrap())
}

/// Returns the number after a key of a record.
fn number(record: &str, key: &str) -> f64 {
    let (_, rest) = record.split_once(&format!("\"{key}\":")).unwrap();
    rest.split([',', '}']).next().unwrap().parse().unwrap()
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[test]
fn the_duration_begins_with_the_first_byte_of_the_request() {
    let world = World::new(1, Faults::None);
    let mut proxy = proxy(&world);
    let client = world.connect(&Address::Tcp(ADDRESS.parse().unwrap()), None);
    let go_on = |proxy: &mut Driven| -> Instant {
        run(&world, &mut [proxy], &mut [], SECOND, &mut |_| false);
        world.now()
    };
    let first = go_on(&mut proxy);
    world.write(client, b"G").unwrap();
    let rest = go_on(&mut proxy);
    world.write(client, b"ET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    go_on(&mut proxy);
    let ReadResult::Bytes(response) = world.read(client, 4096) else { panic!("no response") };
    assert!(response.starts_with(b"HTTP/1.1 400 "));
    let end = go_on(&mut proxy);
    let record = String::from_utf8(world.log()).unwrap();
    let duration_ms = number(&record, "duration_ms");
    assert!(rest > first, "the request arrived in one piece");
    assert!(duration_ms > 0.9 * milliseconds(rest.since(first)), "{record}");
    assert!(duration_ms < milliseconds(end.since(first)), "{record}");
    // The time of the record is that of the first byte, with millisecond precision and a coarse
    // clock.
    let begun = world.time_of_day() - end.since(first);
    let begun = begun.as_millis() % 60_000;
    let (_, time) = record.split_once("\"time\":\"").unwrap();
    let seconds: f64 = time[17..23].parse().unwrap();
    assert!((seconds * 1000.0 - begun as f64).abs() < 100.0, "{begun} {record}");
}
