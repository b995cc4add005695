//! Partial representations: 206 responses, incomplete responses, and how they are completed (RFC
//! 9111 sections 3.3 and 3.4).

use super::cached_header::CachedHeader;
use super::content_range::{parse_content_range, shorten_range};
use super::freshen::build_merged;
use super::meta::{Meta, StoredRange};
use super::not_stored::NotStored;
use super::received::ReceivedResponse;
use super::store::build_stored;

/// Updates the metadata of a stored response when its body ended: `length` bytes were received, and
/// `is_whole` is whether the body is complete by its framing. `declared` is the length that the
/// header declared.
///
/// RFC 9111 section 3.3: the received bytes of an incomplete 200 response are kept if it has a
/// strong validator, with which the rest of the same representation can be requested. Those of a
/// 206 response are always kept.
///
/// # Errors
/// Returns a [`NotStored`] if the stored response must not be used any longer. If the body is
/// incomplete, the caller must also abort the responses to the clients that already receive it.
pub fn finish(
    meta: &mut Meta,
    length: u64,
    is_whole: bool,
    declared: Option<u64>,
) -> Result<(), NotStored> {
    match meta.stored_range {
        Some(extent) => {
            let received_range = shorten_range(extent, length)?;
            // If the body was cut, the request's `Range` covers more than the stored range.
            meta.range_tag = if received_range == extent { meta.range_tag } else { 0 };
            meta.stored_range = Some(received_range);
        }
        None if is_whole => {}
        None if meta.status != 200 || length == 0 || !meta.has_strong_validator() => {
            return Err(NotStored::Incomplete);
        }
        None => {
            meta.stored_range = Some(StoredRange { first: 0, last: length - 1, complete: declared })
        }
    }
    Ok(())
}

/// The request for the missing part of a representation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remainder {
    /// The value of `Range`.
    pub range: Vec<u8>,
    /// The value of `If-Range`. If the representation changed, the origin sends it completely.
    pub if_range: Vec<u8>,
}

/// Returns the request that completes a stored range (RFC 9111 section 3.3). Returns `None` if the
/// complete representation has to be requested: the stored range is in its middle, or has no strong
/// validator, without which two parts must not be combined (section 3.4).
pub fn remainder(stored: &CachedHeader) -> Option<Remainder> {
    let meta = &stored.meta;
    let extent = meta.stored_range.filter(|_| meta.has_strong_validator())?;
    let has_last_byte = extent.complete.is_some_and(|length| extent.last + 1 == length);
    let range = match (extent.first, has_last_byte) {
        (0, false) => format!("bytes={}-", extent.last + 1),
        (first, true) if first > 0 => format!("bytes=0-{}", first - 1),
        _ => return None,
    };
    let if_range = stored.etag_bytes().or_else(|| stored.last_modified())?;
    Some(Remainder { range: range.into_bytes(), if_range: if_range.to_vec() })
}

/// Combines a stored range with the range of a 206 response (RFC 9111 section 3.4). Returns the
/// header of the combined response. If that is the whole representation, its status is 200 and it
/// has no stored range. The new bytes are placed as their `Content-Range` states, before or after
/// the stored ones; where they overlap, they are equal.
///
/// # Errors
/// Returns [`NotStored::Range`] if the two do not belong to the same representation or are not
/// adjacent. The stored range is then of no use for this response. Other errors are those of
/// [`store`](super::store()).
pub fn combine(
    received: &ReceivedResponse<'_>,
    previous: &CachedHeader,
) -> Result<CachedHeader, NotStored> {
    let response = received.response;
    let old =
        previous.meta.stored_range.filter(|_| response.status() == 206).ok_or(NotStored::Range)?;
    let new = build_stored(received, &received.directives())?;
    let extent = merge_ranges(old, parse_content_range(response)?).ok_or(NotStored::Range)?;
    if !is_same_strongly(previous, &new) {
        return Err(NotStored::Range);
    }
    let is_all = extent.first == 0 && extent.complete == Some(extent.last + 1);
    let status = if is_all { 200 } else { previous.meta.status };
    let mut stored = build_merged(received, false, previous, status)?;
    stored.meta.stored_range = if is_all { None } else { Some(extent) };
    Ok(stored)
}

