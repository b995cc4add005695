//! The leader: the client that caused a fill, and how far it is behind the bytes that have arrived.

use std::time::Duration;

use millrace_engine::{Instant, Key, Table};
use millrace_splice::{ArrivalPattern, MoveMethod, Thresholds};
use millrace_store::ObjectFiller;

use crate::exchange::Exchange;
use crate::transfer::{TransferState, body_progress::BodyProgress};

/// The client that caused a fill, while it gets the body through a pipe.
#[derive(Debug)]
pub(crate) struct Leader {
    pub(super) exchange: Key,
    pub(super) arrivals: ArrivalPattern,
    pub(super) thresholds: Thresholds,
    /// Whether the length of the body is unknown. Then only the length of the present chunk is
    /// known, if any.
    has_unknown_length: bool,
    /// Since when the fill has waited for the leader to take the earlier bytes. `None` if it does
    /// not wait.
    behind_since: Option<Instant>,
}

/// How the next bytes of a fill are received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FillSource {
    /// From the receive buffer.
    Buffered,
    /// From the socket into the cache's memory, without a buffer between them. The leader reads
    /// these bytes from the cache, like other readers.
    Direct,
    /// From the socket through a pipe to the leader, and from a second pipe into the cache.
    Teed,
    /// Like `Teed`, once the leader has taken the earlier bytes. The fill is woken when the leader
    /// has taken them or leaves.
    AfterLeader,
    /// By a receive of the engine: few bytes, or the lines between chunks.
    ByReceive,
}

impl Leader {
    /// Creates the leader of a fill. Returns `None` if the body is so short that copying it twice
    /// is cheaper. If the length is unknown, this is decided for each chunk.
    pub(crate) fn new(exchange: Key, rest: &BodyProgress, thresholds: Thresholds) -> Option<Self> {
        let is_large = match rest {
            BodyProgress::Complete => false,
            BodyProgress::Length(rest) => thresholds.is_worth_teeing(*rest),
            BodyProgress::Chunked(_) | BodyProgress::UntilClose => {
                thresholds.is_worth_teeing(u64::MAX)
            }
        };
        let has_unknown_length = !matches!(rest, BodyProgress::Length(_));
        let arrivals = ArrivalPattern::new(true);
        let leader =
            Self { exchange, arrivals, thresholds, has_unknown_length, behind_since: None };
        is_large.then_some(leader)
    }

    /// Returns the minimum number of payload bytes for a direct receive from the socket. If fewer
    /// bytes are certain to come next, the fill uses a receive of the engine.
    pub(crate) fn direct_min(&self) -> u64 {
        self.thresholds.tee_min.min(DIRECT_BYTES)
    }

    /// Returns whether the leader has kept the fill waiting for too long.
    pub(super) fn is_slow(&self, now: Instant) -> bool {
        self.behind_since.is_some_and(|since| now.since(since) >= SLOW_LEADER_AFTER)
    }

    fn next_source(&self, filling: &ObjectFiller, exchanges: &Table<Box<Exchange>>) -> FillSource {
        let Some(exchange) = exchanges.get(self.exchange) else { return FillSource::Direct };
        let Some(reader) = &exchange.caching.reader else { return FillSource::Direct };
        if !filling.is_kept()
            || filling.reader_count() != 1
            || !reader.reads_whole_body()
            || exchange.caching.coder.is_some()
        {
            return FillSource::Direct;
        }
        let is_ready = exchange.download.state() == TransferState::AwaitingSource
            && reader.has_read_all_arrived();
        if is_ready { FillSource::Teed } else { FillSource::AfterLeader }
    }
}

/// Chooses how the next `rest` bytes of the body are received, by the state of the leader in
/// `slot`. Removes the leader if it is served from the cache from now on.
pub(super) fn choose_source(
    slot: &mut Option<Leader>,
    filling: &ObjectFiller,
    exchanges: &Table<Box<Exchange>>,
    rest: u64,
    now: Instant,
) -> FillSource {
    let Some(mut leader) = slot.take() else { return FillSource::Direct };
    let source = leader.next_source(filling, exchanges);
    if source == FillSource::Direct {
        return source;
    }
    let is_small = leader.has_unknown_length && !leader.thresholds.is_worth_teeing(rest);
    let is_direct = is_small
        || leader.arrivals.choose_method(Some(rest), false, &leader.thresholds) == MoveMethod::Copy;
    leader.behind_since = match source {
        FillSource::AfterLeader if !is_direct => leader.behind_since.or(Some(now)),
        _ => None,
    };
    *slot = Some(leader);
    if is_direct { FillSource::Direct } else { source }
}

/// A stored body is received directly into the cache's memory if at least this many payload bytes
/// are certain to come next. Below it, a receive that the engine batches with others is cheaper.
pub const DIRECT_BYTES: u64 = 32 * 1024;

/// How long a fill waits for its leader to take a full pipe, checked every 100 ms. A client that
/// takes less than about 10 Mbit/s gets the body from the cache's memory instead.
const SLOW_LEADER_AFTER: Duration = Duration::from_millis(100);
