//! Streams over real sockets: receiving, sending, closing, and moving to another engine.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use super::common::*;
use millrace_engine::{Completion, CompletionEvent, Engine, Error, ShutdownHow};

#[test]
fn bytes_come_then_the_end_without_another_wait() {
    let mut engine = engine();
    let (fd, mut peer) = pair(&mut engine);
    peer.write_all(b"last words").unwrap();
    drop(peer);
    engine.recv(&fd, 100, token(1));
    assert_eq!(received(&mut engine), (token(1), Ok(b"last words".to_vec())));
    engine.recv(&fd, 100, token(2));
    assert_eq!(received(&mut engine), (token(2), Ok(Vec::new())));
    engine.close(fd);
    assert_eq!(engine.descriptors(), 0);
}

#[test]
fn the_end_of_the_stream_is_found_when_it_arrives_together_with_bytes() {
    let mut engine = engine();
    let (fd, mut peer) = pair(&mut engine);
    // There is nothing yet: from now on only edges announce bytes.
    engine.recv(&fd, 100, token(1));
    assert!(poll_all(&mut engine).is_empty());
    peer.write_all(&pattern(100_000)).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    let mut bytes = received(&mut engine).1.unwrap();
    bytes.extend(receive_all(&mut engine, &fd));
    assert_eq!(bytes, pattern(100_000));
    engine.close(fd);
}

#[test]
fn a_peer_is_notified_of_a_close_by_the_end_of_the_next_wait() {
    let mut engine = engine();
    for handled in [true, false] {
        let (fd, mut peer) = pair(&mut engine);
        peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        engine.send(&fd, &[b"bye"], token(1));
        if handled {
            assert!(matches!(next(&mut engine).event, CompletionEvent::Sent(Ok(()))));
        }
        engine.close(fd);
        engine.submit_and_wait(Some(engine.now()));
        let mut bytes = Vec::new();
        peer.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"bye");
    }
}

