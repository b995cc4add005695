//! Records: their header, and those that are sent.

use crate::environment::Environment;
use crate::limits::CONTENT_BYTES_MAX;

/// The id of every request.
pub const REQUEST_ID: u16 = 1;

/// The length of a record header.
pub const RECORD_HEADER_BYTES: usize = 8;

const VERSION: u8 = 1;
/// The role of a program that responds to requests.
pub(crate) const RESPONDER: u16 = 1;
/// The flag of BEGIN_REQUEST: the program keeps the connection open after the request.
pub(crate) const KEEPS_CONNECTION: u8 = 1;

/// The types of records between a web server and a responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordType {
    BeginRequest = 1,
    AbortRequest = 2,
    EndRequest = 3,
    Params = 4,
    Stdin = 5,
    Stdout = 6,
    Stderr = 7,
}

/// A record header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordHeader {
    pub(crate) version: u8,
    pub(crate) record_type: u8,
    pub(crate) request_id: u16,
    pub(crate) content_bytes: u16,
    pub(crate) padding_bytes: u8,
}

impl RecordHeader {
    pub(crate) fn parse(bytes: &[u8; RECORD_HEADER_BYTES]) -> Self {
        let [version, record_type, id1, id0, length1, length0, padding_bytes, _] = *bytes;
        Self {
            version,
            record_type,
            request_id: u16::from_be_bytes([id1, id0]),
            content_bytes: u16::from_be_bytes([length1, length0]),
            padding_bytes,
        }
    }
}

/// Returns the header of a record of this request, without padding.
fn header(record_type: RecordType, content_bytes: usize) -> [u8; RECORD_HEADER_BYTES] {
    assert!(content_bytes <= CONTENT_BYTES_MAX, "the caller divides longer content");
    let [id1, id0] = REQUEST_ID.to_be_bytes();
    let [length1, length0] = (content_bytes as u16).to_be_bytes();
    [VERSION, record_type as u8, id1, id0, length1, length0, 0, 0]
}

/// Appends the records that begin a request: BEGIN_REQUEST, and the environment as PARAMS. The body
/// follows as STDIN records, the last of which is empty.
pub fn write_request(out: &mut Vec<u8>, environment: &Environment) {
    let [role1, role0] = RESPONDER.to_be_bytes();
    out.extend_from_slice(&header(RecordType::BeginRequest, 8));
    out.extend_from_slice(&[role1, role0, KEEPS_CONNECTION, 0, 0, 0, 0, 0]);
    let start = out.len();
    out.extend_from_slice(&header(RecordType::Params, 0));
    for (name, value) in environment.variables() {
        push_length(out, name.len());
        push_length(out, value.clone().map(<[u8]>::len).sum());
        out.extend_from_slice(name);
        value.for_each(|piece| out.extend_from_slice(piece));
    }
    close_params(out, start);
    out.extend_from_slice(&header(RecordType::Params, 0));
}

/// Sets the length of the PARAMS record at offset `start`, which ends with the bytes in `out`. Long
/// content is divided into several records. An empty record would end the stream, so it is removed.
fn close_params(out: &mut Vec<u8>, start: usize) {
    let content_at = start + RECORD_HEADER_BYTES;
    match out.len() - content_at {
        0 => out.truncate(start),
        bytes @ ..=CONTENT_BYTES_MAX => {
            out[start..content_at].copy_from_slice(&header(RecordType::Params, bytes));
        }
        _ => {
            let content = out.split_off(content_at);
            out.truncate(start);
            for part in content.chunks(CONTENT_BYTES_MAX) {
                out.extend_from_slice(&header(RecordType::Params, part.len()));
                out.extend_from_slice(part);
            }
        }
    }
}

/// Appends a length of a name or value: one byte below 128, otherwise four with the first bit set.
fn push_length(out: &mut Vec<u8>, length: usize) {
    match length {
        ..128 => out.push(length as u8),
        _ => out.extend_from_slice(&(length as u32 | 1 << 31).to_be_bytes()),
    }
}

/// Returns the header of a STDIN record, which `content_bytes` bytes of the body follow, at most
/// [`CONTENT_BYTES_MAX`]. A record of 0 bytes ends the body.
pub fn write_input_header(content_bytes: usize) -> [u8; RECORD_HEADER_BYTES] {
    header(RecordType::Stdin, content_bytes)
}

/// Returns the record that aborts the request.
pub fn write_abort() -> [u8; RECORD_HEADER_BYTES] {
    header(RecordType::AbortRequest, 0)
}

