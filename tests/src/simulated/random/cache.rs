//! Stories of a cache: several clients ask for few URLs, at the same time and later, and an origin
//! gives a new answer each time, with whatever it says to caches. Each answer has a serial number in
//! a field and a body of its own, so that a client knows what it got: [`book`] says whether it may.
//!
//! Beside [`super::play_story`], whose clients each ask for what is theirs alone.

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

/// A story, drawn before anything happens.
#[derive(Clone, Debug)]
pub struct CacheScenario {
    /// Of the world, too.
    pub seed: u64,
    /// How unkind its world is.
    pub world: Faults,
    pub(super) workers: usize,
    /// Words of the command line.
    pub(super) options: Vec<String>,
    /// By the number of the URL: what is said to the first request for it, the second, and so on,
    /// and from the beginning again.
    pub(super) responses: Vec<Vec<CachedResponsePlan>>,
    pub(super) clients: Vec<CacheClientPlan>,
    /// When the workers are told to drain, if it is before all clients have ended.
    pub(super) drain_ms: Option<u64>,
    /// When the process is killed, and begins anew; in order.
    pub(super) kills_ms: Vec<u64>,
    /// What is beneath memory, if anything.
    pub(super) disk: Option<DiskPlan>,
}

/// A disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskPlan {
    /// What the cache may use of it.
    bytes: u64,
    /// What there is.
    capacity: u64,
    faults: SimFaults,
    /// What is in memory is read from it all the same.
    rereads: bool,
    /// When the process is killed: the machine may lose its power, and with it any sectors that
    /// were not synced.
    loses_power: bool,
    /// A bit may no longer be what it was.
    flips: bool,
}

impl DiskPlan {
    /// Whether a body may turn out to be damaged while a client gets it.
    fn may_cut(&self) -> bool {
        self.faults.read_errors > 0 || self.flips || self.loses_power
    }
}

/// One answer of the origin's.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedResponsePlan {
    control: CacheControl,
    status: u16,
    /// Whether it has an ETag.
    tagged: bool,
    /// Whether it is for the language that was asked for.
    varies: bool,
    /// Whether it says 304 instead, where it is asked if something still holds.
    confirms: bool,
    length: usize,
    frame: BodyFraming,
    delay_ms: u64,
    drip: Option<(usize, u64)>,
    breaks: Option<Break>,
    /// How its headers are written.
    form: HeaderSyntax,
}

/// What an answer says to caches, and what that means.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheControl {
    text: &'static str,
    /// For how many seconds it is fresh.
    fresh_s: u64,
    /// For how many more it may be used all the same.
    stale_s: u64,
    /// Whether it is for the one who asked alone.
    private: bool,
}

/// A client's connection.
#[derive(Clone, Debug)]
pub(super) struct CacheClientPlan {
    begins_ms: u64,
    reader: Reader,
    pipelined: bool,
    requests: Vec<CacheRequest>,
    /// After so many bytes it resets its connection.
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
    control: &'static str,
    /// First and last byte.
    range: Option<(usize, usize)>,
    pause_ms: u64,
}

/// Plays `story`; a panic is a failure like others. `tells` asks for the tale.
pub fn play_cache(scenario: &CacheScenario, log_events: bool) -> Outcome {
    play_cache_in(&World::new(scenario.seed, scenario.world), scenario, log_events)
}

/// As [`play_cached`], in a world of the caller's, new.
pub fn play_cache_in(world: &World, scenario: &CacheScenario, log_events: bool) -> Outcome {
    super::catch_panic(world, log_events, || run::play(scenario, world, log_events))
}

impl fmt::Display for CacheScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, world {:?}, {} workers", self.seed, self.world, self.workers)?;
        writeln!(f, "boost {}, drains {:?}", self.options.join(" "), self.drain_ms)?;
        writeln!(f, "is killed at {:?} ms; {:?}", self.kills_ms, self.disk)?;
        for (url, says) in self.responses.iter().enumerate() {
            says.iter().try_for_each(|said| writeln!(f, "/u{url} {said:?}"))?;
        }
        for (number, asker) in self.clients.iter().enumerate() {
            let CacheClientPlan { begins_ms, reader, pipelined, leaves, .. } = asker;
            writeln!(f, "client {number} at {begins_ms} ms, {reader:?}, pipelined {pipelined}")?;
            writeln!(f, "  leaves {leaves:?}")?;
            asker.requests.iter().try_for_each(|ask| writeln!(f, "  {ask:?}"))?;
        }
        Ok(())
    }
}
