//! Message framing: where a body ends (RFC 9112 section 6.3), decided from the header alone.
//!
//! The following are refused, although RFC 9112 defines how to read some of them:
//!
//! * `Transfer-Encoding` together with `Content-Length`
//! * several lengths in a request, in fields or in a list, even if they are equal
//! * leading zeros in a length, which some implementations read as octal
//! * lengths of 2^63 and more, which some implementations read as negative
//! * transfer codings other than a single `chunked`; for a response with another last coding, RFC
//!   9112 defines that the body ends when the connection closes
//! * `Transfer-Encoding` in HTTP/1.0

use std::fmt;

use crate::byte_class::is_token;
use crate::comma_list::{parse_decimal, split_members, split_tokens};
use crate::head::Fields;
use crate::limits::BODY_BYTES_MAX;
use crate::method::{Method, Version};
use crate::name::FieldName;
use crate::request::RequestHead;
use crate::response::ResponseHead;

/// How the end of a body is determined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Framing {
    /// The message has no body: it ends with its header.
    #[default]
    None,
    /// The body has this many bytes, at most 2^63 - 1.
    Length(u64),
    /// The body is chunked.
    Chunked,
    /// The body ends when the connection closes; in responses only.
    UntilClose,
}

/// The reason why the end of a body is uncertain. The sender caused the error, and the connection
/// cannot be used any longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FramingError {
    /// `Content-Length` is not one plain decimal number below 2^63.
    LengthInvalid,
    /// `Content-Length` occurs more than once, in fields or in a list. In a response, this is an
    /// error only if the values differ.
    LengthDuplicate,
    /// Both `Transfer-Encoding` and `Content-Length` are present.
    Both,
    /// `Transfer-Encoding` is present in HTTP/1.0, which does not define it.
    CodingInHttp10,
    /// `Transfer-Encoding` is malformed, does not end in `chunked`, or has it twice. The response
    /// to a request is 400.
    CodingInvalid,
    /// Well-formed transfer codings other than `chunked` come before `chunked`. The response to a
    /// request is 501.
    CodingUnsupported,
    /// A body is declared where none is allowed: in a CONNECT or TRACE request, or in a response
    /// with status 1xx or 204.
    BodyForbidden,
}

impl fmt::Display for FramingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LengthInvalid => "Content-Length is not a plain number",
            Self::LengthDuplicate => "there is more than one Content-Length",
            Self::Both => "there are both Transfer-Encoding and Content-Length",
            Self::CodingInHttp10 => "Transfer-Encoding is not part of HTTP/1.0",
            Self::CodingInvalid => "Transfer-Encoding does not end in a single chunked coding",
            Self::CodingUnsupported => "Transfer-Encoding has a coding other than chunked",
            Self::BodyForbidden => "a body is declared where none is allowed",
        })
    }
}

impl std::error::Error for FramingError {}

/// Returns the framing of a request's body, which is never [`Framing::UntilClose`]. For a declared
/// length of 0 it is [`Framing::Length`], not [`Framing::None`].
///
/// # Errors
/// Returns a [`FramingError`] if two recipients could determine different ends.
pub fn request_framing(head: &RequestHead) -> Result<Framing, FramingError> {
    let framing = declared_framing(head, head.version(), single_length(head)?)?;
    match framing {
        // RFC 9110 section 9.3.6: a recipient could take the body of a CONNECT request for the
        // first bytes of the tunnel, or the reverse. Section 9.3.8: a client must not send a body
        // with TRACE, and few origins expect one.
        Some(Framing::Chunked | Framing::Length(1..))
            if matches!(head.method(), Method::Connect | Method::Trace) =>
        {
            Err(FramingError::BodyForbidden)
        }
        Some(framing) => Ok(framing),
        None => Ok(Framing::None),
    }
}

