//! The range of a partial response (RFC 9110 section 14.4).

use millrace_http1::{FieldName, RequestHead, ResponseHead, declared_length, parse_decimal};

use super::meta::StoredRange;
use super::not_stored::NotStored;

/// The largest accepted position; the same limit as for body lengths.
const POSITION_MAX: u64 = i64::MAX as u64 - 1;

/// Returns the range of a 206 response to a request with one `Range` field. Without that field, or
/// with several, the meaning of the response is uncertain, and it is refused. A multipart response
/// is refused because its ranges are in its body.
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

/// Parses the range of a partial response (RFC 9110 section 14.4). If the declared body is shorter
/// than the range, the result is the part of the range that is received (RFC 9111 section 3.3). A
/// longer body contradicts the range.
///
/// # Errors
/// Returns [`NotStored::Range`] if the range is uncertain, and [`NotStored::Incomplete`] if the
/// declared body is empty.
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

/// Returns the first `length` bytes of a range.
pub(super) fn shorten_range(extent: StoredRange, length: u64) -> Result<StoredRange, NotStored> {
    match length {
        0 => Err(NotStored::Incomplete),
        length if length > extent.last - extent.first + 1 => Err(NotStored::Range),
        length => Ok(StoredRange { last: extent.first + length - 1, ..extent }),
    }
}
