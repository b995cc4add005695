//! The second ClientHello of a connection, which a server requests by a HelloRetryRequest (RFC 8446
//! section 4.1.4). It is in the clear like the first one, and several servers take the name in it.

use crate::hello::{
    CLIENT_HELLO, HANDSHAKE_RECORD, HELLO_BYTES_MAX, Sniffed, join_records, message_bytes, sniff,
    split_header,
};

/// The bytes of a client behind its first ClientHello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterHello {
    /// None, or whole records that may precede a second ClientHello.
    Nothing,
    /// The beginning of such a record.
    Incomplete,
    /// Bytes behind which no second ClientHello is accepted.
    Other,
    /// Early data follows, or may follow. A server that requests a second ClientHello skips it,
    /// however long it is (RFC 8446 section 4.2.10).
    EarlyData,
    /// The beginning of a handshake message that no server can have requested yet.
    Unrequested,
}

/// Returns what follows the ClientHello at the beginning of `bytes`, which [`sniff`] has read.
pub fn after_hello(bytes: &[u8]) -> AfterHello {
    let Some((message, rest)) = join_records(bytes) else { return AfterHello::Unrequested };
    match skip_changes(rest).first() {
        _ if message.len() != message_bytes(&message) => AfterHello::Unrequested,
        _ if offers_early_data(&message) => AfterHello::EarlyData,
        None => AfterHello::Nothing,
        Some(&HANDSHAKE_RECORD) => AfterHello::Unrequested,
        Some(kind) if CHANGES.contains(kind) => AfterHello::Incomplete,
        Some(_) => AfterHello::Other,
    }
}

/// Returns whether a whole ClientHello has the extension early_data.
fn offers_early_data(message: &[u8]) -> bool {
    // Type, size, version and random; the session, the suites and the compressions follow.
    let rest = message.get(38..).and_then(|rest| split_vector(rest, 1));
    let rest = rest.and_then(|(_, rest)| split_vector(rest, 2));
    let rest = rest.and_then(|(_, rest)| split_vector(rest, 1));
    let extensions = rest.and_then(|(_, rest)| split_vector(rest, 2));
    let mut extensions = extensions.map_or(&[][..], |(extensions, _)| extensions);
    while let Some((kind, rest)) = extensions.split_first_chunk()
        && let Some((_, after)) = split_vector(rest, 2)
    {
        if u16::from_be_bytes(*kind) == EARLY_DATA {
            return true;
        }
        extensions = after;
    }
    false
}

/// Splits a vector whose length has `size` bytes into its content and the bytes behind it.
fn split_vector(bytes: &[u8], size: usize) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_at_checked(size)?;
    let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    rest.split_at_checked(length)
}

/// Reads the bytes that a client has sent after its first ClientHello was passed on: whether they
/// are a second one.
pub fn sniff_second(bytes: &[u8]) -> Sniffed {
    let rest = skip_changes(bytes);
    let sniffed = match rest {
        [kind, ..] if CHANGES.contains(kind) => Sniffed::Incomplete,
        [HANDSHAKE_RECORD, ..] => match is_hello(rest) {
            None => Sniffed::Incomplete,
            Some(true) => sniff(rest),
            Some(false) => Sniffed::Other,
        },
        [] => Sniffed::Incomplete,
        _ => Sniffed::Other,
    };
    match sniffed {
        Sniffed::Incomplete if bytes.len() >= HELLO_BYTES_MAX => Sniffed::Unreadable,
        sniffed => sniffed,
    }
}

/// Returns whether a handshake record begins with a ClientHello; `None` if bytes are missing.
///
/// With TLS 1.2 the record may have an encrypted message, which begins with any byte, but is never
/// shorter than these six bytes: type, size, and version.
fn is_hello(record: &[u8]) -> Option<bool> {
    let (_, length, content) = split_header(record)?;
    match content.get(..length.min(6))? {
        [kind, size, _, _, major, _] => Some(*kind == CLIENT_HELLO && *size < 4 && *major == 3),
        short => Some(short.first().is_none_or(|kind| *kind == CLIENT_HELLO)),
    }
}

/// Skips whole records that may precede a second ClientHello.
fn skip_changes(mut bytes: &[u8]) -> &[u8] {
    while let Some((kind, length, rest)) = split_header(bytes)
        && CHANGES.contains(&kind)
        && let Some(after) = rest.get(length..)
    {
        bytes = after;
    }
    bytes
}

