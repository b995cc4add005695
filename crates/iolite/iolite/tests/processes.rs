//! Several processes share pools, and are killed at any moment: no other process gets a wrong byte,
//! no memory or descriptor is lost, and no pool stops.
//!
//! `KILLS` is the number of processes that are killed in each role (30 if it is not set).

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use iolite::limits::{BLOCK_BYTES, SLAB_BYTES_MIN};
use iolite::{Aggregate, Channel, ChannelError, ChannelOptions, Pool, Slab, channel_sockets};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// The variable that makes this program play a role; its standard input is the socket.
const ROLE: &str = "IOLITE_TEST_ROLE";
/// More blocks than there are kept aggregates: there is always room for the longest one.
const POOL_BYTES: usize = 20 * BLOCK_BYTES;
const LENGTHS: [usize; 4] = [100, 5_000, 70_000, 600_000];

fn options() -> ChannelOptions {
    let slab = Slab::on_heap(SLAB_BYTES_MIN).expect("the size is allowed");
    ChannelOptions { joins_pools: true, ..ChannelOptions::new(slab) }
}

/// Starts this program in a role, at the other end of the returned channel.
fn start(role: &str) -> (Child, Channel) {
    let (here, there) = channel_sockets().expect("sockets");
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["plays_a_role", "--exact", "--nocapture"])
        .env(ROLE, role)
        .stdin(Stdio::from(there))
        .stdout(Stdio::null())
        .spawn()
        .expect("this program");
    (child, Channel::new(here, options()).expect("a channel"))
}

/// Fills a slice with the words of a number, and returns it.
fn filled(pool: &Pool, number: u64) -> Option<Aggregate> {
    let length = LENGTHS[number as usize % LENGTHS.len()];
    let mut buffer = pool.allocate(length..=length).ok()?;
    buffer.unfilled()[..length].chunks_mut(8).for_each(|word| {
        word.copy_from_slice(&number.to_ne_bytes()[..word.len()]);
    });
    buffer.advance(length);
    Some(buffer.freeze().into())
}

fn check(aggregate: &Aggregate, number: u64) {
    assert_eq!(aggregate.len(), LENGTHS[number as usize % LENGTHS.len()] as u64);
    let bytes = aggregate.to_vec();
    let is_right = |word: &[u8]| *word == number.to_ne_bytes()[..word.len()];
    assert!(bytes.chunks(8).all(is_right), "buffer {number}");
}

/// Not a test of its own: a process that another test starts.
#[test]
fn plays_a_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let socket: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut channel = Channel::new(socket, options()).unwrap();
    if role == "produce" {
        let pool = Pool::new(POOL_BYTES, u64::MAX, &mut [&mut channel]).unwrap();
        for number in 0.. {
            let aggregate = loop {
                if let Some(aggregate) = filled(&pool, number) {
                    break aggregate;
                }
                channel.flush().unwrap();
                std::thread::yield_now();
            };
            channel.send(&aggregate).unwrap();
        }
    }
    // A consumer keeps some of the aggregates for a while.
    let mut kept = Vec::new();
    let mut number = 0;
    while let Some(aggregate) = channel.receive().unwrap() {
        check(&aggregate, number);
        if number % 3 == 0 {
            kept.push((number, aggregate));
        }
        if kept.len() == 3 {
            kept.drain(..).for_each(|(number, aggregate)| check(&aggregate, number));
        }
        number += 1;
    }
}

fn kills() -> u64 {
    std::env::var("KILLS").ok().map_or(30, |kills| kills.parse().expect("a number"))
}

#[test]
fn processes_are_killed_at_any_moment() {
    let mut random = Pcg64Mcg::seed_from_u64(28);
    let before = millrace_sys::descriptor_count().unwrap();
    a_child_does_not_keep_the_channel_of_its_parent();
    consumers_are_killed(&mut random);
    producers_are_killed(&mut random);
    assert_eq!(millrace_sys::descriptor_count().unwrap(), before);
}

/// A process that ends while its child keeps its end of the channel open.
fn a_child_does_not_keep_the_channel_of_its_parent() {
    for ring_frames in [0, 16] {
        while !a_process_ends_before_its_child(ring_frames) {}
    }
}