fn merge_ranges(old: StoredRange, new: StoredRange) -> Option<StoredRange> {
    let complete = match (old.complete, new.complete) {
        (Some(old), Some(new)) if old != new => return None,
        (old, new) => old.or(new),
    };
    let are_adjacent = new.first <= old.last + 1 && old.first <= new.last + 1;
    let (first, last) = (old.first.min(new.first), old.last.max(new.last));
    let is_inside = complete.is_none_or(|length| last < length);
    (are_adjacent && is_inside).then_some(StoredRange { first, last, complete })
}

/// Returns whether two stored responses have the same bytes (RFC 9111 section 3.4).
pub fn is_same_strongly(old: &CachedHeader, new: &CachedHeader) -> bool {
    match (old.etag(), new.etag()) {
        (Some(old), Some(new)) => old.matches_strongly(new),
        (None, None) => {
            let are_strong = old.meta.has_strong_validator() && new.meta.has_strong_validator();
            are_strong && old.meta.last_modified_s == new.meta.last_modified_s
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::CachePolicy;
    use super::super::test_messages::{DATE, RECEIPT, get, response, store_by, stored_response};
    use super::*;

    const TAG: &str = "ETag: \"a\"\r\n";

    fn part(content_range: &str, fields: &str) -> Result<CachedHeader, NotStored> {
        let fields = format!(
            "{DATE}Cache-Control: max-age=60\r\nContent-Range: {content_range}\r\n{fields}"
        );
        let ranged = get("Range: bytes=0-4\r\n");
        store_by(&CachePolicy::default(), &ranged, &response(206, &fields))
    }

    fn extent(first: u64, last: u64, complete: Option<u64>) -> Option<StoredRange> {
        Some(StoredRange { first, last, complete })
    }

    #[test]
    fn a_part_has_its_place_rfc_9110_section_14_4() {
        let stored = part("bytes 4-9/10", "Content-Length: 6\r\n").unwrap();
        assert_eq!(stored.meta.stored_range, extent(4, 9, Some(10)));
        assert!(!String::from_utf8(stored.head).unwrap().contains("Content-Range"));
        assert_eq!(part("BYTES 0-0/*", "").unwrap().meta.stored_range, extent(0, 0, None));
        for bad in [
            "bytes 4-10/10",
            "bytes 5-4/10",
            "bytes */10",
            "bytes 4-9",
            "items 4-9/10",
            "bytes=4-9/10",
            "bytes 4-9/10, bytes 1-2/10",
            "bytes 4-9/10\r\nContent-Range: bytes 4-9/10",
            "bytes 0-9223372036854775807/*",
            "bytes 4-99999999999999999999/*",
            "",
        ] {
            assert_eq!(part(bad, "").err(), Some(NotStored::Range), "{bad}");
        }
        let unrequested =
            response(206, "Cache-Control: max-age=60\r\nContent-Range: bytes 0-4/10\r\n");
        let refused = store_by(&CachePolicy::default(), &get(""), &unrequested);
        assert_eq!(refused.err(), Some(NotStored::Range));
    }

    #[test]
    fn a_short_part_has_the_received_range_rfc_9111_section_3_3() {
        let stored = part("bytes 4-9/10", "Content-Length: 5\r\n").unwrap();
        assert_eq!(stored.meta.stored_range, extent(4, 8, Some(10)));
        let longer = part("bytes 4-9/10", "Content-Length: 7\r\n");
        assert_eq!(longer.err(), Some(NotStored::Range));
        let mut meta = part("bytes 4-9/10", "").unwrap().meta;
        assert_eq!(finish(&mut meta, 7, true, None), Err(NotStored::Range));
        assert_eq!(finish(&mut meta, 0, false, None), Err(NotStored::Incomplete));
        let (whole, tag) = (meta.stored_range, meta.range_tag);
        assert_eq!(finish(&mut meta, 6, true, None), Ok(()));
        assert_eq!((meta.stored_range, meta.range_tag), (whole, tag));
        assert_eq!(finish(&mut meta, 2, false, None), Ok(()));
        assert_eq!((meta.stored_range, meta.range_tag), (extent(4, 5, Some(10)), 0));
        assert_ne!(tag, 0);
    }

    #[test]
    fn an_incomplete_response_is_a_part_if_it_can_be_completed_rfc_9111_section_3_3() {
        let mut meta = stored_response(&format!("Cache-Control: max-age=60\r\n{TAG}")).meta;
        assert_eq!(finish(&mut meta, 10, true, Some(10)), Ok(()));
        assert_eq!(meta.stored_range, None);
        assert_eq!(finish(&mut meta, 0, false, Some(10)), Err(NotStored::Incomplete));
        assert_eq!(finish(&mut meta, 4, false, Some(10)), Ok(()));
        assert_eq!(meta.stored_range, extent(0, 3, Some(10)));
        let mut weak = stored_response("Cache-Control: max-age=60\r\nETag: W/\"a\"\r\n").meta;
        assert_eq!(finish(&mut weak, 4, false, Some(10)), Err(NotStored::Incomplete));
    }

    #[test]
    fn the_rest_is_requested_with_if_range_rfc_9111_section_3_3() {
        let remainder_of = |content_range: &str, fields: &str| {
            let stored = part(content_range, fields).unwrap();
            let remainder = remainder(&stored)?;
            let text = |bytes| String::from_utf8(bytes).unwrap();
            Some((text(remainder.range), text(remainder.if_range)))
        };
        let rest = |range: &str, if_range: &str| Some((range.to_owned(), if_range.to_owned()));
        assert_eq!(remainder_of("bytes 0-4/10", TAG), rest("bytes=5-", "\"a\""));
        assert_eq!(remainder_of("bytes 0-4/*", TAG), rest("bytes=5-", "\"a\""));
        assert_eq!(remainder_of("bytes 4-9/10", TAG), rest("bytes=0-3", "\"a\""));
        let date = "Thu, 01 Jan 2026 00:00:00 GMT";
        let modified = format!("Last-Modified: {date}\r\n");
        assert_eq!(remainder_of("bytes 0-4/10", &modified), rest("bytes=5-", date));
        assert_eq!(remainder_of("bytes 2-4/10", TAG), None);
        assert_eq!(remainder_of("bytes 2-4/*", TAG), None);
        assert_eq!(remainder_of("bytes 0-4/10", "ETag: W/\"a\"\r\n"), None);
        assert_eq!(remainder_of("bytes 0-4/10", ""), None);
    }

    fn joined(old: (&str, &str), new: (&str, &str)) -> Result<CachedHeader, NotStored> {
        let previous = part(old.0, old.1).unwrap();
        let fields = format!("{DATE}Content-Range: {}\r\n{}", new.0, new.1);
        let (request, response) = (&get(""), &response(206, &fields));
        combine(
            &ReceivedResponse {
                request,
                response,
                receipt: &RECEIPT,
                policy: &CachePolicy::default(),
            },
            &previous,
        )
    }

    #[test]
    fn parts_are_joined_rfc_9111_section_3_4() {
        let old = format!("{TAG}A: 1\r\nB: 1\r\n");
        let new = format!("{TAG}A: 2\r\n");
        let whole = joined(("bytes 0-4/10", &old), ("bytes 5-9/10", &new)).unwrap();
        assert_eq!((whole.meta.stored_range, whole.meta.status), (None, 200));
        let expected = format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nETag: \"a\"\r\nB: 1\r\n{DATE}A: 2\r\n"
        );
        assert_eq!(String::from_utf8(whole.head).unwrap(), expected);
        let more = joined(("bytes 2-4/10", TAG), ("bytes 4-6/*", TAG)).unwrap();
        assert_eq!((more.meta.stored_range, more.meta.status), (extent(2, 6, Some(10)), 206));
        let before = joined(("bytes 4-9/10", TAG), ("bytes 0-3/10", TAG)).unwrap();
        assert_eq!(before.meta.stored_range, None);
    }

    #[test]
    fn parts_of_different_representations_are_not_joined_rfc_9111_section_3_4() {
        let refused = |old: (&str, &str), new: (&str, &str)| {
            assert_eq!(joined(old, new).err(), Some(NotStored::Range), "{old:?} {new:?}");
        };
        refused(("bytes 0-4/10", TAG), ("bytes 6-9/10", TAG));
        refused(("bytes 0-4/10", TAG), ("bytes 5-9/11", TAG));
        refused(("bytes 0-4/10", TAG), ("bytes 5-9/10", "ETag: \"b\"\r\n"));
        refused(("bytes 0-4/*", TAG), ("bytes x", TAG));
        let weak = "ETag: W/\"a\"\r\n";
        refused(("bytes 0-4/10", weak), ("bytes 5-9/10", weak));
        let modified = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
        assert!(joined(("bytes 0-4/10", modified), ("bytes 5-9/10", modified)).is_ok());
        refused(("bytes 0-4/10", TAG), ("bytes 5-9/10", modified));
        let recent = "Last-Modified: Sat, 21 Nov 2026 10:16:00 GMT\r\n";
        refused(("bytes 0-4/10", recent), ("bytes 5-9/10", recent));
    }
}
