//! Whether the next bytes of a body are copied or spliced: a pure function of what is still to come
//! and how the body came so far.

use crate::limits::{BULK_MIN, FILL_MIN, PIPE_BYTES, SPLICE_BEHIND_MIN, SPLICE_MIN};

/// How the next bytes of a body are to be moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// By a receive and a send.
    Copy,
    /// Through a pipe, up to `max` bytes: exactly so many still belong to the body, or chunk.
    Splice {
        /// `1 <= max <= PIPE_BYTES`.
        max: usize,
    },
}

/// How a body comes.
///
/// ```text
///            a receive of BULK_MIN
///   Sparse ────────────────────────> Bulk
///     ^ <──────────────────────────── ^
///     │    a fill below FILL_MIN      │
///  a length is not known         it is known
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Course {
    /// Little at a time, or nobody knows yet.
    #[default]
    Sparse,
    /// Much at a time.
    Bulk,
}

impl Course {
    /// A body of a known length is expected to come as fast as it can be taken; anything else has
    /// to show that it does.
    pub fn new(length_is_known: bool) -> Self {
        if length_is_known { Self::Bulk } else { Self::Sparse }
    }

    /// What to do with the bytes that come next; `rest` are those still to come of what has a
    /// length, `None` where that is not known. `behind`: something is to be sent before them.
    pub fn plan(self, rest: Option<u64>, behind: bool) -> Plan {
        let rest = rest.unwrap_or(u64::MAX);
        if self == Self::Sparse || rest < if behind { SPLICE_BEHIND_MIN } else { SPLICE_MIN } {
            return Plan::Copy;
        }
        Plan::Splice { max: rest.min(PIPE_BYTES as u64) as usize }
    }

    /// Notes how much one receive brought.
    pub fn received(&mut self, bytes: usize) {
        if bytes >= BULK_MIN {
            *self = Self::Bulk;
        }
    }

    /// Notes how much of the `max` bytes that were asked for went into a pipe.
    pub fn filled(&mut self, bytes: usize, max: usize) {
        if bytes < FILL_MIN.min(max) {
            *self = Self::Sparse;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_rest_is_spliced_to_its_last_byte_and_no_further() {
        let course = Course::new(true);
        for (behind, min) in [(false, SPLICE_MIN), (true, SPLICE_BEHIND_MIN)] {
            assert_eq!(course.plan(Some(min - 1), behind), Plan::Copy);
            assert_eq!(course.plan(Some(min), behind), Plan::Splice { max: min as usize });
            assert_eq!(course.plan(Some(u64::MAX), behind), Plan::Splice { max: PIPE_BYTES });
        }
    }

    #[test]
    fn a_stream_is_spliced_while_it_brings_much() {
        let mut course = Course::new(false);
        assert_eq!(course.plan(None, false), Plan::Copy);
        course.received(BULK_MIN - 1);
        assert_eq!(course.plan(None, false), Plan::Copy);
        course.received(BULK_MIN);
        assert_eq!(course.plan(None, false), Plan::Splice { max: PIPE_BYTES });
        course.filled(FILL_MIN, PIPE_BYTES);
        assert_eq!(course, Course::Bulk);
        course.filled(FILL_MIN - 1, PIPE_BYTES);
        assert_eq!(course.plan(None, false), Plan::Copy);
    }

    #[test]
    fn a_short_end_that_came_whole_is_no_sign() {
        let mut course = Course::Bulk;
        course.filled(100, 100);
        assert_eq!(course, Course::Bulk);
    }
}
