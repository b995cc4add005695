//! Aggregates through pipes: the writer and the reader are two clients, as in two processes.

mod common;

use std::fs::File;
use std::io::{BufReader, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::thread;

use common::{
    Actor, Daemon, Folder, Reports, finishes, fork, memory_of, pair_by_hand, pattern, sealed,
    succeeds, whole,
};
use iolite::service::FileClient;
use iolite::{Aggregate, Channel, ChannelOptions};
use millrace_sys::Errno;

const MEGABYTE: usize = 1 << 20;
const ROUNDS: u64 = 100;

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

/// The sealed files that a reader keeps.
const FILES: u32 = 2000;
/// The bytes after which both ends of a pipe are paired by the next call.
const PAIRING_BYTES: usize = 40_000;

/// Pairs both ends, and returns them with their clients.
fn paired(daemon: &Daemon) -> (FileClient, PipeReader, FileClient, PipeWriter) {
    paired_with(daemon, false)
}

/// Likewise; `trusts`: the reader trusts the writer.
fn paired_with(daemon: &Daemon, trusts: bool) -> (FileClient, PipeReader, FileClient, PipeWriter) {
    let (reader, writer) = (daemon.client(), daemon.client());
    if trusts {
        reader.trust_user();
    }
    let (from, to) = pair_pipe(&reader, &writer);
    assert_eq!((reader.stats().passed, writer.stats().passed), (1, 1));
    (reader, from, writer, to)
}

/// Makes a pipe whose ends are paired. The writer has passed one byte.
fn pair_pipe(reader: &FileClient, writer: &FileClient) -> (PipeReader, PipeWriter) {
    let (from, to) = std::io::pipe().expect("a pipe");
    let bytes = pattern(PAIRING_BYTES, 1);
    write_all(writer, &to, &bytes);
    let mut received = Vec::new();
    while received.len() < bytes.len() {
        received.extend(reader.read(from.as_fd(), 35_000).expect("bytes").to_vec());
    }
    write_all(writer, &to, b"x");
    assert_eq!(reader.read(from.as_fd(), 1).expect("a byte").to_vec(), b"x");
    (from, to)
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
    // A child of another test may have a copy for a moment.
    common::wait_until("an error", || writer.write(to.as_fd(), &bytes) == Err(Errno::PIPE));
    drop(reader);
    let (reader, from, writer, to) = paired(&daemon);
    drop((reader, from));
    common::wait_until("an error", || writer.write(to.as_fd(), &bytes) == Err(Errno::PIPE));
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

#[test]
fn a_child_drops_what_its_parent_has_read() {
    let folder = Folder::new("fork");
    let daemon = Daemon::start(&folder, &[]);
    for trusts in [false, true] {
        let (reader, from, writer, to) = paired_with(&daemon, trusts);
        let mut kept = Vec::new();
        for round in 0..4 {
            write_all(&writer, &to, &round_bytes(round));
            let bytes = sealed(&round_bytes(round));
            assert_eq!(writer.write(to.as_fd(), &bytes), Ok(bytes.len()));
            for _ in 0..2 {
                kept.push(reader.read(from.as_fd(), u64::MAX).expect("bytes"));
            }
        }
        let child_has = kept.clone();
        let child = fork(|| {
            drop((child_has, kept.split_off(3)));
            let (own_from, own_to) = std::io::pipe().expect("a pipe");
            write_all(&writer, &own_to, b"bytes of the child");
            reader.read(own_from.as_fd(), 100).expect("bytes").to_vec() == b"bytes of the child"
        });
        assert!(succeeds(child));
        // The parent has everything still.
        let expected: Vec<u8> = (0..4).flat_map(|round| round_bytes(round).repeat(2)).collect();
        assert!(kept.iter().flat_map(Aggregate::to_vec).collect::<Vec<u8>>() == expected);
        let passed = writer.stats().passed;
        write_all(&writer, &to, b"bytes of the parent");
        assert_eq!(reader.read(from.as_fd(), 100).expect("bytes").to_vec(), b"bytes of the parent");
        assert_eq!(writer.stats().passed, passed + 1);
    }
}

/// Starts an actor that reads from a pipe, and pairs both ends.
fn start_reader(role: &str, daemon: &Daemon, folder: &Folder) -> (Actor, Reports, PipeWriter) {
    let (from, to) = std::io::pipe().expect("a pipe");
    let program = std::env::current_exe().expect("this program");
    let mut command = Actor::command(&program, role, &daemon.socket, folder);
    let mut actor = Actor(command.stdin(from).spawn().expect("this program"));
    let reports = Reports(BufReader::new(actor.0.stdout.take().expect("a pipe")));
    (actor, reports, to)
}

/// Not a test of its own: a process that reads from its standard input.
#[test]
fn plays_a_role() {
    let Some((role, client, _)) = common::role() else { return };
    let from = std::io::stdin();
    let read = |length| client.read(from.as_fd(), length).expect("bytes").to_vec();
    let mut count = 0;
    while count < PAIRING_BYTES {
        count += read(35_000).len();
    }
    println!("is paired");
    match role.as_str() {
        "parent" => {
            let child = fork(|| {
                // A call in the child closes what it has of the channels of its parent.
                let (from, mut to) = std::io::pipe().expect("a pipe");
                to.write_all(b"x").expect("written");
                client.read(from.as_fd(), 1).expect("a byte");
                println!("has forked");
                client.read(std::io::stdin().as_fd(), 100).expect("bytes").to_vec()
                    == b"for a child"
            });
            assert!(succeeds(child));
        }
        "reads four bytes" => {
            assert_eq!(read(4), b"0123");
            println!("has read");
            // Until the end of this process.
            loop {
                thread::park();
            }
        }
        "keeps files" => {
            millrace_sys::lower_descriptor_limit(512).expect("a lower limit");
            let mut kept = Aggregate::new();
            while kept.len() < 4 * u64::from(FILES) {
                kept.concatenate(client.read(from.as_fd(), 100).expect("bytes"));
            }
            assert_eq!(kept.to_vec(), (0..FILES).flat_map(u32::to_le_bytes).collect::<Vec<_>>());
            println!("has kept all");
        }
        other => panic!("no role: {other}"),
    }
}

#[test]
fn the_end_of_a_parent_is_noticed() {
    let folder = Folder::new("parent");
    let daemon = Daemon::start(&folder, &[]);
    let writer = daemon.client();
    let (mut parent, mut reports, to) = start_reader("parent", &daemon, &folder);
    write_all(&writer, &to, &pattern(PAIRING_BYTES, 1));
    reports.wait_for("has forked");
    parent.0.kill().expect("a signal");
    parent.0.wait().expect("its end");
    // The child has the pipe, but not the channel.
    write_all(&writer, &to, b"for a child");
    assert_eq!(writer.stats().passed, 0);
}

#[test]
fn another_descriptor_is_the_same_end() {
    let folder = Folder::new("dup");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, from, writer, to) = paired(&daemon);
    let (from_too, to_too) = (from.try_clone().expect("dup"), to.try_clone().expect("dup"));
    drop(to);
    write_all(&writer, &to_too, b"bytes");
    assert_eq!(writer.stats().passed, 2);
    drop(from);
    assert_eq!(reader.read(from_too.as_fd(), 100).expect("bytes").to_vec(), b"bytes");
    assert_eq!(reader.stats().passed, 2);
}

#[test]
fn a_pipe_with_a_name_carries_bytes() {
    let folder = Folder::new("fifo");
    let daemon = Daemon::start(&folder, &[]);
    let path = common::path(&folder, "fifo");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("mkfifo");
    let both = File::options().read(true).write(true).open(&path).expect("the pipe");
    let from = PipeReader::from(OwnedFd::from(File::open(&path).expect("the pipe")));
    let to = File::options().write(true).open(&path).expect("the pipe");
    let to = PipeWriter::from(OwnedFd::from(to));
    drop(both);
    let (reader, writer) = (daemon.client(), daemon.client());
    for round in 0..20 {
        let bytes = pattern(10_000, round);
        write_all(&writer, &to, &bytes);
        assert!(reader.read(from.as_fd(), 10_000).expect("bytes").to_vec() == bytes);
    }
    assert_eq!((reader.stats().passed, writer.stats().passed), (0, 0));
}

#[test]
fn bytes_that_were_not_returned_are_written_to_the_pipe() {
    let folder = Folder::new("unreturned");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, mut from, writer, to) = paired(&daemon);
    write_all(&writer, &to, b"0123456789");
    write_all(&writer, &to, b"abc");
    assert_eq!(reader.read(from.as_fd(), 4).expect("bytes").to_vec(), b"0123");
    drop(reader);
    write_all(&writer, &to, b"end");
    drop(to);
    let mut rest = String::new();
    from.read_to_string(&mut rest).expect("bytes");
    assert_eq!(rest, "456789abcend");
}

