//! Operators' commands, and invalidations by tags of clients' requests.

use millrace_http_cache::{parse_uri_origin, tag_hash};

use super::*;

fn named(name: &str, tags: &[TagHash], since: u64) -> NewEntry {
    let name = name.as_bytes().into();
    NewEntry { name, tags: tags.into(), since, ..entry("", "ETag: \"a\"\r\n", Some(4)) }
}

/// Stores a response under the key of its name.
fn put_named(cache: &Arc<Cache>, name: &str, tags: &[TagHash]) -> Key {
    let key = Key::from_text(&HASH, name.as_bytes());
    put_entry(cache, key, None, named(name, tags, cache.invalidation_seq()));
    key
}

fn put_entry(cache: &Arc<Cache>, key: Key, lease: Option<FetchLease>, entry: NewEntry) {
    let (object_filler, _) = cache.publish(key, lease, entry, NOW_MS);
    let mut object_filler = object_filler.expect("small enough");
    let _ = fill(&mut object_filler, b"body");
    let _ = object_filler.finish(NOW_MS);
}

fn names(cache: &Arc<Cache>, selector: &Selector) -> Vec<String> {
    let (objects, is_more) = cache.list(selector, 1000);
    assert!(!is_more);
    let mut names: Vec<_> =
        objects.iter().map(|it| String::from_utf8(it.name.to_vec()).unwrap()).collect();
    names.sort();
    names
}

fn tag(text: &str) -> TagHash {
    tag_hash(&HASH, None, text.as_bytes())
}

fn is_fresh(cache: &Arc<Cache>, key: Key) -> bool {
    match look_up(cache, key, "", None) {
        LookupResult::Stored(_) => true,
        LookupResult::Validate { .. } => false,
        other => panic!("not stored: {other:?}"),
    }
}

const NAMES: [&str; 5] =
    ["http://a/", "http://a/b", "http://a/b\n@x", "http://a/b?c\ncookie;d=e\n@x", "http://a.b/"];

#[test]
fn responses_are_purged_by_url_prefix_tag_and_all_at_once() {
    for (selector, left) in [
        (
            Selector::url(b"HTTP://A:80/b"),
            &["http://a.b/", "http://a/", "http://a/b?c\ncookie;d=e\n@x"][..],
        ),
        (Selector::prefix(b"a/b"), &["http://a.b/", "http://a/"]),
        (Selector::prefix(b"http://a"), &["http://a.b/"]),
        (Some(Selector::tag(&HASH, b"http://a/")), &NAMES[1..]),
        (Some(Selector::All), &[]),
    ] {
        let (cache, selector) = (cache(), selector.unwrap());
        let keys = NAMES.map(|name| put_named(&cache, name, &[tag(name), tag("each")]));
        assert_eq!(names(&cache, &Selector::tag(&HASH, b"each")).len(), NAMES.len());
        let mut left: Vec<_> = left.iter().map(|name| (*name).to_owned()).collect();
        left.sort();
        let count = (NAMES.len() - left.len()) as u64;
        assert_eq!(cache.purge(&selector, false, NOW_MS).count, count, "{selector:?}");
        assert_eq!(names(&cache, &Selector::All), left, "{selector:?}");
        let found = keys
            .iter()
            .filter(|it| matches!(look_up(&cache, **it, "", None), LookupResult::Stored(_)));
        assert_eq!(found.count(), left.len());
        let stats = cache.stats();
        assert_eq!((stats.objects, stats.purged), (left.len() as u64, count));
    }
}

#[test]
fn a_listing_is_limited() {
    let cache = cache();
    for number in 0..1000 {
        put_named(&cache, &format!("http://a/{number}"), &[]);
    }
    let (found, is_more) = cache.list(&Selector::All, 10);
    assert_eq!((found.len(), is_more), (10, true));
    drop(found);
    assert_eq!(names(&cache, &Selector::prefix(b"a/").unwrap()).len(), 1000);
    assert_eq!(names(&cache, &Selector::prefix(b"a/99").unwrap()).len(), 11);
    assert_eq!(cache.purge(&Selector::All, false, NOW_MS).count, 1000);
    let stats = cache.stats();
    assert_eq!((stats.objects, stats.bytes, stats.slab.live), (0, 0, 0));
}

#[test]
fn a_soft_purge_leaves_stale_responses() {
    let cache = cache();
    let key = put_named(&cache, "http://a/", &[]);
    assert_eq!(cache.purge(&Selector::All, true, NOW_MS).count, 1);
    let found = look_up(&cache, key, "", Some(ME));
    let LookupResult::Validate { object, .. } = found else { panic!("{found:?}") };
    assert_eq!((object.meta().ttl_s(NOW_MS), object.meta().has_validator()), (0, true));
}

