//! Which part of a representation an answer has, RFC 9110 section 14.4.

use millrace_http1::{AnswerHead, Name, RequestHead, decimal, declared_length};

use super::meta::Extent;
use super::refusal::Refusal;

/// The largest position that is believed, as with lengths of bodies.
const POSITION_MAX: u64 = i64::MAX as u64 - 1;

/// Which part a 206 has. One that was not asked for has no sure meaning, and neither has one of
/// several parts, whose places are in its body.
pub(super) fn extent(request: &RequestHead, answer: &AnswerHead) -> Result<Extent, Refusal> {
    if request.values(Name::Range).count() == 1 { extent_of(answer) } else { Err(Refusal::Range) }
}

/// Which part of a representation an answer has, RFC 9110 section 14.4. A body that is announced
/// shorter than its range is what was received of the range, RFC 9111 section 3.3; one that is
/// longer contradicts it.
///
/// # Errors
/// [`Refusal::Range`] where that is not certain.
pub fn extent_of(answer: &AnswerHead) -> Result<Extent, Refusal> {
    let mut values = answer.values(Name::ContentRange);
    let (Some(value), None) = (values.next(), values.next()) else { return Err(Refusal::Range) };
    let extent = content_range(value).ok_or(Refusal::Range)?;
    match declared_length(answer) {
        Ok(Some(length)) => shortened(extent, length),
        Ok(None) => Ok(extent),
        Err(_) => Err(Refusal::Range),
    }
}

fn content_range(value: &[u8]) -> Option<Extent> {
    let (unit, rest) = value.split_at_checked("bytes ".len())?;
    let slash = rest.iter().position(|&byte| byte == b'/')?;
    let (range, complete) = (&rest[..slash], &rest[slash + 1..]);
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let (first, last) = (decimal(&range[..dash])?, decimal(&range[dash + 1..])?);
    let complete = if complete == b"*" { None } else { Some(decimal(complete)?) };
    let is_inside = complete.is_none_or(|length| last < length);
    let is_sound =
        unit.eq_ignore_ascii_case(b"bytes ") && first <= last && last <= POSITION_MAX && is_inside;
    is_sound.then_some(Extent { first, last, complete })
}

/// The part of which so many bytes are there.
pub(super) fn shortened(extent: Extent, length: u64) -> Result<Extent, Refusal> {
    match length {
        0 => Err(Refusal::Incomplete),
        length if length > extent.last - extent.first + 1 => Err(Refusal::Range),
        length => Ok(Extent { last: extent.first + length - 1, ..extent }),
    }
}
