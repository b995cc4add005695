//! A peer that does not keep to the protocol of channels: each mistake ends the channel with an
//! error that names it, and nothing else happens.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use iolite::limits::{BLOCK_BYTES, PARTS_PER_AGGREGATE_MAX, SLAB_BYTES_MIN};
use iolite::{
    Account, Aggregate, Channel, ChannelError, ChannelOptions, PeerFault, Pool, Received,
    RefusedMemory, Slab, UnsealedMemory, channel_sockets,
};
use millrace_sys::{Errno, MappedFile};

// The kinds of frames, as in src/packet.rs.
const REFERENCE: u32 = 1;
const BYTES: u32 = 2;
const FILE: u32 = 3;
const EMPTY: u32 = 4;
const FORGET: u32 = 5;
const TEXT: u32 = 6;
const IN_PACKET: u32 = 7;
const HELLO: u32 = 16;
const POOL: u32 = 17;
const LEDGER: u32 = 18;
const BLOCK: u32 = 19;
const WAKE: u32 = 22;

const LAST: u32 = 1 << 8;
const PAGE_WORDS: usize = 512;
const ACCOUNT_BYTES: u64 = 1 << 20;

/// The numbers of a frame: kind and flags, number, first unit, version, start and length.
type Numbers = [u32; 6];

fn frame(numbers: Numbers) -> Vec<u8> {
    numbers.iter().flat_map(|word| word.to_ne_bytes()).chain([0; 8]).collect()
}

/// The hostile end of a channel.
struct Peer {
    socket: OwnedFd,
    /// Its page, once it has said hello.
    page: Option<MappedFile>,
}

