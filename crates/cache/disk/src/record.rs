//! Records: the header of a record that was read, and a record to write.

use super::format::{FixedHeader, RecordKind, RecordParts};
use super::limits::CHUNK_BYTES;
use super::message::StoredHeader;

/// A verified record header: all bytes of a record before its body.
#[derive(Debug)]
pub(super) struct RecordHeader {
    pub(super) fixed: FixedHeader,
    pub(super) bytes: Vec<u8>,
}

/// A record to write.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewRecord<'a> {
    pub(super) fixed: FixedHeader,
    pub(super) parts: RecordParts<'a>,
    pub(super) body: &'a [&'a [u8]],
}

impl RecordHeader {
    pub(super) fn parts(&self) -> RecordParts<'_> {
        RecordParts::of(&self.fixed, &self.bytes)
    }

    /// Returns the same record for writing, without its body.
    pub(super) fn to_new_record(&self) -> NewRecord<'_> {
        NewRecord { fixed: self.fixed, parts: self.parts(), body: &[] }
    }

    /// Returns the checksum of a chunk of the body.
    pub(super) fn chunk_sum(&self, chunk: usize) -> Option<u32> {
        let (sums, _) = self.parts().sums.as_chunks::<4>();
        sums.get(chunk).map(|sum| u32::from_le_bytes(*sum))
    }

    /// Returns whether these bytes are the body.
    pub(super) fn matches_body(&self, body: &[u8]) -> bool {
        let mut chunks = body.chunks(CHUNK_BYTES).enumerate();
        body.len() as u64 == self.fixed.body_bytes
            && chunks.all(|(chunk, bytes)| self.chunk_sum(chunk) == Some(crc32c::crc32c(bytes)))
    }

    /// Returns the stored header. If there is an `update`, the metadata and the response header
    /// come from it.
    pub(super) fn stored_header(&self, update: Option<&Self>, is_stale: bool) -> Box<StoredHeader> {
        let parts = self.parts();
        let newest = update.map_or(parts, Self::parts);
        Box::new(StoredHeader {
            id: self.fixed.id,
            variant: parts.variant,
            vary: parts.vary.into(),
            meta: newest.meta.try_into().expect("only purges have no metadata"),
            header: newest.response_header.into(),
            name: parts.name.into(),
            tags: RecordParts::tag_hashes(parts.tags).collect(),
            body_bytes: self.fixed.body_bytes,
            is_stale,
        })
    }

    pub(super) fn has_kind(&self, kind: RecordKind) -> bool {
        self.fixed.kind == kind
    }
}
