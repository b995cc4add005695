//! An object whose body arrives.

use std::sync::Arc;

use iolite::{Aggregate, Kind, Refusal};
use millrace_body::{Body, Filler, Waiter};
use millrace_http_cache::{Key, finish};

use super::cache::Cache;
use crate::heat::COPIED_BYTES;
use crate::object::Object;

/// Fills the body of an object that is stored. Dropped, it leaves a body that was cut short, which
/// nobody finds any more, and who waited for it to [`Cache::take_orphans`].
#[derive(Debug)]
pub struct Filling {
    pub(super) cache: Arc<Cache>,
    pub(super) key: Key,
    pub(super) object: Arc<Object>,
    /// `None` once it has ended.
    pub(super) filler: Option<Filler>,
    /// What the object counts as.
    pub(super) size: u64,
    /// [`Cache::number`] when it was stored.
    pub(super) number: u64,
    pub(super) is_kept: bool,
}

/// What an object of unknown length counts as at first, and grows by.
pub(super) const FIRST_BYTES: u64 = 16 * 1024;
const GROWTH_BYTES: u64 = 256 * 1024;
/// Objects taken out for one part of another.
pub(super) const EVICTIONS_MAX: usize = 64;
/// Where a body is to rest.
pub(super) fn kind(declared: Option<u64>) -> Kind {
    match declared {
        Some(bytes) if bytes < COPIED_BYTES => Kind::Copied,
        _ => Kind::Referred,
    }
}

impl Filling {
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
    pub fn spare(&mut self, now_ms: u64) -> Result<&mut [u8], Refusal> {
        let mut tries = 0;
        let refusal = loop {
            match self.filler().spare().map(drop) {
                Ok(()) => break None,
                Err(refusal) if tries == EVICTIONS_MAX => break Some(refusal),
                Err(refusal) if !self.cache.relieve(refusal, now_ms) => break Some(refusal),
                Err(_) => tries += 1,
            }
        };
        match refusal {
            Some(refusal) => {
                self.cache.note_memory_missed(refusal);
                Err(refusal)
            }
            None => self.filler().spare(),
        }
    }

    /// The first `count` bytes of [`Filling::spare`] were written. Gives those who waited for them.
    #[must_use = "who waited has to be woken"]
    pub fn advance(&mut self, count: usize, now_ms: u64) -> Vec<Waiter> {
        let woken = self.filler().advance(count);
        if self.object.declared.is_none() && self.is_kept {
            self.grow(now_ms);
        }
        woken
    }

    /// Bytes of another body come next: see [`Filler::append`].
    #[must_use = "who waited has to be woken"]
    pub fn append(&mut self, bytes: Aggregate) -> Vec<Waiter> {
        self.filler().append(bytes)
    }

    /// See [`Filler::cut_behind`].
    pub fn cut_behind(&mut self, most: u64) {
        self.filler().cut_behind(most);
    }

    fn grow(&mut self, now_ms: u64) {
        let arrived = self.body().arrived();
        if arrived > self.cache.object_bytes() {
            self.pass();
        } else if arrived + self.object.overhead() > self.size {
            self.size = arrived + GROWTH_BYTES;
            self.cache.resize(self.key, &self.object.body, self.size, now_ms);
        }
    }

    /// From now on it is only passed on: nobody new finds it, and what its readers have had is let
    /// go.
    pub fn pass(&mut self) {
        if self.is_kept {
            self.is_kept = false;
            self.cache.remove_body(self.key, &self.object.body);
            self.filler().pass();
        }
    }

    /// See [`Filler::ahead`].
    pub fn ahead(&self, most: u64, waiter: Waiter) -> Option<u64> {
        self.filler.as_ref()?.ahead(most, waiter)
    }

    /// See [`Filler::readers`].
    pub fn readers(&self) -> usize {
        self.filler.as_ref().map_or(0, Filler::readers)
    }

    /// Everything is there. What contradicts its head, as a part that is not as long as its range,
    /// is not found any more. Gives those who waited.
    #[must_use = "who waited has to be woken"]
    pub fn finish(mut self, now_ms: u64) -> Vec<Waiter> {
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
            self.cache.keep(self.key, &self.object.body, self.number);
        }
        woken
    }

    /// The rest will never come. What came stays as a part where the origin can be asked for the
    /// rest of these very bytes, RFC 9111 section 3.3. Gives those who waited.
    #[must_use = "who waited has to be woken"]
    pub fn cut(mut self) -> Vec<Waiter> {
        let mut filler = self.filler.take().expect("it ends once");
        let came = filler.take_filled().filter(|_| self.is_kept);
        let woken = filler.cut();
        let mut stored = self.object.stored.clone();
        let length = came.as_ref().map_or(0, Aggregate::len);
        match came {
            Some(came) if finish(&mut stored.meta, length, false, self.object.declared).is_ok() => {
                self.cache.keep_part(self.key, &self.object, stored, came);
            }
            _ => {
                self.cache.remove_body(self.key, &self.object.body);
            }
        }
        woken
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        if let Some(filler) = self.filler.take() {
            self.cache.leave_orphans(filler.cut());
            self.cache.remove_body(self.key, &self.object.body);
        }
    }
}
