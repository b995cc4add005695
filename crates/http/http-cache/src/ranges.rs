//! Range requests that a cache handles itself (RFC 9110 section 14).

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

/// A range of a representation: `first <= last`, and `last` is below its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ByteRange {
    /// Position of the first byte.
    pub first: u64,
    /// Position of the last byte.
    pub last: u64,
}

impl ByteRange {
    /// Returns the length of the range in bytes, at least 1.
    pub fn length(&self) -> u64 {
        self.last - self.first + 1
    }

    /// Returns the value of `Content-Range` (RFC 9110 section 14.4).
    pub fn content_range(&self, complete: Option<u64>) -> String {
        let Self { first, last } = self;
        match complete {
            Some(length) => format!("bytes {first}-{last}/{length}"),
            None => format!("bytes {first}-{last}/*"),
        }
    }
}

/// At least two ranges, in the order requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ranges {
    list: [ByteRange; RANGES_MAX],
    /// `2 <= count <= RANGES_MAX`.
    count: usize,
}

impl Ranges {
    /// Returns the ranges.
    pub fn as_slice(&self) -> &[ByteRange] {
        &self.list[..self.count]
    }
}

/// The part of a stored response that is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "a hit keeps it on the stack and allocates nothing")]
pub enum Selection {
    /// All of it, with its own status.
    Whole,
    /// One range: status 206 with [`ByteRange::content_range`].
    Part(ByteRange),
    /// Several ranges: status 206 with a [`Multipart`](super::Multipart) body.
    Parts(Ranges),
    /// No range can be satisfied: status 416 with `Content-Range: bytes */LENGTH`.
    Unsatisfiable,
    /// The requested range is not stored, so the request is forwarded.
    Absent,
}

/// Selects the part of a stored response that a request requires. `length` is the length of the
/// whole representation; it is ignored if only a range is stored. Conditions are evaluated before
/// (RFC 9110 section 13.2.2). Allocates nothing.
///
/// RFC 9110 section 14.2 permits ignoring `Range`. It is ignored if it is malformed or occurs
/// twice, if the method is not GET, if the status is neither 200 nor 206, and if `If-Range` does
/// not match. It is also ignored if more than 16 ranges are satisfiable, or if several together
/// have more bytes than the representation (section 17.15).
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
    let is_same_range_field = meta.range_tag != 0 && meta.range_tag == range_tag(hash, request);
    if is_same_range_field && request.find(FieldName::IfRange).is_none() {
        // The origin would send the same range again, whatever the field means.
        return Selection::Part(ByteRange { first: extent.first, last: extent.last });
    }
    select_of_part(value, &extent)
}

/// Selects ranges of a complete stored response.
fn select_of_whole(value: &[u8], length: u64) -> Selection {
    let Some(specs) = parse_range_specs(value) else { return Selection::Whole };
    if length == 0 {
        return Selection::Whole;
    }
    let found = specs.filter_map(|spec| spec.resolve(length));
    select(found, length).unwrap_or(Selection::Whole)
}

/// Selects ranges of a stored range: all that are requested, or none.
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

/// Returns the selection for these ranges; `None` if there are too many, or if several together
/// have more than `length` bytes.
fn select(found: impl Iterator<Item = ByteRange>, length: u64) -> Option<Selection> {
    let mut ranges = Ranges { list: [ByteRange::default(); RANGES_MAX], count: 0 };
    let mut requested: u64 = 0;
    for range in found {
        *ranges.list.get_mut(ranges.count)? = range;
        ranges.count += 1;
        requested = requested.saturating_add(range.length());
    }
    match ranges.count {
        0 => Some(Selection::Unsatisfiable),
        1 => Some(Selection::Part(ranges.list[0])),
        _ if requested > length => None,
        _ => Some(Selection::Parts(ranges)),
    }
}

/// Evaluates `If-Range` (RFC 9110 section 13.1.5): whether the client's part, if it has one,
/// belongs to this representation. A weak validator never matches, and a date has to be equal.
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

/// Returns a hash of the request's `Range`; 0 if there is none, or more than one.
pub(super) fn range_tag(hash: &HashKey, request: &RequestHead) -> u64 {
    let mut values = request.values(FieldName::Range);
    let (Some(value), None) = (values.next(), values.next()) else { return 0 };
    let mut sink = hash.hasher();
    sink.write_u8(b'r');
    sink.put(value);
    (sink.finish128().as_u128() as u64).max(1)
}

/// One member of a `Range` field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RangeSpec {
    From(u64),
    Between(u64, u64),
    Last(u64),
}

