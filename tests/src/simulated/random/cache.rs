//! Random scenarios of a cache: several clients request few URLs, at the same time and later. The
//! origin sends a new response to each request, with various Cache-Control. Each response has a
//! serial number in a field, and a body made from this number. So a client can identify a response,
//! and [`model`] decides whether the client may get it.
//!
//! In the scenarios of [`super::play_random`], clients request only URLs of their own.

mod client;
mod disk;
mod generate;
mod model;
mod origin;
mod run;

use std::fmt;

use millrace_disk::SimFaults;
use millrace_sim::{Faults, World};

pub use generate::random_cache_scenario;

use super::plan::{BodyFraming, Break, HeaderSyntax, Reader};
use super::run::Outcome;
use crate::simulated::TlsPlan;

/// A scenario of a cache, as plain data.
#[derive(Clone, Debug)]
pub struct CacheScenario {
    /// The seed of the scenario and of its world.
    pub seed: u64,
    /// The faults of the world.
    pub world: Faults,
    pub(super) workers: usize,
    /// Clients use TLS.
    pub(super) secured: bool,
    /// How the origin uses TLS; `None`: not at all.
    pub(super) origin_tls: Option<TlsPlan>,
    /// Options of the command line.
    pub(super) options: Vec<String>,
    /// The responses to each URL, by its number. The first request gets the first one, and after
    /// the last one the first follows again.
    pub(super) responses: Vec<Vec<CachedResponsePlan>>,
    pub(super) clients: Vec<CacheClientPlan>,
    /// When the workers are drained while clients are still active; `None`: at the end.
    pub(super) drain_ms: Option<u64>,
    /// When the process is killed and restarted, in order.
    pub(super) kills_ms: Vec<u64>,
    /// The disk of the cache, if it has one.
    pub(super) disk: Option<DiskPlan>,
}

/// A disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskPlan {
    /// The size that the cache may use.
    bytes: u64,
    /// The size of the disk.
    capacity: u64,
    faults: SimFaults,
    /// Whether the cache reads responses from disk even if they are in memory.
    rereads: bool,
    /// Whether a kill may also cut the power of the machine, which loses sectors that were not
    /// synced.
    loses_power: bool,
    /// Whether a kill may flip a bit of the stored data.
    flips: bool,
}

impl DiskPlan {
    /// Returns whether a body may turn out to be damaged while a client receives it.
    fn may_cut(&self) -> bool {
        self.faults.read_errors > 0 || self.flips || self.loses_power
    }
}

/// One response of the origin.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedResponsePlan {
    cache_control: CacheControl,
    status: u16,
    /// Whether it has an ETag.
    tagged: bool,
    /// Whether it varies by language.
    varies: bool,
    /// Whether the origin sends 304 to a request whose If-None-Match names one of its responses.
    confirms: bool,
    length: usize,
    frame: BodyFraming,
    delay_ms: u64,
    drip: Option<(usize, u64)>,
    breaks: Option<Break>,
    /// How its headers are written.
    form: HeaderSyntax,
}

/// The Cache-Control of a response, and its meaning.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheControl {
    text: &'static str,
    /// Its lifetime in seconds.
    fresh_s: u64,
    /// Seconds after the lifetime during which it may be used stale.
    stale_s: u64,
    /// Whether it is private to one client.
    private: bool,
}

/// A client's connection.
#[derive(Clone, Debug)]
pub(super) struct CacheClientPlan {
    begins_ms: u64,
    reader: Reader,
    pipelined: bool,
    requests: Vec<CacheRequest>,
    /// How it uses TLS, if the scenario does.
    tls: TlsPlan,
    /// The number of bytes after which the client resets its connection.
    leaves: Option<usize>,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheRequest {
    id: u32,
    method: &'static str,
    url: usize,
    language: u8,
    /// `Cache-Control` of the request; may be empty.
    cache_control: &'static str,
    /// First and last byte of the requested range.
    range: Option<(usize, usize)>,
    pause_ms: u64,
}

/// Plays a scenario; a panic counts as a failure. `log_events` enables the event log.
pub fn play_cache(scenario: &CacheScenario, log_events: bool) -> Outcome {
    play_cache_in(&World::new(scenario.seed, scenario.world), scenario, log_events)
}

/// Like [`play_cache`], in a new world of the caller's.
pub fn play_cache_in(world: &World, scenario: &CacheScenario, log_events: bool) -> Outcome {
    super::catch_panic(world, log_events, || run::play(scenario, world, log_events))
}

impl fmt::Display for CacheScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, world {:?}, {} workers", self.seed, self.world, self.workers)?;
        writeln!(f, "TLS of clients: {}, of the origin: {:?}", self.secured, self.origin_tls)?;
        writeln!(f, "boost {}, drains {:?}", self.options.join(" "), self.drain_ms)?;
        writeln!(f, "is killed at {:?} ms; {:?}", self.kills_ms, self.disk)?;
        for (url, plans) in self.responses.iter().enumerate() {
            plans.iter().try_for_each(|plan| writeln!(f, "/u{url} {plan:?}"))?;
        }
        for (number, request_id) in self.clients.iter().enumerate() {
            let CacheClientPlan { begins_ms, reader, pipelined, leaves, .. } = request_id;
            writeln!(f, "client {number} at {begins_ms} ms, {reader:?}, pipelined {pipelined}")?;
            writeln!(f, "  leaves {leaves:?}, {:?}", request_id.tls)?;
            request_id.requests.iter().try_for_each(|request| writeln!(f, "  {request:?}"))?;
        }
        Ok(())
    }
}
