//! The rule of recycling, with the kernel's own references: what a socket was given by reference
//! keeps its bytes until they were read, whatever becomes of the memory.
#![cfg(not(miri))]

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use iolite::limits::BLOCK_BYTES;
use iolite::{AllocError, Buffer, MemoryKind, PrefaultOutcome, Slab, Slice};

const OBJECT_BYTES: usize = 60_000;

/// Two ends of a connection that share the machine, so that what was sent and acknowledged is
/// still the sender's memory.
fn connections() -> [(OwnedFd, OwnedFd); 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let client = TcpStream::connect(address).expect("it listens");
    let (server, _) = listener.accept().expect("it was connected to");
    server.set_nonblocking(true).expect("a socket can");
    let (near, far) = UnixStream::pair().expect("two sockets");
    near.set_nonblocking(true).expect("a socket can");
    [(server.into(), client.into()), (near.into(), far.into())]
}

/// A slice of bytes that depend on where they are and on `seed`.
fn object(slab: &Slab, seed: u8, tag: u64) -> Slice {
    let bytes: Vec<u8> = (0..OBJECT_BYTES).map(|at| (at / 7) as u8 ^ seed).collect();
    let mut buffer = slab
        .allocate(MemoryKind::ZeroCopy, OBJECT_BYTES..=OBJECT_BYTES, tag)
        .expect("there is room");
    assert_eq!(buffer.write(&bytes), OBJECT_BYTES);
    buffer.freeze()
}

/// Sends as much of a slice as the socket takes, by reference, and gives a copy of that.
fn send(socket: &OwnedFd, slice: &Slice) -> Vec<u8> {
    let (file, offset) = slice.sendfile_source().expect("the slab is in files");
    let mut sent = 0;
    while sent < slice.len() {
        let rest = slice.len() - sent;
        match millrace_sys::sendfile(socket.as_fd(), file, offset + sent as u64, rest) {
            Ok(count) => sent += count,
            Err(millrace_sys::Errno::AGAIN) => break,
            Err(error) => panic!("sendfile: {error}"),
        }
    }
    slice[..sent].to_vec()
}

/// Takes all memory that there is, writes to every byte of it, and tends to the slab, until there
/// is no more.
fn overwrite_everything(slab: &Slab) -> Vec<Buffer> {
    let mut taken = Vec::new();
    loop {
        match slab.allocate(MemoryKind::ZeroCopy, 1..=BLOCK_BYTES, 0) {
            Ok(mut buffer) => {
                buffer.unfilled().fill(0xee);
                let all = buffer.capacity();
                buffer.advance(all);
                taken.push(buffer);
            }
            Err(AllocError::NotReady) => assert_eq!(slab.prefault(), PrefaultOutcome::Prefaulted),
            Err(AllocError::Full | AllocError::Fragmented) => return taken,
        }
    }
}

fn read_all(socket: OwnedFd) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A socket of either family is read like a file.
    std::fs::File::from(socket).read_to_end(&mut bytes).expect("what was sent, and the end");
    bytes
}

#[test]
fn what_is_still_to_be_read_keeps_its_bytes_while_its_memory_is_used_again() {
    for (near, far) in connections() {
        let slab = Slab::new(4 * BLOCK_BYTES).unwrap();
        let objects: Vec<Slice> = (0..3).map(|seed| object(&slab, seed, 0)).collect();
        let places: Vec<u64> = objects.iter().map(|object| object.id().offset).collect();
        let expected: Vec<u8> = objects.iter().flat_map(|object| send(&near, object)).collect();
        assert!(expected.len() > OBJECT_BYTES / 2, "{} bytes were sent", expected.len());
        drop(objects);
        let taken = overwrite_everything(&slab);
        let stats = slab.stats();
        assert_eq!((stats.recycled, stats.live), (1, stats.capacity));
        let blocks: Vec<u64> = taken.iter().map(|buffer| buffer.slice(0..1).id().offset).collect();
        let whole = BLOCK_BYTES as u64;
        assert!(places.iter().all(|place| blocks.contains(&(place - place % whole))));
        drop(near);
        assert!(read_all(far) == expected, "bytes changed under the reader's eyes");
    }
}

