//! What the tests share: heads in one call, and the fuzz corpus with its mutations.

use std::path::Path;

use millrace_http::{AnswerHead, HeadLimits, HeadScan, RequestHead};

use super::{HashKey, Policy, Receipt, Refusal, Scheme, Stored, store};

const LIMITS: HeadLimits =
    HeadLimits { bytes_max: 16_384, fields_max: 100, target_bytes_max: 4096 };

/// Sat, 21 Nov 2026 10:16:00 GMT.
pub(super) const NOW_S: u64 = 1_795_256_160;
pub(super) const NOW_MS: u64 = NOW_S * 1000;
/// The same as a `Date` line.
pub(super) const DATE: &str = "Date: Sat, 21 Nov 2026 10:16:00 GMT\r\n";

pub(super) const HASH: HashKey = HashKey::new([7; 16]);

/// `GET /` with these field lines, each with its line end.
pub(super) fn get(fields: &str) -> RequestHead {
    request("GET / HTTP/1.1", fields)
}

/// A request with this line and these field lines.
pub(super) fn request(line: &str, fields: &str) -> RequestHead {
    let bytes = format!("{line}\r\nHost: example.com\r\n{fields}\r\n");
    let mut head = RequestHead::default();
    let used = head.parse(bytes.as_bytes(), &mut HeadScan::default(), &LIMITS);
    assert_eq!(used, Ok(Some(bytes.len())), "{bytes}");
    head
}

/// An answer with this status and these field lines.
pub(super) fn answer(status: u16, fields: &str) -> AnswerHead {
    answer_of(format!("HTTP/1.1 {status} Reason\r\n{fields}\r\n").as_bytes())
}

/// An answer of these bytes.
pub(super) fn answer_of(bytes: &[u8]) -> AnswerHead {
    let mut head = AnswerHead::default();
    let used = head.parse(bytes, &mut HeadScan::default(), &LIMITS);
    assert_eq!(used, Ok(Some(bytes.len())), "{}", bytes.escape_ascii());
    head
}

/// Received now, asked for now.
pub(super) const RECEIPT: Receipt =
    Receipt { request_ms: NOW_MS, response_ms: NOW_MS, scheme: Scheme::Http, hash: HASH };

/// What the default policy makes of an answer of status 200 to `GET /`.
pub(super) fn stored(fields: &str) -> Result<Stored, Refusal> {
    store(&get(""), &answer(200, fields), &RECEIPT, &Policy::default())
}

/// A stored answer of status 200.
pub(super) fn kept(fields: &str) -> Stored {
    stored(fields).expect("it may be stored")
}

/// Runs a fuzz body over the corpus of a target, and over random changes of it.
pub(super) fn run(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "the corpus of {target} is there");
    let inputs: Vec<_> = files.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    let mut random = Random(seed);
    for input in &inputs {
        body(input);
        for _ in 0..100 {
            let changed = random.change(input, &inputs);
            println!("{}", changed.escape_ascii());
            body(&changed);
        }
    }
}

struct Random(u64);

impl Random {
    /// 0 to `bound - 1`, or 0.
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }

    /// Changes values more than lines, so that most heads stay heads.
    fn change(&mut self, input: &[u8], inputs: &[Vec<u8>]) -> Vec<u8> {
        const ODD: &[u8] = b" \t:;,\"\\=*-/?&.0129aW\x80";
        let mut lines: Vec<Vec<u8>> =
            input.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
        for _ in 0..=self.below(3) {
            let at = self.below(lines.len());
            match self.below(6) {
                0 => drop(lines.remove(at)),
                1 => lines.insert(at, lines[at].clone()),
                2 => {
                    let other = &inputs[self.below(inputs.len())];
                    let mut theirs = other.split_inclusive(|&byte| byte == b'\n');
                    let line = theirs.nth(self.below(8)).unwrap_or(b"A: b\r\n");
                    lines.insert(at, line.to_vec());
                }
                _ => {
                    let line = &mut lines[at];
                    let byte = ODD[self.below(ODD.len())];
                    let place = self.below(line.len().saturating_sub(2));
                    match self.below(3) {
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
}
