//! The guarantees of the disk tier, one scenario each.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "common/callbacks.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod callbacks;

use std::sync::Arc;

use callbacks::{RecordingCallbacks, waiter};
use iolite::{AllocError, MemoryKind, PrefaultOutcome, Slab};
use millrace_body::Filler;
use millrace_disk::{
    Directory, DirectoryContents, DirectoryIo, DiskCallbacks, DiskHit, DiskOptions, DiskReply,
    Disks, Error, FetchError, FetchRequest, PurgeTarget, QueueMarks, ResponseId, SimDirectory,
    SimFaults, limits,
};
use millrace_http_cache::{HashKey, Key, META_BYTES, Space, TagHash, VariantKey};

const MB: u64 = 1 << 20;

struct DiskTest {
    slab: Slab,
    callbacks: Arc<RecordingCallbacks>,
    disks: Disks,
}

fn id(number: u64) -> ResponseId {
    ResponseId { key: Key(u128::from(number) << 64 | u128::from(number)), variant: 0 }
}

/// Opens disks of `bytes` without threads. A new cache gets a hash key of which each byte is `key`,
/// and `key` milliseconds as the time of its creation.
fn open_with(directories: &[&SimDirectory], bytes: u64, key: u8) -> DiskTest {
    let slab = Slab::on_heap(96 << 20).unwrap();
    let callbacks = RecordingCallbacks::new(&slab);
    let disk_callbacks: Arc<dyn DiskCallbacks> = callbacks.clone();
    let directories = directories
        .iter()
        .map(|directory| (Arc::new((*directory).clone()) as Arc<dyn DirectoryIo>, bytes));
    let options = DiskOptions { readers: 0, ..DiskOptions::default() };
    let fresh = HashKey::new([key; 16]);
    let disks =
        Disks::open(directories.collect(), &disk_callbacks, &options, fresh, key.into()).unwrap();
    DiskTest { slab, callbacks, disks }
}

fn open(directories: &[&SimDirectory], bytes: u64) -> DiskTest {
    open_with(directories, bytes, 1)
}

impl DiskTest {
    fn work(&self) {
        while self.disks.run_once() {}
    }

    fn store(&self, id: ResponseId, version: u64, length: usize) -> bool {
        self.disks.store(callbacks::response(&self.slab, id, version, length)).is_ok()
    }

    fn find(&self, id: ResponseId) -> Option<DiskHit> {
        self.disks.find(id.key).into_iter().find(|hit| hit.id == id)
    }

    /// Returns a fetch request. Its body has no reader, and its reply goes to token 3.
    fn request(&self, hit: &DiskHit) -> Box<FetchRequest> {
        let filler = Filler::new(&self.slab, MemoryKind::Copied, Some(hit.body_bytes), 0);
        Box::new(FetchRequest { hit: hit.clone(), filler, requester: waiter(3) })
    }

    /// Returns the version of a response, and whether it is stale; `None` if there is none.
    fn fetch(&self, id: ResponseId) -> Option<Result<(u64, bool), FetchError>> {
        let hit = self.find(id)?;
        let fetched = callbacks::fetch(&self.disks, &self.slab, hit, 1).unwrap();
        self.work();
        Some(fetched.check(&self.callbacks).map(|(head, is_whole)| {
            assert!(is_whole);
            (callbacks::read_head(&head).0, head.is_stale)
        }))
    }

    fn purge(&self, target: &PurgeTarget, is_soft: bool) -> bool {
        self.disks.purge(target, is_soft, waiter(2));
        self.work();
        self.callbacks.take(2) == [DiskReply::Purged { is_durable: true }]
    }
}

