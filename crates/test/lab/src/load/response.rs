//! Checks a response while it arrives.

use std::fmt;

use millrace_http1::{
    ChunkError, ChunkedDecoder, Framing, FramingError, HeadError, HeadLimits, HeadScan, Method,
    ResponseHead, response_framing,
};

use crate::load::pattern::Pattern;

/// The object that a response must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct ExpectedObject {
    /// The file whose bytes these are; `None` if they are unknown.
    pub(super) file: Option<u32>,
    /// The length of the body; `None` if it is unknown.
    pub(super) bytes: Option<u64>,
}

/// The parsed part of a response. It does no I/O.
#[derive(Debug, Default)]
pub(super) struct ResponseReader {
    expected: ExpectedObject,
    /// Received bytes of an incomplete header.
    header: Vec<u8>,
    scan: HeadScan,
    head: ResponseHead,
    body: BodyState,
    /// Bytes of the body so far.
    body_bytes: u64,
    is_wrong: bool,
}

/// How the rest of the body is read.
#[derive(Debug, Default)]
enum BodyState {
    /// The header is not complete.
    #[default]
    Header,
    /// This number of bytes is left.
    Length(u64),
    Chunked(ChunkedDecoder),
    UntilClose,
    Ended,
}

/// A complete response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReceivedResponse {
    /// The status code.
    pub(super) status: u16,
    /// Bytes of the body.
    pub(super) body_bytes: u64,
    /// Whether the connection may serve another request.
    pub(super) is_persistent: bool,
    /// Whether the status is 200, but the length or the bytes are not those of the object.
    pub(super) is_wrong: bool,
}

/// The reason why a response is not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ResponseError {
    /// The connection ended before the first byte.
    Missing,
    /// The connection ended before the last byte.
    Cut,
    /// The header is malformed.
    Header(HeadError),
    /// The end of the body is uncertain.
    Framing(FramingError),
    /// A chunk is malformed.
    Chunk(ChunkError),
    /// More bytes than the response follow.
    Surplus,
}

/// The limits on response headers.
const LIMITS: HeadLimits =
    HeadLimits { bytes_max: 65_536, fields_max: 200, target_bytes_max: 65_536 };

impl ResponseReader {
    /// Prepares for the next response, and keeps the allocated memory.
    pub(super) fn begin(&mut self, expected: ExpectedObject) {
        self.expected = expected;
        self.header.clear();
        self.scan = HeadScan::default();
        self.head.clear();
        (self.body, self.body_bytes, self.is_wrong) = (BodyState::Header, 0, false);
    }

    /// Reads the next bytes, and may change them. Returns the response once it is complete.
    ///
    /// # Errors
    /// Returns a [`ResponseError`] after which the connection cannot be used.
    pub(super) fn read(
        &mut self,
        pattern: &Pattern,
        bytes: &mut [u8],
    ) -> Result<Option<ReceivedResponse>, ResponseError> {
        let mut at = 0;
        while matches!(self.body, BodyState::Header) {
            let Some(used) = self.read_header(&bytes[at..])? else { return Ok(None) };
            at += used;
        }
        let used = self.read_body(pattern, &mut bytes[at..])?;
        if !matches!(self.body, BodyState::Ended) {
            return Ok(None);
        }
        if at + used < bytes.len() {
            return Err(ResponseError::Surplus);
        }
        Ok(Some(self.complete()))
    }

    /// Handles the end of the connection, which completes some responses.
    ///
    /// # Errors
    /// Returns [`ResponseError::Missing`] or [`ResponseError::Cut`].
    pub(super) fn end(&mut self) -> Result<ReceivedResponse, ResponseError> {
        match self.body {
            BodyState::UntilClose => Ok(self.complete()),
            BodyState::Header if self.header.is_empty() => Err(ResponseError::Missing),
            _ => Err(ResponseError::Cut),
        }
    }

    /// Returns whether bytes of the response have arrived.
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self.body, BodyState::Header) || !self.header.is_empty()
    }

    /// Reads bytes of a header, and returns how many were used; `None` if it needs more.
    fn read_header(&mut self, bytes: &[u8]) -> Result<Option<usize>, ResponseError> {
        let earlier = self.header.len();
        let parsed = if earlier == 0 {
            self.head.parse(bytes, &mut self.scan, &LIMITS)
        } else {
            self.header.extend_from_slice(bytes);
            self.head.parse(&self.header, &mut self.scan, &LIMITS)
        };
        let Some(end) = parsed.map_err(ResponseError::Header)? else {
            if earlier == 0 {
                self.header.extend_from_slice(bytes);
            }
            return Ok(None);
        };
        self.scan = HeadScan::default();
        self.header.clear();
        self.body = match response_framing(&self.head, Method::Get) {
            // A final response follows.
            _ if self.head.status() < 200 => BodyState::Header,
            Ok(Framing::None) => BodyState::Length(0),
            Ok(Framing::Length(length)) => BodyState::Length(length),
            Ok(Framing::Chunked) => BodyState::Chunked(ChunkedDecoder::default()),
            Ok(Framing::UntilClose) => BodyState::UntilClose,
            Err(error) => return Err(ResponseError::Framing(error)),
        };
        Ok(Some(end - earlier))
    }

    /// Reads bytes of the body, and returns how many belong to it.
    fn read_body(&mut self, pattern: &Pattern, bytes: &mut [u8]) -> Result<usize, ResponseError> {
        let (payload, consumed) = match &mut self.body {
            BodyState::Length(left) => {
                let taken =
                    usize::try_from(*left).map_or(bytes.len(), |left| bytes.len().min(left));
                *left -= taken as u64;
                if *left == 0 {
                    self.body = BodyState::Ended;
                }
                (0..taken, taken)
            }
            BodyState::Chunked(decoder) => {
                let progress = decoder.decode(bytes).map_err(ResponseError::Chunk)?;
                if progress.ended {
                    self.body = BodyState::Ended;
                }
                (progress.payload, progress.consumed)
            }
            BodyState::UntilClose => (0..bytes.len(), bytes.len()),
            BodyState::Header | BodyState::Ended => (0..0, 0),
        };
        let payload = &bytes[payload];
        // The bodies of error responses are other bytes.
        if self.head.status() == 200
            && let Some(file) = self.expected.file
        {
            self.is_wrong |= !pattern.matches(file, self.body_bytes, payload);
        }
        self.body_bytes += payload.len() as u64;
        Ok(consumed)
    }

    fn complete(&self) -> ReceivedResponse {
        let status = self.head.status();
        let has_other_length = self.expected.bytes.is_some_and(|bytes| bytes != self.body_bytes);
        let is_until_close = matches!(self.body, BodyState::UntilClose);
        let options = millrace_http1::connection_options(&self.head);
        ReceivedResponse {
            status,
            body_bytes: self.body_bytes,
            is_persistent: !is_until_close && options.is_persistent(self.head.version()),
            is_wrong: self.is_wrong || (status == 200 && has_other_length),
        }
    }
}

