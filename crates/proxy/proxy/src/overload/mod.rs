//! Overload: descriptors, connections and memory run short. `capacity.rs` computes what a worker
//! has room for, `shed.rs` selects the clients that make room, and `wait_list.rs` has the requests
//! that wait for room.

pub(crate) mod capacity;
pub(crate) mod per_client;
pub(crate) mod shed;
pub(crate) mod wait_list;

use std::collections::VecDeque;
use std::time::Duration;

use millrace_engine::{Instant, Key};

/// A worker's capacity, and what waits for room.
#[derive(Debug, Default)]
pub(crate) struct Overload {
    /// The most client connections.
    pub(crate) connections_max: usize,
    /// Descriptors for clients and origins.
    pub(crate) descriptors_max: usize,
    /// The same at the start, with so many listeners.
    pub(crate) descriptors_at_start: usize,
    pub(crate) listeners_at_start: usize,
    /// How long a client may stand still though room is short. A shortage that passes harms nobody
    /// whose request is on its way, however slow its network is; in one that lasts, as under a
    /// flood, ever less is forgiven, and it is the order that counts.
    grace: Duration,
    pub(crate) unmet: UnmetDemand,
    /// A client came, and there is no room for a further one: clients that stand still are to make
    /// room before the turn goes on.
    pub(crate) sheds_before_next: bool,
    /// When a client that came last made others go.
    last_client_shed: Option<Instant>,
    /// The cache's count of bodies without memory when room was last looked for.
    cache_memory_misses: u64,
    /// Exchanges that wait for room, each once, in the order of the time since which they wait.
    pub(crate) wait_list: VecDeque<WaitingExchange>,
}

impl Overload {
    /// That of a worker which may open so many descriptors, with so many listeners.
    pub(crate) fn new(descriptors: usize, listeners: usize) -> Self {
        let (descriptors_at_start, listeners_at_start) = (descriptors, listeners);
        Self { descriptors_at_start, listeners_at_start, grace: GRACE_MAX, ..Self::default() }
    }

    /// Room is still short: less is forgiven. Asked every 20 ms while it is.
    pub(crate) fn halve_grace(&mut self) {
        self.grace = (self.grace / 2).max(GRACE_MIN);
    }

    /// Room is not short: more is forgiven. Asked every 100 ms.
    pub(crate) fn double_grace(&mut self) {
        self.grace = (self.grace * 2).min(GRACE_MAX);
    }

    /// Whether no more could be forgiven.
    pub(crate) fn is_grace_max(&self) -> bool {
        self.grace == GRACE_MAX
    }
}

/// The demand that found no room in a turn.
#[derive(Default, Debug)]
pub(crate) struct UnmetDemand {
    /// The kernel had no descriptor for a client, though we may count some.
    pub(crate) descriptors: bool,
    /// Requests that began to wait, or whose lookup found no descriptor.
    pub(crate) requests: usize,
}

/// What a request had no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WantedResource {
    /// A descriptor, or memory of the kernel's, for a connection.
    Connection,
    /// The lookup of a name.
    Lookup,
}

/// An exchange that waits for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WaitingExchange {
    pub(crate) key: Key,
    since: Instant,
    resource: WantedResource,
    /// When it may try again.
    retry_at: Instant,
}

/// What is forgiven while room was not short for long: two round trips around the world. Of those
/// who are being served, never less than the second within which a lost packet is there again, if
/// that one is not lost (RFC 6298): it may be the network that keeps us waiting.
const GRACE_MAX: Duration = Duration::from_millis(250);
const GRACE_MIN: Duration = Duration::from_micros(1_000_000 / PATIENCE_SERVED as u64);

/// How much longer than a header that does not end a client that is being served, or has only just
/// come, may stand still.
const PATIENCE_SERVED: u32 = 16;
/// How often a worker that lacks room looks for some.
pub(crate) const SHORTAGE_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// The most that is received at once of a response that waits until those before it were delivered;
/// less than twice as much of it is held.
pub(crate) const RECEIVE_AHEAD_MAX: usize = 4096;