/// Returns whether the process has joined the pool. It is excluded if its socket has no room for
/// the blocks when it joins.
fn a_process_ends_before_its_child(ring_frames: usize) -> bool {
    let (here, there) = channel_sockets().expect("sockets");
    let kept = there.try_clone().expect("a descriptor");
    let options = ChannelOptions { ring_frames, ..options() };
    let mut channel = Channel::new(here, options).expect("a channel");
    let mut consumer = Command::new(std::env::current_exe().expect("this program"))
        .args(["plays_a_role", "--exact", "--nocapture"])
        .env(ROLE, "consume")
        .stdin(Stdio::from(there))
        .stdout(Stdio::null())
        .spawn()
        .expect("this program");
    let pool = Pool::new(POOL_BYTES, u64::MAX, &mut [&mut channel]).expect("a pool");
    let mut number = 0;
    let mut stats = pool.stats();
    while stats.passed_extents == 0 && stats.excluded_members == 0 {
        channel.send(&filled(&pool, number).expect("there is room")).expect("it receives");
        channel.flush().expect("it receives");
        (number, stats) = (number + 1, pool.stats());
    }
    consumer.kill().expect("it runs");
    consumer.wait().expect("it was started");
    assert!(channel.receive().expect("nothing was cut").is_none());
    let next = filled(&pool, 5).expect("there is room");
    assert_eq!(channel.send(&next).expect_err("it has ended"), ChannelError::Closed);
    drop(kept);
    stats.passed_extents > 0
}

fn wait_a_moment(random: &mut Pcg64Mcg) {
    std::thread::sleep(Duration::from_micros(random.next_u64() % 3_000));
}

/// One of two consumers is killed and started again; the other one receives everything.
fn consumers_are_killed(random: &mut Pcg64Mcg) {
    let (mut survivor, mut to_survivor) = start("consume");
    let mut sent = 0;
    for _ in 0..kills() {
        let (mut victim, mut to_victim) = start("consume");
        let members = &mut [&mut to_survivor, &mut to_victim];
        let pool = Pool::new(POOL_BYTES, POOL_BYTES as u64 / 2, members).expect("a pool");
        let ends_at = random.next_u64() % 40;
        let mut to_victim = Some(to_victim);
        for number in 0..ends_at + 20 {
            if number == ends_at {
                wait_a_moment(random);
                victim.kill().expect("it runs");
            }
            let aggregate = loop {
                if let Some(aggregate) = filled(&pool, sent) {
                    break aggregate;
                }
                to_survivor.flush().expect("the survivor is there");
                if let Some(channel) = &mut to_victim {
                    let _ = channel.flush();
                }
                std::thread::yield_now();
            };
            to_survivor.send(&aggregate).expect("the survivor is there");
            sent += 1;
            // The numbers of the victim begin at 0.
            let Some(channel) = &mut to_victim else { continue };
            let copy = filled(&pool, number);
            match copy.map_or(Ok(false), |copy| channel.try_send(&copy)) {
                Ok(true) if number < ends_at => {}
                Ok(_) if number < ends_at => {
                    // It would miss a number.
                    victim.kill().expect("it runs");
                    to_victim = None;
                }
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error, ChannelError::Closed);
                    to_victim = None;
                }
            }
        }
        let status = victim.wait().expect("it was started");
        assert_eq!(status.signal(), Some(9), "it found a wrong byte");
        drop(to_victim);
        // The survivor releases everything after a while, and the victim holds nothing.
        while pool.stats().passed_extents > 3 {
            to_survivor.flush().expect("the survivor is there");
            pool.collect();
            std::thread::yield_now();
        }
    }
    to_survivor.close().expect("the survivor receives everything");
    assert!(survivor.wait().expect("it was started").success());
}

/// Producers are killed while a consumer receives and keeps their aggregates.
fn producers_are_killed(random: &mut Pcg64Mcg) {
    for round in 0..kills() {
        let (mut producer, mut channel) = start("produce");
        let ends_at = random.next_u64() % 60;
        let mut kept = Vec::new();
        let mut number = 0;
        loop {
            if number == ends_at {
                wait_a_moment(random);
                producer.kill().expect("it runs");
            }
            match channel.receive() {
                Ok(Some(aggregate)) => {
                    check(&aggregate, number);
                    kept.push((number, aggregate));
                    if kept.len() > 8 {
                        kept.remove(random.next_u64() as usize % 8);
                    }
                    number += 1;
                }
                Ok(None) | Err(ChannelError::Closed) if number >= ends_at => break,
                other => panic!("round {round}: {other:?}"),
            }
        }
        producer.wait().expect("it was started");
        kept.iter().for_each(|(number, aggregate)| check(aggregate, *number));
    }
}
