//! The subset of HTTP that the load generator and the origin of the bench use.

use std::net::SocketAddr;

/// A request to be forwarded.
pub(crate) struct MissRequest {
    /// The address of the origin.
    pub(crate) address: SocketAddr,
    /// The header of the request, with the target in origin form.
    pub(crate) head: Vec<u8>,
}

impl MissRequest {
    /// Parses `GET http://ADDRESS:PORT/PATH HTTP/1.1` and fields; `None` for anything else and for
    /// an incomplete header.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let target = text.strip_prefix("GET http://").filter(|_| text.ends_with("\r\n\r\n"))?;
        let (authority, rest) = target.split_at(target.find('/')?);
        Some(Self { address: authority.parse().ok()?, head: [b"GET ", rest.as_bytes()].concat() })
    }
}

/// A response header.
pub(crate) struct OriginResponse {
    /// Length of the header in bytes.
    pub(crate) head: usize,
    /// Length of the body in bytes.
    pub(crate) length: u64,
    /// Whether the response is stored.
    pub(crate) is_public: bool,
}

impl OriginResponse {
    /// Parses a header with a Content-Length; `None` if it has none or is incomplete.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let head = bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
        let text = std::str::from_utf8(&bytes[..head]).ok()?;
        let mut fields = text.split("\r\n").filter_map(|line| line.split_once(": "));
        let (mut length, mut is_public) = (None, false);
        for (name, value) in &mut fields {
            if name.eq_ignore_ascii_case("content-length") {
                length = value.parse().ok();
            } else if name.eq_ignore_ascii_case("cache-control") {
                is_public = value.starts_with("public");
            }
        }
        Some(Self { head, length: length?, is_public })
    }
}
