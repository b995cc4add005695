//! Runs fuzz functions over their corpus in ordinary tests.
//!
//! The module is compiled only for the tests of this crate, and for crates that enable the feature
//! `corpus`.

use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// A function that derives a new input from `input`, and possibly from other inputs of the corpus.
pub type Mutator = fn(&mut Random, input: &[u8], inputs: &[Vec<u8>]) -> Vec<u8>;

/// Calls `body` with each input in the corpus of the fuzz target `target`, and with `changes`
/// random mutations of each.
///
/// # Panics
/// Panics if `body` panics, or if the corpus has fewer than 10 files.
pub fn run(target: &str, changes: usize, change: Mutator, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let files = fs::read_dir(&folder).expect("the target has a corpus");
    let mut files: Vec<_> = files.map(|file| file.expect("the file is readable").path()).collect();
    files.sort();
    assert!(files.len() >= 10, "the corpus of {target} has at least 10 files");
    let inputs: Vec<_> =
        files.iter().map(|path| fs::read(path).expect("the file is readable")).collect();
    let mut random = Random::from_clock();
    for input in &inputs {
        body(input);
        for _ in 0..changes {
            let changed = change(&mut random, input, &inputs);
            println!("{}", changed.escape_ascii());
            body(&changed);
        }
    }
}

/// A pseudo-random number generator (xorshift64).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator seeded from the clock, and prints the seed.
    pub fn from_clock() -> Self {
        let now = UNIX_EPOCH.elapsed().expect("the clock is later than 1970");
        let seed = now.as_nanos() as u64 | 1;
        println!("seed {seed}");
        Self::from_seed(seed)
    }

    /// Creates a generator from a seed; 0 is replaced by 1.
    pub fn from_seed(seed: u64) -> Self {
        Self(seed.max(1))
    }

    /// Returns a number from 0 to `bound - 1`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

/// A [`Mutator`] that changes single bytes, and cuts, repeats and joins parts of inputs.
pub fn mutate_bytes(random: &mut Random, input: &[u8], inputs: &[Vec<u8>]) -> Vec<u8> {
    const ODD: &[u8] = b"\r\n\0 \t:;,\"0x\x7f\x80#@[]?%*/.";
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes.insert(at, ODD[random.below(ODD.len())]),
            1 if !bytes.is_empty() => bytes[at] = ODD[random.below(ODD.len())],
            2 if !bytes.is_empty() => drop(bytes.remove(at)),
            3 => {
                let other = &inputs[random.below(inputs.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(&other[random.below(other.len())..]);
            }
            _ => {
                let end = at + random.below(bytes.len() - at);
                let repeated = bytes[at..end].to_vec();
                bytes.splice(at..at, repeated);
            }
        }
    }
    bytes
}

/// A [`Mutator`] that removes, repeats and inserts whole lines, and changes bytes in lines. Most
/// bytes of a line belong to its value, so most mutated headers stay valid.
pub fn mutate_lines(random: &mut Random, input: &[u8], inputs: &[Vec<u8>]) -> Vec<u8> {
    const ODD: &[u8] = b" \t:;,\"\\=*-/?&.0129aW\x80";
    let mut lines: Vec<Vec<u8>> =
        input.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    for _ in 0..=random.below(3) {
        let at = random.below(lines.len());
        match random.below(6) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[at].clone()),
            2 => {
                let other = &inputs[random.below(inputs.len())];
                let mut other_lines = other.split_inclusive(|&byte| byte == b'\n');
                let line = other_lines.nth(random.below(8)).unwrap_or(b"A: b\r\n");
                lines.insert(at, line.to_vec());
            }
            _ => {
                let line = &mut lines[at];
                let byte = ODD[random.below(ODD.len())];
                let place = random.below(line.len().saturating_sub(2));
                match random.below(3) {
                    0 => line[place] = byte,
                    1 => drop(line.remove(place)),
                    _ => line.insert(place, byte),
                }
            }
        }
        if lines.is_empty() {
            return Vec::new();
        }
    }
    lines.concat()
}