/// A stream of bytes that a program writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutputStream {
    /// The response: a CGI header and a body.
    Output,
    /// Messages for the operator.
    Errors,
}

/// Returns the header of a record with `content_bytes` bytes of a program's output, from 1 to
/// [`CONTENT_BYTES_MAX`]. They follow it.
pub fn write_output_header(
    stream: OutputStream,
    content_bytes: usize,
) -> [u8; RECORD_HEADER_BYTES] {
    let record_type = match stream {
        OutputStream::Output => RecordType::Stdout,
        OutputStream::Errors => RecordType::Stderr,
    };
    header(record_type, content_bytes)
}

/// Returns END_REQUEST of a complete request, with the exit status of the program.
pub fn write_end(exit_status: u32) -> [u8; 2 * RECORD_HEADER_BYTES] {
    let mut record = [0; 2 * RECORD_HEADER_BYTES];
    record[..RECORD_HEADER_BYTES].copy_from_slice(&header(RecordType::EndRequest, 8));
    record[RECORD_HEADER_BYTES..][..4].copy_from_slice(&exit_status.to_be_bytes());
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AuthorizationFor;

    /// Splits bytes into the type and content of each record.
    fn records(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut records = Vec::new();
        while let Some((head, rest)) = bytes.split_first_chunk() {
            let head = RecordHeader::parse(head);
            assert_eq!((head.version, head.request_id, head.padding_bytes), (1, REQUEST_ID, 0));
            let (content, rest) = rest.split_at(head.content_bytes.into());
            records.push((head.record_type, content.to_vec()));
            bytes = rest;
        }
        records
    }

    /// Splits the content of PARAMS records into names and values.
    fn pairs(mut bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut pairs = Vec::new();
        while !bytes.is_empty() {
            let mut take = |count: usize| {
                let (taken, rest) = bytes.split_at(count);
                bytes = rest;
                taken
            };
            let mut length = || match take(1)[0] {
                short @ 0..128 => usize::from(short),
                first => {
                    let rest = take(3);
                    u32::from_be_bytes([first & 127, rest[0], rest[1], rest[2]]) as usize
                }
            };
            let (name, value) = (length(), length());
            pairs.push((take(name).to_vec(), take(value).to_vec()));
        }
        pairs
    }

    #[test]
    fn a_request_begins_with_its_environment() {
        for length in
            [0, 127, 128, CONTENT_BYTES_MAX - 30, CONTENT_BYTES_MAX, 3 * CONTENT_BYTES_MAX]
        {
            let mut environment = Environment::new(AuthorizationFor::Program);
            environment.set(b"A", &vec![b'v'; length]);
            environment.set(&[b'N'; 200], b"");
            let mut out = Vec::new();
            write_request(&mut out, &environment);
            let records = records(&out);
            let (first, params) = records.split_first().unwrap();
            assert_eq!(*first, (1, vec![0, 1, 1, 0, 0, 0, 0, 0]));
            let (last, full) = params.split_last().unwrap();
            assert_eq!(*last, (4, Vec::new()), "an empty record ends the stream");
            assert!(full.iter().all(|(kind, content)| *kind == 4 && !content.is_empty()));
            let content: Vec<u8> = full.iter().flat_map(|(_, content)| content.clone()).collect();
            let expected = [(b"A".to_vec(), vec![b'v'; length]), (vec![b'N'; 200], Vec::new())];
            assert!(pairs(&content) == expected, "{length}");
        }
    }

    #[test]
    fn a_request_without_environment_has_one_record_of_it() {
        let mut out = Vec::new();
        write_request(&mut out, &Environment::new(AuthorizationFor::Program));
        assert_eq!(records(&out).len(), 2);
    }

    #[test]
    fn the_records_of_a_body_and_of_an_abort() {
        assert_eq!(write_input_header(0x1234), [1, 5, 0, 1, 0x12, 0x34, 0, 0]);
        assert_eq!(write_abort(), [1, 2, 0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn the_records_of_a_response_are_decoded() {
        let output = write_output_header(OutputStream::Output, 2);
        let errors = write_output_header(OutputStream::Errors, 3);
        let mut bytes =
            [&output[..], b"ab", &errors, b"bad", &output, b"cd", &write_end(1)].concat();
        let mut decoder = crate::ResponseDecoder::default();
        let progress = decoder.decode(&mut bytes).unwrap();
        assert!(progress.ended);
        assert_eq!(&bytes[progress.payload], b"abcd");
        assert_eq!(decoder.take_errors(), b"bad");
    }
}
