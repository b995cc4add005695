//! The sizes from which a body is spliced.

use crate::limits::{
    BEHIND_CLAMP, BULK_AFTER, BULK_MIN, FILL_MIN, SPLICE_BEHIND_MIN, SPLICE_CLAMP, SPLICE_MIN,
    TEE_MIN,
};

/// The boundaries between copying and splicing, for all transfers of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// Remaining bytes of known length from which a body is spliced; [`NEVER`]: never.
    pub alone_min: u64,
    /// Like `alone_min`, if a header or received bytes are sent first; `behind_min <= alone_min`.
    pub behind_min: u64,
    /// Remaining bytes from which a stored body goes to the client through one pipe, and is read
    /// from a second pipe into the cache's memory.
    pub tee_min: u64,
    /// A source of unknown length, such as a body until close or a tunnel, is spliced only after a
    /// receive of this many bytes. 0: at once.
    pub bulk_min: usize,
    /// Bytes that a source of unknown length must have sent in total before it is spliced. Shorter
    /// bodies are copied.
    pub bulk_after: u64,
    /// If a fill moved fewer bytes although more were expected, the source is slow. It is copied
    /// until it reaches `bulk_min` again.
    pub fill_min: usize,
    /// A body that is expected to be shorter than this is received together with its header, and
    /// copied. A longer one should still be in the kernel when its method is chosen, so its header
    /// is received alone.
    pub small_below: u64,
}

/// A threshold that no body reaches, not even one until close.
pub const NEVER: u64 = u64::MAX;

impl Thresholds {
    /// The defaults; docs/design/splice.md has the measurements.
    pub const FIXED: Self = Self {
        alone_min: SPLICE_MIN,
        behind_min: SPLICE_BEHIND_MIN,
        tee_min: TEE_MIN,
        bulk_min: BULK_MIN,
        bulk_after: BULK_AFTER,
        fill_min: FILL_MIN,
        small_below: SPLICE_MIN,
    };

    /// Copies every byte. Headers are received as with [`Thresholds::FIXED`], so that the two
    /// differ only in how bodies are moved.
    pub const COPY: Self = Self {
        alone_min: NEVER,
        behind_min: NEVER,
        tee_min: NEVER,
        bulk_min: usize::MAX,
        bulk_after: NEVER,
        fill_min: usize::MAX,
        small_below: SPLICE_MIN,
    };

    /// Splices every byte that was not received with a header or chunk size.
    pub const SPLICE: Self = Self {
        alone_min: 1,
        behind_min: 1,
        tee_min: 1,
        bulk_min: 0,
        bulk_after: 0,
        fill_min: 0,
        small_below: 0,
    };

    /// Returns thresholds from measurements on this machine: the sizes from which a splice is
    /// cheaper than a receive and a send, alone and behind a header. A short measurement at start
    /// is inexact, so both are clamped to ranges that are sound elsewhere ([`SPLICE_CLAMP`],
    /// [`BEHIND_CLAMP`]).
    pub fn measured(alone_min: u64, behind_min: u64) -> Self {
        let alone_min = alone_min.clamp(*SPLICE_CLAMP.start(), *SPLICE_CLAMP.end());
        let behind_min = behind_min.clamp(*BEHIND_CLAMP.start(), *BEHIND_CLAMP.end());
        Self {
            alone_min,
            behind_min: behind_min.min(alone_min),
            tee_min: TEE_MIN,
            bulk_min: alone_min as usize,
            bulk_after: BULK_AFTER,
            fill_min: FILL_MIN,
            small_below: alone_min,
        }
    }

    /// Returns whether a stored body with `bytes` remaining is worth two pipes.
    pub fn is_worth_teeing(&self, bytes: u64) -> bool {
        bytes >= self.tee_min && self.tee_min != NEVER
    }

    /// Returns whether a body with `bytes` remaining is worth a pipe.
    pub(crate) fn is_worth_pipe(&self, bytes: u64, behind: bool) -> bool {
        let min = if behind { self.behind_min } else { self.alone_min };
        bytes >= min.max(1) && min != NEVER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_thresholds_are_clamped() {
        let wild = [(0, 0), (NEVER, NEVER), (20_000, 30_000), (1 << 20, 1)];
        for measured in wild.map(|(alone, behind)| Thresholds::measured(alone, behind)) {
            assert!(SPLICE_CLAMP.contains(&measured.alone_min), "{measured:?}");
            assert!(BEHIND_CLAMP.contains(&measured.behind_min), "{measured:?}");
            assert!(measured.behind_min <= measured.alone_min, "{measured:?}");
        }
        let known = Thresholds::measured(SPLICE_MIN, SPLICE_BEHIND_MIN);
        assert_eq!(known, Thresholds::FIXED);
    }

    #[test]
    fn stored_bodies_are_teed_from_tee_min() {
        assert!(
            Thresholds::FIXED.is_worth_teeing(TEE_MIN)
                && !Thresholds::FIXED.is_worth_teeing(TEE_MIN - 1)
        );
        assert!(Thresholds::SPLICE.is_worth_teeing(1) && !Thresholds::SPLICE.is_worth_teeing(0));
        assert!(!Thresholds::COPY.is_worth_teeing(u64::MAX));
    }
}