impl RangeSpec {
    /// Parses a member (RFC 9110 section 14.1.2): a `-` with digits on at least one side, and in
    /// ascending order.
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

    /// Returns the range of the member in a representation; `None` if it is outside. `length` is
    /// not 0.
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

/// Parses a `Range` of bytes into its members; `None` if it is malformed. All members are checked
/// first.
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

/// Parses digits. A number that is too large is beyond every end.
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

    /// Returns the selection from a response of 11 bytes with `fields`, for a request with the
    /// fields `request_fields`.
    fn selection(fields: &str, request_fields: &str) -> Selection {
        let stored = stored_response(&format!("{DATE}{FRESH}{fields}"));
        select_ranges(&get(request_fields), &stored, 11, &HASH)
    }

    fn range(value: &str) -> Selection {
        selection("", &format!("Range: {value}\r\n"))
    }

    #[test]
    fn one_range_is_selected_rfc_9110_section_14_1_2() {
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
    fn several_ranges_are_selected_in_their_order_rfc_9110_section_15_3_7_2() {
        let Selection::Parts(ranges) = range("bytes=-2, 0-1") else { panic!("several") };
        let expected = [ByteRange { first: 9, last: 10 }, ByteRange { first: 0, last: 1 }];
        assert_eq!(ranges.as_slice(), expected);
    }

    #[test]
    fn ranges_beyond_the_end_are_unsatisfiable_rfc_9110_section_14_1_2() {
        for value in ["bytes=11-", "bytes=11-12", "bytes=-0", "bytes=99999999999999999999-"] {
            assert_eq!(range(value), Selection::Unsatisfiable, "{value}");
        }
    }

    #[test]
    fn malformed_ranges_are_ignored_rfc_9110_section_14_2() {
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
    fn sets_that_exceed_the_length_select_the_whole_rfc_9110_section_17_15() {
        assert_eq!(range("bytes=0-9, 0-9"), Selection::Whole);
        let many = |count| format!("bytes={}", vec!["0-0"; count].join(","));
        assert_eq!(range(&many(17)), Selection::Whole);
        assert!(matches!(range("bytes=0-5,6-10"), Selection::Parts(_)));
        let stored = stored_response(FRESH);
        let ranged = get(&format!("Range: {}\r\n", many(16)));
        let sixteen = select_ranges(&ranged, &stored, 16, &HASH);
        assert!(matches!(sixteen, Selection::Parts(_)));
    }

    #[test]
    fn if_range_compares_strongly_rfc_9110_section_13_1_5() {
        let strong = "ETag: \"a\"\r\nLast-Modified: Sat, 21 Nov 2026 09:00:00 GMT\r\n";
        let weak = "ETag: W/\"a\"\r\nLast-Modified: Sat, 21 Nov 2026 10:16:00 GMT\r\n";
        let with = |fields: &str, value: &str| {
            selection(fields, &format!("Range: bytes=0-1\r\nIf-Range: {value}\r\n"))
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
        let ranged = get("Range: bytes=0-1\r\n");
        assert_eq!(select_ranges(&ranged, &stored, 11, &HASH), Selection::Whole);
    }

    /// Returns the selection from a stored range, bytes 4 to 8, which another `Range` requested.
    fn of_stored_part(content_range: &str, request_fields: &str) -> Selection {
        let first = get("Range: bytes=4-8, 4-8\r\n");
        let fields = format!("{FRESH}Content-Range: {content_range}\r\nContent-Length: 5\r\n");
        let stored = store_by(&CachePolicy::default(), &first, &response(206, &fields)).unwrap();
        select_ranges(&get(request_fields), &stored, 0, &HASH)
    }

    #[test]
    fn a_stored_part_serves_the_ranges_inside_it_rfc_9111_section_3_3() {
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
    fn a_part_of_unknown_complete_length_serves_positions_only() {
        let of = |value: &str| of_stored_part("bytes 4-8/*", &format!("Range: {value}\r\n"));
        assert_eq!(of("bytes=6-7"), part(6, 7));
        assert_eq!(of("bytes=6-"), Selection::Absent);
        assert_eq!(of("bytes=-1"), Selection::Absent);
        assert_eq!(of("bytes=6-9"), Selection::Absent);
    }

    #[test]
    fn the_same_range_field_gets_the_same_part() {
        let ranged = "Range: bytes=4-8, 4-8\r\n";
        assert_eq!(of_stored_part("bytes 4-9/10", ranged), part(4, 8));
        let conditional = format!("{ranged}If-Range: \"a\"\r\n");
        assert_eq!(of_stored_part("bytes 4-9/10", &conditional), Selection::Absent);
    }
}
