//! Held bytes are bounded: receives wait for the budget, in order, and nothing else does.

use std::io::Write;
use std::net::TcpStream;

use super::common::*;
use millrace_engine::{CompletionEvent, Engine, HeldBytes};

#[test]
fn ready_receives_wait_in_order_while_other_operations_continue() {
    let mut engine = engine_holding(1000);
    let (_listener, address) = listener(&mut engine);
    let mut pairs: Vec<_> = (0..4).map(|_| pair(&mut engine)).collect();
    for (number, (fd, _)) in pairs.iter().enumerate() {
        engine.recv(fd, 100, token(number as u32));
    }
    assert!(poll_all(&mut engine).is_empty());
    let held = HeldBytes::copy(engine.budget(), &[&[0; 1000]]);
    for number in [2, 0, 3, 1] {
        pairs[number].1.write_all(b"now").unwrap();
        assert!(poll_all(&mut engine).is_empty());
    }
    assert_eq!(engine.stats().parked_receives, 4);
    // Accepting and sending continue.
    let _client = TcpStream::connect(address).unwrap();
    let (connection, _) = accepted(&mut engine);
    engine.send(&connection, &[b"hello"], token(9));
    assert_eq!(sent(&mut engine), (token(9), Ok(())));
    let receives = engine.stats().receives;
    // A connection that is closed while it waits does not affect the others.
    engine.close(pairs.remove(0).0);
    drop(held);
    assert!([2, 3, 1].into_iter().all(|number| received(&mut engine).0 == token(number)));
    assert_eq!(engine.stats().receives - receives, 3);
}

#[test]
fn held_bytes_of_a_send_stop_receives_until_they_are_released() {
    let mut engine = engine_holding(1000);
    let (slow, slow_peer) = narrow_pair(&mut engine);
    let (fd, mut peer) = pair(&mut engine);
    engine.send(&slow, &[&pattern(1 << 20)], token(1));
    assert!(engine.unsent_bytes(&slow) > 0 && engine.budget().is_exhausted());
    peer.write_all(b"patience").unwrap();
    engine.recv(&fd, 100, token(2));
    assert!(poll_all(&mut engine).is_empty());
    // The engine does not spin: it does not try the parked receive.
    let before = *engine.stats();
    engine.submit_and_wait(Some(engine.now() + std::time::Duration::from_millis(20)));
    assert!(engine.next_completion().is_none());
    assert_eq!(engine.stats().receives, before.receives);
    drop(slow_peer);
    let mut receives = 0;
    for _ in 0..2 {
        match next(&mut engine).event {
            CompletionEvent::Sent(result) => assert!(result.is_err()),
            CompletionEvent::Received(buffer) => {
                let buffer = buffer.unwrap();
                assert_eq!(&buffer[..], b"patience");
                engine.recycle(buffer);
                receives += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(receives, 1);
    engine.close(slow);
    engine.close(fd);
    assert_eq!(engine.budget().used(), 0);
}

#[test]
fn closing_releases_the_bytes_held_for_the_connection() {
    let mut engine = engine();
    let (fd, _peer) = narrow_pair(&mut engine);
    engine.send(&fd, &[&pattern(1 << 20)], token(1));
    assert!(engine.budget().used() > 0);
    engine.close(fd);
    assert_eq!(engine.budget().used(), 0);
}
