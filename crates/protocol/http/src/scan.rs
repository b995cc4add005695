//! Looking for bytes eight at a time, as one number. Heads have many short lines, for which a
//! library's search costs more to begin than to do.

const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);

/// Where the first of these bytes is.
#[inline]
pub(crate) fn find(bytes: &[u8], wanted: u8) -> Option<usize> {
    let pattern = ONES * u64::from(wanted);
    first(bytes, |word| zeros(word ^ pattern), |byte| byte == wanted)
}

/// How many bytes there are before the first that no field value may have: a control other than a
/// tab.
#[inline]
pub(crate) fn value_len(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(found) = first(&bytes[at..], controls, |byte| byte.is_ascii_control()) {
        at += found;
        if bytes[at] != b'\t' {
            return at;
        }
        at += 1;
    }
    bytes.len()
}

/// Where the first byte is that `is_wanted`. `marks` sets the high bit of each such byte of eight,
/// and may set that of bytes above one that it set rightly.
#[inline]
fn first(
    bytes: &[u8],
    marks: impl Fn(u64) -> u64,
    is_wanted: impl Fn(u8) -> bool,
) -> Option<usize> {
    let (words, rest) = bytes.as_chunks();
    for (index, word) in words.iter().enumerate() {
        let marked = marks(u64::from_le_bytes(*word));
        if marked != 0 {
            return Some(index * 8 + marked.trailing_zeros() as usize / 8);
        }
    }
    let found = rest.iter().position(|&byte| is_wanted(byte));
    found.map(|at| bytes.len() - rest.len() + at)
}

/// Marks the bytes that are 0, in the manner of [`first`].
#[inline]
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGH
}

/// Marks the bytes below 32 and those that are 127, in the manner of [`first`].
#[inline]
fn controls(word: u64) -> u64 {
    let delete = word ^ (ONES * 0x7f);
    let below = word.wrapping_sub(ONES * 0x20) & !word;
    (below | delete.wrapping_sub(ONES) & !delete) & HIGH
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::VALUE;

    /// Each byte at each place of up to three words, before each other byte.
    #[test]
    fn eight_at_a_time_finds_what_one_at_a_time_finds() {
        for len in 1..=19 {
            for at in 0..len {
                for byte in 0..=u8::MAX {
                    for next in [b'a', b'\r', b'\t', 0, 0x20, 0x7f, 0x80, 0xff, byte ^ 1] {
                        let mut bytes = vec![b'a'; len];
                        bytes[at] = byte;
                        if let Some(after) = bytes.get_mut(at + 1) {
                            *after = next;
                        }
                        let bound = bytes.iter().position(|&it| !VALUE.has(it)).unwrap_or(len);
                        assert_eq!(value_len(&bytes), bound, "{}", bytes.escape_ascii());
                        let place = bytes.iter().position(|&it| it == byte);
                        assert_eq!(find(&bytes, byte), place, "{}", bytes.escape_ascii());
                        assert_eq!(
                            find(&bytes[..at], byte),
                            bytes[..at].iter().position(|&it| it == byte)
                        );
                    }
                }
            }
        }
    }
}