impl Peer {
    fn send(&self, numbers: Numbers, bytes: &[u8], files: &[BorrowedFd<'_>]) {
        let header = frame(numbers);
        millrace_sys::send_packet(self.socket.as_fd(), &[&header, bytes], files).expect("room");
    }

    /// Begins the channel, with a ring of this many frames.
    fn hello(&mut self, ring_frames: u32) {
        self.hello_with(ring_frames, 0);
    }

    /// Begins the channel, with a ring of this many frames and words for bytes.
    fn hello_with(&mut self, ring_frames: u32, ring_words: u32) {
        let (file, mapping) = page();
        let process = millrace_sys::open_process(std::process::id()).expect("this process");
        let files = [file.as_fd(), process.as_fd()];
        self.send([HELLO, ring_words, ring_frames, 0, 0, 0], &[], &files);
        self.page = Some(mapping);
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        word(self.page.as_ref().expect("it has said hello"), index)
    }

    /// Receives packets until one of this kind, and returns its descriptors.
    fn receive(&self, wanted: u32) -> Vec<OwnedFd> {
        loop {
            let (mut bytes, mut files) = ([0; 64], Vec::new());
            millrace_sys::receive_packet(self.socket.as_fd(), &mut bytes, &mut files)
                .expect("a packet");
            if u32::from(bytes[0]) == wanted {
                return files;
            }
        }
    }
}

fn word(page: &MappedFile, index: usize) -> &AtomicU64 {
    assert!(index < PAGE_WORDS);
    // SAFETY: the word is mapped.
    let word = unsafe { page.start().cast::<AtomicU64>().add(index) };
    // SAFETY: it is accessed only atomically, as long as the page is mapped.
    unsafe { word.as_ref() }
}

/// Returns a sealed page and its mapping.
fn page() -> (OwnedFd, MappedFile) {
    let file = millrace_sys::create_memory_file("test", 4096).expect("memory");
    let mapping = MappedFile::writable(file.as_fd(), 4096).expect("a mapping");
    millrace_sys::seal_for_readers(file.as_fd()).expect("seals");
    (file, mapping)
}

fn channel() -> (Channel, Peer) {
    channel_with(|options| options)
}

fn channel_with(change: impl FnOnce(ChannelOptions) -> ChannelOptions) -> (Channel, Peer) {
    let (here, there) = channel_sockets().expect("sockets");
    let slab = Slab::on_heap(SLAB_BYTES_MIN).expect("the size is allowed");
    let options =
        ChannelOptions { account: Account::new(ACCOUNT_BYTES), ..ChannelOptions::new(slab) };
    let channel = Channel::new(here, change(options)).expect("a channel");
    (channel, Peer { socket: there, page: None })
}

/// Returns the error of the channel, which every later call returns too.
fn error(channel: &mut Channel) -> ChannelError {
    let error = channel.try_receive().expect_err("the peer is hostile");
    assert_eq!(channel.try_receive().expect_err("it is kept"), error);
    assert_eq!(channel.try_send(&Aggregate::new()).expect_err("it is kept"), error);
    error
}

fn fault(channel: &mut Channel) -> PeerFault {
    match error(channel) {
        ChannelError::Peer(fault) => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn packets_that_are_no_frames() {
    for packet in [&b"x"[..], &[0; 32], &[0xff; 32], &frame([99, 0, 0, 0, 0, 0])] {
        let (mut channel, peer) = channel();
        millrace_sys::send_packet(peer.socket.as_fd(), &[packet], &[]).unwrap();
        assert_eq!(fault(&mut channel), PeerFault::Frame);
    }
    let wrong = [
        [BYTES | LAST, 0, 0, 0, 0, 7],
        [BYTES | 2 << 8, 0, 0, 0, 0, 1],
        [EMPTY, 0, 0, 0, 0, 0],
        [IN_PACKET, 0, 0, 0, 0, 0],
    ];
    for numbers in wrong {
        let (mut channel, mut peer) = channel();
        peer.hello(0);
        peer.send(numbers, b"z", &[]);
        assert_eq!(fault(&mut channel), PeerFault::Frame, "{numbers:?}");
    }
}

#[test]
fn pages_and_processes_that_are_none() {
    let (page, _mapping) = page();
    let process = millrace_sys::open_process(std::process::id()).unwrap();
    let (socket, _other) = channel_sockets().unwrap();
    let null = OwnedFd::from(File::open("/dev/null").unwrap());
    let folder = OwnedFd::from(File::open("/").unwrap());
    let unsealed = millrace_sys::create_memory_file("test", 4096).unwrap();
    let other_file = ChannelError::Refused(RefusedMemory::OtherFile);
    let descriptors = ChannelError::Peer(PeerFault::Descriptors);
    let cases: [(&[&OwnedFd], u32, ChannelError); 8] = [
        (&[&socket, &process], 0, other_file),
        (&[&folder, &process], 0, other_file),
        (&[&unsealed, &process], 0, ChannelError::Refused(RefusedMemory::Unsealed)),
        (
            &[&page, &process],
            1000,
            ChannelError::Refused(RefusedMemory::TooShort { length: 4096, expected: 32_064 }),
        ),
        (&[&page, &process], 2000, ChannelError::Peer(PeerFault::Frame)),
        (&[&page, &null], 0, descriptors),
        (&[&page, &page], 0, descriptors),
        (&[&page], 0, descriptors),
    ];
    for (files, ring_frames, expected) in cases {
        let (mut channel, peer) = channel();
        let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        peer.send([HELLO, 0, ring_frames, 0, 0, 0], &[], &files);
        assert_eq!(error(&mut channel), expected);
    }
}

#[test]
fn files_that_are_not_accepted() {
    let refused = |file: &OwnedFd, length: u32| {
        let (mut channel, mut peer) = channel();
        peer.hello(0);
        peer.send([FILE | LAST, 0, 0, 0, 0, length], &[], &[file.as_fd()]);
        error(&mut channel)
    };
    let (socket, _other) = channel_sockets().unwrap();
    let unsealed = millrace_sys::create_memory_file("test", 4096).unwrap();
    let (readable, _mapping) = page();
    let sparse = millrace_sys::create_memory_file("test", 100_000).unwrap();
    millrace_sys::seal_contents(sparse.as_fd()).unwrap();
    let huge = millrace_sys::create_memory_file("test", 1 << 40).unwrap();
    millrace_sys::seal_contents(huge.as_fd()).unwrap();
    let expected = [
        (&socket, RefusedMemory::OtherFile),
        (&OwnedFd::from(File::open("/").unwrap()), RefusedMemory::OtherFile),
        (&unsealed, RefusedMemory::Unsealed),
        (&readable, RefusedMemory::Unsealed),
        (&sparse, RefusedMemory::Hole { offset: 0 }),
        (&huge, RefusedMemory::TooLong { memory: 1 << 40, left: ACCOUNT_BYTES }),
    ];
    for (file, reason) in expected {
        assert_eq!(refused(file, 1), ChannelError::Refused(reason));
    }
    let mut memory = UnsealedMemory::new(5000).unwrap();
    memory.write(&[1; 5000]);
    let good = memory.seal().unwrap();
    let file = good.file().try_clone_to_owned().unwrap();
    assert_eq!(refused(&file, 5001), ChannelError::Peer(PeerFault::File));
    assert_eq!(refused(&file, u32::MAX), ChannelError::Peer(PeerFault::File));
    for number in [3, 31, 32, u32::MAX] {
        let (mut channel, mut peer) = channel();
        peer.hello(0);
        peer.send([FILE | LAST, number, 0, 0, 0, 1], &[], &[]);
        assert_eq!(fault(&mut channel), PeerFault::File, "file {number} was never passed");
    }
    let (mut channel, mut peer) = channel();
    peer.hello(0);
    peer.send([FORGET, 32, 0, 0, 0, 0], &[], &[]);
    assert_eq!(fault(&mut channel), PeerFault::File);
}

#[test]
fn many_descriptors() {
    let (mut channel, peer) = channel();
    let files = vec![peer.socket.as_fd(); 60];
    millrace_sys::send_with_descriptors(peer.socket.as_fd(), &[0; 32], &files).unwrap();
    assert_eq!(fault(&mut channel), PeerFault::Descriptors);
    let (mut channel, mut peer) = channel_with(|options| options);
    peer.hello(0);
    peer.send([BYTES | LAST, 0, 0, 0, 0, 1], b"z", &[peer.socket.as_fd()]);
    assert_eq!(fault(&mut channel), PeerFault::Descriptors);
}

#[test]
fn positions_that_are_impossible() {
    for tail in [9, u64::MAX] {
        let (mut channel, mut peer) = channel();
        peer.hello(8);
        assert!(matches!(channel.try_receive(), Ok(Received::Nothing)));
        peer.word(0).store(tail, Ordering::SeqCst);
        assert_eq!(fault(&mut channel), PeerFault::Positions);
    }
    let (mut channel, mut peer) = channel();
    peer.hello(8);
    channel.try_send(&Aggregate::new()).unwrap();
    peer.word(1).store(2, Ordering::SeqCst);
    let error = channel.flush().unwrap_err();
    assert_eq!(error, ChannelError::Peer(PeerFault::Positions));
    // A packet that the ring announces, but that was not sent.
    let (mut channel, mut peer) = channel_with(|options| options);
    peer.hello(8);
    peer.word(8).store(u64::from(IN_PACKET), Ordering::SeqCst);
    peer.word(0).store(1, Ordering::SeqCst);
    assert_eq!(fault(&mut channel), PeerFault::Packets);
}

#[test]
fn bytes_that_the_ring_does_not_have() {
    // The page has 8 words, 32 for frames, and 32 for bytes.
    for (start, length) in [(32, 1), (0, 257), (31, 9), (0, 0), (u32::MAX, 8), (0, 1_u32 << 20)] {
        let (mut channel, mut peer) = channel_with(|options| options);
        peer.hello_with(8, 32);
        peer.word(8).store(u64::from(BYTES | LAST), Ordering::SeqCst);
        peer.word(10).store(u64::from(start) | u64::from(length) << 32, Ordering::SeqCst);
        peer.word(0).store(1, Ordering::SeqCst);
        assert_eq!(fault(&mut channel), PeerFault::Frame, "{length} bytes from word {start}");
    }
}

#[test]
fn text_that_is_too_long() {
    for (text_max, lengths, expected) in [
        (0, &[1][..], None),
        (10, &[11], None),
        (10, &[6, 5], None),
        (10, &[6, 5, 3], None),
        (300, &[257], Some(PeerFault::Frame)),
        (0, &[257], Some(PeerFault::Frame)),
    ] {
        let (mut channel, mut peer) =
            channel_with(|options| ChannelOptions { text_max, ..options });
        // The page has 8 words, 32 for frames, and 32 for bytes.
        peer.hello_with(8, 32);
        for (at, length) in lengths.iter().enumerate() {
            let last = if at + 1 == lengths.len() { LAST } else { 0 };
            peer.word(8 + 4 * at).store(u64::from(TEXT | last), Ordering::SeqCst);
            peer.word(10 + 4 * at).store(length << 32, Ordering::SeqCst);
        }
        peer.word(0).store(lengths.len() as u64, Ordering::SeqCst);
        match expected {
            Some(expected) => assert_eq!(fault(&mut channel), expected, "{lengths:?}"),
            None => {
                assert!(matches!(channel.try_receive(), Ok(Received::Aggregate(_))), "{lengths:?}");
                assert_eq!((channel.text().len(), channel.text_is_cut()), (text_max, true));
            }
        }
    }
}

#[test]
fn bytes_of_a_ring_that_change_after_they_were_received() {
    let (mut channel, mut peer) = channel_with(|options| options);
    peer.hello_with(8, 32);
    peer.word(8).store(u64::from(BYTES | LAST), Ordering::SeqCst);
    peer.word(10).store(1 | 10 << 32, Ordering::SeqCst);
    let bytes = |number: u64| [41, 42].map(|at| peer.word(at).store(number, Ordering::SeqCst));
    bytes(0x0101_0101_0101_0101);
    peer.word(0).store(1, Ordering::SeqCst);
    let Ok(Received::Aggregate(received)) = channel.try_receive() else { panic!("it is there") };
    bytes(u64::MAX);
    assert_eq!(received.to_vec(), [1; 10]);
}

#[test]
fn references_to_pools_that_were_not_joined() {
    for joins_pools in [false, true] {
        let (mut channel, mut peer) =
            channel_with(|options| ChannelOptions { joins_pools, ..options });
        peer.hello(0);
        if !joins_pools {
            peer.send([POOL, 7, 20, 0, 0, 0], &[], &[]);
        }
        peer.send([REFERENCE | LAST | 1 << 16, 7, 0, 1, 0, 1], &[], &[]);
        assert_eq!(fault(&mut channel), PeerFault::Pool);
    }
}

/// Packets that a hostile peer sends.
type Mistake<'a> = &'a dyn Fn(&Peer);

#[test]
fn references_and_blocks_of_a_pool_that_are_none() {
    let (block, _mapping) = page();
    let unsealed = millrace_sys::create_memory_file("test", BLOCK_BYTES as u64).unwrap();
    let join = |then: Mistake<'_>| {
        let (mut channel, mut peer) =
            channel_with(|options| ChannelOptions { joins_pools: true, ..options });
        peer.hello(0);
        peer.send([POOL, 7, 20, 0, 0, 0], &[], &[]);
        then(&peer);
        error(&mut channel)
    };
    let faults: [(Mistake<'_>, PeerFault); 6] = [
        (&|peer| peer.send([POOL, 7, 20, 0, 0, 0], &[], &[]), PeerFault::Pool),
        (&|peer| peer.send([POOL, 8, 0, 0, 0, 0], &[], &[]), PeerFault::Frame),
        (&|peer| peer.send([POOL, 8, u32::MAX, 0, 0, 0], &[], &[]), PeerFault::Frame),
        (&|peer| peer.send([BLOCK, 7, 20, 1, 0, 0], &[], &[]), PeerFault::Frame),
        (
            &|peer| peer.send([REFERENCE | LAST | 1 << 16, 7, 0, 1, 0, 1], &[], &[]),
            PeerFault::Block,
        ),
        (
            &|peer| peer.send([REFERENCE | LAST | 2 << 16, 7, 511, 1, 0, 1], &[], &[]),
            PeerFault::Extent,
        ),
    ];
    for (then, expected) in faults {
        assert_eq!(join(then), ChannelError::Peer(expected));
    }
    for (file, expected) in [
        (&block, RefusedMemory::TooShort { length: 4096, expected: BLOCK_BYTES as u64 }),
        (&unsealed, RefusedMemory::Unsealed),
    ] {
        let send = |peer: &Peer| peer.send([BLOCK, 7, 0, 1, 0, 0], &[], &[file.as_fd()]);
        assert_eq!(join(&send), ChannelError::Refused(expected));
    }
}

#[test]
fn a_process_that_has_ended() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let process = millrace_sys::open_process(child.id()).unwrap();
    child.wait().unwrap();
    for ring_frames in [0, 8] {
        let (mut channel, peer) = channel();
        let (page, _mapping) = page();
        let files = [page.as_fd(), process.as_fd()];
        peer.send([HELLO, 0, ring_frames, 0, 0, 0], &[], &files);
        assert!(channel.receive().unwrap().is_none());
        assert_eq!(channel.send(&Aggregate::new()).unwrap_err(), ChannelError::Closed);
    }
}

#[test]
fn floods_do_not_keep_a_call_busy() {
    let (mut channel, mut peer) = channel();
    peer.hello(8);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let wake = frame([WAKE, 0, 0, 0, 0, 0]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let _ = millrace_sys::send_packet(peer.socket.as_fd(), &[&wake], &[]);
            }
        });
        for _ in 0..1000 {
            assert!(matches!(channel.try_receive(), Ok(Received::Nothing)));
        }
        is_done.store(true, Ordering::Relaxed);
    });
    // Packets that its ring does not announce.
    for _ in 0..20 {
        peer.send([BYTES | LAST, 0, 0, 0, 0, 1], b"z", &[]);
    }
    let error = (0..10).find_map(|_| channel.try_receive().err());
    assert_eq!(error, Some(ChannelError::Peer(PeerFault::Packets)));
}

