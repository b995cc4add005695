//! An object whose body arrives.

use std::sync::Arc;

use iolite::{Aggregate, AllocError, MemoryKind};
use millrace_body::{Body, Filler, WaiterId};
use millrace_http_cache::{Key, finish};

use super::cache::Cache;
use crate::hot_bodies::COPIED_BYTES;
use crate::object::Object;

/// Fills the body of an object that is stored. Dropped, it leaves a body that was cut short, which
/// nobody finds any more, and who waited for it to [`Cache::take_orphans`].
#[derive(Debug)]
pub struct ObjectFiller {
    pub(super) cache: Arc<Cache>,
    pub(super) key: Key,
    pub(super) object: Arc<Object>,
    /// `None` once it has ended.
    pub(super) filler: Option<Filler>,
    /// What the object counts as.
    pub(super) size: u64,
    /// [`Cache::number`] when it was stored.
    pub(super) stored_seq: u64,
    pub(super) is_kept: bool,
}

/// What an object of unknown length counts as at first, and grows by.
pub(super) const FIRST_BYTES: u64 = 16 * 1024;
const GROWTH_BYTES: u64 = 256 * 1024;
/// Objects taken out for one part of another.
pub(super) const EVICTIONS_MAX: usize = 64;
/// Where a body is to rest.
pub(super) fn memory_kind(declared: Option<u64>) -> MemoryKind {
    match declared {
        Some(bytes) if bytes < COPIED_BYTES => MemoryKind::Copied,
        _ => MemoryKind::ZeroCopy,
    }
}

impl ObjectFiller {
    /// The object as it was stored.
    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// Its body.
    pub fn body(&self) -> &Arc<Body> {
        &self.object.body
    }

    /// Whether it is kept; otherwise it is only passed on.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    fn filler(&mut self) -> &mut Filler {
        self.filler.as_mut().expect("it is there until it ends, which takes the whole")
    }

    /// Memory for what comes next: see [`Filler::spare`]. Others are taken out where there is none.
    ///
    /// # Errors
    /// When there is none all the same: later there may be.
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

    /// The first `count` bytes of [`Filling::spare`] were written. Gives those who waited for them.
    #[must_use = "who waited has to be woken"]
    pub fn advance(&mut self, count: usize, now_ms: u64) -> Vec<WaiterId> {
        let woken = self.filler().advance(count);
        if self.object.declared.is_none() && self.is_kept {
            self.update_size(now_ms);
        }
        woken
    }

    /// Bytes of another body come next: see [`Filler::append`].
    #[must_use = "who waited has to be woken"]
    pub fn append(&mut self, bytes: Aggregate) -> Vec<WaiterId> {
        self.filler().append(bytes)
    }

    /// See [`Filler::cut_behind`].
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

    /// From now on it is only passed on: nobody new finds it, and what its readers have had is let
    /// go.
    pub fn pass_through(&mut self) {
        if self.is_kept {
            self.is_kept = false;
            self.cache.remove_body(self.key, &self.object.body);
            self.filler().pass_through();
        }
    }

    /// See [`Filler::ahead`].
    pub fn lead_or_wait(&self, most: u64, waiter: WaiterId) -> Option<u64> {
        self.filler.as_ref()?.lead_or_wait(most, waiter)
    }

    /// See [`Filler::readers`].
    pub fn reader_count(&self) -> usize {
        self.filler.as_ref().map_or(0, Filler::reader_count)
    }

    /// Everything is there. What contradicts its head, as a part that is not as long as its range,
    /// is not found any more. Gives those who waited.
    #[must_use = "who waited has to be woken"]
    pub fn finish(mut self, now_ms: u64) -> Vec<WaiterId> {
        let filler = self.filler.take().expect("it ends once");
        let (mut meta, arrived) = (*self.object.meta(), self.body().arrived());
        let is_sound = finish(&mut meta, arrived, true, self.object.declared).is_ok();
        if self.is_kept && !(is_sound && meta.extent == self.object.meta().extent) {
            self.is_kept = false;
            self.cache.remove_body(self.key, &self.object.body);
        }
        let woken = filler.finish();
        if self.is_kept {
            let size = self.body().arrived() + self.object.overhead();
            if size != self.size {
                self.cache.resize(self.key, &self.object.body, size, now_ms);
            }
            self.cache.store_on_disk(self.key, &self.object.body, self.stored_seq);
        }
        woken
    }

    /// The rest will never come. What came stays as a part where the origin can be asked for the
    /// rest of these very bytes, RFC 9111 section 3.3. Gives those who waited.
    #[must_use = "who waited has to be woken"]
    pub fn cut(mut self) -> Vec<WaiterId> {
        let mut filler = self.filler.take().expect("it ends once");
        let came = filler.take_filled().filter(|_| self.is_kept);
        let woken = filler.cut();
        let mut stored = self.object.stored.clone();
        let length = came.as_ref().map_or(0, Aggregate::len);
        match came {
            Some(came) if finish(&mut stored.meta, length, false, self.object.declared).is_ok() => {
                self.cache.store_part(self.key, &self.object, stored, came);
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