#[test]
fn a_block_is_not_recycled_before_its_last_slice_is_dropped() {
    let slab = Slab::new(4 * BLOCK_BYTES).unwrap();
    let [(near, far), _] = connections();
    let (gone, kept) = (object(&slab, 1, 0), object(&slab, 2, 0));
    let expected = send(&near, &gone);
    drop(gone);
    let tainted = OBJECT_BYTES.next_multiple_of(4096) as u64;
    assert_eq!(slab.stats().tainted, tainted);
    let taken = overwrite_everything(&slab);
    let stats = slab.stats();
    assert_eq!((stats.recycled, stats.tainted), (0, tainted));
    assert_eq!(stats.live + tainted, stats.capacity);
    assert!(kept.iter().enumerate().all(|(at, byte)| *byte == (at / 7) as u8 ^ 2));
    drop((near, taken));
    assert!(read_all(far) == expected);
    drop(kept);
    assert_eq!((slab.stats().tainted, slab.stats().queued_blocks), (0, 1));
}

#[test]
fn what_was_never_sent_is_used_again_at_once() {
    let slab = Slab::new(2 * BLOCK_BYTES).unwrap();
    for round in 1..10 {
        let slice = object(&slab, round, 0);
        assert_eq!((slice.id().offset, slice.was_sent()), (0, false));
        // Memory that is sent by copy has no file.
        let mut buffer = slab.allocate(MemoryKind::Copied, 10..=10, 0);
        while matches!(buffer, Err(AllocError::NotReady)) {
            assert_eq!(slab.prefault(), PrefaultOutcome::Prefaulted);
            buffer = slab.allocate(MemoryKind::Copied, 10..=10, 0);
        }
        assert!(buffer.unwrap().freeze().sendfile_source().is_none());
    }
    assert_eq!((slab.stats().recycled, slab.stats().tainted), (0, 0));
}

#[test]
fn a_condemned_block_comes_back_when_its_holders_have_copies() {
    const BLOCKS: usize = 4;
    let slab = Slab::new(BLOCKS * BLOCK_BYTES).unwrap();
    let [(near, far), _] = connections();
    let mut expected = Vec::new();
    let mut held = Vec::new();
    let mut tag = 0;
    // Each second object is sent and dropped, until nothing is left but what that spoiled.
    let error = loop {
        match slab.allocate(MemoryKind::ZeroCopy, OBJECT_BYTES..=OBJECT_BYTES, tag) {
            Ok(mut buffer) => {
                buffer.write(&[tag as u8; OBJECT_BYTES]);
                let slice = buffer.freeze();
                if tag % 2 == 0 {
                    expected.extend(send(&near, &slice));
                } else {
                    held.push((tag, slice));
                }
                tag += 1;
            }
            Err(AllocError::NotReady) => assert_eq!(slab.prefault(), PrefaultOutcome::Prefaulted),
            Err(error) => break error,
        }
    };
    assert_eq!(error, AllocError::Fragmented);
    let tags = slab.start_evacuation().expect("half of each block is spoiled");
    assert!(tags.len() > 10 && tags.iter().all(|tag| tag % 2 == 1), "{tags:?}");
    assert_eq!(slab.start_evacuation(), None, "one at a time, of four");
    held.retain(|(tag, _)| !tags.contains(tag));
    assert_eq!((slab.stats().queued_blocks, slab.stats().evacuating_blocks), (1, 0));
    assert_eq!(slab.prefault(), PrefaultOutcome::Prefaulted);
    let fresh = object(&slab, 9, 0);
    assert!(held.iter().all(|(tag, slice)| slice.iter().all(|byte| *byte == *tag as u8)));
    drop((fresh, near));
    assert!(read_all(far) == expected);
}
