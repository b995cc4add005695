//! The application of a transfer with KeepCopy: its copy, and how it reads.

use std::collections::VecDeque;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::peer::byte;
use crate::direction_state::DirectionState;
use crate::request::KeepCopy;

/// How an application reads: how soon, how much, and whether it waits for a notice.
#[derive(Clone, Copy)]
pub(super) struct ReadPolicy {
    pub(super) keep: KeepCopy,
    /// The application takes one in this many opportunities.
    one_in: usize,
    bytes_max: usize,
    is_eager: bool,
}

impl ReadPolicy {
    /// Returns a policy for a payload of up to `bytes`, which needs at most a few hundred reads.
    pub(super) fn new(bytes: usize, below: &mut impl FnMut(usize) -> usize) -> Self {
        let least = 1 + bytes / 256;
        let max2cache = least + below(bytes + 1);
        let keep = KeepCopy { min2read: 1 + below(max2cache), max2cache };
        let one_in = [1, 4, 32][below(3)];
        Self { keep, one_in, bytes_max: least + below(bytes + 1), is_eager: below(2) == 0 }
    }
}

/// The copy of an application, which it reads by a policy.
pub(super) struct CopyReader {
    /// Bytes copied and not read, as many as the state counts.
    bytes: VecDeque<u8>,
    /// Bytes that were read and compared.
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

    /// Returns the last `count` bytes.
    pub(super) fn last(&self, count: usize) -> Vec<u8> {
        self.bytes.range(self.bytes.len() - count..).copied().collect()
    }

    /// Returns whether the application would read.
    pub(super) fn is_due(&self, state: &DirectionState) -> bool {
        if self.policy.is_eager { state.readable_bytes() > 0 } else { state.is_readable() }
    }

    /// Lets the application read if its policy says so. Returns whether it did.
    pub(super) fn maybe_read(&mut self, state: &mut DirectionState) -> bool {
        assert_eq!(self.bytes.len(), state.copied, "the state counts the copied bytes");
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

    /// After an unsplice: reads the copy without its last `unsent` bytes, which the unsplice
    /// returned as unsent.
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
