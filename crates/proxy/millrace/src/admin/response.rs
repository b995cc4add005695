//! The responses of the admin server: a status, a few fixed fields, a short body.

use millrace_http1::{Framing, HeadError, HeaderWriter, Http1Header, Version};

use crate::http::Status;
use crate::takeover;

/// One response.
#[derive(Debug, Default)]
pub(super) struct AdminResponse {
    pub(super) status: Status,
    pub(super) content_type: &'static str,
    pub(super) body: String,
    /// The name and the value of one more field.
    field: Option<(&'static str, &'static str)>,
    /// The response is to HEAD: it has a Content-Length and no body.
    is_head: bool,
    /// The response has the fields of a protocol switch.
    is_switching: bool,
}

/// The field of a response to a purge that matched no stored response; its value is 0. It is never
/// sent if there are disks, because their responses are not counted.
pub(crate) const MATCHED_FIELD: &str = "Millrace-Matched";

impl AdminResponse {
    /// Creates a response with one line of plain text.
    pub(super) fn text(status: Status, line: &str) -> Self {
        Self::page(status, "text/plain; charset=utf-8", format!("{line}\n"))
    }

    /// Creates a response with a body of `content_type`.
    pub(super) fn page(status: Status, content_type: &'static str, body: String) -> Self {
        Self { status, content_type, body, ..Self::default() }
    }

    /// Adds the field [`MATCHED_FIELD`].
    pub(super) fn with_matched_zero(self) -> Self {
        Self { field: Some((MATCHED_FIELD, "0")), ..self }
    }

    /// Creates the response to a malformed request header.
    pub(super) fn malformed(error: HeadError) -> Self {
        use HeadError::{BytesTooMany, FieldsTooMany, TargetTooLong};
        let status = match error {
            BytesTooMany | FieldsTooMany | TargetTooLong => {
                (431, "Request Header Fields Too Large")
            }
            _ => (400, "Bad Request"),
        };
        Self::text(status, &error.to_string())
    }

    /// Creates a 405 (RFC 9110 section 15.5.6).
    pub(super) fn method_not_allowed(allowed: &'static str) -> Self {
        let line = format!("405 Method Not Allowed (allowed: {allowed})");
        Self { field: Some(("Allow", allowed)), ..Self::text((405, "Method Not Allowed"), &line) }
    }

    /// Creates a 401 that requests a bearer token (RFC 6750 section 3).
    pub(super) fn unauthorized(line: &str) -> Self {
        Self {
            field: Some(("WWW-Authenticate", "Bearer realm=\"millrace admin\"")),
            ..Self::text((401, "Unauthorized"), line)
        }
    }

    /// Creates a response that switches, or requires a switch, to the takeover protocol (RFC 9110
    /// section 7.8).
    pub(super) fn switching(status: Status, line: &str) -> Self {
        Self { is_switching: true, ..Self::text(status, line) }
    }

    /// Removes the body if the request was HEAD.
    pub(super) fn without_body(self, is_head: bool) -> Self {
        Self { is_head, ..self }
    }

    /// Encodes the response for the wire.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (status, reason) = self.status;
        let mut bytes = Vec::new();
        let mut header = Http1Header::new(&mut bytes);
        header.response(status, reason.as_bytes());
        if self.is_switching {
            header.upgrade([takeover::PROTOCOL.as_bytes()].into_iter());
        }
        // RFC 9110 section 8.6: an interim response has no Content-Length.
        if status == 101 {
            header.end();
            return bytes;
        }
        header.field(b"Content-Type", self.content_type.as_bytes());
        header.framing(Framing::Length(self.body.len() as u64), false);
        if let Some((name, value)) = self.field {
            header.field(name.as_bytes(), value.as_bytes());
        }
        header.field(b"Cache-Control", b"no-store");
        header.field(b"X-Content-Type-Options", b"nosniff");
        header.persistence(Version::Http11, false);
        header.end();
        if !self.is_head {
            bytes.extend_from_slice(self.body.as_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(response: &AdminResponse) -> String {
        String::from_utf8(response.encode()).unwrap()
    }

    #[test]
    fn a_response_has_its_length_and_closes_the_connection() {
        let fixed = "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
                     Connection: close\r\n\r\n";
        let expected = format!(
            "HTTP/1.1 405 Method Not Allowed\r\nContent-Type: text/plain; charset=utf-8\r\n\
             Content-Length: 39\r\nAllow: POST\r\n{fixed}"
        );
        let body = "405 Method Not Allowed (allowed: POST)\n";
        assert_eq!(text(&AdminResponse::method_not_allowed("POST")), format!("{expected}{body}"));
        assert_eq!(text(&AdminResponse::method_not_allowed("POST").without_body(true)), expected);
        let matched = AdminResponse::text((200, "OK"), "").with_matched_zero();
        assert!(text(&matched).contains("\r\nContent-Length: 1\r\nMillrace-Matched: 0\r\n"));
    }

    #[test]
    fn a_switch_to_the_takeover_has_no_body() {
        let upgrade = format!("Connection: Upgrade\r\nUpgrade: {}\r\n", takeover::PROTOCOL);
        let switch = AdminResponse::switching((101, "Switching Protocols"), "");
        let expected = format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\n");
        assert_eq!(text(&switch), expected);
        let required = text(&AdminResponse::switching((426, "Upgrade Required"), "no"));
        let expected = format!("HTTP/1.1 426 Upgrade Required\r\n{upgrade}Content-Type: ");
        assert!(required.starts_with(&expected) && required.ends_with("close\r\n\r\nno\n"));
    }
}
