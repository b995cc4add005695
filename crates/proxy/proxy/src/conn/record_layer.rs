//! The FastCGI layer of a wire: the records of a response become an HTTP/1.1 response in the
//! receive buffer, so that exchanges, transfers and fills see no difference.
//!
//! ```text
//!  STDOUT: CGI header ──> the header of the response, which is read first
//!  STDOUT record      ──> a chunk, or bytes of a body with a Content-Length
//!  END_REQUEST        ──> the last chunk, or the last byte of the body
//! ```
//!
//! The eight bytes of a record header become the line end of the chunk before and the size of the
//! next one, `\r\nXXXX\r\n`, so most bytes stay where they were received. The end of a response is
//! passed on only with END_REQUEST. Then the connection can serve the next request.

use std::io::Write;
use std::ops::Range;

use millrace_fastcgi::{HeaderForm, ResponseDecoder, ResponsePart, convert_header, header_length};

/// The state of a FastCGI connection.
#[derive(Debug, Default)]
pub(crate) struct RecordLayer {
    pub(crate) decoder: ResponseDecoder,
    /// The program's header, as far as it has arrived.
    collected: Vec<u8>,
    scanned: usize,
    /// The most bytes of the program's header.
    header_max: usize,
    /// Whether the request was HEAD.
    is_head: bool,
    /// The target of the request.
    pub(crate) target: Vec<u8>,
    /// The header in the form of HTTP/1.1, until it is read.
    pub(crate) header: Vec<u8>,
    /// Whether the header is a local redirect, which no client gets.
    pub(crate) is_local_redirect: bool,
    /// Whether the program has responded, with what is no response.
    pub(crate) is_malformed: bool,
    body: RecordBody,
    /// Translated bytes that did not fit before those in the buffer.
    pub(crate) prefix: Vec<u8>,
}

/// The part of a response that arrives next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum RecordBody {
    /// No request was sent, or the response was read to its end.
    #[default]
    Idle,
    Header,
    /// A body in chunks.
    Chunked {
        /// Whether a chunk was begun, whose line end comes with the next chunk.
        has_begun: bool,
        /// Whether bytes of the present record follow.
        is_in_chunk: bool,
    },
    /// A body of which this many bytes follow. The last one is held until END_REQUEST.
    Length {
        left: u64,
        held: Option<u8>,
    },
    /// A body that is no part of the response: that of a response to HEAD, of a 204 or 304, or
    /// behind a length of 0.
    Dropped,
}

/// The result of translating received bytes.
#[derive(Debug)]
pub(crate) struct Translated {
    /// The translated bytes.
    pub(crate) range: Range<usize>,
    /// Whether the program ended its response before the announced length.
    pub(crate) is_cut: bool,
}

impl RecordLayer {
    /// Prepares for the response to a request that is about to be sent.
    pub(crate) fn begin(&mut self, is_head: bool, header_max: usize, target: &[u8]) {
        let Self { collected, header, target: last_target, .. } = std::mem::take(self);
        let [collected, header, mut own_target] = [collected, header, last_target].map(emptied);
        own_target.extend_from_slice(target);
        let (body, target) = (RecordBody::Header, own_target);
        *self = Self { collected, header, is_head, header_max, target, body, ..Self::default() };
    }

    /// Returns whether the whole response was received.
    pub(crate) fn is_idle(&self) -> bool {
        self.body == RecordBody::Idle && self.header.is_empty()
    }

    /// Returns whether the bytes in the socket are payload of one record, which may be moved
    /// without this layer.
    pub(crate) fn may_bypass(&self) -> bool {
        matches!(self.body, RecordBody::Chunked { is_in_chunk: true, .. })
    }

    /// Notes that payload was translated, or moved without this layer.
    pub(crate) fn skip(&mut self, count: usize) {
        self.decoder.skip(count as u64);
        if let RecordBody::Chunked { is_in_chunk, .. } = &mut self.body {
            *is_in_chunk &= self.decoder.payload_left() > 0;
        }
    }

    /// Translates received bytes in place. Returns `None` if they are no response.
    pub(crate) fn translate(&mut self, input: &mut [u8]) -> Option<Translated> {
        let translated = self.translate_records(input);
        self.is_malformed |= translated.is_none();
        translated
    }

