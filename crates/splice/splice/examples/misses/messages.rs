//! The little of HTTP that the load generator and the origin of the bench speak.

use std::net::SocketAddr;

/// A request, as it is passed on.
pub(crate) struct MissRequest {
    /// Whom it is for.
    pub(crate) address: SocketAddr,
    /// Its head, with the target in origin form.
    pub(crate) head: Vec<u8>,
}

impl MissRequest {
    /// Reads `GET http://ADDRESS:PORT/PATH HTTP/1.1` and fields; `None` if it is anything else, or
    /// not all of a head.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let target = text.strip_prefix("GET http://").filter(|_| text.ends_with("\r\n\r\n"))?;
        let (authority, rest) = target.split_at(target.find('/')?);
        Some(Self { address: authority.parse().ok()?, head: [b"GET ", rest.as_bytes()].concat() })
    }
}

/// What is to be known of an answer.
pub(crate) struct OriginResponse {
    /// Bytes of its head.
    pub(crate) head: usize,
    /// Bytes of its body.
    pub(crate) length: u64,
    /// Whether it is to be stored.
    pub(crate) is_public: bool,
}

impl OriginResponse {
    /// Reads a head with a Content-Length; `None` if there is none, or not all of it.
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
