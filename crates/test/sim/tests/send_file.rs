//! Files that the simulated engine sends: short sends, truncation, failed disks and connections.

mod recorder;

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use millrace_engine::{CompletionEvent, Engine, Error, Fd, FileRead, Instant, Token, Wake};
use millrace_sim::{ActorSocket, ReadResult, ShortagePlan, World, WorldPlan};
use millrace_sys::Errno;
use recorder::{Recorder, TOKEN, connected, run_for, world};

/// The content of a file, or the error number with which reading it fails.
#[derive(Debug)]
struct SimFile(Mutex<Result<Vec<u8>, Errno>>);

impl SimFile {
    /// Creates a file of `length` bytes.
    fn new(length: usize) -> (Arc<Self>, Arc<dyn FileRead>) {
        let bytes = (0..length).map(|at| (at * 31 + at / 251) as u8).collect();
        let file = Arc::new(Self(Mutex::new(Ok(bytes))));
        (file.clone(), file)
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().expect("no panic").clone().expect("the file is readable")
    }
}

impl FileRead for SimFile {
    fn read_at(&self, at: u64, bytes: &mut [u8], waits: bool) -> Result<usize, Errno> {
        assert!(waits, "a send waits for the file");
        let content = self.0.lock().expect("no panic");
        let rest = content.as_ref().map_err(|errno| *errno)?.get(at as usize..).unwrap_or_default();
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Lets a connection hold few bytes.
fn narrow(plan: &mut WorldPlan) {
    (plan.streams.send_capacity, plan.streams.receive_capacity) = (1000, 1000);
}

/// Runs the world and reads until `done`, or until nothing follows. Returns the bytes.
fn read_until(
    world: &World,
    recorder: &mut Recorder,
    peer: ActorSocket,
    mut done: impl FnMut(&Recorder, &[u8]) -> bool,
) -> Vec<u8> {
    let mut read = Vec::new();
    recorder.engine.waker().wake();
    loop {
        run_for(world, recorder, 1);
        match world.read(peer, 500) {
            ReadResult::Bytes(bytes) => read.extend(bytes),
            _ => return read,
        }
        if done(recorder, &read) {
            return read;
        }
    }
}

/// Returns all completions except wakes.
fn completions(recorder: &Recorder) -> impl Iterator<Item = &(Instant, Token, CompletionEvent)> {
    let is_wake = |event: &_| matches!(event, CompletionEvent::Woken);
    recorder.completions.iter().filter(move |(_, _, event)| !is_wake(event))
}

/// Returns the results of all sends that have completed.
fn results(recorder: &Recorder) -> Vec<Result<(), Error>> {
    let result = |(_, token, event): &_| match event {
        CompletionEvent::Sent(result) if *token == TOKEN => *result,
        other => panic!("{other:?}"),
    };
    completions(recorder).map(result).collect()
}

/// Begins to send "head" and a file of 100 kB over a narrow connection.
fn begun(change: impl FnOnce(&mut WorldPlan)) -> (World, Recorder, Fd, ActorSocket, Arc<SimFile>) {
    let (world, mut recorder) = world(|plan| {
        narrow(plan);
        change(plan);
    });
    let (fd, peer) = connected(&world, &mut recorder);
    let (file, sent) = SimFile::new(100_000);
    recorder.engine.send_file(&fd, &[b"he", b"ad"], &sent, 0, 100_000, TOKEN);
    (world, recorder, fd, peer, file)
}

#[test]
fn a_range_of_a_file_is_sent_at_once_if_there_is_room() {
    let (world, mut recorder) = world(|_| {});
    let (fd, peer) = connected(&world, &mut recorder);
    let (file, sent) = SimFile::new(1000);
    recorder.engine.send_file(&fd, &[b"head"], &sent, 300, 600, TOKEN);
    assert_eq!((recorder.engine.unsent_bytes(&fd), Arc::strong_count(&file)), (0, 2));
    let read = read_until(&world, &mut recorder, peer, |_, _| false);
    assert!(read == [b"head", &file.bytes()[300..900]].concat());
    assert_eq!(results(&recorder), [Ok(())]);
}

#[test]
fn a_slow_reader_gets_every_byte() {
    let (world, mut recorder, fd, peer, file) = begun(|_| {});
    assert!(recorder.engine.unsent_bytes(&fd) > 90_000);
    assert_eq!(recorder.engine.budget().used(), 0, "bytes of a file are not charged");
    let mut unsent = 100_004;
    let read = read_until(&world, &mut recorder, peer, |recorder, _| {
        let now = recorder.engine.unsent_bytes(&fd);
        assert!(now <= unsent && results(recorder).is_empty() == (now > 0));
        unsent = now;
        false
    });
    assert!(read == [b"head", &file.bytes()[..]].concat());
    assert_eq!(results(&recorder), [Ok(())]);
    assert_eq!(Arc::strong_count(&file), 1, "the engine holds no reference");
}

#[test]
fn parts_before_a_file_are_held_and_charged() {
    let (world, mut recorder) = world(narrow);
    let (fd, peer) = connected(&world, &mut recorder);
    let (file, sent) = SimFile::new(500);
    let before = vec![b'x'; 5000];
    recorder.engine.send_file(&fd, &[&before], &sent, 0, 500, TOKEN);
    let unsent = recorder.engine.unsent_bytes(&fd);
    assert!(unsent > 500 && recorder.engine.budget().used() == unsent - 500, "{unsent}");
    let read = read_until(&world, &mut recorder, peer, |_, _| false);
    assert!(read == [before, file.bytes()].concat());
    assert_eq!((results(&recorder), recorder.engine.budget().used()), (vec![Ok(())], 0));
}

#[test]
fn a_truncated_file_ends_the_send_with_an_error() {
    let (world, mut recorder, fd, peer, file) = begun(|_| {});
    let whole = file.bytes();
    let read = read_until(&world, &mut recorder, peer, |recorder, read| {
        if read.len() > 5000 {
            file.0.lock().unwrap().as_mut().unwrap().truncate(10_000);
        }
        !results(recorder).is_empty()
    });
    assert_eq!(results(&recorder), [Err(Error::FileEnded)]);
    assert!(read.len() > 5000 && [b"head", &whole[..10_000]].concat().starts_with(&read));
    assert_eq!((recorder.engine.unsent_bytes(&fd), Arc::strong_count(&file)), (0, 1));
}

#[test]
fn a_failed_disk_ends_the_send_with_an_error() {
    let (world, mut recorder, _fd, peer, file) = begun(|_| {});
    *file.0.lock().unwrap() = Err(Errno::IO);
    read_until(&world, &mut recorder, peer, |recorder, _| !results(recorder).is_empty());
    let [Err(error)] = results(&recorder)[..] else { panic!("{:?}", recorder.completions) };
    assert_eq!(error, Error::FileUnreadable(Errno::IO.raw_os_error()));
}

#[test]
fn a_file_that_fails_at_once_does_not_break_the_receiving_direction() {
    let (world, mut recorder) = world(|_| {});
    let (fd, peer) = connected(&world, &mut recorder);
    world.shutdown_write(peer);
    run_for(&world, &mut recorder, 1);
    recorder.engine.recv(&fd, 100, TOKEN);
    recorder.engine.send_file(&fd, &[], &SimFile::new(0).1, 0, 1, TOKEN);
    recorder.engine.waker().wake();
    run_for(&world, &mut recorder, 1);
    let mut events: Vec<_> = completions(&recorder).map(|(_, _, event)| event).collect();
    events.sort_by_key(|event| matches!(event, CompletionEvent::Sent(_)));
    assert!(
        matches!(
            events[..],
            [CompletionEvent::Spliced(Ok(0)), CompletionEvent::Sent(Err(Error::FileEnded))]
        ),
        "{events:?}"
    );
}

#[test]
fn a_broken_connection_is_no_error_of_the_file() {
    let (world, mut recorder, _fd, peer, _file) = begun(|_| {});
    world.reset(peer);
    run_for(&world, &mut recorder, 1);
    assert_eq!(results(&recorder), [Err(Error::Reset)]);
}

#[test]
fn missing_kernel_memory_is_no_error_of_the_file() {
    let (world, mut recorder) = world(|_| {});
    let (fd, peer) = connected(&world, &mut recorder);
    let shortages = ShortagePlan { memory: 1000, ..world.plan().shortages };
    world.set_plan(WorldPlan { shortages, ..world.plan() });
    let (file, sent) = SimFile::new(1000);
    recorder.engine.send_file(&fd, &[], &sent, 0, 1000, TOKEN);
    assert_eq!(read_until(&world, &mut recorder, peer, |_, _| false), []);
    assert_eq!(results(&recorder), [Err(Error::OutOfMemory)]);
    assert_eq!(Arc::strong_count(&file), 2, "the engine holds no reference");
}

#[test]
fn closing_ends_a_send_of_a_file() {
    let (world, mut recorder, fd, _peer, file) = begun(|plan| plan.stale = 1000);
    assert_eq!(Arc::strong_count(&file), 2, "the send holds the file");
    recorder.engine.close(fd);
    assert_eq!(Arc::strong_count(&file), 1, "the engine holds no reference");
    run_for(&world, &mut recorder, 1);
    assert!(recorder.completions.is_empty(), "{:?}", recorder.completions);
}

#[test]
#[should_panic(expected = "send_file of no bytes")]
fn a_send_of_no_bytes_of_a_file() {
    let (world, mut recorder) = world(|_| {});
    let (fd, _peer) = connected(&world, &mut recorder);
    recorder.engine.send_file(&fd, &[b"head"], &SimFile::new(1).1, 0, 0, TOKEN);
}
