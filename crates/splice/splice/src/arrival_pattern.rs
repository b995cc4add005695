//! The choice between copying and splicing the next bytes of a body: a pure function of the
//! remaining bytes and of how the body arrived so far.

use crate::Thresholds;
use crate::limits::PIPE_BYTES;

/// The way to move the next bytes of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveMethod {
    /// By a receive and a send.
    Copy,
    /// Through a pipe, up to `max` bytes. At least this many belong to the body or chunk.
    Splice {
        /// `1 <= max <= PIPE_BYTES`.
        max: usize,
    },
}

/// How the bytes of a body arrive. The labels are fields of [`Thresholds`].
///
/// ```text
///            a receive of `bulk_min`, `bulk_after` in all
///   Sparse ──────────────────────────────────────────────> Bulk
///     ^ <───────────────────────────────────────────────── ^
///     │              a fill below `fill_min`               │
///  length unknown                                      length known
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArrivalPattern {
    /// Few bytes at a time, or not known yet.
    Sparse {
        /// Bytes received so far. A transition from [`ArrivalPattern::Bulk`] sets it to `u64::MAX`,
        /// so that one large receive suffices to return to `Bulk`.
        received: u64,
    },
    /// Many bytes at a time.
    Bulk,
}

impl Default for ArrivalPattern {
    fn default() -> Self {
        Self::Sparse { received: 0 }
    }
}

impl ArrivalPattern {
    /// Returns the initial pattern. A body of known length is expected to arrive as fast as it is
    /// read. Any other body must show this first.
    pub fn new(length_is_known: bool) -> Self {
        if length_is_known { Self::Bulk } else { Self::default() }
    }

    /// Returns how to move the next bytes. `rest` is the number of remaining bytes, `None` if
    /// unknown. `behind`: other bytes are sent before them.
    pub fn choose_method(
        self,
        rest: Option<u64>,
        behind: bool,
        thresholds: &Thresholds,
    ) -> MoveMethod {
        let rest = rest.unwrap_or(u64::MAX);
        match self {
            // With `bulk_min` 0, a body need not show that it is large.
            Self::Sparse { .. } if thresholds.bulk_min > 0 => MoveMethod::Copy,
            _ if thresholds.is_worth_pipe(rest, behind) => {
                MoveMethod::Splice { max: rest.min(PIPE_BYTES as u64) as usize }
            }
            _ => MoveMethod::Copy,
        }
    }

    /// Records the size of a receive.
    pub fn note_received(&mut self, bytes: usize, thresholds: &Thresholds) {
        let Self::Sparse { received } = self else { return };
        *received = received.saturating_add(bytes as u64);
        if bytes >= thresholds.bulk_min && *received >= thresholds.bulk_after {
            *self = Self::Bulk;
        }
    }

    /// Records how many of at most `max` bytes were moved into a pipe.
    pub fn note_filled(&mut self, bytes: usize, max: usize, thresholds: &Thresholds) {
        if bytes < thresholds.fill_min.min(max) {
            *self = Self::Sparse { received: u64::MAX };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXED: &Thresholds = &Thresholds::FIXED;

    #[test]
    fn a_large_body_is_spliced_exactly_to_its_last_byte() {
        let pattern = ArrivalPattern::new(true);
        for (behind, min) in [(false, FIXED.alone_min), (true, FIXED.behind_min)] {
            assert_eq!(pattern.choose_method(Some(min - 1), behind, FIXED), MoveMethod::Copy);
            assert_eq!(
                pattern.choose_method(Some(min), behind, FIXED),
                MoveMethod::Splice { max: min as usize }
            );
            let whole = pattern.choose_method(Some(u64::MAX), behind, FIXED);
            assert_eq!(whole, MoveMethod::Splice { max: PIPE_BYTES });
        }
    }

    #[test]
    fn a_stream_is_spliced_while_its_receives_are_large() {
        let mut pattern = ArrivalPattern::new(false);
        assert_eq!(pattern.choose_method(None, false, FIXED), MoveMethod::Copy);
        pattern.note_received(FIXED.bulk_min - 1, FIXED);
        assert_eq!(pattern.choose_method(None, false, FIXED), MoveMethod::Copy);
        pattern.note_received(FIXED.bulk_min, FIXED);
        assert_eq!(pattern.choose_method(None, false, FIXED), MoveMethod::Copy, "it may end soon");
        pattern.note_received(FIXED.bulk_after as usize, FIXED);
        assert_eq!(
            pattern.choose_method(None, false, FIXED),
            MoveMethod::Splice { max: PIPE_BYTES }
        );
        pattern.note_filled(FIXED.fill_min, PIPE_BYTES, FIXED);
        assert_eq!(pattern, ArrivalPattern::Bulk);
        pattern.note_filled(FIXED.fill_min - 1, PIPE_BYTES, FIXED);
        assert_eq!(pattern.choose_method(None, false, FIXED), MoveMethod::Copy);
        pattern.note_received(FIXED.bulk_min, FIXED);
        assert_eq!(pattern, ArrivalPattern::Bulk, "the body is known to be large");
    }

    #[test]
    fn a_complete_short_fill_does_not_change_the_pattern() {
        let mut pattern = ArrivalPattern::Bulk;
        pattern.note_filled(100, 100, FIXED);
        assert_eq!(pattern, ArrivalPattern::Bulk);
    }

    #[test]
    fn copy_thresholds_never_splice() {
        let copy = &Thresholds::COPY;
        for length_is_known in [true, false] {
            let mut pattern = ArrivalPattern::new(length_is_known);
            pattern.note_received(usize::MAX - 1, copy);
            for rest in [Some(0), Some(1 << 40), Some(u64::MAX), None] {
                assert_eq!(pattern.choose_method(rest, true, copy), MoveMethod::Copy);
                assert_eq!(pattern.choose_method(rest, false, copy), MoveMethod::Copy);
            }
        }
    }

    #[test]
    fn splice_thresholds_splice_every_byte() {
        let splice = &Thresholds::SPLICE;
        for length_is_known in [true, false] {
            let mut pattern = ArrivalPattern::new(length_is_known);
            assert_eq!(
                pattern.choose_method(Some(1), false, splice),
                MoveMethod::Splice { max: 1 }
            );
            pattern.note_received(0, splice);
            pattern.note_filled(1, PIPE_BYTES, splice);
            assert_eq!(
                pattern.choose_method(Some(1), false, splice),
                MoveMethod::Splice { max: 1 }
            );
            assert_eq!(
                pattern.choose_method(None, true, splice),
                MoveMethod::Splice { max: PIPE_BYTES }
            );
            assert_eq!(pattern.choose_method(Some(0), true, splice), MoveMethod::Copy);
        }
    }
}
