//! Creates the cache and its prefault thread.

use std::sync::Arc;

use iolite::{PrefaultThread, Slab};
use millrace_config::Config;
use millrace_disk::Disks;
use millrace_http_cache::HashKey;
use millrace_store::{Bounds, Cache, HotCopies};

use crate::console;
use crate::program_error::ProgramError;

/// Creates the configured cache, if there is one. `copies` selects the hot bodies that are sent by
/// copy. Call this before privileges are dropped, because it creates memory files.
///
/// # Errors
/// If the kernel refuses the memory.
pub(crate) fn open(config: &Config, copies: HotCopies) -> Result<Option<Arc<Cache>>, ProgramError> {
    let Some(settings) = &config.cache else { return Ok(None) };
    let bytes = usize::try_from(settings.memory_bytes).unwrap_or(usize::MAX);
    let slab = Slab::new(bytes);
    let slab =
        slab.map_err(|error| ProgramError::system("cannot create the memory of the cache", error))?;
    let bounds = Bounds {
        bytes: settings.memory_bytes,
        object_bytes: settings.object_bytes_max(&config.limits),
        variants: usize::try_from(config.limits.variants).unwrap_or(usize::MAX),
        prefaults: false,
    };
    let mut random = [0; 16];
    millrace_sys::fill_random(&mut random);
    // Keys of responses on disks are hashed with a secret that is stored there.
    let folders: Vec<_> = settings.disks.iter().map(|disk| disk.folder.as_path()).collect();
    let hash = Disks::hash_key_of(&folders).unwrap_or(HashKey::new(random));
    let cache = Cache::new(slab, hash, bounds);
    cache.copy_hot(copies);
    if settings.always_reads_disks {
        cache.always_reread_disks();
    }
    Ok(Some(cache))
}

/// Starts the prefault thread. Without it the cache can use only its first blocks of memory.
///
/// # Errors
/// If the thread cannot be started.
pub(crate) fn start_prefault(
    cache: Option<&Arc<Cache>>,
) -> Result<Option<PrefaultThread>, ProgramError> {
    let Some(cache) = cache else { return Ok(None) };
    let thread = PrefaultThread::start(cache.slab());
    let failed =
        |error| ProgramError::system("cannot start the prefault thread of the cache", error);
    let thread = thread.map_err(failed)?;
    if cache.slab().stats().small_page_blocks > 0 {
        console::log("no huge pages for the cache: cache hits use more CPU time");
    }
    Ok(Some(thread))
}
