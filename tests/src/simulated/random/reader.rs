//! An incremental reader of messages, based on the strict parser of [`crate::strict`]. It returns
//! headers at once and bodies in parts, so that a wrong byte is detected when it arrives.

use crate::strict::{self, Framing, Message, RequestContext};

/// The messages to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    /// Requests, at an origin.
    Requests,
    /// Responses, at a client.
    Responses,
}

/// The next part of a message.
#[derive(Debug)]
pub(super) enum Part {
    /// A header. After a 101, or a successful CONNECT, the caller calls [`MessageReader::raw`].
    Head(Message),
    /// Payload, at least one byte.
    Body(Vec<u8>),
    /// The end of the message.
    End,
}

/// The state within a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReaderState {
    Head,
    /// This number of bytes follows.
    Length(u64),
    ChunkSize,
    Chunk(usize),
    ChunkEnd,
    Trailers,
    UntilClose,
    /// The end of the message is to be returned.
    Over,
    /// The bytes are not HTTP any more.
    Raw,
}

/// Received bytes and the state of their parsing.
#[derive(Debug)]
pub(super) struct MessageReader {
    side: Side,
    state: ReaderState,
    bytes: Vec<u8>,
}

impl MessageReader {
    pub(super) fn new(side: Side) -> Self {
        Self { side, state: ReaderState::Head, bytes: Vec::new() }
    }

    /// Adds received bytes.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the unread bytes.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes unread bytes.
    pub(super) fn take(&mut self, count: usize) -> Vec<u8> {
        self.bytes.drain(..count).collect()
    }

    /// Returns all further bytes as payload, because they are not HTTP.
    pub(super) fn raw(&mut self) {
        self.state = ReaderState::Raw;
    }

    /// Returns whether the reader is between two messages.
    pub(super) fn is_between(&self) -> bool {
        self.state == ReaderState::Head && self.bytes.is_empty()
    }

    /// Returns whether the end of the stream is the end of the message.
    pub(super) fn ends_by_close(&self) -> bool {
        self.state == ReaderState::UntilClose
    }

    /// Returns the next part, if it has arrived. `request` is the request of a response.
    pub(super) fn next(
        &mut self,
        request: Option<&RequestContext>,
    ) -> Result<Option<Part>, String> {
        loop {
            let step = match self.state {
                ReaderState::Head => return self.head(request),
                ReaderState::Raw => return Ok(self.body(usize::MAX)),
                ReaderState::UntilClose => return Ok(self.body(usize::MAX)),
                ReaderState::Length(left) => return Ok(self.counted(left)),
                ReaderState::Chunk(left) => return Ok(self.chunk(left)),
                ReaderState::Over => {
                    self.state = ReaderState::Head;
                    return Ok(Some(Part::End));
                }
                ReaderState::ChunkSize => self.chunk_size()?,
                ReaderState::ChunkEnd => self.chunk_end()?,
                ReaderState::Trailers => self.trailers()?,
            };
            if !step {
                return Ok(None);
            }
        }
    }

    fn head(&mut self, request: Option<&RequestContext>) -> Result<Option<Part>, String> {
        let end = self.bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        let head = &self.bytes[..end.unwrap_or(self.bytes.len())];
        let none = RequestContext::with("GET");
        let parsed = match self.side {
            Side::Requests => strict::request(head),
            Side::Responses => strict::response(head, request.unwrap_or(&none), end.is_some()),
        };
        let parsed =
            parsed.map_err(|ambiguity| format!("{ambiguity}: {}", excerpt(&self.bytes)))?;
        let Some(end) = end else { return Ok(None) };
        let message = match parsed {
            Some(message) => {
                // A body until close only begins here, although the message looks complete.
                self.state = match message.framing {
                    Framing::UntilClose => ReaderState::UntilClose,
                    _ => ReaderState::Over,
                };
                message
            }
            None => self.with_body(end, request)?,
        };
        self.bytes.drain(..end);
        Ok(Some(Part::Head(message)))
    }

    /// Returns the message of a valid header whose body has not arrived. The strict parser returns
    /// only complete messages, so this parses the header again, with the shortest body of its
    /// framing.
    fn with_body(
        &mut self,
        end: usize,
        request: Option<&RequestContext>,
    ) -> Result<Message, String> {
        let head = String::from_utf8_lossy(&self.bytes[..end]).to_ascii_lowercase();
        let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length: "));
        let mut bytes = self.bytes[..end].to_vec();
        match length {
            Some(length) => {
                let length = length.parse().map_err(|_| format!("a length of {length}"))?;
                self.state = ReaderState::Length(length);
                // A body of the announced length might not fit in memory, so the length is set to
                // 0.
                let small = head_with_length(&bytes, length);
                bytes = small;
            }
            None => {
                self.state = ReaderState::ChunkSize;
                bytes.extend_from_slice(b"0\r\n\r\n");
            }
        }
        let none = RequestContext::with("GET");
        let parsed = match self.side {
            Side::Requests => strict::request(&bytes),
            Side::Responses => strict::response(&bytes, request.unwrap_or(&none), false),
        };
        match parsed {
            Ok(Some(mut message)) => {
                message.body.clear();
                if let ReaderState::Length(length) = self.state {
                    message.framing = Framing::Length(length);
                }
                Ok(message)
            }
            other => {
                Err(format!("{other:?} for a header that was found valid: {}", excerpt(&bytes)))
            }
        }
    }

