//! What the disk tier promises, one story each.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "common/host.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod host;

use std::sync::Arc;

use host::{Told, waiter};
use iolite::{Kind, Refusal, Slab, Tended};
use millrace_body::Filler;
use millrace_disk::{
    Answered, Candidate, Contents, Directory, Disks, Error, Fetch, Host, Id, Marks, Miss, Options,
    SimFaults, SimVolume, Subject, Volume, limits,
};
use millrace_http_cache::{HashKey, Key, META_BYTES, Space, TagHash, VariantKey};

const MB: u64 = 1 << 20;

struct Story {
    slab: Slab,
    told: Arc<Told>,
    disks: Disks,
}

fn id(number: u64) -> Id {
    Id { key: Key(u128::from(number) << 64 | u128::from(number)), variant: 0 }
}

/// Opens disks of so many bytes, that are driven by hand, with a key of this number if they have
/// none.
fn open_with(volumes: &[&SimVolume], bytes: u64, key: u8) -> Story {
    let slab = Slab::on_heap(96 << 20).unwrap();
    let told = Told::new(&slab);
    let host: Arc<dyn Host> = told.clone();
    let volumes =
        volumes.iter().map(|volume| (Arc::new((*volume).clone()) as Arc<dyn Volume>, bytes));
    let options = Options { readers: 0, ..Options::default() };
    let fresh = HashKey::new([key; 16]);
    let disks = Disks::open(volumes.collect(), &host, &options, fresh, key.into()).unwrap();
    Story { slab, told, disks }
}

fn open(volumes: &[&SimVolume], bytes: u64) -> Story {
    open_with(volumes, bytes, 1)
}

impl Story {
    fn work(&self) {
        while self.disks.work() {}
    }

    fn store(&self, id: Id, version: u64, length: usize) -> bool {
        self.disks.store(host::answer(&self.slab, id, version, length)).is_ok()
    }

    fn find(&self, id: Id) -> Option<Candidate> {
        self.disks.find(id.key).into_iter().find(|candidate| candidate.id == id)
    }

    /// To have an answer that nobody looks at, and be told by the number 3.
    fn wish(&self, candidate: &Candidate) -> Box<Fetch> {
        let filler = Filler::new(&self.slab, Kind::Copied, Some(candidate.body_bytes), 0);
        Box::new(Fetch { candidate: candidate.clone(), filler, asker: waiter(3) })
    }

    /// The version of an answer, and whether it is outdated; `None` where there is none.
    fn fetch(&self, id: Id) -> Option<Result<(u64, bool), Miss>> {
        let candidate = self.find(id)?;
        let fetched = host::fetch(&self.disks, &self.slab, candidate, 1).unwrap();
        self.work();
        Some(fetched.judge(&self.told).map(|(head, is_whole)| {
            assert!(is_whole);
            (host::read_head(&head).0, head.is_outdated)
        }))
    }

    fn purge(&self, subject: &Subject, is_soft: bool) -> bool {
        self.disks.purge(subject, is_soft, waiter(2));
        self.work();
        self.told.take(2) == [Answered::Purged { is_durable: true }]
    }
}

#[test]
fn a_long_body_is_whole_after_a_kill() {
    let volume = SimVolume::new(1, 400 * MB);
    let story = open(&[&volume], 200 * MB);
    assert!(story.store(id(1), 1, 20 * MB as usize + 5));
    story.work();
    assert_eq!(story.fetch(id(1)), Some(Ok((1, false))));
    // After a kill its end says that it is there, without reading it.
    volume.die_after(0);
    drop(story.disks);
    volume.restart(false);
    let story = open(&[&volume], 200 * MB);
    story.work();
    assert_eq!(story.fetch(id(1)), Some(Ok((1, false))));
}

#[test]
fn what_nobody_wants_any_more_is_not_read_to_its_end() {
    let volume = SimVolume::new(1, 40 * MB);
    let story = open(&[&volume], 30 * MB);
    assert!(story.store(id(1), 1, 3 * MB as usize));
    story.work();
    let candidate = story.find(id(1)).unwrap();
    let filler = Filler::new(&story.slab, Kind::Referred, Some(3 * MB), 0);
    let body = filler.body().clone();
    story.disks.fetch(Box::new(Fetch { candidate, filler, asker: waiter(3) })).unwrap();
    assert!(story.disks.work());
    assert!(matches!(&story.told.take(3)[..], [Answered::Fetched(_)]));
    assert!(body.arrived() < 3 * MB && body.end().is_none());
    drop(body);
    volume.set_faults(SimFaults { read_errors: 1, ..SimFaults::default() });
    story.work();
    assert_eq!((story.disks.counters()[0].read_errors, story.told.take(3).len()), (0, 0));
    volume.set_faults(SimFaults::default());
    assert_eq!(story.fetch(id(1)), Some(Ok((1, false))), "the next one gets it");
}