#[test]
fn a_response_requested_before_a_purge_is_not_used_after_it() {
    let cache = cache();
    for (selector, is_covered) in [
        (Selector::url(b"http://a/").unwrap(), true),
        (Selector::prefix(b"http://a/").unwrap(), true),
        (Selector::tag(&HASH, b"t"), true),
        (Selector::All, true),
        (Selector::url(b"http://a/b").unwrap(), false),
        (Selector::tag(&HASH, b"u"), false),
    ] {
        let key = key(9);
        let lease = lease(look_up(&cache, key, "", Some(ME)));
        let entry = named("http://a/", &[tag("t")], cache.invalidation_seq());
        assert_eq!(cache.purge(&selector, false, NOW_MS).count, 0);
        put_entry(&cache, key, Some(lease), entry);
        assert_eq!(is_fresh(&cache, key), !is_covered, "{selector:?}");
        cache.remove(key);
        put_entry(&cache, key, None, named("http://a/", &[tag("t")], cache.invalidation_seq()));
        assert!(is_fresh(&cache, key), "a response requested later is fresh");
        cache.remove(key);
    }
}

#[test]
fn an_older_304_does_not_undo_an_invalidation() {
    let cache = cache();
    let key = put_named(&cache, "http://a/", &[]);
    let LookupResult::Stored(old) = look_up(&cache, key, "", None) else { panic!("not stored") };
    cache.invalidate(key, cache.invalidation_seq());
    let new = cache.update(
        key,
        &old,
        entry("", "", None).stored,
        (&OriginRequest::as_received(&request("")), &response("")),
        0,
    );
    assert!(new.meta().is_fresh(NOW_MS), "it serves the request that validated it");
    assert!(!is_fresh(&cache, key));
}

#[test]
fn a_cut_response_that_was_purged_softly_is_not_stored() {
    for is_purged in [false, true] {
        let cache = cache();
        let entry = entry("", "ETag: \"a\"\r\n", Some(9));
        let (object_filler, _) = cache.publish(key(1), None, entry, NOW_MS);
        let mut object_filler = object_filler.unwrap();
        let _ = fill(&mut object_filler, b"abc");
        if is_purged {
            assert_eq!(cache.purge(&Selector::All, true, NOW_MS).count, 1);
        }
        let _ = object_filler.cut();
        assert_eq!(cache.list(&Selector::All, 9).0.len(), usize::from(!is_purged));
    }
}

#[test]
fn a_group_is_invalidated_in_its_site_once_rfc_9875_section_3() {
    let cache = cache();
    let group = |site: &str| tag_hash(&HASH, parse_uri_origin(site.as_bytes()).as_ref(), b"g");
    let keys = ["a", "b"].map(|site| {
        let name = format!("http://{site}/");
        put_named(&cache, &name, &[tag("t"), group(site)])
    });
    cache.invalidate_tag(group("a"));
    assert_eq!(keys.map(|key| is_fresh(&cache, key)), [false, true]);
    // After a validation, it is fresh again.
    let LookupResult::Validate { object, .. } = look_up(&cache, keys[0], "", None) else {
        panic!("fresh")
    };
    cache.update(
        keys[0],
        &object,
        entry("", "", None).stored,
        (&OriginRequest::as_received(&request("")), &response("")),
        0,
    );
    cache.invalidate_tag(group("c"));
    assert!(is_fresh(&cache, keys[0]));
    // A response that was being fetched is not.
    let late = named("http://a/", &[group("a")], cache.invalidation_seq());
    cache.invalidate_tag(group("a"));
    put_entry(&cache, keys[0], None, late);
    assert!(!is_fresh(&cache, keys[0]));
    assert_eq!(Selector::group(&HASH, b"http://A:80/x", b"g"), Some(Selector::Tag(group("a"))));
}

#[test]
fn waiters_of_a_dropped_lease_are_not_forgotten() {
    let cache = cache();
    let dropped = lease(look_up(&cache, key(1), "", Some(ME)));
    assert!(matches!(look_up(&cache, key(1), "", Some(OTHER)), LookupResult::Wait(_)));
    drop(dropped);
    assert_eq!(cache.take_abandoned_waiters(), [OTHER]);
    let (object_filler, _) = cache.publish(key(1), None, entry("", "", Some(9)), NOW_MS);
    let object_filler = object_filler.unwrap();
    let mut reader = Reader::new(object_filler.body().clone(), 0).unwrap();
    assert!(matches!(reader.read(9, ME), (BodyRead::Wait, None)));
    drop(object_filler);
    assert_eq!(cache.take_abandoned_waiters(), [ME]);
    assert!(matches!(reader.read(9, ME), (BodyRead::End(millrace_body::BodyEnd::Cut), _)));
    assert!(cache.take_abandoned_waiters().is_empty());
}
