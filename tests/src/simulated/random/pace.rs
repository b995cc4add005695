//! The pace at which a client of a random scenario reads.

use std::time::Duration;

use millrace_engine::Instant;
use millrace_sim::World;

use super::findings::Findings;
use super::plan::Reader;

/// The reading side of a client.
pub(super) struct Pace {
    reader: Reader,
    /// Bytes read.
    got: usize,
    /// Bytes read since a slow reader last paused.
    slow_got: usize,
    /// Whether the one stall of a stalling reader has begun.
    stalled: bool,
    /// The time before which nothing is read.
    rests_until: Option<Instant>,
}

impl Pace {
    pub(super) fn new(reader: Reader) -> Self {
        Self { reader, got: 0, slow_got: 0, stalled: false, rests_until: None }
    }

    /// Returns how many bytes may be read now, or the time before which none may.
    pub(super) fn readable(
        &mut self,
        world: &World,
        findings: &Findings,
    ) -> Result<usize, Instant> {
        let now = world.now();
        if let Reader::Stalls(after, ms) = self.reader
            && !self.stalled
            && self.rests_until.is_none()
            && self.got >= after
        {
            self.stalled = true;
            findings.cover("client: stops reader");
            self.rests_until = Some(now + Duration::from_millis(ms));
        }
        if let Some(until) = self.rests_until {
            if now < until {
                return Err(until);
            }
            self.rests_until = None;
        }
        Ok(match self.reader {
            Reader::Slow(bytes, _) => bytes - self.slow_got,
            Reader::Stalls(after, _) if !self.stalled => (after - self.got).min(READ_BYTES),
            Reader::Eager | Reader::Stalls(..) => READ_BYTES,
        })
    }

    /// Records that `count` bytes were read.
    pub(super) fn record_read(&mut self, world: &World, count: usize) {
        self.got += count;
        self.slow_got += count;
        if let Reader::Slow(most, ms) = self.reader
            && self.slow_got >= most
        {
            self.slow_got = 0;
            self.rests_until = Some(world.now() + Duration::from_millis(ms));
        }
    }

    /// Returns the number of bytes read.
    pub(super) fn got(&self) -> usize {
        self.got
    }

    /// Returns whether the client pauses.
    pub(super) fn is_resting(&self) -> bool {
        self.rests_until.is_some()
    }
}

/// Bytes of one read.
const READ_BYTES: usize = 64 * 1024;
