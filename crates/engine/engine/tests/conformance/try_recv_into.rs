//! Receives into the caller's memory.

use std::io::Write;

use millrace_engine::{Completion, CompletionEvent, Engine, Error, Fd};

use super::common::{all, engine, next, pair, pattern, received, token};
use crate::Tested;

/// Receives as soon as there are bytes.
fn take(engine: &mut Tested, source: &Fd, memory: &mut [u8]) -> Result<usize, Error> {
    loop {
        if let Some(result) = engine.try_recv_into(source, memory) {
            return result;
        }
        engine.poll_readable(source, token(9));
        assert!(matches!(next(engine), Completion { event: CompletionEvent::Readable, .. }));
    }
}

#[test]
fn what_is_there_is_taken_and_no_more_than_fits() {
    let mut engine = engine();
    let (source, mut writer) = pair(&mut engine);
    let mut memory = [0; 100];
    assert_eq!(engine.try_recv_into(&source, &mut memory), None);
    engine.poll_readable(&source, token(1));
    assert!(all(&mut engine).is_empty());
    writer.write_all(b"body;next request").unwrap();
    assert!(matches!(next(&mut engine), Completion { event: CompletionEvent::Readable, .. }));
    assert_eq!(engine.try_recv_into(&source, &mut memory[..5]), Some(Ok(5)));
    assert_eq!(&memory[..5], b"body;");
    engine.recv(&source, 100, token(2));
    assert_eq!(received(&mut engine).1.unwrap(), b"next request");
    assert_eq!(engine.try_recv_into(&source, &mut memory), None);
    drop(writer);
    assert_eq!(take(&mut engine, &source, &mut memory), Ok(0));
    engine.close(source);
    assert_eq!((engine.descriptors(), engine.budget().used()), (0, 0));
}

#[test]
fn all_of_a_long_stream_is_taken() {
    let mut engine = engine();
    let (source, mut writer) = pair(&mut engine);
    let sent = pattern(3_000_000);
    let thread = std::thread::spawn(move || {
        writer.write_all(&sent).unwrap();
        sent
    });
    let (mut memory, mut came) = (vec![0; 100_000], Vec::new());
    loop {
        match take(&mut engine, &source, &mut memory).unwrap() {
            0 => break,
            count => came.extend_from_slice(&memory[..count]),
        }
    }
    assert!(came == thread.join().unwrap());
    engine.close(source);
}

#[test]
fn a_break_is_reported() {
    let mut engine = engine();
    let (source, writer) = pair(&mut engine);
    rustix::net::sockopt::set_socket_linger(&writer, Some(std::time::Duration::ZERO)).unwrap();
    drop(writer);
    assert_eq!(take(&mut engine, &source, &mut [0; 100]), Err(Error::Reset));
    engine.close(source);
    assert_eq!(engine.descriptors(), 0);
}
