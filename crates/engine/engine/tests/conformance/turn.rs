//! Turns: deadlines, wakes, bounds, random numbers, the log.

use std::io::Write;
use std::time::Duration;

use super::common::*;
use crate::Tested;
use millrace_engine::{
    Clock, Completion, CompletionEvent, Engine, EngineOptions, LogSink, TokenKind, Wake, mailbox,
};

#[test]
fn a_deadline_has_passed_when_its_wait_ends() {
    let mut engine = engine();
    for wait_us in [0, 1, 999, 5_500] {
        let deadline = engine.now() + Duration::from_micros(wait_us);
        engine.submit_and_wait(Some(deadline));
        assert!(engine.now() >= deadline);
        assert!(engine.next_completion().is_none());
    }
}

#[test]
fn another_thread_ends_the_wait_once_for_a_batch() {
    let mut engine = engine();
    let waker = engine.waker();
    let (mut outbox, mut inbox) = mailbox(10_000);
    inbox.set_waker(waker);
    let sender = std::thread::spawn(move || {
        for number in 0..10_000 {
            outbox.send(number).unwrap();
            if number % 7 == 0 {
                outbox.flush();
            }
        }
        outbox.flush();
    });
    let mut received = Vec::new();
    while received.len() < 10_000 {
        engine.submit_and_wait(None);
        while let Some(Completion { token, event }) = engine.next_completion() {
            assert!(token.kind() == TokenKind::Worker && matches!(event, CompletionEvent::Woken));
            received.extend(inbox.drain());
        }
    }
    sender.join().unwrap();
    assert!(received.into_iter().eq(0..10_000));
    let waker = engine.waker();
    poll_all(&mut engine);
    for _ in 0..3 {
        waker.wake();
    }
    assert_eq!(poll_all(&mut engine).len(), 1);
}

#[test]
fn a_waker_outlives_its_engine() {
    let waker = engine().waker();
    waker.wake();
}

/// A connection whose sends always complete at once does not keep the engine from polling the
/// kernel.
#[test]
fn a_turn_is_bounded_and_loses_nothing() {
    let mut engine = engine();
    let (fd, mut peer) = pair(&mut engine);
    let mut completions = 0;
    let mut turns = 0;
    while turns < 3 {
        engine.send(&fd, &[], token(1));
        while engine.next_completion().is_none() {
            engine.submit_and_wait(None);
            turns += 1;
        }
        completions += 1;
    }
    assert!(completions <= 3 * 1024 + 1, "{completions}");
    engine.recv(&fd, 64 * 1024, token(2));
    let writing = std::thread::spawn(move || peer.write_all(&pattern(8 << 20)));
    let mut bytes = 0;
    while bytes < 8 << 20 {
        engine.submit_and_wait(None);
        let mut of_turn = 0;
        while let Some(completion) = engine.next_completion() {
            let CompletionEvent::Received(Ok(buffer)) = completion.event else {
                panic!("{completion:?}")
            };
            of_turn += buffer.len();
            engine.recycle(buffer);
            engine.recv(&fd, 64 * 1024, token(2));
        }
        assert!(of_turn < (1 << 20) + (64 << 10));
        bytes += of_turn;
    }
    writing.join().unwrap().unwrap();
    engine.close(fd);
}

/// poll(2) and select(2) report unchanged readiness again. If the engine passed them descriptors
/// for which no operation waits, they would end every wait.
#[test]
fn readiness_that_is_not_awaited_ends_no_wait() {
    let mut engine = engine();
    let (ended, ending) = pair(&mut engine);
    ending.shutdown(std::net::Shutdown::Write).unwrap();
    engine.recv(&ended, 100, token(1));
    let CompletionEvent::Received(Ok(buffer)) = next(&mut engine).event else {
        panic!("expected the end of the stream")
    };
    assert!(buffer.is_empty());
    engine.recycle(buffer);
    let (unread, mut writing) = pair(&mut engine);
    writing.write_all(b"x").unwrap();
    let (broken, unreading) = pair(&mut engine);
    engine.send(&broken, &[b"x"], token(2));
    assert!(matches!(next(&mut engine).event, CompletionEvent::Sent(Ok(()))));
    // A close that leaves bytes unread is a reset.
    unreading.peek(&mut [0]).unwrap();
    drop(unreading);
    let waker = engine.waker();
    waker.wake();
    assert!(matches!(next(&mut engine).event, CompletionEvent::Woken));
    let deadline = engine.now() + Duration::from_millis(20);
    let mut turns = 0;
    while engine.now() < deadline {
        engine.submit_and_wait(Some(deadline));
        assert!(engine.next_completion().is_none());
        turns += 1;
    }
    // Edges of the three connections may still arrive, and end the first few waits.
    assert!(turns < 20, "{turns}");
    for fd in [ended, unread, broken] {
        engine.close(fd);
    }
}

#[test]
fn random_numbers_differ_between_engines() {
    let (mut one, mut other) = (engine(), engine());
    assert_ne!([one.random(), one.random()], [other.random(), other.random()]);
}

#[test]
fn records_reach_the_log() {
    let folder = Folder::new("log");
    let path = folder.0.join("access.log");
    let log = LogSink::open(&path).unwrap();
    let options = EngineOptions { budget_bytes: 1, log: Some(log.clone()), clock: Clock::new() };
    let mut engine = Tested::new(options).unwrap();
    engine.log(b"one\n");
    engine.submit_and_wait(Some(engine.now()));
    engine.log(b"two\nthree\n");
    drop(engine);
    log.close();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\nthree\n");
    assert_eq!(log.dropped_records(), 0);
}

#[test]
fn the_time_of_day_is_that_of_the_system() {
    let mut engine = engine();
    engine.submit_and_wait(Some(engine.now()));
    let system = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(engine.time_of_day().abs_diff(system) < Duration::from_secs(60));
}
