//! Range requests that a cache responses itself, RFC 9110 section 14.

use std::hash::Hasher;

use millrace_http1::{FieldName, Method, RequestHead, parse_decimal};
use siphasher::sip128::Hasher128;

use super::cached_header::CachedHeader;
use super::date::http_date;
use super::etag::Etag;
use super::key::HashKey;
use super::key_sink::KeySink;
use super::limits::RANGES_MAX;
use super::meta::{Flags, StoredRange};

/// A range of a representation: `first <= last`, and `last` is before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ByteRange {
    /// The position of its first byte.
    pub first: u64,
    /// The position of its last byte.
    pub last: u64,
}

impl ByteRange {
    /// How many bytes it has: 1 or more.
    pub fn length(&self) -> u64 {
        self.last - self.first + 1
    }

    /// The value of `Content-Range`, RFC 9110 section 14.4.
    pub fn content_range(&self, complete: Option<u64>) -> String {
        let Self { first, last } = self;
        match complete {
            Some(length) => format!("bytes {first}-{last}/{length}"),
            None => format!("bytes {first}-{last}/*"),
        }
    }
}

/// Two ranges or more, in the order in which they are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ranges {
    list: [ByteRange; RANGES_MAX],
    /// `2 <= count <= RANGES_MAX`.
    count: usize,
}

impl Ranges {
    /// The ranges.
    pub fn as_slice(&self) -> &[ByteRange] {
        &self.list[..self.count]
    }
}

/// What of a stored response is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack of a hit, which allocates nothing"
)]
pub enum Selection {
    /// All of it, with its own status.
    Whole,
    /// One range: status 206 with [`ByteRange::content_range`].
    Part(ByteRange),
    /// Several: status 206 with a [`Multipart`](super::Multipart) body.
    Parts(Ranges),
    /// None of it: status 416 with `Content-Range: bytes */LENGTH`.
    Unsatisfiable,
    /// What is stored is a part, and not the one that is asked for: the origin is.
    Absent,
}

/// Says what of a stored response a request asks for. `length` is that of the whole
/// representation, and of no meaning where a part is stored. Conditions come before, RFC 9110
/// section 13.2.2. Allocates nothing.
///
/// RFC 9110 section 14.2 lets a `Range` be ignored; that is done where it cannot be read, is there
/// twice, has more than 16 members, or asks for more bytes than there are (section 17.15), and with
/// any method but GET.
pub fn select_ranges(
    request: &RequestHead,
    stored: &CachedHeader,
    length: u64,
    hash: &HashKey,
) -> Selection {
    let meta = &stored.meta;
    let whole = if meta.stored_range.is_some() { Selection::Absent } else { Selection::Whole };
    let mut values = request.values(FieldName::Range);
    let (Some(value), None) = (values.next(), values.next()) else { return whole };
    let is_ranged = meta.status == 200 || meta.stored_range.is_some();
    if request.method() != Method::Get || !is_ranged || !if_range_matches(request, stored) {
        return whole;
    }
    let Some(extent) = meta.stored_range else { return select_of_whole(value, length) };
    let is_same_question = meta.range_tag != 0 && meta.range_tag == range_tag(hash, request);
    if is_same_question && request.find(FieldName::IfRange).is_none() {
        // The origin would say the same again, whatever the words mean.
        return Selection::Part(ByteRange { first: extent.first, last: extent.last });
    }
    select_of_part(value, &extent)
}

fn select_of_whole(value: &[u8], length: u64) -> Selection {
    let Some(specs) = parse_range_specs(value) else { return Selection::Whole };
    if length == 0 {
        return Selection::Whole;
    }
    let found = specs.filter_map(|spec| spec.resolve(length));
    select(found, length).unwrap_or(Selection::Whole)
}

