//! The index from the workers' side: lookups, leases and waiters.

mod admin;
mod disks;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use iolite::Slab;
use millrace_body::{BodyRead, Reader, WaiterId};
use millrace_http_cache::{
    CachePolicy, CachedHeader, Forward, HashKey, Key, Receipt, ReceivedResponse, RequestDirectives,
    Scheme, StoredRange, TagHash, store, tag_hash,
};
use millrace_http1::{HeadLimits, HeadScan, OriginRequest, RequestHead, ResponseHead};

use super::*;
use crate::object::Object;

const HASH: HashKey = HashKey::new([7; 16]);
const NOW_MS: u64 = 1_700_000_000_000;
const ME: WaiterId = WaiterId { worker: 0, token: 1 };
const OTHER: WaiterId = WaiterId { worker: 1, token: 2 };
const LIMITS: HeadLimits = HeadLimits { bytes_max: 8192, fields_max: 100, target_bytes_max: 4096 };

fn cache() -> Arc<Cache> {
    let bounds = Bounds { bytes: 8 << 20, object_bytes: 1 << 20, variants: 4, prefaults: true };
    Cache::new(Slab::on_heap(8 << 20).unwrap(), HASH, bounds)
}

fn request(fields: &str) -> RequestHead {
    let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let mut head = RequestHead::default();
    head.parse(text.as_bytes(), &mut HeadScan::default(), &LIMITS).unwrap().unwrap();
    head
}

fn response(fields: &str) -> ResponseHead {
    let text = format!("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n{fields}\r\n");
    let mut head = ResponseHead::default();
    head.parse(text.as_bytes(), &mut HeadScan::default(), &LIMITS).unwrap().unwrap();
    head
}

fn key(number: u32) -> Key {
    Key::from_text(&HASH, &number.to_be_bytes())
}

fn look_up(cache: &Arc<Cache>, key: Key, fields: &str, waiter: Option<WaiterId>) -> LookupResult {
    look_up_at(cache, key, fields, waiter, NOW_MS)
}