    fn translate_records(&mut self, input: &mut [u8]) -> Option<Translated> {
        let (mut at, mut out) = (0, 0..0);
        loop {
            match self.decoder.next_part(&input[at..]).ok()? {
                ResponsePart::Framing(count) => at += count,
                ResponsePart::Payload(count) => {
                    at += self.translate_payload(input, at..at + count, &mut out)?;
                }
                ResponsePart::Incomplete => return Some(Translated { range: out, is_cut: false }),
                // Bytes after the end belong to no request.
                ResponsePart::Ended if at < input.len() => return None,
                ResponsePart::Ended => {
                    let is_cut = self.finish(input, at, &mut out);
                    return Some(Translated { range: out, is_cut });
                }
            }
        }
    }

    /// Translates this payload, or the beginning of it. Returns how many bytes it has read.
    fn translate_payload(
        &mut self,
        input: &mut [u8],
        payload: Range<usize>,
        out: &mut Range<usize>,
    ) -> Option<usize> {
        let (at, mut count) = (payload.start, payload.len());
        match &mut self.body {
            RecordBody::Idle => return None,
            RecordBody::Header => {
                let before = self.collected.len();
                self.collected.extend_from_slice(&input[payload]);
                let length = header_length(&self.collected, &mut self.scanned);
                if length.unwrap_or(self.collected.len()) > self.header_max {
                    return None;
                }
                if let Some(length) = length {
                    count = length - before;
                    self.collected.truncate(length);
                    self.begin_body()?;
                }
            }
            RecordBody::Chunked { has_begun, is_in_chunk } => {
                if !*is_in_chunk {
                    let mut line = *b"\r\n0000\r\n";
                    let digits = write!(&mut line[2..6], "{:04x}", self.decoder.payload_left());
                    digits.expect("a record has at most 65,535 bytes");
                    let line = if *has_begun { &line[..] } else { &line[2..] };
                    emit(input, at, out, line, &mut self.prefix);
                    (*has_begun, *is_in_chunk) = (true, true);
                }
                keep(input, at, count, out);
            }
            RecordBody::Length { left, held } => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(count);
                *left -= taken as u64;
                keep(input, at, taken, out);
                if *left == 0 && taken > 0 {
                    *held = Some(input[out.end - 1]);
                    out.end -= 1;
                }
            }
            RecordBody::Dropped => {}
        }
        self.skip(count);
        Some(count)
    }

    /// Converts the program's header and chooses the form of the body. Returns `None` if the header
    /// is malformed.
    fn begin_body(&mut self) -> Option<()> {
        self.header.clear();
        let length = match convert_header(&self.collected, &mut self.header) {
            Ok(HeaderForm::Document { content_length }) => content_length,
            // The rest of the output is dropped.
            Ok(HeaderForm::LocalRedirect) => {
                self.is_local_redirect = true;
                Some(0)
            }
            Err(_) => return None,
        };
        self.collected = emptied(std::mem::take(&mut self.collected));
        let has_no_body = self.is_head || matches!(&self.header[9..12], b"204" | b"304");
        self.body = match length {
            _ if has_no_body => RecordBody::Dropped,
            Some(0) => RecordBody::Dropped,
            Some(left) => RecordBody::Length { left, held: None },
            None => {
                self.header.truncate(self.header.len() - 2);
                self.header.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                RecordBody::Chunked { has_begun: false, is_in_chunk: false }
            }
        };
        Some(())
    }

    /// Translates END_REQUEST, which ends at `at`. Returns whether the response is cut.
    fn finish(&mut self, input: &mut [u8], at: usize, out: &mut Range<usize>) -> bool {
        match std::mem::take(&mut self.body) {
            RecordBody::Idle | RecordBody::Dropped => false,
            RecordBody::Header => {
                self.is_malformed = true;
                true
            }
            RecordBody::Chunked { has_begun, .. } => {
                let end = if has_begun { "\r\n0\r\n\r\n" } else { "0\r\n\r\n" };
                emit(input, at, out, end.as_bytes(), &mut self.prefix);
                false
            }
            RecordBody::Length { left, held } => {
                if let Some(byte) = held {
                    emit(input, at, out, &[byte], &mut self.prefix);
                }
                left > 0
            }
        }
    }

    /// Returns whether the header can be read: it has arrived, and a response without a body has
    /// ended.
    pub(crate) fn has_header(&self) -> bool {
        !self.header.is_empty() && self.body != RecordBody::Dropped
    }
}

