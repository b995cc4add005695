//! Two ends of a channel in one process: which slices are passed by reference, which are copied,
//! and when memory is free again. tests/processes.rs has several processes.

use std::thread;

use iolite::limits::{BLOCK_BYTES, SLAB_BYTES_MIN};
use iolite::{
    Account, Aggregate, Channel, ChannelError, ChannelOptions, MemoryKind, Pool, Received, Slab,
    Slice, UnsealedMemory, channel_sockets,
};

fn options(ring_frames: usize) -> ChannelOptions {
    let slab = Slab::on_heap(SLAB_BYTES_MIN).expect("the size is allowed");
    ChannelOptions { ring_frames, joins_pools: true, ..ChannelOptions::new(slab) }
}

fn pair(ring_frames: usize) -> [Channel; 2] {
    let (here, there) = channel_sockets().expect("sockets");
    [here, there].map(|socket| Channel::new(socket, options(ring_frames)).expect("a channel"))
}

/// Creates a pool of `blocks` at `owner`, and lets `member` join.
fn pool(blocks: usize, owner: &mut Channel, member: &mut Channel) -> Pool {
    let pool = Pool::new(blocks * BLOCK_BYTES, u64::MAX, &mut [owner]).expect("a pool");
    assert!(matches!(member.try_receive(), Ok(Received::Nothing)));
    assert!(owner.flush().expect("the member is there"));
    pool
}

fn slice(slab: &Slab, bytes: &[u8]) -> Slice {
    let length = bytes.len();
    let mut buffer = slab.allocate(MemoryKind::Copied, length..=length, 0).expect("memory");
    buffer.write(bytes);
    buffer.freeze()
}

fn filled(pool: &Pool, bytes: &[u8]) -> Slice {
    let mut buffer = pool.allocate(bytes.len()..=bytes.len()).expect("there is room");
    buffer.write(bytes);
    buffer.freeze()
}

