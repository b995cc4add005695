//! What the tests share: heads in one call, and the fuzz corpus with its mutations.

use std::path::Path;

use crate::{AnswerHead, HeadError, HeadLimits, HeadScan, RequestHead};

pub(crate) const LIMITS: HeadLimits =
    HeadLimits { bytes_max: 4096, fields_max: 40, target_bytes_max: 1024 };

/// A head that is whole, or its error.
pub(crate) fn request(bytes: impl AsRef<[u8]>) -> Result<RequestHead, HeadError> {
    let mut head = RequestHead::default();
    let used = head.parse(bytes.as_ref(), &mut HeadScan::default(), &LIMITS)?;
    assert!(used.is_some(), "the head is whole");
    Ok(head)
}

/// A head that is whole, or its error.
pub(crate) fn answer(bytes: impl AsRef<[u8]>) -> Result<AnswerHead, HeadError> {
    let mut head = AnswerHead::default();
    let used = head.parse(bytes.as_ref(), &mut HeadScan::default(), &LIMITS)?;
    assert!(used.is_some(), "the head is whole");
    Ok(head)
}

/// Runs a fuzz body over the corpus of a target, and over random changes of it.
pub(crate) fn run(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "the corpus of {target} is there");
    let inputs: Vec<_> = files.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let mut random = Random::seeded();
    for input in &inputs {
        body(input);
        for _ in 0..40 {
            let changed = random.change(input, &inputs);
            println!("{}", changed.escape_ascii());
            body(&changed);
        }
    }
}

pub(crate) struct Random(u64);

impl Random {
    /// From the clock; prints the seed.
    pub(crate) fn seeded() -> Self {
        let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
        println!("seed {seed}");
        Self(seed)
    }

    /// 0 to `bound - 1`, or 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }

    fn change(&mut self, input: &[u8], inputs: &[Vec<u8>]) -> Vec<u8> {
        const ODD: &[u8] = b"\r\n\0 \t:;,\"0x\x7f\x80#@[]?%*/.";
        let mut bytes = input.to_vec();
        for _ in 0..=self.below(3) {
            let at = self.below(bytes.len());
            match self.below(5) {
                0 => bytes.insert(at, ODD[self.below(ODD.len())]),
                1 if !bytes.is_empty() => bytes[at] = ODD[self.below(ODD.len())],
                2 if !bytes.is_empty() => drop(bytes.remove(at)),
                3 => {
                    let other = &inputs[self.below(inputs.len())];
                    bytes.truncate(at);
                    bytes.extend_from_slice(&other[self.below(other.len())..]);
                }
                _ => {
                    let end = at + self.below(bytes.len() - at);
                    let repeated = bytes[at..end].to_vec();
                    bytes.splice(at..at, repeated);
                }
            }
        }
        bytes
    }
}
