//! What operators do with what is on disks. They wait for the disks, nobody else does.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_body::{Body, Waiter};
use millrace_disk::{Answered, Cursor, StoredHead, Subject};
use millrace_http_cache::Key;

use super::answer::{from_disk, tag_of_url};
use crate::index::cache::Cache;
use crate::index::tier::{ASKER, Open, Tier};
use crate::index::which::Which;
use crate::object::Object;

/// How long an operator waits for a purge to be on the disks.
const PURGE: Duration = Duration::from_secs(30);
/// How long what is stored on disks is looked through for one list.
const LIST: Duration = Duration::from_secs(10);
/// How often somebody who waits looks whether the disks were closed.
const LOOK: Duration = Duration::from_millis(100);

type Told = std::collections::HashMap<u64, Option<Answered>>;

impl Cache {
    /// Purges on the disks what was purged in memory since [`Cache::begin_purge`], and waits until it
    /// is durable. Gives whether it will be so even if the machine loses its power now; `None`: there
    /// are no disks.
    pub(in crate::index) fn purge_disks(&self, which: &Which, is_soft: bool) -> Option<bool> {
        if !self.beneath.is_there() {
            return None;
        }
        let deadline = Instant::now() + PURGE;
        let mut is_durable = true;
        for subject in self.subjects(which) {
            let answered = self.ask(deadline, |open, asker| {
                // No step: that was when it began, and whoever is in one may wait for the lock that
                // is held here.
                open.disks.wait_for_room();
                open.disks.purge(&subject, is_soft, asker);
                true
            });
            is_durable &= answered == Some(Answered::Purged { is_durable: true });
        }
        Some(is_durable)
    }

    /// Begins a purge: what is found on a disk, fetched from there, or handed to one from now on,
    /// heeds it.
    pub(in crate::index) fn begin_purge(&self, which: &Which, is_soft: bool) {
        let _step = self.beneath.tell(&self.subjects(which), is_soft);
        self.recent.purge(which.clone(), is_soft);
    }

    fn subjects(&self, which: &Which) -> Vec<Subject> {
        match which {
            // Those that are asked for by more than the URL are known by a tag.
            Which::Url(url) => vec![
                Subject::Key(Key::of_text(&self.hash, url)),
                Subject::Tag(tag_of_url(&self.hash, url)),
            ],
            Which::Prefix(prefix) => vec![Subject::Prefix(prefix[..].into())],
            Which::Tag(tag) => vec![Subject::Tag(*tag)],
            Which::All => vec![Subject::All],
        }
    }

    /// Up to `max` of the answers that only a disk has, without their bodies, and whether there may
    /// be more.
    pub fn list_disks(&self, which: &Which, max: usize) -> (Vec<Arc<Object>>, bool) {
        let mut found = Vec::new();
        let deadline = Instant::now() + LIST;
        let mut cursor = Some(Cursor::default());
        while let Some(at) = cursor {
            let answered = self.ask(deadline, |open, asker| {
                open.disks.list(at, asker);
                true
            });
            let Some(Answered::Listed(heads, next)) = answered else {
                return (found, self.beneath.is_there());
            };
            for head in heads.iter().filter(|head| which.has(&head.name, &head.tags)) {
                if found.len() == max {
                    return (found, true);
                }
                found.extend(self.listed(head).filter(|_| !self.is_in_memory(head)));
            }
            cursor = next;
        }
        (found, false)
    }

    fn listed(&self, head: &StoredHead) -> Option<Arc<Object>> {
        let body = Arc::new(Body::whole(iolite::Aggregate::new()));
        let mut object = from_disk(head, body, &self.hash)?;
        if head.is_outdated {
            object.stored.meta.invalidate();
        }
        Some(Arc::new(object))
    }

    fn is_in_memory(&self, head: &StoredHead) -> bool {
        let shard = self.shard(head.id.key);
        let objects = shard.keys.get(&head.id.key).map_or(&[][..], |entry| &entry.objects);
        objects.iter().any(|slot| slot.object.variant == head.variant)
    }

    /// Asks the disks for something and waits for what they say; `None`: they say nothing in time,
    /// or there are none.
    fn ask(
        &self,
        deadline: Instant,
        begin: impl FnOnce(&Open, Waiter) -> bool,
    ) -> Option<Answered> {
        let number = self.claims.fetch_add(1, Ordering::Relaxed);
        let asker = Waiter { worker: ASKER, token: number };
        self.lock_told().insert(number, None);
        let has_begun = self.beneath.with(|open| begin(open, asker)).unwrap_or(false);
        let is_driven = matches!(&*self.beneath.read(), Tier::Open(Open { is_driven: true, .. }));
        let mut told = self.lock_told();
        while has_begun && matches!(told.get(&number), Some(None)) {
            if is_driven {
                drop(told);
                let has_worked = self.work_disks();
                told = self.lock_told();
                if !has_worked {
                    break;
                }
            } else if Instant::now() >= deadline || !self.beneath.is_there() {
                break;
            } else {
                let waited = self.beneath.news.wait_timeout(told, LOOK);
                told = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        told.remove(&number).flatten()
    }

    /// Notes what somebody who asks is told.
    pub(super) fn note(&self, number: u64, answered: Answered) {
        if let Some(place) = self.lock_told().get_mut(&number) {
            *place = Some(answered);
            self.beneath.news.notify_all();
        }
    }

    fn lock_told(&self) -> MutexGuard<'_, Told> {
        self.beneath.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
