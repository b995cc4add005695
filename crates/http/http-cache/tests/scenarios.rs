//! Scenarios for a cache made of the rules alone: the client's request, the origin's response, and
//! what the client and the origin receive. Each scenario covers an area of the public HTTP caching
//! suite, or the combination of two rules.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod model;

use model::{Model, OriginResponse, Reply, request, response_head};

/// Sat, 21 Nov 2026 10:16:00 GMT.
const START_MS: u64 = 1_795_256_160_000;

/// A cache, and the requests that its origin received.
struct Scenario {
    model: Model,
    forwarded: Vec<String>,
}

impl Scenario {
    fn new() -> Self {
        Self { model: Model::new(START_MS), forwarded: Vec::new() }
    }

    fn wait_s(&mut self, seconds: u64) {
        self.model.now_ms += seconds * 1000;
    }

    /// Sends a request by its line and fields. `None`: the origin cannot be reached.
    fn send(&mut self, line: &str, fields: &str, response: Option<(&str, &str, &str)>) -> Reply {
        let bytes = format!("{line} HTTP/1.1\r\nHost: example.com\r\n{fields}\r\n");
        let forwarded = &mut self.forwarded;
        self.model.exchange(&request(bytes.as_bytes()), &mut |head| {
            forwarded.push(String::from_utf8(head.to_vec()).unwrap());
            let (status, fields, body) = response?;
            let head = response_head(format!("HTTP/1.1 {status}\r\n{fields}\r\n").as_bytes());
            Some(OriginResponse { head, body: body.as_bytes().to_vec(), is_whole: true })
        })
    }

    /// Sends a GET request, to which the origin responds with status 200.
    fn get(&mut self, fields: &str, response_fields: &str, body: &str) -> Reply {
        self.send("GET /", fields, Some(("200 OK", response_fields, body)))
    }

    /// Sends a GET request that must not reach the origin.
    fn hit(&mut self, fields: &str) -> Reply {
        let forwarded_before = self.forwarded.len();
        let reply = self.send("GET /", fields, Some(("500 Not a hit", "", "")));
        assert_eq!(
            self.forwarded.len(),
            forwarded_before,
            "the request was forwarded: {:?}",
            self.forwarded.last()
        );
        reply
    }

    /// Sends a GET request that must reach the origin, which responds with status 200 and `new`.
    fn miss(&mut self, fields: &str) -> Reply {
        let reply = self.get(fields, "Cache-Control: no-store\r\n", "new");
        assert_eq!(reply.body, b"new", "{}", reply.head.escape_ascii());
        reply
    }

    fn last_forwarded(&self) -> &str {
        self.forwarded.last().expect("a request was forwarded")
    }
}

const FRESH: &str = "Cache-Control: max-age=60\r\n";

#[test]
fn a_hit_has_age_and_the_old_date_section_4() {
    let mut scenario = Scenario::new();
    let date = "Date: Sat, 21 Nov 2026 10:16:00 GMT\r\n";
    scenario.get("", &format!("{date}Cache-Control: max-age=600\r\nAge: 30\r\n"), "old");
    scenario.wait_s(3);
    let reply = scenario.hit("Cookie: a=b\r\n");
    assert_eq!((reply.status(), &reply.body[..]), (200, &b"old"[..]));
    assert_eq!(reply.field("Age").as_deref(), Some("33"));
    assert_eq!(reply.field("Date").as_deref(), Some("Sat, 21 Nov 2026 10:16:00 GMT"));
    assert_eq!(reply.field("Cache-Status").as_deref(), Some("model; hit; ttl=567"));
    scenario.wait_s(567);
    scenario.miss("");
}

#[test]
fn a_head_is_served_from_a_get_section_4() {
    let mut scenario = Scenario::new();
    scenario.get("", FRESH, "old");
    let reply = scenario.send("HEAD /", "", None);
    assert_eq!((reply.status(), reply.body.len()), (200, 0));
    assert_eq!(reply.field("Content-Length").as_deref(), Some("3"));
}

#[test]
fn queries_are_keys_section_2() {
    let mut scenario = Scenario::new();
    scenario.send("GET /?a", "", Some(("200 OK", FRESH, "a")));
    let other = scenario.send("GET /?b", "", Some(("200 OK", FRESH, "b")));
    assert_eq!(other.body, b"b");
    assert_eq!(scenario.send("GET /?a", "", None).body, b"a");
}

