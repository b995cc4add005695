//! The state that the threads of a disk share.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use millrace_http_cache::SpaceTag;

use super::format::{Id, Kind, Position, Sealer};
use super::front::Front;
use super::index::{Head, Index, Known};
use super::message::{Host, Miss};
use super::queue::{Job, PurgeJob, Queue};
use super::rules::{Judged, Rules, Standing, Subject};
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

/// What was read of an answer before its body.
#[derive(Debug)]
pub(super) struct Fronts {
    pub(super) front: Front,
    /// Of the record that has its present head, if that is another one.
    pub(super) update: Option<Front>,
    /// How the answer stands by the rules.
    pub(super) standing: Standing,
}

impl Shared {
    /// Reads a record of an answer whose segment is at hand, and the update of its head if there is
    /// one, up to the body; and asks the rules about it.
    ///
    /// # Errors
    /// [`Miss::Gone`]; and [`Miss::Damaged`], counted.
    pub(super) fn read_known(&self, segment: &Segment, known: &Known) -> Result<Fronts, Miss> {
        let (id, at) = (known.id, known.at);
        let front = self.read_front(segment, id, Head { at, front_bytes: known.front_bytes })?;
        if !front.is(Kind::Answer) || front.fixed.body_bytes != known.body_bytes {
            return Err(Miss::Damaged);
        }
        let mut update = None;
        if let Some(head) = known.update {
            let segment = self.segments.get(head.at.segment).ok_or(Miss::Gone)?;
            let newer = self.read_front(&segment, id, head)?;
            if !newer.is(Kind::Update) || newer.fixed.target != at {
                return Err(Miss::Damaged);
            }
            update = Some(newer);
        }
        let parts = front.parts();
        let head_at = known.update.map_or(at, |head| head.at);
        let judged = Judged { id, at, head_at, name: parts.name, tags: parts.tags };
        let standing = self.rules.standing(&judged);
        Ok(Fronts { front, update, standing })
    }

    fn read_front(&self, segment: &Segment, id: Id, head: Head) -> Result<Front, Miss> {
        let mut bytes = vec![0; head.front_bytes as usize];
        let fixed = self.read(segment, head.at.offset(), &mut bytes, |front| {
            let fixed = self.sealer.fixed(front, head.at)?;
            let is_it = fixed.id == id && fixed.front_bytes() == front.len();
            (is_it && self.sealer.is_front(front, head.at)).then_some(fixed)
        })?;
        Ok(Front { fixed, bytes })
    }

    /// Reads all of `bytes` from a place of a segment. Gives what `check` makes of them: `None`
    /// where they are not what was written.
    ///
    /// # Errors
    /// [`Miss::Damaged`], counted.
    pub(super) fn read<T>(
        &self,
        segment: &Segment,
        at: u64,
        bytes: &mut [u8],
        check: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, Miss> {
        let is_there = read_exactly(&*segment.file, at, bytes);
        let checked = if is_there == Ok(true) { check(bytes) } else { None };
        checked.ok_or_else(|| {
            self.tally.count(|counters| match is_there {
                Ok(_) => counters.damaged += 1,
                Err(_) => counters.read_errors += 1,
            });
            Miss::Damaged
        })
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
