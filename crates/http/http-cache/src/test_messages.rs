//! Helpers for tests: parsing heads in one call, and storing responses.

use millrace_http1::{HeadLimits, HeadScan, RequestHead, ResponseHead};

use super::{
    CachePolicy, CachedHeader, HashKey, NotStored, Receipt, ReceivedResponse, Scheme, store,
};

const LIMITS: HeadLimits =
    HeadLimits { bytes_max: 16_384, fields_max: 100, target_bytes_max: 4096 };

/// Sat, 21 Nov 2026 10:16:00 GMT.
pub(super) const NOW_S: u64 = 1_795_256_160;
pub(super) const NOW_MS: u64 = NOW_S * 1000;
/// The same time as a `Date` line.
pub(super) const DATE: &str = "Date: Sat, 21 Nov 2026 10:16:00 GMT\r\n";

pub(super) const HASH: HashKey = HashKey::new([7; 16]);

/// Returns `GET /` with these field lines, each with its line end.
pub(super) fn get(fields: &str) -> RequestHead {
    request("GET / HTTP/1.1", fields)
}

/// Returns a request with this request line and these field lines.
pub(super) fn request(line: &str, fields: &str) -> RequestHead {
    let bytes = format!("{line}\r\nHost: example.com\r\n{fields}\r\n");
    let mut head = RequestHead::default();
    let used = head.parse(bytes.as_bytes(), &mut HeadScan::default(), &LIMITS);
    assert_eq!(used, Ok(Some(bytes.len())), "{bytes}");
    head
}

/// Returns a response with this status and these field lines.
pub(super) fn response(status: u16, fields: &str) -> ResponseHead {
    parse_response(format!("HTTP/1.1 {status} Reason\r\n{fields}\r\n").as_bytes())
}

/// Parses a complete response head.
pub(super) fn parse_response(bytes: &[u8]) -> ResponseHead {
    let mut head = ResponseHead::default();
    let used = head.parse(bytes, &mut HeadScan::default(), &LIMITS);
    assert_eq!(used, Ok(Some(bytes.len())), "{}", bytes.escape_ascii());
    head
}

/// Requested and received now.
pub(super) const RECEIPT: Receipt = Receipt {
    request_ms: NOW_MS,
    response_ms: NOW_MS,
    scheme: Scheme::Http,
    hash: HASH,
    has_client_certificate: false,
};

/// Stores a response received now, by a policy.
pub(super) fn store_by(
    policy: &CachePolicy,
    request: &RequestHead,
    response: &ResponseHead,
) -> Result<CachedHeader, NotStored> {
    store(&ReceivedResponse { request, response, receipt: &RECEIPT, policy })
}

/// Stores a response of status 200 to `GET /`, by the default policy.
pub(super) fn stored(fields: &str) -> Result<CachedHeader, NotStored> {
    store_by(&CachePolicy::default(), &get(""), &response(200, fields))
}

/// Returns the stored header of a response of status 200.
pub(super) fn stored_response(fields: &str) -> CachedHeader {
    stored(fields).expect("it may be stored")
}
