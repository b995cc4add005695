//! An object whose body is arriving.

use std::sync::Arc;

use iolite::{Aggregate, AllocError, MemoryKind};
use millrace_body::{Body, Filler, WaiterId};
use millrace_http_cache::{Key, finish};

use super::cache::Cache;
use crate::hot_bodies::COPIED_BYTES;
use crate::object::Object;

/// Fills the body of a stored object. Dropping it cuts the body and removes the object; its waiters
/// go to [`Cache::take_abandoned_waiters`].
#[derive(Debug)]
pub struct ObjectFiller {
    pub(super) cache: Arc<Cache>,
    pub(super) key: Key,
    pub(super) object: Arc<Object>,
    /// `None` once it has ended.
    pub(super) filler: Option<Filler>,
    /// The size of the object in the eviction policy.
    pub(super) size: u64,
    /// [`Cache::invalidation_seq`] when the object was stored.
    pub(super) stored_seq: u64,
    pub(super) is_kept: bool,
    /// See [`NewEntry::stays_in_memory`](super::publish::NewEntry).
    pub(super) stays_in_memory: bool,
}

/// The initial size of an object of unknown length.
pub(super) const FIRST_BYTES: u64 = 16 * 1024;
/// The step by which the size of an object of unknown length grows.
const GROWTH_BYTES: u64 = 256 * 1024;
/// The maximum number of evictions for one part of a body.
pub(super) const EVICTIONS_MAX: usize = 64;
/// Returns the memory kind of a body.
pub(super) fn memory_kind(declared: Option<u64>) -> MemoryKind {
    match declared {
        Some(bytes) if bytes < COPIED_BYTES => MemoryKind::Copied,
        _ => MemoryKind::ZeroCopy,
    }
}

impl ObjectFiller {
    /// Returns the object as it was stored.
    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// Returns its body.
    pub fn body(&self) -> &Arc<Body> {
        &self.object.body
    }

    /// Returns whether the object is stored, or was until it was evicted or purged; otherwise its
    /// body only passes through.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    fn filler(&mut self) -> &mut Filler {
        self.filler.as_mut().expect("present until the end, which consumes the value")
    }

    /// Returns memory for the next bytes: see [`Filler::unfilled`]. If there is none, other objects
    /// are evicted.
    ///
    /// # Errors
    /// If there is still none; the call may be repeated later.
    pub fn unfilled(&mut self, now_ms: u64) -> Result<&mut [u8], AllocError> {
        let mut tries = 0;
        let error = loop {
            match self.filler().unfilled().map(drop) {
                Ok(()) => break None,
                Err(error) if tries == EVICTIONS_MAX => break Some(error),
                Err(error) if !self.cache.make_memory_available(error, now_ms) => {
                    break Some(error);
                }
                Err(_) => tries += 1,
            }
        };
        match error {
            Some(error) => {
                self.cache.count_alloc_failure(error);
                Err(error)
            }
            None => self.filler().unfilled(),
        }
    }

    /// Publishes the first `count` bytes of [`ObjectFiller::unfilled`]. Returns the readers that
    /// waited.
    #[must_use = "the waiters have to be woken"]
    pub fn advance(&mut self, count: usize, now_ms: u64) -> Vec<WaiterId> {
        let woken = self.filler().advance(count);
        if self.object.declared.is_none() && self.is_kept {
            self.update_size(now_ms);
        }
        woken
    }

    /// Appends bytes of another body: see [`Filler::append`].
    #[must_use = "the waiters have to be woken"]
    pub fn append(&mut self, bytes: Aggregate) -> Vec<WaiterId> {
        self.filler().append(bytes)
    }

    /// See [`Filler::cut_slow_readers`].
    pub fn cut_slow_readers(&mut self, most: u64) {
        self.filler().cut_slow_readers(most);
    }

    fn update_size(&mut self, now_ms: u64) {
        let arrived = self.body().arrived();
        if arrived > self.cache.object_bytes() {
            self.pass_through();
        } else if arrived + self.object.overhead() > self.size {
            self.size = arrived + GROWTH_BYTES;
            self.cache.resize(self.key, &self.object.body, self.size, now_ms);
        }
    }

    /// Removes the object from the index and makes its body pass-through: see
    /// [`Filler::pass_through`].
    pub fn pass_through(&mut self) {
        if self.is_kept {
            self.is_kept = false;
            self.cache.remove_body(self.key, &self.object.body);
            self.filler().pass_through();
        }
    }

    /// See [`Filler::lead_or_wait`].
    pub fn lead_or_wait(&self, most: u64, waiter: WaiterId) -> Option<u64> {
        self.filler.as_ref()?.lead_or_wait(most, waiter)
    }

    /// See [`Filler::reader_count`].
    pub fn reader_count(&self) -> usize {
        self.filler.as_ref().map_or(0, Filler::reader_count)
    }

    /// Ends the body as whole. If its length contradicts its header, for example that of a part,
    /// the object is removed. Returns the readers that waited.
    #[must_use = "the waiters have to be woken"]
    pub fn finish(mut self, now_ms: u64) -> Vec<WaiterId> {
        let filler = self.filler.take().expect("it ends only once");
        let (mut meta, arrived) = (*self.object.meta(), self.body().arrived());
        let is_sound = finish(&mut meta, arrived, true, self.object.declared).is_ok();
        if self.is_kept && !(is_sound && meta.stored_range == self.object.meta().stored_range) {
            self.is_kept = false;
            self.cache.remove_body(self.key, &self.object.body);
        }
        let woken = filler.finish();
        if self.is_kept {
            let size = self.body().arrived() + self.object.overhead();
            if size != self.size {
                self.cache.resize(self.key, &self.object.body, size, now_ms);
            }
            if !self.stays_in_memory {
                self.cache.store_on_disk(self.key, &self.object.body, self.stored_seq);
            }
        }
        woken
    }

    /// Ends the body as cut. If a range request can fetch the rest of the same representation (RFC
    /// 9111 section 3.3), the bytes that arrived are stored as a part. Returns the readers that
    /// waited.
    #[must_use = "the waiters have to be woken"]
    pub fn cut(mut self) -> Vec<WaiterId> {
        let mut filler = self.filler.take().expect("it ends only once");
        let arrived = filler.take_filled().filter(|_| self.is_kept);
        let woken = filler.cut();
        let mut stored = self.object.stored.clone();
        let length = arrived.as_ref().map_or(0, Aggregate::len);
        match arrived {
            Some(arrived)
                if finish(&mut stored.meta, length, false, self.object.declared).is_ok() =>
            {
                self.cache.store_part(self.key, &self.object, stored, arrived);
            }
            _ => {
                self.cache.remove_body(self.key, &self.object.body);
            }
        }
        woken
    }
}

impl Drop for ObjectFiller {
    fn drop(&mut self) {
        if let Some(filler) = self.filler.take() {
            self.cache.add_abandoned_waiters(filler.cut());
            self.cache.remove_body(self.key, &self.object.body);
        }
    }
}
