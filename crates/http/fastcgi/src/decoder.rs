//! Decoding the records of a response.

use std::ops::Range;

use crate::error::RecordError;
use crate::limits::ERROR_BYTES_MAX;
use crate::record::{RECORD_HEADER_BYTES, REQUEST_ID, RecordHeader, RecordType};

/// A decoder of the records of one response, which arrive in pieces. The payload is what the
/// program wrote to its standard output: a CGI header, then the body.
///
/// `ResponseDecoder::default()` expects the first byte of the first record.
#[derive(Debug, Default)]
pub struct ResponseDecoder {
    /// The first bytes of a record header, or of the content of END_REQUEST, while the rest has not
    /// arrived: `collected[..collected_bytes]`.
    collected: [u8; RECORD_HEADER_BYTES],
    collected_bytes: u8,
    /// The content of the present record that has not been read.
    content_left: u16,
    /// The padding of the present record that has not been read.
    padding_left: u8,
    state: DecoderState,
    /// Whether the program has ended its standard output.
    has_ended_output: bool,
    /// Whether an END_REQUEST record has arrived, at least its content.
    has_ended: bool,
    /// The error that ended decoding. Every later call returns it.
    failed: Option<RecordError>,
    /// The beginning of the program's standard error, until it is taken. Allocated with its first
    /// byte.
    errors: Vec<u8>,
}

/// The part of the stream that the next byte belongs to.
///
/// ```text
///           ┌──────────── the content and padding of a record ────────────┐
///           v                                                             │
///  ──> Header ──> Output, Errors, Ignored, or End (END_REQUEST) ──> Padding ──> Ended
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum DecoderState {
    #[default]
    Header,
    Output,
    Errors,
    /// The content of a management record, or the rest of END_REQUEST.
    Ignored,
    /// The first 8 bytes of the content of END_REQUEST.
    End,
    Padding,
    Ended,
}

/// The next part of the bytes of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResponsePart {
    /// This many bytes, at least one, are framing or standard error. [`ResponseDecoder::next_part`]
    /// has consumed them.
    Framing(usize),
    /// This many bytes, at least one, are payload. The caller consumes them, or some of them, by
    /// [`ResponseDecoder::skip`].
    Payload(usize),
    /// More bytes have to arrive.
    Incomplete,
    /// The response has ended. Bytes that follow belong to no response.
    Ended,
}

/// The result of one call of [`ResponseDecoder::decode`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DecodeProgress {
    /// Bytes of the input that were read: all of them, unless the response ended or is malformed.
    pub consumed: usize,
    /// The range of the input that holds the payload, in one piece. It may be empty.
    pub payload: Range<usize>,
    /// Whether the response ended.
    pub ended: bool,
}

