//! The disk tier, with disks whose work the tests run step by step.

use std::sync::Mutex;

use millrace_disk::{
    DirectoryContents, DirectoryIo, DiskOptions, QueueMarks, SimDirectory, SimFaults,
};

use super::*;
use crate::index::Waker;

const SECOND: HashKey = HashKey::new([8; 16]);

/// Records the waiters that were woken.
#[derive(Debug, Default)]
struct RecordingWaker(Mutex<Vec<WaiterId>>);

impl Waker for RecordingWaker {
    fn wake(&self, waiter: WaiterId) {
        self.0.lock().unwrap().push(waiter);
    }
}

impl RecordingWaker {
    fn take(&self) -> Vec<WaiterId> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// A cache with one disk.
struct DiskTest {
    directory: SimDirectory,
    cache: Arc<Cache>,
    waker: Arc<RecordingWaker>,
}

impl DiskTest {
    fn new() -> Self {
        Self::on(SimDirectory::new(1, 64 << 20), QueueMarks::default())
    }

    fn on(directory: SimDirectory, marks: QueueMarks) -> Self {
        let (cache, waker) = (cache(), Arc::new(RecordingWaker::default()));
        let directories: Vec<(Arc<dyn DirectoryIo>, u64)> =
            vec![(Arc::new(directory.clone()), 32 << 20)];
        let options = DiskOptions { marks, readers: 0 };
        let contents = cache.open_disks(directories, &options, waker.clone(), NOW_MS).unwrap();
        assert_eq!(contents.len(), 1);
        let test = Self { directory, cache, waker };
        test.work();
        test
    }

    fn work(&self) {
        while self.cache.run_disk_work() {
            self.cache.slab().prefault();
        }
    }

    /// Continues in another process after this one was killed.
    fn restart(self) -> Self {
        self.work();
        // A process that is killed closes nothing.
        self.directory.die_after(0);
        self.cache.close_disks();
        self.directory.restart(false);
        Self::on(self.directory, QueueMarks::default())
    }

    fn put(
        &self,
        number: u32,
        request_fields: &str,
        response_fields: &str,
        bytes: &[u8],
    ) -> Arc<Object> {
        let object = put(&self.cache, key(number), request_fields, response_fields, bytes);
        self.work();
        object
    }

    fn look_up(&self, number: u32, fields: &str, uses_disks: bool) -> LookupResult {
        self.look_up_as(ME, number, fields, uses_disks)
    }

    fn look_up_as(
        &self,
        who: WaiterId,
        number: u32,
        fields: &str,
        uses_disks: bool,
    ) -> LookupResult {
        let request = request(fields);
        let directives = RequestDirectives::parse(&request);
        let (key, waiter) = (key(number), Some(who));
        let request = &OriginRequest::as_received(&request);
        let (directives, now_ms) = (&directives, NOW_MS);
        let (takes_lease, may_refresh) = (true, true);
        self.cache.lookup(&LookupRequest {
            key,
            request,
            directives,
            now_ms,
            waiter,
            takes_lease,
            may_refresh,
            uses_disks,
        })
    }

    /// Returns the result after the disk was read.
    fn found(&self, number: u32, fields: &str) -> LookupResult {
        match self.look_up(number, fields, true) {
            LookupResult::PendingDisk { is_own: true } => {
                self.work();
                assert_eq!(self.waker.take(), [ME]);
                self.look_up(number, fields, false)
            }
            other => other,
        }
    }