    fn body(&mut self, max: usize) -> Option<Part> {
        let count = self.bytes.len().min(max);
        (count > 0).then(|| Part::Body(self.take(count)))
    }

    fn counted(&mut self, left: u64) -> Option<Part> {
        let part = self.body(usize::try_from(left).unwrap_or(usize::MAX))?;
        if let Part::Body(bytes) = &part {
            let left = left - bytes.len() as u64;
            self.state = if left == 0 { ReaderState::Over } else { ReaderState::Length(left) };
        }
        Some(part)
    }

    fn chunk(&mut self, left: usize) -> Option<Part> {
        let part = self.body(left)?;
        if let Part::Body(bytes) = &part {
            let left = left - bytes.len();
            self.state = if left == 0 { ReaderState::ChunkEnd } else { ReaderState::Chunk(left) };
        }
        Some(part)
    }

    fn chunk_size(&mut self) -> Result<bool, String> {
        let line = self.bytes.windows(2).position(|two| two == b"\r\n");
        let Some(end) = line else {
            let long = self.bytes.len() > 18 || self.bytes.contains(&b'\n');
            return if long {
                Err(format!("no chunk size: {}", excerpt(&self.bytes)))
            } else {
                Ok(false)
            };
        };
        let line = String::from_utf8_lossy(&self.bytes[..end]).into_owned();
        let size = usize::from_str_radix(&line, 16).ok();
        match size {
            Some(size) if format!("{size:x}") == line.to_ascii_lowercase() => {
                self.bytes.drain(..end + 2);
                self.state =
                    if size == 0 { ReaderState::Trailers } else { ReaderState::Chunk(size) };
                Ok(true)
            }
            _ => Err(format!("a chunk size that is not plain hexadecimal: `{line}`")),
        }
    }

    fn chunk_end(&mut self) -> Result<bool, String> {
        match &self.bytes[..self.bytes.len().min(2)] {
            [] | [b'\r'] => Ok(false),
            [b'\r', b'\n'] => {
                self.bytes.drain(..2);
                self.state = ReaderState::ChunkSize;
                Ok(true)
            }
            _ => Err("no CR LF after the data of a chunk".to_owned()),
        }
    }

    fn trailers(&mut self) -> Result<bool, String> {
        let whole = [
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
            &self.bytes[..],
        ];
        let whole = whole.concat();
        let head = whole.len() - self.bytes.len();
        match strict::request(&whole) {
            Err(ambiguity) => Err(format!("{ambiguity}: {}", excerpt(&self.bytes))),
            Ok(None) => Ok(false),
            Ok(Some(message)) => {
                self.bytes.drain(..message.bytes - head);
                self.state = ReaderState::Over;
                Ok(true)
            }
        }
    }
}

/// Returns the header with a length of 0.
fn head_with_length(head: &[u8], length: u64) -> Vec<u8> {
    let text = head.to_ascii_lowercase();
    let field = format!("content-length: {length}\r\n").into_bytes();
    let at = text.windows(field.len()).position(|bytes| bytes == field);
    let at = at.expect("the field that was just found");
    let mut bytes = head.to_vec();
    bytes.splice(at..at + field.len(), *b"Content-Length: 0\r\n");
    bytes
}

/// Returns the beginning of `bytes` in readable form.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    let more = if bytes.len() > 300 { "…" } else { "" };
    format!("{} bytes \"{}{more}\"", bytes.len(), bytes[..bytes.len().min(300)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(side: Side, input: &str) -> Result<String, String> {
        let mut reader = MessageReader::new(side);
        let mut text = String::new();
        for byte in input.bytes() {
            reader.add(&[byte]);
            while let Some(part) = reader.next(None)? {
                match part {
                    Part::Head(message) => text += &format!("[{:?}]", message.framing),
                    Part::Body(bytes) => text += &String::from_utf8_lossy(&bytes),
                    Part::End => text += ".",
                }
            }
        }
        Ok(text)
    }

    #[test]
    fn messages_are_read_byte_by_byte() {
        let request = "POST /r HTTP/1.1\r\nHost: a\r\n";
        let two = format!(
            "{request}Content-Length: 3\r\n\r\nabc{request}Transfer-Encoding: chunked\r\n\r\n\
             2\r\nde\r\n0\r\nX: 1\r\n\r\n{request}\r\n"
        );
        assert_eq!(
            parts(Side::Requests, &two),
            Ok("[Length(3)]abc.[Chunked]de.[None].".to_owned())
        );
        let answer = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc";
        assert_eq!(parts(Side::Responses, answer), Ok("[UntilClose]abc".to_owned()));
    }

    #[test]
    fn ambiguous_bytes_are_reported_at_once() {
        let chunked = "POST /r HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        for body in ["02\r\n", "2\r\nabc", "2;a\r\n", "0\r\nHost: a\r\n\r\n", "0x2\r\n"] {
            assert!(parts(Side::Requests, &format!("{chunked}{body}")).is_err(), "{body}");
        }
        assert!(parts(Side::Requests, "GET  /").is_ok());
        assert!(parts(Side::Requests, "GET  / HTTP/1.1\r\n").is_err());
    }
}
