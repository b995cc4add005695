//! Each kind of trouble alone, as a worker sees it.

mod recorder;

use std::time::Duration;

use millrace_engine::{Address, CompletionEvent, Engine, Error, Instant, Wake};
use millrace_sim::{Faults, ReadResult, ShortagePlan, World, WorldPlan, run};
use recorder::{Recorder, TOKEN, connected, run_for, world};

#[test]
fn a_vanished_peer_is_silent_and_a_send_to_it_times_out() {
    let (world, mut recorder) = world(|plan| plan.vanish = 1000);
    let (fd, peer) = connected(&world, &mut recorder);
    recorder.engine.recv(&fd, 100, TOKEN);
    while !matches!(world.read(peer, 100), ReadResult::Failed(_)) {
        world.write(peer, b"x").expect("it is not gone yet");
        run_for(&world, &mut recorder, 1);
        if recorder.completions.pop().is_some() {
            recorder.engine.recv(&fd, 100, TOKEN);
        }
    }
    run_for(&world, &mut recorder, 7200);
    assert!(recorder.completions.is_empty(), "{:?}", recorder.completions);
    recorder.engine.send(&fd, &[b"bytes"], TOKEN);
    let sent = world.now();
    run_for(&world, &mut recorder, 7200);
    let [
        (_, _, CompletionEvent::Sent(Ok(()))),
        (when, _, CompletionEvent::Received(Err(Error::TimedOut))),
    ] = &recorder.completions[..]
    else {
        panic!("{:?}", recorder.completions);
    };
    assert!(when.since(sent) >= Duration::from_secs(900));
    recorder.engine.close(fd);
}

#[test]
fn a_closed_descriptor_may_complete_once_more_with_its_old_token() {
    let (world, mut recorder) = world(|plan| plan.stale = 1000);
    let (fd, _peer) = connected(&world, &mut recorder);
    recorder.engine.recv(&fd, 100, TOKEN);
    recorder.engine.close(fd);
    run_for(&world, &mut recorder, 1);
    assert!(
        matches!(recorder.completions[..], [(_, TOKEN, CompletionEvent::Spliced(Ok(0)))]),
        "{:?}",
        recorder.completions
    );
    run_for(&world, &mut recorder, 1);
    assert_eq!(recorder.completions.len(), 1);
}

#[test]
fn memory_and_descriptors_run_out() {
    let (world, mut recorder) = world(|plan| plan.shortages.memory = 1000);
    let address = Address::Tcp("127.0.0.1:1".parse().expect("an address"));
    assert_eq!(recorder.engine.connect(&address, TOKEN), Err(Error::OutOfMemory));
    let shortages =
        ShortagePlan { memory: 0, lasting_ms: 500, every_ms: 1000, ..world.plan().shortages };
    world.set_plan(WorldPlan { shortages, ..world.plan() });
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..100 {
        match recorder.engine.connect(&address, TOKEN) {
            Ok(fd) => open.push(fd),
            Err(error) => {
                assert_eq!(error, Error::OutOfDescriptors);
                refused += 1;
            }
        }
        recorder.engine.waker().wake();
        let moment = world.now() + Duration::from_millis(33);
        let mut wait = Wait(moment);
        run(&world, &mut [&mut recorder], &mut [&mut wait], Duration::from_millis(33), &mut |_| {
            false
        });
    }
    assert!((30..70).contains(&refused), "{refused} of 100 in half of the time");
    open.into_iter().for_each(|fd| recorder.engine.close(fd));
}

/// Keeps the world running until this time.
struct Wait(Instant);

impl millrace_sim::Actor for Wait {
    fn step(&mut self, world: &World) -> Option<Instant> {
        (world.now() < self.0).then_some(self.0)
    }
}

#[test]
fn clock_jumps_do_not_shorten_a_run() {
    for seed in 0..200 {
        let world = World::new(seed, Faults::Hostile);
        if world.plan().clock_jumps == 0 {
            continue;
        }
        let mut recorder = Recorder { engine: world.engine(1 << 20), completions: Vec::new() };
        let start = world.now();
        let mut wait = Wait(start + Duration::from_secs(48 * 3600));
        run(&world, &mut [&mut recorder], &mut [&mut wait], Duration::from_secs(120), &mut |_| {
            false
        });
        assert!(world.clock_jumped() > Duration::ZERO);
        assert!(world.now().since(start) >= world.clock_jumped());
        return;
    }
    panic!("no world of 200 has a clock that jumps");
}

#[test]
fn a_turn_may_begin_late_and_without_events() {
    let (world, mut recorder) = world(|plan| {
        (plan.slow_turns, plan.slow_turn_ns, plan.spurious) = (500, 3_000_000_000, 500);
    });
    let mut late = false;
    for _ in 0..50 {
        let woken = world.now();
        recorder.engine.waker().wake();
        run_for(&world, &mut recorder, 60);
        late |= recorder
            .completions
            .iter()
            .any(|(when, ..)| when.since(woken) > Duration::from_millis(100));
    }
    let wakes = recorder
        .completions
        .iter()
        .filter(|(_, _, event)| matches!(event, CompletionEvent::Woken))
        .count();
    assert!(late && wakes > 50, "{wakes} wakes");
}

#[test]
fn a_full_disk_loses_whole_records() {
    let (world, mut recorder) = world(|plan| plan.log_loss = 500);
    for number in 0..100 {
        recorder.engine.log(format!("{number}\n").as_bytes());
    }
    let log = String::from_utf8(world.log()).expect("numbers");
    assert!((20..80).contains(&log.lines().count()), "{log}");
    assert!(log.lines().all(|line| line.parse::<u32>().is_ok_and(|number| number < 100)));
}

#[test]
fn bytes_to_a_closed_peer_are_recorded() {
    let (world, mut recorder) = world(|_| {});
    world.record_engine_output();
    let (fd, peer) = connected(&world, &mut recorder);
    recorder.engine.send(&fd, &[b"read"], TOKEN);
    recorder.engine.waker().wake();
    run_for(&world, &mut recorder, 1);
    assert_eq!(world.read(peer, 100), ReadResult::Bytes(b"read".to_vec()));
    world.write(peer, b"not kept").expect("it is connected");
    world.close(peer);
    recorder.engine.send(&fd, &[b", and not read"], TOKEN);
    run_for(&world, &mut recorder, 1);
    assert_eq!(world.engine_output(), [b"read, and not read".to_vec()]);
    recorder.engine.close(fd);
}
