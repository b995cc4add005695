//! Operators' purges and listings of disks. Only operators' threads block until a disk replies.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_body::{Body, WaiterId};
use millrace_disk::{Cursor, DiskReply, PurgeTarget, StoredHeader};
use millrace_http_cache::Key;

use super::convert::{from_disk, url_tag};
use crate::index::cache::Cache;
use crate::index::disk_state::{CACHE_WORKER, DiskState, OpenDisks};
use crate::index::selector::Selector;
use crate::object::Object;

/// How long an operator waits for a purge to be written.
const PURGE_WAIT_MAX: Duration = Duration::from_secs(30);
/// How long disks are searched for one listing.
const LIST_WAIT_MAX: Duration = Duration::from_secs(10);
/// How often a waiting caller checks whether the disks were closed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

type AdminReplies = std::collections::HashMap<u64, Option<DiskReply>>;

impl Cache {
    /// Purges on the disks what was purged in memory since [`Cache::begin_purge`], and waits until
    /// it is durable. Returns whether it survives a power failure; `None`: there are no disks.
    pub(in crate::index) fn purge_disks(&self, selector: &Selector, is_soft: bool) -> Option<bool> {
        if !self.disk_tier.has_disks() {
            return None;
        }
        let deadline = Instant::now() + PURGE_WAIT_MAX;
        let mut is_durable = true;
        for subject in self.purge_targets(selector) {
            let reply = self.request_and_wait(deadline, |open, requester| {
                // Not in a step, unlike [`Cache::begin_purge`]: the holder of a step may wait for
                // the lock that `with_disks` holds here.
                open.disks.wait_for_room();
                open.disks.purge(&subject, is_soft, requester);
                true
            });
            is_durable &= reply == Some(DiskReply::Purged { is_durable: true });
        }
        Some(is_durable)
    }

    /// Begins a purge. It applies to everything that is found on a disk, loaded from one or stored
    /// on one from now on.
    pub(in crate::index) fn begin_purge(&self, selector: &Selector, is_soft: bool) {
        let _step = self.disk_tier.begin_purge_step(&self.purge_targets(selector), is_soft);
        self.invalidations.add_purge(selector.clone(), is_soft);
    }

    fn purge_targets(&self, selector: &Selector) -> Vec<PurgeTarget> {
        match selector {
            // A tag names the responses whose keys have more than the URL.
            Selector::Url(url) => vec![
                PurgeTarget::Key(Key::from_text(&self.hash, url)),
                PurgeTarget::Tag(url_tag(&self.hash, url)),
            ],
            Selector::Prefix(prefix) => vec![PurgeTarget::Prefix(prefix[..].into())],
            Selector::Tag(tag) => vec![PurgeTarget::Tag(*tag)],
            Selector::All => vec![PurgeTarget::All],
        }
    }

    /// Returns up to `max` of the responses that only disks have, without their bodies, and whether
    /// there may be more.
    pub fn list_disks(&self, selector: &Selector, max: usize) -> (Vec<Arc<Object>>, bool) {
        let mut found = Vec::new();
        let deadline = Instant::now() + LIST_WAIT_MAX;
        let mut cursor = Some(Cursor::default());
        while let Some(at) = cursor {
            let reply = self.request_and_wait(deadline, |open, requester| {
                open.disks.list(at, requester);
                true
            });
            let Some(DiskReply::Listed(headers, next)) = reply else {
                return (found, self.disk_tier.has_disks());
            };
            for header in
                headers.iter().filter(|header| selector.matches(&header.name, &header.tags))
            {
                if found.len() == max {
                    return (found, true);
                }
                found.extend(self.listed(header).filter(|_| !self.is_in_memory(header)));
            }
            cursor = next;
        }
        (found, false)
    }

    fn listed(&self, header: &StoredHeader) -> Option<Arc<Object>> {
        let body = Arc::new(Body::whole(iolite::Aggregate::new()));
        let mut object = from_disk(header, body, &self.hash)?;
        if header.is_stale {
            object.stored.meta.invalidate();
        }
        Some(Arc::new(object))
    }

    fn is_in_memory(&self, header: &StoredHeader) -> bool {
        let shard = self.lock_shard(header.id.key);
        let objects = shard.keys.get(&header.id.key).map_or(&[][..], |entry| &entry.objects);
        objects.iter().any(|slot| slot.object.variant == header.variant)
    }

    /// Sends a request to the disks and waits for the reply. `None` if no reply arrives in time, or
    /// if there are no disks.
    fn request_and_wait(
        &self,
        deadline: Instant,
        begin: impl FnOnce(&OpenDisks, WaiterId) -> bool,
    ) -> Option<DiskReply> {
        let number = self.last_lease.fetch_add(1, Ordering::Relaxed);
        let requester = WaiterId { worker: CACHE_WORKER, token: number };
        self.lock_admin_replies().insert(number, None);
        let has_begun = self.disk_tier.with_disks(|open| begin(open, requester)).unwrap_or(false);
        let is_threadless = matches!(
            &*self.disk_tier.read_state(),
            DiskState::Open(OpenDisks { is_threadless: true, .. })
        );
        let mut replies = self.lock_admin_replies();
        while has_begun && matches!(replies.get(&number), Some(None)) {
            if is_threadless {
                drop(replies);
                let has_worked = self.run_disk_work();
                replies = self.lock_admin_replies();
                if !has_worked {
                    break;
                }
            } else if Instant::now() >= deadline || !self.disk_tier.has_disks() {
                break;
            } else {
                let waited =
                    self.disk_tier.admin_reply_arrived.wait_timeout(replies, POLL_INTERVAL);
                replies = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        replies.remove(&number).flatten()
    }

    /// Records a reply for the caller that waits for it.
    pub(super) fn record_reply(&self, number: u64, reply: DiskReply) {
        if let Some(place) = self.lock_admin_replies().get_mut(&number) {
            *place = Some(reply);
            self.disk_tier.admin_reply_arrived.notify_all();
        }
    }

    fn lock_admin_replies(&self) -> MutexGuard<'_, AdminReplies> {
        self.disk_tier.admin_replies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
