//! Overload control: descriptors, connections and memory are bounded. `capacity.rs` computes the
//! free capacity of a worker, `shed.rs` selects the clients to close when capacity is short, and
//! `wait_list.rs` holds the requests that wait for capacity.

pub(crate) mod capacity;
pub(crate) mod per_client;
pub(crate) mod shed;
pub(crate) mod wait_list;

use std::collections::VecDeque;
use std::time::Duration;

use millrace_engine::{Instant, Key};

use crate::overload::per_client::ClientCounts;

/// The capacity of a worker, and the requests that wait for capacity.
#[derive(Debug, Default)]
pub(crate) struct Overload {
    /// The most client connections of the worker.
    pub(crate) connections_max: usize,
    /// The most descriptors for connections to clients and origins.
    pub(crate) descriptors_max: usize,
    /// The value of `descriptors_max` at the start, with `listeners_at_start` listeners.
    pub(crate) descriptors_at_start: usize,
    /// The number of listeners at the start.
    pub(crate) listeners_at_start: usize,
    /// How long a client may be stalled in a shortage before it is shed; multiplied by the patience
    /// factor of the client. A brief shortage closes no client whose request is in progress,
    /// however slow its network is. While a shortage lasts, as under a flood, the grace shrinks
    /// until only the order of the stalled clients matters.
    grace: Duration,
    /// The demand of this turn for which there was no capacity.
    pub(crate) unmet: UnmetDemand,
    /// Whether a client was accepted and there is no capacity for another one, so that stalled
    /// clients have to be shed before the turn continues.
    pub(crate) sheds_before_next: bool,
    /// The turn in which clients were last shed for an accepted client.
    last_client_shed: Option<Instant>,
    /// The cache's count of failed allocations for bodies when it was last compared.
    cache_memory_misses: u64,
    /// The connections of each client.
    pub(crate) clients: ClientCounts,
    /// The wait list: exchanges that wait for capacity, each once, the oldest first.
    pub(crate) wait_list: VecDeque<WaitingExchange>,
    /// Exchanges whose read of a file was refused, because too much work waits for the threads. The
    /// oldest is first. Some may have ended since.
    pub(crate) refused_reads: Vec<Key>,
}

impl Overload {
    /// Creates the state of a worker with this many descriptors for connections and listeners.
    pub(crate) fn new(descriptors: usize, listeners: usize) -> Self {
        let (descriptors_at_start, listeners_at_start) = (descriptors, listeners);
        Self { descriptors_at_start, listeners_at_start, grace: GRACE_MAX, ..Self::default() }
    }

    /// Shrinks the grace. Called every 20 ms during a shortage.
    pub(crate) fn halve_grace(&mut self) {
        self.grace = (self.grace / 2).max(GRACE_MIN);
    }

    /// Extends the grace. Called every 100 ms while there is no shortage.
    pub(crate) fn double_grace(&mut self) {
        self.grace = (self.grace * 2).min(GRACE_MAX);
    }

    /// Returns whether the grace has its maximum.
    pub(crate) fn is_grace_max(&self) -> bool {
        self.grace == GRACE_MAX
    }
}

/// The demand of a turn for which there was no capacity.
#[derive(Default, Debug)]
pub(crate) struct UnmetDemand {
    /// Whether the kernel refused a descriptor for a client, although some should be free by this
    /// worker's count.
    pub(crate) descriptors: bool,
    /// The number of requests that entered the wait list for the first time, or whose lookup found
    /// no descriptor.
    pub(crate) requests: usize,
}

/// The resource for which a request waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WantedResource {
    /// A descriptor, or kernel memory, for a connection.
    Connection,
    /// The lookup of a name.
    Lookup,
}

/// An exchange in the wait list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WaitingExchange {
    pub(crate) key: Key,
    since: Instant,
    resource: WantedResource,
    /// When the exchange may try again.
    retry_at: Instant,
}

/// The grace when a shortage begins: about two round trips around the world.
const GRACE_MAX: Duration = Duration::from_millis(250);
/// The least grace. Multiplied by [`PATIENCE_SERVED`], it is one second for a client that is being
/// served. Within that time a lost packet is retransmitted and arrives, unless it is lost again
/// (RFC 6298). So the network rather than the client may be the cause of a shorter stall.
const GRACE_MIN: Duration = Duration::from_micros(1_000_000 / PATIENCE_SERVED as u64);

/// The patience factor of a client that is being served or has just connected: it may be stalled
/// this many times longer than a client whose request header does not end.
const PATIENCE_SERVED: u32 = 16;
/// The interval at which a worker sheds clients for waiting requests during a shortage, and the
/// delay before a lookup without a descriptor is retried.
pub(crate) const SHORTAGE_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The most bytes to receive at once of a response that waits for its turn in the pipeline. Such a
/// response holds less than twice this many bytes in memory.
pub(crate) const RECEIVE_AHEAD_MAX: usize = 4096;