#[test]
fn the_end_with_unread_packets_loses_nothing() {
    let (mut channel, peer) = {
        let (channel, mut peer) = channel();
        peer.hello(0);
        (channel, peer)
    };
    peer.send([BYTES, 0, 0, 0, 0, 3], b"abc", &[]);
    peer.send([BYTES | LAST, 0, 0, 0, 0, 3], b"def", &[]);
    peer.send([BYTES, 0, 0, 0, 0, 3], b"ghi", &[]);
    // It has not read the first packet of the channel.
    drop(peer);
    assert_eq!(channel.receive().unwrap().unwrap().to_vec(), b"abcdef");
    assert_eq!(channel.receive().unwrap_err(), ChannelError::Closed, "an aggregate was cut");
}

#[test]
fn an_aggregate_without_end() {
    let (mut channel, mut peer) = channel();
    peer.hello(0);
    for part in 0..=PARTS_PER_AGGREGATE_MAX {
        peer.send([BYTES, 0, 0, 0, 0, 1], b"z", &[]);
        let received = channel.try_receive();
        if part < PARTS_PER_AGGREGATE_MAX {
            assert!(matches!(received, Ok(Received::Nothing)), "{part} {received:?}");
        }
    }
    assert_eq!(fault(&mut channel), PeerFault::Parts);
}