#[test]
fn the_end_of_a_reading_process_loses_nothing() {
    let folder = Folder::new("killed");
    let daemon = Daemon::start(&folder, &[]);
    let writer = daemon.client();
    let (mut actor, mut reports, to) = start_reader("reads four bytes", &daemon, &folder);
    let mut from = File::open(format!("/proc/self/fd/{}", to.as_raw_fd())).expect("the pipe");
    write_all(&writer, &to, &pattern(PAIRING_BYTES, 1));
    reports.wait_for("is paired");
    write_all(&writer, &to, b"0123456789");
    assert_eq!(writer.stats().passed, 1);
    reports.wait_for("has read");
    actor.0.kill().expect("a signal");
    actor.0.wait().expect("its end");
    write_all(&writer, &to, b"end");
    drop(to);
    let mut rest = String::new();
    from.read_to_string(&mut rest).expect("bytes");
    assert_eq!(rest, "456789end");
}

#[test]
fn short_writes_keep_their_order() {
    const WRITES: u32 = 30_000;
    let folder = Folder::new("short");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, from, writer, to) = paired(&daemon);
    let received = thread::scope(|scope| {
        let received = scope.spawn(|| read_all(&reader, &from));
        for number in 0..WRITES {
            let bytes = number.to_le_bytes();
            // Another program that has the pipe, such as a child of the writer, takes turns.
            match number.wrapping_mul(0x9e37_79b9) >> 31 {
                0 => write_all(&writer, &to, &bytes),
                _ => (&to).write_all(&bytes).expect("written"),
            }
        }
        drop(to);
        received.join().expect("the reader")
    });
    assert_eq!(received.len(), 4 * WRITES as usize);
    for (number, bytes) in (0u32..).zip(received.chunks(4)) {
        assert!(bytes == number.to_le_bytes(), "{number} is {bytes:?}");
    }
}

