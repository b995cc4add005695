//! Recycling while the kernel refers to the memory: bytes that were sent zero-copy to a socket stay
//! intact until they are read, even if their block is recycled.
#![cfg(not(miri))]

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use iolite::limits::BLOCK_BYTES;
use iolite::{AllocError, Buffer, MemoryKind, PrefaultOutcome, Slab, Slice};

const OBJECT_BYTES: usize = 60_000;

/// Returns both ends of connections within this machine, on which sent and acknowledged bytes are
/// still in the sender's memory.
fn connections() -> [(OwnedFd, OwnedFd); 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("the listener is bound");
    let client = TcpStream::connect(address).expect("the listener accepts");
    let (server, _) = listener.accept().expect("a client has connected");
    server.set_nonblocking(true).expect("a socket can be non-blocking");
    let (near, far) = UnixStream::pair().expect("two sockets");
    near.set_nonblocking(true).expect("a socket can be non-blocking");
    [(server.into(), client.into()), (near.into(), far.into())]
}

/// Returns a slice whose bytes depend on their position and on `seed`.
fn object(slab: &Slab, seed: u8, tag: u64) -> Slice {
    let bytes: Vec<u8> = (0..OBJECT_BYTES).map(|at| (at / 7) as u8 ^ seed).collect();
    let mut buffer = slab
        .allocate(MemoryKind::ZeroCopy, OBJECT_BYTES..=OBJECT_BYTES, tag)
        .expect("there is room");
    assert_eq!(buffer.write(&bytes), OBJECT_BYTES);
    buffer.freeze()
}

/// Sends as much of a slice as the socket accepts, zero-copy, and returns a copy of it.
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

/// Allocates all memory and overwrites it, and populates blocks, until none is left.
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
    // A socket of either family can be read like a file.
    std::fs::File::from(socket).read_to_end(&mut bytes).expect("sent bytes, and the end");
    bytes
}

#[test]
fn unread_bytes_stay_intact_while_their_memory_is_reused() {
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
        assert!(read_all(far) == expected, "bytes changed before they were read");
    }
}

#[test]
fn a_block_is_not_recycled_before_its_last_slice_is_dropped() {
    let slab = Slab::new(4 * BLOCK_BYTES).unwrap();
    let [(near, far), _] = connections();
    let (dropped, kept) = (object(&slab, 1, 0), object(&slab, 2, 0));
    let expected = send(&near, &dropped);
    drop(dropped);
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
fn memory_that_was_never_sent_is_reused_at_once() {
    let slab = Slab::new(2 * BLOCK_BYTES).unwrap();
    for round in 1..10 {
        let slice = object(&slab, round, 0);
        assert_eq!((slice.id().offset, slice.was_sent()), (0, false));
        // Memory that is sent by copying has no file.
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
fn an_evacuated_block_is_free_once_its_objects_are_gone() {
    const BLOCKS: usize = 4;
    let slab = Slab::new(BLOCKS * BLOCK_BYTES).unwrap();
    let [(near, far), _] = connections();
    let mut expected = Vec::new();
    let mut held = Vec::new();
    let mut tag = 0;
    // Send and drop every second object, until all free memory is tainted.
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
    let tags = slab.start_evacuation().expect("half of each block is tainted");
    assert!(tags.len() > 10 && tags.iter().all(|tag| tag % 2 == 1), "{tags:?}");
    assert_eq!(slab.start_evacuation(), None, "only one of four blocks at a time");
    held.retain(|(tag, _)| !tags.contains(tag));
    assert_eq!((slab.stats().queued_blocks, slab.stats().evacuating_blocks), (1, 0));
    assert_eq!(slab.prefault(), PrefaultOutcome::Prefaulted);
    let fresh = object(&slab, 9, 0);
    assert!(held.iter().all(|(tag, slice)| slice.iter().all(|byte| *byte == *tag as u8)));
    drop((fresh, near));
    assert!(read_all(far) == expected);
}