/// Returns an aggregate of this many files of 2 MB.
fn files(count: usize) -> Aggregate {
    let mut all = Aggregate::new();
    for _ in 0..count {
        let mut memory = UnsealedMemory::new(BLOCK_BYTES).expect("memory");
        memory.advance(BLOCK_BYTES);
        let file = memory.seal().expect("it is unmapped").into_slice().expect("a mapping");
        all.concatenate(file.into());
    }
    all
}

/// Options for aggregates that are copied through the ring, and for this many files of 2 MB.
fn options_for(files: usize) -> ChannelOptions {
    let slab = Slab::on_heap(SLAB_BYTES_MIN).expect("a size that is allowed");
    let account = Account::new((files * BLOCK_BYTES) as u64);
    ChannelOptions { account, copied_max: usize::MAX, ..ChannelOptions::new(slab) }
}

/// Sends aggregates from a thread. The receiver may end the channel first.
fn send_all(socket: OwnedFd, aggregates: Vec<Aggregate>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut channel = Channel::new(socket, options_for(0)).expect("a channel");
        let _ =
            aggregates.iter().try_for_each(|of| channel.send(of)).and_then(|()| channel.close());
    })
}

#[test]
fn files_wait_until_others_are_dropped() {
    let (one, other) = channel_sockets().expect("sockets");
    let mut receiver = Channel::new(one, options_for(17)).expect("a channel");
    let sender = send_all(other, vec![files(10), files(8)]);
    let first = receiver.receive().expect("it fits").expect("an aggregate");
    let error = loop {
        match receiver.try_receive() {
            Ok(Received::Nothing) => std::thread::yield_now(),
            other => break other.expect_err("the first one holds the memory"),
        }
    };
    assert!(matches!(error, ChannelError::NoMemory(_)), "{error}");
    drop(first);
    let second = receiver.receive().expect("it fits now").expect("an aggregate");
    assert_eq!(second.len(), 8 * BLOCK_BYTES as u64);
    drop(receiver);
    sender.join().expect("it does not panic");
}