#[test]
fn many_short_writes_do_not_wait() {
    let folder = Folder::new("many");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, from, writer, to) = paired(&daemon);
    let expected: Vec<u8> = (0..2000).flat_map(u32::to_le_bytes).collect();
    let bytes = expected.clone();
    finishes("the writes", move || {
        for number in bytes.chunks(4) {
            write_all(&writer, &to, number);
        }
    });
    assert!(read_all(&reader, &from) == expected);
}

#[test]
fn a_reader_keeps_what_it_has_read() {
    const ROUNDS: u64 = 40;
    let folder = Folder::new("keeps");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, from, writer, to) = paired(&daemon);
    let bytes = pattern(2 * MEGABYTE, 1);
    let mut kept = Aggregate::new();
    for _ in 0..ROUNDS {
        let bytes = sealed(&bytes);
        assert_eq!(writer.write(to.as_fd(), &bytes), Ok(bytes.len()));
        kept.concatenate(reader.read(from.as_fd(), u64::MAX).expect("bytes"));
    }
    let copied = bytes.len() as u64 * ROUNDS;
    assert!(kept.len() == copied);
    while kept.len() < 2 * copied {
        write_all(&writer, &to, &bytes[..MEGABYTE / 2]);
        kept.concatenate(reader.read(from.as_fd(), u64::MAX).expect("bytes"));
    }
    assert!(kept.slice(copied..copied + 10).to_vec() == bytes[..10]);
}

#[test]
fn a_reader_keeps_many_sealed_files() {
    let folder = Folder::new("files");
    let daemon = Daemon::start(&folder, &[]);
    let writer = daemon.client();
    let (_actor, mut reports, to) = start_reader("keeps files", &daemon, &folder);
    write_all(&writer, &to, &pattern(PAIRING_BYTES, 1));
    reports.wait_for("is paired");
    for number in 0..FILES {
        let bytes = sealed(&number.to_le_bytes());
        assert_eq!(writer.write(to.as_fd(), &bytes), Ok(4));
    }
    assert!(writer.stats().passed > 0);
    reports.wait_for("has kept all");
}

#[test]
fn a_reader_holds_256_sealed_files_of_all_its_pipes() {
    let folder = Folder::new("files-of-all");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, writer) = (daemon.client(), daemon.client());
    let pipes = [(); 2].map(|()| pair_pipe(&reader, &writer));
    let mut kept = Vec::new();
    for number in 0..200_u32 {
        for (from, to) in &pipes {
            assert_eq!(writer.write(to.as_fd(), &sealed(&number.to_le_bytes())), Ok(4));
            kept.push(reader.read(from.as_fd(), 4).expect("bytes"));
        }
    }
    let is_held = |bytes: &&Aggregate| bytes.slices().all(|of| of.sendfile_source().is_some());
    assert_eq!(kept.iter().filter(is_held).count(), 256);
}

