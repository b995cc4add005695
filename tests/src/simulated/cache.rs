//! The cache of a simulated proxy: the program's own, in memory without a file, and without the
//! prefault thread.

use std::sync::Arc;

use iolite::Slab;
use millrace_config::{CacheSettings, Config};
use millrace_http_cache::HashKey;
use millrace_proxy::SharedState;
use millrace_store::{Bounds, Cache, ClearReport, HotCopies};

/// The secret of the hash of cache keys. It is the same in every world, so that a run can be
/// repeated.
const HASH: HashKey = HashKey::new([7; 16]);
/// Limit of a simulated cache. Each world creates and zeroes one, so it is small, but large enough
/// that scenarios can fill it with responses.
const BYTES_MAX: u64 = 8 << 20;

/// Returns the cache of a configuration, if it has one.
pub(super) fn of(config: &Config) -> Result<Option<Arc<Cache>>, String> {
    let Some(settings) = &config.cache else { return Ok(None) };
    let memory_bytes = settings.memory_bytes.min(BYTES_MAX);
    let slab = Slab::on_heap(memory_bytes as usize)
        .map_err(|error| format!("the cache's memory: {error}"))?;
    let settings = CacheSettings { memory_bytes, ..settings.clone() };
    let bounds = Bounds {
        bytes: memory_bytes,
        object_bytes: settings.object_bytes_max(&config.limits),
        variants: config.limits.variants as usize,
        prefaults: true,
    };
    let cache = Cache::new(slab, HASH, bounds);
    // Some responses are copied and others sent zero-copy, which tests both paths.
    cache.copy_hot(HotCopies::ALL);
    Ok(Some(cache))
}

/// Checks the cache after all workers have ended: there are no fetches and no waiters, all bodies
/// are complete, and only they hold memory.
pub(super) fn check(shared: &SharedState) -> Result<(), String> {
    let Some(cache) = &shared.cache else { return Ok(()) };
    let cleared = cache.clear();
    let clean = ClearReport { objects: cleared.objects, ..ClearReport::default() };
    if cleared != clean {
        return Err(format!("the cache keeps {cleared:?}"));
    }
    let counters = cache.slab().stats();
    match (counters.live, counters.extents) {
        (0, 0) => Ok(()),
        (bytes, runs) => Err(format!("the cache is empty, and holds {bytes} bytes, {runs} runs")),
    }
}
