//! The bytes of files, which a client can check without a copy of the files.

/// The contents of numbered files. A file begins with its number in decimal, and continues with
/// pseudo-random bytes that begin at another place for each number.
pub struct Pattern {
    /// [`PERIOD`] bytes, twice, so that each range of up to a period is one slice.
    bytes: Vec<u8>,
}

/// A prime, so that files with numbers below it differ in their shift.
const PERIOD: usize = 65_521;
/// The distance between the shifts of two files with consecutive numbers.
const SHIFT: u64 = 7_919;
/// The digits of a number at the start of its file.
const DIGITS: usize = 8;

impl Pattern {
    /// Creates the pattern, which is always the same.
    #[allow(clippy::new_without_default, reason = "it makes 128 KB of bytes")]
    pub fn new() -> Self {
        let mut word = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            // xorshift64: each byte must differ from its neighbours, more is not needed.
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            (word >> 56) as u8
        };
        let mut bytes: Vec<u8> = (0..PERIOD).map(|_| next()).collect();
        bytes.extend_from_within(..);
        Self { bytes }
    }

    /// Returns up to `length` bytes of a file at `offset`, at least one unless `length` is 0. The
    /// digits of the number are not part of the result; [`Pattern::fill`] and [`Pattern::matches`]
    /// add them.
    fn piece(&self, file: u32, offset: u64, length: usize) -> &[u8] {
        let begin = ((u64::from(file) * SHIFT + offset) % PERIOD as u64) as usize;
        &self.bytes[begin..begin + length.min(PERIOD)]
    }

    /// Writes the bytes of a file that begin at `offset` over `bytes`.
    pub fn fill(&self, file: u32, offset: u64, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let piece = self.piece(file, offset + at as u64, bytes.len() - at);
            bytes[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        for (place, digit) in digits(file).into_iter().enumerate().skip(offset as usize) {
            if let Some(byte) = bytes.get_mut(place - offset as usize) {
                *byte = digit;
            }
        }
    }

    /// Returns whether `bytes` are those of a file at `offset`.
    pub fn matches(&self, file: u32, offset: u64, bytes: &[u8]) -> bool {
        let in_number = DIGITS.saturating_sub(offset as usize).min(bytes.len());
        let (number, rest) = bytes.split_at(in_number);
        if in_number > 0 && number != &digits(file)[offset as usize..][..in_number] {
            return false;
        }
        let mut at = offset + in_number as u64;
        rest.chunks(PERIOD).all(|chunk| {
            let is_right = chunk == self.piece(file, at, chunk.len());
            at += chunk.len() as u64;
            is_right
        })
    }
}

fn digits(mut file: u32) -> [u8; DIGITS] {
    let mut digits = [b'0'; DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit += (file % 10) as u8;
        file /= 10;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_match_wherever_they_begin() {
        let pattern = Pattern::new();
        let mut whole = vec![0; 3 * PERIOD];
        pattern.fill(1234, 0, &mut whole);
        assert!(whole.starts_with(b"00001234"));
        assert!(pattern.matches(1234, 0, &whole));
        for (begin, end) in [(0, 3), (3, 8), (5, 20), (8, 9), (100, 70_000), (65_520, 140_000)] {
            assert!(pattern.matches(1234, begin as u64, &whole[begin..end]), "{begin}");
            let mut piece = vec![0; end - begin];
            pattern.fill(1234, begin as u64, &mut piece);
            assert!(piece == whole[begin..end], "{begin}");
        }
        assert!(pattern.matches(1234, 77, b""));
    }

    #[test]
    fn wrong_bytes_and_other_files_do_not_match() {
        let pattern = Pattern::new();
        let mut bytes = vec![0; 100];
        pattern.fill(7, 0, &mut bytes);
        for place in 0..100 {
            bytes[place] ^= 1;
            assert!(!pattern.matches(7, 0, &bytes), "{place}");
            bytes[place] ^= 1;
        }
        assert!(!pattern.matches(8, 0, &bytes), "the number differs");
        assert!(!pattern.matches(8, 8, &bytes[8..]), "the shift differs");
        assert!(!pattern.matches(7, 9, &bytes[8..]), "the offset differs");
    }
}
