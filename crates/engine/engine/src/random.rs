//! Random numbers, from the kernel for the data plane and from a seed for tests.

/// Random numbers from the kernel. They are fetched in blocks, so that few of them cost a system
/// call.
#[derive(Debug)]
pub(crate) struct KernelRandom {
    block: [u64; 64],
    /// Numbers of the block that are still unused: `left <= block.len()`.
    left: usize,
}

impl KernelRandom {
    pub(crate) fn new() -> Self {
        Self { block: [0; 64], left: 0 }
    }

    pub(crate) fn number(&mut self) -> u64 {
        if self.left == 0 {
            let mut bytes = [0; 64 * 8];
            millrace_sys::fill_random(&mut bytes);
            for (number, bytes) in self.block.iter_mut().zip(bytes.as_chunks().0) {
                *number = u64::from_ne_bytes(*bytes);
            }
            self.left = self.block.len();
        }
        self.left -= 1;
        self.block[self.left]
    }
}

/// The generator SplitMix64 (Steele, Lea and Flood, 2014). It is small and good enough for tests.
#[cfg(test)]
pub(crate) struct SplitMix(pub(crate) u64);

#[cfg(test)]
impl SplitMix {
    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }

    /// Returns a number in `0..bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// Chooses a number of bits from `bits`, each with the same probability, and returns a random
    /// number of at most that many bits.
    pub(crate) fn scaled(&mut self, bits: std::ops::Range<u64>) -> u64 {
        let bits = bits.start + self.below(bits.end - bits.start);
        self.below(1 << bits)
    }
}

/// Returns the seed of a random test: the environment variable SEED, or else a new random one.
/// Prints it, so that a failure can be repeated.
#[cfg(test)]
pub(crate) fn test_seed() -> u64 {
    let seed = match std::env::var("SEED") {
        Ok(text) => text.parse().expect("SEED is a number"),
        Err(_) => KernelRandom::new().number(),
    };
    println!("SEED={seed}");
    seed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_do_not_repeat() {
        let mut random = KernelRandom::new();
        let mut numbers: Vec<u64> = (0..1000).map(|_| random.number()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 1000);
    }
}
