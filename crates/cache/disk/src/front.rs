//! The front of a record, read and compared with its seal.

use std::sync::atomic::Ordering;

use super::disk::Shared;
use super::format::{Fixed, Id, Kind, Parts, Position};
use super::limits::CHUNK_BYTES;
use super::log::Draft;
use super::message::{Miss, StoredHead};
use super::segments::Segment;
use super::volume::read_exactly;

/// A front that is what was written there.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) fixed: Fixed,
    bytes: Vec<u8>,
}

/// Reads a front of so many bytes.
///
/// # Errors
/// [`Miss::Damaged`], counted.
pub(super) fn read_front(
    shared: &Shared,
    segment: &Segment,
    id: Id,
    at: Position,
    bytes: u32,
) -> Result<Front, Miss> {
    let mut front = vec![0; bytes as usize];
    let tally = &shared.tally;
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
    let fixed = shared.sealer.fixed(&front, at);
    let fixed = fixed.filter(|fixed| fixed.id == id && fixed.front_bytes() == front.len());
    match fixed.filter(|_| shared.sealer.is_front(&front, at)) {
        Some(fixed) => Ok(Front { fixed, bytes: front }),
        None => {
            tally.damaged.fetch_add(1, Ordering::Relaxed);
            Err(Miss::Damaged)
        }
    }
}

impl Front {
    pub(super) fn parts(&self) -> Parts<'_> {
        Parts::of(&self.fixed, &self.bytes)
    }

    /// The same as what is to be written, without its body.
    pub(super) fn draft(&self) -> Draft<'_> {
        Draft { fixed: self.fixed, parts: self.parts(), body: &[] }
    }

    /// The sum of a chunk of the body.
    pub(super) fn sum(&self, chunk: usize) -> Option<u32> {
        let (sums, _) = self.parts().sums.as_chunks::<4>();
        sums.get(chunk).map(|sum| u32::from_le_bytes(*sum))
    }

    /// Whether these bytes are the body.
    pub(super) fn is_body(&self, body: &[u8]) -> bool {
        let mut chunks = body.chunks(CHUNK_BYTES).enumerate();
        body.len() as u64 == self.fixed.body_bytes
            && chunks.all(|(chunk, bytes)| self.sum(chunk) == Some(crc32c::crc32c(bytes)))
    }

    /// What it says, with the numbers and the head of `update` if there is one.
    pub(super) fn head(&self, update: Option<&Self>, is_outdated: bool) -> Box<StoredHead> {
        let parts = self.parts();
        let newest = update.map_or(parts, Self::parts);
        Box::new(StoredHead {
            id: self.fixed.id,
            variant: parts.variant,
            vary: parts.vary.into(),
            meta: newest.meta.try_into().expect("what is no purge has its numbers"),
            head: newest.head.into(),
            name: parts.name.into(),
            tags: Parts::tag_hashes(parts.tags).collect(),
            body_bytes: self.fixed.body_bytes,
            is_outdated,
        })
    }

    pub(super) fn is(&self, kind: Kind) -> bool {
        self.fixed.kind == kind
    }
}
