//! The ClientHello, read before a session exists: the name that the client asks for, and the
//! protocols that it speaks.

use rustls::server::Acceptor;

use crate::error::{TlsError, TlsErrorKind};

/// The most bytes of a ClientHello, with the headers of its records.
pub const HELLO_BYTES_MAX: usize = 16 * 1024;

/// The parts of a ClientHello that decide which settings a session gets.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ClientHello {
    /// The name of the server (SNI) in lower case, without a dot at the end. With an encrypted
    /// ClientHello (ECH) the outer name.
    pub server_name: Option<String>,
    /// The application protocols (ALPN), in the client's order of preference.
    pub alpn: Vec<Vec<u8>>,
}

/// The result of [`peek`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peek {
    /// The ClientHello is not complete.
    Incomplete,
    /// The ClientHello.
    Hello(ClientHello),
    /// The bytes cannot become a ClientHello that is served. `alert` has the bytes with which the
    /// client is informed; empty if it speaks no TLS.
    Failed {
        /// The reason.
        error: TlsError,
        /// An alert record, or nothing.
        alert: Vec<u8>,
    },
}

/// Reads the ClientHello at the beginning of `bytes`, the bytes that the client has sent so far.
pub fn peek(bytes: &[u8]) -> Peek {
    let begins_record = bytes.first().is_none_or(|first| *first == HANDSHAKE_RECORD);
    if !begins_record {
        let is_http = bytes[0].is_ascii_uppercase();
        let kind = if is_http { TlsErrorKind::PlainHttp } else { TlsErrorKind::Malformed };
        let error = TlsError::new(kind, "the connection does not begin with a TLS handshake");
        return Peek::Failed { error, alert: Vec::new() };
    }
    if bytes.len() < HELLO_BYTES_MAX && lacks_bytes(bytes) {
        return Peek::Incomplete;
    }
    let mut acceptor = Acceptor::default();
    let mut rest = &bytes[..bytes.len().min(HELLO_BYTES_MAX)];
    loop {
        if let Err(error) = acceptor.read_tls(&mut rest) {
            return failed(TlsError::new(TlsErrorKind::Malformed, error));
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                let name = hello.server_name().map(normal_name);
                let alpn = hello.alpn().map(|names| names.map(<[u8]>::to_vec).collect());
                return Peek::Hello(ClientHello {
                    server_name: name,
                    alpn: alpn.unwrap_or_default(),
                });
            }
            Ok(None) if !rest.is_empty() => {}
            Ok(None) if bytes.len() >= HELLO_BYTES_MAX => {
                let detail = format!("the ClientHello has more than {HELLO_BYTES_MAX} bytes");
                return failed(TlsError::new(TlsErrorKind::HelloTooLarge, detail));
            }
            Ok(None) => return Peek::Incomplete,
            Err((error, mut alert)) => {
                let mut bytes = Vec::new();
                alert.write_all(&mut bytes).expect("a vector takes every byte");
                return Peek::Failed { error: error.into(), alert: bytes };
            }
        }
    }
}

/// Returns whether the whole records at the beginning of `bytes` certainly lack a part of the
/// ClientHello. It only adds lengths: rustls decides everything else.
///
/// Without it, rustls would read all records again after each byte of a client that sends a long
/// ClientHello slowly, in records of one byte: 0.1 ms for each, as much as a handshake.
fn lacks_bytes(bytes: &[u8]) -> bool {
    let mut arrived = 0;
    let first = read_records(bytes, |content| arrived += content.len());
    first.is_some_and(|(size, _)| arrived < size)
}

/// Joins the whole records at the beginning of `bytes` to the first message, as far as it has
/// arrived. Returns also the bytes behind these records. `None` if the message cannot become a
/// ClientHello that rustls reads.
pub(crate) fn join_records(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut message = Vec::new();
    let (_, rest) = read_records(bytes, |content| message.extend_from_slice(content))?;
    Some((message, rest))
}

/// Calls `visit` with the content of each whole record at the beginning of `bytes`, up to the end
/// of the first message. Returns the size of the message, as far as its header has arrived, and the
/// bytes behind these records. `None` if the message cannot become a ClientHello that rustls reads.
fn read_records(mut bytes: &[u8], mut visit: impl FnMut(&[u8])) -> Option<(usize, &[u8])> {
    let (mut header, mut arrived) = ([0; 4], 0);
    while arrived < message_bytes(&header[..arrived.min(4)])
        && let Some((kind, length, rest)) = split_header(bytes)
    {
        if kind != HANDSHAKE_RECORD || length == 0 || length > RECORD_BYTES_MAX {
            return None;
        }
        let Some((content, after)) = rest.split_at_checked(length) else { break };
        for (byte, received) in header.iter_mut().skip(arrived).zip(content) {
            *byte = *received;
        }
        arrived += length;
        visit(content);
        bytes = after;
    }
    let header = &header[..arrived.min(4)];
    let is_hello = header.first().is_none_or(|kind| *kind == CLIENT_HELLO);
    let size = message_bytes(header);
    (is_hello && size <= MESSAGE_BYTES_MAX).then_some((size, bytes))
}

/// Splits the header of a record into its type and the length of the content, which follows in the
/// bytes behind it.
pub(crate) fn split_header(bytes: &[u8]) -> Option<(u8, usize, &[u8])> {
    let ([kind, _, _, high, low], rest) = bytes.split_first_chunk()?;
    Some((*kind, u16::from_be_bytes([*high, *low]).into(), rest))
}

/// Returns the size of a handshake message with its header, of which `message` has the beginning.
pub(crate) fn message_bytes(message: &[u8]) -> usize {
    let size = message.get(1..4).unwrap_or_default();
    4 + size.iter().fold(0, |size, byte| size << 8 | usize::from(*byte))
}