/// The types of records that servers skip before a second ClientHello: ChangeCipherSpec, which TLS
/// 1.3 allows there, and alerts, since warnings are skipped.
const CHANGES: [u8; 2] = [20, 21];
/// The number of the extension early_data (RFC 8446 section 4.2).
const EARLY_DATA: u16 = 42;

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGE: &[u8] = b"\x14\x03\x03\0\x01\x01";

    /// A ClientHello without extensions, in records of `size` bytes.
    fn hello(size: usize) -> Vec<u8> {
        hello_with(size, b"")
    }

    /// A ClientHello that ends in `extensions`.
    fn hello_with(size: usize, extensions: &[u8]) -> Vec<u8> {
        let mut message = vec![CLIENT_HELLO, 0, 0, 41 + extensions.len() as u8, 3, 3];
        message.extend_from_slice(&[7; 32]);
        message.extend_from_slice(b"\0\0\x02\x13\x01\x01\0");
        message.extend_from_slice(extensions);
        let records = message
            .chunks(size)
            .map(|part| [&[HANDSHAKE_RECORD, 3, 1, 0, part.len() as u8], part].concat());
        records.collect::<Vec<_>>().concat()
    }

    #[test]
    fn bytes_behind_the_first_hello() {
        for size in [1, 3, 4, 100] {
            for (after, expected) in [
                (&b""[..], AfterHello::Nothing),
                (CHANGE, AfterHello::Nothing),
                (&CHANGE[..3], AfterHello::Incomplete),
                (b"\x17", AfterHello::Other),
                (b"x", AfterHello::Other),
                (b"\x16", AfterHello::Unrequested),
                (&[CHANGE, b"\x16"].concat(), AfterHello::Unrequested),
            ] {
                let bytes = [&hello(size), after].concat();
                assert_eq!(after_hello(&bytes), expected, "{size} {after:?}");
            }
        }
        let mut longer = hello(100);
        longer[4] += 1;
        longer.push(CLIENT_HELLO);
        assert_eq!(after_hello(&longer), AfterHello::Unrequested);
    }

    #[test]
    fn early_data_is_noticed_before_it_follows() {
        let early_data = b"\0\x0c\0\x2b\0\x04\0\0\0\0\0\x2a\0\0";
        for size in [1, 3, 100] {
            for after in [&b""[..], CHANGE, b"\x17\x03\x03"] {
                let bytes = [&hello_with(size, early_data), after].concat();
                assert_eq!(after_hello(&bytes), AfterHello::EarlyData, "{size} {after:?}");
            }
            // The number in the content of another extension.
            let other = b"\0\x08\0\x2b\0\x04\0\x2a\0\0";
            assert_eq!(after_hello(&hello_with(size, other)), AfterHello::Nothing);
        }
    }

    #[test]
    fn a_second_hello_is_read_however_it_is_cut() {
        for size in [1, 3, 4, 5, 6, 7, 100] {
            let bytes = [CHANGE, b"\x15\x03\x03\0\x02\x01\x5a", &hello(size)].concat();
            for end in 0..bytes.len() {
                assert_eq!(sniff_second(&bytes[..end]), Sniffed::Incomplete, "{size} {end}");
            }
            assert!(!matches!(sniff_second(&bytes), Sniffed::Incomplete | Sniffed::Other));
        }
    }

    #[test]
    fn other_second_flights_continue_the_tunnel() {
        for other in [
            &b"\x17\x03\x03"[..],
            b"x",
            // ClientKeyExchange, and encrypted messages of TLS 1.2.
            b"\x16\x03\x03\0\x25\x10\0\0\x21\x20\x07",
            b"\x16\x03\x03\0\x28\0\0\0\0\0\0",
            b"\x16\x03\x03\0\x28\x01\x99\x03\x04\x05\x06",
            b"\x16\x03\x03\0\x28\x01\0\x03\x04\x05\x06",
        ] {
            assert_eq!(sniff_second(other), Sniffed::Other, "{other:?}");
            assert_eq!(sniff_second(&[CHANGE, other].concat()), Sniffed::Other, "{other:?}");
        }
        assert_eq!(sniff_second(&CHANGE.repeat(HELLO_BYTES_MAX)), Sniffed::Unreadable);
    }
}
