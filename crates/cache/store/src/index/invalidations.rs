//! Recent purges and invalidations.
//!
//! Each purge and each invalidation by a tag has a sequence number. Each response comes with the
//! last number before its request was sent to the origin. Every purge or invalidation with a higher
//! number that matches the response applies to it. So purges apply to responses that are still
//! being fetched. Tags that clients' requests invalidate (RFC 9875) are applied when a stored
//! response is found, without walking over all stored responses.
//!
//! All tables are bounded. When an item is dropped from a table, its number is kept, and every
//! response that is older counts as invalidated. It is validated once more, which is never wrong.
//! Invalidations by URI (RFC 9111 section 4.4) have numbers, too, in a table of their shard.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_http_cache::{Meta, TagHash};

use super::invalidation_table::InvalidationTable;
use super::selector::Selector;
use super::shard::KeyEntry;

#[derive(Debug, Default)]
pub(super) struct Invalidations {
    /// The number of the last purge or invalidation; 0: there was none.
    last_seq: AtomicU64,
    /// The number of the last invalidation by a tag. Written under the lock.
    last_tag_seq: AtomicU64,
    tables: Mutex<InvalidationTables>,
}

#[derive(Debug, Default)]
struct InvalidationTables {
    /// The last invalidation of each tag.
    tags: InvalidationTable<TagHash, TAGS_MAX>,
    /// The last purges, oldest first; `<= PURGES_MAX`.
    purges: VecDeque<RecentPurge>,
    /// The number of the last purge that was dropped.
    purges_dropped_seq: u64,
}

#[derive(Debug)]
struct RecentPurge {
    seq: u64,
    selector: Selector,
    is_soft: bool,
}

/// The maximum number of invalidated tags in the table.
const TAGS_MAX: usize = 4096;
/// The maximum number of recent purges. Each arriving response is compared with them.
const PURGES_MAX: usize = 256;

impl Invalidations {
    /// Returns the number of the last purge or invalidation.
    pub(super) fn last_seq(&self) -> u64 {
        // Pairs with the release in `next_seq`: a thread that reads the number of a purge sends its
        // request to the origin after that purge.
        self.last_seq.load(Ordering::Acquire)
    }

    /// Invalidates a tag.
    pub(super) fn invalidate_tag(&self, tag: TagHash) {
        let mut tables = self.lock();
        let number = self.next_seq();
        tables.tags.add(tag, number);
        // Pairs with the load in `apply_to_entry`.
        self.last_tag_seq.store(number, Ordering::Release);
    }

    /// Records a purge.
    pub(super) fn add_purge(&self, selector: Selector, is_soft: bool) {
        let mut tables = self.lock();
        let number = self.next_seq();
        tables.purges.push_back(RecentPurge { seq: number, selector, is_soft });
        if tables.purges.len() > PURGES_MAX {
            let oldest = tables.purges.pop_front().expect("one was just added");
            tables.purges_dropped_seq = oldest.seq;
        }
    }

    /// Applies invalidated tags to the objects of a key.
    pub(super) fn apply_to_entry(&self, entry: &mut KeyEntry) {
        // Pairs with the store in `invalidate_tag`.
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

    /// Applies the purges and invalidations since number `since` to the metadata of a response.
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

    /// Returns the number of a new purge or invalidation. Called under the lock of the table that
    /// it goes into.
    pub(super) fn next_seq(&self) -> u64 {
        // The release pairs with the load in `last_seq`.
        self.last_seq.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Locks the tables. A poisoned lock is used, because the tables are consistent between any two
    /// statements.
    fn lock(&self) -> MutexGuard<'_, InvalidationTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_purge_covers_all_older_responses() {
        let recent = Invalidations::default();
        let (bytes, since) = (b"http://a/".to_vec(), recent.last_seq());
        for _ in 0..=PURGES_MAX {
            recent.add_purge(Selector::Url(b"http://b/".to_vec()), false);
        }
        let flags = |since| {
            let mut meta = super::super::tests::meta();
            recent.apply_since(&mut meta, since, &bytes, &[], 0);
            meta.flags.contains(millrace_http_cache::Flags::NO_CACHE)
        };
        assert!(flags(since) && !flags(since + 1) && !flags(recent.last_seq()));
    }
}
