//! What it took to move a body: how its bytes went, and in how many system calls.

use std::ops::Add;

/// Counts of one transfer, or of the two of an exchange. Payload that is in none of them was sent
/// by reference from where the cache has it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TransferStats {
    /// Bytes that were sent from memory.
    pub copied: u64,
    /// Bytes that the sink took out of a pipe.
    pub spliced: u64,
    /// Bytes that went into a pipe for the sink and were repeated in a second one for the cache.
    /// The sink took all of them, and they are in `spliced` too, unless it broke off.
    pub teed: u64,
    /// System calls that were asked for: receives once the header is there, sends, fills of pipes,
    /// splices. A sink without room costs further ones; an engine may do several in one. What is
    /// received into the cache for who may come later is not among them.
    pub calls: u64,
}

impl TransferStats {
    /// Notes a step: a send of `copied` bytes of payload, of what frames them, if `has_frame`, and
    /// right behind it a splice of `piped`; there is no such part where that is 0.
    pub(crate) fn note_sent(&mut self, copied: usize, piped: usize, has_frame: bool) {
        self.copied += copied as u64;
        let (has_send, has_splice) = (copied > 0 || has_frame || piped == 0, piped > 0);
        self.calls += u64::from(has_send) + u64::from(has_splice);
    }

    /// Notes that of a step all that was spliced had been put into the pipe, repeated in a second
    /// one and read out of that.
    pub(crate) fn note_teed(&mut self, bytes: usize) {
        self.teed += bytes as u64;
        self.calls += 3;
    }
}

impl Add for TransferStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            copied: self.copied + other.copied,
            spliced: self.spliced + other.spliced,
            teed: self.teed + other.teed,
            calls: self.calls + other.calls,
        }
    }
}