#[test]
fn aggregates_longer_than_the_memory_for_them() {
    let slab = Slab::on_heap(SLAB_BYTES_MIN).expect("a size that is allowed");
    let quarter = Aggregate::from_bytes(&vec![7; SLAB_BYTES_MIN / 4], &slab).expect("memory");
    let copied = |more: u64| {
        let mut all = quarter.clone();
        all.concatenate(quarter.clone());
        all.concatenate(quarter.slice(0..more));
        all
    };
    let refused =
        ChannelError::Refused(RefusedMemory::TooLong { memory: BLOCK_BYTES as u64, left: 0 });
    for (aggregate, expected) in [
        (copied(0), None),
        (copied(1), Some(ChannelError::Peer(PeerFault::Aggregate))),
        (files(17), None),
        (files(18), Some(refused)),
    ] {
        let (one, other) = channel_sockets().expect("sockets");
        let mut receiver = Channel::new(one, options_for(17)).expect("a channel");
        let sender = send_all(other, vec![aggregate]);
        let received = receiver.receive();
        assert_eq!(received.as_ref().err(), expected.as_ref());
        drop((received, receiver));
        sender.join().expect("it does not panic");
    }
}

#[test]
fn a_peer_that_reads_nothing_blocks_no_one() {
    for ring_frames in [0, 16] {
        let (mut channel, mut peer) =
            channel_with(|options| ChannelOptions { ring_frames, ..options });
        peer.hello(8);
        let mut memory = UnsealedMemory::new(100).unwrap();
        memory.write(&[1; 100]);
        let aggregate = Aggregate::from(memory.seal().unwrap().into_slice().unwrap());
        let sent = (0..10_000).take_while(|_| channel.try_send(&aggregate).unwrap()).count();
        assert!(sent < 5_000, "{sent}");
    }
}

