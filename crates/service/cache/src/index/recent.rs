//! What was purged and made invalid of late.
//!
//! Each purge and each invalidation by a tag has a number, one more than the one before. An answer
//! knows what the number was before its origin was asked: whatever has a higher one and is about it
//! holds for it too. That is how an answer on its way heeds a purge, and how a stored one with tags
//! heeds what clients' requests made invalid (RFC 9875) without anybody who walks over all that is
//! stored.
//!
//! Both tables are bounded. What falls out of one leaves its number behind, and what is older than
//! that is taken as invalid: it is validated once more, which is never wrong.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Which;
use super::shard::Entry;
use crate::rules::{Meta, TagHash};

#[derive(Debug, Default)]
pub(super) struct Recent {
    /// The number of the last one of all; 0: there was none. Written under the lock.
    last: AtomicU64,
    /// The number of the last invalidation by a tag. Written under the lock.
    last_of_tags: AtomicU64,
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    /// The number of the last invalidation of each tag; `tags.len() <= TAGS_MAX`.
    tags: HashMap<TagHash, u64>,
    /// The same in their order, and some that came again since; `<= 2 * TAGS_MAX + 1`.
    order: VecDeque<(u64, TagHash)>,
    /// The number of the last invalidation that fell out.
    tags_forgotten: u64,
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
        tables.add_tag(tag, number);
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
            if tables.has_tag(&slot.object.tags, slot.heeded) {
                let mut object = (*slot.object).clone();
                object.stored.meta.invalidate();
                slot.object = Arc::new(object);
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
        if is_forgotten || (!tags.is_empty() && tables.has_tag(tags, since)) {
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

    fn next(&self) -> u64 {
        // Pairs with the load in `number`. Whoever is here has the lock.
        self.last.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Nobody leaves it half changed.
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn add_tag(&mut self, tag: TagHash, number: u64) {
        self.tags.insert(tag, number);
        self.order.push_back((number, tag));
        while self.tags.len() > TAGS_MAX {
            let (number, tag) = self.order.pop_front().expect("each tag has its place in it");
            if self.tags.get(&tag) == Some(&number) {
                self.tags.remove(&tag);
                self.tags_forgotten = number;
            }
        }
        if self.order.len() > 2 * TAGS_MAX {
            self.order.retain(|(number, tag)| self.tags.get(tag) == Some(number));
        }
    }

    /// Whether one of the tags was made invalid after `since`, or may have been.
    fn has_tag(&self, tags: &[TagHash], since: u64) -> bool {
        let is_later = |tag: &TagHash| self.tags.get(tag).is_some_and(|number| *number > since);
        since < self.tags_forgotten || tags.iter().any(is_later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_that_fell_out_counts_for_all_that_is_older() {
        let recent = Recent::default();
        recent.invalidate(TagHash(1));
        for _ in 0..3 * TAGS_MAX {
            recent.invalidate(TagHash(2));
        }
        let tables = recent.lock();
        assert!(tables.has_tag(&[TagHash(1)], 0) && !tables.has_tag(&[TagHash(1)], 1));
        assert!(!tables.has_tag(&[TagHash(3)], 0), "one that comes again displaces no other");
        assert!(tables.order.len() <= 2 * TAGS_MAX + 1);
        drop(tables);
        let number = recent.number();
        for tag in 0..TAGS_MAX as u128 {
            recent.invalidate(TagHash(10 + tag));
        }
        let tables = recent.lock();
        assert_eq!(tables.tags.len(), TAGS_MAX);
        assert!(
            tables.has_tag(&[TagHash(3)], number - 1) && !tables.has_tag(&[TagHash(3)], number)
        );
        assert!(tables.has_tag(&[TagHash(10)], number));
    }

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
            meta.flags.has(crate::rules::Flags::NO_CACHE)
        };
        assert!(flags(since) && !flags(since + 1) && !flags(recent.number()));
    }
}