/// Adds bytes of framing before those at `at`, in the place of the record header that was read.
/// `prefix` takes them if that header arrived in another buffer.
fn emit(input: &mut [u8], at: usize, out: &mut Range<usize>, bytes: &[u8], prefix: &mut Vec<u8>) {
    if (*out).is_empty() && at < bytes.len() {
        prefix.extend_from_slice(bytes);
        *out = at..at;
        return;
    }
    if (*out).is_empty() {
        *out = at - bytes.len()..at - bytes.len();
    }
    assert!(at - out.end >= bytes.len(), "a record header is longer than the framing");
    input[out.end..out.end + bytes.len()].copy_from_slice(bytes);
    out.end += bytes.len();
}

/// Adds `count` bytes of payload, which are at `at`.
fn keep(input: &mut [u8], at: usize, count: usize, out: &mut Range<usize>) {
    if (*out).is_empty() {
        *out = at..at;
    }
    if out.end != at {
        input.copy_within(at..at + count, out.end);
    }
    out.end += count;
}

/// Returns an empty buffer, with the memory of this one unless it is long.
pub(crate) fn emptied(mut buffer: Vec<u8>) -> Vec<u8> {
    if buffer.capacity() > KEPT_BYTES_MAX {
        return Vec::new();
    }
    buffer.clear();
    buffer
}

