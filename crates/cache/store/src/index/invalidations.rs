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

use super::invalidation_table::InvalidationTable;
use super::selector::Selector;
use super::shard::KeyEntry;

#[derive(Debug, Default)]
pub(super) struct Invalidations {
    /// The number of the last one of all; 0: there was none.
    last_seq: AtomicU64,
    /// The number of the last invalidation by a tag. Written under the lock.
    last_tag_seq: AtomicU64,
    tables: Mutex<InvalidationTables>,
}

#[derive(Debug, Default)]
struct InvalidationTables {
    /// Of each tag, its last invalidation.
    tags: InvalidationTable<TagHash, TAGS_MAX>,
    /// The last purges, the oldest first; `<= PURGES_MAX`.
    purges: VecDeque<RecentPurge>,
    /// The number of the last purge that fell out.
    purges_dropped_seq: u64,
}

#[derive(Debug)]
struct RecentPurge {
    seq: u64,
    selector: Selector,
    is_soft: bool,
}

/// Tags that were made invalid and are told apart.
const TAGS_MAX: usize = 4096;
/// Purges that answers on their way are compared with.
const PURGES_MAX: usize = 256;

impl Invalidations {
    /// The number of the last purge or invalidation.
    pub(super) fn last_seq(&self) -> u64 {
        // Pairs with the store in `next`: whoever reads the number of a purge asks the origin after
        // it.
        self.last_seq.load(Ordering::Acquire)
    }

    /// A tag is invalid from now on.
    pub(super) fn invalidate_tag(&self, tag: TagHash) {
        let mut tables = self.lock();
        let number = self.next_seq();
        tables.tags.add(tag, number);
        // Pairs with the load in `heed`.
        self.last_tag_seq.store(number, Ordering::Release);
    }

    /// Something is purged from now on.
    pub(super) fn add_purge(&self, selector: Selector, is_soft: bool) {
        let mut tables = self.lock();
        let number = self.next_seq();
        tables.purges.push_back(RecentPurge { seq: number, selector, is_soft });
        if tables.purges.len() > PURGES_MAX {
            let oldest = tables.purges.pop_front().expect("one was just put in");
            tables.purges_dropped_seq = oldest.seq;
        }
    }

    /// Has the objects of a key heed what was made invalid by their tags.
    pub(super) fn apply_to_entry(&self, entry: &mut KeyEntry) {
        // Pairs with the store in `invalidate`.
        let last = self.last_tag_seq.load(Ordering::Acquire);
        if entry.objects.iter().all(|slot| slot.applied_seq >= last) {
            return;
        }
        let tables = self.lock();
        for slot in entry.objects.iter_mut().filter(|slot| slot.applied_seq < last) {
            if tables.tags.has_any_since(&slot.object.tags, slot.applied_seq) {
                Arc::make_mut(&mut slot.object).stored.meta.invalidate();
            }
            slot.applied_seq = last;
        }
    }

    /// Has an answer heed what happened since its origin was asked.
    pub(super) fn apply_since(
        &self,
        meta: &mut Meta,
        since: u64,
        name: &[u8],
        tags: &[TagHash],
        now_ms: u64,
    ) {
        if since >= self.last_seq() {
            return;
        }
        let tables = self.lock();
        let is_forgotten = since < tables.purges_dropped_seq;
        if is_forgotten || (!tags.is_empty() && tables.tags.has_any_since(tags, since)) {
            meta.invalidate();
        }
        let later = tables.purges.iter().rev().take_while(|purge| purge.seq > since);
        for purge in later.filter(|purge| purge.selector.matches(name, tags)) {
            match purge.is_soft {
                true => meta.expire(now_ms),
                false => meta.invalidate(),
            }
        }
    }

    /// The number of something that is made invalid now, under the lock of the table that it goes
    /// into.
    pub(super) fn next_seq(&self) -> u64 {
        // Pairs with the load in `number`.
        self.last_seq.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Nobody leaves it half changed.
    fn lock(&self) -> MutexGuard<'_, InvalidationTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_that_fell_out_counts_for_all_that_is_older() {
        let recent = Invalidations::default();
        let (bytes, since) = (b"http://a/".to_vec(), recent.last_seq());
        for _ in 0..=PURGES_MAX {
            recent.add_purge(Selector::Url(b"http://b/".to_vec()), false);
        }
        let flags = |since| {
            let mut meta = super::super::tests::meta();
            recent.apply_since(&mut meta, since, &bytes, &[], 0);
            meta.flags.has(millrace_http_cache::Flags::NO_CACHE)
        };
        assert!(flags(since) && !flags(since + 1) && !flags(recent.last_seq()));
    }
}
