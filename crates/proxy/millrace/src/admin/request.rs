//! The parts of a request that the admin server uses.

use std::str::from_utf8;

use millrace_http1::{
    Authority, Framing, Method, RequestHead, TargetForm, destination, request_framing,
};

use crate::http;

/// A request to the admin server.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct AdminRequest<'a> {
    pub(super) method: Method,
    /// The target without its query.
    pub(super) path: &'a str,
    /// The part behind `?`; empty if there is none.
    pub(super) query: &'a str,
    /// `None`: an HTTP/1.0 client sent no Host.
    pub(super) host: Option<Authority<'a>>,
    pub(super) authorization: Option<&'a str>,
    pub(super) origin: Option<&'a str>,
    pub(super) sec_fetch_site: Option<&'a str>,
    pub(super) upgrade: Option<&'a str>,
    /// Whether Accept names `text/plain` and not the OpenMetrics format. Weights are not compared.
    pub(super) accepts_only_text: bool,
    /// Whether a body follows, or may follow because the framing is invalid.
    pub(super) has_body: bool,
}

impl<'a> AdminRequest<'a> {
    /// Parses a request header.
    ///
    /// # Errors
    /// The reason why the request is malformed.
    pub(super) fn parse(head: &'a RequestHead) -> Result<Self, String> {
        let destination = destination(head).map_err(|error| error.to_string())?;
        if head.form() != TargetForm::Origin {
            return Err("invalid request target (expected: a path)".to_owned());
        }
        let target = from_utf8(destination.path_and_query).expect("targets are ASCII");
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Ok(Self {
            method: head.method(),
            path,
            query,
            host: destination.authority,
            authorization: value(head, "Authorization")?,
            origin: value(head, "Origin")?,
            sec_fetch_site: value(head, "Sec-Fetch-Site")?,
            upgrade: value(head, "Upgrade")?,
            accepts_only_text: accepts(head, "text/plain")
                && !accepts(head, "application/openmetrics-text"),
            has_body: !matches!(request_framing(head), Ok(Framing::None | Framing::Length(0))),
        })
    }
}

/// Returns whether an Accept field names `media_type`, with any parameters (RFC 9110 section
/// 12.5.1).
fn accepts(head: &RequestHead, media_type: &str) -> bool {
    let ranges = http::values(head, "Accept").flat_map(|value| value.split(|byte| *byte == b','));
    let mut types = ranges.filter_map(|range| range.split(|byte| *byte == b';').next());
    types.any(|name| name.trim_ascii().eq_ignore_ascii_case(media_type.as_bytes()))
}

/// Returns the value of a field that may occur once.
fn value<'a>(head: &'a RequestHead, name: &str) -> Result<Option<&'a str>, String> {
    let mut values = http::values(head, name);
    let value = values.next().map(from_utf8).transpose();
    match values.next() {
        None => value.map_err(|_| format!("invalid {name} field (expected: UTF-8)")),
        Some(_) => Err(format!("more than one {name} field")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_http1::HeadScan;

    fn parsed(head: &[u8]) -> Option<RequestHead> {
        let mut request = RequestHead::default();
        let used = request.parse(head, &mut HeadScan::default(), &http::HEAD_LIMITS);
        (used == Ok(Some(head.len()))).then_some(request)
    }

    #[test]
    fn heads_are_read_or_refused() {
        let head = parsed(
            b"POST /drain?x HTTP/1.1\r\nHOST: \ta:1 \r\nauthorization:Bearer x\r\nX:\r\n\r\n",
        );
        let head = head.unwrap();
        let request = AdminRequest::parse(&head).unwrap();
        assert_eq!((request.method, request.path), (Method::Post, "/drain"));
        assert_eq!((request.query, request.has_body), ("x", false));
        assert_eq!(request.host, Some(Authority::parse(b"a:1").unwrap()));
        assert_eq!(request.authorization, Some("Bearer x"));
        let head = parsed(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        assert_eq!(AdminRequest::parse(&head).unwrap().host, None);
        for body in ["Content-Length: 1", "Transfer-Encoding: chunked", "Content-Length: 0, 5"] {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{body}\r\n\r\n");
            assert!(
                AdminRequest::parse(&parsed(head.as_bytes()).unwrap()).unwrap().has_body,
                "{body}"
            );
        }
        for wrong in [
            &b"nonsense"[..],
            b"GET / HTTP/2.0\r\nHost: a",
            b"GET http://a/ HTTP/1.1\r\nHost: a",
            b"GET / HTTP/1.1",
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: b",
            b"GET / HTTP/1.1\r\nHost: a\r\nOrigin: a\r\nOrigin: b",
            b"GET / HTTP/1.1\r\nHost : a",
            b"GET / HTTP/1.1\r\nHost: a\r\nOrigin: \xff",
        ] {
            let head = parsed(&[wrong, b"\r\n\r\n"].concat());
            let request = head.as_ref().map(AdminRequest::parse);
            assert!(!matches!(request, Some(Ok(_))), "{}", wrong.escape_ascii());
        }
    }
}
