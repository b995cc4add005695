//! Writing headers. The proxy writes every request and response through one [`HeaderWriter`], so
//! another version of HTTP needs a second implementation but no second code path.

use crate::format::{NUMBER_BYTES, format_number};
use crate::{FieldRun, Framing, Version};

#[cfg(any(test, feature = "corpus"))]
mod field_list;

#[cfg(any(test, feature = "corpus"))]
pub use field_list::FieldList;

/// A writer for one header: its start line, its fields in order, and its end.
///
/// Callers do not depend on the version of HTTP. Writers of other versions ignore the methods and
/// arguments that only HTTP/1 needs. The caller passes field names in the case that HTTP/1 sends,
/// and values without CR, LF and NUL. A writer need not check either.
pub trait HeaderWriter {
    /// Begins a request. `authority` appends the authority of its target, in the form of `Host`.
    fn request(&mut self, method: &[u8], path: &[u8], authority: impl FnOnce(&mut Vec<u8>));

    /// Begins a response. `status` is in `100..=999`. `reason` is the reason phrase, which only
    /// HTTP/1 sends.
    fn response(&mut self, status: u16, reason: &[u8]);

    /// Begins a response with a stored header: a status line and field lines in the form that
    /// [`Http1Header`] writes. `lines_at` is the offset of the field lines in `header`.
    #[inline]
    fn stored_response(&mut self, status: u16, header: &[u8], lines_at: usize) {
        self.response(status, b"");
        self.field_run(FieldRun::Lines(&header[lines_at..]));
    }

    /// Writes a field. `name` is a token.
    fn field(&mut self, name: &[u8], value: &[u8]);

    /// Writes a field whose value is a number.
    fn number(&mut self, name: &[u8], number: u64);

    /// Writes a field whose value `write` appends, and returns the result of `write`.
    ///
    /// All values of a header are appended to the same buffer, which only grows until the header
    /// ends. A value may therefore copy from an earlier value by its range.
    fn field_with<T>(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>) -> T) -> T;

    /// Writes fields that were received or stored.
    fn field_run(&mut self, run: FieldRun<'_>);

    /// Writes the framing of the body. If `chunked` is true, versions with a chunked coding send
    /// the body in chunks; other versions ignore it.
    fn framing(&mut self, framing: Framing, chunked: bool);

    /// Writes whether the connection persists after the message. `peer` is the version of the
    /// recipient.
    fn persistence(&mut self, peer: Version, persistent: bool);

    /// Writes the protocols that the message offers, requires or switches to (RFC 9110 section
    /// 7.8).
    fn upgrade<'p>(&mut self, protocols: impl Iterator<Item = &'p [u8]>);

    /// Writes that the sender of a request accepts trailers (RFC 9110 section 10.1.4).
    fn accepts_trailers(&mut self);

    /// Ends the header.
    fn end(&mut self);
}

/// A writer of an HTTP/1.1 header (RFC 9112), which it appends to a buffer.
#[derive(Debug)]
pub struct Http1Header<'a>(&'a mut Vec<u8>);

impl<'a> Http1Header<'a> {
    /// Creates a writer that appends to `out`.
    #[inline]
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self(out)
    }

    /// Writes the request line of a received request unchanged, for a header that becomes the body
    /// of another message (TRACE).
    pub fn request_line(&mut self, method: &[u8], target: &[u8], version: Version) {
        for part in [method, b" ", target, b" ", version.as_str().as_bytes(), b"\r\n"] {
            self.0.extend_from_slice(part);
        }
    }

    /// Returns a field as a line, which [`HeaderWriter::field_run`] writes in one piece.
    pub fn field_line(name: &[u8], value: &[u8]) -> Box<[u8]> {
        let mut line = Vec::new();
        Http1Header::new(&mut line).field(name, value);
        line.into()
    }
}