impl fmt::Display for ResponseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("closed before the response"),
            Self::Cut => f.write_str("closed within the response"),
            Self::Header(error) => write!(f, "header: {error}"),
            Self::Framing(error) => write!(f, "framing: {error}"),
            Self::Chunk(error) => write!(f, "body: {error}"),
            Self::Surplus => f.write_str("bytes after the response"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u32 = 3;
    const EXPECTED: ExpectedObject = ExpectedObject { file: Some(FILE), bytes: Some(20) };

    /// Reads a response in pieces of `step` bytes, and then the end of the connection.
    fn read(
        expected: ExpectedObject,
        text: &[u8],
        step: usize,
    ) -> Result<ReceivedResponse, ResponseError> {
        let pattern = Pattern::new();
        let mut reader = ResponseReader::default();
        reader.begin(expected);
        let mut bytes = text.to_vec();
        for piece in bytes.chunks_mut(step) {
            if let Some(response) = reader.read(&pattern, piece)? {
                return Ok(response);
            }
        }
        reader.end()
    }

    fn body(length: usize) -> Vec<u8> {
        let mut body = vec![0; length];
        Pattern::new().fill(FILE, 0, &mut body);
        body
    }

    fn response(header: &str, body: &[u8]) -> Vec<u8> {
        [header.as_bytes(), b"\r\n\r\n", body].concat()
    }

    fn received(is_persistent: bool, is_wrong: bool) -> ReceivedResponse {
        ReceivedResponse { status: 200, body_bytes: 20, is_persistent, is_wrong }
    }

    #[test]
    fn right_responses_are_complete_in_every_framing() {
        let body = body(20);
        let chunks = [b"7\r\n", &body[..7], b"\r\nd\r\n", &body[7..], b"\r\n0\r\n\r\n"].concat();
        for (text, is_persistent) in [
            (response("HTTP/1.1 200 OK\r\nContent-Length: 20", &body), true),
            (response("HTTP/1.1 103 \r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 20", &body), true),
            (response("HTTP/1.0 200 OK\r\nContent-Length: 20", &body), false),
            (response("HTTP/1.1 200 OK\r\nContent-Length: 20\r\nConnection: close", &body), false),
            (response("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", &chunks), true),
            (response("HTTP/1.1 200 OK", &body), false),
        ] {
            for step in [1, 2, 7, 30, 1000] {
                let response = read(EXPECTED, &text, step);
                assert_eq!(response, Ok(received(is_persistent, false)), "{step}: {text:?}");
            }
        }
    }

    #[test]
    fn wrong_bytes_and_lengths_are_wrong() {
        let mut wrong = body(20);
        wrong[19] ^= 1;
        let text = response("HTTP/1.1 200 OK\r\nContent-Length: 20", &wrong);
        assert_eq!(read(EXPECTED, &text, 7), Ok(received(true, true)));
        let unchecked = ExpectedObject::default();
        assert_eq!(read(unchecked, &text, 7), Ok(received(true, false)));
        for length in [19, 21] {
            let header = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}");
            let response = read(EXPECTED, &response(&header, &body(length)), 7).unwrap();
            assert!(response.is_wrong && response.body_bytes == length as u64);
        }
        let text = response("HTTP/1.1 503 x\r\nContent-Length: 4", b"busy");
        let response = read(EXPECTED, &text, 7).unwrap();
        assert!(!response.is_wrong && response.status == 503);
    }

    #[test]
    fn incomplete_responses_are_errors() {
        let text = response("HTTP/1.1 200 OK\r\nContent-Length: 20", &body(20));
        assert_eq!(read(EXPECTED, b"", 1), Err(ResponseError::Missing));
        for end in 1..text.len() {
            assert_eq!(read(EXPECTED, &text[..end], 9), Err(ResponseError::Cut), "{end}");
        }
        let text = response("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", b"2\r\nab\r\n");
        assert_eq!(read(EXPECTED, &text, 9), Err(ResponseError::Cut));
        let text = response("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", b"x\r\n");
        assert_eq!(read(EXPECTED, &text, 9), Err(ResponseError::Chunk(ChunkError::SizeInvalid)));
        let text = response("HTTP/1.1 200 OK\r\nContent-Length: 1", b"ab");
        assert_eq!(read(EXPECTED, &text, 99), Err(ResponseError::Surplus));
        let error = read(EXPECTED, b"HELLO", 9).unwrap_err();
        assert_eq!(error, ResponseError::Header(HeadError::VersionInvalid));
    }
}
