//! Fills: bodies that are received from an origin into the cache. A fill has the use of the origin
//! connection once the response header has arrived. The client that caused the fill reads the body
//! from the cache, like any other client.
//!
//! ```text
//!            it is too far ahead of its readers, or memory is lacking
//!  Receiving ───────────────────────────────────────────────────────> Blocked
//!      │ ^────────────── a reader makes progress, or memory is free ─────┘
//!      └── whole, or cut ──> the connection is idle or closed; the readers are woken
//! ```
//!
//! A body that arrived together with its header is stored at once, without an entry in the table of
//! fills. A large body goes to the client that caused the fill through a pipe, while that client
//! keeps up (see `tee.rs`).

mod leader;
pub(crate) mod run;
mod tee;

pub use leader::DIRECT_BYTES;

use std::rc::Rc;
use std::time::Duration;

use iolite::Aggregate;
use millrace_engine::{Engine, Instant, Table};
use millrace_store::{ObjectFiller, WaiterId};

use crate::conn::recv_buffer::RecvBuffer;
use crate::exchange::Exchange;
use crate::origin::{OriginConn, OriginId, OriginUse};
use crate::snapshot::Snapshot;
use crate::transfer::body_progress::BodyProgress;
use leader::{FillSource, Leader};

/// A body that is being received into the cache.
#[derive(Debug)]
pub(crate) struct Fill {
    /// The use of the origin connection.
    pub(crate) origin_use: OriginUse,
    /// The origin that sends the body.
    pub(crate) id: OriginId,
    pub(crate) filling: ObjectFiller,
    pub(crate) body: BodyProgress,
    /// Whether the connection may serve other requests afterwards.
    pub(crate) is_reusable: bool,
    /// Whether the fill continues without readers.
    pub(crate) continues_unread: bool,
    /// The maximum number of bytes that the fill may be ahead of its fastest reader. `None` means
    /// no maximum if the body is stored, and `fill_ahead_bytes` if it is only passed on. Ignored
    /// for a stored body whose fill continues without readers.
    pub(crate) ahead_max: Option<u64>,
    /// When the present wait for the origin began.
    pub(crate) since: Instant,
    /// Whether the fill waits for its readers or for memory instead of the origin.
    pub(crate) is_blocked: bool,
    /// Since when the fill has found no memory.
    pub(crate) starved_since: Option<Instant>,
    pub(crate) snapshot: Rc<Snapshot>,
    /// The number of payload bytes received.
    pub(crate) bytes: u64,
    /// Bytes that are stored already and follow the received ones, if a stored part is being
    /// completed.
    pub(crate) tail: Option<Aggregate>,
    /// The client that caused the fill, while it gets the body through a pipe.
    pub(crate) leader: Option<Leader>,
}

