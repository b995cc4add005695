//! The chunked transfer coding (RFC 9112 section 7.1): [`ChunkedDecoder`] turns a chunked body into
//! its payload.
//!
//! Some bodies are valid by the grammar but are refused, because implementations read them
//! differently, or because they exceed a limit of this crate:
//!
//! * the optional ("bad") white space around extensions
//! * more than 16 digits in a chunk size, leading zeros included
//! * chunk sizes of 2^63 and more
//! * extensions of more than 256 bytes in a chunk or 16 KiB in a body
//! * more than 64 trailer lines, or more than 8 KiB of them
//!
//! Extensions are checked and dropped (section 7.1.1). A caller that forwards the payload in chunks
//! writes each chunk size again with [`write_chunk_size`], so the next hop receives plain sizes,
//! however the sender wrote them.

use std::ops::Range;

use crate::byte_class::{TOKEN, VALUE};
use crate::error::ChunkError;
use crate::limits::{
    BODY_BYTES_MAX, CHUNK_SIZE_DIGITS_MAX, EXTENSION_BYTES_ALL_MAX, EXTENSION_BYTES_MAX,
};
use crate::trailer::Trailers;

/// A decoder for one chunked body that arrives in pieces.
///
/// `ChunkedDecoder::default()` expects the first byte of a body.
///
/// ```
/// use millrace_http1::ChunkedDecoder;
///
/// let mut input = *b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nGET";
/// let mut decoder = ChunkedDecoder::default();
/// let progress = decoder.decode(&mut input).unwrap();
/// assert_eq!(&input[progress.payload], b"abcde");
/// assert!(progress.ended);
/// assert_eq!(&input[progress.consumed..], b"GET");
/// ```
#[derive(Debug, Default)]
pub struct ChunkedDecoder {
    /// Bytes of the current chunk's data that have not arrived. While the size line is read, the
    /// value of the digits read so far.
    remaining: u64,
    /// Bytes of the extensions of all chunks so far, at most [`EXTENSION_BYTES_ALL_MAX`].
    extension_bytes_all: u32,
    /// Bytes of the extensions of the current chunk, at most [`EXTENSION_BYTES_MAX`].
    extension_bytes: u16,
    /// Digits of the current chunk size read so far, at most [`CHUNK_SIZE_DIGITS_MAX`].
    digits: u8,
    state: DecoderState,
    /// The error that ended decoding. Every later call returns it.
    failed: Option<ChunkError>,
    /// Allocated when the first trailer line arrives.
    trailers: Option<Box<Trailers>>,
}

const _: () = assert!(size_of::<ChunkedDecoder>() <= 64);

/// The part of the body that the next byte belongs to.
///
/// ```text
///   Size -> SizeDigits -+-----------------> SizeLf -+-> Data -> DataCr -> DataLf -> Size
///                       |                     ^     |
///                       +-> extensions -------+     +-> Trailer -+-> LastLf -> Ended
///                            ^      |                   ^        |
///                            +------+                   +- TrailerLine
///
///   extension: ExtensionStart -> ExtensionName [-> ExtensionValueStart -> value]
///   value:     ExtensionValue, or ExtensionQuoted (<-> ExtensionPair) -> ExtensionQuotedEnd
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum DecoderState {
    /// The first digit of a chunk size.
    #[default]
    Size,
    SizeDigits,
    /// The first byte of an extension's name.
    ExtensionStart,
    ExtensionName,
    /// The first byte of an extension's value.
    ExtensionValueStart,
    ExtensionValue,
    ExtensionQuoted,
    /// After a backslash in a quoted value.
    ExtensionPair,
    /// After the quote that closes a value.
    ExtensionQuotedEnd,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// The first byte of a trailer line, or of the empty line that ends the body.
    Trailer,
    TrailerLine,
    LastLf,
    Ended,
}

/// The result of one call of [`ChunkedDecoder::decode`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DecodeProgress {
    /// Bytes of the input that were read: all of them, unless the body ended or is malformed.
    pub consumed: usize,
    /// The range of the input that holds the decoded payload, in one piece. It may be empty.
    pub payload: Range<usize>,
    /// Whether the body ended, trailers included. The bytes after `consumed` belong to the next
    /// message.
    pub ended: bool,
}

