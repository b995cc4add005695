//! Whether the next bytes of a body are copied or spliced: a pure function of what is still to come
//! and how the body came so far.

use crate::Thresholds;
use crate::limits::PIPE_BYTES;

/// How the next bytes of a body are to be moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveMethod {
    /// By a receive and a send.
    Copy,
    /// Through a pipe, up to `max` bytes: exactly so many still belong to the body, or chunk.
    Splice {
        /// `1 <= max <= PIPE_BYTES`.
        max: usize,
    },
}

/// How a body comes. The marks are those of [`Thresholds`].
///
/// ```text
///            a receive of `bulk_min`, `bulk_after` in all
///   Sparse ──────────────────────────────────────────────> Bulk
///     ^ <───────────────────────────────────────────────── ^
///     │              a fill below `fill_min`               │
///  a length is not known                              it is known
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArrivalPattern {
    /// Little at a time, or nobody knows yet.
    Sparse {
        /// Bytes that were received so far; all that counts once it was [`Course::Bulk`] before.
        received: u64,
    },
    /// Much at a time.
    Bulk,
}

impl Default for ArrivalPattern {
    fn default() -> Self {
        Self::Sparse { received: 0 }
    }
}

impl ArrivalPattern {
    /// A body of a known length is expected to come as fast as it can be taken; anything else has
    /// to show that it does.
    pub fn new(length_is_known: bool) -> Self {
        if length_is_known { Self::Bulk } else { Self::default() }
    }

    /// What to do with the bytes that come next; `rest` are those still to come of what has a
    /// length, `None` where that is not known. `behind`: something is to be sent before them.
    pub fn choose_method(
        self,
        rest: Option<u64>,
        behind: bool,
        thresholds: &Thresholds,
    ) -> MoveMethod {
        let rest = rest.unwrap_or(u64::MAX);
        match self {
            // Where no receive has to show that it is worth it, any body is.
            Self::Sparse { .. } if thresholds.bulk_min > 0 => MoveMethod::Copy,
            _ if thresholds.is_worth_pipe(rest, behind) => {
                MoveMethod::Splice { max: rest.min(PIPE_BYTES as u64) as usize }
            }
            _ => MoveMethod::Copy,
        }
    }

    /// Notes how much one receive brought.
    pub fn note_received(&mut self, bytes: usize, thresholds: &Thresholds) {
        let Self::Sparse { received } = self else { return };
        *received = received.saturating_add(bytes as u64);
        if bytes >= thresholds.bulk_min && *received >= thresholds.bulk_after {
            *self = Self::Bulk;
        }
    }

    /// Notes how much of the `max` bytes that were asked for went into a pipe.
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
    fn a_large_rest_is_spliced_to_its_last_byte_and_no_further() {
        let course = ArrivalPattern::new(true);
        for (behind, min) in [(false, FIXED.alone_min), (true, FIXED.behind_min)] {
            assert_eq!(course.choose_method(Some(min - 1), behind, FIXED), MoveMethod::Copy);
            assert_eq!(
                course.choose_method(Some(min), behind, FIXED),
                MoveMethod::Splice { max: min as usize }
            );
            let whole = course.choose_method(Some(u64::MAX), behind, FIXED);
            assert_eq!(whole, MoveMethod::Splice { max: PIPE_BYTES });
        }
    }

    #[test]
    fn a_stream_is_spliced_while_it_brings_much() {
        let mut course = ArrivalPattern::new(false);
        assert_eq!(course.choose_method(None, false, FIXED), MoveMethod::Copy);
        course.note_received(FIXED.bulk_min - 1, FIXED);
        assert_eq!(course.choose_method(None, false, FIXED), MoveMethod::Copy);
        course.note_received(FIXED.bulk_min, FIXED);
        assert_eq!(
            course.choose_method(None, false, FIXED),
            MoveMethod::Copy,
            "it may be over soon"
        );
        course.note_received(FIXED.bulk_after as usize, FIXED);
        assert_eq!(
            course.choose_method(None, false, FIXED),
            MoveMethod::Splice { max: PIPE_BYTES }
        );
        course.note_filled(FIXED.fill_min, PIPE_BYTES, FIXED);
        assert_eq!(course, ArrivalPattern::Bulk);
        course.note_filled(FIXED.fill_min - 1, PIPE_BYTES, FIXED);
        assert_eq!(course.choose_method(None, false, FIXED), MoveMethod::Copy);
        course.note_received(FIXED.bulk_min, FIXED);
        assert_eq!(course, ArrivalPattern::Bulk, "it is known to be long");
    }

    #[test]
    fn a_short_end_that_came_whole_is_no_sign() {
        let mut course = ArrivalPattern::Bulk;
        course.note_filled(100, 100, FIXED);
        assert_eq!(course, ArrivalPattern::Bulk);
    }

    #[test]
    fn nothing_is_spliced_by_copy_however_much_it_is() {
        let copy = &Thresholds::COPY;
        for length_is_known in [true, false] {
            let mut course = ArrivalPattern::new(length_is_known);
            course.note_received(usize::MAX - 1, copy);
            for rest in [Some(0), Some(1 << 40), Some(u64::MAX), None] {
                assert_eq!(course.choose_method(rest, true, copy), MoveMethod::Copy);
                assert_eq!(course.choose_method(rest, false, copy), MoveMethod::Copy);
            }
        }
    }

    #[test]
    fn every_byte_to_come_is_spliced_by_splice_and_none_where_none_is() {
        let splice = &Thresholds::SPLICE;
        for length_is_known in [true, false] {
            let mut course = ArrivalPattern::new(length_is_known);
            assert_eq!(course.choose_method(Some(1), false, splice), MoveMethod::Splice { max: 1 });
            course.note_received(0, splice);
            course.note_filled(1, PIPE_BYTES, splice);
            assert_eq!(course.choose_method(Some(1), false, splice), MoveMethod::Splice { max: 1 });
            assert_eq!(
                course.choose_method(None, true, splice),
                MoveMethod::Splice { max: PIPE_BYTES }
            );
            assert_eq!(course.choose_method(Some(0), true, splice), MoveMethod::Copy);
        }
    }
}