/// Returns the framing of a response's body. `request_method` is the method of the request that
/// caused the response.
///
/// * In a response to HEAD, and with status 304, the declared length is checked but describes no
///   body of this message; see [`declared_length`].
/// * With status 1xx and 204, neither `Content-Length` nor `Transfer-Encoding` is allowed (RFC 9110
///   section 8.6, RFC 9112 section 6.1). Only `Content-Length: 0` is accepted, because origins send
///   it and no recipient waits for a body.
/// * After CONNECT, a status of 2xx begins the tunnel. `Content-Length` and `Transfer-Encoding` are
///   then ignored (RFC 9110 section 9.3.6).
///
/// # Errors
/// Returns a [`FramingError`] if two recipients could determine different ends.
pub fn response_framing(
    head: &ResponseHead,
    request_method: Method,
) -> Result<Framing, FramingError> {
    let status = head.status();
    if request_method == Method::Connect && (200..300).contains(&status) {
        return Ok(Framing::None);
    }
    let framing = declared_framing(head, head.version(), declared_length(head)?)?;
    if status < 200 || status == 204 {
        return match framing {
            None | Some(Framing::Length(0)) => Ok(Framing::None),
            Some(_) => Err(FramingError::BodyForbidden),
        };
    }
    if request_method == Method::Head || status == 304 {
        return Ok(Framing::None);
    }
    Ok(framing.unwrap_or(Framing::UntilClose))
}

/// Returns the length that a response declares, if there is one. Responses to HEAD and with status
/// 304 are forwarded with this length, although they have no body.
///
/// Equal values in several fields or in a list are one length (RFC 9112 section 6.3).
///
/// # Errors
/// Returns [`FramingError::LengthInvalid`] or [`FramingError::LengthDuplicate`].
pub fn declared_length(response: &ResponseHead) -> Result<Option<u64>, FramingError> {
    match single_length(response) {
        Err(FramingError::LengthDuplicate) => repeated_length(response).map(Some),
        single => single,
    }
}

/// Returns the length, if all `Content-Length` fields and list members have the same value.
#[cold]
fn repeated_length(fields: &Fields) -> Result<u64, FramingError> {
    let values = fields.values(FieldName::ContentLength);
    let mut lengths = values.flat_map(split_members).map(plain_length);
    let first = lengths.next().unwrap_or(Err(FramingError::LengthInvalid))?;
    for length in lengths {
        if length? != first {
            return Err(FramingError::LengthDuplicate);
        }
    }
    Ok(first)
}

/// Returns the value of the only `Content-Length` field, if there is one.
fn single_length(fields: &Fields) -> Result<Option<u64>, FramingError> {
    let mut values = fields.values(FieldName::ContentLength);
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(FramingError::LengthDuplicate);
    }
    match plain_length(value) {
        Err(_) if split_tokens(value).count() > 1 => Err(FramingError::LengthDuplicate),
        length => length.map(Some),
    }
}

fn plain_length(value: &[u8]) -> Result<u64, FramingError> {
    let is_plain = value == b"0" || !value.starts_with(b"0");
    match parse_decimal(value) {
        Some(length) if is_plain && length <= BODY_BYTES_MAX => Ok(length),
        _ => Err(FramingError::LengthInvalid),
    }
}

/// Returns the framing that either `Transfer-Encoding` or the declared `length` gives; `None` if
/// neither is present.
fn declared_framing(
    fields: &Fields,
    version: Version,
    length: Option<u64>,
) -> Result<Option<Framing>, FramingError> {
    let mut codings = fields.values(FieldName::TransferEncoding);
    let Some(coding) = codings.next() else { return Ok(length.map(Framing::Length)) };
    if length.is_some() {
        return Err(FramingError::Both);
    }
    if version == Version::Http10 {
        return Err(FramingError::CodingInHttp10);
    }
    if codings.next().is_none() && coding.eq_ignore_ascii_case(b"chunked") {
        return Ok(Some(Framing::Chunked));
    }
    Err(coding_error(fields))
}

