//! The `Expect` field.

use crate::method::Version;
use crate::name::FieldName;
use crate::request::RequestHead;

/// The expectation of a request (RFC 9110 section 10.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Expectation {
    /// No expectation. An HTTP/1.0 request never has one: its `Expect` field is ignored.
    #[default]
    None,
    /// `100-continue`: the client waits for a 100 response before it sends the body.
    Continue,
    /// Another expectation, or several. The response is 417.
    Unknown,
}

/// Parses the `Expect` fields of a request.
pub fn expectation(head: &RequestHead) -> Expectation {
    if head.version() == Version::Http10 {
        return Expectation::None;
    }
    let mut values = head.values(FieldName::Expect);
    match (values.next(), values.next()) {
        (None, _) => Expectation::None,
        (Some(value), None) if value.eq_ignore_ascii_case(b"100-continue") => Expectation::Continue,
        _ => Expectation::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_heads::request;

    #[test]
    fn other_or_several_expectations_are_unknown() {
        let expects = |fields: &str, version: &str| {
            let head = format!("POST / {version}\r\nHost: a\r\n{fields}\r\n");
            expectation(&request(&head).unwrap())
        };
        assert_eq!(expects("", "HTTP/1.1"), Expectation::None);
        assert_eq!(expects("Expect: 100-Continue\r\n", "HTTP/1.1"), Expectation::Continue);
        assert_eq!(expects("Expect: 100-continue\r\n", "HTTP/1.0"), Expectation::None);
        for odd in ["Expect: 200-ok", "Expect:", "Expect: 100-continue, x", "Expect: 100-continuex"]
        {
            assert_eq!(expects(&format!("{odd}\r\n"), "HTTP/1.1"), Expectation::Unknown, "{odd}");
        }
        let twice = "Expect: 100-continue\r\n".repeat(2);
        assert_eq!(expects(&twice, "HTTP/1.1"), Expectation::Unknown);
    }
}
