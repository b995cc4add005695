//! Bytes moved through pipes, and whole relays made of the engine's operations.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;

use super::common::*;
use crate::Tested;
use millrace_engine::{Completion, CompletionEvent, Engine, Error, Fd, ShutdownHow};

fn spliced(engine: &mut Tested) -> Result<usize, Error> {
    match next(engine) {
        Completion { event: CompletionEvent::Spliced(result), .. } => result,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_body_is_moved_to_a_slow_reader() {
    let mut engine = engine();
    let (source, mut writer) = pair(&mut engine);
    let (target, mut reader) = narrow_pair(&mut engine);
    let (pipe_out, pipe_in) = engine.pipe().unwrap();
    let bytes = pattern(24 << 20);
    let expected = bytes.clone();
    let writing = std::thread::spawn(move || writer.write_all(&bytes).unwrap());
    let reading = std::thread::spawn(move || {
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        read
    });
    loop {
        engine.splice(&source, &pipe_in, 1 << 30, token(1));
        let mut held = spliced(&mut engine).unwrap();
        assert!(held <= 256 * 1024);
        if held == 0 {
            break;
        }
        while held > 0 {
            engine.splice(&pipe_out, &target, held, token(2));
            held -= spliced(&mut engine).unwrap();
        }
    }
    engine.shutdown(&target, ShutdownHow::Write);
    writing.join().unwrap();
    assert_eq!(reading.join().unwrap(), expected);
    for fd in [source, target, pipe_in, pipe_out] {
        engine.close(fd);
    }
    assert_eq!(engine.stats().bytes_spliced, 2 * expected.len() as u64);
    assert_eq!((engine.descriptors(), engine.budget().used()), (0, 0));
}

#[test]
fn a_splice_moves_no_more_than_requested() {
    let mut engine = engine();
    let (source, mut writer) = pair(&mut engine);
    let (pipe_out, pipe_in) = engine.pipe().unwrap();
    writer.write_all(b"body;next request").unwrap();
    engine.splice(&source, &pipe_in, 5, token(1));
    assert_eq!(spliced(&mut engine), Ok(5));
    engine.recv(&source, 100, token(2));
    assert_eq!(received(&mut engine).1.unwrap(), b"next request");
    for fd in [source, pipe_in, pipe_out] {
        engine.close(fd);
    }
}

#[test]
fn closing_either_side_ends_the_splice() {
    let mut engine = engine();
    for close_pipe in [false, true] {
        let (source, mut writer) = pair(&mut engine);
        let (pipe_out, pipe_in) = engine.pipe().unwrap();
        engine.splice(&source, &pipe_in, 100, token(1));
        assert!(poll_all(&mut engine).is_empty());
        writer.write_all(b"too late").unwrap();
        engine.submit_and_wait(None);
        let (closed, left) = if close_pipe { (pipe_in, source) } else { (source, pipe_in) };
        engine.close(closed);
        assert!(poll_all(&mut engine).is_empty());
        if close_pipe {
            engine.recv(&left, 100, token(2));
            assert_eq!(received(&mut engine).1.unwrap(), b"too late");
        }
        engine.close(left);
        engine.close(pipe_out);
    }
    assert_eq!(engine.descriptors(), 0);
}

#[test]
fn errors_of_both_sides_are_reported() {
    let mut engine = engine();
    let (source, mut writer) = pair(&mut engine);
    let (target, reader) = pair(&mut engine);
    let (pipe_out, pipe_in) = engine.pipe().unwrap();
    writer.write_all(b"for nobody").unwrap();
    engine.splice(&source, &pipe_in, 100, token(1));
    assert_eq!(spliced(&mut engine), Ok(10));
    millrace_sys::reset_on_close(reader.as_fd()).unwrap();
    drop(reader);
    engine.splice(&pipe_out, &target, 10, token(2));
    assert!(matches!(spliced(&mut engine), Err(Error::Reset | Error::BrokenPipe)));
    millrace_sys::reset_on_close(writer.as_fd()).unwrap();
    drop(writer);
    let (_, pipe_in_2) = engine.pipe().unwrap();
    engine.splice(&source, &pipe_in_2, 100, token(3));
    assert_eq!(spliced(&mut engine), Err(Error::Reset));
    // The failure of the target was reported before, so the next operation finds a closed socket.
    engine.send_then_splice(&[b"head"], &pipe_out, &target, 10, token(4));
    assert_eq!(spliced(&mut engine), Err(Error::BrokenPipe));
}

/// Splices from a socket into a pipe. Waits for bytes if there are none.
fn fill(engine: &mut Tested, source: &Fd, into: &Fd, max: usize) -> Result<usize, Error> {
    loop {
        if let Some(result) = engine.try_splice_in(source, into, max) {
            return result;
        }
        engine.poll_readable(source, token(9));
        let Completion { token: of, event } = next(engine);
        assert!(of == token(9) && matches!(event, CompletionEvent::Readable), "{event:?}");
    }
}

#[test]
fn try_splice_in_moves_no_more_than_requested() {
    let mut engine = engine();
    let (source, mut writer) = pair(&mut engine);
    let (pipe_out, pipe_in) = engine.pipe().unwrap();
    assert_eq!(engine.try_splice_in(&source, &pipe_in, 5), None);
    engine.poll_readable(&source, token(1));
    assert!(poll_all(&mut engine).is_empty());
    writer.write_all(b"body;next request").unwrap();
    assert!(matches!(next(&mut engine), Completion { event: CompletionEvent::Readable, .. }));
    assert_eq!(engine.try_splice_in(&source, &pipe_in, 5), Some(Ok(5)));
    engine.recv(&source, 100, token(2));
    assert_eq!(received(&mut engine).1.unwrap(), b"next request");
    assert_eq!(engine.try_splice_in(&source, &pipe_in, 100), None);
    drop(writer);
    let (pipe_out_2, pipe_in_2) = engine.pipe().unwrap();
    assert_eq!(fill(&mut engine, &source, &pipe_in_2, 100), Ok(0));
    for fd in [source, pipe_in, pipe_out, pipe_in_2, pipe_out_2] {
        engine.close(fd);
    }
    assert_eq!((engine.descriptors(), engine.budget().used()), (0, 0));
}

#[test]
fn bytes_behind_urgent_data_are_left_to_a_receive() {
    let mut engine = engine();
    let (source, mut writer) = pair(&mut engine);
    let (pipe_out, pipe_in) = engine.pipe().unwrap();
    writer.write_all(b"before").unwrap();
    rustix::net::send(&writer, b"!", rustix::net::SendFlags::OOB).unwrap();
    writer.write_all(b"behind").unwrap();
    assert_eq!(fill(&mut engine, &source, &pipe_in, 100), Ok(6));
    let (pipe_out_2, pipe_in_2) = engine.pipe().unwrap();
    assert_eq!(fill(&mut engine, &source, &pipe_in_2, 100), Ok(0));
    engine.recv(&source, 100, token(2));
    assert_eq!(received(&mut engine).1.unwrap(), b"behind");
    for fd in [source, pipe_in, pipe_out, pipe_in_2, pipe_out_2] {
        engine.close(fd);
    }
}

#[test]
fn polling_ends_with_its_connection() {
    let mut engine = engine();
    let (source, mut writer) = pair(&mut engine);
    engine.poll_readable(&source, token(1));
    writer.write_all(b"too late").unwrap();
    engine.submit_and_wait(None);
    engine.close(source);
    assert!(poll_all(&mut engine).is_empty());
}

#[test]
fn parts_before_a_pipe_reach_a_slow_reader_first() {
    let mut engine = engine();
    for before in [0, 3, 100_000, 3_000_000] {
        let (source, mut writer) = pair(&mut engine);
        let (target, mut reader) = narrow_pair(&mut engine);
        let (pipe_out, pipe_in) = engine.pipe().unwrap();
        let bytes = pattern(before + 60_000);
        writer.write_all(&bytes[before..]).unwrap();
        let mut filled = fill(&mut engine, &source, &pipe_in, 60_000).unwrap();
        let sent = before + filled;
        let parts = [&bytes[..before / 3], b"", &bytes[before / 3..before]];
        engine.send_then_splice(&parts, &pipe_out, &target, filled, token(1));
        assert_eq!(engine.unsent_bytes(&target) > 0, before == 3_000_000);
        let reading = std::thread::spawn(move || {
            let mut read = Vec::new();
            reader.read_to_end(&mut read).unwrap();
            read
        });
        loop {
            filled -= spliced(&mut engine).unwrap();
            if filled == 0 {
                break;
            }
            engine.splice(&pipe_out, &target, filled, token(1));
        }
        engine.shutdown(&target, ShutdownHow::Write);
        assert!(reading.join().unwrap() == bytes[..sent], "{before} bytes before the pipe");
        for fd in [source, target, pipe_in, pipe_out] {
            engine.close(fd);
        }
    }
    assert_eq!((engine.descriptors(), engine.budget().used()), (0, 0));
}

#[test]
fn closing_the_pipe_ends_a_send_then_splice() {
    let mut engine = engine();
    let (source, mut writer) = pair(&mut engine);
    let (target, reader) = narrow_pair(&mut engine);
    let (pipe_out, pipe_in) = engine.pipe().unwrap();
    writer.write_all(b"never sent").unwrap();
    let filled = fill(&mut engine, &source, &pipe_in, 100).unwrap();
    engine.send_then_splice(&[&pattern(3_000_000)], &pipe_out, &target, filled, token(1));
    engine.close(pipe_out);
    engine.close(pipe_in);
    assert!(poll_all(&mut engine).is_empty());
    engine.send(&target, &[b"x"], token(2));
    engine.close(target);
    engine.close(source);
    drop(reader);
    assert_eq!((engine.descriptors(), engine.budget().used()), (0, 0));
}

/// A relay from `source` to `target`, by copying or through its pipe (reading end, writing end).
struct Relay {
    source: Fd,
    target: Fd,
    pipe: Option<(Fd, Fd)>,
    /// Bytes in the pipe.
    held: usize,
    done: bool,
}

impl Relay {
    fn read(&self, engine: &mut Tested, number: u32) {
        match &self.pipe {
            Some((_, into)) => engine.splice(&self.source, into, 100_000, token(number)),
            None => engine.recv(&self.source, 30_000 + number as usize, token(number)),
        }
    }

    fn handle(&mut self, engine: &mut Tested, number: u32, event: CompletionEvent) {
        match event {
            CompletionEvent::Received(Ok(buffer)) => {
                if buffer.is_empty() {
                    self.end(engine);
                } else {
                    engine.send(&self.target, &[&buffer[..1], &buffer[1..]], token(number));
                }
                engine.recycle(buffer);
            }
            CompletionEvent::Sent(Ok(())) => self.read(engine, number),
            CompletionEvent::Spliced(Ok(count)) => {
                let (out, _) = self.pipe.as_ref().unwrap();
                match (self.held, count) {
                    (0, 0) => self.end(engine),
                    (0, count) => {
                        self.held = count;
                        engine.splice(out, &self.target, count, token(number));
                    }
                    (held, count) if held > count => {
                        self.held -= count;
                        engine.splice(out, &self.target, self.held, token(number));
                    }
                    _ => {
                        self.held = 0;
                        self.read(engine, number);
                    }
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self, engine: &mut Tested) {
        engine.shutdown(&self.target, ShutdownHow::Write);
        self.done = true;
    }
}

/// Many relays at once, half by copying and half by splicing, with all bytes compared.
#[test]
fn many_relays_at_once_keep_their_bytes_apart() {
    const RELAYS: u32 = 32;
    let mut engine = engine();
    let mut relays = Vec::new();
    let mut writers = Vec::new();
    let mut readers = Vec::new();
    for number in 0..RELAYS {
        let (source, writer) = pair(&mut engine);
        let (target, reader) = pair(&mut engine);
        let pipe = (number % 2 == 0).then(|| engine.pipe().unwrap());
        let relay = Relay { source, target, pipe, held: 0, done: false };
        relay.read(&mut engine, number);
        relays.push(relay);
        writers.push(std::thread::spawn(move || write(writer, number)));
        readers.push(std::thread::spawn(move || read(reader)));
    }
    while relays.iter().any(|relay| !relay.done) {
        let Completion { token, event } = next(&mut engine);
        relays[token.slot() as usize].handle(&mut engine, token.slot(), event);
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    for (number, reader) in readers.into_iter().enumerate() {
        assert!(reader.join().unwrap() == body(number as u32), "relay {number}");
    }
    for relay in relays {
        engine.close(relay.source);
        engine.close(relay.target);
        if let Some((out, into)) = relay.pipe {
            engine.close(out);
            engine.close(into);
        }
    }
    assert_eq!((engine.descriptors(), engine.budget().used()), (0, 0));
}

fn body(number: u32) -> Vec<u8> {
    pattern(1_000_000 + number as usize * 7777).into_iter().skip(number as usize).collect()
}

fn write(mut stream: TcpStream, number: u32) {
    for chunk in body(number).chunks(17 + number as usize * 3000) {
        stream.write_all(chunk).unwrap();
        if number.is_multiple_of(3) {
            std::thread::yield_now();
        }
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

fn read(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn tee_duplicates_the_bytes_of_a_pipe() {
    let mut engine = engine();
    let (source, mut writer) = pair(&mut engine);
    let (target, mut reader) = pair(&mut engine);
    let (pipe_out, pipe_in) = engine.pipe().unwrap();
    let (aside_out, aside_in) = engine.pipe().unwrap();
    let mut memory = [0; 100];
    assert_eq!(engine.tee(&pipe_out, &aside_in, 10), Ok(0));
    assert_eq!(engine.read_pipe(&pipe_out, &mut memory), Ok(0));
    writer.write_all(b"kept and sent").unwrap();
    assert_eq!(fill(&mut engine, &source, &pipe_in, 100), Ok(13));
    assert_eq!(engine.tee(&pipe_out, &aside_in, 100), Ok(13));
    assert_eq!(engine.read_pipe(&aside_out, &mut memory[..4]), Ok(4));
    assert_eq!(engine.read_pipe(&aside_out, &mut memory[4..]), Ok(9));
    assert_eq!(&memory[..13], b"kept and sent");
    engine.send_then_splice(&[b"head "], &pipe_out, &target, 13, token(1));
    assert_eq!(spliced(&mut engine), Ok(13));
    let mut read = [0; 18];
    reader.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"head kept and sent");
    assert_eq!(engine.read_pipe(&pipe_out, &mut memory), Ok(0));
    for fd in [source, target, pipe_in, pipe_out, aside_in, aside_out] {
        engine.close(fd);
    }
    assert_eq!((engine.descriptors(), engine.budget().used()), (0, 0));
}
