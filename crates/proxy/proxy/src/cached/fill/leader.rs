//! The client that caused a fill, and how far it is behind what has come of the body.

use std::time::Duration;

use millrace_engine::{Instant, Key, Table};
use millrace_splice::{Course, Plan, Thresholds};
use millrace_store::Filling;

use crate::exchange::Exchange;
use crate::transfer::{TransferState, body_progress::BodyProgress};

/// The client that caused a fill, as long as it gets the body through a pipe.
#[derive(Debug)]
pub(crate) struct Leader {
    pub(super) exchange: Key,
    pub(super) course: Course,
    pub(super) thresholds: Thresholds,
    /// Whether the body's length is not known: then what is certain to come is a part of it.
    has_unknown_length: bool,
    /// Since when the fill waits for it to take what came before; `None` while it does not.
    behind_since: Option<Instant>,
}

/// Where the next bytes come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FillSource {
    /// They were received already.
    Buffered,
    /// From the socket into the cache, without a buffer between. The client that caused the fill is
    /// served from the cache from now on, like others.
    Direct,
    /// From the socket into the cache, and to the client that caused the fill.
    Teed,
    /// The same, once that client has taken what came before. It will, or leave, and the fill is
    /// woken.
    AfterLeader,
    /// By a receive: few bytes, or lines between chunks.
    ByReceive,
}

impl Leader {
    /// Who asked for a body; `None` where it is so short that it is copied twice for less. Of one
    /// whose length is not known each chunk is looked at when it comes.
    pub(crate) fn new(exchange: Key, rest: &BodyProgress, thresholds: Thresholds) -> Option<Self> {
        let is_large = match rest {
            BodyProgress::Complete => false,
            BodyProgress::Length(rest) => thresholds.tees(*rest),
            BodyProgress::Chunked(_) | BodyProgress::UntilClose => thresholds.tees(u64::MAX),
        };
        let of_parts = !matches!(rest, BodyProgress::Length(_));
        let course = Course::new(true);
        let leader =
            Self { exchange, course, thresholds, has_unknown_length: of_parts, behind_since: None };
        is_large.then_some(leader)
    }

    /// From so many bytes on that are certain to come they are not received by the engine.
    pub(crate) fn direct_min(&self) -> u64 {
        self.thresholds.tee_min.min(DIRECT_BYTES)
    }

    /// Whether it has kept the fill waiting for too long.
    pub(super) fn is_slow(&self, now: Instant) -> bool {
        self.behind_since.is_some_and(|since| now.since(since) >= SLOW_LEADER_AFTER)
    }

    fn next_source(&self, filling: &Filling, exchanges: &Table<Box<Exchange>>) -> FillSource {
        let Some(exchange) = exchanges.get(self.exchange) else { return FillSource::Direct };
        let Some(reader) = &exchange.caching.reader else { return FillSource::Direct };
        if !filling.is_kept() || filling.readers() != 1 || !reader.reads_whole_body() {
            return FillSource::Direct;
        }
        let is_ready = exchange.download.state() == TransferState::AwaitingSource
            && reader.has_read_all_arrived();
        if is_ready { FillSource::Teed } else { FillSource::AfterLeader }
    }
}

/// Where the next `rest` bytes of the body come from, by the state of the leader in `place`. Removes
/// it where it is served from the cache from now on.
pub(super) fn choose_source(
    place: &mut Option<Leader>,
    filling: &Filling,
    exchanges: &Table<Box<Exchange>>,
    rest: u64,
    now: Instant,
) -> FillSource {
    let Some(mut leader) = place.take() else { return FillSource::Direct };
    let takes = leader.next_source(filling, exchanges);
    if takes == FillSource::Direct {
        return takes;
    }
    let is_small = leader.has_unknown_length && !leader.thresholds.tees(rest);
    let is_apart =
        is_small || leader.course.plan(Some(rest), false, &leader.thresholds) == Plan::Copy;
    leader.behind_since = match takes {
        FillSource::AfterLeader if !is_apart => leader.behind_since.or(Some(now)),
        _ => None,
    };
    *place = Some(leader);
    if is_apart { FillSource::Direct } else { takes }
}

/// From so many bytes on that are certain to come of a body that is stored they are received into
/// the cache itself; below, a receive that the engine batches with others is cheaper.
pub const DIRECT_BYTES: u64 = 32 * 1024;

/// How long a fill waits for a pipe-full to be taken, looked at each 100 ms: whoever takes less
/// than 10 Mbit/s has the body wait in the cache's memory.
const SLOW_LEADER_AFTER: Duration = Duration::from_millis(100);
