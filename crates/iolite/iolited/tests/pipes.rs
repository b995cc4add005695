//! Aggregates through pipes: the writer and the reader are two clients, as in two processes.

mod common;

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::thread;

use common::{Daemon, Folder, memory_of, pattern, whole};
use iolite::service::FileClient;
use iolite::{Aggregate, UnsealedMemory};
use millrace_sys::Errno;

const MEGABYTE: usize = 1 << 20;
const ROUNDS: u64 = 100;

fn sealed(bytes: &[u8]) -> Aggregate {
    let mut memory = UnsealedMemory::new(bytes.len()).expect("memory");
    memory.write(bytes);
    memory.seal().expect("no mapping").into_slice().expect("a mapping").into()
}

/// Writes all bytes from memory of the client.
fn write_all(client: &FileClient, pipe: &PipeWriter, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let mut buffer = client.allocate(pipe.as_fd(), bytes.len()).expect("memory");
        let count = buffer.write(bytes);
        let slice = Aggregate::from(buffer.freeze());
        assert_eq!(client.write(pipe.as_fd(), &slice), Ok(count as u64));
        bytes = &bytes[count..];
    }
}

/// Reads until the end of the pipe.
fn read_all(client: &FileClient, pipe: &PipeReader) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let bytes = client.read(pipe.as_fd(), 300_000).expect("bytes");
        if bytes.is_empty() {
            return all;
        }
        all.extend(bytes.to_vec());
    }
}

/// The bytes of one round, of a length that differs.
fn round_bytes(round: u64) -> Vec<u8> {
    pattern(1 + (round as usize * 7919) % 200_000, round)
}

#[test]
fn bytes_keep_their_order() {
    let folder = Folder::new("order");
    let daemon = Daemon::start(&folder, &[]);
    for trusts in [false, true] {
        let (reader, writer) = (daemon.client(), daemon.client());
        if trusts {
            reader.trust_user();
        }
        let (from, to) = std::io::pipe().expect("a pipe");
        let received = thread::scope(|scope| {
            let received = scope.spawn(|| read_all(&reader, &from));
            for round in 0..ROUNDS {
                match round % 3 {
                    0 => write_all(&writer, &to, &round_bytes(round)),
                    1 => {
                        let bytes = sealed(&round_bytes(round));
                        assert_eq!(writer.write(to.as_fd(), &bytes), Ok(bytes.len()));
                    }
                    // An ordinary write(2), as by a child of the writer.
                    _ => (&to).write_all(&round_bytes(round)).expect("written"),
                }
            }
            drop(to);
            received.join().expect("the reader")
        });
        let expected: Vec<u8> = (0..ROUNDS).flat_map(round_bytes).collect();
        assert!(received == expected, "trusts: {trusts}");
        let passed = (reader.stats().passed, writer.stats().passed);
        assert!(passed.0 > 10 && passed.1 > 10, "{passed:?}");
    }
}

#[test]
fn a_file_goes_through_a_pipe_without_a_copy() {
    let folder = Folder::new("file-pipe");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, writer) = (daemon.client(), daemon.client());
    let file = folder.file("file", &pattern(5 * MEGABYTE, 1));
    let bytes = whole(&writer, &file);
    let (from, to) = std::io::pipe().expect("a pipe");
    // The reader is there first.
    let first = pattern(50_000, 2);
    thread::scope(|scope| {
        let received = scope.spawn(|| {
            let mut all = Vec::new();
            while all.len() < first.len() {
                let bytes = reader.read(from.as_fd(), 40_000).expect("bytes");
                all.extend(bytes.to_vec());
            }
            // This pairs the end of the pipe.
            all.extend(reader.read(from.as_fd(), 10).expect("bytes").to_vec());
            all
        });
        (&to).write_all(&first).expect("written");
        common::wait_until("the reader is paired", || reader.stats().copied > 1);
        let mut part = bytes.clone();
        while !part.is_empty() {
            let count = writer.write(to.as_fd(), &part).expect("written");
            part.skip(count);
        }
        received.join().expect("the reader");
    });
    let mut received = Aggregate::new();
    while received.len() + 10 < bytes.len() {
        received.concatenate(reader.read(from.as_fd(), u64::MAX).expect("bytes"));
    }
    assert!(received.to_vec() == bytes.to_vec()[10..]);
    let length = |bytes: &Aggregate| bytes.slices().count();
    assert_eq!(length(&received), length(&bytes), "one slice for each piece of the file");
}

#[test]
fn a_part_of_a_file_is_copied() {
    let folder = Folder::new("part");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, writer) = (daemon.client(), daemon.client());
    let file = folder.file("file", &pattern(MEGABYTE, 1));
    let whole_file = whole(&writer, &file);
    let part = whole_file.slice(100_000..200_000);
    let (from, to) = std::io::pipe().expect("a pipe");
    let received = thread::scope(|scope| {
        let received = scope.spawn(|| read_all(&reader, &from));
        for _ in 0..20 {
            assert_eq!(writer.write(to.as_fd(), &part), Ok(part.len()));
        }
        drop(to);
        received.join().expect("the reader")
    });
    assert!(received == part.to_vec().repeat(20));
    assert!(reader.stats().passed > 0);
    // The writer still has the whole file, and no other process does.
    assert_eq!(memory_of(&whole_file).len(), 1);
}

