//! Fills: bodies that are received from an origin into the cache. A fill has the origin's
//! connection from the response's header on; the client that caused it reads what it fills, like
//! any other.
//!
//! ```text
//!            bytes, no room          room, or a reader
//!  Receiving ──────────────> Waiting ─────────────────> Receiving
//!      └── all, or cut ──> the connection is idle or closed; the readers are woken
//! ```
//!
//! A body that came with its header is whole before it is anywhere here. A large one goes to the
//! client that caused the fill through a pipe, while that client keeps up ([`tee`]).

mod leader;
pub(crate) mod run;
mod tee;

pub use leader::DIRECT_BYTES;

use std::rc::Rc;
use std::time::Duration;

use iolite::Aggregate;
use millrace_engine::{Engine, Instant, Table};
use millrace_store::{Filling, Waiter};

use crate::conn::recv_buffer::RecvBuffer;
use crate::exchange::Exchange;
use crate::origin::{OriginConn, OriginId, OriginUse};
use crate::snapshot::Snapshot;
use crate::transfer::body_progress::BodyProgress;
use leader::{FillSource, Leader};

/// A body on its way into the cache.
#[derive(Debug)]
pub(crate) struct Fill {
    /// The use of the origin's connection.
    pub(crate) origin_use: OriginUse,
    pub(crate) id: OriginId,
    pub(crate) filling: Filling,
    pub(crate) body: BodyProgress,
    /// Whether the connection may serve other requests afterwards.
    pub(crate) is_reusable: bool,
    /// Whether it goes on without readers.
    pub(crate) continues_unread: bool,
    /// How far it may be ahead of its readers while it does not; `None`: as far as it wants, where
    /// the body is stored.
    pub(crate) ahead_max: Option<u64>,
    /// When the present wait for the origin began.
    pub(crate) since: Instant,
    /// Whether it waits for room instead of the origin.
    pub(crate) waits_for_room: bool,
    /// Since when there is no memory for it.
    pub(crate) starved_since: Option<Instant>,
    pub(crate) snapshot: Rc<Snapshot>,
    /// Bytes received.
    pub(crate) bytes: u64,
    /// What follows them, and is there already.
    pub(crate) tail: Option<Aggregate>,
    /// The client that caused the fill, while it gets the body through a pipe.
    pub(crate) leader: Option<Leader>,
}

impl Fill {
    /// When the origin has been waited for long enough; `None` while it is not.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let wait = Duration::from_millis(self.snapshot.limits().response_ms);
        (!self.waits_for_room).then_some(self.since + wait)
    }

    /// Whether its readers, or that it has none, keep it from receiving more.
    pub(crate) fn check_readers(&mut self, waiter: Waiter) -> Option<FillPause> {
        let goes_on = self.continues_unread && self.filling.is_kept();
        if goes_on || self.body.is_complete() {
            return None;
        }
        let most = self.snapshot.limits().fill_ahead_bytes;
        let ahead_max = self.ahead_max.or(Some(most).filter(|_| !self.filling.is_kept()));
        // A reader that is that far behind the fastest would keep all between the two in memory.
        self.filling.cut_behind(READER_LAG_FACTOR * most);
        // Waits even if there is nothing to do: the fill must notice when its last reader leaves.
        match self.filling.ahead(0, waiter) {
            None => Some(FillPause::Cut),
            Some(ahead) if ahead_max.is_some_and(|max| ahead >= max) => {
                Some(FillPause::NeedsReaders)
            }
            Some(_) => None,
        }
    }

    pub(crate) fn next_source(
        &mut self,
        connection: &OriginConn,
        exchanges: &Table<Box<Exchange>>,
        now: Instant,
    ) -> FillSource {
        let is_free = connection.wire.may_splice();
        let comes = self.body.certain_payload().unwrap_or(DIRECT_BYTES);
        if !connection.wire.recv_buffer.is_empty() {
            return FillSource::Buffered;
        }
        let direct_min = self.leader.as_ref().map_or(DIRECT_BYTES, Leader::direct_min);
        if !is_free || comes < direct_min {
            return FillSource::ByReceive;
        }
        leader::choose_source(&mut self.leader, &self.filling, exchanges, comes, now)
    }

    /// Takes a body that came with its header, as far as there is memory. Returns the readers to
    /// wake, and whether there was enough memory.
    pub(crate) fn store_whole_body(
        &mut self,
        input: &mut RecvBuffer,
        now_ms: u64,
    ) -> (Vec<Waiter>, bool) {
        let mut woken = Vec::new();
        if matches!(self.body, BodyProgress::Length(length) if length <= input.bytes().len() as u64)
        {
            while !self.body.is_complete() {
                let Ok(count) = self.store_received(input, now_ms) else { return (woken, false) };
                woken.append(&mut self.filling.advance(count, now_ms));
            }
        }
        (woken, true)
    }

    /// Moves bytes that were received. Returns how many bytes of the body those are.
    pub(crate) fn store_received(
        &mut self,
        input: &mut RecvBuffer,
        now_ms: u64,
    ) -> Result<usize, FillPause> {
        let spare = self.filling.spare(now_ms).map_err(|_| FillPause::NeedsMemory)?;
        let bytes = input.bytes_mut();
        let part = bytes.len().min(spare.len());
        let taken = self.body.advance(&mut bytes[..part]);
        let (consumed, payload) = taken.map_err(|_| FillPause::Cut)?;
        let count = payload.len();
        spare[..count].copy_from_slice(&bytes[payload]);
        input.consume(consumed);
        self.bytes += count as u64;
        Ok(count)
    }

    /// Takes what the socket has. Returns how many bytes of the body those are.
    pub(crate) fn receive_direct<E: Engine>(
        &mut self,
        engine: &mut E,
        connection: &mut OriginConn,
        now_ms: u64,
    ) -> Result<usize, FillPause> {
        let comes =
            usize::try_from(self.body.certain_payload().unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let spare = self.filling.spare(now_ms).map_err(|_| FillPause::NeedsMemory)?;
        let most = spare.len().min(comes);
        match connection.wire.try_receive_into(engine, &mut spare[..most]) {
            None => Err(FillPause::NeedsWatch),
            Some(Ok(0)) => Err(FillPause::OriginEnded),
            Some(Ok(count)) => {
                self.body.skip(count as u64);
                self.bytes += count as u64;
                if let Some(leader) = &mut self.leader {
                    leader.course.received(count, &leader.thresholds);
                }
                Ok(count)
            }
            Some(Err(_)) => Err(FillPause::Cut),
        }
    }
}

/// What a fill cannot go on without.
pub(crate) enum FillPause {
    /// Nothing: all is there.
    Whole,
    /// Nothing: the rest will never come, or nothing reads it.
    Cut,
    /// The origin ended its stream.
    OriginEnded,
    NeedsReceive,
    NeedsWatch,
    /// A reader has to go on first.
    NeedsReaders,
    /// There is no memory just now.
    NeedsMemory,
}

/// How far a part may be ahead of its readers. A player that seeks requests a part to the end of
/// the file and reads only its beginning: the origin must not send the rest.
const PART_AHEAD_BYTES: u64 = 64 * 1024;

/// How many times `fill_ahead_bytes` a reader may be behind where the body is only passed on.
const READER_LAG_FACTOR: u64 = 16;
/// Bytes that one fill takes before it queues behind others: no more than a pipe moves at once.
pub(crate) const TURN_BYTES_MAX: u64 = 256 * 1024;