impl HeaderWriter for Http1Header<'_> {
    #[inline]
    fn request(&mut self, method: &[u8], path: &[u8], authority: impl FnOnce(&mut Vec<u8>)) {
        self.0.extend_from_slice(method);
        self.0.push(b' ');
        self.0.extend_from_slice(path);
        self.0.extend_from_slice(b" HTTP/1.1\r\nHost: ");
        authority(self.0);
        self.0.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn response(&mut self, status: u16, reason: &[u8]) {
        debug_assert!((100..1000).contains(&status), "a status has three digits");
        let mut start = *b"HTTP/1.1 000 ";
        start[9] += (status / 100) as u8;
        start[10] += (status / 10 % 10) as u8;
        start[11] += (status % 10) as u8;
        self.0.extend_from_slice(&start);
        self.0.extend_from_slice(reason);
        self.0.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn stored_response(&mut self, _status: u16, header: &[u8], _lines_at: usize) {
        self.0.extend_from_slice(header);
    }

    #[inline]
    fn field(&mut self, name: &[u8], value: &[u8]) {
        self.0.extend_from_slice(name);
        append_value(self.0, value);
    }

    #[inline]
    fn number(&mut self, name: &[u8], number: u64) {
        self.0.extend_from_slice(name);
        append_number(self.0, number);
    }

    #[inline]
    fn field_with<T>(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        self.0.extend_from_slice(name);
        self.0.extend_from_slice(b": ");
        let result = write(self.0);
        self.0.extend_from_slice(b"\r\n");
        result
    }

    #[inline]
    fn field_run(&mut self, run: FieldRun<'_>) {
        match run {
            FieldRun::Lines(lines) => self.0.extend_from_slice(lines),
            FieldRun::Field { name, value } => self.field(name, value),
        }
    }

    #[inline]
    fn framing(&mut self, framing: Framing, chunked: bool) {
        if chunked {
            self.0.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        } else if let Framing::Length(length) = framing {
            self.number(b"Content-Length", length);
        }
    }

    #[inline]
    fn persistence(&mut self, peer: Version, persistent: bool) {
        match (peer, persistent) {
            (_, false) => self.0.extend_from_slice(b"Connection: close\r\n"),
            (Version::Http10, true) => self.0.extend_from_slice(b"Connection: keep-alive\r\n"),
            (Version::Http11, true) => {}
        }
    }

    fn upgrade<'p>(&mut self, protocols: impl Iterator<Item = &'p [u8]>) {
        self.0.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: ");
        for (index, protocol) in protocols.enumerate() {
            self.0.extend_from_slice(if index > 0 { b", " } else { b"" });
            self.0.extend_from_slice(protocol);
        }
        self.0.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn accepts_trailers(&mut self) {
        self.0.extend_from_slice(b"TE: trailers\r\nConnection: TE\r\n");
    }

    #[inline]
    fn end(&mut self) {
        self.0.extend_from_slice(b"\r\n");
    }
}

/// Appends the part of a field line after the name. The caller appends the name, because most
/// callers pass one whose length is a compile-time constant.
fn append_value(out: &mut Vec<u8>, value: &[u8]) {
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends the part of a field line after the name, with one append: each append costs a capacity
/// check and a copy.
fn append_number(out: &mut Vec<u8>, number: u64) {
    let mut text = [0; 2 + NUMBER_BYTES + 2];
    text[2 + NUMBER_BYTES..].copy_from_slice(b"\r\n");
    let start = format_number(&mut text[..2 + NUMBER_BYTES], number) - 2;
    text[start..start + 2].copy_from_slice(b": ");
    out.extend_from_slice(&text[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_heads::request;
    use crate::{Forwarding, NameSet, OriginRequest, Scheme, destination};

    fn text(write: impl FnOnce(&mut Http1Header<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Http1Header::new(&mut out));
        String::from_utf8(out).unwrap()
    }

    fn list(write: impl FnOnce(&mut FieldList)) -> Vec<String> {
        let mut list = FieldList::default();
        write(&mut list);
        assert!(list.has_ended());
        list.fields().iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    /// Writes a response with every kind of field.
    fn respond(out: &mut impl HeaderWriter) {
        out.response(206, b"Partial Content");
        out.field(b"ETag", b"\"a\"");
        out.number(b"Age", 0);
        let place = out.field_with(b"X-First", |value| {
            let start = value.len();
            value.extend_from_slice(b"same");
            start..value.len()
        });
        out.field_with(b"X-Second", |value| value.extend_from_within(place));
        out.field_run(FieldRun::Lines(b"A: 1\r\nB: \r\n"));
        out.field_run(FieldRun::Field { name: b"C", value: b"3" });
        out.framing(Framing::Length(u64::MAX), false);
        out.persistence(Version::Http11, false);
        out.end();
    }

    /// Writes the request that a gateway forwards.
    fn write_request(out: &mut impl HeaderWriter) {
        let head = "GET /a?b HTTP/1.1\r\nHost: Shop\r\nAccept:*/*\r\nTE: trailers\r\nCookie: c\r\n";
        let head = request(format!("{head}Connection: TE\r\n\r\n")).unwrap();
        let client = Some("2001:db8::1".parse().unwrap());
        let gateway = Forwarding::Gateway { client, is_trusted: false, always_forwarded: &[] };
        let sent = OriginRequest::new(&head, Scheme::Http, gateway);
        let to = destination(&head).unwrap();
        let authority = to.authority.unwrap();
        out.request(head.method_bytes(), to.path_and_query, |value| {
            sent.write_host(value, &authority);
        });
        sent.lines(NameSet::default()).for_each(|run| out.field_run(run));
        sent.write_forwarding(out, Some(&authority));
        out.framing(Framing::Chunked, true);
        out.accepts_trailers();
        out.end();
    }

    #[test]
    fn http_1_has_a_start_line_and_a_line_for_each_field() {
        let expected = "HTTP/1.1 206 Partial Content\r\nETag: \"a\"\r\nAge: 0\r\n\
                        X-First: same\r\nX-Second: same\r\nA: 1\r\nB: \r\nC: 3\r\n\
                        Content-Length: 18446744073709551615\r\nConnection: close\r\n\r\n";
        assert_eq!(text(|out| respond(out)), expected);
        let expected = "GET /a?b HTTP/1.1\r\nHost: shop\r\nAccept: */*\r\nCookie: c\r\n\
                        X-Forwarded-For: 2001:db8::1\r\n\
                        Forwarded: for=\"[2001:db8::1]\";proto=http;host=\"shop\"\r\n\
                        X-Forwarded-Proto: http\r\nX-Forwarded-Host: shop\r\n\
                        Transfer-Encoding: chunked\r\nTE: trailers\r\nConnection: TE\r\n\r\n";
        assert_eq!(text(|out| write_request(out)), expected);
    }

    #[test]
    fn another_version_has_pseudo_fields_and_no_fields_of_the_connection() {
        let expected = [
            ":status=206",
            "etag=\"a\"",
            "age=0",
            "x-first=same",
            "x-second=same",
            "a=1",
            "b=",
            "c=3",
            "content-length=18446744073709551615",
        ];
        assert_eq!(list(respond), expected);
        let expected = [
            ":method=GET",
            ":path=/a?b",
            ":authority=shop",
            "accept=*/*",
            "cookie=c",
            "x-forwarded-for=2001:db8::1",
            "forwarded=for=\"[2001:db8::1]\";proto=http;host=\"shop\"",
            "x-forwarded-proto=http",
            "x-forwarded-host=shop",
            "te=trailers",
        ];
        assert_eq!(list(write_request), expected);
    }

    /// Writes everything that describes an HTTP/1 connection.
    fn describe_connection(out: &mut impl HeaderWriter) {
        out.upgrade([&b"a"[..], b"b/2"].into_iter());
        out.persistence(Version::Http10, true);
        out.persistence(Version::Http11, true);
        out.persistence(Version::Http10, false);
        out.framing(Framing::UntilClose, true);
        out.framing(Framing::UntilClose, false);
        out.framing(Framing::None, false);
        out.end();
    }

    #[test]
    fn fields_of_http_1_connections_are_absent_in_another_version() {
        let expected = "Connection: Upgrade\r\nUpgrade: a, b/2\r\nConnection: keep-alive\r\n\
                        Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(text(|out| describe_connection(out)), expected);
        assert!(list(describe_connection).is_empty());
    }

    #[test]
    fn a_stored_header_is_sent_in_one_piece() {
        let stored = b"HTTP/1.1 200 Fine\r\nA: 1\r\nB: 2\r\n";
        fn write(out: &mut impl HeaderWriter, stored: &[u8]) {
            out.stored_response(200, stored, 19);
            out.end();
        }
        let expected = "HTTP/1.1 200 Fine\r\nA: 1\r\nB: 2\r\n\r\n";
        assert_eq!(text(|out| write(out, stored)), expected);
        assert_eq!(list(|out| write(out, stored)), [":status=200", "a=1", "b=2"]);
    }
}
