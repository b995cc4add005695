//! What the admin address answers with: a status, a few fixed fields, a short body.

use millrace_http1::HeadError;

use crate::takeover;

/// One answer.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) status: &'static str,
    pub(super) content_type: &'static str,
    pub(super) body: String,
    /// A further field, with its line end.
    field: String,
    /// The body is only counted, not sent.
    is_head: bool,
    /// The connection speaks, or should have spoken, something else from here on.
    is_switching: bool,
}

/// The field of a response to a purge that no stored response matched; its value is 0. With disks
/// it is never sent: their responses are not counted.
pub(crate) const MATCHED: &str = "Millrace-Matched";

impl Answer {
    /// A line for people.
    pub(super) fn text(status: &'static str, line: &str) -> Self {
        Self::page(status, "text/plain; charset=utf-8", format!("{line}\n"))
    }

    /// A body of another kind.
    pub(super) fn page(status: &'static str, content_type: &'static str, body: String) -> Self {
        Self { status, content_type, body, ..Self::default() }
    }

    /// Adds the field [`MATCHED`].
    pub(super) fn nothing_matched(self) -> Self {
        Self { field: format!("{MATCHED}: 0\r\n"), ..self }
    }

    /// The head of the request is refused.
    pub(super) fn malformed(error: HeadError) -> Self {
        use HeadError::{BytesTooMany, FieldsTooMany, TargetTooLong};
        let status = match error {
            BytesTooMany | FieldsTooMany | TargetTooLong => "431 Request Header Fields Too Large",
            _ => "400 Bad Request",
        };
        Self::text(status, &error.to_string())
    }

    /// The method is not one of `allowed` (RFC 9110 section 15.5.6).
    pub(super) fn not_allowed(allowed: &str) -> Self {
        const STATUS: &str = "405 Method Not Allowed";
        let answer = Self::text(STATUS, &format!("{STATUS} (allowed: {allowed})"));
        Self { field: format!("Allow: {allowed}\r\n"), ..answer }
    }

    /// A token is needed (RFC 6750 section 3).
    pub(super) fn unauthorized(line: &str) -> Self {
        Self {
            field: "WWW-Authenticate: Bearer realm=\"millrace admin\"\r\n".to_owned(),
            ..Self::text("401 Unauthorized", line)
        }
    }

    /// The other side has to switch to the protocol of takeovers, or may (RFC 9110 section 7.8).
    pub(super) fn switching(status: &'static str, line: &str) -> Self {
        Self {
            field: format!("Upgrade: {}\r\n", takeover::PROTOCOL),
            is_switching: true,
            ..Self::text(status, line)
        }
    }

    /// The same for HEAD: without its body.
    pub(super) fn without_body(self, is_head: bool) -> Self {
        Self { is_head, ..self }
    }

    /// As it goes over the wire.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let Self { status, content_type, body, field, .. } = self;
        if self.is_switching && status.starts_with("101 ") {
            let head = format!("HTTP/1.1 {status}\r\n{field}Connection: Upgrade\r\n\r\n");
            return head.into_bytes();
        }
        let connection = if self.is_switching { "Upgrade, close" } else { "close" };
        let mut bytes = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{field}\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
             Connection: {connection}\r\n\r\n",
            body.len(),
        )
        .into_bytes();
        if !self.is_head {
            bytes.extend_from_slice(body.as_bytes());
        }
        bytes
    }
}