#[test]
fn an_ordinary_program_reads_bytes() {
    let folder = Folder::new("ordinary");
    let daemon = Daemon::start(&folder, &[]);
    let writer = daemon.client();
    let (mut from, to) = std::io::pipe().expect("a pipe");
    let expected: Vec<u8> = (0..20).flat_map(round_bytes).collect();
    let received = thread::scope(|scope| {
        let received = scope.spawn(move || {
            let mut all = Vec::new();
            from.read_to_end(&mut all).expect("bytes");
            all
        });
        for round in 0..20 {
            write_all(&writer, &to, &round_bytes(round));
        }
        drop(to);
        received.join().expect("the reader")
    });
    assert!(received == expected && writer.stats().passed == 0);
}

#[test]
fn an_ordinary_program_writes_bytes() {
    let folder = Folder::new("ordinary-writer");
    let daemon = Daemon::start(&folder, &[]);
    let reader = daemon.client();
    let (from, mut to) = std::io::pipe().expect("a pipe");
    let expected: Vec<u8> = (0..20).flat_map(round_bytes).collect();
    let received = thread::scope(|scope| {
        let received = scope.spawn(|| read_all(&reader, &from));
        to.write_all(&expected).expect("written");
        drop(to);
        received.join().expect("the reader")
    });
    assert!(received == expected && reader.stats().passed == 0);
}

/// Pairs both ends, and returns them with their clients.
fn paired(daemon: &Daemon) -> (FileClient, PipeReader, FileClient, PipeWriter) {
    let (reader, writer) = (daemon.client(), daemon.client());
    let (from, to) = std::io::pipe().expect("a pipe");
    let bytes = pattern(40_000, 1);
    write_all(&writer, &to, &bytes);
    let mut received = Vec::new();
    while received.len() < bytes.len() {
        received.extend(reader.read(from.as_fd(), 35_000).expect("bytes").to_vec());
    }
    write_all(&writer, &to, b"x");
    assert_eq!(reader.read(from.as_fd(), 1).expect("a byte").to_vec(), b"x");
    assert_eq!((reader.stats().passed, writer.stats().passed), (1, 1));
    (reader, from, writer, to)
}

#[test]
fn the_end_of_the_writer_ends_the_pipe() {
    let folder = Folder::new("writer-end");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, from, writer, to) = paired(&daemon);
    write_all(&writer, &to, b"the last bytes");
    // The pipe is closed, but the process, and so the channel, is still there.
    drop(to);
    assert_eq!(read_all(&reader, &from), b"the last bytes");
    let (reader, from, writer, to) = paired(&daemon);
    write_all(&writer, &to, b"the last bytes");
    drop((writer, to));
    assert_eq!(read_all(&reader, &from), b"the last bytes");
}

#[test]
fn the_end_of_the_reader_is_an_error() {
    millrace_sys::ignore_broken_pipe_signal();
    let folder = Folder::new("reader-end");
    let daemon = Daemon::start(&folder, &[]);
    let bytes = Aggregate::from_bytes(b"bytes", &iolite::Slab::on_heap(4 << 20).expect("memory"));
    let bytes = bytes.expect("memory");
    let (reader, from, writer, to) = paired(&daemon);
    drop(from);
    assert_eq!(writer.write(to.as_fd(), &bytes), Err(Errno::PIPE));
    drop(reader);
    let (reader, from, writer, to) = paired(&daemon);
    drop((reader, from));
    assert_eq!(writer.write(to.as_fd(), &bytes), Err(Errno::PIPE));
}

#[test]
fn another_process_reads_the_rest() {
    let folder = Folder::new("rest");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, mut from, writer, to) = paired(&daemon);
    for text in [b"one", b"two", b"six"] {
        write_all(&writer, &to, text);
    }
    assert_eq!(reader.read(from.as_fd(), 3).expect("bytes").to_vec(), b"one");
    // As if the process had ended, while a child of it reads on.
    drop(reader);
    write_all(&writer, &to, b"end");
    drop(to);
    let mut rest = String::new();
    from.read_to_string(&mut rest).expect("bytes");
    assert_eq!(rest, "twosixend");
}

#[test]
fn a_writer_waits_for_its_reader() {
    let folder = Folder::new("waits");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, from, writer, to) = paired(&daemon);
    let expected = pattern(30 * MEGABYTE, 3);
    thread::scope(|scope| {
        let written = scope.spawn(|| {
            write_all(&writer, &to, &expected);
            drop(to);
        });
        assert!(!written.is_finished(), "the channel has limited room");
        assert!(read_all(&reader, &from) == expected);
        written.join().expect("the writer");
    });
}
