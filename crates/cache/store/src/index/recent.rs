//! What was purged and made invalid of late.
//!
//! Each purge and each invalidation by a tag has a number, one more than the one before. An answer
//! knows what the number was before its origin was asked: whatever has a higher one and is about it
//! holds for it too. That is how an answer on its way heeds a purge, and how a stored one with tags
//! heeds what clients' requests made invalid (RFC 9875) without anybody who walks over all that is
//! stored.
//!
//! All tables are bounded. What falls out of one leaves its number behind, and what is older than
//! that is taken as invalid: it is validated once more, which is never wrong. What a request makes
//! invalid by its URI (RFC 9111 section 4.4) has a number too, in a table of its shard.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_http_cache::{Meta, TagHash};

use super::numbers::Numbers;
use super::shard::Entry;
use super::which::Which;

#[derive(Debug, Default)]
pub(super) struct Recent {
    /// The number of the last one of all; 0: there was none.
    last: AtomicU64,
    /// The number of the last invalidation by a tag. Written under the lock.
    last_of_tags: AtomicU64,
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    /// Of each tag, its last invalidation.
    tags: Numbers<TagHash, TAGS_MAX>,
    /// The last purges, the oldest first; `<= PURGES_MAX`.
    purges: VecDeque<Purge>,
    /// The number of the last purge that fell out.
    purges_forgotten: u64,
}

#[derive(Debug)]
struct Purge {
    number: u64,
    which: Which,
    is_soft: bool,
}

/// Tags that were made invalid and are told apart.
const TAGS_MAX: usize = 4096;
/// Purges that answers on their way are compared with.
const PURGES_MAX: usize = 256;

impl Recent {
    /// The number of the last purge or invalidation.
    pub(super) fn number(&self) -> u64 {
        // Pairs with the store in `next`: whoever reads the number of a purge asks the origin after
        // it.
        self.last.load(Ordering::Acquire)
    }

    /// A tag is invalid from now on.
    pub(super) fn invalidate(&self, tag: TagHash) {
        let mut tables = self.lock();
        let number = self.next();
        tables.tags.add(tag, number);
        // Pairs with the load in `heed`.
        self.last_of_tags.store(number, Ordering::Release);
    }

    /// Something is purged from now on.
    pub(super) fn purge(&self, which: Which, is_soft: bool) {
        let mut tables = self.lock();
        let number = self.next();
        tables.purges.push_back(Purge { number, which, is_soft });
        if tables.purges.len() > PURGES_MAX {
            let oldest = tables.purges.pop_front().expect("one was just put in");
            tables.purges_forgotten = oldest.number;
        }
    }

    /// Has the objects of a key heed what was made invalid by their tags.
    pub(super) fn heed(&self, entry: &mut Entry) {
        // Pairs with the store in `invalidate`.
        let last = self.last_of_tags.load(Ordering::Acquire);
        if entry.objects.iter().all(|slot| slot.heeded >= last) {
            return;
        }
        let tables = self.lock();
        for slot in entry.objects.iter_mut().filter(|slot| slot.heeded < last) {
            if tables.tags.has(&slot.object.tags, slot.heeded) {
                Arc::make_mut(&mut slot.object).stored.meta.invalidate();
            }
            slot.heeded = last;
        }
    }

    /// Has an answer heed what happened since its origin was asked.
    pub(super) fn apply(
        &self,
        meta: &mut Meta,
        since: u64,
        name: &[u8],
        tags: &[TagHash],
        now_ms: u64,
    ) {
        if since >= self.number() {
            return;
        }
        let tables = self.lock();
        let is_forgotten = since < tables.purges_forgotten;
        if is_forgotten || (!tags.is_empty() && tables.tags.has(tags, since)) {
            meta.invalidate();
        }
        let later = tables.purges.iter().rev().take_while(|purge| purge.number > since);
        for purge in later.filter(|purge| purge.which.has(name, tags)) {
            match purge.is_soft {
                true => meta.expire(now_ms),
                false => meta.invalidate(),
            }
        }
    }

    /// The number of something that is made invalid now, under the lock of the table that it goes
    /// into.
    pub(super) fn next(&self) -> u64 {
        // Pairs with the load in `number`.
        self.last.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Nobody leaves it half changed.
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_that_fell_out_counts_for_all_that_is_older() {
        let recent = Recent::default();
        let (bytes, since) = (b"http://a/".to_vec(), recent.number());
        for _ in 0..=PURGES_MAX {
            recent.purge(Which::Url(b"http://b/".to_vec()), false);
        }
        let flags = |since| {
            let mut meta = super::super::tests::meta();
            recent.apply(&mut meta, since, &bytes, &[], 0);
            meta.flags.has(millrace_http_cache::Flags::NO_CACHE)
        };
        assert!(flags(since) && !flags(since + 1) && !flags(recent.number()));
    }
}
