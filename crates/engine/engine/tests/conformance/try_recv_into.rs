//! Receives into the caller's memory.

use std::io::Write;

use millrace_engine::{Completion, CompletionEvent, Engine, Error, Fd};

use super::common::{engine, next, pair, pattern, poll_all, received, token};
use crate::Tested;

/// Receives as soon as there are bytes.
fn receive(engine: &mut Tested, source: &Fd, memory: &mut [u8]) -> Result<usize, Error> {
    loop {
        if let Some(result) = engine.try_recv_into(source, memory) {
            return result;
        }
        engine.poll_readable(source, token(9));
        assert!(matches!(next(engine), Completion { event: CompletionEvent::Readable, .. }));
    }
}

#[test]
fn a_receive_returns_no_more_than_fits() {
    let mut engine = engine();
    let (source, mut writer) = pair(&mut engine);
    let mut memory = [0; 100];
    assert_eq!(engine.try_recv_into(&source, &mut memory), None);
    engine.poll_readable(&source, token(1));
    assert!(poll_all(&mut engine).is_empty());
    writer.write_all(b"body;next request").unwrap();
    assert!(matches!(next(&mut engine), Completion { event: CompletionEvent::Readable, .. }));
    assert_eq!(engine.try_recv_into(&source, &mut memory[..5]), Some(Ok(5)));
    assert_eq!(&memory[..5], b"body;");
    engine.recv(&source, 100, token(2));
    assert_eq!(received(&mut engine).1.unwrap(), b"next request");
    assert_eq!(engine.try_recv_into(&source, &mut memory), None);
    drop(writer);
    assert_eq!(receive(&mut engine, &source, &mut memory), Ok(0));
    engine.close(source);
    assert_eq!((engine.descriptors(), engine.budget().used()), (0, 0));
}

#[test]
fn a_long_stream_is_received_completely() {
    let mut engine = engine();
    let (source, mut writer) = pair(&mut engine);
    let sent = pattern(3_000_000);
    let thread = std::thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        sent
    });
    let (mut memory, mut bytes_received) = (vec![0; 100_000], Vec::new());
    loop {
        match receive(&mut engine, &source, &mut memory).unwrap() {
            0 => break,
            count => bytes_received.extend_from_slice(&memory[..count]),
        }
    }
    assert!(bytes_received == thread.join().unwrap());
    engine.close(source);
}

#[test]
fn a_reset_is_reported() {
    let mut engine = engine();
    let (source, writer) = pair(&mut engine);
    rustix::net::sockopt::set_socket_linger(&writer, Some(std::time::Duration::ZERO)).unwrap();
    drop(writer);
    assert_eq!(receive(&mut engine, &source, &mut [0; 100]), Err(Error::Reset));
    engine.close(source);
    assert_eq!(engine.descriptors(), 0);
}