#[test]
fn a_long_body_is_whole_after_a_kill() {
    let directory = SimDirectory::new(1, 400 * MB);
    let test = open(&[&directory], 200 * MB);
    assert!(test.store(id(1), 1, 20 * MB as usize + 5));
    test.work();
    assert_eq!(test.fetch(id(1)), Some(Ok((1, false))));
    // After a kill, the end seal proves that the body was written, and recovery does not read the
    // body.
    directory.die_after(0);
    drop(test.disks);
    directory.restart(false);
    let test = open(&[&directory], 200 * MB);
    test.work();
    assert_eq!(test.fetch(id(1)), Some(Ok((1, false))));
}

#[test]
fn a_body_without_readers_is_not_read_to_its_end() {
    let directory = SimDirectory::new(1, 40 * MB);
    let test = open(&[&directory], 30 * MB);
    assert!(test.store(id(1), 1, 3 * MB as usize));
    test.work();
    let hit = test.find(id(1)).unwrap();
    let filler = Filler::new(&test.slab, MemoryKind::ZeroCopy, Some(3 * MB), 0);
    let body = filler.body().clone();
    test.disks.fetch(Box::new(FetchRequest { hit, filler, requester: waiter(3) })).unwrap();
    assert!(test.disks.run_once());
    assert!(matches!(&test.callbacks.take(3)[..], [DiskReply::Fetched(_)]));
    assert!(body.arrived() < 3 * MB && body.end().is_none());
    drop(body);
    directory.set_faults(SimFaults { read_errors: 1, ..SimFaults::default() });
    test.work();
    assert_eq!((test.disks.stats()[0].read_errors, test.callbacks.take(3).len()), (0, 0));
    directory.set_faults(SimFaults::default());
    assert_eq!(test.fetch(id(1)), Some(Ok((1, false))), "the next fetch succeeds");
}

#[test]
fn a_variant_is_stored_with_all_its_metadata() {
    let directory = SimDirectory::new(1, 4 * MB);
    let test = open(&[&directory], MB);
    let mut response = callbacks::response(&test.slab, ResponseId { variant: 6, ..id(5) }, 9, 1000);
    response.variant = Some(VariantKey { exact: 6, by_language: Some(8) });
    response.vary = Some(b"accept-language"[..].into());
    test.disks.store(response).unwrap();
    assert!(test.disks.find(id(5).key).is_empty(), "not written yet");
    test.work();
    let found = test.disks.find(id(5).key);
    let [hit] = &found[..] else { panic!("{found:?}") };
    let variant = Some(VariantKey { exact: 6, by_language: Some(8) });
    assert_eq!((hit.variant, hit.body_bytes), (variant, 1000));
    assert_eq!(hit.vary.as_deref(), Some(&b"accept-language"[..]));
    test.disks.fetch(test.request(hit)).unwrap();
    test.work();
    let replies = test.callbacks.take(3);
    let [DiskReply::Fetched(head)] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!((head.variant, &*head.vary), (variant, &b"accept-language"[..]));
    assert_eq!((&*head.tags, &*head.header), (&[TagHash(2)][..], &b"v9 l1000 u0"[..]));
}

#[test]
fn above_the_first_mark_stores_and_fetches_are_refused() {
    let directory = SimDirectory::new(1, 40 * MB);
    let test = open(&[&directory], 30 * MB);
    assert!(test.store(id(0), 1, 10));
    test.work();
    let marks = QueueMarks::default();
    let hit = test.find(id(0)).unwrap();
    for number in 1..=marks.skip as u64 {
        assert!(test.store(id(number), 1, 10));
    }
    assert!(!test.store(id(1000), 1, 10));
    assert!(test.disks.fetch(test.request(&hit)).is_err());
    assert!(test.find(id(0)).is_some());
    assert!(!test.store(id(0), 2, 10));
    assert!(test.find(id(0)).is_none(), "the old version is gone");
    test.work();
    let counters = test.disks.stats()[0];
    assert_eq!(
        (counters.stores_skipped, counters.fetches_skipped, counters.purge_waits),
        (2, 1, 0)
    );
    assert!(test.disks.fetch(test.request(&hit)).is_ok());
    test.work();
    assert_eq!(test.callbacks.take(3), [DiskReply::NotFetched(FetchError::Gone)]);
    for number in 1..=2 * marks.wait as u64 {
        test.disks.wait_for_room();
        test.disks.purge(&PurgeTarget::Key(id(number).key), false, waiter(9));
    }
    assert!(test.disks.stats()[0].purge_waits > 0);
    test.work();
    for number in 0..3 {
        assert!(test.store(id(number), 3, 3 * MB as usize));
    }
    drop(test.disks);
    let test = open(&[&directory], 30 * MB);
    test.work();
    assert_eq!(test.fetch(id(2)), Some(Ok((3, false))), "the queue was written at the end");
}

