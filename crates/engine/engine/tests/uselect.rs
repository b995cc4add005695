//! The contract of an engine, kept by [`millrace_engine::UselectEngine`].

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod conformance;
#[path = "../../../uselect/uselectd/tests/common/daemon.rs"]
mod daemon;

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use conformance::common::{engine, pair, poll_all, received, token};
use millrace_engine::{CompletionEvent, Engine, Error, Fd};

type Tested = millrace_engine::UselectEngine;

/// Registers this process with a daemon of its own. The daemon ends when this process ends.
fn prepare() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let path = std::env::temp_dir().join(format!("uselect-engine-{}", std::process::id()));
        if daemon::start_daemon(&path) {
            millrace_engine::register_process(&path, Duration::ZERO).unwrap();
            std::fs::remove_file(&path).unwrap();
        }
    });
}

/// More bytes than any test sends.
const BODY: u64 = 1 << 20;
/// Shorter than the 5 ms for which an edge may be delayed for expected bytes. A wait that took less
/// than this was not ended by that deadline.
const SHORT: Duration = Duration::from_millis(4);

/// Repeats an attempt until it takes no longer than [`SHORT`]. The attempt returns its duration.
fn repeat_until_short(mut attempt: impl FnMut() -> Duration) {
    let is_short = (0..1000).any(|_| attempt() < SHORT);
    assert!(is_short, "every attempt waited for the deadline");
}

/// Creates a connection and reads it until it is empty, so that only an edge announces more bytes.
fn drained_pair(engine: &mut Tested) -> (Fd, TcpStream) {
    let (fd, mut peer) = pair(engine);
    engine.recv(&fd, 1000, token(1));
    // A descriptor that is added is reported once, with its readiness.
    assert!(poll_all(engine).is_empty());
    peer.write_all(b"a").unwrap();
    assert_eq!(received(engine).1.unwrap(), b"a");
    (fd, peer)
}

fn receive_expected(engine: &mut Tested, fd: &Fd, bytes: u64) {
    engine.expect_bytes(fd, bytes);
    engine.recv(fd, 1000, token(1));
}

#[test]
fn a_slow_body_is_reported_byte_by_byte() {
    let mut engine = engine();
    let (fd, mut peer) = drained_pair(&mut engine);
    for left in (BODY - 100..BODY).rev() {
        receive_expected(&mut engine, &fd, left);
        // The next byte follows only after this one was received.
        peer.write_all(&[left as u8]).unwrap();
        assert_eq!(received(&mut engine).1.unwrap(), [left as u8]);
    }
    engine.close(fd);
}

#[test]
fn few_bytes_of_an_expected_body_wait_for_others() {
    let mut engine = engine();
    repeat_until_short(|| {
        let (fd, mut peer) = drained_pair(&mut engine);
        let begun = Instant::now();
        receive_expected(&mut engine, &fd, 10);
        peer.write_all(b"123").unwrap();
        engine.submit_and_wait(Some(engine.now()));
        let found = engine.next_completion();
        let took = begun.elapsed();
        assert!(found.is_none() || took >= SHORT);
        let mut bytes_received = match found.map(|found| found.event) {
            Some(CompletionEvent::Received(Ok(buffer))) => {
                let bytes = buffer.to_vec();
                engine.recycle(buffer);
                engine.recv(&fd, 1000, token(1));
                bytes
            }
            found => {
                assert!(found.is_none());
                Vec::new()
            }
        };
        peer.write_all(b"4567890").unwrap();
        while bytes_received.len() < 10 {
            bytes_received.extend(received(&mut engine).1.unwrap());
            engine.recv(&fd, 1000, token(1));
        }
        assert_eq!(bytes_received, b"1234567890");
        engine.close(fd);
        took
    });
}

#[test]
fn an_end_before_the_expected_bytes_is_reported_at_once() {
    let mut engine = engine();
    repeat_until_short(|| {
        let (fd, mut peer) = drained_pair(&mut engine);
        let begun = Instant::now();
        receive_expected(&mut engine, &fd, BODY);
        peer.write_all(b"cut").unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        assert_eq!(received(&mut engine).1.unwrap(), b"cut");
        receive_expected(&mut engine, &fd, BODY - 3);
        assert_eq!(received(&mut engine).1.unwrap(), b"");
        let took = begun.elapsed();
        engine.close(fd);
        took
    });
}

#[test]
fn a_reset_before_the_expected_bytes_is_reported_at_once() {
    let mut engine = engine();
    repeat_until_short(|| {
        let (fd, mut peer) = drained_pair(&mut engine);
        receive_expected(&mut engine, &fd, BODY);
        let begun = Instant::now();
        peer.write_all(b"cut").unwrap();
        rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        drop(peer);
        assert_eq!(received(&mut engine).1.unwrap(), b"cut");
        receive_expected(&mut engine, &fd, BODY - 3);
        assert_eq!(received(&mut engine).1, Err(Error::Reset));
        let took = begun.elapsed();
        engine.close(fd);
        took
    });
}

#[test]
fn bytes_after_an_expected_body_are_reported_at_once() {
    let mut engine = engine();
    repeat_until_short(|| {
        let (fd, mut peer) = drained_pair(&mut engine);
        receive_expected(&mut engine, &fd, 10);
        peer.write_all(b"1234567890").unwrap();
        assert_eq!(received(&mut engine).1.unwrap(), b"1234567890");
        engine.recv(&fd, 1000, token(1));
        let begun = Instant::now();
        peer.write_all(b"h").unwrap();
        assert_eq!(received(&mut engine).1.unwrap(), b"h");
        let took = begun.elapsed();
        engine.close(fd);
        took
    });
}
