//! The events of a world in order: a bounded text for people, and a hash of all events for
//! comparing runs.

use std::collections::VecDeque;
use std::fmt;

use millrace_engine::{Instant, Token};

/// One event.
#[derive(Clone, Default, Debug)]
pub(crate) struct TraceLine {
    pub(crate) at: Instant,
    pub(crate) what: &'static str,
    pub(crate) descriptor: Option<u32>,
    pub(crate) count: u64,
    pub(crate) token: Option<Token>,
    pub(crate) note: Option<Box<str>>,
}

/// The last lines of a world, and the hash of all lines.
#[derive(Debug, Default)]
pub struct Trace {
    lines: VecDeque<TraceLine>,
    dropped: u64,
    hash: u64,
}

/// The most lines kept. Older ones only contribute to the hash.
const LINES_MAX: usize = 5000;

impl Trace {
    /// Adds bytes that a stream carried. They only contribute to the hash.
    pub(crate) fn carry(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.mix(u64::from_le_bytes(word));
        }
    }

    /// Returns the hash. It is equal for two runs if the same events happened at the same times and
    /// the streams carried the same bytes. For other runs it differs, except with a probability of
    /// 2^-64.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn push(&mut self, line: TraceLine) {
        self.mix(line.at.nanoseconds());
        self.mix_bytes(line.what.as_bytes());
        self.mix(line.descriptor.map_or(u64::MAX, u64::from));
        self.mix(line.count);
        if let Some(token) = line.token {
            self.mix(token.kind() as u64);
            self.mix(u64::from(token.slot()) << 32 | u64::from(token.generation()));
        }
        if let Some(note) = &line.note {
            self.mix_bytes(note.as_bytes());
        }
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
            self.dropped += 1;
        }
        self.lines.push_back(line);
    }

    fn mix_bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.mix(u64::from(*byte));
        }
    }

    /// Mixes a word into the hash: FNV-1a over words, with a rotation so that high bits matter too.
    fn mix(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dropped > 0 {
            writeln!(f, "... {} earlier lines", self.dropped)?;
        }
        for line in &self.lines {
            let nanoseconds = line.at.nanoseconds();
            write!(
                f,
                "{:8}.{:06} ms  {:<14}",
                nanoseconds / 1_000_000,
                nanoseconds % 1_000_000,
                line.what
            )?;
            if let Some(descriptor) = line.descriptor {
                write!(f, " fd={descriptor} {}", line.count)?;
            }
            if let Some(token) = line.token {
                write!(f, " {token:?}")?;
            }
            if let Some(note) = &line.note {
                write!(f, " {note}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