impl ChunkedDecoder {
    /// Decodes the next bytes of the body. `input` begins right after the bytes that the last call
    /// consumed.
    ///
    /// The payload of several chunks is moved together in place, so `input[..consumed]` no longer
    /// holds the received bytes. Nothing after the end of the body is read or changed.
    ///
    /// # Errors
    /// Returns a [`ChunkError`] if the body is malformed. Payload before the malformed byte is
    /// returned first; the next call and all later ones return the error.
    /// [`ChunkedDecoder::is_malformed`] reports early that an error follows.
    pub fn decode(&mut self, input: &mut [u8]) -> Result<DecodeProgress, ChunkError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let mut at = 0;
        let mut payload = 0..0;
        while at < input.len() && self.state != DecoderState::Ended {
            match self.state {
                DecoderState::Data => {
                    let left = input.len() - at;
                    let len = usize::try_from(self.remaining).map_or(left, |data| data.min(left));
                    if payload.is_empty() {
                        payload = at..at;
                    } else {
                        input.copy_within(at..at + len, payload.end);
                    }
                    payload.end += len;
                    at += len;
                    self.remaining -= len as u64;
                    if self.remaining == 0 {
                        self.state = DecoderState::DataCr;
                    }
                }
                DecoderState::TrailerLine => {
                    let trailers = self.trailers.get_or_insert_default();
                    let (used, is_line_whole) = match trailers.push(&input[at..]) {
                        Ok(read) => read,
                        Err(error) => return self.fail(error, at, payload),
                    };
                    at += used;
                    if is_line_whole {
                        self.state = DecoderState::Trailer;
                    }
                }
                DecoderState::DataCr if input[at..].starts_with(b"\r\n") => {
                    self.state = DecoderState::Size;
                    at += 2;
                }
                DecoderState::Trailer if input[at] != b'\r' => {
                    self.state = DecoderState::TrailerLine
                }
                _ => {
                    self.state = match self.next_state(input[at]) {
                        Ok(state) => state,
                        Err(error) => return self.fail(error, at, payload),
                    };
                    at += 1;
                }
            }
        }
        Ok(DecodeProgress { consumed: at, payload, ended: self.is_finished() })
    }

    /// Records the error at offset `at`, and returns the payload before it if there is any.
    #[cold]
    fn fail(
        &mut self,
        error: ChunkError,
        at: usize,
        payload: Range<usize>,
    ) -> Result<DecodeProgress, ChunkError> {
        self.failed = Some(error);
        if payload.is_empty() {
            return Err(error);
        }
        Ok(DecodeProgress { consumed: at, payload, ended: false })
    }

    /// Returns whether the body is malformed after the payload returned so far.
    pub fn is_malformed(&self) -> bool {
        self.failed.is_some()
    }

    /// Returns the number of bytes of the current chunk's data that have not been decoded; 0
    /// between chunks.
    ///
    /// A caller may move these bytes without the decoder, for example by splice(2), and report them
    /// with [`ChunkedDecoder::skip`].
    pub fn data_left(&self) -> u64 {
        if self.state == DecoderState::Data { self.remaining } else { 0 }
    }

    /// Skips `count` bytes of the current chunk's data, which the caller moved without the decoder.
    ///
    /// # Panics
    /// Panics if `count` is greater than [`ChunkedDecoder::data_left`].
    pub fn skip(&mut self, count: u64) {
        assert!(count <= self.data_left(), "only data is skipped");
        if count > 0 {
            self.remaining -= count;
            if self.remaining == 0 {
                self.state = DecoderState::DataCr;
            }
        }
    }

    /// Returns whether the body ended, trailers included.
    pub fn is_finished(&self) -> bool {
        self.state == DecoderState::Ended
    }

    /// Returns the trailer lines that may be forwarded, each as `Name: value` and CR LF. The list
    /// is complete once the body ended, and empty if there are none.
    ///
    /// RFC 9110 section 6.5.1: a recipient may merge trailer fields into the header. Fields that
    /// determine framing, routing, authentication, processing or the format of the content must
    /// therefore not be trailers, and are dropped.
    pub fn trailers(&self) -> &[u8] {
        self.trailers.as_ref().map_or(&[], |trailers| trailers.forwarded_lines())
    }

    /// Returns the state after a byte that is neither data nor part of a trailer line.
    fn next_state(&mut self, byte: u8) -> Result<DecoderState, ChunkError> {
        match (self.state, byte) {
            (DecoderState::Size | DecoderState::SizeDigits, _) if byte.is_ascii_hexdigit() => {
                self.push_size_digit(byte)
            }
            (DecoderState::SizeDigits, b';') => {
                self.extension_bytes = 0;
                self.next_extension_state(byte)
            }
            (DecoderState::SizeDigits, b'\r') => Ok(DecoderState::SizeLf),
            (DecoderState::SizeDigits, b'\n') => Err(ChunkError::LineEndInvalid),
            (DecoderState::Size | DecoderState::SizeDigits, _) => Err(ChunkError::SizeInvalid),
            (DecoderState::SizeLf, b'\n') => {
                self.digits = 0;
                Ok(if self.remaining == 0 { DecoderState::Trailer } else { DecoderState::Data })
            }
            (DecoderState::DataCr, b'\r') => Ok(DecoderState::DataLf),
            (DecoderState::DataLf, b'\n') => Ok(DecoderState::Size),
            (DecoderState::DataCr | DecoderState::DataLf, _) => Err(ChunkError::DataEndInvalid),
            (DecoderState::Trailer, b'\r') => Ok(DecoderState::LastLf),
            (DecoderState::LastLf, b'\n') => Ok(DecoderState::Ended),
            (DecoderState::SizeLf | DecoderState::LastLf, _) => Err(ChunkError::LineEndInvalid),
            _ => self.next_extension_state(byte),
        }
    }

    fn push_size_digit(&mut self, byte: u8) -> Result<DecoderState, ChunkError> {
        if self.digits == CHUNK_SIZE_DIGITS_MAX || self.remaining > BODY_BYTES_MAX >> 4 {
            return Err(ChunkError::SizeTooLong);
        }
        let digit = (byte as char).to_digit(16).expect("the caller checked the digit");
        self.digits += 1;
        self.remaining = self.remaining << 4 | u64::from(digit);
        Ok(DecoderState::SizeDigits)
    }

    /// Returns the state after a byte of an extension (RFC 9112 section 7.1.1), or after the byte
    /// that ends it.
    fn next_extension_state(&mut self, byte: u8) -> Result<DecoderState, ChunkError> {
        if byte == b'\n' {
            return Err(ChunkError::LineEndInvalid);
        }
        self.extension_bytes += 1;
        self.extension_bytes_all += 1;
        if self.extension_bytes > EXTENSION_BYTES_MAX
            || self.extension_bytes_all > EXTENSION_BYTES_ALL_MAX
        {
            return Err(ChunkError::ExtensionsTooLong);
        }
        match (self.state, byte) {
            (DecoderState::ExtensionStart | DecoderState::ExtensionName, _)
                if TOKEN.contains(byte) =>
            {
                Ok(DecoderState::ExtensionName)
            }
            (DecoderState::ExtensionName, b'=') => Ok(DecoderState::ExtensionValueStart),
            (DecoderState::ExtensionValueStart, b'"') => Ok(DecoderState::ExtensionQuoted),
            (DecoderState::ExtensionValueStart | DecoderState::ExtensionValue, _)
                if TOKEN.contains(byte) =>
            {
                Ok(DecoderState::ExtensionValue)
            }
            (DecoderState::ExtensionQuoted, b'"') => Ok(DecoderState::ExtensionQuotedEnd),
            (DecoderState::ExtensionQuoted, b'\\') => Ok(DecoderState::ExtensionPair),
            (DecoderState::ExtensionQuoted | DecoderState::ExtensionPair, _)
                if VALUE.contains(byte) =>
            {
                Ok(DecoderState::ExtensionQuoted)
            }
            (
                DecoderState::SizeDigits
                | DecoderState::ExtensionName
                | DecoderState::ExtensionValue
                | DecoderState::ExtensionQuotedEnd,
                b';',
            ) => Ok(DecoderState::ExtensionStart),
            (
                DecoderState::ExtensionName
                | DecoderState::ExtensionValue
                | DecoderState::ExtensionQuotedEnd,
                b'\r',
            ) => Ok(DecoderState::SizeLf),
            _ => Err(ChunkError::ExtensionInvalid),
        }
    }
}

