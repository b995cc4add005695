//! The Internet checksum.

/// The ones' complement sum of bytes taken as 16-bit words in network order; an odd last byte is
/// the upper half of a word (RFC 1071). The checksum in a header is its complement. Sums of parts
/// can be combined, so that only changed parts are summed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum(u16);

impl Sum {
    /// Returns the sum of `bytes`, of less than 4 GB.
    pub fn of(bytes: &[u8]) -> Self {
        // RFC 1071 section 2: carries are collected in the upper half and added at the end, and
        // until then the byte order does not matter.
        let mut sum = 0_u64;
        let (words, rest) = bytes.as_chunks::<4>();
        for word in words {
            sum += u64::from(u32::from_ne_bytes(*word));
        }
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_ne_bytes(last));
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        Self(u16::from_be_bytes((sum as u16).to_ne_bytes()))
    }

    /// Returns the sum of this part, of `length` bytes, followed by a part whose sum is `next`.
    #[must_use]
    pub fn followed_by(self, length: u64, next: Self) -> Self {
        let next = if length.is_multiple_of(2) { next.0 } else { next.0.swap_bytes() };
        let (sum, carry) = self.0.overflowing_add(next);
        Self(sum + u16::from(carry))
    }

    /// Returns the value for a header.
    pub fn checksum(self) -> u16 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::{Rng, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    /// Word by word, as the RFC defines it.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(u16::from_be_bytes([pair[0], low]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn the_example_of_the_rfc() {
        let sum = Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum, Sum(0xddf2));
        assert_eq!(sum.checksum(), 0x220d);
    }

    #[test]
    fn sums_of_parts_combine() {
        let mut random = Pcg64Mcg::seed_from_u64(1);
        let long: &[usize] = if cfg!(miri) { &[] } else { &[4095, 4096, 70_001] };
        for length in (0..70).chain(long.iter().copied()) {
            let bytes: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
            assert_eq!(Sum::of(&bytes), Sum(plain(&bytes)), "{length} bytes");
            let middle = random.next_u64() as usize % (length + 1);
            let (one, other) = bytes.split_at(middle);
            let sum = Sum::of(one).followed_by(middle as u64, Sum::of(other));
            assert_eq!(sum, Sum::of(&bytes), "{length} bytes cut at {middle}");
        }
        assert_eq!(Sum::of(&[0xff; 1000]), Sum(0xffff));
    }
}