#[test]
fn too_long_responses_are_refused() {
    let directory = SimDirectory::new(1, 4 * MB);
    let test = open(&[&directory], MB);
    let most = (MB / limits::BODY_SHARE) as usize;
    assert!(test.store(id(1), 1, most) && !test.store(id(2), 1, most + 1));
    test.work();
    assert_eq!(test.fetch(id(1)), Some(Ok((1, false))));
}

#[test]
fn a_stale_response_stays_stale_until_it_is_validated() {
    let directory = SimDirectory::new(1, 4 * MB);
    let test = open(&[&directory], MB);
    let soft = [
        PurgeTarget::Response(id(1)),
        PurgeTarget::Key(id(2).key),
        PurgeTarget::Prefix(callbacks::name_of(id(3).key).into()),
    ];
    for number in 1..=4 {
        assert!(test.store(id(number), number, 100));
    }
    test.work();
    for target in &soft {
        assert!(test.purge(target, true));
    }
    let restarted = |test: DiskTest| {
        drop(test.disks);
        let test = open(&[&directory], MB);
        test.work();
        test
    };
    let test = restarted(test);
    for number in 1..=4 {
        assert_eq!(test.fetch(id(number)), Some(Ok((number, number < 4))), "{number}");
    }
    let head: Arc<[u8]> = b"v1 l100 u5"[..].into();
    test.disks.update(id(1), [1; META_BYTES], &head);
    assert!(test.store(id(2), 20, 50));
    test.work();
    let test = restarted(test);
    assert_eq!(test.fetch(id(1)), Some(Ok((1, false))));
    assert_eq!(test.fetch(id(2)), Some(Ok((20, false))));
    assert_eq!(test.fetch(id(3)), Some(Ok((3, true))));
}

#[test]
fn all_responses_are_listed_and_then_purged() {
    let (one, two) = (SimDirectory::new(1, 8 * MB), SimDirectory::new(2, 8 * MB));
    let test = open(&[&one, &two], 2 * MB);
    for number in 0..250 {
        assert!(test.store(id(number), number, 100));
        test.work();
    }
    test.disks.forget(id(7));
    test.work();
    let count = |test: &DiskTest| {
        let listed = callbacks::list(&test.disks, &test.callbacks, || test.work());
        let mut keys: Vec<_> = listed.iter().map(|head| head.id).collect();
        keys.sort_unstable();
        keys.dedup();
        assert!(listed.iter().all(|head| *head.name == *callbacks::name_of(head.id.key)));
        keys.len()
    };
    assert_eq!(count(&test), 249);
    assert!(test.disks.stats().iter().all(|disk| disk.responses > 50), "each disk has a share");
    assert!(test.purge(&PurgeTarget::All, false));
    assert_eq!(count(&test), 0);
    assert!(test.store(id(1), 999, 10));
    test.work();
    drop(test.disks);
    let test = open(&[&two, &one], 2 * MB);
    test.work();
    assert_eq!(count(&test), 1);
    assert!(one.bytes() + two.bytes() < 20_000, "the files are gone");
}