/// The most bytes of a buffer whose memory an idle connection keeps.
const KEPT_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    const STDOUT: u8 = 6;
    const END_REQUEST: u8 = 3;

    fn record(record_type: u8, content: &[u8], padding: u8) -> Vec<u8> {
        let [length1, length0] = (content.len() as u16).to_be_bytes();
        let mut bytes = vec![1, record_type, 0, 1, length1, length0, padding, 0];
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len() + usize::from(padding), b'#');
        bytes
    }

    /// Returns the records of a response that writes `output` in these pieces.
    fn records(output: &[&str]) -> Vec<u8> {
        let paddings = [0, 3, 0, 7, 255].into_iter().cycle();
        let mut bytes = Vec::new();
        for (piece, padding) in output.iter().zip(paddings) {
            bytes.extend(record(STDOUT, piece.as_bytes(), padding));
        }
        bytes.extend(record(STDOUT, b"", 0));
        bytes.extend(record(END_REQUEST, &[0; 8], 0));
        bytes
    }

    /// Translates pieces of records. Returns the response, and whether it is cut.
    fn translate(pieces: &[&[u8]], is_head: bool) -> Option<(String, bool)> {
        let mut layer = RecordLayer::default();
        layer.begin(is_head, 1000, b"");
        let (mut body, mut was_cut) = (Vec::new(), false);
        for piece in pieces {
            let mut input = piece.to_vec();
            let Translated { range, is_cut } = layer.translate(&mut input)?;
            body.append(&mut layer.prefix);
            body.extend_from_slice(&input[range]);
            was_cut |= is_cut;
        }
        let header =
            if layer.has_header() { std::mem::take(&mut layer.header) } else { Vec::new() };
        Some((String::from_utf8([header, body].concat()).unwrap(), was_cut))
    }

    /// Translates the whole response, in every pair of pieces and byte by byte.
    fn in_all_pieces(bytes: &[u8], is_head: bool) -> Option<(String, bool)> {
        let whole = translate(&[bytes], is_head);
        for at in 0..bytes.len() {
            let (first, second) = bytes.split_at(at);
            assert_eq!(translate(&[first, second], is_head), whole, "divided at {at}");
        }
        let single: Vec<_> = bytes.chunks(1).collect();
        assert_eq!(translate(&single, is_head), whole, "byte by byte");
        whole
    }

    #[test]
    fn records_become_chunks() {
        let output = ["Content-Ty", "pe: a/b\n\nhel", "lo", " ", "world, and more"];
        let expected = "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nTransfer-Encoding: chunked\r\n\r\n\
                        0003\r\nhel\r\n0002\r\nlo\r\n0001\r\n \r\n000f\r\nworld, and more\r\n\
                        0\r\n\r\n";
        assert_eq!(in_all_pieces(&records(&output), false), Some((expected.to_owned(), false)));
        let empty = "HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        let found = in_all_pieces(&records(&["Status: 404 No\r\n\r\n"]), false);
        assert_eq!(found, Some((empty.to_owned(), false)));
    }

    #[test]
    fn a_body_of_known_length_is_whole_only_with_the_end_of_the_request() {
        let output = ["Content-Length: 5\n\nhel", "lo"];
        let whole = records(&output);
        let expected = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(in_all_pieces(&whole, false), Some((expected.to_owned(), false)));
        let (without_end, _) = whole.split_at(whole.len() - 1);
        let (text, _) = translate(&[without_end], false).unwrap();
        assert_eq!(text, &expected[..expected.len() - 1]);
        let (text, _) = in_all_pieces(&records(&["Content-Length: 2\n\nlong"]), false).unwrap();
        assert!(text.ends_with("\r\n\r\nlo"), "{text}");
        let (_, is_cut) = in_all_pieces(&records(&["Content-Length: 9\n\nhello"]), false).unwrap();
        assert!(is_cut);
    }

    #[test]
    fn a_response_without_a_body_is_read_to_its_end() {
        for (header, is_head) in [("A: b\n\n", true), ("Status: 304\n\n", false)] {
            let whole = records(&[header, "dropped"]);
            let (text, is_cut) = in_all_pieces(&whole, is_head).unwrap();
            assert!(text.ends_with("\r\n\r\n") && !is_cut, "{text}");
            assert!(!text.contains("dropped") && !text.contains("chunked"), "{text}");
            let (without_end, _) = whole.split_at(whole.len() - 1);
            assert_eq!(translate(&[without_end], is_head), Some((String::new(), false)));
        }
    }

    #[test]
    fn a_local_redirect_is_read_to_its_end() {
        let whole = records(&["Location: /a?b\n", "Content-Type: a/b\n\ndropped"]);
        let expected = "HTTP/1.1 302 Found\r\nLocation: /a?b\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(in_all_pieces(&whole, false), Some((expected.to_owned(), false)));
        let (without_end, _) = whole.split_at(whole.len() - 1);
        assert_eq!(translate(&[without_end], false), Some((String::new(), false)));
        let mut layer = RecordLayer::default();
        for (output, is_redirect) in [("Location: /a\n\n", true), ("Location: //a\n\n", false)] {
            layer.begin(false, 1000, b"");
            layer.translate(&mut records(&[output])).unwrap();
            assert_eq!(layer.is_local_redirect, is_redirect, "{output}");
        }
    }

    #[test]
    fn a_layer_is_idle_between_responses() {
        for output in ["A: b\n\nbody", "Content-Length: 1\n\na", "Status: 304\n\n"] {
            let (whole, mut layer) = (records(&[output]), RecordLayer::default());
            assert!(layer.is_idle());
            layer.begin(false, 1000, b"");
            for byte in &whole {
                assert!(!layer.is_idle());
                layer.translate(&mut [*byte]).unwrap();
            }
            assert!(!layer.is_idle(), "the header is unread");
            layer.header.clear();
            assert!(layer.is_idle());
        }
    }

    #[test]
    fn malformed_records_and_headers_are_refused() {
        let after_end = [records(&["A: b\n\n"]), record(STDOUT, b"x", 0)].concat();
        let long = format!("A: {}\n\n", "b".repeat(1000));
        for bytes in [&after_end[..], &records(&[&long]), &records(&["no field\n\n"]), b"HTTP/1.1"]
        {
            assert_eq!(translate(&[bytes], false), None, "{}", bytes.escape_ascii());
        }
        let (_, is_cut) = translate(&[&records(&["A: b\n"])], false).unwrap();
        assert!(is_cut, "the header does not end");
    }
}
