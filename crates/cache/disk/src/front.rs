//! The front of a record that was read, and a record before it is written.

use super::format::{Fixed, Kind, Parts};
use super::limits::CHUNK_BYTES;
use super::message::StoredHead;

/// A front that is what was written there.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) fixed: Fixed,
    pub(super) bytes: Vec<u8>,
}

/// A record before it is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft<'a> {
    pub(super) fixed: Fixed,
    pub(super) parts: Parts<'a>,
    pub(super) body: &'a [&'a [u8]],
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