#[test]
fn a_close_is_reported_although_an_event_of_the_connection_is_pending() {
    let mut engine = engine();
    for _ in 0..10 {
        let (fd, mut peer) = pair(&mut engine);
        peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        engine.submit_and_wait(Some(engine.now()));
        peer.write_all(b"unread").unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        engine.close(fd);
        engine.submit_and_wait(Some(engine.now()));
        // The peer is reset, since there are unread bytes.
        let error = peer.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_send_is_reported_before_the_response_to_it() {
    // Few enough for one batch, so that no receive is left for another turn.
    const PAIRS: u32 = 8;
    const ROUNDS: usize = 50;
    let mut engine = engine();
    let (fds, peers): (Vec<_>, Vec<_>) = (0..PAIRS).map(|_| pair(&mut engine)).unzip();
    let respond = move |mut peer: std::net::TcpStream| {
        for _ in 0..ROUNDS {
            peer.read_exact(&mut [0; 7]).unwrap();
            peer.write_all(b"response").unwrap();
        }
    };
    let peers: Vec<_> =
        peers.into_iter().map(|it| std::thread::spawn(move || respond(it))).collect();
    for _ in 0..ROUNDS {
        for (fd, number) in fds.iter().zip(0..) {
            engine.recv(fd, 100, token(number));
        }
        // There is nothing yet.
        assert!(poll_all(&mut engine).is_empty());
        for (fd, number) in fds.iter().zip(0..) {
            engine.send(fd, &[b"request"], token(PAIRS + number));
        }
        let mut is_sent = [false; PAIRS as usize];
        let mut responses = 0;
        while responses < PAIRS {
            let Completion { token: of, event } = next(&mut engine);
            let number = (0..2 * PAIRS).find(|&number| token(number) == of).unwrap();
            match event {
                CompletionEvent::Sent(result) => {
                    assert_eq!(result, Ok(()));
                    is_sent[(number - PAIRS) as usize] = true;
                }
                CompletionEvent::Received(buffer) => {
                    assert!(is_sent[number as usize], "the completion of the send comes first");
                    engine.recycle(buffer.unwrap());
                    responses += 1;
                }
                event => panic!("{event:?}"),
            }
        }
    }
    peers.into_iter().for_each(|peer| peer.join().unwrap());
}

#[test]
fn a_receive_of_a_quiet_connection_costs_no_system_call() {
    let mut engine = engine();
    let (fd, mut peer) = pair(&mut engine);
    engine.recv(&fd, 100, token(1));
    peer.write_all(b"x").unwrap();
    assert_eq!(received(&mut engine).1.unwrap(), b"x");
    // The first receive was tried before any event arrived. An event for the same bytes may still
    // be pending. It is handled here, before the calls are counted.
    engine.recv(&fd, 100, token(1));
    assert!(poll_all(&mut engine).is_empty());
    peer.write_all(b"x").unwrap();
    assert_eq!(received(&mut engine).1.unwrap(), b"x");
    let before = *engine.stats();
    for _ in 0..10 {
        engine.recv(&fd, 100, token(1));
        assert!(poll_all(&mut engine).is_empty());
        peer.write_all(b"y").unwrap();
        assert_eq!(received(&mut engine).1.unwrap(), b"y");
    }
    let after = engine.stats();
    assert_eq!(after.receives - before.receives, 10);
    assert_eq!(after.would_block, before.would_block);
    engine.close(fd);
}

#[test]
fn no_receive_returns_more_than_requested() {
    let mut engine = engine();
    let (fd, mut peer) = pair(&mut engine);
    peer.write_all(b"abcdefg").unwrap();
    for expected in ["abc", "def", "g"] {
        engine.recv(&fd, 3, token(1));
        assert_eq!(received(&mut engine).1.unwrap(), expected.as_bytes());
    }
    engine.close(fd);
}

#[test]
fn a_send_that_the_kernel_cannot_take_is_held_and_finished() {
    let mut engine = engine();
    let (fd, mut peer) = narrow_pair(&mut engine);
    let bytes = pattern(16 << 20);
    let parts: Vec<&[u8]> = bytes.chunks(70_001).collect();
    assert!(parts.len() > 2 * millrace_sys::PARTS_MAX);
    engine.send(&fd, &parts, token(1));
    let unsent = engine.unsent_bytes(&fd);
    assert!(unsent > 0 && unsent < bytes.len());
    assert!(engine.budget().used() >= unsent);
    assert_eq!(engine.stats().short_sends, 1);
    let reader = std::thread::spawn(move || {
        let mut read = Vec::new();
        peer.read_to_end(&mut read).unwrap();
        read
    });
    assert_eq!(sent(&mut engine), (token(1), Ok(())));
    assert_eq!((engine.unsent_bytes(&fd), engine.budget().used()), (0, 0));
    engine.shutdown(&fd, ShutdownHow::Write);
    assert_eq!(reader.join().unwrap(), bytes);
    engine.close(fd);
}

#[test]
fn small_sends_complete_in_order_and_empty_ones_make_no_call() {
    let mut engine = engine();
    let (fd, mut peer) = pair(&mut engine);
    engine.send(&fd, &[], token(1));
    assert_eq!(sent(&mut engine), (token(1), Ok(())));
    engine.send(&fd, &[b"", b""], token(2));
    assert_eq!((engine.unsent_bytes(&fd), sent(&mut engine)), (0, (token(2), Ok(()))));
    assert_eq!(engine.stats().sends, 0);
    engine.send(&fd, &[b"one", b"", b" two"], token(3));
    assert_eq!(sent(&mut engine), (token(3), Ok(())));
    engine.close(fd);
    assert!(poll_all(&mut engine).is_empty());
    let mut read = String::new();
    peer.read_to_string(&mut read).unwrap();
    assert_eq!(read, "one two");
}

#[test]
fn a_reset_is_an_error_to_both_directions() {
    let mut engine = engine();
    let (fd, peer) = narrow_pair(&mut engine);
    engine.recv(&fd, 100, token(1));
    engine.send(&fd, &[&pattern(1 << 20)], token(2));
    millrace_sys::reset_on_close(peer.as_fd()).unwrap();
    drop(peer);
    let mut errors = Vec::new();
    for _ in 0..2 {
        match next(&mut engine).event {
            CompletionEvent::Received(result) => match result {
                Err(error) => errors.push(error),
                // The kernel reports the error once. The second operation finds the end of the
                // stream.
                Ok(buffer) => {
                    assert!(buffer.is_empty());
                    engine.recycle(buffer);
                }
            },
            CompletionEvent::Sent(Err(error)) => errors.push(error),
            other => panic!("{other:?}"),
        }
    }
    assert!(errors.contains(&Error::Reset), "{errors:?}");
    assert_eq!(engine.budget().used(), 0);
    engine.send(&fd, &[b"x"], token(3));
    assert_eq!(sent(&mut engine), (token(3), Err(Error::BrokenPipe)));
    engine.close(fd);
}

#[test]
fn half_closed_both_ways() {
    let mut engine = engine();
    let (fd, mut peer) = pair(&mut engine);
    engine.recv(&fd, 100, token(1));
    engine.shutdown(&fd, ShutdownHow::Write);
    assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0);
    peer.write_all(b"still here").unwrap();
    assert_eq!(received(&mut engine).1.unwrap(), b"still here");
    engine.recv(&fd, 100, token(1));
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(received(&mut engine).1.unwrap(), b"");
    engine.shutdown(&fd, ShutdownHow::Both);
    engine.close(fd);
}

#[test]
fn the_peer_reads_a_reset() {
    let mut engine = engine();
    let (fd, mut peer) = pair(&mut engine);
    engine.send(&fd, &[b"part of it"], token(1));
    assert_eq!(sent(&mut engine).1, Ok(()));
    let mut bytes = [0; 10];
    peer.read_exact(&mut bytes).unwrap();
    engine.recv(&fd, 100, token(2));
    engine.reset(fd);
    assert!(poll_all(&mut engine).is_empty());
    let error = peer.read(&mut bytes).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn urgent_data_does_not_hide_what_follows() {
    let mut engine = engine();
    let (fd, peer) = pair(&mut engine);
    engine.recv(&fd, 1000, token(1));
    assert!(poll_all(&mut engine).is_empty());
    let flags = rustix::net::SendFlags::empty();
    rustix::net::send(&peer, b"before", flags).unwrap();
    rustix::net::send(&peer, b"!", rustix::net::SendFlags::OOB).unwrap();
    rustix::net::send(&peer, b"after", flags).unwrap();
    let mut bytes = received(&mut engine).1.unwrap();
    while bytes.len() < "beforeafter".len() {
        engine.recv(&fd, 1000, token(1));
        bytes.extend(received(&mut engine).1.unwrap());
    }
    assert_eq!(bytes, b"beforeafter");
    engine.close(fd);
}

#[test]
fn nothing_completes_after_close() {
    let mut engine = engine();
    let (fd, mut peer) = pair(&mut engine);
    peer.write_all(b"unread").unwrap();
    engine.recv(&fd, 100, token(1));
    engine.send(&fd, &[b"x"], token(2));
    engine.submit_and_wait(Some(engine.now()));
    engine.close(fd);
    assert!(poll_all(&mut engine).is_empty());
}

/// Two connections become ready in one poll of the kernel. The completion of the first one closes
/// the second one, and a third connection immediately reuses its number and slot.
#[test]
fn a_stale_event_does_not_reach_the_next_owner_of_a_slot() {
    let mut engine = engine();
    let (first, mut first_peer) = pair(&mut engine);
    let (second, mut second_peer) = pair(&mut engine);
    engine.recv(&first, 100, token(1));
    engine.recv(&second, 100, token(2));
    assert!(poll_all(&mut engine).is_empty());
    first_peer.write_all(b"first").unwrap();
    second_peer.write_all(b"second").unwrap();
    engine.submit_and_wait(None);
    let (of, _) = received(&mut engine);
    let (left, closed) = if of == token(1) { (first, second) } else { (second, first) };
    let slot = closed.0;
    engine.close(closed);
    let (third, mut third_peer) = pair(&mut engine);
    assert_eq!(third.0, slot, "the slot is reused");
    engine.recv(&third, 100, token(3));
    assert!(poll_all(&mut engine).is_empty());
    third_peer.write_all(b"third").unwrap();
    assert_eq!(received(&mut engine), (token(3), Ok(b"third".to_vec())));
    engine.close(left);
    engine.close(third);
}

/// The engine closes a descriptor that has an open duplicate elsewhere, for example in a forked
/// child that has not executed its program yet. epoll then continues to report the connection.
/// io_uring does not, because the engine cancels the watch when it closes the descriptor.
#[test]
fn events_of_a_closed_descriptor_that_lives_elsewhere_are_dropped() {
    let mut engine = engine();
    let (fd, mut peer) = pair(&mut engine);
    let copy = engine.detach(fd);
    let fd = engine.adopt(copy.try_clone().unwrap()).unwrap();
    let slot = fd.0;
    poll_all(&mut engine);
    engine.close(fd);
    let (next_owner, mut next_peer) = pair(&mut engine);
    assert_eq!(next_owner.0, slot);
    engine.recv(&next_owner, 100, token(1));
    poll_all(&mut engine);
    let before = *engine.stats();
    peer.write_all(b"for nobody").unwrap();
    assert!(poll_all(&mut engine).is_empty());
    let after = *engine.stats();
    assert!(after.stale_events - before.stale_events <= 1);
    assert_eq!(after.receives, before.receives);
    next_peer.write_all(b"mine").unwrap();
    assert_eq!(received(&mut engine), (token(1), Ok(b"mine".to_vec())));
    engine.close(next_owner);
    drop(copy);
}

#[test]
fn a_connection_moves_to_another_engine_with_what_it_has_not_read() {
    let mut engine = engine();
    let (fd, mut peer) = pair(&mut engine);
    engine.recv(&fd, 100, token(1));
    assert!(poll_all(&mut engine).is_empty());
    assert!(!engine.is_recv_ready(&fd));
    let detached: OwnedFd = engine.detach(fd);
    peer.write_all(b"for the other").unwrap();
    assert!(poll_all(&mut engine).is_empty());
    std::thread::spawn(move || {
        let mut other = super::common::engine();
        let fd = other.adopt(detached).unwrap();
        other.recv(&fd, 100, token(2));
        assert_eq!(received(&mut other), (token(2), Ok(b"for the other".to_vec())));
        other.send(&fd, &[b"thanks"], token(3));
        assert_eq!(sent(&mut other), (token(3), Ok(())));
        other.close(fd);
    })
    .join()
    .unwrap();
    let mut read = String::new();
    peer.read_to_string(&mut read).unwrap();
    assert_eq!(read, "thanks");
}

#[test]
#[should_panic = "one receiving operation at a time"]
fn a_second_receive_is_a_bug() {
    let mut engine = engine();
    let (fd, _peer) = pair(&mut engine);
    engine.recv(&fd, 100, token(1));
    engine.recv(&fd, 100, token(2));
}

#[test]
#[should_panic = "one sending operation at a time"]
fn a_second_send_is_a_bug() {
    let mut engine = engine();
    let (fd, _peer) = pair(&mut engine);
    engine.send(&fd, &[b"one"], token(1));
    engine.send(&fd, &[b"two"], token(2));
}