/// What of a part that is stored responses a request: all that is asked for, or nothing.
fn select_of_part(value: &[u8], extent: &StoredRange) -> Selection {
    let Some(specs) = parse_range_specs(value) else { return Selection::Absent };
    let is_within = |range: &ByteRange| extent.first <= range.first && range.last <= extent.last;
    let resolve = |spec: RangeSpec| match (extent.complete, spec) {
        (Some(length), spec) => spec.resolve(length),
        (None, RangeSpec::Between(first, last)) => Some(ByteRange { first, last }),
        (None, _) => None,
    };
    let mut is_all = true;
    let found = specs.filter_map(|spec| {
        let range = resolve(spec).filter(is_within);
        is_all &= range.is_some();
        range
    });
    match select(found, extent.complete.unwrap_or(u64::MAX)) {
        Some(selection @ (Selection::Part(_) | Selection::Parts(_))) if is_all => selection,
        _ => Selection::Absent,
    }
}

/// `None` for more than is answered.
fn select(found: impl Iterator<Item = ByteRange>, length: u64) -> Option<Selection> {
    let mut ranges = Ranges { list: [ByteRange::default(); RANGES_MAX], count: 0 };
    let mut asked: u64 = 0;
    for range in found {
        *ranges.list.get_mut(ranges.count)? = range;
        ranges.count += 1;
        asked = asked.saturating_add(range.length());
    }
    match ranges.count {
        0 => Some(Selection::Unsatisfiable),
        1 => Some(Selection::Part(ranges.list[0])),
        _ if asked > length => None,
        _ => Some(Selection::Parts(ranges)),
    }
}

/// RFC 9110 section 13.1.5: whether the client's part, if it has one, is of this representation. A
/// weak validator is none here, and a date has to be the very same.
fn if_range_matches(request: &RequestHead, stored: &CachedHeader) -> bool {
    let mut values = request.values(FieldName::IfRange);
    let Some(value) = values.next() else { return true };
    if values.next().is_some() {
        return false;
    }
    if value.contains(&b'"') {
        return stored.etag().is_some_and(|etag| etag.matches_strongly(Etag::parse(value)));
    }
    let meta = &stored.meta;
    let date_s = http_date(value, meta.response_ms / 1000);
    let is_strong = meta.flags.contains(Flags::MODIFIED_IS_STRONG);
    is_strong && date_s.is_some() && date_s == meta.last_modified_s
}

/// What stands for the words of a request's `Range`; 0 where there is none, or more than one.
pub(super) fn range_tag(hash: &HashKey, request: &RequestHead) -> u64 {
    let mut values = request.values(FieldName::Range);
    let (Some(value), None) = (values.next(), values.next()) else { return 0 };
    let mut sink = hash.hasher();
    sink.write_u8(b'r');
    sink.put(value);
    (sink.finish128().as_u128() as u64).max(1)
}

/// One member of a `Range`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RangeSpec {
    From(u64),
    Between(u64, u64),
    Last(u64),
}

impl RangeSpec {
    /// RFC 9110 section 14.1.2: `-`, digits on one side of it at least, and not backwards.
    fn parse(member: &[u8]) -> Option<Self> {
        let dash = member.iter().position(|&byte| byte == b'-')?;
        match (&member[..dash], &member[dash + 1..]) {
            (b"", last) => parse_position(last).map(Self::Last),
            (first, b"") => parse_position(first).map(Self::From),
            (first, last) => {
                let (first, last) = (parse_position(first)?, parse_position(last)?);
                (first <= last).then_some(Self::Between(first, last))
            }
        }
    }

    /// The range that it means; `None`: there is no such one. `length` is not 0.
    fn resolve(self, length: u64) -> Option<ByteRange> {
        let end = length - 1;
        let (first, last) = match self {
            Self::From(first) => (first, end),
            Self::Between(first, last) => (first, last.min(end)),
            Self::Last(0) => return None,
            Self::Last(count) => (length.saturating_sub(count), end),
        };
        (first <= end).then_some(ByteRange { first, last })
    }
}

