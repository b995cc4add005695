//! What is on disks, with disks that work when they are told to.

use std::sync::Mutex;

use millrace_disk::{Contents, Marks, Options, SimFaults, SimVolume, Volume};

use super::*;
use crate::index::Waker;

const SECOND: HashKey = HashKey::new([8; 16]);

/// Who was woken.
#[derive(Debug, Default)]
struct Bell(Mutex<Vec<Waiter>>);

impl Waker for Bell {
    fn wake(&self, waiter: Waiter) {
        self.0.lock().unwrap().push(waiter);
    }
}

impl Bell {
    fn take(&self) -> Vec<Waiter> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A cache with one disk.
struct Story {
    volume: SimVolume,
    cache: Arc<Cache>,
    bell: Arc<Bell>,
}

impl Story {
    fn new() -> Self {
        Self::on(SimVolume::new(1, 64 << 20), Marks::default())
    }

    fn on(volume: SimVolume, marks: Marks) -> Self {
        let (cache, bell) = (cache(), Arc::new(Bell::default()));
        let volumes: Vec<(Arc<dyn Volume>, u64)> = vec![(Arc::new(volume.clone()), 32 << 20)];
        let options = Options { marks, readers: 0 };
        let contents = cache.open_disks(volumes, &options, bell.clone(), NOW_MS).unwrap();
        assert_eq!(contents.len(), 1);
        let story = Self { volume, cache, bell };
        story.work();
        story
    }

    fn work(&self) {
        while self.cache.work_disks() {
            self.cache.slab().tend();
        }
    }

    /// Another process, after this one was killed.
    fn restart(self) -> Self {
        self.work();
        // A process that is killed closes nothing.
        self.volume.die_after(0);
        self.cache.close_disks();
        self.volume.restart(false);
        Self::on(self.volume, Marks::default())
    }

    fn put(&self, number: u32, wants: &str, says: &str, bytes: &[u8]) -> Arc<Object> {
        let object = put(&self.cache, key(number), wants, says, bytes);
        self.work();
        object
    }

    fn ask(&self, number: u32, fields: &str, asks_disks: bool) -> Found {
        self.ask_as(ME, number, fields, asks_disks)
    }

    fn ask_as(&self, who: Waiter, number: u32, fields: &str, asks_disks: bool) -> Found {
        let request = request(fields);
        let asked = RequestDirectives::of(&request);
        let (key, waiter) = (key(number), Some(who));
        let request = &OriginRequest::as_received(&request);
        let (asked, now_ms) = (&asked, NOW_MS);
        let (claims, refreshes) = (true, true);
        self.cache.lookup(&Question {
            key,
            request,
            asked,
            now_ms,
            waiter,
            claims,
            refreshes,
            asks_disks,
        })
    }

    /// What there is after the disk was asked.
    fn found(&self, number: u32, fields: &str) -> Found {
        match self.ask(number, fields, true) {
            Found::Comes { is_own: true } => {
                self.work();
                assert_eq!(self.bell.take(), [ME]);
                self.ask(number, fields, false)
            }
            other => other,
        }
    }

