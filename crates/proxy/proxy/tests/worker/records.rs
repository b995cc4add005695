//! The access log record of an exchange whose request arrives slowly.

use std::time::Duration;

use millrace_config::from_arguments;
use millrace_engine::{Instant, mailbox, mailbox_mesh};
use millrace_sim::{Faults, ReadResult, World, run};

use crate::{Running, SECOND, local, setup, shared_state};

/// A forward proxy with an access log, in a world of its own.
fn proxy(world: &World) -> Running {
    let words = ["forward", "--listen", "127.0.0.1:2001", "--workers", "1", "--access-log", "/log"];
    let config = from_arguments(words.into_iter().chain(["--log-format", "json"])).unwrap();
    let (_, inbox) = mailbox(4);
    let mailboxes = (inbox, mailbox_mesh(1, 4).pop().unwrap());
    let setup = setup(world, &shared_state(1), config, 0, &[(0, local(2001))], mailboxes);
    Running::new(world, 1 << 20, setup)
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
    let client = world.connect(&local(2001), None);
    let go_on = |proxy: &mut Running| -> Instant {
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