    fn is_missed(&self, number: u32) -> bool {
        match self.found(number, "") {
            LookupResult::Miss { lease: Some(lease), .. } => lease.release().is_empty(),
            LookupResult::Miss { lease: None, .. } => true,
            _ => false,
        }
    }
}

#[test]
fn responses_are_found_after_a_restart_and_requests_wait_once() {
    let long: Vec<u8> = (0..50_000_u32).flat_map(u32::to_le_bytes).collect();
    let test = DiskTest::new();
    for (number, bytes) in [(1, &b"one"[..]), (2, b""), (3, &long)] {
        test.put(number, "", "", bytes);
    }
    let test = test.restart();
    for (number, bytes) in [(1, &b"one"[..]), (2, b""), (3, &long)] {
        assert!(matches!(
            test.look_up(number, "", true),
            LookupResult::PendingDisk { is_own: true }
        ));
        let other = test.look_up_as(OTHER, number, "", true);
        assert!(matches!(other, LookupResult::PendingDisk { is_own: false }));
        test.work();
        assert_eq!(test.waker.take(), [ME, OTHER]);
        assert_eq!(body(test.look_up(number, "", false)), bytes);
        assert_eq!(body(test.look_up_as(OTHER, number, "", true)), bytes);
    }
    let stats = test.cache.stats();
    assert_eq!((stats.objects, stats.disks.responses, stats.disks.fetched), (3, 3, 3));
    assert_eq!(test.cache.clear().leaked_bytes, 0);
}

#[test]
fn always_rereading_disks_reads_every_time() {
    let test = DiskTest::new();
    test.cache.always_reread_disks();
    test.put(1, "", "", b"one");
    for count in 1..=3 {
        assert_eq!(body(test.found(1, "")), b"one");
        assert_eq!(test.cache.stats().disks.fetched, count);
    }
}

#[test]
fn a_request_that_may_not_wait_goes_to_the_origin() {
    let test = DiskTest::new();
    test.put(1, "", "", b"one");
    let test = test.restart();
    let found = look_up(&test.cache, key(1), "", None);
    assert!(matches!(found, LookupResult::Miss { lease: Some(_), .. }));
    drop(found);
    assert!(matches!(
        test.look_up(1, "Cache-Control: only-if-cached\r\n", true),
        LookupResult::PendingDisk { .. }
    ));
    test.work();
    assert!(matches!(
        test.look_up(1, "Cache-Control: only-if-cached\r\n", true),
        LookupResult::Stored(_)
    ));
}

#[test]
fn a_failing_disk_is_a_miss_and_no_waiter_is_forgotten() {
    let test = DiskTest::new();
    test.put(1, "", "", b"one");
    let test = test.restart();
    test.directory.set_faults(SimFaults { read_errors: 1, ..SimFaults::default() });
    assert!(matches!(test.look_up(1, "", true), LookupResult::PendingDisk { is_own: true }));
    assert!(matches!(
        test.look_up_as(OTHER, 1, "", true),
        LookupResult::PendingDisk { is_own: false }
    ));
    test.work();
    assert_eq!(test.waker.take(), [ME, OTHER]);
    let lease = lease(test.look_up(1, "", false));
    assert!(
        matches!(test.look_up_as(OTHER, 1, "", true), LookupResult::Wait(_)),
        "one request goes to the origin"
    );
    assert_eq!(lease.release(), [OTHER]);
    assert_eq!(test.cache.clear(), ClearReport::default());
}

#[test]
fn above_the_mark_requests_go_to_the_origin() {
    let test = DiskTest::new();
    test.put(1, "", "", b"one");
    let directory = {
        test.directory.die_after(0);
        test.cache.close_disks();
        test.directory.restart(false);
        test.directory
    };
    let test = DiskTest::on(directory, QueueMarks { skip: 0, ..QueueMarks::default() });
    let lease = lease(test.look_up(1, "", true));
    assert!(matches!(test.look_up_as(OTHER, 1, "", true), LookupResult::Wait(_)));
    assert_eq!(lease.release(), [OTHER]);
    test.put(2, "", "", b"two");
    let disks = test.cache.stats().disks;
    assert_eq!((disks.fetches_skipped, disks.stores_skipped, disks.stored), (1, 1, 0));
}

/// Two threads request a response that a disk has but refuses to load. No request may wait for that
/// load, so the disk wakes no waiter.
#[test]
fn no_request_waits_for_a_refused_load() {
    let test = DiskTest::new();
    test.put(1, "", "", b"one");
    test.directory.die_after(0);
    test.cache.close_disks();
    test.directory.restart(false);
    let test = DiskTest::on(test.directory, QueueMarks { skip: 0, ..QueueMarks::default() });
    std::thread::scope(|scope| {
        for waiter in [ME, OTHER] {
            let test = &test;
            scope.spawn(move || {
                for _ in 0..2000 {
                    match test.look_up_as(waiter, 1, "", true) {
                        LookupResult::Miss { lease: Some(lease), .. } => drop(lease.release()),
                        LookupResult::Wait(_) => test.cache.remove_waiter(key(1), waiter),
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
    });
    assert_eq!(test.waker.take(), []);
    assert_eq!(test.cache.clear(), ClearReport::default());
}

#[test]
fn a_stuck_disk_is_waited_for_once() {
    let test = DiskTest::new();
    test.put(1, "", "ETag: \"a\"\r\n", b"one");
    let test = test.restart();
    assert!(matches!(test.look_up(1, "", true), LookupResult::PendingDisk { is_own: true }));
    assert!(matches!(
        test.look_up_as(OTHER, 1, "", true),
        LookupResult::PendingDisk { is_own: false }
    ));
    // The first waiter has timed out: it goes to the origin, and all later requests wait for that.
    let lease = lease(look_up(&test.cache, key(1), "", None));
    let late = WaiterId { worker: 1, token: 3 };
    assert!(matches!(test.look_up_as(late, 1, "", true), LookupResult::Wait(_)));
    assert_eq!(lease.release_as_private(NOW_MS + 1000), [late]);
    // The response is for one client, so no request waits.
    assert!(matches!(test.look_up_as(late, 1, "", true), LookupResult::Miss { lease: None, .. }));
    test.work();
    assert_eq!(test.waker.take(), [ME, OTHER]);
    assert_eq!(body(test.look_up(1, "", false)), b"one", "its late response is used");
}

#[test]
fn a_stale_response_is_refreshed_although_a_disk_is_stuck() {
    let test = DiskTest::new();
    let response_fields = "Cache-Control: stale-while-revalidate=60\r\n";
    test.put(1, "", response_fields, b"one");
    let test = test.restart();
    assert!(matches!(test.look_up(1, "", true), LookupResult::PendingDisk { is_own: true }));
    let lease = lease(look_up(&test.cache, key(1), "", None));
    let entry = entry("", response_fields, Some(0));
    let (object_filler, _) = test.cache.publish(key(1), Some(lease), entry, NOW_MS);
    assert_eq!(object_filler.unwrap().finish(NOW_MS), []);
    let found = look_up_at(&test.cache, key(1), "", Some(ME), NOW_MS + 70_000);
    let LookupResult::Stale(_, Some(lease)) = found else { panic!("not refreshed: {found:?}") };
    assert_eq!(lease.release(), []);
}

/// Makes each read fail from the first wake-up on.
#[derive(Debug)]
struct Breaking(SimDirectory);

impl Waker for Breaking {
    fn wake(&self, _: WaiterId) {
        self.0.set_faults(SimFaults { read_errors: 1, ..SimFaults::default() });
    }
}

#[test]
fn a_load_that_memory_rejects_is_not_read_to_its_end() {
    let long = vec![1; 200_000];
    for is_replaced in [true, false] {
        let test = DiskTest::new();
        test.put(1, "", "", &long);
        test.cache.close_disks();
        let (cache, breaking) = (cache(), Arc::new(Breaking(test.directory.clone())));
        let directories: Vec<(Arc<dyn DirectoryIo>, u64)> =
            vec![(Arc::new(test.directory.clone()), 32 << 20)];
        let options = DiskOptions { readers: 0, ..DiskOptions::default() };
        cache.open_disks(directories, &options, breaking, NOW_MS).unwrap();
        let test = DiskTest { directory: test.directory, cache, waker: Arc::default() };
        test.work();
        assert!(matches!(test.look_up(1, "", true), LookupResult::PendingDisk { is_own: true }));
        let newer = entry("Y: 1\r\n", "Vary: y\r\n", Some(3));
        let arriving = is_replaced.then(|| test.cache.publish(key(1), None, newer, NOW_MS));
        test.work();
        drop(arriving);
        let disks = test.cache.stats().disks;
        assert_eq!((disks.fetched, disks.read_errors), (1, u64::from(!is_replaced)));
    }
}

#[test]
fn loads_in_progress_go_to_the_origin_when_disks_are_closed() {
    let test = DiskTest::new();
    test.put(1, "", "", b"one");
    let test = test.restart();
    assert!(matches!(test.look_up(1, "", true), LookupResult::PendingDisk { .. }));
    test.cache.close_disks();
    assert_eq!(test.waker.take(), [ME]);
    drop(lease(test.look_up(1, "", true)));
    assert_eq!(test.cache.clear(), ClearReport::default());
}

#[test]
fn a_disk_distinguishes_variants() {
    let test = DiskTest::new();
    for (request_fields, bytes) in [("X: 1\r\n", b"one"), ("X: 2\r\n", b"two")] {
        test.put(1, request_fields, "Vary: x\r\n", bytes);
    }
    let test = test.restart();
    assert_eq!(body(test.found(1, "X: 2\r\n")), b"two");
    assert_eq!(body(test.found(1, "X: 1\r\n")), b"one");
    assert!(matches!(test.found(1, "X: 3\r\n"), LookupResult::Miss { .. }));
    test.put(1, "Y: 1\r\n", "Vary: y\r\n", b"new");
    let test = test.restart();
    assert!(matches!(test.found(1, "X: 2\r\n"), LookupResult::Miss { .. }), "it had another Vary");
    assert_eq!(body(test.found(1, "Y: 1\r\n")), b"new");
}

#[test]
fn purges_and_invalidations_apply_to_disks() {
    let (directives, nothing) = (RequestDirectives::default(), request(""));
    let request = &OriginRequest::as_received(&nothing);
    let (waiter, now_ms) = (Some(ME), NOW_MS);
    let lookup = |key| LookupRequest {
        key,
        request,
        directives: &directives,
        now_ms,
        waiter,
        takes_lease: true,
        may_refresh: true,
        uses_disks: true,
    };
    let plain = Key::from_text(&HASH, b"http://a/");
    type Act = fn(&Cache);
    let acts: [(&str, Act); 6] = [
        ("prefix", |it| _ = it.purge(&Selector::Prefix(b"http://a".to_vec()), false, NOW_MS)),
        ("all", |it| _ = it.purge(&Selector::All, false, NOW_MS)),
        ("invalid", |it| _ = it.invalidate(key(1), it.invalidation_seq())),
        ("remove", |it| _ = it.remove(key(1))),
        ("nothing", |_| {}),
        ("url", |it| _ = it.purge(&Selector::Url(b"http://a/".to_vec()), false, NOW_MS)),
    ];
    for is_in_memory in [true, false] {
        for (name, act) in acts {
            let mut test = DiskTest::new();
            test.put(1, "", "", b"one");
            put(&test.cache, plain, "", "", b"plain");
            if !is_in_memory {
                test = test.restart();
            }
            act(&test.cache);
            let test = test.restart();
            // The text of key 1 is the URL's, but its hash is not.
            let is_missed = !matches!(name, "nothing" | "url");
            assert_eq!(test.is_missed(1), is_missed, "{name} {is_in_memory}");
            let mut found = test.cache.lookup(&lookup(plain));
            if let LookupResult::PendingDisk { is_own } = found {
                assert!(is_own);
                test.work();
                found = test.cache.lookup(&LookupRequest { uses_disks: false, ..lookup(plain) });
            }
            let is_there = !matches!(name, "prefix" | "all" | "url");
            assert_eq!(matches!(found, LookupResult::Stored(_)), is_there, "{name} {is_in_memory}");
        }
    }
}

#[test]
fn a_purge_by_url_finds_longer_keys() {
    let test = DiskTest::new();
    let name = b"http://a/\nx:1";
    let mut it = entry("", "", Some(0));
    it.name = name[..].into();
    let key = Key::from_text(&HASH, name);
    let _ = test.cache.publish(key, None, it, NOW_MS).0.unwrap().finish(NOW_MS);
    put(&test.cache, Key::from_text(&HASH, b"http://a/"), "", "", b"plain");
    let test = test.restart();
    assert_eq!(test.cache.list_disks(&Selector::All, 9).0[0].tags.len(), 0);
    assert_eq!(test.cache.list_disks(&Selector::Url(b"http://a/".to_vec()), 9).0.len(), 2);
    assert!(test.cache.list_disks(&Selector::Url(b"http://a/".to_vec()), 0).1);
    let purged = test.cache.purge(&Selector::Url(b"http://a/".to_vec()), false, NOW_MS);
    assert_eq!(purged, PurgeResult { count: 0, is_durable: Some(true) });
    let test = test.restart();
    assert!(test.cache.list_disks(&Selector::All, 9).0.is_empty());
}

#[test]
fn a_stale_response_is_validated_after_any_restart() {
    for is_soft_purge in [true, false] {
        let test = DiskTest::new();
        let response_fields = "ETag: \"a\"\r\nCache-Control: stale-while-revalidate=60\r\n";
        let mut it = entry("", response_fields, Some(0));
        it.tags = Arc::new([TagHash(5)]);
        let _ = test.cache.publish(key(1), None, it, NOW_MS).0.unwrap().finish(NOW_MS);
        let test = test.restart();
        match is_soft_purge {
            true => _ = test.cache.purge(&Selector::Tag(TagHash(5)), true, NOW_MS),
            false => test.cache.invalidate_tag(TagHash(5)),
        }
        let test = test.restart();
        let found = test.found(1, "");
        assert!(
            matches!(found, LookupResult::Validate { is_stale_fallback: false, .. }),
            "{found:?}"
        );
    }
}

#[test]
fn a_304_survives_a_restart() {
    let test = DiskTest::new();
    let object = test.put(1, "", "ETag: \"a\"\r\n", b"one");
    let mut stored = object.stored.clone();
    stored.meta.response_ms += 1234;
    test.cache.update(
        key(1),
        &object,
        stored,
        (&OriginRequest::as_received(&request("")), &response("")),
        0,
    );
    let test = test.restart();
    let LookupResult::Stored(found) = test.found(1, "") else { panic!("not stored") };
    assert_eq!(found.meta().response_ms, object.meta().response_ms + 1234);
    assert_eq!(test.cache.stats().disks.stored, 0, "a loaded response is not written again");
}

#[test]
fn a_response_invalidated_while_arriving_is_not_fresh_on_a_disk() {
    let test = DiskTest::new();
    let (object_filler, _) = test.cache.publish(key(1), None, entry("", "", Some(3)), NOW_MS);
    let mut object_filler = object_filler.unwrap();
    test.cache.invalidate(key(1), test.cache.invalidation_seq());
    let _ = fill(&mut object_filler, b"one");
    let _ = object_filler.finish(NOW_MS);
    let test = test.restart();
    assert!(!matches!(test.found(1, ""), LookupResult::Stored(_)));
}

#[test]
fn purges_before_disks_are_opened_apply_to_them() {
    let test = DiskTest::new();
    test.put(1, "", "", b"one");
    test.put(2, "", "", b"two");
    test.cache.close_disks();
    let (next, waker) = (cache(), Arc::new(RecordingWaker::default()));
    next.await_disks();
    let purged = next.purge(&Selector::Prefix(b"http://b".to_vec()), false, NOW_MS);
    assert_eq!(purged.is_durable, Some(false));
    next.invalidate(key(1), next.invalidation_seq());
    let directories: Vec<(Arc<dyn DirectoryIo>, u64)> =
        vec![(Arc::new(test.directory.clone()), 32 << 20)];
    let options = DiskOptions { readers: 0, ..DiskOptions::default() };
    let contents = next.open_disks(directories, &options, waker.clone(), NOW_MS).unwrap();
    assert_eq!(contents, [DirectoryContents::Kept]);
    let test = DiskTest { directory: test.directory, cache: next, waker };
    test.work();
    assert!(test.is_missed(1));
    assert_eq!(body(test.found(2, "")), b"two");
}

#[test]
fn disks_of_another_cache_are_not_used() {
    let test = DiskTest::new();
    test.put(1, "", "", b"one");
    test.cache.close_disks();
    let bounds = Bounds { bytes: 8 << 20, object_bytes: 1 << 20, variants: 4, prefaults: true };
    let other = Cache::new(Slab::on_heap(8 << 20).unwrap(), SECOND, bounds);
    let directories: Vec<(Arc<dyn DirectoryIo>, u64)> = vec![(Arc::new(test.directory), 32 << 20)];
    let options = DiskOptions { readers: 0, ..DiskOptions::default() };
    let refused = other.open_disks(directories, &options, test.waker, NOW_MS);
    assert_eq!(refused, Err(millrace_disk::Error::OtherKey));
}

/// Applies a 304 that makes an object fresh for another `more_ms`.
fn validated(test: &DiskTest, object: &Arc<Object>, more_ms: u64) -> Arc<Object> {
    let mut stored = object.stored.clone();
    stored.meta.response_ms += more_ms;
    let updated = test.cache.update(
        key(1),
        object,
        stored,
        (&OriginRequest::as_received(&request("")), &response("")),
        0,
    );
    test.work();
    updated
}

#[test]
fn a_304_for_an_arriving_body_does_not_update_the_disk() {
    let test = DiskTest::new();
    test.put(1, "", "ETag: \"1\"\r\n", b"one");
    let newer = entry("", "ETag: \"2\"\r\n", Some(3));
    let object_filler = test.cache.publish(key(1), None, newer, NOW_MS).0.unwrap();
    validated(&test, object_filler.object(), 1234);
    let test = test.restart();
    assert!(test.is_missed(1));
}

#[test]
fn a_304_for_a_body_in_memory_only_does_not_update_the_disk() {
    let test = DiskTest::new();
    test.put(1, "", "ETag: \"1\"\r\n", b"one");
    test.cache.close_disks();
    let (next, waker) = (cache(), Arc::new(RecordingWaker::default()));
    next.await_disks();
    let object = put(&next, key(1), "", "ETag: \"2\"\r\n", b"two");
    let directories: Vec<(Arc<dyn DirectoryIo>, u64)> =
        vec![(Arc::new(test.directory.clone()), 32 << 20)];
    let options = DiskOptions { readers: 0, ..DiskOptions::default() };
    next.open_disks(directories, &options, waker.clone(), NOW_MS).unwrap();
    let test = DiskTest { directory: test.directory, cache: next, waker };
    test.work();
    validated(&test, &object, 1234);
    assert!(test.restart().is_missed(1));
}

#[test]
fn a_second_304_survives_a_restart() {
    let test = DiskTest::new();
    let object = test.put(1, "", "ETag: \"a\"\r\n", b"one");
    validated(&test, &validated(&test, &object, 1000), 200);
    let test = test.restart();
    let LookupResult::Stored(found) = test.found(1, "") else { panic!("not stored") };
    validated(&test, &found, 30);
    let test = test.restart();
    let LookupResult::Stored(found) = test.found(1, "") else { panic!("not stored") };
    assert_eq!(found.meta().response_ms, object.meta().response_ms + 1230);
}

#[test]
fn a_refused_304_removes_the_response_from_the_disk() {
    let test = DiskTest::new();
    test.put(1, "", "ETag: \"a\"\r\n", b"one");
    test.directory.die_after(0);
    test.cache.close_disks();
    test.directory.restart(false);
    let test = DiskTest::on(test.directory, QueueMarks { skip: 1, ..QueueMarks::default() });
    let LookupResult::Stored(found) = test.found(1, "") else { panic!("not stored") };
    let mut stored = found.stored.clone();
    stored.meta.invalidate();
    // The queue is then not empty, so the disk refuses the 304.
    test.cache.invalidate_tag(TagHash(3));
    test.cache.update(
        key(1),
        &found,
        stored,
        (&OriginRequest::as_received(&request("")), &response("")),
        0,
    );
    assert!(test.restart().is_missed(1));
}

#[test]
fn an_unwritten_304_removes_the_response_from_the_disk() {
    let test = DiskTest::new();
    let object = test.put(1, "", "ETag: \"a\"\r\n", b"one");
    test.directory.set_faults(SimFaults { write_errors: 1, ..SimFaults::default() });
    let mut stored = object.stored.clone();
    stored.meta.invalidate();
    test.cache.update(
        key(1),
        &object,
        stored,
        (&OriginRequest::as_received(&request("")), &response("")),
        0,
    );
    test.work();
    let _ = test.cache.clear();
    assert!(test.is_missed(1));
}

#[test]
fn a_loaded_response_is_older_than_all_in_memory() {
    let test = DiskTest::new();
    test.put(1, "X: 1\r\n", "Vary: x\r\n", b"one");
    let test = test.restart();
    assert!(matches!(
        test.look_up(1, "X: 1\r\n", true),
        LookupResult::PendingDisk { is_own: true }
    ));
    let request = entry("Y: 1\r\n", "Vary: y\r\n", Some(3));
    let mut object_filler = test.cache.publish(key(1), None, request, NOW_MS).0.unwrap();
    test.work();
    let _ = fill(&mut object_filler, b"new");
    let _ = object_filler.finish(NOW_MS);
    assert_eq!(body(test.look_up(1, "X: 1\r\nY: 1\r\n", false)), b"new");
    assert!(matches!(test.look_up(1, "X: 1\r\nY: 2\r\n", false), LookupResult::Miss { .. }));
}

#[test]
fn a_response_replaced_while_it_is_loaded_is_not_used() {
    let test = DiskTest::new();
    test.put(1, "", "", b"one");
    let test = test.restart();
    assert!(matches!(test.look_up(1, "", true), LookupResult::PendingDisk { is_own: true }));
    // Another request goes to the origin, and its response is evicted from memory.
    put(&test.cache, key(1), "", "", b"two");
    let _ = test.cache.clear();
    test.work();
    assert!(!matches!(test.look_up(1, "", false), LookupResult::Stored(_)));
}

#[test]
fn storing_a_variant_again_removes_no_other() {
    let test = DiskTest::new();
    let request_fields = |number: u32| format!("X: {number}\r\n");
    for number in [1, 2, 3, 4, 2] {
        test.put(1, &request_fields(number), "Vary: x\r\n", b"one");
    }
    let test = test.restart();
    for number in 1..=4 {
        assert_eq!(body(test.found(1, &request_fields(number))), b"one", "{number}");
    }
}

#[test]
fn storing_and_removing_never_wait_for_a_disk() {
    let test = DiskTest::on(
        SimDirectory::new(1, 64 << 20),
        QueueMarks { wait: 0, ..QueueMarks::default() },
    );
    test.put(1, "X: 1\r\n", "Vary: x\r\n", b"one");
    test.put(1, "Y: 1\r\n", "Vary: y\r\n", b"new");
    assert_eq!(test.cache.stats().disks.purge_waits, 0);
    test.cache.invalidate(key(1), 0);
    assert_eq!(test.cache.stats().disks.purge_waits, 1);
}

#[test]
fn an_operator_does_not_wait_in_a_step() {
    let test = DiskTest::new();
    test.put(1, "", "", b"one");
    let _step = test.cache.disk_tier.begin_step();
    assert_eq!(test.cache.purge_disks(&Selector::All, false), Some(true));
}

/// Queries the disks as soon as it is called.
#[derive(Debug, Default)]
struct Curious(std::sync::OnceLock<Arc<Cache>>);

impl Waker for Curious {
    fn wake(&self, _: WaiterId) {
        let cache = self.0.get().unwrap();
        assert!(cache.list_disks(&Selector::All, 9).0.is_empty());
    }
}

#[test]
fn lookups_do_not_wait_for_disks_that_are_being_closed() {
    let test = DiskTest::new();
    test.put(1, "", "", b"one");
    test.cache.close_disks();
    let (cache, curious) = (cache(), Arc::new(Curious::default()));
    let directories: Vec<(Arc<dyn DirectoryIo>, u64)> =
        vec![(Arc::new(test.directory.clone()), 32 << 20)];
    let options = DiskOptions { readers: 0, ..DiskOptions::default() };
    cache.open_disks(directories, &options, curious.clone(), NOW_MS).unwrap();
    while cache.run_disk_work() {}
    curious.0.set(cache.clone()).unwrap();
    let test = DiskTest { directory: test.directory, cache: cache.clone(), waker: Arc::default() };
    assert!(matches!(test.look_up(1, "", true), LookupResult::PendingDisk { .. }));
    cache.close_disks();
}
