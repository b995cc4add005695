//! What an application keeps of a payload, and how it reads that.

use std::collections::VecDeque;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::peer::byte;
use crate::direction_state::DirectionState;
use crate::request::KeepCopy;

/// How an application reads: at once or late, much or little, when it is told to or before.
#[derive(Clone, Copy)]
pub(super) struct ReadPolicy {
    pub(super) keep: KeepCopy,
    /// One chance in so many is taken.
    one_in: usize,
    bytes_max: usize,
    is_eager: bool,
}

impl ReadPolicy {
    /// One for a payload of up to `bytes`, which makes no more than some hundred rounds of it.
    pub(super) fn new(bytes: usize, below: &mut impl FnMut(usize) -> usize) -> Self {
        let least = 1 + bytes / 256;
        let max2cache = least + below(bytes + 1);
        let keep = KeepCopy { min2read: 1 + below(max2cache), max2cache };
        let one_in = [1, 4, 32][below(3)];
        Self { keep, one_in, bytes_max: least + below(bytes + 1), is_eager: below(2) == 0 }
    }
}

/// What is kept.
pub(super) struct CopyReader {
    /// What was put aside and not read: as much as the flow counts.
    bytes: VecDeque<u8>,
    /// Bytes that were read, and whose they are.
    pub(super) read: usize,
    salt: u64,
    policy: ReadPolicy,
    random: Pcg64Mcg,
}

impl CopyReader {
    pub(super) fn new(policy: ReadPolicy, salt: u64) -> Self {
        let random = Pcg64Mcg::seed_from_u64(salt);
        Self { bytes: VecDeque::new(), read: 0, salt, policy, random }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// The last `count` bytes.
    pub(super) fn last(&self, count: usize) -> Vec<u8> {
        self.bytes.range(self.bytes.len() - count..).copied().collect()
    }

    /// Whether the application would read.
    pub(super) fn is_due(&self, state: &DirectionState) -> bool {
        if self.policy.is_eager { state.readable_bytes() > 0 } else { state.is_readable() }
    }

    /// The application reads something if it likes to. Gives whether it did.
    pub(super) fn maybe_read(&mut self, state: &mut DirectionState) -> bool {
        assert_eq!(self.bytes.len(), state.copied, "the flow counts what there is");
        assert!(self.bytes.len() <= self.policy.keep.max2cache, "max2cache");
        let mut below = |bound: usize| self.random.next_u64() as usize % bound;
        let wants = below(self.policy.one_in) == 0;
        let count = state.readable_bytes().min(1 + below(self.policy.bytes_max));
        if !wants || !self.is_due(state) {
            return false;
        }
        self.take(count);
        state.note_read(count);
        true
    }

    /// After an unsplice the application takes the rest at once, but for what is handed out as not
    /// sent: the last `unsent` bytes.
    pub(super) fn read_all_but(&mut self, unsent: usize) {
        self.bytes.truncate(self.bytes.len() - unsent);
        self.take(self.bytes.len());
    }

    fn take(&mut self, count: usize) {
        for kept in self.bytes.drain(..count) {
            assert_eq!(kept, byte(self.salt, self.read), "kept byte {}", self.read);
            self.read += 1;
        }
    }
}