/// Returns the error for transfer codings other than a single `chunked`. RFC 9112 section 6.3:
/// without `chunked` at the end, the end of the body is uncertain (status 400). Section 6.1: with
/// unsupported codings before `chunked`, the response is 501.
fn coding_error(fields: &Fields) -> FramingError {
    let codings = || fields.values(FieldName::TransferEncoding).flat_map(split_members);
    let is_chunked = |member: &[u8]| member.eq_ignore_ascii_case(b"chunked");
    let is_supportable = codings().all(is_token)
        && codings().last().is_some_and(is_chunked)
        && codings().filter(|member| is_chunked(member)).count() == 1;
    if is_supportable { FramingError::CodingUnsupported } else { FramingError::CodingInvalid }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_heads::{request, response};

    fn frame_request(start: &str, fields: &str) -> Result<Framing, FramingError> {
        request_framing(&request(format!("{start}\r\nHost: a\r\n{fields}\r\n")).unwrap())
    }

    fn post(fields: &str) -> Result<Framing, FramingError> {
        frame_request("POST / HTTP/1.1", fields)
    }

    fn frame_response(status: u16, method: Method, fields: &str) -> Result<Framing, FramingError> {
        response_framing(&response(format!("HTTP/1.1 {status} x\r\n{fields}\r\n")).unwrap(), method)
    }

    #[test]
    fn lengths_are_one_plain_number() {
        let length = |value: &str| post(&format!("Content-Length:{value}\r\n"));
        assert_eq!(post(""), Ok(Framing::None));
        assert_eq!(length("0"), Ok(Framing::Length(0)));
        assert_eq!(length(" \t42 "), Ok(Framing::Length(42)));
        assert_eq!(length("9223372036854775807"), Ok(Framing::Length(i64::MAX as u64)));
        for value in [
            "",
            "+1",
            "-1",
            "0x1",
            "1Z",
            "1 2",
            "1.0",
            "1e3",
            "01",
            "00",
            "1;a",
            "\"1\"",
            "1,",
            ",1",
            "9223372036854775808",
            "18446744073709551616",
            "99999999999999999999999",
            "\u{b2}",
        ] {
            assert_eq!(length(value), Err(FramingError::LengthInvalid), "{value:?}");
        }
        for value in ["1,1", "1, 2", "1\r\nContent-Length: 1", "1\r\ncontent-length:2"] {
            assert_eq!(length(value), Err(FramingError::LengthDuplicate), "{value:?}");
        }
    }

    #[test]
    fn the_coding_is_chunked_once() {
        let coding = |value: &str| post(&format!("Transfer-Encoding:{value}\r\n"));
        assert_eq!(coding(" chunked"), Ok(Framing::Chunked));
        assert_eq!(coding("Chunked\t"), Ok(Framing::Chunked));
        for value in [
            "",
            "chunked,chunked",
            "chunked, chunked",
            ",chunked",
            "chunked,",
            "chunked, gzip",
            "identity",
            "gzip",
            "xchunked",
            "chunked;q=1",
            "\"chunked\"",
            "chunked\u{85}",
            "chunked chunked",
            "chunked\r\nTransfer-Encoding: chunked",
            "chunked\r\nTransfer-Encoding: identity",
            "chunked\r\nTransfer-Encoding:",
        ] {
            assert_eq!(coding(value), Err(FramingError::CodingInvalid), "{value:?}");
        }
        for value in ["gzip, chunked", "gzip\r\nTransfer-Encoding: chunked", "identity,CHUNKED"] {
            assert_eq!(coding(value), Err(FramingError::CodingUnsupported), "{value:?}");
        }
    }

    #[test]
    fn two_framings_and_old_versions_are_refused() {
        let both = "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n";
        assert_eq!(post(both), Err(FramingError::Both));
        assert_eq!(frame_response(200, Method::Get, both), Err(FramingError::Both));
        assert_eq!(frame_response(304, Method::Get, both), Err(FramingError::Both));
        let chunked = "Transfer-Encoding: chunked\r\n";
        let old = frame_request("POST / HTTP/1.0", chunked);
        assert_eq!(old, Err(FramingError::CodingInHttp10));
        let old = response(format!("HTTP/1.0 200 x\r\n{chunked}\r\n")).unwrap();
        assert_eq!(response_framing(&old, Method::Get), Err(FramingError::CodingInHttp10));
    }

    #[test]
    fn connect_requests_and_their_responses_have_no_body() {
        let connect = |fields| frame_request("CONNECT a:1 HTTP/1.1", fields);
        assert_eq!(connect(""), Ok(Framing::None));
        assert_eq!(connect("Content-Length: 0\r\n"), Ok(Framing::Length(0)));
        assert_eq!(connect("Content-Length: 1\r\n"), Err(FramingError::BodyForbidden));
        assert_eq!(connect("Transfer-Encoding: chunked\r\n"), Err(FramingError::BodyForbidden));
        let chunked = "Transfer-Encoding: chunked\r\n";
        assert_eq!(frame_response(200, Method::Connect, chunked), Ok(Framing::None));
        assert_eq!(frame_response(403, Method::Connect, chunked), Ok(Framing::Chunked));
    }

    #[test]
    fn responses_without_body_are_determined_by_status_and_method() {
        use Method::{Get, Head};
        let (long, empty) = ("Content-Length: 5\r\n", "Content-Length: 0\r\n");
        let chunked = "Transfer-Encoding: chunked\r\n";
        assert_eq!(frame_response(200, Get, long), Ok(Framing::Length(5)));
        assert_eq!(frame_response(200, Get, chunked), Ok(Framing::Chunked));
        assert_eq!(frame_response(200, Get, ""), Ok(Framing::UntilClose));
        for fields in ["", long, chunked] {
            assert_eq!(frame_response(200, Head, fields), Ok(Framing::None));
            assert_eq!(frame_response(304, Get, fields), Ok(Framing::None));
        }
        for status in [100, 101, 103, 204] {
            assert_eq!(frame_response(status, Get, ""), Ok(Framing::None));
            assert_eq!(frame_response(status, Get, empty), Ok(Framing::None));
            assert_eq!(frame_response(status, Get, long), Err(FramingError::BodyForbidden));
            assert_eq!(frame_response(status, Head, chunked), Err(FramingError::BodyForbidden));
        }
        let differ = [long, empty].concat();
        assert_eq!(frame_response(200, Head, &differ), Err(FramingError::LengthDuplicate));
        assert_eq!(
            frame_response(200, Get, "Transfer-Encoding: x\r\n"),
            Err(FramingError::CodingInvalid)
        );
    }

    #[test]
    fn equal_lengths_of_a_response_count_as_one() {
        let of = |values: &[&str]| {
            let line = |value| format!("Content-Length: {value}\r\n");
            let fields: String = values.iter().map(line).collect();
            let framing = frame_response(200, Method::Get, &fields);
            assert_eq!(frame_response(304, Method::Get, &fields).is_ok(), framing.is_ok());
            framing
        };
        for same in [&["5", "5"][..], &["5, 5"], &["5,5", "5 \t,\t5"], &["5", "5", "5,5"]] {
            assert_eq!(of(same), Ok(Framing::Length(5)), "{same:?}");
        }
        assert_eq!(of(&["0, 0"]), Ok(Framing::Length(0)));
        for differ in [&["5", "6"][..], &["5, 6"], &["5", "5, 6"], &["5, 50"]] {
            assert_eq!(of(differ), Err(FramingError::LengthDuplicate), "{differ:?}");
        }
        for odd in [&["5", ""][..], &["5,"], &[",5", "5"], &["5, 05"], &["5 5"], &["5", "+5"]] {
            assert!(of(odd).is_err(), "{odd:?}");
        }
        let both = "Content-Length: 5, 5\r\nTransfer-Encoding: chunked\r\n";
        assert_eq!(frame_response(200, Method::Get, both), Err(FramingError::Both));
        let head = response("HTTP/1.1 304 x\r\nContent-Length: 7, 7\r\n\r\n").unwrap();
        assert_eq!(declared_length(&head), Ok(Some(7)));
    }

    #[test]
    fn a_response_without_body_may_declare_a_length() {
        let head = response("HTTP/1.1 304 x\r\nContent-Length: 7\r\n\r\n").unwrap();
        assert_eq!(declared_length(&head), Ok(Some(7)));
        assert_eq!(response_framing(&head, Method::Get), Ok(Framing::None));
    }
}
