//! Fuzz functions, which check properties that hold for any input.

use millrace_http1::{HeadLimits, HeadScan, ResponseHead, declared_length};

use crate::decoder::{ResponseDecoder, ResponsePart};
use crate::error::{RecordError, RequestError};
use crate::header::{HeaderForm, convert_header, header_length};
use crate::limits::{ENVIRONMENT_BYTES_MAX, ERROR_BYTES_MAX};
use crate::request_decoder::{RequestDecoder, RequestPart};

/// Checks that the records of a response have the same meaning whole and byte by byte.
///
/// # Panics
/// If a property does not hold.
pub fn fuzz_records(data: &[u8]) {
    let whole = decode(data, data.len().max(1));
    assert_eq!(decode(data, 1), whole);
    assert_eq!(decode(data, 7), whole);
    assert_eq!(by_parts(data), whole);
}

/// The results of a decoder: the payload, the standard error, the consumed bytes, whether the
/// response ended, and the error.
type Decoded = (Vec<u8>, Vec<u8>, usize, bool, Option<RecordError>);

/// Decodes pieces of `size` bytes in place.
fn decode(data: &[u8], size: usize) -> Decoded {
    let mut decoder = ResponseDecoder::default();
    let (mut payload, mut consumed, mut failure) = (Vec::new(), 0, None);
    for piece in data.chunks(size) {
        let mut piece = piece.to_vec();
        let mut rest = &mut piece[..];
        while failure.is_none() && !decoder.is_finished() && !rest.is_empty() {
            match decoder.decode(rest) {
                Ok(progress) => {
                    assert!(progress.payload.end <= progress.consumed);
                    assert!(progress.consumed > 0 || decoder.is_malformed());
                    payload.extend_from_slice(&rest[progress.payload]);
                    consumed += progress.consumed;
                    rest = &mut rest[progress.consumed..];
                }
                Err(error) => failure = Some(error),
            }
        }
    }
    if decoder.is_malformed() && failure.is_none() {
        failure = decoder.decode(&mut []).err();
    }
    finished(decoder, payload, consumed, failure)
}

/// Decodes with [`ResponseDecoder::next_part`], and skips each payload in two steps.
fn by_parts(data: &[u8]) -> Decoded {
    let mut decoder = ResponseDecoder::default();
    let (mut payload, mut consumed, mut failure) = (Vec::new(), 0, None);
    loop {
        let rest = &data[consumed..];
        match decoder.next_part(rest) {
            Ok(ResponsePart::Framing(count)) => consumed += count,
            Ok(ResponsePart::Payload(count)) => {
                payload.extend_from_slice(&rest[..count]);
                decoder.skip(count as u64 / 2);
                decoder.skip((count - count / 2) as u64);
                consumed += count;
            }
            Ok(ResponsePart::Incomplete | ResponsePart::Ended) => break,
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    finished(decoder, payload, consumed, failure)
}

fn finished(
    mut decoder: ResponseDecoder,
    payload: Vec<u8>,
    consumed: usize,
    failure: Option<RecordError>,
) -> Decoded {
    let errors = decoder.take_errors();
    assert!(errors.len() <= ERROR_BYTES_MAX);
    // The bytes of the record that failed count differently by the way in which they arrived.
    let consumed = if failure.is_some() { 0 } else { consumed };
    (payload, errors, consumed, decoder.is_finished(), failure)
}

/// Checks that the records of a request have the same meaning whole and byte by byte.
///
/// # Panics
/// If a property does not hold.
pub fn fuzz_request_records(data: &[u8]) {
    let whole = decode_request(data, data.len().max(1));
    assert_eq!(decode_request(data, 1), whole);
    assert_eq!(decode_request(data, 7), whole);
}

/// The results of a decoder of a request: the environment, the body, whether the request ended, and
/// the error.
type DecodedRequest = (Vec<(Vec<u8>, Vec<u8>)>, Vec<u8>, bool, Option<RequestError>);

/// Decodes pieces of `size` bytes.
fn decode_request(data: &[u8], size: usize) -> DecodedRequest {
    let mut decoder = RequestDecoder::default();
    let (mut body, mut failure) = (Vec::new(), None);
    'pieces: for piece in data.chunks(size) {
        let mut rest = piece;
        loop {
            match decoder.next_part(rest) {
                Ok(RequestPart::Framing(count)) => rest = &rest[count..],
                Ok(RequestPart::Input(count)) => {
                    body.extend_from_slice(&rest[..count]);
                    decoder.skip(count / 2);
                    decoder.skip(count - count / 2);
                    rest = &rest[count..];
                }
                Ok(RequestPart::Incomplete) => break,
                Ok(RequestPart::Ended) => break 'pieces,
                Err(error) => {
                    failure = Some(error);
                    break 'pieces;
                }
            }
        }
        assert!(rest.is_empty());
    }
    // The bytes of a record that is too long count differently by the way in which they arrived.
    let environment = if failure.is_some() { Ok(Vec::new()) } else { decoder.environment() };
    let environment = environment.unwrap_or_default();
    let bytes: usize = environment.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(bytes <= ENVIRONMENT_BYTES_MAX);
    let owned = environment.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
    (owned, body, decoder.has_ended(), failure)
}

/// Checks that the length of a header does not depend on the pieces in which it arrives, and that a
/// converted header is one that the parser of responses reads to its end, with the same length of
/// the body.
///
/// # Panics
/// If a property does not hold.
pub fn fuzz_header(data: &[u8]) {
    let whole = header_length(data, &mut 0);
    let mut scanned = 0;
    let piecewise = (0..=data.len()).find_map(|end| header_length(&data[..end], &mut scanned));
    assert_eq!(whole, piecewise);
    let Some(length) = whole else { return };
    let mut out = Vec::new();
    match convert_header(&data[..length], &mut out) {
        Ok(HeaderForm::LocalRedirect) => {
            assert!(out.starts_with(b"HTTP/1.1 302 Found\r\nLocation: /"));
        }
        Ok(HeaderForm::Document { content_length }) => {
            let limits =
                HeadLimits { bytes_max: 1 << 20, fields_max: 1000, target_bytes_max: 8192 };
            let mut head = ResponseHead::default();
            let read = head.parse(&out, &mut HeadScan::default(), &limits);
            assert!(read.is_err() || read == Ok(Some(out.len())), "{read:?}");
            if let (Ok(_), Ok(declared)) = (read, declared_length(&head)) {
                assert!(content_length.is_none() || declared == content_length);
            }
        }
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use millrace_http1::corpus;

    use super::*;

    #[test]
    fn the_corpus_of_records_holds() {
        corpus::run("fastcgi_records", 100, corpus::mutate_bytes, fuzz_records);
    }

    #[test]
    fn the_corpus_of_requests_holds() {
        corpus::run("fastcgi_requests", 100, corpus::mutate_bytes, fuzz_request_records);
    }

    #[test]
    fn the_corpus_of_headers_holds() {
        corpus::run("cgi_header", 100, corpus::mutate_bytes, fuzz_header);
    }
}
