//! Bytes that the cache keeps under a key that changes with them: those of files, and compressed
//! forms.

use std::sync::Arc;

use millrace_files::Errno;
use millrace_http_cache::{CachedHeader, Key};
use millrace_store::{Cache, NewEntry, Object};

/// The place of bytes in the cache.
#[derive(Debug)]
pub(crate) struct KeptBytes {
    pub(crate) key: Key,
    pub(crate) header: CachedHeader,
    pub(crate) name: Arc<[u8]>,
    pub(crate) now_ms: u64,
}

/// The result of bringing bytes into the cache.
#[derive(Debug)]
pub(crate) enum Loaded {
    /// The cache has the bytes.
    Kept(Arc<Object>),
    /// The cache does not admit them or has no memory, or the file was changed meanwhile.
    NotKept,
    /// The compressed bytes are not shorter.
    Incompressible,
}

impl KeptBytes {
    /// Stores a copy of these bytes, unless they are no longer current at the end.
    ///
    /// # Errors
    /// Those of `is_current`.
    pub(crate) fn store_copy(
        &self,
        cache: &Arc<Cache>,
        bytes: &[u8],
        is_current: impl FnOnce() -> Result<bool, Errno>,
    ) -> Result<Loaded, Errno> {
        let read = |at: u64, memory: &mut [u8]| {
            let count = memory.len().min(bytes.len() - at as usize);
            memory[..count].copy_from_slice(&bytes[at as usize..][..count]);
            Ok(count)
        };
        self.store(cache, bytes.len() as u64, read, is_current)
    }

    /// Stores `length` bytes, which `read` copies from an offset. They are found once they are
    /// whole and, after the last read, still current.
    ///
    /// # Errors
    /// Those of `read` and `is_current`.
    pub(crate) fn store(
        &self,
        cache: &Arc<Cache>,
        length: u64,
        read: impl Fn(u64, &mut [u8]) -> Result<usize, Errno>,
        is_current: impl FnOnce() -> Result<bool, Errno>,
    ) -> Result<Loaded, Errno> {
        let entry = NewEntry {
            stored: self.header.clone(),
            variant: None,
            declared: Some(length),
            name: self.name.clone(),
            tags: Arc::new([]),
            since: cache.invalidation_seq(),
            own_invalidation: 0,
            stays_in_memory: true,
        };
        let (filler, woken) = cache.publish(self.key, None, entry, self.now_ms);
        assert!(woken.is_empty(), "there was no lease for which an exchange could wait");
        let Ok(mut filler) = filler else { return Ok(Loaded::NotKept) };
        let mut at = 0;
        while at < length {
            let Ok(memory) = filler.unfilled(self.now_ms) else { return Ok(Loaded::NotKept) };
            let count = read(at, memory)?;
            if count == 0 {
                return Ok(Loaded::NotKept);
            }
            at += count as u64;
            // Only a whole object is found by its key, so it has no readers yet.
            let woken = filler.advance(count, self.now_ms);
            assert!(woken.is_empty(), "an object that is not whole has no readers");
        }
        if !is_current()? {
            return Ok(Loaded::NotKept);
        }
        let object = filler.object().clone();
        let woken = filler.finish(self.now_ms);
        assert!(woken.is_empty(), "an object that is not whole has no readers");
        Ok(Loaded::Kept(object))
    }
}