/// Creates a pool with a hostile member, which has joined with the returned ledger, and returns the
/// file of its first block.
fn hostile_member(
    channel: &mut Channel,
    peer: &mut Peer,
    quota: u64,
) -> (Pool, MappedFile, OwnedFd) {
    peer.hello(0);
    let pool = Pool::new(4 * BLOCK_BYTES, quota, &mut [channel]).expect("a pool");
    let ledger = millrace_sys::create_memory_file("test", 4096).expect("memory");
    let words = MappedFile::writable(ledger.as_fd(), 4096).expect("a mapping");
    millrace_sys::seal_for_readers(ledger.as_fd()).expect("seals");
    peer.send([LEDGER, pool.number(), 0, 0, 0, 0], &[], &[ledger.as_fd()]);
    assert!(channel.flush().expect("the peer is there"));
    let mut buffer = pool.allocate(4096..=4096).expect("there is room");
    buffer.write(&[7; 4096]);
    channel.send(&buffer.freeze().into()).expect("the peer is there");
    let block = peer.receive(BLOCK).pop().expect("a block");
    (pool, words, block)
}

#[test]
fn a_member_cannot_change_a_pool() {
    let (mut channel, mut peer) = channel();
    let (pool, _ledger, block) = hostile_member(&mut channel, &mut peer, u64::MAX);
    let path = format!("/proc/self/fd/{}", block.as_raw_fd());
    let reopened = File::options().read(true).write(true).open(path).unwrap();
    for file in [File::from(block), reopened] {
        assert!(file.write_all_at(b"8", 0).is_err());
        assert!(file.set_len(0).is_err() && file.set_len(4 << 20).is_err());
        assert!(MappedFile::writable(file.as_fd(), 4096).is_err());
        assert!(millrace_sys::punch_hole(file.as_fd(), 0, 4096).is_err());
        assert_eq!(millrace_sys::seal_contents(file.as_fd()), Err(Errno::PERM));
    }
    let mut next = pool.allocate(4096..=4096).unwrap();
    next.write(&[8; 4096]);
    assert_eq!(&*next.freeze(), [8; 4096]);
}

