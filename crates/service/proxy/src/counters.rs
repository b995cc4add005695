//! What a worker counts. Only the worker writes its counters; metrics, `demo` and other workers
//! read.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread writes and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The number as it was a moment ago.
    pub fn get(&self) -> u64 {
        // Pairs with the stores below. Nothing else is read by what this says: relaxed is enough.
        self.0.load(Ordering::Relaxed)
    }

    /// Adds. A load and a store, not one atomic operation: there is only one writer.
    pub(crate) fn add(&self, more: u64) {
        // Pairs with the load in `get`.
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    /// Says what a gauge stands at.
    pub(crate) fn set(&self, value: u64) {
        // Pairs with the load in `get`.
        self.0.store(value, Ordering::Relaxed);
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $kind:ident $name:ident;)*) => {
        /// The counters and gauges of one worker.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: Counter,)*
        }

        impl Counters {
            /// Each counter: its name, its help, whether it may fall, and how to read it.
            pub const TABLE: &'static [Row] = &[$(Row {
                name: stringify!($name),
                help: concat!($($doc),+),
                kind: RowKind::$kind,
                read: |counters| counters.$name.get(),
            }),*];
        }
    };
}

/// How one counter is presented.
pub struct Row {
    /// Its name, without the prefix of the metrics page.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Whether it may fall.
    pub kind: RowKind,
    /// Reads it.
    pub read: fn(&Counters) -> u64,
}

/// Whether a number only rises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowKind {
    /// It only rises.
    Counter,
    /// It stands at what is there now.
    Gauge,
}

counters! {
    /// Client connections accepted.
    Counter connections_accepted;
    /// Client connections closed at once: for the limit of their address, or for want of a PROXY
    /// protocol header from somebody who may send one.
    Counter connections_refused;
    /// Client connections handed to another worker.
    Counter connections_handed_over;
    /// Client connections that stood still, closed to make room.
    Counter connections_shed;
    /// Client connections open.
    Gauge connections;
    /// Times that accepting paused for want of connections or descriptors.
    Counter accept_pauses;
    /// Exchanges that ended.
    Counter exchanges;
    /// Exchanges under way.
    Gauge exchanges_open;
    /// Answers that millrace made itself.
    Counter answers_own;
    /// Answers cut short because the origin, or the client, broke off.
    Counter answers_aborted;
    /// Tunnels opened, by CONNECT or Upgrade.
    Counter tunnels;
    /// Connections opened to origins.
    Counter origin_connections_opened;
    /// Requests that went over an origin connection kept from an earlier one.
    Counter origin_connections_reused;
    /// Origin connections open, idle ones included.
    Gauge origin_connections;
    /// Requests tried again on another connection.
    Counter retries;
    /// Requests that could have been tried again, but for the retry budget.
    Counter retries_refused;
    /// Times that an origin was ejected: it is not asked for a while.
    Counter origin_ejections;
    /// Requests sent to an ejected origin to find out how it stands.
    Counter origin_probes;
    /// Times that an ejected origin was readmitted, having answered.
    Counter origin_readmissions;
    /// Requests that wait until their origin may have another connection.
    Gauge origin_requests_queued;
    /// Requests refused because their origin had as many connections, and requests waiting for
    /// one, as it may have, or because they had waited too long.
    Counter origin_queue_refusals;
    /// Requests answered from the cache without asking the origin.
    Counter cache_hits;
    /// Requests that the cache might have answered and the origin was asked for.
    Counter cache_misses;
    /// Stored answers that their origin said to hold still.
    Counter cache_validated;
    /// Requests to origins that find out whether a stale answer still holds while clients get it.
    Counter cache_refreshes;
    /// Requests that waited for what another one fetched.
    Counter cache_collapsed;
    /// Answers stored.
    Counter cache_stored;
    /// Bytes of bodies received into the cache.
    Counter cache_bytes_filled;
    /// Bytes of bodies and tunnels from clients to origins.
    Counter bytes_uploaded;
    /// Bytes of bodies and tunnels that clients took, from origins or from the cache.
    Counter bytes_downloaded;
    /// Bytes of bodies and tunnels, either way, that went through a pipe inside the kernel.
    Counter bytes_spliced;
    /// Bytes of bodies and tunnels, either way, that were sent from memory; what the cache sends by
    /// reference is not among them. Counted when their exchange ends.
    Counter bytes_copied;
    /// Bytes of bodies to clients that went through a pipe and were repeated in a second one for the
    /// cache. Counted when their exchange ends.
    Counter bytes_teed;
    /// System calls that bodies and tunnels were moved by, as far as they were asked for: an engine
    /// may do several in one. Counted when their exchange ends.
    Counter transfer_calls;
    /// Times that something was copied because no pipe was free, or the kernel gave none.
    Counter pipes_refused;
    /// Pipes open.
    Gauge pipes;
    /// Listening sockets open.
    Gauge listeners;
    /// Times that the worker was asked whether it turns, and did.
    Counter beats;
    /// Bytes held in user memory beyond a turn.
    Gauge held_bytes;
    /// Times that the worker panicked and was started anew; its connections were reset.
    Counter worker_restarts;
    /// Number of the configuration in force.
    Gauge snapshot;
    /// Configurations in use: the one in force, and those that something under way began with.
    Gauge snapshots_held;
}