impl Fill {
    /// Returns the deadline of the origin. `None` if the fill does not wait for it.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let wait = Duration::from_millis(self.snapshot.limits().response_ms);
        (!self.is_blocked).then_some(self.since + wait)
    }

    /// Checks whether the readers, or their absence, stop the fill from receiving more. Registers
    /// `waiter` with the readers.
    pub(crate) fn check_readers(&mut self, waiter: WaiterId) -> Option<FillPause> {
        let continues_unread = self.continues_unread && self.filling.is_kept();
        if continues_unread || self.body.is_complete() {
            return None;
        }
        let most = self.snapshot.limits().fill_ahead_bytes;
        let ahead_max = self.ahead_max.or(Some(most).filter(|_| !self.filling.is_kept()));
        // All bytes between the fastest reader and one this far behind would stay in memory.
        self.filling.cut_slow_readers(READER_LAG_FACTOR * most);
        // Registers even if the fill does not have to wait: it has to notice when its last reader
        // leaves.
        match self.filling.lead_or_wait(0, waiter) {
            None => Some(FillPause::Cut),
            Some(ahead) if ahead_max.is_some_and(|max| ahead >= max) => {
                Some(FillPause::NeedsReaders)
            }
            Some(_) => None,
        }
    }

    /// Chooses how the next bytes are received.
    pub(crate) fn next_source(
        &mut self,
        connection: &OriginConn,
        exchanges: &Table<Box<Exchange>>,
        now: Instant,
    ) -> FillSource {
        let is_free = connection.wire.may_splice();
        let certain_bytes = self.body.certain_payload().unwrap_or(DIRECT_BYTES);
        if !connection.wire.recv_buffer.is_empty() {
            return FillSource::Buffered;
        }
        let direct_min = self.leader.as_ref().map_or(DIRECT_BYTES, Leader::direct_min);
        if !is_free || certain_bytes < direct_min {
            return FillSource::ByReceive;
        }
        leader::choose_source(&mut self.leader, &self.filling, exchanges, certain_bytes, now)
    }

    /// Stores a body that arrived together with its header, as far as there is memory. Returns the
    /// readers to wake, and whether there was enough memory.
    pub(crate) fn store_whole_body(
        &mut self,
        input: &mut RecvBuffer,
        now_ms: u64,
    ) -> (Vec<WaiterId>, bool) {
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

    /// Stores bytes from the receive buffer. Returns the number of payload bytes stored.
    pub(crate) fn store_received(
        &mut self,
        input: &mut RecvBuffer,
        now_ms: u64,
    ) -> Result<usize, FillPause> {
        let unfilled = self.filling.unfilled(now_ms).map_err(|_| FillPause::NeedsMemory)?;
        let bytes = input.bytes_mut();
        let part = bytes.len().min(unfilled.len());
        let taken = self.body.advance(&mut bytes[..part]);
        let (consumed, payload) = taken.map_err(|_| FillPause::Cut)?;
        let count = payload.len();
        unfilled[..count].copy_from_slice(&bytes[payload]);
        input.consume(consumed);
        self.bytes += count as u64;
        Ok(count)
    }

    /// Receives bytes from the socket directly into the cache's memory. Returns their number.
    pub(crate) fn receive_direct<E: Engine>(
        &mut self,
        engine: &mut E,
        connection: &mut OriginConn,
        now_ms: u64,
    ) -> Result<usize, FillPause> {
        let certain_bytes =
            usize::try_from(self.body.certain_payload().unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let unfilled = self.filling.unfilled(now_ms).map_err(|_| FillPause::NeedsMemory)?;
        let most = unfilled.len().min(certain_bytes);
        match connection.wire.try_receive_into(engine, &mut unfilled[..most]) {
            None => Err(FillPause::NeedsWatch),
            Some(Ok(0)) => Err(FillPause::OriginEnded),
            Some(Ok(count)) => {
                self.body.skip(count as u64);
                self.bytes += count as u64;
                if let Some(leader) = &mut self.leader {
                    leader.arrivals.note_received(count, &leader.thresholds);
                }
                Ok(count)
            }
            Some(Err(_)) => Err(FillPause::Cut),
        }
    }
}

/// Why a fill stops running.
pub(crate) enum FillPause {
    /// The body is whole.
    Whole,
    /// The rest of the body will never arrive, or nothing reads it.
    Cut,
    /// The origin ended its stream.
    OriginEnded,
    /// The next bytes have to be received by the engine.
    NeedsReceive,
    /// The socket has no bytes at present, so it has to be watched.
    NeedsWatch,
    /// A reader has to make progress first.
    NeedsReaders,
    /// There is no memory at present.
    NeedsMemory,
}

/// How far the fill of a part may be ahead of its readers. A player that seeks requests a part up
/// to the end of the file and reads only its beginning; the origin must not send the rest.
const PART_AHEAD_BYTES: u64 = 64 * 1024;

/// If a body is only passed on, a reader may be behind the fastest one by `fill_ahead_bytes` times
/// this factor.
const READER_LAG_FACTOR: u64 = 16;
/// The number of bytes that a fill receives directly before it lets other objects run: as many as a
/// pipe moves at once.
pub(crate) const TURN_BYTES_MAX: u64 = 256 * 1024;
