//! Decoding the records of a request, on the side of the FastCGI server.

use crate::error::RequestError;
use crate::limits::{ENVIRONMENT_BYTES_MAX, VARIABLES_MAX};
use crate::record::{
    KEEPS_CONNECTION, RECORD_HEADER_BYTES, REQUEST_ID, RESPONDER, RecordHeader, RecordType,
};

/// A decoder of the records of one request, which arrive in pieces: BEGIN_REQUEST, the environment,
/// and the body.
///
/// ```text
///            ┌─────────── the content and padding of a record ───────────┐
///            v                                                           │
///  ──> Header ──> Begin, Params, Input or Ignored ──> Padding ───────────┘
/// ```
///
/// `RequestDecoder::default()` expects the first byte of BEGIN_REQUEST.
#[derive(Debug, Default)]
pub struct RequestDecoder {
    /// The first bytes of a record header or of the content of BEGIN_REQUEST, while the rest has
    /// not arrived: `collected[..collected_bytes]`.
    collected: [u8; RECORD_HEADER_BYTES],
    collected_bytes: u8,
    /// The content of the present record that has not been read.
    content_left: u16,
    /// The padding of the present record that has not been read.
    padding_left: u8,
    state: RequestState,
    progress: Progress,
    keeps_connection: bool,
    /// The content of the PARAMS records, at most [`ENVIRONMENT_BYTES_MAX`] bytes.
    params: Vec<u8>,
    is_aborted: bool,
    /// The error that ended decoding. Every later call returns it.
    failed: Option<RequestError>,
}

/// The part of the stream that the next byte belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum RequestState {
    #[default]
    Header,
    /// The 8 bytes of BEGIN_REQUEST.
    Begin,
    Params,
    Input,
    /// The content of a management record, or of ABORT_REQUEST.
    Ignored,
    Padding,
}

/// How much of a request has arrived. It only grows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Progress {
    #[default]
    Nothing,
    Begun,
    /// The environment has ended.
    HasEnvironment,
    /// The body has ended.
    HasInput,
}

/// The names and values of an environment.
pub type Variables<'a> = Vec<(&'a [u8], &'a [u8])>;

/// The next part of the bytes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestPart {
    /// This many bytes, at least one, are framing or environment.
    /// [`RequestDecoder::next_part`] has consumed them.
    Framing(usize),
    /// This many bytes, at least one, are of the body. The caller consumes them, or some of them,
    /// by [`RequestDecoder::skip`].
    Input(usize),
    /// More bytes have to arrive.
    Incomplete,
    /// The request has arrived as a whole, or was aborted. Bytes that follow belong to the next
    /// request.
    Ended,
}