impl ResponseDecoder {
    /// Decodes the next bytes. `input` begins right after the bytes that the last call consumed.
    ///
    /// The payload of several records is moved together in place, so `input[..consumed]` no longer
    /// holds the received bytes. Nothing after the end of the response is read or changed.
    ///
    /// # Errors
    /// Returns an error if the records are no response. Payload before them is returned first; the
    /// next call and all later ones return the error. [`ResponseDecoder::is_malformed`] reports
    /// early that an error follows.
    pub fn decode(&mut self, input: &mut [u8]) -> Result<DecodeProgress, RecordError> {
        let (mut consumed, mut payload) = (0, 0..0);
        loop {
            match self.next_part(&input[consumed..]) {
                Ok(ResponsePart::Framing(count)) => consumed += count,
                Ok(ResponsePart::Payload(count)) => {
                    if payload.is_empty() {
                        payload = consumed..consumed;
                    } else {
                        input.copy_within(consumed..consumed + count, payload.end);
                    }
                    payload.end += count;
                    consumed += count;
                    self.skip(count as u64);
                }
                Ok(ResponsePart::Incomplete | ResponsePart::Ended) => break,
                Err(error) if payload.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(DecodeProgress { consumed, payload, ended: self.is_finished() })
    }

    /// Returns the next part of the bytes, and consumes it unless it is payload. `input` begins
    /// right after the consumed bytes.
    ///
    /// # Errors
    /// Returns an error if the records are no response, and again in each later call.
    pub fn next_part(&mut self, input: &[u8]) -> Result<ResponsePart, RecordError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let left = match self.state {
            DecoderState::Header | DecoderState::End => RECORD_HEADER_BYTES,
            DecoderState::Output | DecoderState::Errors | DecoderState::Ignored => {
                self.content_left.into()
            }
            DecoderState::Padding => self.padding_left.into(),
            DecoderState::Ended => return Ok(ResponsePart::Ended),
        };
        let count = input.len().min(left);
        if count == 0 {
            return Ok(ResponsePart::Incomplete);
        }
        match self.state {
            DecoderState::Header | DecoderState::End => {
                let count = self.collect(input);
                if usize::from(self.collected_bytes) == RECORD_HEADER_BYTES {
                    self.collected_bytes = 0;
                    let read = match self.state {
                        DecoderState::Header => self.begin_record(),
                        _ => self.end_request(),
                    };
                    read.inspect_err(|error| self.failed = Some(*error))?;
                }
                return Ok(ResponsePart::Framing(count));
            }
            DecoderState::Output => return Ok(ResponsePart::Payload(count)),
            DecoderState::Errors => {
                let space = ERROR_BYTES_MAX - self.errors.len();
                self.errors.extend_from_slice(&input[..count.min(space)]);
                self.consume_content(count);
            }
            DecoderState::Ignored => self.consume_content(count),
            DecoderState::Padding => {
                self.padding_left -= count as u8;
                self.finish_record();
            }
            DecoderState::Ended => unreachable!("returned above"),
        }
        Ok(ResponsePart::Framing(count))
    }

    /// Collects the bytes of a header or of the content of END_REQUEST. Returns their number.
    fn collect(&mut self, input: &[u8]) -> usize {
        let rest = &mut self.collected[self.collected_bytes.into()..];
        let count = rest.len().min(input.len());
        rest[..count].copy_from_slice(&input[..count]);
        self.collected_bytes += count as u8;
        count
    }

    /// Reads a whole record header.
    fn begin_record(&mut self) -> Result<(), RecordError> {
        let header = RecordHeader::parse(&self.collected);
        if header.version != 1 {
            return Err(RecordError::Version);
        }
        (self.content_left, self.padding_left) = (header.content_bytes, header.padding_bytes);
        let is_type = |wanted: RecordType| header.record_type == wanted as u8;
        self.state = match header.request_id {
            // A management record, which no request caused.
            0 => DecoderState::Ignored,
            REQUEST_ID if is_type(RecordType::Stdout) && header.content_bytes == 0 => {
                self.has_ended_output = true;
                DecoderState::Ignored
            }
            REQUEST_ID if is_type(RecordType::Stdout) && self.has_ended_output => {
                return Err(RecordError::OutputAfterEnd);
            }
            REQUEST_ID if is_type(RecordType::Stdout) => DecoderState::Output,
            REQUEST_ID if is_type(RecordType::Stderr) => DecoderState::Errors,
            REQUEST_ID if is_type(RecordType::EndRequest) => match header.content_bytes {
                0..8 => return Err(RecordError::EndTooShort),
                _ => DecoderState::End,
            },
            REQUEST_ID => return Err(RecordError::Type),
            _ => return Err(RecordError::RequestId),
        };
        if self.content_left == 0 {
            self.finish_content();
        }
        Ok(())
    }

    /// Reads the content of END_REQUEST: the exit status of the program, which has no meaning for
    /// the client, and the status of the protocol.
    fn end_request(&mut self) -> Result<(), RecordError> {
        self.has_ended = true;
        match self.collected[4] {
            0 => {}
            1 => return Err(RecordError::CannotMultiplex),
            2 => return Err(RecordError::Overloaded),
            _ => return Err(RecordError::UnknownRole),
        }
        self.state = DecoderState::Ignored;
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
        self.state = DecoderState::Padding;
        if self.padding_left == 0 {
            self.finish_record();
        }
    }

    fn finish_record(&mut self) {
        if self.padding_left == 0 {
            self.state = if self.has_ended { DecoderState::Ended } else { DecoderState::Header };
        }
    }

    /// Returns the number of bytes of payload that follow without framing between them.
    ///
    /// A caller may move these bytes without the decoder, for example by splice(2), and report them
    /// with [`ResponseDecoder::skip`].
    pub fn payload_left(&self) -> u64 {
        if self.state == DecoderState::Output { self.content_left.into() } else { 0 }
    }

    /// Consumes `count` bytes of payload.
    ///
    /// # Panics
    /// Panics if `count` is greater than [`ResponseDecoder::payload_left`].
    pub fn skip(&mut self, count: u64) {
        assert!(count <= self.payload_left(), "only payload is skipped");
        if count > 0 {
            self.consume_content(count as usize);
        }
    }

    /// Returns whether the program has ended its output. The records after it have no payload.
    pub fn has_ended_output(&self) -> bool {
        self.has_ended_output || self.has_ended
    }

    /// Returns whether the response ended, with its last record.
    pub fn is_finished(&self) -> bool {
        self.state == DecoderState::Ended
    }

    /// Returns whether the records after the payload returned so far are malformed.
    pub fn is_malformed(&self) -> bool {
        self.failed.is_some()
    }

    /// Takes the kept bytes of the program's standard error.
    pub fn take_errors(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::fuzz_records;

    const STDOUT: u8 = 6;
    const STDERR: u8 = 7;
    const END: [u8; 8] = [0; 8];

    fn record(record_type: u8, id: u8, content: &[u8], padding: u8) -> Vec<u8> {
        let [length1, length0] = (content.len() as u16).to_be_bytes();
        let mut bytes = vec![1, record_type, 0, id, length1, length0, padding, 0];
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len() + usize::from(padding), b'#');
        bytes
    }

    fn decode(records: &[Vec<u8>]) -> (Result<DecodeProgress, RecordError>, Vec<u8>, Vec<u8>) {
        let mut bytes = records.concat();
        fuzz_records(&bytes);
        let mut decoder = ResponseDecoder::default();
        let progress = decoder.decode(&mut bytes);
        let payload = progress.as_ref().map_or(0..0, |progress| progress.payload.clone());
        (progress, bytes[payload].to_vec(), decoder.take_errors())
    }

    #[test]
    fn payload_and_errors_are_separated() {
        let records = [
            record(STDOUT, 1, b"ab", 3),
            record(STDERR, 1, b"wrong", 0),
            record(STDOUT, 1, b"c", 255),
            record(10, 0, b"management", 1),
            record(STDERR, 1, b"", 1),
            record(STDOUT, 1, b"", 1),
            record(3, 1, &END, 5),
        ];
        let total = records.concat().len();
        let (progress, payload, errors) = decode(&records);
        let progress = progress.unwrap();
        assert!(progress.ended && progress.consumed == total);
        assert_eq!((&payload[..], &errors[..]), (&b"abc"[..], &b"wrong"[..]));
    }

    #[test]
    fn an_end_without_an_end_of_output_ends_the_response() {
        let (progress, payload, _) = decode(&[record(STDOUT, 1, b"a", 0), record(3, 1, &END, 0)]);
        assert!(progress.unwrap().ended);
        assert_eq!(payload, b"a");
    }

    #[test]
    fn bytes_after_the_end_are_not_consumed() {
        let end = record(3, 1, &[END, END].concat(), 2);
        let length = end.len();
        let (progress, ..) = decode(&[end, b"more".to_vec()]);
        assert_eq!(progress.unwrap().consumed, length);
    }

    #[test]
    fn malformed_records_are_refused() {
        let refusal = |status: u8| [0, 0, 0, 0, status, 0, 0, 0];
        let ended = record(STDOUT, 1, b"", 0);
        for (records, expected) in [
            (vec![vec![2; 8]], RecordError::Version),
            (vec![record(STDOUT, 2, b"a", 0)], RecordError::RequestId),
            (vec![record(5, 1, b"a", 0)], RecordError::Type),
            (vec![ended, record(STDOUT, 1, b"a", 0)], RecordError::OutputAfterEnd),
            (vec![record(3, 1, &END[..7], 0)], RecordError::EndTooShort),
            (vec![record(3, 1, &refusal(1), 0)], RecordError::CannotMultiplex),
            (vec![record(3, 1, &refusal(2), 0)], RecordError::Overloaded),
            (vec![record(3, 1, &refusal(3), 0)], RecordError::UnknownRole),
        ] {
            assert_eq!(decode(&records).0.unwrap_err(), expected);
            let before = [vec![record(STDOUT, 1, b"ab", 0)], records].concat();
            if expected != RecordError::OutputAfterEnd {
                let (progress, payload, _) = decode(&before);
                assert!(!progress.unwrap().ended);
                assert_eq!(payload, b"ab", "payload before the error is returned first");
            }
        }
    }

    #[test]
    fn standard_error_is_bounded() {
        let flood = vec![record(STDERR, 1, &[b'e'; 60_000], 0); 3];
        let (progress, _, errors) = decode(&flood);
        assert_eq!(progress.unwrap().consumed, flood.concat().len());
        assert_eq!(errors.len(), ERROR_BYTES_MAX);
    }

    #[test]
    fn payload_may_be_moved_without_the_decoder() {
        let mut decoder = ResponseDecoder::default();
        let bytes = record(STDOUT, 1, &[0; 1000], 7);
        assert_eq!(decoder.next_part(&bytes), Ok(ResponsePart::Framing(8)));
        assert_eq!(decoder.payload_left(), 1000);
        decoder.skip(999);
        assert_eq!(decoder.next_part(&bytes[1007..]), Ok(ResponsePart::Payload(1)));
        decoder.skip(1);
        assert_eq!(decoder.next_part(&bytes[1008..]), Ok(ResponsePart::Framing(7)));
        assert_eq!(decoder.next_part(&[]), Ok(ResponsePart::Incomplete));
        assert!(!decoder.is_finished());
    }
}
