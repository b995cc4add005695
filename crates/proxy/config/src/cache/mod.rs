//! The cache in a configuration: what it may take of the machine, and what it does with the answers
//! of a forward proxy or of a booster's route. What must be known of the route at each request is
//! worked out here, once.

mod build;
mod value;
mod write;

use std::path::PathBuf;

use millrace_http_cache::{Features, KeyParts, Policy};

use super::{Service, ServiceRole};
use crate::limits::Limits;

pub(super) use build::{route, settings};
pub(super) use write::{
    memory_written, reads_written, send_written, write_disk, write_route, write_settings,
};

/// What the cache may take of the machine. None of it can change while the process runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheSettings {
    /// Bytes of memory, at least [`iolite`]'s `SLAB_BYTES_MIN`: a part of what
    /// [`Config::memory_bytes`](super::Config::memory_bytes) allows in all.
    pub memory_bytes: u64,
    /// Where answers are kept beyond that, and over a restart.
    pub disks: Vec<Disk>,
    /// Whether what is on them is read again each time, though it is in memory.
    pub always_reads_disks: bool,
    /// How hot bodies are sent.
    pub send: CacheSend,
}

/// How bodies that are hot, so that the processor's cache has them, are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheSend {
    /// The way that a measurement at start finds cheaper.
    Auto,
    /// By copy.
    Copy,
    /// By reference, as all others.
    ZeroCopy,
}

impl CacheSettings {
    /// The longest body that is kept, in bytes: what the limit says, and never more than an eighth
    /// of the memory that every body comes through, or a few would take all of it.
    pub fn object_bytes_max(&self, limits: &Limits) -> u64 {
        limits.object_bytes.min(self.memory_bytes / OBJECT_SHARE)
    }
}

/// One object's share of the cache's memory at most, as a divisor.
const OBJECT_SHARE: u64 = 8;

/// A folder of stored answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// Its path from the root on. Nobody else's: no two disks have the same.
    pub folder: PathBuf,
    /// What its files may take together, in bytes.
    pub bytes: u64,
}

/// What is done with the answers of a forward proxy or a route. Where there is none, requests go
/// past the cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheRoute {
    /// What is stored, and for how long it is reused.
    pub policy: Policy,
    /// What is the same question.
    pub key: KeyParts,
    /// Requests that bring any of these are neither answered from the cache, nor are the answers to
    /// them stored.
    pub bypass: Features,
    /// Whether an answer is received to its end, and stored, when the client that asked for it has
    /// left.
    pub finishes_fetch: bool,
    /// Whether answers tell by `Cache-Status` what the cache did.
    pub adds_cache_status: bool,
}

impl Service {
    /// Makes its requests go past the cache, as where there is none.
    pub(super) fn bypass_cache(&mut self) {
        self.cache = None;
        if let ServiceRole::Boost(routes) = &mut self.role {
            routes.iter_mut().for_each(|route| route.cache = None);
        }
    }
}
