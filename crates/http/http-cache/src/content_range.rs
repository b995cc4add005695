//! Which part of a representation a response has, RFC 9110 section 14.4.

use millrace_http1::{FieldName, RequestHead, ResponseHead, declared_length, parse_decimal};

use super::meta::StoredRange;
use super::not_stored::NotStored;

/// The largest position that is believed, as with lengths of bodies.
const POSITION_MAX: u64 = i64::MAX as u64 - 1;

/// Which part a 206 has. One that was not asked for has no sure meaning, and neither has one of
/// several parts, whose places are in its body.
pub(super) fn requested_range(
    request: &RequestHead,
    response: &ResponseHead,
) -> Result<StoredRange, NotStored> {
    if request.values(FieldName::Range).count() == 1 {
        parse_content_range(response)
    } else {
        Err(NotStored::Range)
    }
}

/// Which part of a representation a response has, RFC 9110 section 14.4. A body that is announced
/// shorter than its range is what was received of the range, RFC 9111 section 3.3; one that is
/// longer contradicts it.
///
/// # Errors
/// [`Refusal::Range`] where that is not certain.
pub fn parse_content_range(response: &ResponseHead) -> Result<StoredRange, NotStored> {
    let mut values = response.values(FieldName::ContentRange);
    let (Some(value), None) = (values.next(), values.next()) else { return Err(NotStored::Range) };
    let extent = parse_value(value).ok_or(NotStored::Range)?;
    match declared_length(response) {
        Ok(Some(length)) => shorten_range(extent, length),
        Ok(None) => Ok(extent),
        Err(_) => Err(NotStored::Range),
    }
}

fn parse_value(value: &[u8]) -> Option<StoredRange> {
    let (unit, rest) = value.split_at_checked("bytes ".len())?;
    let slash = rest.iter().position(|&byte| byte == b'/')?;
    let (range, complete) = (&rest[..slash], &rest[slash + 1..]);
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let (first, last) = (parse_decimal(&range[..dash])?, parse_decimal(&range[dash + 1..])?);
    let complete = if complete == b"*" { None } else { Some(parse_decimal(complete)?) };
    let is_inside = complete.is_none_or(|length| last < length);
    let is_sound =
        unit.eq_ignore_ascii_case(b"bytes ") && first <= last && last <= POSITION_MAX && is_inside;
    is_sound.then_some(StoredRange { first, last, complete })
}

/// The part of which so many bytes are there.
pub(super) fn shorten_range(extent: StoredRange, length: u64) -> Result<StoredRange, NotStored> {
    match length {
        0 => Err(NotStored::Incomplete),
        length if length > extent.last - extent.first + 1 => Err(NotStored::Range),
        length => Ok(StoredRange { last: extent.first + length - 1, ..extent }),
    }
}