impl RequestDecoder {
    /// Returns the next part of the bytes, and consumes it unless it is of the body. `input` begins
    /// right after the consumed bytes.
    ///
    /// # Errors
    /// Returns an error if the records are no request, and again in each later call.
    pub fn next_part(&mut self, input: &[u8]) -> Result<RequestPart, RequestError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.has_ended() {
            return Ok(RequestPart::Ended);
        }
        let left = match self.state {
            RequestState::Header | RequestState::Begin => RECORD_HEADER_BYTES,
            RequestState::Padding => self.padding_left.into(),
            RequestState::Params | RequestState::Input | RequestState::Ignored => {
                self.content_left.into()
            }
        };
        let count = input.len().min(left);
        if count == 0 {
            return Ok(RequestPart::Incomplete);
        }
        if self.state == RequestState::Input {
            return Ok(RequestPart::Input(count));
        }
        let read = self.consume(&input[..count]);
        read.map(RequestPart::Framing).inspect_err(|error| self.failed = Some(*error))
    }

    /// Consumes bytes of the present state, which has no body. Returns their number.
    fn consume(&mut self, input: &[u8]) -> Result<usize, RequestError> {
        match self.state {
            RequestState::Header | RequestState::Begin => {
                let rest = &mut self.collected[self.collected_bytes.into()..];
                let count = rest.len().min(input.len());
                rest[..count].copy_from_slice(&input[..count]);
                self.collected_bytes += count as u8;
                if usize::from(self.collected_bytes) == RECORD_HEADER_BYTES {
                    self.collected_bytes = 0;
                    match self.state {
                        RequestState::Header => self.begin_record()?,
                        _ => self.begin_request()?,
                    }
                }
                return Ok(count);
            }
            RequestState::Params => {
                if self.params.len() + input.len() > ENVIRONMENT_BYTES_MAX {
                    return Err(RequestError::Environment);
                }
                self.params.extend_from_slice(input);
                self.consume_content(input.len());
            }
            RequestState::Padding => {
                self.padding_left -= input.len() as u8;
                self.finish_record();
            }
            RequestState::Input | RequestState::Ignored => self.consume_content(input.len()),
        }
        Ok(input.len())
    }

    /// Reads a whole record header.
    fn begin_record(&mut self) -> Result<(), RequestError> {
        let header = RecordHeader::parse(&self.collected);
        if header.version != 1 {
            return Err(RequestError::Version);
        }
        (self.content_left, self.padding_left) = (header.content_bytes, header.padding_bytes);
        let is_type = |wanted: RecordType| header.record_type == wanted as u8;
        let is_empty = header.content_bytes == 0;
        self.state = match (header.request_id, self.progress) {
            (0, _) => RequestState::Ignored,
            (REQUEST_ID, Progress::Nothing) if is_type(RecordType::BeginRequest) => {
                if header.content_bytes != 8 {
                    return Err(RequestError::Type);
                }
                RequestState::Begin
            }
            (REQUEST_ID, Progress::Begun | Progress::HasEnvironment)
                if is_type(RecordType::AbortRequest) =>
            {
                self.is_aborted = true;
                RequestState::Ignored
            }
            (REQUEST_ID, Progress::Begun) if is_type(RecordType::Params) => {
                if is_empty {
                    self.progress = Progress::HasEnvironment;
                }
                RequestState::Params
            }
            (REQUEST_ID, Progress::HasEnvironment) if is_type(RecordType::Stdin) => {
                if is_empty {
                    self.progress = Progress::HasInput;
                }
                RequestState::Input
            }
            (REQUEST_ID, _) => return Err(RequestError::Type),
            _ => return Err(RequestError::RequestId),
        };
        if self.content_left == 0 {
            self.finish_content();
        }
        Ok(())
    }

    /// Reads the content of BEGIN_REQUEST.
    fn begin_request(&mut self) -> Result<(), RequestError> {
        let [role1, role0, flags, ..] = self.collected;
        if u16::from_be_bytes([role1, role0]) != RESPONDER {
            return Err(RequestError::Role);
        }
        self.keeps_connection = flags & KEEPS_CONNECTION != 0;
        self.progress = Progress::Begun;
        self.consume_content(RECORD_HEADER_BYTES);
        Ok(())
    }

    fn consume_content(&mut self, count: usize) {
        self.content_left -= count as u16;
        if self.content_left == 0 {
            self.finish_content();
        }
    }

    fn finish_content(&mut self) {
        self.state = RequestState::Padding;
        self.finish_record();
    }

    fn finish_record(&mut self) {
        if self.padding_left == 0 {
            self.state = RequestState::Header;
        }
    }

    /// Consumes `count` bytes of the body.
    ///
    /// # Panics
    /// Panics if they are not of the body.
    pub fn skip(&mut self, count: usize) {
        let is_input = self.state == RequestState::Input && count <= self.content_left.into();
        assert!(count == 0 || is_input, "only the body is skipped");
        if count > 0 {
            self.consume_content(count);
        }
    }

    /// Returns whether the environment has arrived as a whole.
    pub fn has_environment(&self) -> bool {
        self.progress >= Progress::HasEnvironment
    }

    /// Returns whether the server has aborted the request.
    pub fn is_aborted(&self) -> bool {
        self.is_aborted
    }

    /// Returns whether the connection stays open for the next request.
    pub fn keeps_connection(&self) -> bool {
        self.keeps_connection
    }

    /// Returns whether the request has arrived as a whole, or was aborted.
    pub fn has_ended(&self) -> bool {
        let is_whole = self.progress == Progress::HasInput || self.is_aborted;
        is_whole && self.state == RequestState::Header && self.collected_bytes == 0
    }

    /// Returns the names and values of the environment.
    ///
    /// # Errors
    /// [`RequestError::Environment`] if a length leads beyond the end, or there are more than
    /// [`VARIABLES_MAX`] variables.
    pub fn environment(&self) -> Result<Variables<'_>, RequestError> {
        let (mut rest, mut variables) = (&self.params[..], Vec::new());
        while !rest.is_empty() {
            let name_bytes = take_length(&mut rest)?;
            let value_bytes = take_length(&mut rest)?;
            let name = take(&mut rest, name_bytes)?;
            let value = take(&mut rest, value_bytes)?;
            if variables.len() == VARIABLES_MAX {
                return Err(RequestError::Environment);
            }
            variables.push((name, value));
        }
        Ok(variables)
    }
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], RequestError> {
    rest.split_off(..count).ok_or(RequestError::Environment)
}

