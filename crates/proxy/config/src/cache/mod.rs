//! The cache in a configuration: its memory and disks, and its rules for the responses of a forward
//! proxy or of a route. The rules are in the form in which requests use them.

mod build;
mod value;
mod write;

use std::path::PathBuf;

use millrace_http_cache::{CachePolicy, Features, KeyParts};

use super::{Service, ServiceRole};
use crate::limits::Limits;

pub(super) use build::{build_rules, build_settings};
pub(super) use value::{parse_seconds, write_seconds};
pub(super) use write::{
    memory_written, reads_written, send_written, write_disk, write_route, write_settings,
};

/// The resources of the cache. They cannot change while the process runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheSettings {
    /// Memory in bytes, at least `SLAB_BYTES_MIN` of [`iolite`]; a part of
    /// [`Config::memory_bytes`](super::Config::memory_bytes).
    pub memory_bytes: u64,
    /// Directories in which responses are stored as well. These responses survive a restart.
    pub disks: Vec<Disk>,
    /// Whether a stored response is read from disk for each use, although memory has it.
    pub always_reads_disks: bool,
    /// How to send hot bodies.
    pub send: CacheSend,
}

/// How to send hot bodies: those that were sent recently, so that the processor's cache has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheSend {
    /// By the way that costs less in a measurement at start.
    Auto,
    /// By copying.
    Copy,
    /// By reference. Bodies of at least 16 KB that are not hot are always sent in this way.
    ZeroCopy,
}

impl CacheSettings {
    /// Returns the size of the largest body that is stored, in bytes: the limit `object_bytes`, but
    /// at most an eighth of the memory. Otherwise a few bodies could take all of it.
    pub fn object_bytes_max(&self, limits: &Limits) -> u64 {
        limits.object_bytes.min(self.memory_bytes / OBJECT_SHARE)
    }
}

/// The memory divided by this is the maximum size of one object.
const OBJECT_SHARE: u64 = 8;

/// A directory with stored responses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// The absolute path. No two disks have the same directory, or one inside the other.
    pub folder: PathBuf,
    /// The size of all its files together, in bytes.
    pub bytes: u64,
}

/// The cache rules of a forward proxy or a route. Requests without such rules bypass the cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheRoute {
    /// Which responses are stored, and how long they are reused.
    pub policy: CachePolicy,
    /// Which parts of a request are in the cache key.
    pub key: KeyParts,
    /// Fields and cookies of requests that bypass the cache: these get no stored response, and
    /// their responses are not stored.
    pub bypass: Features,
    /// Whether a response is received to its end, and stored, after its client has left.
    pub finishes_fetch: bool,
    /// Whether responses get a `Cache-Status` field.
    pub adds_cache_status: bool,
}

impl Service {
    /// Makes all requests of the service bypass the cache.
    pub(super) fn bypass_cache(&mut self) {
        self.cache = None;
        if let ServiceRole::Boost(routes) = &mut self.role {
            routes.iter_mut().for_each(|route| route.cache = None);
        }
    }
}