#[test]
fn a_directory_that_missed_a_run_is_emptied() {
    let (one, two) = (SimDirectory::new(1, 8 * MB), SimDirectory::new(2, 8 * MB));
    let store = |test: &DiskTest| {
        for number in 0..40 {
            assert!(test.store(id(number), number, 100));
        }
        test.work();
    };
    let test = open(&[&one, &two], 2 * MB);
    assert_eq!(test.disks.contents(), [DirectoryContents::New; 2]);
    let key = test.disks.hash_key();
    store(&test);
    drop(test.disks);
    let test = open_with(&[&one], 2 * MB, 9);
    assert_eq!(
        (test.disks.contents(), test.disks.hash_key()),
        (&[DirectoryContents::Kept][..], key)
    );
    drop(test.disks);
    let test = open(&[&one, &two], 2 * MB);
    assert_eq!(test.disks.contents(), [DirectoryContents::Kept, DirectoryContents::MissedRuns]);
    drop(test.disks);
    let other = SimDirectory::new(3, 8 * MB);
    let test = open_with(&[&other], 2 * MB, 9);
    store(&test);
    drop(test.disks);
    let test = open_with(&[&other, &one], 2 * MB, 10);
    assert_eq!(test.disks.contents(), [DirectoryContents::OtherKey, DirectoryContents::Kept]);
    assert_eq!(test.disks.hash_key(), key, "the older key wins");
    test.work();
    assert_eq!(test.disks.stats()[0].responses, 0);
}

#[test]
fn a_full_file_system_is_no_outage() {
    let directory = SimDirectory::new(1, 40 * MB);
    let test = open(&[&directory], 4 * MB);
    for number in 0..40 {
        assert!(test.store(id(number), 1, 50_000));
        test.work();
    }
    // Other users of the file system took the rest.
    directory.set_capacity(directory.bytes());
    let mut stored = 0;
    for number in 100..300 {
        assert!(test.store(id(number), 1, 50_000));
        test.work();
        stored += usize::from(test.fetch(id(number)) == Some(Ok((1, false))));
    }
    assert!(stored > 0, "the oldest segments were dropped");
    assert!(test.disks.stats()[0].writes_without_space > 0);
    let kept = (0..300).find(|number| test.find(id(*number)).is_some()).unwrap();
    assert!(test.purge(&PurgeTarget::Key(id(kept).key), false));
    drop(test.disks);
    directory.set_capacity(directory.bytes());
    let test = open(&[&directory], 4 * MB);
    test.work();
    assert_eq!(test.fetch(id(kept)), None);
    assert!(test.disks.stats()[0].responses > 0, "not all segments were dropped");
}

#[test]
fn a_disk_that_fails_is_no_outage() {
    let directory = SimDirectory::new(1, 40 * MB);
    let test = open(&[&directory], 30 * MB);
    for number in 0..10 {
        assert!(test.store(id(number), 1, 100_000));
    }
    test.work();
    directory.set_faults(SimFaults { read_errors: 1, write_errors: 1, ..SimFaults::default() });
    assert_eq!(test.fetch(id(1)), Some(Err(FetchError::Damaged)));
    assert_eq!(test.fetch(id(1)), None, "the request goes to the origin, not to the disk again");
    assert!(test.store(id(2), 2, 100));
    test.work();
    assert_eq!(test.fetch(id(2)), None);
    assert!(!test.purge(&PurgeTarget::Key(id(3).key), false), "nothing can be written");
    assert_eq!(test.fetch(id(3)), None);
    directory.set_faults(SimFaults::default());
    assert!(test.purge(&PurgeTarget::Key(id(4).key), false));
    drop(test.disks);
    let test = open(&[&directory], 30 * MB);
    test.work();
    // A removal was not written, so nothing may come back.
    assert_eq!(test.disks.contents(), [DirectoryContents::New]);
}

