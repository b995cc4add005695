//! Byte searches that examine 16 bytes at a time. Headers have many short lines, for which the
//! setup of a general search costs more than the search.

const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);

/// Returns the offset of the first byte that equals `wanted`; the length if there is none.
#[inline]
pub(crate) fn find(bytes: &[u8], wanted: u8) -> usize {
    let pattern = ONES * u64::from(wanted);
    first(bytes, |word| zeros(word ^ pattern), |byte| byte == wanted)
}

/// Returns the offset of the first control byte, tabs and DEL included; the length if there is
/// none.
#[inline(never)]
pub(crate) fn find_control(bytes: &[u8]) -> usize {
    first(bytes, controls, |byte| byte.is_ascii_control())
}

/// Returns the offset of the first byte for which `is_wanted` returns true, or the length.
///
/// `marks` takes eight bytes as a word, and returns a word in which the high bit of each wanted
/// byte is set. After the first wanted byte, high bits of other bytes may be set too.
#[inline]
fn first(bytes: &[u8], marks: impl Fn(u64) -> u64, is_wanted: impl Fn(u8) -> bool) -> usize {
    let place = |word: &[u8; 8]| marks(u64::from_le_bytes(*word)).trailing_zeros() as usize / 8;
    let (blocks, rest) = bytes.as_chunks::<16>();
    for (index, block) in blocks.iter().enumerate() {
        // This fold only tests whether the block has a wanted byte. The compiler vectorises it.
        if block.iter().fold(false, |has, &byte| has | is_wanted(byte)) {
            let ([low, high], _) = block.as_chunks() else { unreachable!("16 bytes are 2 words") };
            let low = place(low);
            return index * 16 + if low < 8 { low } else { 8 + place(high) };
        }
    }
    let found = rest.iter().position(|&byte| is_wanted(byte));
    bytes.len() - rest.len() + found.unwrap_or(rest.len())
}

/// Marks the bytes that are 0, as [`first`] requires.
#[inline]
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGH
}

/// Marks the bytes below 32 and those that are 127, as [`first`] requires.
#[inline]
fn controls(word: u64) -> u64 {
    let delete = word ^ (ONES * 0x7f);
    // Both subtractions may also mark bytes above 127. `!word` removes these marks, because
    // `delete` has the same high bits as `word`.
    (word.wrapping_sub(ONES * 0x20) | delete.wrapping_sub(ONES)) & !word & HIGH
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests each byte at each position of inputs with up to two blocks and a rest. A byte that
    /// `zeros` or `controls` could mark by mistake follows it.
    #[test]
    fn the_block_search_equals_a_linear_search() {
        for len in [1, 7, 8, 9, 16, 23, 41] {
            for at in 0..len {
                for byte in 0..=u8::MAX {
                    for next in [b'a', b'\r', b'\t', 0, 0x20, 0x7f, 0x80, 0xff, byte ^ 1] {
                        let mut bytes = vec![b'a'; len];
                        bytes[at] = byte;
                        if let Some(after) = bytes.get_mut(at + 1) {
                            *after = next;
                        }
                        let text = bytes.escape_ascii();
                        let control = bytes.iter().position(u8::is_ascii_control);
                        assert_eq!(find_control(&bytes), control.unwrap_or(len), "{text}");
                        let same = bytes.iter().position(|&it| it == byte);
                        assert_eq!(find(&bytes, byte), same.unwrap_or(len), "{text}");
                    }
                }
            }
        }
    }
}
