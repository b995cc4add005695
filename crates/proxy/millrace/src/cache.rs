//! What is stored: the cache's memory and the thread that tends to it.

use std::sync::Arc;

use iolite::{PrefaultThread, Slab};
use millrace_config::Config;
use millrace_disk::Disks;
use millrace_http_cache::HashKey;
use millrace_store::{Bounds, Cache, HotCopies};

use crate::console;
use crate::program_error::ProgramError;

/// The cache of a configuration, if it has one, which sends these hot bodies by copy. Called before
/// the process gives its rights up: the files in memory are made here.
///
/// # Errors
/// When the kernel refuses the memory.
pub(crate) fn open(config: &Config, copies: HotCopies) -> Result<Option<Arc<Cache>>, ProgramError> {
    let Some(settings) = &config.cache else { return Ok(None) };
    let bytes = usize::try_from(settings.memory_bytes).unwrap_or(usize::MAX);
    let slab = Slab::new(bytes);
    let slab =
        slab.map_err(|error| ProgramError::system("cannot make the cache's memory", error))?;
    let bounds = Bounds {
        bytes: settings.memory_bytes,
        object_bytes: settings.object_bytes_max(&config.limits),
        variants: usize::try_from(config.limits.variants).unwrap_or(usize::MAX),
        prefaults: false,
    };
    let mut random = [0; 16];
    millrace_sys::fill_random(&mut random);
    // What is on disks was hashed with a key that is there too.
    let folders: Vec<_> = settings.disks.iter().map(|disk| disk.folder.as_path()).collect();
    let hash = Disks::hash_key_of(&folders).unwrap_or(HashKey::new(random));
    let cache = Cache::new(slab, hash, bounds);
    cache.copy_hot(copies);
    if settings.always_reads_disks {
        cache.always_reread_disks();
    }
    Ok(Some(cache))
}

/// Starts the thread that makes memory ready. Without it the cache runs dry after its first blocks.
///
/// # Errors
/// When there can be no further thread.
pub(crate) fn start_prefault(
    cache: Option<&Arc<Cache>>,
) -> Result<Option<PrefaultThread>, ProgramError> {
    let Some(cache) = cache else { return Ok(None) };
    let helper = PrefaultThread::start(cache.slab());
    let failed = |error| ProgramError::system("cannot start the cache's thread", error);
    let helper = helper.map_err(failed)?;
    if cache.slab().stats().small_page_blocks > 0 {
        console::log("the cache has no huge pages: its hits cost more");
    }
    Ok(Some(helper))
}
