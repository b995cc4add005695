//! Statistics of transfers: how the bytes were moved, and with how many system calls.

use std::ops::Add;

/// Statistics of one transfer, or of both transfers of an exchange. Payload that is counted in no
/// field was sent by reference from the cache's memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TransferStats {
    /// Bytes that were sent from memory.
    pub copied: u64,
    /// Bytes that the sink took from a pipe.
    pub spliced: u64,
    /// Bytes that were moved into a pipe for the sink and duplicated into a second pipe for the
    /// cache. They are also counted in `spliced`, unless the sink broke off before it took them.
    pub teed: u64,
    /// System calls that were requested: receives of the body, sends, fills of pipes, and splices.
    /// If a sink has no space, further calls are needed; an engine may batch several calls into
    /// one. Receives into the cache without a client are not counted.
    pub calls: u64,
}

impl TransferStats {
    /// Notes one step: a send of `copied` payload bytes and, with `has_frame`, of framing, followed
    /// by a splice of `piped` bytes. A step without piped bytes has no splice. A step with piped
    /// bytes, but without payload and framing, has no send.
    pub(crate) fn note_sent(&mut self, copied: usize, piped: usize, has_frame: bool) {
        self.copied += copied as u64;
        let (has_send, has_splice) = (copied > 0 || has_frame || piped == 0, piped > 0);
        self.calls += u64::from(has_send) + u64::from(has_splice);
    }

    /// Notes that all `bytes` of a splice were moved into the pipe, duplicated into a second pipe,
    /// and read from the second one.
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