#[test]
fn a_ledger_that_claims_everything() {
    let (mut channel, mut peer) =
        channel_with(|options| ChannelOptions { in_flight_max: u64::MAX, ..options });
    let (pool, ledger, _block) = hostile_member(&mut channel, &mut peer, 1 << 20);
    for index in 0..PAGE_WORDS {
        word(&ledger, index).store(u64::MAX, Ordering::SeqCst);
    }
    for round in 0..200_u8 {
        let mut buffer = loop {
            match pool.allocate(500_000..=500_000) {
                Ok(buffer) => break buffer,
                Err(_) => {
                    // It passes everything at once, so that only its ledger keeps memory.
                    peer.word(1).fetch_add(1, Ordering::SeqCst);
                    channel.flush().unwrap();
                }
            }
        };
        buffer.write(&vec![round; 500_000]);
        let slice = buffer.freeze();
        assert!(slice.iter().all(|byte| *byte == round));
        if !channel.try_send(&slice.into()).unwrap() {
            break;
        }
        while peer.word(1).load(Ordering::SeqCst) < u64::from(round) + 2 {
            peer.word(1).fetch_add(1, Ordering::SeqCst);
        }
    }
    assert_eq!(pool.stats().excluded_members, 1);
    assert!(pool.allocate(500_000..=500_000).is_ok());
}

#[test]
fn a_member_that_joins_twice() {
    let (mut channel, mut peer) = channel();
    let (pool, _ledger, _block) = hostile_member(&mut channel, &mut peer, u64::MAX);
    let (again, _mapping) = page();
    peer.send([LEDGER, pool.number(), 0, 0, 0, 0], &[], &[again.as_fd()]);
    assert_eq!(fault(&mut channel), PeerFault::Pool);
    let (mut other, mut peer) = channel_with(|options| options);
    peer.hello(0);
    peer.send([LEDGER, pool.number(), 0, 0, 0, 0], &[], &[again.as_fd()]);
    assert!(matches!(other.try_receive(), Ok(Received::Nothing)), "it is no member");
}
