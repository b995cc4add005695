//! Request methods and HTTP versions.

/// A request method. Methods are case-sensitive (RFC 9110 section 9.1), so `get` is [`Other`].
///
/// [`Other`]: Method::Other
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[expect(missing_docs, reason = "the names are the methods")]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Connect,
    Options,
    Trace,
    Patch,
    /// Any other token. [`RequestHead::method_bytes`](crate::RequestHead::method_bytes) returns its
    /// bytes.
    Other,
}

impl Method {
    /// Returns the method with this name.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        match bytes {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"CONNECT" => Self::Connect,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            b"PATCH" => Self::Patch,
            _ => Self::Other,
        }
    }

    /// Returns whether the method is safe: it requests no change (RFC 9110 section 9.2.1). An
    /// unknown method is not.
    pub fn is_safe(self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Options | Self::Trace)
    }

    /// Returns whether sending the request twice has the same effect as once (RFC 9110 section
    /// 9.2.2). An unknown method is not idempotent.
    pub fn is_idempotent(self) -> bool {
        self.is_safe() || matches!(self, Self::Put | Self::Delete)
    }
}

/// A supported version of HTTP/1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Version {
    /// `HTTP/1.0`
    Http10,
    /// `HTTP/1.1`
    #[default]
    Http11,
}

impl Version {
    /// Returns the version as it is written in a start line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_case_sensitive_and_unknown_ones_are_neither_safe_nor_idempotent() {
        assert_eq!(Method::from_bytes(b"DELETE"), Method::Delete);
        for bytes in [&b"get"[..], b"Get", b"GETS", b"", b"PROPFIND"] {
            let method = Method::from_bytes(bytes);
            assert_eq!(method, Method::Other);
            assert!(!method.is_safe() && !method.is_idempotent());
        }
        assert!(Method::Head.is_safe() && Method::Put.is_idempotent() && !Method::Put.is_safe());
        assert!(!Method::Post.is_idempotent() && !Method::Connect.is_idempotent());
        assert!(!Method::Patch.is_idempotent());
    }
}