#[test]
fn a_pipe_without_room_loses_nothing() {
    let folder = Folder::new("nonblocking");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, mut from, writer, to) = paired(&daemon);
    let expected = pattern(300_000, 1);
    write_all(&writer, &to, &expected);
    drop(reader);
    // The reader has returned nothing, and the bytes do not fit into the pipe.
    millrace_sys::set_nonblocking(to.as_fd()).expect("a pipe");
    let end = sealed(b"end");
    let (writer, to, end) = (Arc::new(writer), Arc::new(to), Arc::new(end));
    let write = || {
        let (writer, to, end) = (writer.clone(), to.clone(), end.clone());
        finishes("a write", move || writer.write(to.as_fd(), &end))
    };
    assert!(matches!(write(), Err(Errno::AGAIN | Errno::INTR)));
    let mut received = Vec::new();
    loop {
        let mut bytes = [0; 50_000];
        let count = from.read(&mut bytes).expect("bytes");
        received.extend(&bytes[..count]);
        match write() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            written => break assert_eq!(written, Ok(3)),
        }
    }
    drop(to);
    from.read_to_end(&mut received).expect("bytes");
    assert!(received == [&expected[..], b"end"].concat());
}

#[test]
fn the_end_of_the_last_reader_is_an_error() {
    millrace_sys::ignore_broken_pipe_signal();
    let folder = Folder::new("last-reader");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, from, writer, to) = paired(&daemon);
    write_all(&writer, &to, &pattern(300_000, 1));
    drop(reader);
    let copy = to.try_clone().expect("dup");
    let write = thread::spawn(move || writer.write(to.as_fd(), &sealed(b"end")));
    // It waits for room for the bytes that the reader has not returned.
    let waiting = || millrace_sys::waiting_bytes(copy.as_fd()).expect("a pipe");
    common::wait_until("a full pipe", || waiting() >= 64 << 10);
    drop(from);
    assert_eq!(write.join().expect("no panic"), Err(Errno::PIPE));
}

#[test]
fn later_flags_of_the_pipe_count() {
    let folder = Folder::new("flags");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, from, writer, to) = paired(&daemon);
    millrace_sys::set_nonblocking(from.as_fd()).expect("a pipe");
    millrace_sys::set_nonblocking(to.as_fd()).expect("a pipe");
    assert_eq!(reader.read(from.as_fd(), 100).map(drop), Err(Errno::AGAIN));
    let bytes = sealed(&pattern(50_000, 1));
    let written = finishes("the writes", move || {
        let mut written = 0;
        loop {
            match writer.write(to.as_fd(), &bytes) {
                Ok(count) => written += count,
                Err(error) => break (writer, to, written, error),
            }
        }
    });
    assert_eq!(written.3, Errno::AGAIN);
    let mut received = 0;
    let error = loop {
        match reader.read(from.as_fd(), u64::MAX) {
            Ok(bytes) => received += bytes.len(),
            Err(error) => break error,
        }
    };
    assert_eq!((received, error), (written.2, Errno::AGAIN));
}

#[test]
fn nothing_is_read_at_once() {
    let folder = Folder::new("nothing");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, from, _writer, _to) = paired(&daemon);
    let read = finishes("a read", move || reader.read(from.as_fd(), 0).map(|bytes| bytes.len()));
    assert_eq!(read, Ok(0));
}

#[test]
fn a_write_is_complete() {
    let folder = Folder::new("complete");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, from, writer, to) = paired(&daemon);
    let (all, mut bytes) = (sealed(&pattern(6 * MEGABYTE, 2)), Aggregate::new());
    for number in 0..3000 {
        bytes.concatenate(all.slice(2000 * number..2000 * number + 1500));
    }
    bytes.concatenate(sealed(&pattern(7 * MEGABYTE, 1)));
    let received = thread::scope(|scope| {
        let received = scope.spawn(|| read_all(&reader, &from));
        assert_eq!(writer.write(to.as_fd(), &bytes), Ok(bytes.len()));
        drop(to);
        received.join().expect("the reader")
    });
    assert!(received == bytes.to_vec());
}

