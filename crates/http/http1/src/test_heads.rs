//! Helpers for tests: parsing a header in one call.

use crate::{HeadError, HeadLimits, HeadScan, RequestHead, ResponseHead};

pub(crate) const LIMITS: HeadLimits =
    HeadLimits { bytes_max: 4096, fields_max: 40, target_bytes_max: 1024 };

/// Parses a complete request header.
pub(crate) fn request(bytes: impl AsRef<[u8]>) -> Result<RequestHead, HeadError> {
    let mut head = RequestHead::default();
    let used = head.parse(bytes.as_ref(), &mut HeadScan::default(), &LIMITS)?;
    assert!(used.is_some(), "the header is complete");
    Ok(head)
}

/// Parses a complete response header.
pub(crate) fn response(bytes: impl AsRef<[u8]>) -> Result<ResponseHead, HeadError> {
    let mut head = ResponseHead::default();
    let used = head.parse(bytes.as_ref(), &mut HeadScan::default(), &LIMITS)?;
    assert!(used.is_some(), "the header is complete");
    Ok(head)
}