fn received(channel: &mut Channel) -> Aggregate {
    match channel.try_receive().expect("the sender is there") {
        Received::Aggregate(aggregate) => aggregate,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_slice_of_a_pool_is_read_where_it_is() {
    for ring_frames in [0, 16] {
        let [mut owner, mut member] = pair(ring_frames);
        let pool = pool(2, &mut owner, &mut member);
        let mut sent = Aggregate::from(filled(&pool, b"by reference"));
        sent.append(filled(&pool, &[7; 100_000]));
        owner.send(&sent).unwrap();
        let first = received(&mut member);
        assert_eq!(first.to_vec(), sent.to_vec());
        let ids: Vec<_> = first.slices().map(Slice::id).collect();
        assert!(ids.iter().all(|id| id.pool != 0 && id.pool != pool.number()));
        owner.send(&sent).unwrap();
        let second = received(&mut member);
        assert_eq!(second.slices().map(Slice::id).collect::<Vec<_>>(), ids, "the same contents");
        assert_eq!(member.maps(), 1, "each file is mapped once");
        drop((sent, first));
        assert!(matches!(member.try_receive(), Ok(Received::Nothing)));
        owner.flush().unwrap();
        pool.collect();
        assert_eq!(pool.stats().passed_extents, 2, "the member holds them");
        drop(second);
        pool.collect();
        assert_eq!((pool.stats().passed_extents, pool.stats().live), (0, 0));
    }
}

#[test]
fn memory_is_reused_when_the_member_has_released_it() {
    let [mut owner, mut member] = pair(16);
    let pool = pool(1, &mut owner, &mut member);
    for round in 0..100_u8 {
        let sent = Aggregate::from(filled(&pool, &vec![round; 300_000]));
        owner.send(&sent).unwrap();
        drop(sent);
        let got = received(&mut member);
        assert!(got.slices().all(|slice| slice.iter().all(|byte| *byte == round)));
    }
    assert_eq!((pool.stats().created_blocks, member.maps()), (1, 1));
    assert!(pool.stats().passed_extents <= 4);
}

#[test]
fn other_slices_are_copied() {
    for ring_frames in [0, 16] {
        let [mut sender, mut receiver] = pair(ring_frames);
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut sent = Aggregate::new();
        for length in [10, 20_000, 70_000] {
            let bytes = vec![length as u8; length];
            let mut buffer = slab.allocate(MemoryKind::ZeroCopy, length..=length, 0).unwrap();
            buffer.write(&bytes);
            sent.append(buffer.freeze());
        }
        sender.send(&sent).unwrap();
        let got = received(&mut receiver);
        assert_eq!(got.to_vec(), sent.to_vec());
        sender.send(&Aggregate::new()).unwrap();
        assert!(received(&mut receiver).is_empty());
    }
}

#[test]
fn bytes_of_any_length_pass_through_a_small_ring() {
    let (here, there) = channel_sockets().unwrap();
    let small = |ring_bytes| ChannelOptions { ring_bytes, ..options(16) };
    let mut sender = Channel::new(here, small(1000)).unwrap();
    let mut receiver = Channel::new(there, options(16)).unwrap();
    let reader = thread::spawn(move || {
        let mut received = Vec::new();
        while let Some(aggregate) = receiver.receive().unwrap() {
            received.push(aggregate.to_vec());
        }
        received
    });
    let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
    let lengths = [1, 999, 7, 500, 500, 8, 1001, 33, 992, 1000, 3, 250, 250, 250, 250];
    let mut sent = Vec::new();
    for (number, length) in lengths.into_iter().cycle().take(600).enumerate() {
        let bytes: Vec<u8> = (0..length).map(|at| (number + at) as u8).collect();
        let mut buffer = slab.allocate(MemoryKind::Copied, length..=length, 0).unwrap();
        buffer.write(&bytes);
        sender.send(&buffer.freeze().into()).unwrap();
        sent.push(bytes);
    }
    sender.close().unwrap();
    assert!(reader.join().unwrap() == sent);
}

#[test]
fn a_sealed_file_travels_once() {
    let [mut sender, mut receiver] = pair(0);
    let mut memory = UnsealedMemory::new(100_000).unwrap();
    memory.write(&[5; 100_000]);
    let whole = memory.seal().unwrap().into_slice().unwrap();
    let mut ids = Vec::new();
    for start in [0, 10, 99_999] {
        sender.send(&whole.slice(start..100_000).into()).unwrap();
        let got = received(&mut receiver);
        let slices: Vec<_> = got.slices().collect();
        assert_eq!((slices.len(), slices[0].len()), (1, 100_000 - start));
        ids.push((slices[0].id().pool, slices[0].id().generation));
    }
    ids.dedup();
    assert_eq!(ids.len(), 1, "the receiver has one file");
}

#[test]
fn a_file_that_is_dropped_is_forgotten() {
    let account = Account::new(8 << 20);
    let (here, there) = channel_sockets().unwrap();
    let mut sender = Channel::new(here, options(16)).unwrap();
    let receiving = ChannelOptions { account: account.clone(), ..options(16) };
    let mut receiver = Channel::new(there, receiving).unwrap();
    for round in 0..100_u8 {
        let mut memory = UnsealedMemory::new(1 << 20).unwrap();
        memory.write(&vec![round; 1 << 20]);
        let file = memory.seal().unwrap().into_slice().unwrap();
        sender.send(&file.into()).unwrap();
        let got = received(&mut receiver);
        assert!(got.slices().all(|slice| slice.iter().all(|byte| *byte == round)));
        assert!(account.held() <= 3 << 20, "{}", account.held());
    }
}

#[test]
fn a_sender_waits_for_room() {
    for ring_frames in [0, 4] {
        let [mut sender, mut receiver] = pair(ring_frames);
        let reader = thread::spawn(move || {
            let mut count = 0;
            while let Some(aggregate) = receiver.receive().unwrap() {
                assert_eq!(aggregate.len(), 20_000 * (1 + count % 3));
                count += 1;
            }
            count
        });
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        for count in 0..300 {
            let mut sent = Aggregate::new();
            for _ in 0..1 + count % 3 {
                let mut buffer = slab.allocate(MemoryKind::Copied, 20_000..=20_000, 0).unwrap();
                buffer.write(&[1; 20_000]);
                sent.append(buffer.freeze());
            }
            sender.send(&sent).unwrap();
        }
        sender.close().unwrap();
        assert_eq!(reader.join().unwrap(), 300);
    }
}

/// Returns whether the socket of a channel is readable.
fn is_readable(channel: &Channel) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let socket = channel.socket();
    let mut sockets = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    poll(&mut sockets, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll") > 0
}

#[test]
fn a_waiting_side_is_woken_once() {
    let [mut sender, mut receiver] = pair(16);
    let slice = slice(&Slab::on_heap(SLAB_BYTES_MIN).unwrap(), b"bytes");
    for _ in 0..3 {
        assert!(matches!(receiver.try_receive(), Ok(Received::Nothing)));
        assert!(!receiver.prepare_to_wait().unwrap() && !is_readable(&receiver));
        for _ in 0..5 {
            sender.send(&slice.clone().into()).unwrap();
        }
        assert!(is_readable(&receiver));
        for _ in 0..5 {
            assert_eq!(received(&mut receiver).to_vec(), b"bytes");
        }
        assert!(matches!(receiver.try_receive(), Ok(Received::Nothing)));
        assert!(!is_readable(&receiver), "there was one packet");
        sender.send(&slice.clone().into()).unwrap();
        assert!(!is_readable(&receiver), "it does not wait");
        assert!(receiver.prepare_to_wait().unwrap());
        assert_eq!(received(&mut receiver).to_vec(), b"bytes");
    }
}

#[test]
fn a_full_ring_makes_the_socket_readable_when_it_has_room() {
    let [mut sender, mut receiver] = pair(4);
    let slice = slice(&Slab::on_heap(SLAB_BYTES_MIN).unwrap(), b"bytes");
    let (mut sent, mut got) = (0, 0);
    for _ in 0..5 {
        while sender.try_send(&slice.clone().into()).unwrap() {
            sent += 1;
        }
        assert!(matches!(sender.try_receive(), Ok(Received::Nothing)));
        assert!(!sender.prepare_to_wait().unwrap() && !is_readable(&sender));
        for _ in 0..2 {
            assert_eq!(received(&mut receiver).to_vec(), b"bytes");
            got += 1;
        }
        assert!(is_readable(&sender));
        assert!(matches!(sender.try_receive(), Ok(Received::Nothing)));
        assert!(sender.flush().unwrap());
    }
    while let Ok(Received::Aggregate(_)) = receiver.try_receive() {
        got += 1;
    }
    assert_eq!(got, sent);
}

#[test]
fn a_pool_with_a_slow_member_makes_its_sender_wait() {
    let [mut owner, mut member] = pair(16);
    let pool = pool(2, &mut owner, &mut member);
    let reader = thread::spawn(move || {
        let mut count = 0_u8;
        while let Some(aggregate) = member.receive().unwrap() {
            thread::yield_now();
            assert!(aggregate.slices().all(|slice| slice.iter().all(|byte| *byte == count)));
            count += 1;
        }
        count
    });
    for count in 0..200_u8 {
        let slice = loop {
            match pool.allocate(500_000..=500_000) {
                Ok(mut buffer) => {
                    buffer.write(&vec![count; 500_000]);
                    break buffer.freeze();
                }
                Err(_) => {
                    owner.flush().unwrap();
                    thread::yield_now();
                }
            }
        };
        owner.send(&slice.into()).unwrap();
    }
    owner.close().unwrap();
    assert_eq!(reader.join().unwrap(), 200);
    assert!(pool.stats().blocks <= 2);
}

#[test]
fn memory_that_was_sent_is_retired() {
    let [mut owner, mut member] = pair(16);
    let pool = pool(2, &mut owner, &mut member);
    for round in 0..50_u8 {
        let sent = filled(&pool, &[round; 5000]);
        owner.send(&sent.clone().into()).unwrap();
        let got = received(&mut member);
        if round % 2 == 0 {
            assert!(sent.sendfile_source().is_some());
        } else {
            assert!(got.slices().all(|slice| slice.sendfile_source().is_some()));
        }
        drop((sent, got));
        assert!(matches!(member.try_receive(), Ok(Received::Nothing)));
        owner.flush().unwrap();
        pool.collect();
        // The member reads that the block is retired, and unmaps it.
        assert!(matches!(member.try_receive(), Ok(Received::Nothing)));
        pool.collect();
        let stats = pool.stats();
        assert_eq!((stats.blocks, stats.retired_blocks, stats.live), (0, 0, 0), "{round}");
    }
    assert_eq!((pool.stats().created_blocks, member.maps()), (50, 50));
}

#[test]
fn a_member_that_unmaps_nothing_gets_copies() {
    let [mut owner, mut member] = pair(256);
    let pool = pool(2, &mut owner, &mut member);
    let mut kept = Vec::new();
    for round in 0..60_u8 {
        let sent = filled(&pool, &[round; 5000]);
        assert!(sent.sendfile_source().is_some());
        owner.send(&sent.clone().into()).unwrap();
        drop(sent);
        owner.flush().unwrap();
        // It takes references, but drops them without reading packets.
        if round < 40 {
            kept.push(received(&mut member));
        }
        if round % 4 == 3 {
            kept.clear();
        }
        pool.collect();
    }
    let stats = pool.stats();
    assert!(stats.retired_blocks <= 17 && stats.blocks <= 2, "{stats:?}");
    while let Received::Aggregate(got) = member.try_receive().unwrap() {
        assert_eq!(got.len(), 5000);
    }
}

#[test]
fn a_member_above_its_quota_gets_copies() {
    let [mut owner, mut member] = pair(256);
    let pool = Pool::new(4 * BLOCK_BYTES, 2 * BLOCK_BYTES as u64, &mut [&mut owner]).unwrap();
    assert!(matches!(member.try_receive(), Ok(Received::Nothing)));
    let mut kept = Vec::new();
    for round in 0..30_u8 {
        let Ok(mut buffer) = pool.allocate(500_000..=500_000) else {
            pool.collect();
            assert_eq!(pool.stats().excluded_members, 1);
            break;
        };
        buffer.write(&vec![round; 500_000]);
        owner.send(&buffer.freeze().into()).unwrap();
        kept.push(received(&mut member));
        owner.flush().unwrap();
        if pool.stats().excluded_members == 1 {
            break;
        }
    }
    assert_eq!(pool.stats().excluded_members, 1);
    // Slices that it keeps never change, and the owner goes on.
    for round in 100..130_u8 {
        let sent = filled(&pool, &vec![round; 500_000]);
        owner.send(&sent.into()).unwrap();
        let got = received(&mut member);
        assert!(got.slices().all(|slice| slice.iter().all(|byte| *byte == round)));
    }
    for (round, aggregate) in kept.iter().enumerate() {
        assert!(aggregate.slices().all(|slice| slice.iter().all(|byte| *byte == round as u8)));
    }
}

#[test]
fn the_end_is_seen_after_everything_was_received() {
    for ring_frames in [0, 16] {
        let [mut owner, mut member] = pair(ring_frames);
        let pool = pool(2, &mut owner, &mut member);
        owner.send(&filled(&pool, b"last").into()).unwrap();
        let closing = thread::spawn(move || owner.close());
        assert_eq!(member.receive().unwrap().unwrap().to_vec(), b"last");
        assert!(member.receive().unwrap().is_none());
        closing.join().unwrap().unwrap();
        assert_eq!(member.send(&Aggregate::new()).unwrap_err(), ChannelError::Closed);
    }
}

#[test]
fn an_aggregate_may_have_more_parts_than_the_ring() {
    let [mut owner, mut member] = pair(4);
    let pool = pool(2, &mut owner, &mut member);
    let mut sent = Aggregate::new();
    for part in 0..100_u8 {
        sent.append(filled(&pool, &[part; 4096]).slice(0..1 + usize::from(part)));
    }
    let expected = sent.to_vec();
    let reader = thread::spawn(move || member.receive().unwrap().unwrap().to_vec());
    owner.send(&sent).unwrap();
    owner.close().unwrap();
    assert_eq!(reader.join().unwrap(), expected);
}

#[test]
fn bytes_that_find_no_memory_are_received_later() {
    let [mut sender, mut receiver] = pair(16);
    let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
    let mut buffer = slab.allocate(MemoryKind::Copied, 10_000..=10_000, 0).unwrap();
    buffer.write(&[3; 10_000]);
    let sent = Aggregate::from(buffer.freeze());
    let mut kept = Vec::new();
    let error = loop {
        sender.send(&sent).unwrap();
        match receiver.try_receive() {
            Ok(Received::Aggregate(aggregate)) => kept.push(aggregate),
            other => break other.unwrap_err(),
        }
    };
    assert!(matches!(error, ChannelError::NoMemory(_)), "{error:?}");
    assert_eq!(receiver.try_receive().unwrap_err(), error);
    assert!(kept.len() > 200, "most of the slab was used: {}", kept.len());
    kept.clear();
    assert_eq!(received(&mut receiver).to_vec(), sent.to_vec());
}

#[test]
fn a_pool_ends_with_its_last_slice() {
    let [mut owner, mut member] = pair(16);
    for _ in 0..50 {
        let pool = pool(2, &mut owner, &mut member);
        owner.send(&filled(&pool, b"short life").into()).unwrap();
        drop(pool);
        let got = received(&mut member);
        assert!(matches!(member.try_receive(), Ok(Received::Nothing)));
        owner.flush().unwrap();
        assert_eq!(got.to_vec(), b"short life", "the member keeps it");
        assert_eq!(member.maps(), 1);
        assert!(matches!(member.try_receive(), Ok(Received::Nothing)));
        assert_eq!(member.maps(), 0, "the member has left the pool");
    }
}
