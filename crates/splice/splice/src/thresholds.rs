//! From how many bytes on a body is spliced, by kind of body.

use crate::limits::{
    BEHIND_CLAMP, BULK_AFTER, BULK_MIN, FILL_MIN, SPLICE_BEHIND_MIN, SPLICE_CLAMP, SPLICE_MIN,
    TEE_MIN,
};

/// Where copying ends and splicing begins. A worker has one for all that it moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// Bytes still to come from which a rest of known length is spliced; [`NEVER`]: it is copied,
    /// however long it is.
    pub alone_min: u64,
    /// The same where something goes before it in any case, the head or what was received with
    /// it; `behind_min <= alone_min`.
    pub behind_min: u64,
    /// Bytes still to come from which a body that is stored goes to who asked for it through a
    /// pipe, and into memory out of a second one.
    pub tee_min: u64,
    /// A receive of so many bytes shows that a source brings much at a time, whose length is not
    /// known: a body until close, a direction of a tunnel. 0: it need not show that.
    pub bulk_min: usize,
    /// The same source has to have brought so many bytes in all, at least: what is over by then
    /// is copied to its end.
    pub bulk_after: u64,
    /// A pipe that a source filled with less, though more was to come, shows that it brings little
    /// at a time: it is copied from until it shows the other again.
    pub fill_min: usize,
    /// A body below this length is received together with its head if the guess is right that it
    /// is as short: it is copied in any case. One from this length on is to be in the kernel still
    /// when its plan is picked, so its head is received alone.
    pub small_below: u64,
}

/// A threshold that no body reaches: not even one until close, or one that says it has so many
/// bytes.
pub const NEVER: u64 = u64::MAX;

impl Thresholds {
    /// What docs/design/splice.md has the figures for.
    pub const FIXED: Self = Self {
        alone_min: SPLICE_MIN,
        behind_min: SPLICE_BEHIND_MIN,
        tee_min: TEE_MIN,
        bulk_min: BULK_MIN,
        bulk_after: BULK_AFTER,
        fill_min: FILL_MIN,
        small_below: SPLICE_MIN,
    };

    /// Every byte is copied. Heads are received as by [`Thresholds::FIXED`], so that the two
    /// differ in how bodies are moved and in nothing else.
    pub const COPY: Self = Self {
        alone_min: NEVER,
        behind_min: NEVER,
        tee_min: NEVER,
        bulk_min: usize::MAX,
        bulk_after: NEVER,
        fill_min: usize::MAX,
        small_below: SPLICE_MIN,
    };

    /// Every byte is spliced that was not received with a head or with the line before a chunk.
    pub const SPLICE: Self = Self {
        alone_min: 1,
        behind_min: 1,
        tee_min: 1,
        bulk_min: 0,
        bulk_after: 0,
        fill_min: 0,
        small_below: 0,
    };

    /// What was measured on this machine: from where on a splice costs less than a receive and a
    /// send, alone and behind a head. Both are kept within what is known to be sound elsewhere
    /// ([`SPLICE_CLAMP`], [`BEHIND_CLAMP`]), as no measurement of a start is good for more.
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

    /// Whether `bytes` that are still to come of a body that is stored are worth two pipes.
    pub fn is_worth_teeing(&self, bytes: u64) -> bool {
        bytes >= self.tee_min && self.tee_min != NEVER
    }

    /// Whether a rest of `bytes` is worth a pipe.
    pub(crate) fn is_worth_pipe(&self, bytes: u64, behind: bool) -> bool {
        let min = if behind { self.behind_min } else { self.alone_min };
        bytes >= min.max(1) && min != NEVER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_kept_within_bounds() {
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
    fn what_is_stored_is_teed_from_its_own_threshold_on() {
        assert!(
            Thresholds::FIXED.is_worth_teeing(TEE_MIN)
                && !Thresholds::FIXED.is_worth_teeing(TEE_MIN - 1)
        );
        assert!(Thresholds::SPLICE.is_worth_teeing(1) && !Thresholds::SPLICE.is_worth_teeing(0));
        assert!(!Thresholds::COPY.is_worth_teeing(u64::MAX));
    }
}