#[test]
fn disks_have_bounds() {
    let slab = Slab::on_heap(4 << 20).unwrap();
    let callbacks: Arc<dyn DiskCallbacks> = RecordingCallbacks::new(&slab);
    let directory: Arc<dyn DirectoryIo> = Arc::new(SimDirectory::new(1, MB));
    let open = |directories| {
        let options = DiskOptions { readers: 0, ..DiskOptions::default() };
        Disks::open(directories, &callbacks, &options, HashKey::new([1; 16]), 1).map(drop)
    };
    assert_eq!(open(vec![]).unwrap_err(), Error::Count(0));
    assert_eq!(open(vec![(directory.clone(), 1000)]).unwrap_err(), Error::Size(0, 1000));
    directory.create("foreign-file").unwrap();
    assert_eq!(open(vec![(directory, MB)]), Ok(()));
}

/// Real files and threads: several workers store, fetch and purge at the same time.
#[test]
fn workers_share_the_disks() {
    let home = std::env::temp_dir().join(format!("millrace-disk-workers-{}", std::process::id()));
    let slab = Slab::on_heap(64 << 20).unwrap();
    let callbacks = RecordingCallbacks::new(&slab);
    let disk_callbacks: Arc<dyn DiskCallbacks> = callbacks.clone();
    let open = || {
        let directory: Arc<dyn DirectoryIo> = Arc::new(Directory::open(&home).unwrap());
        let (options, fresh) = (DiskOptions::default(), HashKey::new([1; 16]));
        Disks::open(vec![(directory, 16 * MB)], &disk_callbacks, &options, fresh, 1).unwrap()
    };
    let disks = open();
    let work = |worker: u64| {
        for turn in 0..300 {
            let id = id(worker * 1000 + turn % 20);
            let token = worker * 10_000 + turn;
            let _ =
                disks.store(callbacks::response(&slab, id, turn, (turn * 977 % 90_000) as usize));
            if turn % 50 == 49 {
                disks.purge(&PurgeTarget::Key(id.key), false, waiter(token + 5000));
                assert!(disks.find(id.key).is_empty());
            }
            let other = Key(u128::from(worker * 1000 + turn * 7 % 20) * ((1 << 64) | 1));
            let Some(hit) = disks.find(other).pop() else { continue };
            let Some(fetched) = callbacks::fetch(&disks, &slab, hit, token) else { continue };
            while !fetched.is_over(&callbacks) {
                std::thread::yield_now();
            }
            if let Ok((_, is_whole)) = fetched.check(&callbacks) {
                assert!(is_whole);
            }
        }
    };
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let work = &work;
            scope.spawn(move || work(worker));
        }
    });
    let last = callbacks::response(&slab, id(77), 5, 5000);
    let mut last = Some(last);
    while let Some(response) = last.take() {
        last = disks.store(response).err();
    }
    drop(disks);
    let disks = open();
    while disks.stats()[0].is_recovering {
        std::thread::yield_now();
    }
    assert_eq!(disks.find(id(77).key).len(), 1, "the queue was written at the end");
    assert_eq!(disks.stats()[0].damaged_records, 0);
    drop(disks);
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn a_body_with_readers_is_not_cut_while_memory_is_short() {
    let directory = SimDirectory::new(1, 40 * MB);
    let test = open(&[&directory], 30 * MB);
    assert!(test.store(id(1), 1, 3 * MB as usize));
    test.work();
    let hit = test.find(id(1)).unwrap();
    let fetched = callbacks::fetch(&test.disks, &test.slab, hit, 3).unwrap();
    assert!(test.disks.run_once());
    let mut hog = Vec::new();
    for bytes in [64 << 10, 4 << 10, 1 << 10] {
        loop {
            match test.slab.allocate(MemoryKind::ZeroCopy, bytes..=bytes, 0) {
                Ok(buffer) => hog.push(buffer),
                Err(AllocError::NotReady) if test.slab.prefault() != PrefaultOutcome::Idle => {}
                Err(_) => break,
            }
        }
    }
    for _ in 0..5000 {
        assert!(test.disks.run_once());
    }
    assert!(!fetched.is_over(&test.callbacks));
    drop(hog);
    test.work();
    let (_, is_whole) = fetched.check(&test.callbacks).unwrap();
    assert!(is_whole);
}