#[test]
fn a_stale_response_is_validated_and_freshened_section_4_3() {
    let mut scenario = Scenario::new();
    scenario.get("", "Cache-Control: max-age=2\r\nETag: \"a\"\r\nTest: A\r\nOther: B\r\n", "old");
    scenario.wait_s(3);
    let response = Some(("304 Not Modified", "ETag: \"a\"\r\nTest: C\r\n", ""));
    let reply = scenario.send("GET /", "", response);
    assert!(
        scenario.last_forwarded().contains("\r\nIf-None-Match: \"a\"\r\n"),
        "{}",
        scenario.last_forwarded()
    );
    assert_eq!((reply.status(), &reply.body[..]), (200, &b"old"[..]));
    assert_eq!(reply.field("Test").as_deref(), Some("C"));
    let reply = scenario.hit("");
    assert_eq!(reply.field("Other").as_deref(), Some("B"));
    scenario.wait_s(3);
    let reply = scenario.get("", FRESH, "changed");
    assert_eq!(reply.body, b"changed");
    assert_eq!(scenario.hit("").body, b"changed");
}

#[test]
fn a_client_gets_its_304_after_validation_section_4_3_2() {
    let mut scenario = Scenario::new();
    let modified = "Last-Modified: Sat, 21 Nov 2026 09:00:00 GMT\r\n";
    scenario.get("", &format!("Cache-Control: max-age=2\r\n{modified}"), "old");
    scenario.wait_s(3);
    let condition = "If-Modified-Since: Sat, 21 Nov 2026 09:30:00 GMT\r\n";
    let reply = scenario.send("GET /", condition, Some(("304 Not Modified", "", "")));
    assert_eq!((reply.status(), reply.body.len()), (304, 0));
    assert!(scenario.last_forwarded().contains("If-Modified-Since: Sat, 21 Nov 2026 09:00:00 GMT"));
    assert!(!scenario.last_forwarded().contains("09:30"), "{}", scenario.last_forwarded());
}

#[test]
fn variants_are_kept_side_by_side_section_4_1() {
    let mut scenario = Scenario::new();
    let varying = format!("{FRESH}Vary: Foo\r\n");
    scenario.get("Foo: 1\r\n", &varying, "one");
    let other = scenario.get("Foo: 2\r\n", &varying, "two");
    assert_eq!(other.body, b"two");
    assert_eq!(scenario.hit("Foo: 1\r\n").body, b"one");
    assert_eq!(scenario.hit("Foo: 2\r\nBar: 3\r\n").body, b"two");
    scenario.miss("");
}

#[test]
fn ranges_come_from_the_whole_rfc_9110_section_14() {
    let mut scenario = Scenario::new();
    scenario.get("", FRESH, "01234567890");
    let part = scenario.hit("Range: bytes=0-1\r\n");
    assert_eq!((part.status(), &part.body[..]), (206, &b"01"[..]));
    assert_eq!(part.field("Content-Range").as_deref(), Some("bytes 0-1/11"));
    assert_eq!(scenario.hit("Range: bytes=1-\r\n").body, b"1234567890");
    assert_eq!(scenario.hit("Range: bytes=-1\r\n").body, b"0");
    assert_eq!(scenario.hit("Range: bytes=99-\r\n").status(), 416);
    let parts = scenario.hit("Range: bytes=0-1, 9-\r\n");
    assert!(parts.field("Content-Type").unwrap().starts_with("multipart/byteranges; boundary="));
    assert_eq!(parts.field("Content-Length").unwrap(), parts.body.len().to_string());
}

#[test]
fn a_part_is_made_whole_sections_3_3_and_3_4() {
    let mut scenario = Scenario::new();
    let tag = "Cache-Control: max-age=60\r\nETag: \"a\"\r\n";
    let first = format!("{tag}Content-Range: bytes 0-4/10\r\nContent-Length: 5\r\n");
    let part = Some(("206 Partial Content", &first[..], "01234"));
    scenario.send("GET /", "Range: bytes=0-4\r\n", part);
    assert_eq!(scenario.hit("Range: bytes=1-2\r\n").body, b"12");
    let second = format!("{tag}Content-Range: bytes 5-9/10\r\nContent-Length: 5\r\n");
    let rest = Some(("206 Partial Content", &second[..], "56789"));
    let reply = scenario.send("GET /", "", rest);
    assert!(scenario.last_forwarded().contains("Range: bytes=5-\r\nIf-Range: \"a\"\r\n"));
    assert_eq!((reply.status(), &reply.body[..]), (200, &b"0123456789"[..]));
    assert_eq!(scenario.hit("").body, b"0123456789");
}

#[test]
fn a_part_of_another_representation_is_not_joined_section_3_4() {
    let mut scenario = Scenario::new();
    let first = "Cache-Control: max-age=60\r\nETag: \"a\"\r\nContent-Range: bytes 0-4/10\r\n";
    scenario.send("GET /", "Range: bytes=0-4\r\n", Some(("206 Partial Content", first, "01234")));
    let changed = scenario.get("", &format!("{FRESH}ETag: \"b\"\r\n"), "all of it");
    assert!(scenario.last_forwarded().contains("If-Range: \"a\""));
    assert_eq!((changed.status(), &changed.body[..]), (200, &b"all of it"[..]));
    assert_eq!(scenario.hit("").body, b"all of it");
}