    fn is_missed(&self, number: u32) -> bool {
        match self.found(number, "") {
            Found::Nothing { claim: Some(claim), .. } => claim.release().is_empty(),
            Found::Nothing { claim: None, .. } => true,
            _ => false,
        }
    }
}

#[test]
fn what_was_stored_is_there_after_a_restart_and_all_who_ask_wait_once() {
    let long: Vec<u8> = (0..50_000_u32).flat_map(u32::to_le_bytes).collect();
    let story = Story::new();
    for (number, bytes) in [(1, &b"one"[..]), (2, b""), (3, &long)] {
        story.put(number, "", "", bytes);
    }
    let story = story.restart();
    for (number, bytes) in [(1, &b"one"[..]), (2, b""), (3, &long)] {
        assert!(matches!(story.ask(number, "", true), Found::Comes { is_own: true }));
        let other = story.ask_as(OTHER, number, "", true);
        assert!(matches!(other, Found::Comes { is_own: false }));
        story.work();
        assert_eq!(story.bell.take(), [ME, OTHER]);
        assert_eq!(body(story.ask(number, "", false)), bytes);
        assert_eq!(body(story.ask_as(OTHER, number, "", true)), bytes);
    }
    let stat = story.cache.stat();
    assert_eq!((stat.objects, stat.disks.answers, stat.disks.fetched), (3, 3, 3));
    assert_eq!(story.cache.clear().bytes_astray, 0);
}

#[test]
fn what_is_to_be_read_again_is() {
    let story = Story::new();
    story.cache.reread_disks();
    story.put(1, "", "", b"one");
    for count in 1..=3 {
        assert_eq!(body(story.found(1, "")), b"one");
        assert_eq!(story.cache.stat().disks.fetched, count);
    }
}

#[test]
fn who_may_not_wait_asks_the_origin() {
    let story = Story::new();
    story.put(1, "", "", b"one");
    let story = story.restart();
    let found = ask(&story.cache, key(1), "", None);
    assert!(matches!(found, Found::Nothing { claim: Some(_), .. }));
    drop(found);
    assert!(matches!(story.ask(1, "Cache-Control: only-if-cached\r\n", true), Found::Comes { .. }));
    story.work();
    assert!(matches!(story.ask(1, "Cache-Control: only-if-cached\r\n", true), Found::Stored(_)));
}

#[test]
fn a_disk_that_fails_is_a_miss_and_nobody_is_forgotten() {
    let story = Story::new();
    story.put(1, "", "", b"one");
    let story = story.restart();
    story.volume.set_faults(SimFaults { read_errors: 1, ..SimFaults::default() });
    assert!(matches!(story.ask(1, "", true), Found::Comes { is_own: true }));
    assert!(matches!(story.ask_as(OTHER, 1, "", true), Found::Comes { is_own: false }));
    story.work();
    assert_eq!(story.bell.take(), [ME, OTHER]);
    let claim = claim(story.ask(1, "", false));
    assert!(matches!(story.ask_as(OTHER, 1, "", true), Found::Wait(_)), "one asks the origin");
    assert_eq!(claim.release(), [OTHER]);
    assert_eq!(story.cache.clear(), Cleared::default());
}

#[test]
fn above_the_mark_the_origin_is_asked() {
    let story = Story::new();
    story.put(1, "", "", b"one");
    let volume = {
        story.volume.die_after(0);
        story.cache.close_disks();
        story.volume.restart(false);
        story.volume
    };
    let story = Story::on(volume, Marks { skip: 0, ..Marks::default() });
    let claim = claim(story.ask(1, "", true));
    assert!(matches!(story.ask_as(OTHER, 1, "", true), Found::Wait(_)));
    assert_eq!(claim.release(), [OTHER]);
    story.put(2, "", "", b"two");
    let disks = story.cache.stat().disks;
    assert_eq!((disks.fetches_skipped, disks.stores_skipped, disks.stored), (1, 1, 0));
}

/// Many ask at once for what a disk has and refuses: nobody is woken, on whose thread is not known.
#[test]
fn nobody_waits_for_what_is_refused() {
    let story = Story::new();
    story.put(1, "", "", b"one");
    story.volume.die_after(0);
    story.cache.close_disks();
    story.volume.restart(false);
    let story = Story::on(story.volume, Marks { skip: 0, ..Marks::default() });
    std::thread::scope(|scope| {
        for who in [ME, OTHER] {
            let story = &story;
            scope.spawn(move || {
                for _ in 0..2000 {
                    match story.ask_as(who, 1, "", true) {
                        Found::Nothing { claim: Some(claim), .. } => drop(claim.release()),
                        Found::Wait(_) => story.cache.forget(key(1), who),
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
    });
    assert_eq!(story.bell.take(), []);
    assert_eq!(story.cache.clear(), Cleared::default());
}

#[test]
fn a_disk_that_is_stuck_is_waited_for_once() {
    let story = Story::new();
    story.put(1, "", "ETag: \"a\"\r\n", b"one");
    let story = story.restart();
    assert!(matches!(story.ask(1, "", true), Found::Comes { is_own: true }));
    assert!(matches!(story.ask_as(OTHER, 1, "", true), Found::Comes { is_own: false }));
    // The time of the first is over: he asks the origin, and all who come now wait for that.
    let claim = claim(ask(&story.cache, key(1), "", None));
    let late = Waiter { worker: 1, token: 3 };
    assert!(matches!(story.ask_as(late, 1, "", true), Found::Wait(_)));
    assert_eq!(claim.pass(NOW_MS + 1000), [late]);
    // It is for one client, so nobody waits at all.
    assert!(matches!(story.ask_as(late, 1, "", true), Found::Nothing { claim: None, .. }));
    story.work();
    assert_eq!(story.bell.take(), [ME, OTHER]);
    assert_eq!(body(story.ask(1, "", false)), b"one", "what it brings after all is used");
}

#[test]
fn what_is_stale_is_refreshed_though_a_disk_is_stuck() {
    let story = Story::new();
    let says = "Cache-Control: stale-while-revalidate=60\r\n";
    story.put(1, "", says, b"one");
    let story = story.restart();
    assert!(matches!(story.ask(1, "", true), Found::Comes { is_own: true }));
    let claim = claim(ask(&story.cache, key(1), "", None));
    let draft = draft("", says, Some(0));
    let (filling, _) = story.cache.publish(key(1), Some(claim), draft, NOW_MS);
    assert_eq!(filling.unwrap().finish(NOW_MS), []);
    let found = ask_at(&story.cache, key(1), "", Some(ME), NOW_MS + 70_000);
    let Found::Stale(_, Some(claim)) = found else { panic!("not refreshed: {found:?}") };
    assert_eq!(claim.release(), []);
}

/// Has each read fail from the time on at which somebody is woken.
#[derive(Debug)]
struct Breaking(SimVolume);

impl Waker for Breaking {
    fn wake(&self, _: Waiter) {
        self.0.set_faults(SimFaults { read_errors: 1, ..SimFaults::default() });
    }
}

#[test]
fn of_what_does_not_come_into_memory_the_rest_is_not_read() {
    let long = vec![1; 200_000];
    for is_replaced in [true, false] {
        let story = Story::new();
        story.put(1, "", "", &long);
        story.cache.close_disks();
        let (cache, breaking) = (cache(), Arc::new(Breaking(story.volume.clone())));
        let volumes: Vec<(Arc<dyn Volume>, u64)> = vec![(Arc::new(story.volume.clone()), 32 << 20)];
        let options = Options { readers: 0, ..Options::default() };
        cache.open_disks(volumes, &options, breaking, NOW_MS).unwrap();
        let story = Story { volume: story.volume, cache, bell: Arc::default() };
        story.work();
        assert!(matches!(story.ask(1, "", true), Found::Comes { is_own: true }));
        let newer = draft("Y: 1\r\n", "Vary: y\r\n", Some(3));
        let arriving = is_replaced.then(|| story.cache.publish(key(1), None, newer, NOW_MS));
        story.work();
        drop(arriving);
        let disks = story.cache.stat().disks;
        assert_eq!((disks.fetched, disks.read_errors), (1, u64::from(!is_replaced)));
    }
}

#[test]
fn what_disks_were_bringing_when_they_went_is_fetched() {
    let story = Story::new();
    story.put(1, "", "", b"one");
    let story = story.restart();
    assert!(matches!(story.ask(1, "", true), Found::Comes { .. }));
    story.cache.close_disks();
    assert_eq!(story.bell.take(), [ME]);
    drop(claim(story.ask(1, "", true)));
    assert_eq!(story.cache.clear(), Cleared::default());
}

#[test]
fn variants_are_told_apart_on_a_disk() {
    let story = Story::new();
    for (wants, bytes) in [("X: 1\r\n", b"one"), ("X: 2\r\n", b"two")] {
        story.put(1, wants, "Vary: x\r\n", bytes);
    }
    let story = story.restart();
    assert_eq!(body(story.found(1, "X: 2\r\n")), b"two");
    assert_eq!(body(story.found(1, "X: 1\r\n")), b"one");
    assert!(matches!(story.found(1, "X: 3\r\n"), Found::Nothing { .. }));
    story.put(1, "Y: 1\r\n", "Vary: y\r\n", b"new");
    let story = story.restart();
    assert!(matches!(story.found(1, "X: 2\r\n"), Found::Nothing { .. }), "it varied otherwise");
    assert_eq!(body(story.found(1, "Y: 1\r\n")), b"new");
}

#[test]
fn purges_and_what_is_made_invalid_hold_for_disks_too() {
    let (asked, nothing) = (RequestDirectives::default(), request(""));
    let request = &OriginRequest::as_received(&nothing);
    let (waiter, now_ms) = (Some(ME), NOW_MS);
    let question = |key| Question {
        key,
        request,
        asked: &asked,
        now_ms,
        waiter,
        claims: true,
        refreshes: true,
        asks_disks: true,
    };
    let plain = Key::of_text(&HASH, b"http://a/");
    type Act = fn(&Cache);
    let acts: [(&str, Act); 6] = [
        ("prefix", |it| _ = it.purge(&Which::Prefix(b"http://a".to_vec()), false, NOW_MS)),
        ("all", |it| _ = it.purge(&Which::All, false, NOW_MS)),
        ("invalid", |it| _ = it.invalidate(key(1), it.number())),
        ("remove", |it| _ = it.remove(key(1))),
        ("before", |_| {}),
        ("url", |it| _ = it.purge(&Which::Url(b"http://a/".to_vec()), false, NOW_MS)),
    ];
    for is_in_memory in [true, false] {
        for (name, act) in acts {
            let mut story = Story::new();
            story.put(1, "", "", b"one");
            put(&story.cache, plain, "", "", b"plain");
            if !is_in_memory {
                story = story.restart();
            }
            act(&story.cache);
            let story = story.restart();
            // The text of key 1 is the URL's, and its hash is not.
            let is_missed = !matches!(name, "before" | "url");
            assert_eq!(story.is_missed(1), is_missed, "{name} {is_in_memory}");
            let mut found = story.cache.lookup(&question(plain));
            if let Found::Comes { is_own } = found {
                assert!(is_own);
                story.work();
                found = story.cache.lookup(&Question { asks_disks: false, ..question(plain) });
            }
            let is_there = !matches!(name, "prefix" | "all" | "url");
            assert_eq!(matches!(found, Found::Stored(_)), is_there, "{name} {is_in_memory}");
        }
    }
}

#[test]
fn a_purge_by_url_finds_what_has_more_in_its_key() {
    let story = Story::new();
    let name = b"http://a/\nx:1";
    let mut it = draft("", "", Some(0));
    it.name = name[..].into();
    let key = Key::of_text(&HASH, name);
    let _ = story.cache.publish(key, None, it, NOW_MS).0.unwrap().finish(NOW_MS);
    put(&story.cache, Key::of_text(&HASH, b"http://a/"), "", "", b"plain");
    let story = story.restart();
    assert_eq!(story.cache.list_disks(&Which::All, 9).0[0].tags.len(), 0);
    assert_eq!(story.cache.list_disks(&Which::Url(b"http://a/".to_vec()), 9).0.len(), 2);
    assert!(story.cache.list_disks(&Which::Url(b"http://a/".to_vec()), 0).1);
    let purged = story.cache.purge(&Which::Url(b"http://a/".to_vec()), false, NOW_MS);
    assert_eq!(purged, Purged { count: 0, is_durable: Some(true) });
    let story = story.restart();
    assert!(story.cache.list_disks(&Which::All, 9).0.is_empty());
}

#[test]
fn what_is_made_stale_is_validated_whatever_is_restarted() {
    for is_soft_purge in [true, false] {
        let story = Story::new();
        let says = "ETag: \"a\"\r\nCache-Control: stale-while-revalidate=60\r\n";
        let mut it = draft("", says, Some(0));
        it.tags = Arc::new([TagHash(5)]);
        let _ = story.cache.publish(key(1), None, it, NOW_MS).0.unwrap().finish(NOW_MS);
        let story = story.restart();
        match is_soft_purge {
            true => _ = story.cache.purge(&Which::Tag(TagHash(5)), true, NOW_MS),
            false => story.cache.invalidate_tag(TagHash(5)),
        }
        let story = story.restart();
        let found = story.found(1, "");
        assert!(matches!(found, Found::Validate { is_spare: false, .. }), "{found:?}");
    }
}

#[test]
fn a_304_counts_after_a_restart() {
    let story = Story::new();
    let object = story.put(1, "", "ETag: \"a\"\r\n", b"one");
    let mut stored = object.stored.clone();
    stored.meta.response_ms += 1234;
    story.cache.update(
        key(1),
        &object,
        stored,
        (&OriginRequest::as_received(&request("")), &answer("")),
        0,
    );
    let story = story.restart();
    let Found::Stored(found) = story.found(1, "") else { panic!("it is there") };
    assert_eq!(found.meta().response_ms, object.meta().response_ms + 1234);
    assert_eq!(story.cache.stat().disks.stored, 0, "what comes from a disk is not written again");
}

#[test]
fn what_was_made_invalid_while_it_arrived_is_not_fresh_on_a_disk() {
    let story = Story::new();
    let (filling, _) = story.cache.publish(key(1), None, draft("", "", Some(3)), NOW_MS);
    let mut filling = filling.unwrap();
    story.cache.invalidate(key(1), story.cache.number());
    let _ = fill(&mut filling, b"one");
    let _ = filling.finish(NOW_MS);
    let story = story.restart();
    assert!(!matches!(story.found(1, ""), Found::Stored(_)));
}

#[test]
fn purges_before_the_disks_are_there_are_told_to_them() {
    let story = Story::new();
    story.put(1, "", "", b"one");
    story.put(2, "", "", b"two");
    story.cache.close_disks();
    let (next, bell) = (cache(), Arc::new(Bell::default()));
    next.await_disks();
    let purged = next.purge(&Which::Prefix(b"http://b".to_vec()), false, NOW_MS);
    assert_eq!(purged.is_durable, Some(false));
    next.invalidate(key(1), next.number());
    let volumes: Vec<(Arc<dyn Volume>, u64)> = vec![(Arc::new(story.volume.clone()), 32 << 20)];
    let options = Options { readers: 0, ..Options::default() };
    let contents = next.open_disks(volumes, &options, bell.clone(), NOW_MS).unwrap();
    assert_eq!(contents, [Contents::Kept]);
    let story = Story { volume: story.volume, cache: next, bell };
    story.work();
    assert!(story.is_missed(1));
    assert_eq!(body(story.found(2, "")), b"two");
}

#[test]
fn disks_of_another_cache_are_not_used() {
    let story = Story::new();
    story.put(1, "", "", b"one");
    story.cache.close_disks();
    let bounds = Bounds { bytes: 8 << 20, object_bytes: 1 << 20, variants: 4, tends: true };
    let other = Cache::new(Slab::on_heap(8 << 20).unwrap(), SECOND, bounds);
    let volumes: Vec<(Arc<dyn Volume>, u64)> = vec![(Arc::new(story.volume), 32 << 20)];
    let options = Options { readers: 0, ..Options::default() };
    let refused = other.open_disks(volumes, &options, story.bell, NOW_MS);
    assert_eq!(refused, Err(millrace_disk::Error::OtherKey));
}

/// Has a 304 make an object fresh for so long from then on.
fn validated(story: &Story, object: &Arc<Object>, more_ms: u64) -> Arc<Object> {
    let mut stored = object.stored.clone();
    stored.meta.response_ms += more_ms;
    let updated = story.cache.update(
        key(1),
        object,
        stored,
        (&OriginRequest::as_received(&request("")), &answer("")),
        0,
    );
    story.work();
    updated
}

#[test]
fn a_304_for_what_still_arrives_is_not_for_the_body_on_the_disk() {
    let story = Story::new();
    story.put(1, "", "ETag: \"1\"\r\n", b"one");
    let newer = draft("", "ETag: \"2\"\r\n", Some(3));
    let filling = story.cache.publish(key(1), None, newer, NOW_MS).0.unwrap();
    validated(&story, filling.object(), 1234);
    let story = story.restart();
    assert!(story.is_missed(1));
}

#[test]
fn a_304_for_what_memory_alone_has_is_not_for_the_body_on_the_disk() {
    let story = Story::new();
    story.put(1, "", "ETag: \"1\"\r\n", b"one");
    story.cache.close_disks();
    let (next, bell) = (cache(), Arc::new(Bell::default()));
    next.await_disks();
    let object = put(&next, key(1), "", "ETag: \"2\"\r\n", b"two");
    let volumes: Vec<(Arc<dyn Volume>, u64)> = vec![(Arc::new(story.volume.clone()), 32 << 20)];
    let options = Options { readers: 0, ..Options::default() };
    next.open_disks(volumes, &options, bell.clone(), NOW_MS).unwrap();
    let story = Story { volume: story.volume, cache: next, bell };
    story.work();
    validated(&story, &object, 1234);
    assert!(story.restart().is_missed(1));
}

#[test]
fn a_304_after_a_304_counts_after_a_restart_and_from_a_disk() {
    let story = Story::new();
    let object = story.put(1, "", "ETag: \"a\"\r\n", b"one");
    validated(&story, &validated(&story, &object, 1000), 200);
    let story = story.restart();
    let Found::Stored(found) = story.found(1, "") else { panic!("it is there") };
    validated(&story, &found, 30);
    let story = story.restart();
    let Found::Stored(found) = story.found(1, "") else { panic!("it is there") };
    assert_eq!(found.meta().response_ms, object.meta().response_ms + 1230);
}

#[test]
fn a_304_that_is_left_out_leaves_nothing() {
    let story = Story::new();
    story.put(1, "", "ETag: \"a\"\r\n", b"one");
    story.volume.die_after(0);
    story.cache.close_disks();
    story.volume.restart(false);
    let story = Story::on(story.volume, Marks { skip: 1, ..Marks::default() });
    let Found::Stored(found) = story.found(1, "") else { panic!("it is there") };
    let mut stored = found.stored.clone();
    stored.meta.invalidate();
    // Something is in the queue.
    story.cache.invalidate_tag(TagHash(3));
    story.cache.update(
        key(1),
        &found,
        stored,
        (&OriginRequest::as_received(&request("")), &answer("")),
        0,
    );
    assert!(story.restart().is_missed(1));
}

#[test]
fn a_304_that_cannot_be_written_leaves_nothing() {
    let story = Story::new();
    let object = story.put(1, "", "ETag: \"a\"\r\n", b"one");
    story.volume.set_faults(SimFaults { write_errors: 1, ..SimFaults::default() });
    let mut stored = object.stored.clone();
    stored.meta.invalidate();
    story.cache.update(
        key(1),
        &object,
        stored,
        (&OriginRequest::as_received(&request("")), &answer("")),
        0,
    );
    story.work();
    let _ = story.cache.clear();
    assert!(story.is_missed(1));
}

#[test]
fn what_a_disk_brings_is_older_than_all_that_memory_has() {
    let story = Story::new();
    story.put(1, "X: 1\r\n", "Vary: x\r\n", b"one");
    let story = story.restart();
    assert!(matches!(story.ask(1, "X: 1\r\n", true), Found::Comes { is_own: true }));
    let request = draft("Y: 1\r\n", "Vary: y\r\n", Some(3));
    let mut filling = story.cache.publish(key(1), None, request, NOW_MS).0.unwrap();
    story.work();
    let _ = fill(&mut filling, b"new");
    let _ = filling.finish(NOW_MS);
    assert_eq!(body(story.ask(1, "X: 1\r\nY: 1\r\n", false)), b"new");
    assert!(matches!(story.ask(1, "X: 1\r\nY: 2\r\n", false), Found::Nothing { .. }));
}

#[test]
fn what_was_replaced_on_the_disk_while_it_was_read_does_not_come() {
    let story = Story::new();
    story.put(1, "", "", b"one");
    let story = story.restart();
    assert!(matches!(story.ask(1, "", true), Found::Comes { is_own: true }));
    // Another asks the origin, and memory lets go of what came.
    put(&story.cache, key(1), "", "", b"two");
    let _ = story.cache.clear();
    story.work();
    assert!(!matches!(story.ask(1, "", false), Found::Stored(_)));
}

#[test]
fn a_variant_that_is_stored_anew_costs_no_other() {
    let story = Story::new();
    let wants = |number: u32| format!("X: {number}\r\n");
    for number in [1, 2, 3, 4, 2] {
        story.put(1, &wants(number), "Vary: x\r\n", b"one");
    }
    let story = story.restart();
    for number in 1..=4 {
        assert_eq!(body(story.found(1, &wants(number))), b"one", "{number}");
    }
}

#[test]
fn who_stores_and_forgets_never_waits_for_a_disk() {
    let story = Story::on(SimVolume::new(1, 64 << 20), Marks { wait: 0, ..Marks::default() });
    story.put(1, "X: 1\r\n", "Vary: x\r\n", b"one");
    story.put(1, "Y: 1\r\n", "Vary: y\r\n", b"new");
    assert_eq!(story.cache.stat().disks.waits, 0);
    story.cache.invalidate(key(1), 0);
    assert_eq!(story.cache.stat().disks.waits, 1);
}

#[test]
fn an_operator_waits_for_no_step() {
    let story = Story::new();
    story.put(1, "", "", b"one");
    let _step = story.cache.beneath.step();
    assert_eq!(story.cache.purge_disks(&Which::All, false), Some(true));
}

/// Looks at the disks as soon as it is told something.
#[derive(Debug, Default)]
struct Curious(std::sync::OnceLock<Arc<Cache>>);

impl Waker for Curious {
    fn wake(&self, _: Waiter) {
        let cache = self.0.get().unwrap();
        assert!(cache.list_disks(&Which::All, 9).0.is_empty());
    }
}

#[test]
fn nobody_waits_for_disks_that_are_being_closed() {
    let story = Story::new();
    story.put(1, "", "", b"one");
    story.cache.close_disks();
    let (cache, curious) = (cache(), Arc::new(Curious::default()));
    let volumes: Vec<(Arc<dyn Volume>, u64)> = vec![(Arc::new(story.volume.clone()), 32 << 20)];
    let options = Options { readers: 0, ..Options::default() };
    cache.open_disks(volumes, &options, curious.clone(), NOW_MS).unwrap();
    while cache.work_disks() {}
    curious.0.set(cache.clone()).unwrap();
    let story = Story { volume: story.volume, cache: cache.clone(), bell: Arc::default() };
    assert!(matches!(story.ask(1, "", true), Found::Comes { .. }));
    cache.close_disks();
}