#[test]
fn a_variant_comes_with_all_that_is_said_of_it() {
    let volume = SimVolume::new(1, 4 * MB);
    let story = open(&[&volume], MB);
    let mut answer = host::answer(&story.slab, Id { variant: 6, ..id(5) }, 9, 1000);
    answer.variant = Some(VariantKey { exact: 6, by_language: Some(8) });
    answer.vary = Some(b"accept-language"[..].into());
    story.disks.store(answer).unwrap();
    assert!(story.disks.find(id(5).key).is_empty(), "it is not written yet");
    story.work();
    let found = story.disks.find(id(5).key);
    let [candidate] = &found[..] else { panic!("{found:?}") };
    let variant = Some(VariantKey { exact: 6, by_language: Some(8) });
    assert_eq!((candidate.variant, candidate.body_bytes), (variant, 1000));
    assert_eq!(candidate.vary.as_deref(), Some(&b"accept-language"[..]));
    story.disks.fetch(story.wish(candidate)).unwrap();
    story.work();
    let told = story.told.take(3);
    let [Answered::Fetched(head)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((head.variant, &*head.vary), (variant, &b"accept-language"[..]));
    assert_eq!((&*head.tags, &*head.head), (&[TagHash(2)][..], &b"v9 l1000 u0"[..]));
}

#[test]
fn above_the_first_mark_things_are_left_out() {
    let volume = SimVolume::new(1, 40 * MB);
    let story = open(&[&volume], 30 * MB);
    assert!(story.store(id(0), 1, 10));
    story.work();
    let marks = Marks::default();
    let candidate = story.find(id(0)).unwrap();
    for number in 1..=marks.skip as u64 {
        assert!(story.store(id(number), 1, 10));
    }
    assert!(!story.store(id(1000), 1, 10));
    assert!(story.disks.fetch(story.wish(&candidate)).is_err());
    assert!(story.find(id(0)).is_some());
    assert!(!story.store(id(0), 2, 10));
    assert!(story.find(id(0)).is_none(), "what it would have replaced is gone");
    story.work();
    let counters = story.disks.counters()[0];
    assert_eq!((counters.stores_skipped, counters.fetches_skipped, counters.waits), (2, 1, 0));
    assert!(story.disks.fetch(story.wish(&candidate)).is_ok());
    story.work();
    assert_eq!(story.told.take(3), [Answered::NotFetched(Miss::Gone)]);
    for number in 1..=2 * marks.wait as u64 {
        story.disks.wait_for_room();
        story.disks.purge(&Subject::Key(id(number).key), false, waiter(9));
    }
    assert!(story.disks.counters()[0].waits > 0);
    story.work();
    for number in 0..3 {
        assert!(story.store(id(number), 3, 3 * MB as usize));
    }
    drop(story.disks);
    let story = open(&[&volume], 30 * MB);
    story.work();
    assert_eq!(story.fetch(id(2)), Some(Ok((3, false))), "the queue was written at the end");
}

#[test]
fn what_is_too_long_is_not_taken() {
    let volume = SimVolume::new(1, 4 * MB);
    let story = open(&[&volume], MB);
    let most = (MB / limits::BODY_SHARE) as usize;
    assert!(story.store(id(1), 1, most) && !story.store(id(2), 1, most + 1));
    story.work();
    assert_eq!(story.fetch(id(1)), Some(Ok((1, false))));
}

#[test]
fn what_was_made_stale_is_so_until_it_is_validated() {
    let volume = SimVolume::new(1, 4 * MB);
    let story = open(&[&volume], MB);
    let soft = [
        Subject::Answer(id(1)),
        Subject::Key(id(2).key),
        Subject::Prefix(host::name_of(id(3).key).into()),
    ];
    for number in 1..=4 {
        assert!(story.store(id(number), number, 100));
    }
    story.work();
    for subject in &soft {
        assert!(story.purge(subject, true));
    }
    let restarted = |story: Story| {
        drop(story.disks);
        let story = open(&[&volume], MB);
        story.work();
        story
    };
    let story = restarted(story);
    for number in 1..=4 {
        assert_eq!(story.fetch(id(number)), Some(Ok((number, number < 4))), "{number}");
    }
    let head: Arc<[u8]> = b"v1 l100 u5"[..].into();
    story.disks.update(id(1), [1; META_BYTES], &head);
    assert!(story.store(id(2), 20, 50));
    story.work();
    let story = restarted(story);
    assert_eq!(story.fetch(id(1)), Some(Ok((1, false))));
    assert_eq!(story.fetch(id(2)), Some(Ok((20, false))));
    assert_eq!(story.fetch(id(3)), Some(Ok((3, true))));
}

#[test]
fn everything_is_listed_and_then_purged() {
    let (one, two) = (SimVolume::new(1, 8 * MB), SimVolume::new(2, 8 * MB));
    let story = open(&[&one, &two], 2 * MB);
    for number in 0..250 {
        assert!(story.store(id(number), number, 100));
        story.work();
    }
    story.disks.forget(id(7));
    story.work();
    let count = |story: &Story| {
        let listed = host::list(&story.disks, &story.told, || story.work());
        let mut keys: Vec<_> = listed.iter().map(|head| head.id).collect();
        keys.sort_unstable();
        keys.dedup();
        assert!(listed.iter().all(|head| *head.name == *host::name_of(head.id.key)));
        keys.len()
    };
    assert_eq!(count(&story), 249);
    assert!(story.disks.counters().iter().all(|disk| disk.answers > 50), "both have some");
    assert!(story.purge(&Subject::All, false));
    assert_eq!(count(&story), 0);
    assert!(story.store(id(1), 999, 10));
    story.work();
    drop(story.disks);
    let story = open(&[&two, &one], 2 * MB);
    story.work();
    assert_eq!(count(&story), 1);
    assert!(one.bytes() + two.bytes() < 20_000, "the files are gone");
}

#[test]
fn a_directory_that_missed_something_is_emptied() {
    let (one, two) = (SimVolume::new(1, 8 * MB), SimVolume::new(2, 8 * MB));
    let store = |story: &Story| {
        for number in 0..40 {
            assert!(story.store(id(number), number, 100));
        }
        story.work();
    };
    let story = open(&[&one, &two], 2 * MB);
    assert_eq!(story.disks.contents(), [Contents::New; 2]);
    let key = story.disks.hash_key();
    store(&story);
    drop(story.disks);
    let story = open_with(&[&one], 2 * MB, 9);
    assert_eq!((story.disks.contents(), story.disks.hash_key()), (&[Contents::Kept][..], key));
    drop(story.disks);
    let story = open(&[&one, &two], 2 * MB);
    assert_eq!(story.disks.contents(), [Contents::Kept, Contents::Missed]);
    drop(story.disks);
    let other = SimVolume::new(3, 8 * MB);
    let story = open_with(&[&other], 2 * MB, 9);
    store(&story);
    drop(story.disks);
    let story = open_with(&[&other, &one], 2 * MB, 10);
    assert_eq!(story.disks.contents(), [Contents::OtherKey, Contents::Kept]);
    assert_eq!(story.disks.hash_key(), key, "the older one");
    story.work();
    assert_eq!(story.disks.counters()[0].answers, 0);
}

#[test]
fn a_full_file_system_is_no_outage() {
    let volume = SimVolume::new(1, 40 * MB);
    let story = open(&[&volume], 4 * MB);
    for number in 0..40 {
        assert!(story.store(id(number), 1, 50_000));
        story.work();
    }
    // Somebody else took the rest.
    volume.set_capacity(volume.bytes());
    let mut stored = 0;
    for number in 100..300 {
        assert!(story.store(id(number), 1, 50_000));
        story.work();
        stored += usize::from(story.fetch(id(number)) == Some(Ok((1, false))));
    }
    assert!(stored > 0, "the oldest went");
    assert!(story.disks.counters()[0].full > 0);
    let kept = (0..300).find(|number| story.find(id(*number)).is_some()).unwrap();
    assert!(story.purge(&Subject::Key(id(kept).key), false));
    drop(story.disks);
    volume.set_capacity(volume.bytes());
    let story = open(&[&volume], 4 * MB);
    story.work();
    assert_eq!(story.fetch(id(kept)), None);
    assert!(story.disks.counters()[0].answers > 0, "not everything went");
}

#[test]
fn a_disk_that_fails_is_no_outage() {
    let volume = SimVolume::new(1, 40 * MB);
    let story = open(&[&volume], 30 * MB);
    for number in 0..10 {
        assert!(story.store(id(number), 1, 100_000));
    }
    story.work();
    volume.set_faults(SimFaults { read_errors: 1, write_errors: 1, ..SimFaults::default() });
    assert_eq!(story.fetch(id(1)), Some(Err(Miss::Damaged)));
    assert_eq!(story.fetch(id(1)), None, "the origin is asked, and not the disk again");
    assert!(story.store(id(2), 2, 100));
    story.work();
    assert_eq!(story.fetch(id(2)), None);
    assert!(!story.purge(&Subject::Key(id(3).key), false), "nobody is told that it is durable");
    assert_eq!(story.fetch(id(3)), None);
    volume.set_faults(SimFaults::default());
    assert!(story.purge(&Subject::Key(id(4).key), false));
    drop(story.disks);
    let story = open(&[&volume], 30 * MB);
    story.work();
    // What of it was not to come back was not written: so nothing does.
    assert_eq!(story.disks.contents(), [Contents::New]);
}

#[test]
fn disks_have_bounds() {
    let slab = Slab::on_heap(4 << 20).unwrap();
    let host: Arc<dyn Host> = Told::new(&slab);
    let volume: Arc<dyn Volume> = Arc::new(SimVolume::new(1, MB));
    let open = |volumes| {
        let options = Options { readers: 0, ..Options::default() };
        Disks::open(volumes, &host, &options, HashKey::new([1; 16]), 1).map(drop)
    };
    assert_eq!(open(vec![]).unwrap_err(), Error::Count(0));
    assert_eq!(open(vec![(volume.clone(), 1000)]).unwrap_err(), Error::Size(0, 1000));
    volume.create("what-somebody-put-there").unwrap();
    assert_eq!(open(vec![(volume, MB)]), Ok(()));
}

/// Real files and threads: several workers store, fetch and purge at once.
#[test]
fn workers_share_the_disks() {
    let home = std::env::temp_dir().join(format!("millrace-disk-workers-{}", std::process::id()));
    let slab = Slab::on_heap(64 << 20).unwrap();
    let told = Told::new(&slab);
    let host: Arc<dyn Host> = told.clone();
    let open = || {
        let directory: Arc<dyn Volume> = Arc::new(Directory::open(&home).unwrap());
        let (options, fresh) = (Options::default(), HashKey::new([1; 16]));
        Disks::open(vec![(directory, 16 * MB)], &host, &options, fresh, 1).unwrap()
    };
    let disks = open();
    let work = |worker: u64| {
        for turn in 0..300 {
            let id = id(worker * 1000 + turn % 20);
            let token = worker * 10_000 + turn;
            let _ = disks.store(host::answer(&slab, id, turn, (turn * 977 % 90_000) as usize));
            if turn % 50 == 49 {
                disks.purge(&Subject::Key(id.key), false, waiter(token + 5000));
                assert!(disks.find(id.key).is_empty());
            }
            let other = Key(u128::from(worker * 1000 + turn * 7 % 20) * ((1 << 64) | 1));
            let Some(candidate) = disks.find(other).pop() else { continue };
            let Some(fetched) = host::fetch(&disks, &slab, candidate, token) else { continue };
            while !fetched.is_over(&told) {
                std::thread::yield_now();
            }
            if let Ok((_, is_whole)) = fetched.judge(&told) {
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
    let last = host::answer(&slab, id(77), 5, 5000);
    let mut last = Some(last);
    while let Some(answer) = last.take() {
        last = disks.store(answer).err();
    }
    drop(disks);
    let disks = open();
    while disks.counters()[0].is_recovering {
        std::thread::yield_now();
    }
    assert_eq!(disks.find(id(77).key).len(), 1, "the queue was written at the end");
    assert_eq!(disks.counters()[0].damaged, 0);
    drop(disks);
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn what_somebody_reads_is_not_cut_while_memory_is_short() {
    let volume = SimVolume::new(1, 40 * MB);
    let story = open(&[&volume], 30 * MB);
    assert!(story.store(id(1), 1, 3 * MB as usize));
    story.work();
    let candidate = story.find(id(1)).unwrap();
    let fetched = host::fetch(&story.disks, &story.slab, candidate, 3).unwrap();
    assert!(story.disks.work());
    let mut hog = Vec::new();
    for bytes in [64 << 10, 4 << 10, 1 << 10] {
        loop {
            match story.slab.allocate(Kind::Referred, bytes..=bytes, 0) {
                Ok(buffer) => hog.push(buffer),
                Err(Refusal::Later) if story.slab.tend() != Tended::Idle => {}
                Err(_) => break,
            }
        }
    }
    for _ in 0..5000 {
        assert!(story.disks.work());
    }
    assert!(!fetched.is_over(&story.told));
    drop(hog);
    story.work();
    let (_, is_whole) = fetched.judge(&story.told).unwrap();
    assert!(is_whole);
}

#[test]
fn purges_for_a_disk_that_is_stuck_are_bounded() {
    let volume = SimVolume::new(1, 40 * MB);
    let story = open(&[&volume], 30 * MB);
    assert!(story.store(id(1), 1, 10));
    story.work();
    for number in 0..20_000 {
        story.disks.forget_all(&Subject::Tag(TagHash(number)), true);
    }
    story.disks.forget_all(&Subject::Key(id(1).key), false);
    assert!(story.disks.counters()[0].queue < 10_000);
    assert!(story.find(id(1)).is_none());
    story.work();
    assert!(story.store(id(2), 2, 10));
    drop(story.disks);
    let story = open(&[&volume], 30 * MB);
    story.work();
    assert!(story.find(id(1)).is_none());
    assert_eq!(story.fetch(id(2)), Some(Ok((2, false))), "it came after");
}

#[test]
fn what_could_not_be_read_at_a_start_does_not_come_back_at_the_next() {
    let volume = SimVolume::new(1, 40 * MB);
    let story = open(&[&volume], 30 * MB);
    assert!(story.store(id(1), 1, 10));
    story.work();
    drop(story.disks);
    let story = open(&[&volume], 30 * MB);
    volume.set_faults(SimFaults { read_errors: 1, write_errors: 1, ..SimFaults::default() });
    story.work();
    volume.set_faults(SimFaults::default());
    // It is about something of which the disk does not know any more.
    story.disks.forget(id(1));
    story.work();
    drop(story.disks);
    let story = open(&[&volume], 30 * MB);
    story.work();
    assert!(story.find(id(1)).is_none());
}

#[test]
fn recovery_counts_the_responses_whose_space_is_not_known_any_more() {
    let volume = SimVolume::new(1, 40 * MB);
    let story = open(&[&volume], 30 * MB);
    for (number, space) in [(1, "\n@old"), (2, "\n@old"), (3, "\n@new"), (4, "")] {
        let mut answer = host::answer(&story.slab, id(number), 1, 10);
        answer.name = [&host::name_of(id(number).key), space.as_bytes()].concat().into();
        assert!(story.disks.store(answer).is_ok());
    }
    story.work();
    assert_eq!(story.disks.recovered_outside(&[]), 0, "this run stored them");
    // A kill leaves a segment without a summary, an orderly end one with it.
    volume.die_after(0);
    drop(story.disks);
    volume.restart(false);
    for _ in 0..2 {
        let story = open(&[&volume], 30 * MB);
        story.work();
        let of =
            |names: &[&str]| -> Vec<_> { names.iter().map(|name| Space::of(name).tag()).collect() };
        assert_eq!(story.disks.recovered_outside(&of(&["new"])), 3);
        assert_eq!(story.disks.recovered_outside(&of(&["old", "new"])), 1);
        assert_eq!(story.disks.recovered_outside(&[Space::default().tag()]), 3);
        drop(story.disks);
    }
}

#[test]
fn the_count_of_responses_without_a_space_is_an_upper_bound() {
    let volume = SimVolume::new(1, 40 * MB);
    let story = open(&[&volume], 30 * MB);
    let mut answer = host::answer(&story.slab, id(1), 1, 10);
    answer.name = [&host::name_of(id(1).key), &b"\n@old"[..]].concat().into();
    assert!(story.disks.store(answer).is_ok());
    story.work();
    let name = host::name_of(id(1).key);
    assert!(story.purge(&Subject::Prefix(name[..].into()), false));
    drop(story.disks);
    let story = open(&[&volume], 30 * MB);
    story.work();
    assert_eq!(story.disks.recovered_outside(&[]), 1, "the purge is not applied yet");
}
