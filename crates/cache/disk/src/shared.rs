//! The state that the threads of a disk share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use millrace_http_cache::SpaceTag;

use super::format::{Id, Position, Sealer};
use super::front::Front;
use super::index::Index;
use super::message::{Host, Miss};
use super::queue::{Job, PurgeJob, Queue};
use super::rules::{Rules, Subject};
use super::segments::{Segment, Segments};
use super::tally::Tally;
use super::volume::{Volume, read_exactly};

/// The state that the threads of a disk share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) volume: Arc<dyn Volume>,
    /// The directory's.
    pub(super) number: u64,
    pub(super) sealer: Sealer,
    pub(super) index: Index,
    pub(super) rules: Rules,
    pub(super) segments: Segments,
    pub(super) queue: Queue,
    pub(super) tally: Tally,
    /// How many responses of each space recovery has found so far.
    pub(super) recovered: Mutex<BTreeMap<SpaceTag, u64>>,
    pub(super) host: Arc<dyn Host>,
    /// Its place among the disks.
    pub(super) place: usize,
    /// Segments of earlier runs are still to be read. Set to `false` after the last was; pairs with
    /// the load in [`Disk::counters`](super::disk::Disk::counters).
    pub(super) is_recovering: AtomicBool,
    /// The body that is too long to be stored.
    pub(super) body_bytes_max: u64,
}

impl Shared {
    /// Reads the front of a record, whose length the caller gives.
    ///
    /// # Errors
    /// [`Miss::Damaged`], counted.
    pub(super) fn read_front(
        &self,
        segment: &Segment,
        id: Id,
        at: Position,
        bytes: u32,
    ) -> Result<Front, Miss> {
        let tally = &self.tally;
        let mut front = vec![0; bytes as usize];
        match read_exactly(&*segment.file, at.offset(), &mut front) {
            Ok(true) => {}
            Ok(false) => {
                tally.damaged.fetch_add(1, Ordering::Relaxed);
                return Err(Miss::Damaged);
            }
            Err(_) => {
                tally.read_errors.fetch_add(1, Ordering::Relaxed);
                return Err(Miss::Damaged);
            }
        }
        let fixed = self.sealer.fixed(&front, at);
        let fixed = fixed.filter(|fixed| fixed.id == id && fixed.front_bytes() == front.len());
        match fixed.filter(|_| self.sealer.is_front(&front, at)) {
            Some(fixed) => Ok(Front { fixed, bytes: front }),
            None => {
                tally.damaged.fetch_add(1, Ordering::Relaxed);
                Err(Miss::Damaged)
            }
        }
    }

    /// An answer is not what it was, or cannot be read. It is written that it is gone: should the
    /// disk read it after all some day, nobody may know by then that it was purged meanwhile.
    pub(super) fn give_up(&self, id: Id, at: Position) {
        let mut shard = self.index.shard(id.key);
        if shard.remove_at(id, at) {
            let subject = Subject::Answer(id);
            self.queue.write(Job::Purge(PurgeJob { subject, is_soft: false, asker: None }));
        }
    }
}