/// The members of a `Range` of bytes; `None` for what is none. All are read before one counts.
fn parse_range_specs(value: &[u8]) -> Option<impl Iterator<Item = RangeSpec>> {
    let (unit, set) = value.split_at_checked("bytes=".len())?;
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return None;
    }
    let members = || {
        let members = set.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
        members.filter(|member| !member.is_empty())
    };
    let is_sound =
        members().all(|member| RangeSpec::parse(member).is_some()) && members().next().is_some();
    is_sound.then(|| members().filter_map(RangeSpec::parse))
}

/// Digits; what is too large for a number is behind every end.
fn parse_position(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| parse_decimal(digits).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::policy::CachePolicy;
    use super::super::test_messages::{
        DATE, HASH, get, request, response, store_by, stored_response,
    };
    use super::*;

    const FRESH: &str = "Cache-Control: max-age=60\r\n";

    fn part(first: u64, last: u64) -> Selection {
        Selection::Part(ByteRange { first, last })
    }

    /// What of a response of 11 bytes a request with these fields asks for.
    fn asked(fields: &str, asked: &str) -> Selection {
        let stored = stored_response(&format!("{DATE}{FRESH}{fields}"));
        select_ranges(&get(asked), &stored, 11, &HASH)
    }

    fn range(value: &str) -> Selection {
        asked("", &format!("Range: {value}\r\n"))
    }

    #[test]
    fn one_range_is_answered_rfc_9110_section_14_1_2() {
        for (value, expected) in [
            ("bytes=0-1", part(0, 1)),
            ("bytes=1-", part(1, 10)),
            ("bytes=-1", part(10, 10)),
            ("bytes=-99", part(0, 10)),
            ("bytes=5-99", part(5, 10)),
            ("bytes=0-99999999999999999999", part(0, 10)),
            ("Bytes=10-10,", part(10, 10)),
            ("bytes=99-, 3-4", part(3, 4)),
        ] {
            assert_eq!(range(value), expected, "{value}");
        }
        assert_eq!(ByteRange { first: 1, last: 3 }.content_range(Some(9)), "bytes 1-3/9");
        assert_eq!(ByteRange { first: 1, last: 3 }.content_range(None), "bytes 1-3/*");
    }

    #[test]
    fn several_ranges_are_answered_in_their_order_rfc_9110_section_15_3_7_2() {
        let Selection::Parts(ranges) = range("bytes=-2, 0-1") else { panic!("several") };
        let expected = [ByteRange { first: 9, last: 10 }, ByteRange { first: 0, last: 1 }];
        assert_eq!(ranges.as_slice(), expected);
    }

    #[test]
    fn what_is_not_there_is_unsatisfiable_rfc_9110_section_14_1_2() {
        for value in ["bytes=11-", "bytes=11-12", "bytes=-0", "bytes=99999999999999999999-"] {
            assert_eq!(range(value), Selection::Unsatisfiable, "{value}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_ignored_rfc_9110_section_14_2() {
        for value in [
            "bytes=",
            "bytes=a-b",
            "bytes=2-1",
            "bytes=-",
            "bytes 0-1",
            "items=0-1",
            "bytes=0-1, x",
            "bytes=1",
            "bytes=+1-2",
            "0-1",
            "bytes=0-1\r\nRange: bytes=0-1",
        ] {
            assert_eq!(range(value), Selection::Whole, "{value}");
        }
        let stored = stored_response(FRESH);
        let head = request("HEAD / HTTP/1.1", "Range: bytes=0-1\r\n");
        assert_eq!(select_ranges(&head, &stored, 11, &HASH), Selection::Whole);
        let empty = select_ranges(&get("Range: bytes=0-\r\n"), &stored, 0, &HASH);
        assert_eq!(empty, Selection::Whole);
    }

    #[test]
    fn greedy_sets_get_the_whole_rfc_9110_section_17_15() {
        assert_eq!(range("bytes=0-9, 0-9"), Selection::Whole);
        let many = |count| format!("bytes={}", vec!["0-0"; count].join(","));
        assert_eq!(range(&many(17)), Selection::Whole);
        assert!(matches!(range("bytes=0-5,6-10"), Selection::Parts(_)));
        let stored = stored_response(FRESH);
        let asked = get(&format!("Range: {}\r\n", many(16)));
        let sixteen = select_ranges(&asked, &stored, 16, &HASH);
        assert!(matches!(sixteen, Selection::Parts(_)));
    }

    #[test]
    fn if_range_compares_strongly_rfc_9110_section_13_1_5() {
        let strong = "ETag: \"a\"\r\nLast-Modified: Sat, 21 Nov 2026 09:00:00 GMT\r\n";
        let weak = "ETag: W/\"a\"\r\nLast-Modified: Sat, 21 Nov 2026 10:16:00 GMT\r\n";
        let with = |fields: &str, value: &str| {
            asked(fields, &format!("Range: bytes=0-1\r\nIf-Range: {value}\r\n"))
        };
        assert_eq!(with(strong, "\"a\""), part(0, 1));
        assert_eq!(with(strong, "Sat, 21 Nov 2026 09:00:00 GMT"), part(0, 1));
        for other in
            ["\"b\"", "W/\"a\"", "Sat, 21 Nov 2026 09:00:01 GMT", "x", "\"a\"\r\nIf-Range: x"]
        {
            assert_eq!(with(strong, other), Selection::Whole, "{other}");
        }
        assert_eq!(with(weak, "W/\"a\""), Selection::Whole);
        assert_eq!(with(weak, "Sat, 21 Nov 2026 10:16:00 GMT"), Selection::Whole);
    }

    #[test]
    fn errors_have_no_ranges() {
        let response = response(404, FRESH);
        let stored = store_by(&CachePolicy::default(), &get(""), &response).unwrap();
        let asked = get("Range: bytes=0-1\r\n");
        assert_eq!(select_ranges(&asked, &stored, 11, &HASH), Selection::Whole);
    }

    /// What of a part a request gets: bytes 4 to 8, asked for by other words.
    fn of_stored_part(content_range: &str, asked: &str) -> Selection {
        let first = get("Range: bytes=4-8, 4-8\r\n");
        let fields = format!("{FRESH}Content-Range: {content_range}\r\nContent-Length: 5\r\n");
        let stored = store_by(&CachePolicy::default(), &first, &response(206, &fields)).unwrap();
        select_ranges(&get(asked), &stored, 0, &HASH)
    }

    #[test]
    fn a_part_responses_what_is_in_it_rfc_9111_section_3_3() {
        let of = |value: &str| of_stored_part("bytes 4-8/9", &format!("Range: {value}\r\n"));
        assert_eq!(of("bytes=6-8"), part(6, 8));
        assert_eq!(of("bytes=6-"), part(6, 8));
        assert_eq!(of("bytes=-1"), part(8, 8));
        assert_eq!(of("bytes=-5"), part(4, 8));
        assert!(matches!(of("bytes=4-5, 7-8"), Selection::Parts(_)));
        for absent in ["bytes=3-8", "bytes=-6", "bytes=0-", "bytes=4-5, 0-1", "bytes=9-", "x"] {
            assert_eq!(of(absent), Selection::Absent, "{absent}");
        }
        assert_eq!(of_stored_part("bytes 4-8/9", ""), Selection::Absent);
    }

    #[test]
    fn a_part_of_unknown_whole_responses_positions_only() {
        let of = |value: &str| of_stored_part("bytes 4-8/*", &format!("Range: {value}\r\n"));
        assert_eq!(of("bytes=6-7"), part(6, 7));
        assert_eq!(of("bytes=6-"), Selection::Absent);
        assert_eq!(of("bytes=-1"), Selection::Absent);
        assert_eq!(of("bytes=6-9"), Selection::Absent);
    }

    #[test]
    fn the_same_words_get_the_same_part() {
        let asked = "Range: bytes=4-8, 4-8\r\n";
        assert_eq!(of_stored_part("bytes 4-9/10", asked), part(4, 8));
        let conditional = format!("{asked}If-Range: \"a\"\r\n");
        assert_eq!(of_stored_part("bytes 4-9/10", &conditional), Selection::Absent);
    }
}
