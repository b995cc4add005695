//! The real program over user-level connection tracking, with a daemon of the test's own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../kernel/bpf/tests/common/daemon.rs"]
mod daemon;
mod support;

use std::io::{BufRead, BufReader};

use support::{Folder, Running, get};

/// What `--log-format json` says of a request, of what comes behind `origin_first_byte_ms`.
fn logged_path(words: &str) -> String {
    let words = format!(
        "forward --listen 127.0.0.1:0 --workers 1 --access-log - --log-format json {words}"
    );
    let mut running = Running::start(&words, 1);
    assert!(get(&running.addresses[0], "/").starts_with("HTTP/1.1 400 "));
    let mut record = String::new();
    BufReader::new(running.child.stdout.take().unwrap()).read_line(&mut record).unwrap();
    record.split_once("\"client_rtt_us\":").unwrap().1.to_owned()
}

#[test]
fn the_log_has_what_memory_knows_of_the_way_to_the_client() {
    assert_eq!(logged_path("--engine epoll"), "null,\"client_cwnd\":null}\n");
    let folder = Folder::new("uselect-log");
    let socket = folder.0.join("uselectd");
    if !daemon::serve(&socket) {
        return;
    }
    let logged = logged_path(&format!("--engine uselect --uselectd {}", socket.display()));
    let (rtt_us, window) = logged.split_once(",\"client_cwnd\":").unwrap();
    let (rtt_us, window): (u32, u32) =
        (rtt_us.parse().unwrap(), window.trim_end_matches("}\n").parse().unwrap());
    // Over loopback, of a connection that has hardly begun.
    assert!((1..1_000_000).contains(&rtt_us) && (1..1000).contains(&window), "{logged}");
}