#[test]
fn purges_for_a_stuck_disk_are_bounded() {
    let directory = SimDirectory::new(1, 40 * MB);
    let test = open(&[&directory], 30 * MB);
    assert!(test.store(id(1), 1, 10));
    test.work();
    for number in 0..20_000 {
        test.disks.forget_all(&PurgeTarget::Tag(TagHash(number)), true);
    }
    test.disks.forget_all(&PurgeTarget::Key(id(1).key), false);
    assert!(test.disks.stats()[0].queued_jobs < 10_000);
    assert!(test.find(id(1)).is_none());
    test.work();
    assert!(test.store(id(2), 2, 10));
    drop(test.disks);
    let test = open(&[&directory], 30 * MB);
    test.work();
    assert!(test.find(id(1)).is_none());
    assert_eq!(test.fetch(id(2)), Some(Ok((2, false))), "it was stored after the purges");
}

#[test]
fn data_unreadable_at_one_start_does_not_come_back_at_the_next() {
    let directory = SimDirectory::new(1, 40 * MB);
    let test = open(&[&directory], 30 * MB);
    assert!(test.store(id(1), 1, 10));
    test.work();
    drop(test.disks);
    let test = open(&[&directory], 30 * MB);
    directory.set_faults(SimFaults { read_errors: 1, write_errors: 1, ..SimFaults::default() });
    test.work();
    directory.set_faults(SimFaults::default());
    // The removal concerns a response that the disk no longer knows.
    test.disks.forget(id(1));
    test.work();
    drop(test.disks);
    let test = open(&[&directory], 30 * MB);
    test.work();
    assert!(test.find(id(1)).is_none());
}

#[test]
fn recovery_counts_the_responses_whose_space_is_not_known_any_more() {
    let directory = SimDirectory::new(1, 40 * MB);
    let test = open(&[&directory], 30 * MB);
    for (number, space) in [(1, "\n@old"), (2, "\n@old"), (3, "\n@new"), (4, "")] {
        let mut response = callbacks::response(&test.slab, id(number), 1, 10);
        response.name = [&callbacks::name_of(id(number).key), space.as_bytes()].concat().into();
        assert!(test.disks.store(response).is_ok());
    }
    test.work();
    assert_eq!(test.disks.recovered_outside(&[]), 0, "this run stored them");
    // A kill leaves a segment without a summary. An orderly end leaves a segment with a summary.
    directory.die_after(0);
    drop(test.disks);
    directory.restart(false);
    for _ in 0..2 {
        let test = open(&[&directory], 30 * MB);
        test.work();
        let of = |names: &[&str]| -> Vec<_> {
            names.iter().map(|name| Space::named(name).tag()).collect()
        };
        assert_eq!(test.disks.recovered_outside(&of(&["new"])), 3);
        assert_eq!(test.disks.recovered_outside(&of(&["old", "new"])), 1);
        assert_eq!(test.disks.recovered_outside(&[Space::default().tag()]), 3);
        drop(test.disks);
    }
}

#[test]
fn the_count_of_responses_without_a_space_is_an_upper_bound() {
    let directory = SimDirectory::new(1, 40 * MB);
    let test = open(&[&directory], 30 * MB);
    let mut response = callbacks::response(&test.slab, id(1), 1, 10);
    response.name = [&callbacks::name_of(id(1).key), &b"\n@old"[..]].concat().into();
    assert!(test.disks.store(response).is_ok());
    test.work();
    let name = callbacks::name_of(id(1).key);
    assert!(test.purge(&PurgeTarget::Prefix(name[..].into()), false));
    drop(test.disks);
    let test = open(&[&directory], 30 * MB);
    test.work();
    assert_eq!(test.disks.recovered_outside(&[]), 1, "the purge is not applied yet");
}