/// Appends the size line of a chunk of `len` bytes: lower-case hexadecimal digits without leading
/// zeros, and CR LF. The caller appends the data and CR LF. A `len` of 0 is the last chunk, after
/// which trailers and an empty line follow.
pub fn write_chunk_size(out: &mut Vec<u8>, len: usize) {
    let digits = (usize::BITS - len.leading_zeros()).div_ceil(4).max(1);
    for place in (0..digits).rev() {
        out.push(b"0123456789abcdef"[len >> (4 * place) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Fuzzes the decoder with any bytes. It checks that:
///
/// * input in pieces yields the same payload, trailers, end and error as input in one piece
/// * the payload before an error does not depend on the pieces either
/// * bytes after the end of the body are not changed
/// * a decoded body that is encoded again decodes to the same payload and trailers
///
/// # Panics
/// Panics if one of these properties is violated.
pub fn fuzz_chunked(data: &[u8]) {
    let whole = fuzz::decode(data, data.len().max(1));
    let stride = data.first().map_or(1, |&byte| usize::from(byte % 29) + 2);
    assert_eq!(whole, fuzz::decode(data, 1));
    assert_eq!(whole, fuzz::decode(data, stride));
    let Ok(whole) = whole else { return };
    let mut again = Vec::new();
    if !whole.payload.is_empty() {
        write_chunk_size(&mut again, whole.payload.len());
        again.extend_from_slice(&whole.payload);
        again.extend_from_slice(b"\r\n");
    }
    write_chunk_size(&mut again, 0);
    again.extend_from_slice(&whole.trailers);
    again.extend_from_slice(b"\r\n");
    if whole.ended {
        let expected = fuzz::Decoded { consumed: again.len(), ..whole };
        assert_eq!(fuzz::decode(&again, again.len()), Ok(expected));
    }
}

mod fuzz {
    use super::{ChunkError, ChunkedDecoder};

    #[derive(PartialEq, Eq, Debug)]
    pub(super) struct Decoded {
        pub(super) payload: Vec<u8>,
        pub(super) trailers: Vec<u8>,
        pub(super) consumed: usize,
        pub(super) ended: bool,
    }

    /// Decodes in pieces of `size` bytes. An error is returned with the payload before it.
    pub(super) fn decode(data: &[u8], size: usize) -> Result<Decoded, (ChunkError, Vec<u8>)> {
        let mut decoder = ChunkedDecoder::default();
        let (mut payload, mut consumed, mut ended) = (Vec::new(), 0, false);
        for piece in data.chunks(size) {
            let mut piece_read = piece.to_vec();
            let step = match decoder.decode(&mut piece_read) {
                Ok(step) => step,
                Err(error) => return Err((error, payload)),
            };
            assert!(step.payload.end <= step.consumed && step.consumed <= piece.len());
            assert_eq!(
                piece_read[step.consumed..],
                piece[step.consumed..],
                "bytes after the end are unchanged"
            );
            assert!(!ended || step.consumed == 0, "nothing is read after the end");
            payload.extend_from_slice(&piece_read[step.payload]);
            if decoder.is_malformed() {
                let error = decoder.decode(&mut piece_read[step.consumed..]);
                return Err((error.expect_err("the body is malformed"), payload));
            }
            assert!(
                step.ended || step.consumed == piece.len(),
                "all input is consumed unless the body ended"
            );
            consumed += step.consumed;
            ended |= step.ended;
        }
        Ok(Decoded { payload, trailers: decoder.trailers().to_vec(), consumed, ended })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;
    use crate::error::HeadError;

    fn decode(body: impl AsRef<[u8]>) -> Result<fuzz::Decoded, ChunkError> {
        fuzz_chunked(body.as_ref());
        fuzz::decode(body.as_ref(), usize::MAX).map_err(|(error, _)| error)
    }

    #[test]
    fn payload_before_an_error_is_returned_first() {
        let body = b"3\r\nabc\r\n2\r\nde\r\nxyz";
        let mut input = *body;
        let mut decoder = ChunkedDecoder::default();
        let step = decoder.decode(&mut input).unwrap();
        assert_eq!((&input[step.payload], decoder.is_malformed()), (&b"abcde"[..], true));
        assert_eq!(decoder.decode(&mut input[step.consumed..]), Err(ChunkError::SizeInvalid));
        assert_eq!(decoder.decode(&mut []), Err(ChunkError::SizeInvalid));
    }

    fn payload(body: impl AsRef<[u8]>) -> Option<String> {
        let decoded = decode(body).unwrap();
        decoded.ended.then(|| String::from_utf8(decoded.payload).unwrap())
    }

    #[test]
    fn data_may_be_skipped_and_decoding_continues() {
        let mut decoder = ChunkedDecoder::default();
        assert_eq!(decoder.data_left(), 0);
        let step = decoder.decode(&mut b"0a\r\nabc".to_owned()).unwrap();
        assert_eq!((step.payload, decoder.data_left()), (4..7, 7));
        decoder.skip(3);
        assert_eq!(decoder.data_left(), 4);
        decoder.skip(4);
        assert_eq!(decoder.data_left(), 0);
        let step = decoder.decode(&mut b"\r\n1\r\nx\r\n0\r\n\r\n".to_owned()).unwrap();
        assert_eq!((step.payload, step.ended), (5..6, true));
        decoder.skip(0);
        assert!(decoder.is_finished());
    }

    #[test]
    fn payload_is_moved_together_and_the_next_message_is_unchanged() {
        let mut input = *b"3\r\nabc\r\nA;x=\"y\"\r\n0123456789\r\n00\r\nT: 1\r\n\r\nGET / HTTP/1.1";
        let mut decoder = ChunkedDecoder::default();
        let step = decoder.decode(&mut input).unwrap();
        assert_eq!(&input[step.payload], b"abc0123456789");
        assert_eq!(&input[step.consumed..], b"GET / HTTP/1.1");
        assert!(step.ended);
        assert_eq!(decoder.trailers(), b"T: 1\r\n");
        let after = decoder.decode(&mut input).unwrap();
        assert_eq!(after, DecodeProgress { consumed: 0, payload: 0..0, ended: true });
    }

    #[test]
    fn sizes_are_hexadecimal_digits_only() {
        assert_eq!(payload("0\r\n\r\n").as_deref(), Some(""));
        assert_eq!(payload("0000000000000003\r\nabc\r\n0\r\n\r\n").as_deref(), Some("abc"));
        assert_eq!(decode("7fffffffffffffff\r\nab").unwrap().payload, b"ab");
        for body in [
            "\r\n",
            "0x3\r\n",
            "+3\r\n",
            "-3\r\n",
            "_3\r\n",
            "3_0\r\n",
            " 3\r\n",
            "3 \r\n",
            "3\t\r\n",
            "g\r\n",
            "3,\r\n",
            "3 ;a\r\n",
            "\u{0}3\r\n",
            "3\u{b}\r\n",
            "\n",
            ";a\r\n",
        ] {
            assert_eq!(decode(body), Err(ChunkError::SizeInvalid), "{body:?}");
        }
        for body in ["8000000000000000\r\n", "ffffffffffffffff\r\n", "00000000000000003\r\n"] {
            assert_eq!(decode(body), Err(ChunkError::SizeTooLong), "{body:?}");
        }
        let overflow = "1".repeat(17) + "\r\n";
        assert_eq!(decode(overflow), Err(ChunkError::SizeTooLong));
    }

    #[test]
    fn line_ends_are_exact() {
        for body in
            ["3\nabc", "3\rabc", "3;a\n", "3;a=b\n", "3;a=\"\n", "3\r\rabc", "0\r\n\r\r", "0\n"]
        {
            assert_eq!(decode(body), Err(ChunkError::LineEndInvalid), "{body:?}");
        }
        for body in ["3\r\nabc0\r\n", "3\r\nabcd\r\n", "3\r\nabc\n", "3\r\nabc\r0", "3\r\nabc\n\r"]
        {
            assert_eq!(decode(body), Err(ChunkError::DataEndInvalid), "{body:?}");
        }
        assert_eq!(payload("3\r\nab"), None, "the body is incomplete");
        assert_eq!(payload("3\r\nabc\r\n0\r\n"), None);
    }

    #[test]
    fn extensions_are_checked_and_dropped() {
        for extension in [";a", ";a=b", ";a=\"b;\\\"\u{e9}\t\";c", ";a;b;c=d", ";a=\"\""] {
            let body = format!("1{extension}\r\nx\r\n0{extension}\r\n\r\n");
            assert_eq!(payload(body).as_deref(), Some("x"), "{extension}");
        }
        for extension in [
            ";",
            ";;",
            ";=a",
            ";a=",
            ";a=;",
            "; a",
            ";a =b",
            ";a= b",
            ";a b",
            ";a=b c",
            ";a=\"b\"c",
            ";a=\"\u{0}\"",
            ";a=\"\\\u{1}\"",
            ";\u{e9}",
            ";a=\"\r\n",
            ";a=\r\n",
            ";\r\n",
            ";a\u{0}",
            ";a\"",
        ] {
            let body = format!("1{extension}\r\nx\r\n0\r\n\r\n");
            assert_eq!(decode(body), Err(ChunkError::ExtensionInvalid), "{extension:?}");
        }
        let long =
            |len: usize, count: usize| format!("1;{}\r\nx\r\n", "a".repeat(len - 1)).repeat(count);
        // The limits also count the CR after the extensions.
        assert!(decode(long(255, 64)).is_ok());
        assert_eq!(decode(long(256, 1)), Err(ChunkError::ExtensionsTooLong));
        assert_eq!(decode(long(255, 65)), Err(ChunkError::ExtensionsTooLong));
    }

    #[test]
    fn trailers_are_parsed_strictly_and_control_fields_are_dropped() {
        let trailers = |lines: &str| decode(format!("0\r\n{lines}\r\n")).map(|it| it.trailers);
        let forwarded = b"Grpc-Status: 0\r\nx: y\r\nempty: \r\n".to_vec();
        assert_eq!(trailers("Grpc-Status:0\r\nx:\t y \r\nempty:\r\n"), Ok(forwarded));
        for name in [
            "Content-Length",
            "Transfer-Encoding",
            "HOST",
            "Connection",
            "Authorization",
            "Cookie",
            "Set-Cookie",
            "X-Forwarded-For",
            "x-forwarded-anything",
            "Content-Type",
            "Trailer",
            "TE",
            "Cache-Control",
            "Content-Security-Policy",
            "transfer_encoding",
            "If-None-Match",
            "Vary",
            "Access-Control-Allow-Origin",
            "Upgrade",
            "Proxy-Foo",
            "Max-Forwards",
            "Via",
            "Location",
        ] {
            assert_eq!(
                trailers(&format!("a: 1\r\n{name}: 1\r\n")),
                Ok(b"a: 1\r\n".to_vec()),
                "{name}"
            );
        }
        for (line, error) in [
            ("a : 1\r\n", HeadError::SpaceBeforeColon),
            ("a: 1\r\n b\r\n", HeadError::FoldedLine),
            ("a\r\n", HeadError::ColonMissing),
            (": a\r\n", HeadError::NameEmpty),
            ("a: \0\r\n", HeadError::ValueInvalid),
            ("a: b\n", HeadError::BareLf),
            ("a: b\rc\r\n", HeadError::BareCr),
            ("\n", HeadError::BareLf),
            ("GET / HTTP/1.1\r\n", HeadError::ColonMissing),
        ] {
            assert_eq!(trailers(line), Err(ChunkError::TrailerInvalid(error)), "{line:?}");
        }
        assert!(trailers(&"a:1\r\n".repeat(64)).is_ok());
        assert_eq!(trailers(&"a:1\r\n".repeat(65)), Err(ChunkError::TrailersTooMany));
        let long = format!("a: {}\r\n", "b".repeat(8187));
        assert!(trailers(&long).is_ok());
        assert_eq!(trailers(&format!("b{long}")), Err(ChunkError::TrailersTooLong));
        let longer_when_forwarded = format!("a:{}\r\n", "b".repeat(8188));
        assert_eq!(trailers(&longer_when_forwarded), Err(ChunkError::TrailersTooLong));
        assert_eq!(decode(format!("0\r\n{}", "a".repeat(8193))), Err(ChunkError::TrailersTooLong));
    }

    #[test]
    fn sizes_are_written_in_lower_case_hexadecimal() {
        for len in [0, 1, 9, 10, 15, 16, 255, 256, 65_536, usize::MAX] {
            let mut out = Vec::new();
            write_chunk_size(&mut out, len);
            assert_eq!(out, format!("{len:x}\r\n").into_bytes());
        }
    }

    #[test]
    fn the_corpus_keeps_the_invariants() {
        corpus::run("chunked", 40, corpus::mutate_bytes, fuzz_chunked);
    }
}