#[test]
fn unsafe_methods_invalidate_section_4_4() {
    for method in ["POST", "PUT", "DELETE", "M-SEARCH"] {
        let mut scenario = Scenario::new();
        scenario.get("", FRESH, "old");
        scenario.send(&format!("{method} /"), "", Some(("500 Failed", "", "")));
        assert_eq!(scenario.hit("").body, b"old", "a failure changes nothing");
        scenario.send(
            &format!("{method} /elsewhere"),
            "",
            Some(("201 Made", "Location: /\r\n", "")),
        );
        scenario.miss("");
    }
}

#[test]
fn a_post_may_fill_what_it_invalidates_rfc_9110_section_9_3_3() {
    let mut scenario = Scenario::new();
    let located = format!("{FRESH}Content-Location: http://example.com/\r\n");
    scenario.send("POST /", "Content-Length: 5\r\n", Some(("200 OK", &located, "made")));
    assert_eq!(scenario.hit("").body, b"made");
}

#[test]
fn a_stale_response_replaces_an_error_where_allowed_rfc_5861_section_4() {
    let mut scenario = Scenario::new();
    scenario.get("", "Cache-Control: max-age=2, stale-if-error=60\r\n", "old");
    scenario.wait_s(3);
    assert_eq!(scenario.send("GET /", "", None).body, b"old");
    let failed = scenario.send("GET /", "", Some(("503 Failed", "", "failed")));
    assert_eq!((failed.status(), &failed.body[..]), (200, &b"old"[..]));
    scenario.wait_s(60);
    assert_eq!(scenario.send("GET /", "", None).status(), 504);
}

#[test]
fn a_newer_response_that_is_not_stored_removes_the_old_one() {
    let mut scenario = Scenario::new();
    scenario.get("", FRESH, "old");
    scenario.send("GET /", "Cache-Control: no-cache\r\n", Some(("503 Failed", "", "failed")));
    assert_eq!(scenario.hit("").body, b"old", "a failure does not describe the resource");
    scenario.get("Cache-Control: no-cache\r\n", "", "new");
    scenario.miss("");
}

#[test]
fn stale_is_not_served_where_it_must_not_be_section_4_2_4() {
    for word in ["must-revalidate", "proxy-revalidate", "no-cache", "s-maxage=2"] {
        let mut scenario = Scenario::new();
        scenario.model.policy.stale_if_error_s = 60;
        let fields = format!("Cache-Control: max-age=2, {word}\r\nETag: \"a\"\r\n");
        scenario.get("", &fields, "old");
        scenario.wait_s(3);
        assert_eq!(scenario.send("GET /", "", None).status(), 504, "{word}");
    }
}

#[test]
fn stale_is_served_while_it_is_validated_rfc_5861_section_3() {
    let mut scenario = Scenario::new();
    scenario.get("", "Cache-Control: max-age=2, stale-while-revalidate=9\r\n", "old");
    scenario.wait_s(3);
    let reply = scenario.get("", FRESH, "new");
    assert_eq!(reply.body, b"old");
    assert_eq!(scenario.hit("").body, b"new");
}

#[test]
fn only_if_cached_is_never_forwarded_section_5_2_1_7() {
    let mut scenario = Scenario::new();
    assert_eq!(scenario.hit("Cache-Control: only-if-cached\r\n").status(), 504);
}

#[test]
fn a_304_that_forbids_storing_evicts_after_use_section_4_3_4() {
    let mut scenario = Scenario::new();
    scenario.get("", "Cache-Control: max-age=2\r\nETag: \"a\"\r\n", "old");
    scenario.wait_s(3);
    let response = Some(("304 Not Modified", "Cache-Control: no-store\r\n", ""));
    assert_eq!(scenario.send("GET /", "", response).body, b"old");
    scenario.miss("");
}

#[test]
fn a_head_updates_or_invalidates_section_4_3_5() {
    let mut scenario = Scenario::new();
    scenario.get("", "Cache-Control: max-age=2\r\nETag: \"a\"\r\n", "old");
    scenario.wait_s(3);
    let same = format!("{FRESH}ETag: \"a\"\r\nContent-Length: 3\r\nTest: A\r\n");
    scenario.send("HEAD /", "", Some(("200 OK", &same, "")));
    assert_eq!(scenario.hit("").field("Test"), None, "only freshness is taken over");
    scenario.wait_s(60);
    let other = format!("{FRESH}ETag: \"b\"\r\n");
    scenario.send("HEAD /", "", Some(("200 OK", &other, "")));
    scenario.miss("");
}

#[test]
fn responses_to_unkeyed_requests_are_not_shared() {
    let mut scenario = Scenario::new();
    scenario.get("X-HTTP-Method-Override: PUT\r\n", FRESH, "poison");
    scenario.miss("");
    scenario.send("GET /", "Content-Length: 3\r\n", Some(("200 OK", FRESH, "fat")));
    scenario.miss("");
}
