//! An engine that replaces one whose worker panicked.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::Duration;

use super::common::*;
use crate::Tested;
use millrace_engine::{Clock, Completion, CompletionEvent, Engine, EngineOptions, Wake, mailbox};

/// Reads until the connection is reset, and fails if the stream ends without a reset.
fn read_until_reset(mut peer: TcpStream) {
    peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut part = [0; 4096];
    let error = loop {
        match peer.read(&mut part) {
            Ok(0) => panic!("the stream ended in order"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn connections_are_reset_and_queued_connections_and_messages_taken_over() {
    let mut engine = engine();
    let listener = millrace_sys::listen_tcp("127.0.0.1:0".parse().unwrap(), false).unwrap();
    let copy = listener.try_clone().unwrap();
    let listener = engine.adopt(listener).unwrap();
    let address = engine.local_address(&listener).unwrap();
    let (mut outbox, mut inbox) = mailbox(4);
    inbox.set_waker(engine.waker());

    let (receives, idle) = pair(&mut engine);
    engine.recv(&receives, 100, token(1));
    let (sends, reads_late) = narrow_pair(&mut engine);
    engine.send(&sends, &[&vec![b'x'; 8 << 20]], token(2));
    assert_eq!(poll_all(&mut engine).len(), 0);
    assert!(engine.unsent_bytes(&sends) > 0);
    engine.accept(&listener, token(3));
    let _queued = TcpStream::connect(address).unwrap();
    outbox.send(1).unwrap();
    outbox.flush();

    let waker = engine.abort();
    read_until_reset(idle);
    read_until_reset(reads_late);
    outbox.send(2).unwrap();
    outbox.flush();

    let options = EngineOptions { budget_bytes: PLENTY, log: None, clock: Clock::new() };
    let mut engine = Tested::with_waker(waker, options).unwrap();
    inbox.set_waker(engine.waker());
    engine.waker().wake();
    let listener = engine.adopt(copy).unwrap();
    engine.accept(&listener, token(4));
    let (mut woken, mut accepted) = (0, 0);
    while (woken, accepted) != (1, 1) {
        match next(&mut engine) {
            Completion { event: CompletionEvent::Woken, .. } => woken += 1,
            Completion { token: of, event: CompletionEvent::Accepted(Ok((fd, _))) } => {
                assert_eq!(of, token(4));
                accepted += 1;
                engine.close(fd);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(inbox.drain().collect::<Vec<_>>(), [1, 2]);
    outbox.send(3).unwrap();
    outbox.flush();
    assert!(matches!(next(&mut engine).event, CompletionEvent::Woken));
    assert_eq!(inbox.drain().collect::<Vec<_>>(), [3]);
    assert_eq!(engine.descriptors(), 1);
}
