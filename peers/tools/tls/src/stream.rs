//! The bytes of every body, and the hash of a request target, as pbstream.h has them for the C
//! tools.

use std::sync::OnceLock;

/// Bytes of the longest body.
pub const STREAM_BYTES: usize = 64 << 20;

/// The fixed pseudo-random stream whose beginning is every body.
pub fn stream() -> &'static [u8] {
    static STREAM: OnceLock<Vec<u8>> = OnceLock::new();
    STREAM.get_or_init(|| {
        let mut word = 88_172_645_463_325_252_u64;
        let mut bytes = Vec::with_capacity(STREAM_BYTES);
        while bytes.len() < STREAM_BYTES {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes
    })
}

/// Returns the FNV-1a hash of a request target. Client and origin add up those of all requests.
pub fn hash(target: &[u8]) -> u64 {
    target.iter().fold(14_695_981_039_346_656_037, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211)
    })
}

/// Returns the length of a header section with its empty line, or none if it is incomplete.
pub fn head_length(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// Returns whether a header section has a field `Connection: close`.
pub fn says_close(head: &[u8]) -> bool {
    field(head, b"connection").is_some_and(|value| value.eq_ignore_ascii_case(b"close"))
}

/// Returns the value of a field of a header section; `name` is in lower case.
pub fn field<'a>(head: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    head.split(|byte| *byte == b'\n').find_map(|line| {
        let (found, value) = line.split_at_checked(name.len())?;
        let value = value.strip_prefix(b":")?;
        found.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_and_the_hash_are_those_of_the_c_tools() {
        // The first word that the generator of pbstream.h yields.
        assert_eq!(&stream()[..8], &8_748_534_153_485_358_512_u64.to_le_bytes());
        assert_eq!(hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn fields_are_found_in_any_case() {
        let head = b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 12\r\nConnection:Close\r\n\r\nbody";
        assert_eq!(head_length(head), Some(head.len() - 4));
        assert_eq!(field(head, b"content-length"), Some(&b"12"[..]));
        assert!(says_close(head));
        assert_eq!(field(head, b"content"), None);
    }
}
