//! Methods and versions.

/// A request method. RFC 9110 section 9.1: methods are case-sensitive, so `get` is [`Other`].
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
    /// Any other token; its bytes are in the head.
    Other,
}

impl Method {
    /// The method that these bytes name.
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

    /// Whether it asks for no change, RFC 9110 section 9.2.1.
    pub fn is_safe(self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Options | Self::Trace)
    }

    /// Whether sending it twice means the same as once, RFC 9110 section 9.2.2. A method that is
    /// not known is taken as one that is not.
    pub fn is_idempotent(self) -> bool {
        self.is_safe() || matches!(self, Self::Put | Self::Delete)
    }
}

/// A version that is understood.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Version {
    /// `HTTP/1.0`
    Http10,
    /// `HTTP/1.1`
    #[default]
    Http11,
}

impl Version {
    /// As it is written in a start line.
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
    fn methods_are_case_sensitive_and_unknown_ones_promise_nothing() {
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