fn look_up_at(
    cache: &Arc<Cache>,
    key: Key,
    fields: &str,
    waiter: Option<WaiterId>,
    now_ms: u64,
) -> LookupResult {
    let request = request(fields);
    let directives = RequestDirectives::parse(&request);
    let (takes_lease, may_refresh, uses_disks) = (true, true, true);
    let request = &OriginRequest::as_received(&request);
    let directives = &directives;
    cache.lookup(&LookupRequest {
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

fn lease(found: LookupResult) -> FetchLease {
    match found {
        LookupResult::Miss { lease: Some(lease), .. }
        | LookupResult::Validate { lease: Some(lease), .. } => lease,
        other => panic!("no lease in {other:?}"),
    }
}

const RECEIPT: Receipt = Receipt {
    request_ms: NOW_MS,
    response_ms: NOW_MS,
    scheme: Scheme::Http,
    hash: HASH,
    has_client_certificate: false,
};

fn stored(request: &RequestHead, response: &ResponseHead) -> CachedHeader {
    let policy = &CachePolicy::default();
    store(&ReceivedResponse { request, response, receipt: &RECEIPT, policy }).unwrap()
}

fn update_by_head(cache: &Arc<Cache>, request: &RequestHead, response: &ResponseHead, since: u64) {
    let policy = &CachePolicy::default();
    let received = ReceivedResponse { request, response, receipt: &RECEIPT, policy };
    cache.update_by_head(key(1), &OriginRequest::as_received(request), &received, since);
}

fn entry(request_fields: &str, response_fields: &str, declared: Option<u64>) -> NewEntry {
    let (request, response) = (request(request_fields), response(response_fields));
    let stored = stored(&request, &response);
    let variant = stored
        .vary
        .as_ref()
        .map(|names| names.response_key(&HASH, &OriginRequest::as_received(&request), &response));
    let name = b"http://a/"[..].into();
    NewEntry {
        stored,
        variant,
        declared,
        name,
        tags: Arc::new([]),
        since: 0,
        own_invalidation: 0,
        stays_in_memory: false,
    }
}

/// Returns the metadata of a response that is fresh for a minute.
pub(super) fn meta() -> millrace_http_cache::Meta {
    entry("", "", None).stored.meta
}

fn fill(object_filler: &mut ObjectFiller, mut bytes: &[u8]) -> Vec<WaiterId> {
    let mut woken = Vec::new();
    while !bytes.is_empty() {
        let unfilled = object_filler.unfilled(NOW_MS).unwrap();
        let count = unfilled.len().min(bytes.len());
        unfilled[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        woken.extend(object_filler.advance(count, NOW_MS));
    }
    woken
}

fn put(
    cache: &Arc<Cache>,
    key: Key,
    request_fields: &str,
    response_fields: &str,
    bytes: &[u8],
) -> Arc<Object> {
    let entry = entry(request_fields, response_fields, Some(bytes.len() as u64));
    let (object_filler, _) = cache.publish(key, None, entry, NOW_MS);
    let mut object_filler = object_filler.expect("small enough");
    let _ = fill(&mut object_filler, bytes);
    let object = object_filler.object().clone();
    let _ = object_filler.finish(NOW_MS);
    object
}

fn body(found: LookupResult) -> Vec<u8> {
    let LookupResult::Stored(object) = found else { panic!("not stored: {found:?}") };
    object.body.bytes().expect("the body is whole").to_vec()
}

#[test]
fn one_request_fetches_and_the_others_wait_for_it() {
    let cache = cache();
    let lease = lease(look_up(&cache, key(1), "", Some(ME)));
    assert!(matches!(look_up(&cache, key(1), "", Some(OTHER)), LookupResult::Wait(_)));
    assert!(matches!(look_up(&cache, key(1), "", None), LookupResult::Miss { lease: None, .. }));
    let (object_filler, woken) = cache.publish(key(1), Some(lease), entry("", "", Some(4)), NOW_MS);
    assert_eq!(woken, [OTHER]);
    let mut object_filler = object_filler.unwrap();
    let LookupResult::Stored(object) = look_up(&cache, key(1), "", Some(OTHER)) else {
        panic!("not found")
    };
    let mut reader = Reader::new(object.body.clone(), 0).unwrap();
    assert!(matches!(reader.read(9, OTHER), (BodyRead::Wait, None)));
    assert_eq!(fill(&mut object_filler, b"abcd"), [OTHER]);
    assert_eq!(object_filler.finish(NOW_MS), []);
    assert_eq!(body(look_up(&cache, key(1), "", Some(OTHER))), b"abcd");
}

/// Two workers request the same things at the same time. In any order, one of them fetches, and the
/// other waits or finds the published response.
#[test]
fn simultaneous_requests_of_workers_fetch_once() {
    const KEYS: u32 = 2000;
    let barrier = std::sync::Barrier::new(2);
    let (start, cache) = (&barrier, &cache());
    let fetched = |me: WaiterId| {
        (0..KEYS).map(key).filter(move |&key| {
            start.wait();
            match look_up(cache, key, "", Some(me)) {
                LookupResult::Miss { lease: Some(lease), .. } => {
                    let entry = entry("", "", Some(4));
                    let (object_filler, _) = cache.publish(key, Some(lease), entry, NOW_MS);
                    let mut object_filler = object_filler.expect("small enough");
                    let _ = fill(&mut object_filler, b"abcd");
                    let _ = object_filler.finish(NOW_MS);
                    true
                }
                found => !matches!(found, LookupResult::Wait(_) | LookupResult::Stored(_)),
            }
        })
    };
    let count = std::thread::scope(|scope| {
        let other = scope.spawn(|| fetched(OTHER).count());
        fetched(ME).count() + other.join().expect("it ends")
    });
    assert_eq!(count, KEYS as usize);
}

#[test]
fn a_released_lease_goes_to_the_next_request() {
    let cache = cache();
    let first = lease(look_up(&cache, key(1), "", Some(ME)));
    assert!(matches!(look_up(&cache, key(1), "", Some(OTHER)), LookupResult::Wait(_)));
    assert_eq!(first.release(), [OTHER]);
    drop(lease(look_up(&cache, key(1), "", Some(OTHER))));
    assert!(cache.lock_shard_at(0).keys.is_empty(), "a key without state has no entry");
}

#[test]
fn requests_do_not_wait_for_private_responses() {
    let cache = cache();
    let first = lease(look_up(&cache, key(1), "", Some(ME)));
    assert!(matches!(look_up(&cache, key(1), "", Some(OTHER)), LookupResult::Wait(_)));
    assert_eq!(first.release_as_private(NOW_MS + 100), [OTHER]);
    for _ in 0..2 {
        assert!(matches!(
            look_up(&cache, key(1), "", Some(ME)),
            LookupResult::Miss { lease: None, .. }
        ));
    }
    drop(lease(look_up_at(&cache, key(1), "", Some(ME), NOW_MS + 100)));
}

#[test]
fn a_removed_waiter_is_not_woken() {
    let cache = cache();
    let lease = lease(look_up(&cache, key(1), "", Some(ME)));
    assert!(matches!(look_up(&cache, key(1), "", Some(OTHER)), LookupResult::Wait(_)));
    cache.remove_waiter(key(1), OTHER);
    assert_eq!(lease.release(), []);
}

#[test]
fn variants_are_selected_by_their_vary_fields() {
    let cache = cache();
    put(&cache, key(1), "X: 1\r\n", "Vary: X\r\n", b"one");
    put(&cache, key(1), "X: 2\r\n", "Vary: X\r\n", b"two");
    assert_eq!(body(look_up(&cache, key(1), "X: 1\r\n", None)), b"one");
    assert_eq!(body(look_up(&cache, key(1), "X: 2\r\n", None)), b"two");
    let third = look_up(&cache, key(1), "X: 3\r\n", Some(ME));
    assert!(matches!(third, LookupResult::Miss { why: Forward::VaryMiss, lease: Some(_) }));
    // A request for another variant does not wait for that one.
    drop(lease(look_up(&cache, key(1), "X: 4\r\n", Some(ME))));
    assert!(matches!(look_up(&cache, key(1), "X: 3\r\n", Some(ME)), LookupResult::Wait(_)));
    put(&cache, key(1), "X: 1\r\n", "Vary: X\r\n", b"new");
    assert_eq!(body(look_up(&cache, key(1), "X: 1\r\n", None)), b"new");
    for number in 3..9 {
        put(&cache, key(1), &format!("X: {number}\r\n"), "Vary: X\r\n", b"more");
    }
    let count = cache.lock_shard(key(1)).keys[&key(1)].objects.len();
    assert_eq!(count, 4, "no more than the bound");
}

#[test]
fn a_cut_response_is_not_found() {
    let cache = cache();
    let (object_filler, _) = cache.publish(key(1), None, entry("", "", Some(9)), NOW_MS);
    let mut object_filler = object_filler.unwrap();
    let _ = fill(&mut object_filler, b"abc");
    assert!(matches!(look_up(&cache, key(1), "", None), LookupResult::Stored(_)));
    let body = object_filler.body().clone();
    let mut reader = Reader::new(body, 3).unwrap();
    assert!(matches!(reader.read(9, ME), (BodyRead::Wait, None)));
    assert_eq!(object_filler.cut(), [ME]);
    assert!(matches!(look_up(&cache, key(1), "", None), LookupResult::Miss { .. }));
}

#[test]
fn the_bytes_of_a_cut_body_are_not_its_length() {
    let cache = cache();
    let (object_filler, _) = cache.publish(key(1), None, entry("", "", None), NOW_MS);
    let mut object_filler = object_filler.unwrap();
    let _ = fill(&mut object_filler, b"abc");
    let object = object_filler.object().clone();
    assert_eq!(object.length(), None);
    let _ = object_filler.cut();
    assert!(object.is_cut() && object.length().is_none());
    assert_eq!(put(&cache, key(2), "", "", b"abc").length(), Some(3));
}

#[test]
fn clearing_a_cache_reports_its_contents() {
    let cache = cache();
    put(&cache, key(1), "", "", b"abc");
    let (object_filler, _) = cache.publish(key(2), None, entry("", "", Some(9)), NOW_MS);
    let held = lease(look_up(&cache, key(3), "", None));
    assert!(matches!(look_up(&cache, key(3), "", Some(OTHER)), LookupResult::Wait(_)));
    let left = ClearReport { objects: 2, unfinished: 1, leases: 1, waiters: 1, leaked_bytes: 0 };
    assert_eq!(cache.clear(), left);
    drop((object_filler, held));
    assert_eq!(cache.clear(), ClearReport::default());
    assert_eq!(cache.slab().stats().live, 0);
}

#[test]
fn old_objects_are_evicted_for_new_ones() {
    let cache = cache();
    let bytes = vec![1; 200_000];
    for number in 0..100 {
        put(&cache, key(number), "", "", &bytes);
    }
    let held = cache.shards.iter().map(|it| it.lock().unwrap().eviction.bytes()).sum::<u64>();
    assert!(held <= 8 << 20, "{held}");
    let found = (0..100)
        .filter(|&it| matches!(look_up(&cache, key(it), "", None), LookupResult::Stored(_)));
    assert!((30..=42).contains(&found.count()));
}

#[test]
fn a_body_that_grows_too_long_passes_through() {
    let cache = cache();
    let (object_filler, _) = cache.publish(key(1), None, entry("", "", None), NOW_MS);
    let mut object_filler = object_filler.unwrap();
    let mut reader = Reader::new(object_filler.body().clone(), 0).unwrap();
    let mut read = 0;
    for _ in 0..40 {
        let _ = fill(&mut object_filler, &[1; 100_000]);
        while let (BodyRead::Bytes(slice), _) = reader.read(1 << 20, ME) {
            read += slice.len();
        }
    }
    assert!(!object_filler.is_kept() && read == 4_000_000);
    assert!(matches!(look_up(&cache, key(1), "", None), LookupResult::Miss { .. }));
    assert!(cache.slab().stats().live < 1 << 20, "read bytes were discarded");
    assert_eq!(object_filler.finish(NOW_MS), [ME]);
}

#[test]
fn invalidation_covers_stored_and_arriving_responses() {
    let cache = cache();
    let old = put(&cache, key(1), "", "ETag: \"a\"\r\n", b"old");
    cache.invalidate(key(1), cache.invalidation_seq());
    let found = look_up(&cache, key(1), "", Some(ME));
    let LookupResult::Validate { object, is_stale_fallback: false, lease: Some(lease) } = found
    else {
        panic!("{found:?}")
    };
    assert!(Arc::ptr_eq(&object.body, &old.body));
    cache.invalidate(key(1), cache.invalidation_seq());
    // A response requested before the second invalidation may be older than it.
    let (object_filler, _) = cache.publish(key(1), Some(lease), entry("", "", Some(0)), NOW_MS);
    let _ = object_filler.unwrap().finish(NOW_MS);
    assert!(matches!(look_up(&cache, key(1), "", Some(ME)), LookupResult::Validate { .. }));
}

/// Readers hold all memory, so a response goes to its client without being stored.
#[test]
fn a_response_without_memory_is_not_stored_or_waited_for() {
    let bounds = Bounds { bytes: 8 << 20, object_bytes: 8 << 20, variants: 4, prefaults: true };
    let slab = Slab::on_heap(iolite::limits::SLAB_BYTES_MIN).unwrap();
    let cache = Cache::new(slab, HASH, bounds);
    let mut readers = Vec::new();
    for number in 2.. {
        let (object_filler, _) = cache.publish(key(number), None, entry("", "", None), NOW_MS);
        let Ok(mut object_filler) = object_filler else { break };
        readers.push(Reader::new(object_filler.body().clone(), 0).unwrap());
        while let Ok(unfilled) = object_filler.unfilled(NOW_MS) {
            let count = unfilled.len();
            let _ = object_filler.advance(count, NOW_MS);
        }
    }
    assert!(
        !cache.has_body(key(2), readers[0].body()),
        "a cut response is not stored, although it is read"
    );
    let lease = lease(look_up(&cache, key(1), "", Some(ME)));
    assert!(matches!(look_up(&cache, key(1), "", Some(OTHER)), LookupResult::Wait(_)));
    let before = cache.alloc_failures();
    let (object_filler, woken) =
        cache.publish(key(1), Some(lease), entry("", "", Some(20_000)), NOW_MS);
    assert_eq!((object_filler.err(), woken), (Some(StoreRefusal::Memory), vec![OTHER]));
    assert_eq!(cache.alloc_failures(), before + 1);
    let found = look_up(&cache, key(1), "", Some(OTHER));
    assert!(matches!(found, LookupResult::Miss { lease: None, .. }), "{found:?}");
    readers.clear();
    let (object_filler, _) = cache.publish(key(1), None, entry("", "", Some(20_000)), NOW_MS);
    let object_filler = object_filler.expect("there is memory again");
    assert!(cache.has_body(key(1), object_filler.body()));
    assert_eq!(cache.alloc_failures(), before + 1);
}

/// A fetch without a lease is in no `KeyEntry`, so the invalidation (RFC 9111 section 4.4) cannot
/// mark it as outdated.
#[test]
fn invalidation_covers_responses_fetched_without_a_lease() {
    let cache = cache();
    let fetch = |since| {
        let entry = NewEntry { since, ..entry("", "ETag: \"a\"\r\n", Some(0)) };
        let (object_filler, _) = cache.publish(key(1), None, entry, NOW_MS);
        let _ = object_filler.unwrap().finish(NOW_MS);
    };
    let since = cache.invalidation_seq();
    cache.invalidate(key(2), since);
    fetch(since);
    assert!(
        matches!(look_up(&cache, key(1), "", None), LookupResult::Stored(_)),
        "another key was invalidated"
    );
    cache.invalidate(key(1), cache.invalidation_seq());
    fetch(since);
    assert!(matches!(look_up(&cache, key(1), "", None), LookupResult::Validate { .. }));
    fetch(cache.invalidation_seq());
    assert!(
        matches!(look_up(&cache, key(1), "", None), LookupResult::Stored(_)),
        "requested after it"
    );
}

#[test]
fn the_response_to_an_unsafe_request_is_fresh_unless_another_came_first() {
    let cache = cache();
    let fetch = |since, own_invalidation| {
        let entry = NewEntry { since, own_invalidation, ..entry("", "ETag: \"a\"\r\n", Some(0)) };
        let (object_filler, _) = cache.publish(key(1), None, entry, NOW_MS);
        let _ = object_filler.unwrap().finish(NOW_MS);
    };
    let since = cache.invalidation_seq();
    let own_invalidation = cache.invalidate(key(1), since);
    assert!(own_invalidation > since);
    fetch(since, own_invalidation);
    assert!(matches!(look_up(&cache, key(1), "", None), LookupResult::Stored(_)));
    assert_eq!(cache.invalidate(key(1), since), 0, "their order is unknown");
    fetch(since, 0);
    assert!(matches!(look_up(&cache, key(1), "", None), LookupResult::Validate { .. }));
}

#[test]
fn an_older_head_response_does_not_undo_an_invalidation() {
    let cache = cache();
    put(&cache, key(1), "", "ETag: \"a\"\r\n", b"body");
    let since = cache.invalidation_seq();
    cache.invalidate(key(1), since);
    let (request, response) = (request(""), response("ETag: \"a\"\r\nContent-Length: 4\r\n"));
    update_by_head(&cache, &request, &response, since);
    assert!(matches!(look_up(&cache, key(1), "", None), LookupResult::Validate { .. }));
    update_by_head(&cache, &request, &response, cache.invalidation_seq());
    assert!(matches!(look_up(&cache, key(1), "", None), LookupResult::Stored(_)));
}

#[test]
fn a_validated_object_shares_its_body() {
    let cache = cache();
    let old = put(&cache, key(1), "", "", b"body");
    let new = cache.update(
        key(1),
        &old,
        entry("", "X: new\r\n", None).stored,
        (&OriginRequest::as_received(&request("")), &response("")),
        0,
    );
    assert!(Arc::ptr_eq(&old.body, &new.body));
    let LookupResult::Stored(found) = look_up(&cache, key(1), "", None) else { panic!("gone") };
    assert!(Arc::ptr_eq(&found, &new));
    assert_eq!(cache.remove(key(1)), 1);
    assert!(matches!(look_up(&cache, key(1), "", None), LookupResult::Miss { .. }));
}

fn respond(request: &RequestHead, response_fields: &str) -> (CachedHeader, ResponseHead) {
    let response = response(response_fields);
    (stored(request, &response), response)
}

#[test]
fn a_304_with_vary_selects_by_its_own_request_section_4_1() {
    let cache = cache();
    let old = put(&cache, key(1), "", "ETag: \"a\"\r\n", b"body");
    let german = request("Accept-Language: de\r\n");
    let (stored, response) = respond(&german, "ETag: \"a\"\r\nVary: Accept-Language\r\n");
    cache.update(key(1), &old, stored, (&OriginRequest::as_received(&german), &response), 0);
    let look_up = |fields| look_up(&cache, key(1), fields, None);
    assert!(matches!(look_up("Accept-Language: de\r\n"), LookupResult::Stored(_)));
    for other in ["Accept-Language: fr\r\n", ""] {
        assert!(
            matches!(look_up(other), LookupResult::Miss { why: Forward::VaryMiss, .. }),
            "{other}"
        );
    }
}

#[test]
fn a_head_response_with_another_vary_invalidates() {
    let cache = cache();
    put(&cache, key(1), "", "ETag: \"a\"\r\n", b"body");
    let response = response("ETag: \"a\"\r\nContent-Length: 4\r\nVary: Accept-Language\r\n");
    let request = request("Accept-Language: de\r\n");
    update_by_head(&cache, &request, &response, cache.invalidation_seq());
    let found = look_up(&cache, key(1), "Accept-Language: de\r\n", None);
    assert!(matches!(found, LookupResult::Validate { .. }), "{found:?}");
}

#[test]
fn a_304_replaces_tags() {
    let cache = cache();
    let request = request("");
    let update = |response_fields: &str| {
        let (LookupResult::Stored(old) | LookupResult::Validate { object: old, .. }) =
            look_up(&cache, key(1), "", None)
        else {
            panic!("not stored")
        };
        let (stored, response) = respond(&request, response_fields);
        cache.update(
            key(1),
            &old,
            stored,
            (&OriginRequest::as_received(&request), &response),
            cache.invalidation_seq(),
        )
    };
    let tag = |text: &[u8]| tag_hash(&HASH, None, text);
    let is_fresh = || matches!(look_up(&cache, key(1), "", None), LookupResult::Stored(_));
    put(&cache, key(1), "", "ETag: \"a\"\r\n", b"body");
    cache.invalidate_tag(tag(b"x"));
    update("ETag: \"a\"\r\nSurrogate-Key: x\r\n");
    assert!(is_fresh(), "the invalidation came before the 304");
    cache.invalidate_tag(tag(b"x"));
    assert!(!is_fresh());
    let new = update("ETag: \"a\"\r\nSurrogate-Key: y\r\n");
    assert_eq!(*new.tags, [tag(b"y")]);
    cache.invalidate_tag(tag(b"x"));
    assert!(is_fresh());
}

#[test]
fn a_larger_header_is_counted() {
    let cache = cache();
    let old = put(&cache, key(1), "", "ETag: \"a\"\r\n", b"body");
    let before = cache.held_bytes.load(Ordering::Relaxed);
    let request = request("");
    let (stored, response) = respond(&request, &format!("X: {}\r\n", "x".repeat(4000)));
    let grown = (stored.head.len() - old.header().len()) as u64;
    cache.update(key(1), &old, stored, (&OriginRequest::as_received(&request), &response), 0);
    assert_eq!(cache.held_bytes.load(Ordering::Relaxed), before + grown);
}

#[test]
fn a_part_of_the_wrong_length_is_removed() {
    for (arrived, is_kept) in [(&b"01234"[..], true), (b"0123", false), (b"012345", false)] {
        let cache = cache();
        let mut entry = entry("", "ETag: \"a\"\r\n", None);
        entry.stored.meta.stored_range = Some(StoredRange { first: 0, last: 4, complete: Some(9) });
        let (object_filler, _) = cache.publish(key(1), None, entry, NOW_MS);
        let mut object_filler = object_filler.unwrap();
        let _ = fill(&mut object_filler, arrived);
        let _ = object_filler.finish(NOW_MS);
        let found = look_up(&cache, key(1), "Range: bytes=0-4\r\n", None);
        assert_eq!(matches!(found, LookupResult::Stored(_)), is_kept, "{found:?}");
    }
}