/// Takes a length of a name or value: one byte below 128, otherwise four with the first bit set.
fn take_length(rest: &mut &[u8]) -> Result<usize, RequestError> {
    match take(rest, 1)?[0] {
        short @ 0..128 => Ok(short.into()),
        first => {
            let more = take(rest, 3)?;
            Ok(u32::from_be_bytes([first & 127, more[0], more[1], more[2]]) as usize)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::fuzz_request_records;
    use crate::{AuthorizationFor, Environment, write_abort, write_input_header, write_request};

    fn request(variables: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut environment = Environment::new(AuthorizationFor::NoProgram);
        for (name, value) in variables {
            environment.set(name, value);
        }
        let mut out = Vec::new();
        write_request(&mut out, &environment);
        out
    }

    /// Decodes bytes. Returns the decoder, the body and the unread bytes.
    fn decode(bytes: &[u8]) -> Result<(RequestDecoder, Vec<u8>, usize), RequestError> {
        fuzz_request_records(bytes);
        let (mut decoder, mut body, mut rest) = (RequestDecoder::default(), Vec::new(), bytes);
        loop {
            match decoder.next_part(rest)? {
                RequestPart::Framing(count) => rest = &rest[count..],
                RequestPart::Input(count) => {
                    body.extend_from_slice(&rest[..count]);
                    decoder.skip(count);
                    rest = &rest[count..];
                }
                RequestPart::Incomplete | RequestPart::Ended => break,
            }
        }
        Ok((decoder, body, rest.len()))
    }

    #[test]
    fn a_written_request_is_read() {
        let long = vec![b'v'; 70_000];
        let variables: [(&[u8], &[u8]); 2] = [(b"A", b"1"), (b"LONG", &long)];
        let mut bytes = request(&variables);
        bytes.extend_from_slice(&write_input_header(4));
        bytes.extend_from_slice(b"body");
        let (decoder, body, _) = decode(&bytes).unwrap();
        assert!(decoder.has_environment() && decoder.keeps_connection() && !decoder.has_ended());
        assert_eq!(body, b"body");
        bytes.extend_from_slice(&write_input_header(0));
        bytes.extend_from_slice(b"next");
        let (decoder, _, rest) = decode(&bytes).unwrap();
        assert!(decoder.has_ended() && rest == 4);
        assert_eq!(decoder.environment().unwrap(), variables);
    }

    #[test]
    fn an_aborted_request_has_ended() {
        let mut bytes = request(&[(b"A", b"1")]);
        bytes.extend_from_slice(&write_abort());
        let (decoder, ..) = decode(&bytes).unwrap();
        assert!(decoder.is_aborted() && decoder.has_ended());
    }

    #[test]
    fn malformed_records_are_refused() {
        let begun = request(&[]);
        let record = |kind: u8, id: u8, content: &[u8]| {
            let mut bytes = vec![1, kind, 0, id, 0, content.len() as u8, 0, 0];
            bytes.extend_from_slice(content);
            bytes
        };
        for (bytes, expected) in [
            (vec![2; 8], RequestError::Version),
            (record(1, 2, &[0; 8]), RequestError::RequestId),
            (record(5, 1, b""), RequestError::Type),
            (record(1, 1, &[0, 1, 0]), RequestError::Type),
            (record(1, 1, &[0, 2, 1, 0, 0, 0, 0, 0]), RequestError::Role),
            ([begun.clone(), record(4, 1, b"")].concat(), RequestError::Type),
            ([begun, record(6, 1, b"")].concat(), RequestError::Type),
        ] {
            assert_eq!(decode(&bytes).map(drop), Err(expected), "{bytes:?}");
        }
    }

    #[test]
    fn the_environment_is_bounded() {
        let begin = &request(&[])[..16];
        let params = |content: &[u8]| {
            let [length1, length0] = (content.len() as u16).to_be_bytes();
            [&[1, 4, 0, 1, length1, length0, 0, 0], content].concat()
        };
        for content in [&[1, 200, b'a'][..], &[5, 0, b'a'], &[128], &[0]] {
            let bytes = [begin, &params(content)].concat();
            let (decoder, ..) = decode(&bytes).unwrap();
            assert_eq!(decoder.environment(), Err(RequestError::Environment), "{content:?}");
        }
        let many = [begin, &params(&[0; 2 * VARIABLES_MAX + 2])].concat();
        assert_eq!(decode(&many).unwrap().0.environment(), Err(RequestError::Environment));
        let count = ENVIRONMENT_BYTES_MAX / 65_000 + 1;
        let large = [begin, &params(&[b'a'; 65_000]).repeat(count)].concat();
        assert_eq!(decode(&large).map(drop), Err(RequestError::Environment));
    }
}