#[test]
fn a_reader_that_breaks_the_protocol_is_left() {
    let folder = Folder::new("broken");
    let daemon = Daemon::start(&folder, &[]);
    let (mut from, to) = std::io::pipe().expect("a pipe");
    let socket = pair_by_hand(&daemon, from.as_fd(), false);
    let copy = socket.try_clone().expect("dup");
    let slab = iolite::Slab::on_heap(4 << 20).expect("memory");
    let reader = Channel::new(socket, ChannelOptions::new(slab)).expect("a channel");
    let writer = daemon.client();
    let written = thread::spawn(move || {
        write_all(&writer, &to, &pattern(3 * MEGABYTE, 1));
        writer.stats().passed
    });
    // The channel is full now, as nothing is received.
    common::wait_until("bytes", || millrace_sys::waiting_bytes(from.as_fd()) != Ok(0));
    millrace_sys::send_packet(copy.as_fd(), &[b"no frame"], &[]).expect("room");
    let received = thread::spawn(move || {
        let mut all = Vec::new();
        from.read_to_end(&mut all).expect("bytes");
    });
    common::wait_until("the writer", || written.is_finished());
    assert!(written.join().expect("no panic") > 0);
    received.join().expect("no panic");
    drop(reader);
}

/// Sends a signal to a thread until it has ended. The signal runs a handler that does nothing.
fn interrupt<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    extern "C" fn ignore(_: libc::c_int) {}
    // SAFETY: zeros are a valid sigaction: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
    // SAFETY: the handler does nothing, and no other test uses this signal.
    let set = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };
    assert_eq!(set, 0);
    let thread = thread::spawn(run);
    common::wait_until("a signal", || {
        // SAFETY: the thread has not been joined, so its number is valid.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
        thread.is_finished()
    });
    thread.join().expect("no panic")
}

#[test]
fn a_signal_ends_a_wait() {
    let folder = Folder::new("signal");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, from, writer, to) = paired(&daemon);
    let (reader, from, error) = interrupt(move || {
        let read = reader.read(from.as_fd(), 100).map(drop);
        (reader, from, read)
    });
    assert_eq!(error, Err(Errno::INTR));
    let (written, bytes, writer) = interrupt(move || {
        let bytes = sealed(&pattern(100, 1));
        let mut all = 0;
        // The ring and the pipe take some.
        let error = loop {
            match writer.write(to.as_fd(), &bytes) {
                Ok(count) => all += count,
                Err(error) => break error,
            }
        };
        assert_eq!(error, Errno::INTR);
        (all, bytes, writer)
    });
    let received = read_all(&reader, &from);
    assert_eq!(received.len() as u64, written);
    let whole = bytes.to_vec();
    assert!(received.chunks(whole.len()).all(|chunk| whole.starts_with(chunk)));
    drop(writer);
}

#[test]
fn trust_can_begin_later() {
    let folder = Folder::new("later-trust");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, from, writer, to) = paired(&daemon);
    // The first memory is in a pool to which the reader is invited before it trusts the writer.
    let pool_of = |round: u8| {
        write_all(&writer, &to, &[round; 10_000]);
        let bytes = reader.read(from.as_fd(), u64::MAX).expect("bytes");
        assert_eq!(bytes.to_vec(), [round; 10_000]);
        bytes.slices().next().expect("a slice").id().pool
    };
    // After 100 aggregates the reader has read all packets.
    assert!((1..=100).all(|round| pool_of(round) == 0));
    reader.trust_user();
    assert!((101..=200).any(|round| pool_of(round) != 0));
}

#[test]
fn a_program_can_use_many_pipes() {
    let folder = Folder::new("many-pipes");
    let daemon = Daemon::start(&folder, &[]);
    let (reader, writer) = (daemon.client(), daemon.client());
    let bytes = pattern(PAIRING_BYTES, 1);
    for number in 0..300 {
        let (from, to) = std::io::pipe().expect("a pipe");
        for part in 0..4 {
            write_all(&writer, &to, &bytes);
            let mut received = Vec::new();
            while received.len() < bytes.len() {
                received.extend(reader.read(from.as_fd(), 35_000).expect("bytes").to_vec());
            }
            assert!(received == bytes, "{number} {part}");
        }
        let passed = writer.stats().passed;
        assert!(passed > number, "{passed} at {number}");
    }
    // Channels of this test and others.
    let is_socket = |entry: std::io::Result<std::fs::DirEntry>| {
        let target = std::fs::read_link(entry.expect("proc(5)").path());
        target.is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("proc(5)");
    let sockets = descriptors.map(is_socket).filter(|is_socket| *is_socket).count();
    assert!(sockets < 200, "{sockets}");
}