fn failed(error: TlsError) -> Peek {
    Peek::Failed { error, alert: Vec::new() }
}

/// The result of [`sniff`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sniffed {
    /// More bytes are needed.
    Incomplete,
    /// A ClientHello.
    Hello(ClientHello),
    /// A ClientHello that is malformed or too large, or that `rustls` cannot read; or another
    /// record of TLS, behind which some servers accept a ClientHello.
    Unreadable,
    /// Anything else.
    Other,
}

/// Reads the first bytes of a stream that may have any protocol: those that its client has sent so
/// far.
pub fn sniff(bytes: &[u8]) -> Sniffed {
    if bytes.first().is_some_and(|first| OTHER_RECORDS.contains(first)) {
        return Sniffed::Unreadable;
    }
    if is_other_protocol(bytes) {
        return Sniffed::Other;
    }
    match peek(bytes) {
        Peek::Incomplete => Sniffed::Incomplete,
        Peek::Hello(hello) => Sniffed::Hello(hello),
        Peek::Failed { .. } => Sniffed::Unreadable,
    }
}

/// Returns whether a stream certainly does not begin with a ClientHello. Some servers skip empty
/// records before it.
fn is_other_protocol(mut bytes: &[u8]) -> bool {
    if bytes.first().is_some_and(|first| *first != HANDSHAKE_RECORD) {
        return true;
    }
    while let [HANDSHAKE_RECORD, _, _, 0, 0, rest @ ..] = bytes {
        bytes = rest;
    }
    matches!(bytes, [HANDSHAKE_RECORD, _, _, _, _, kind, ..] if *kind != CLIENT_HELLO)
}

/// Returns a name in lower case, without a dot at the end.
pub(crate) fn normal_name(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// The first byte of a record with a handshake message (RFC 8446 section 5.1).
pub(crate) const HANDSHAKE_RECORD: u8 = 22;

/// The most bytes of a plain record that rustls reads (RFC 8446 section 5.1), and of a message.
const RECORD_BYTES_MAX: usize = 16 * 1024;
const MESSAGE_BYTES_MAX: usize = 4 + 0xffff;

/// The first bytes of other records: ChangeCipherSpec, alert, application data. GnuTLS accepts a
/// ClientHello behind the first one, and Go behind a warning.
const OTHER_RECORDS: [u8; 3] = [20, 21, 23];

/// The first byte of a ClientHello (RFC 8446 section 4).
pub(crate) const CLIENT_HELLO: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_protocols_are_recognised_by_their_first_bytes() {
        assert_eq!(sniff(b""), Sniffed::Incomplete);
        for other in [
            &b"S"[..],
            b"SSH-2.0-x\r\n",
            b"\0",
            b"\x80\x2e\x01",
            b"\x16\x03\x03\0\x04\x02",
            b"\x16\x03\x03\0\0\x16\x03\x03\0\x04\x02",
        ] {
            assert_eq!(sniff(other), Sniffed::Other, "{other:?}");
        }
        for unknown in [&b"\x16"[..], b"\x16\x03\x01\0\x04", b"\x16\x03\x01\0\x04\x01"] {
            assert_eq!(sniff(unknown), Sniffed::Incomplete, "{unknown:?}");
        }
        for unreadable in [
            &b"\x14"[..],
            b"\x14\x03\x03\0\x01\x01\x16",
            b"\x15\x03\x01\0\x02\x01\x5a",
            b"\x17\x03\x03",
            b"\x16\x03\x01\0\x04\x01\0\0\0",
            b"\x16\x03\x03\0\0\x16\x03\x03\0\x04\x01\0\0\0",
            b"\x16\x03\x03\0\0\x15\x03\x01\0\x02\x01\x5a",
        ] {
            assert_eq!(sniff(unreadable), Sniffed::Unreadable, "{unreadable:?}");
        }
    }

    #[test]
    fn the_records_of_a_slow_client_are_not_read_again_at_each_byte() {
        let mut bytes = Vec::new();
        let mut message = vec![CLIENT_HELLO, 0, 0, 100];
        message.resize(104, 0);
        for byte in message {
            bytes.extend_from_slice(&[HANDSHAKE_RECORD, 3, 1, 0, 1, byte]);
        }
        for end in 1..bytes.len() {
            assert!(lacks_bytes(&bytes[..end]), "{end}");
            assert_eq!(peek(&bytes[..end]), Peek::Incomplete, "{end}");
        }
        assert!(!lacks_bytes(&bytes));
        // Rustls reads at once everything that cannot become a ClientHello.
        for other in [
            &b"\x16\x03\x01\0\x01\x02"[..],
            b"\x16\x03\x01\0\x01\x01\x15\x03\x01\0\x02",
            b"\x16\x03\x01\0\0",
            b"\x16\x03\x01\x40\x01",
            b"\x16\x03\x01\0\x04\x01\x01\0\0",
        ] {
            assert!(!lacks_bytes(other), "{other:?}");
        }
    }

    #[test]
    fn a_hello_beyond_the_limit_is_unreadable() {
        // A message of 65,535 bytes in records of 4,096 bytes.
        let mut bytes = Vec::new();
        let mut message = vec![CLIENT_HELLO, 0, 0xff, 0xff];
        message.resize(8 * 4096, 0);
        for part in message.chunks(4096) {
            bytes.extend_from_slice(&[HANDSHAKE_RECORD, 3, 1, 16, 0]);
            bytes.extend_from_slice(part);
        }
        assert_eq!(sniff(&bytes[..HELLO_BYTES_MAX - 1]), Sniffed::Incomplete);
        assert_eq!(sniff(&bytes[..HELLO_BYTES_MAX]), Sniffed::Unreadable);
        assert_eq!(sniff(&bytes), Sniffed::Unreadable);
    }
}
