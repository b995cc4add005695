//! The format of a segment: a header, then records. A closed segment ends with a summary of them.
//! docs/design/disk.md has the table.
//!
//! All metadata of a record has a *seal*: a hash over it, its position and the number of the
//! directory, keyed with the secret key of the cache. So an origin cannot choose bytes that are a
//! valid record, and a record that was copied to another position or directory is not valid. Bodies
//! have CRC-32C checksums, which the seal covers.
//!
//! Nothing here reads or writes files. Bytes from files are not trusted: decoders verify them and
//! check all lengths.

use std::hash::Hasher;

use millrace_http_cache::{HashKey, Key, META_BYTES, SpaceTag, TagHash, VariantKey};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::limits::{
    BODY_BYTES_MAX, CHUNK_BYTES, NAME_BYTES_MAX, RESPONSE_HEADER_BYTES_MAX, SUMMARY_BYTES_MAX,
    TAGS_MAX, UNIT, VARY_BYTES_MAX,
};

/// The identity of a stored response.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ResponseId {
    /// Its key.
    pub key: Key,
    /// Distinguishes the responses of a key; chosen by the caller, 0 for one that does not vary. A
    /// response replaces the one with the same id.
    pub variant: u128,
}

/// The position of a record. Records of a disk are written in the order of their positions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(super) struct RecordPosition {
    /// The number of its segment, at least 1.
    pub(super) segment: u32,
    /// Its offset in the segment, in units.
    pub(super) unit: u32,
}

impl RecordPosition {
    pub(super) fn offset(self) -> u64 {
        u64::from(self.unit) * UNIT
    }
}

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum RecordKind {
    /// A response.
    #[default]
    Response,
    /// A newer header for the response at `target`.
    Update,
    /// A purge.
    Purge(PurgeScope),
}

/// The kind of a purge: which responses it selects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PurgeScope {
    /// One response.
    Id,
    /// All responses of a key.
    Key,
    /// All responses whose key text begins with the record's name.
    Prefix,
    /// All responses with the record's tag.
    Tag,
    /// Everything.
    All,
}

/// The fixed part of a record header: the kind of the record and the lengths of its parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct FixedHeader {
    pub(super) kind: RecordKind,
    /// Only for a purge: whether the responses become stale instead of being removed.
    pub(super) is_soft: bool,
    pub(super) has_variant: bool,
    pub(super) has_language: bool,
    pub(super) tags: u16,
    pub(super) vary_bytes: u32,
    pub(super) response_header_bytes: u32,
    pub(super) name_bytes: u32,
    pub(super) body_bytes: u64,
    /// The number of purges that were written to this disk before the record.
    pub(super) purges: u64,
    /// Only for an update: the position of the response.
    pub(super) target: RecordPosition,
    /// Only for a stored response: the tag of its key space.
    pub(super) space: SpaceTag,
    pub(super) id: ResponseId,
}

/// Bytes of [`FixedHeader`] without its seal.
pub(super) const FIXED_BYTES: usize = 80;
/// Bytes of [`FixedHeader`] with its seal.
pub(super) const SEALED_FIXED_BYTES: usize = FIXED_BYTES + 8;
/// Bytes of the seal of a record header, and of the seal at the end of a record.
pub(super) const SEAL_BYTES: usize = 16;
/// Bytes of a segment header: the offset of the first record.
pub(super) const SEGMENT_HEADER_BYTES: usize = 64;
/// Bytes of the tail of a closed segment.
pub(super) const SEGMENT_TAIL_BYTES: usize = 64;

const RECORD_MAGIC: [u8; 4] = *b"rec\x02";
const SEGMENT_MAGIC: [u8; 8] = *b"mr-seg\x02\n";
const SUMMARY_MAGIC: [u8; 8] = *b"mr-sum\x02\n";

const HAS_VARIANT: u8 = 1;
const HAS_LANGUAGE: u8 = 2;
const IS_SOFT: u8 = 4;

impl FixedHeader {
    /// Creates a fixed header for a record without parts.
    pub(super) fn new(kind: RecordKind, id: ResponseId) -> Self {
        Self { kind, id, ..Self::default() }
    }

    pub(super) fn to_bytes(self) -> [u8; FIXED_BYTES] {
        let bit = |bit, is_set| if is_set { bit } else { 0 };
        let flags = bit(HAS_VARIANT, self.has_variant)
            | bit(HAS_LANGUAGE, self.has_language)
            | bit(IS_SOFT, self.is_soft);
        let mut bytes = [0; FIXED_BYTES];
        bytes[..4].copy_from_slice(&RECORD_MAGIC);
        (bytes[4], bytes[5]) = (self.kind.number(), flags);
        bytes[6..8].copy_from_slice(&self.tags.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.vary_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.response_header_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.name_bytes.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.target.segment.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.target.unit.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.space.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.purges.to_le_bytes());
        bytes[48..64].copy_from_slice(&self.id.key.0.to_le_bytes());
        bytes[64..80].copy_from_slice(&self.id.variant.to_le_bytes());
        bytes
    }

    /// Decodes the result of [`FixedHeader::to_bytes`]; `None` for any other bytes.
    pub(super) fn from_bytes(bytes: &[u8; FIXED_BYTES]) -> Option<Self> {
        let fixed = Self {
            kind: RecordKind::of(bytes[4])?,
            has_variant: bytes[5] & HAS_VARIANT != 0,
            has_language: bytes[5] & HAS_LANGUAGE != 0,
            is_soft: bytes[5] & IS_SOFT != 0,
            tags: u16::from_le_bytes(array_at(bytes, 6)),
            vary_bytes: u32::from_le_bytes(array_at(bytes, 8)),
            response_header_bytes: u32::from_le_bytes(array_at(bytes, 12)),
            name_bytes: u32::from_le_bytes(array_at(bytes, 16)),
            target: RecordPosition {
                segment: u32::from_le_bytes(array_at(bytes, 20)),
                unit: u32::from_le_bytes(array_at(bytes, 24)),
            },
            space: SpaceTag(u32::from_le_bytes(array_at(bytes, 28))),
            body_bytes: u64::from_le_bytes(array_at(bytes, 32)),
            purges: u64::from_le_bytes(array_at(bytes, 40)),
            id: ResponseId {
                key: Key(u128::from_le_bytes(array_at(bytes, 48))),
                variant: u128::from_le_bytes(array_at(bytes, 64)),
            },
        };
        (fixed.is_within_limits() && fixed.to_bytes() == *bytes).then_some(fixed)
    }

    /// Returns whether all lengths are within their bounds, and the fields agree with the kind.
    pub(super) fn is_within_limits(&self) -> bool {
        usize::from(self.tags) <= TAGS_MAX
            && self.vary_bytes as usize <= VARY_BYTES_MAX
            && self.response_header_bytes as usize <= RESPONSE_HEADER_BYTES_MAX
            && self.name_bytes as usize <= NAME_BYTES_MAX
            && self.body_bytes <= BODY_BYTES_MAX
            && (self.has_variant || !self.has_language)
            && (self.kind == RecordKind::Response || self.body_bytes == 0)
            && (self.kind == RecordKind::Response || self.space == SpaceTag::default())
            && (self.kind != RecordKind::Purge(PurgeScope::Tag) || self.tags == 1)
    }

    pub(super) fn is_purge(&self) -> bool {
        matches!(self.kind, RecordKind::Purge(_))
    }

    fn meta_bytes(&self) -> usize {
        if self.is_purge() { 0 } else { META_BYTES }
    }

    fn variant_bytes(&self) -> usize {
        16 * (usize::from(self.has_variant) + usize::from(self.has_language))
    }

    pub(super) fn chunks(&self) -> usize {
        self.body_bytes.div_ceil(CHUNK_BYTES as u64) as usize
    }

    /// Returns the number of bytes before the body.
    pub(super) fn record_header_bytes(&self) -> usize {
        SEALED_FIXED_BYTES
            + self.meta_bytes()
            + self.variant_bytes()
            + self.vary_bytes as usize
            + self.response_header_bytes as usize
            + self.name_bytes as usize
            + usize::from(self.tags) * 16
            + self.chunks() * 4
            + SEAL_BYTES
    }

    /// Returns the length of the record, without the padding to a whole unit.
    pub(super) fn record_bytes(&self) -> u64 {
        self.record_header_bytes() as u64 + self.body_bytes + SEAL_BYTES as u64
    }

    /// Returns the length of its item in a summary.
    fn item_bytes(&self) -> usize {
        let purged = if self.is_purge() {
            self.name_bytes as usize + usize::from(self.tags) * 16
        } else {
            0
        };
        4 + FIXED_BYTES + self.variant_bytes() + self.vary_bytes as usize + purged
    }
}

/// All kinds, in the order of their numbers. The first one has number 1.
const KINDS: [RecordKind; 7] = [
    RecordKind::Response,
    RecordKind::Update,
    RecordKind::Purge(PurgeScope::Id),
    RecordKind::Purge(PurgeScope::Key),
    RecordKind::Purge(PurgeScope::Prefix),
    RecordKind::Purge(PurgeScope::Tag),
    RecordKind::Purge(PurgeScope::All),
];

impl RecordKind {
    fn number(self) -> u8 {
        let place = KINDS.iter().position(|kind| *kind == self);
        place.expect("each kind has a number") as u8 + 1
    }

    fn of(number: u8) -> Option<Self> {
        KINDS.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// The parts of a record header after the fixed part.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordParts<'a> {
    /// Empty for a purge.
    pub(super) meta: &'a [u8],
    pub(super) variant: Option<VariantKey>,
    pub(super) vary: &'a [u8],
    pub(super) response_header: &'a [u8],
    pub(super) name: &'a [u8],
    /// 16 bytes each.
    pub(super) tags: &'a [u8],
    /// CRC-32C checksums of the body's chunks, 4 bytes each.
    pub(super) sums: &'a [u8],
}

impl RecordParts<'static> {
    /// The parts of a record that has none.
    pub(super) const NONE: Self = Self {
        meta: b"",
        variant: None,
        vary: b"",
        response_header: b"",
        name: b"",
        tags: b"",
        sums: b"",
    };
}

impl<'a> RecordParts<'a> {
    /// Splits a record header, whose parts have the lengths in `fixed`.
    pub(super) fn of(fixed: &FixedHeader, header: &'a [u8]) -> Self {
        let mut reader = PartReader(&header[SEALED_FIXED_BYTES..]);
        Self {
            meta: reader.take(fixed.meta_bytes()),
            variant: reader.variant(fixed),
            vary: reader.take(fixed.vary_bytes as usize),
            response_header: reader.take(fixed.response_header_bytes as usize),
            name: reader.take(fixed.name_bytes as usize),
            tags: reader.take(usize::from(fixed.tags) * 16),
            sums: reader.take(fixed.chunks() * 4),
        }
    }

    /// Decodes tags.
    pub(super) fn tag_hashes(tags: &[u8]) -> impl Iterator<Item = TagHash> {
        let (tags, _) = tags.as_chunks::<16>();
        tags.iter().map(|tag| TagHash(u128::from_le_bytes(*tag)))
    }
}

/// The item of a record in a summary.
#[derive(Clone, Copy, Debug)]
pub(super) struct SummaryItem<'a> {
    pub(super) unit: u32,
    pub(super) fixed: FixedHeader,
    pub(super) variant: Option<VariantKey>,
    pub(super) vary: &'a [u8],
    /// Empty unless the record is a purge.
    pub(super) name: &'a [u8],
    /// Empty unless the record is a purge.
    pub(super) tags: &'a [u8],
}

/// Appends the summary item of a record.
pub(super) fn put_item(out: &mut Vec<u8>, unit: u32, fixed: &FixedHeader, parts: &RecordParts<'_>) {
    out.extend_from_slice(&unit.to_le_bytes());
    out.extend_from_slice(&fixed.to_bytes());
    put_variant(out, parts.variant);
    out.extend_from_slice(parts.vary);
    if fixed.is_purge() {
        out.extend_from_slice(parts.name);
        out.extend_from_slice(parts.tags);
    }
}

/// Decodes and removes the first item; `None` if it is invalid.
pub(super) fn take_item<'a>(items: &mut &'a [u8]) -> Option<SummaryItem<'a>> {
    let (unit, rest) = items.split_first_chunk()?;
    let fixed = FixedHeader::from_bytes(rest.first_chunk()?)?;
    let (item, rest) = items.split_at_checked(fixed.item_bytes())?;
    *items = rest;
    let mut reader = PartReader(&item[4 + FIXED_BYTES..]);
    let variant = reader.variant(&fixed);
    let vary = reader.take(fixed.vary_bytes as usize);
    let name = reader.take(if fixed.is_purge() { fixed.name_bytes as usize } else { 0 });
    Some(SummaryItem {
        unit: u32::from_le_bytes(*unit),
        fixed,
        variant,
        vary,
        name,
        tags: reader.0,
    })
}

/// Appends the hashes of a variant, if there is one.
pub(super) fn put_variant(out: &mut Vec<u8>, variant: Option<VariantKey>) {
    if let Some(variant) = variant {
        out.extend_from_slice(&variant.exact.to_le_bytes());
        if let Some(language) = variant.by_language {
            out.extend_from_slice(&language.to_le_bytes());
        }
    }
}

struct PartReader<'a>(&'a [u8]);

impl<'a> PartReader<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn number(&mut self) -> u128 {
        u128::from_le_bytes(self.take(16).try_into().expect("16 bytes were read"))
    }

    fn variant(&mut self, fixed: &FixedHeader) -> Option<VariantKey> {
        fixed.has_variant.then(|| VariantKey {
            exact: self.number(),
            by_language: fixed.has_language.then(|| self.number()),
        })
    }
}

/// The header of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SegmentHeader {
    pub(super) segment: u32,
    /// The number of purges that were written to this disk before the segment.
    pub(super) purges: u64,
}

/// The tail of a closed segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SegmentTail {
    pub(super) segment: u32,
    /// CRC-32C of the items, which end where the tail begins.
    pub(super) sum: u32,
    pub(super) bytes: u64,
    /// The number of purges that were written to this disk before the end of the segment.
    pub(super) purges: u64,
}

/// The creator and verifier of seals. Seals depend on the key of the cache and on the number of the
/// directory, so files of other directories are not accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sealer {
    key: [u8; 16],
    directory: u64,
}

impl Sealer {
    pub(super) fn new(key: HashKey, directory: u64) -> Self {
        Self { key: key.bytes(), directory }
    }

    /// Computes a seal. Each kind of seal has its own `purpose`, so that a seal of one kind is
    /// never valid as another.
    fn seal(&self, purpose: u8, at: RecordPosition, bytes: &[u8]) -> [u8; SEAL_BYTES] {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        let mut label = [0; 24];
        label[..7].copy_from_slice(b"mr-disk");
        label[7] = purpose;
        label[8..12].copy_from_slice(&at.segment.to_le_bytes());
        label[12..16].copy_from_slice(&at.unit.to_le_bytes());
        label[16..].copy_from_slice(&self.directory.to_le_bytes());
        hasher.write(&label);
        hasher.write(bytes);
        hasher.finish128().as_u128().to_le_bytes()
    }

    /// Appends the fixed part of a record at `at`, with its seal.
    pub(super) fn put_fixed(&self, out: &mut Vec<u8>, fixed: &FixedHeader, at: RecordPosition) {
        let bytes = fixed.to_bytes();
        out.extend_from_slice(&bytes);
        out.extend_from_slice(&self.seal(b'b', at, &bytes)[..8]);
    }

    /// Decodes and verifies the fixed part of a record at `at`.
    pub(super) fn read_fixed(&self, bytes: &[u8], at: RecordPosition) -> Option<FixedHeader> {
        let bytes = bytes.first_chunk::<SEALED_FIXED_BYTES>()?;
        if bytes[..4] != RECORD_MAGIC {
            return None;
        }
        let (fixed, seal) = bytes.split_first_chunk::<FIXED_BYTES>()?;
        if self.seal(b'b', at, fixed)[..8] != *seal {
            return None;
        }
        FixedHeader::from_bytes(fixed)
    }

    /// Appends the seal of a record header that is otherwise complete.
    pub(super) fn put_header_seal(&self, header: &mut Vec<u8>, at: RecordPosition) {
        let seal = self.seal(b'f', at, header);
        header.extend_from_slice(&seal);
    }

    /// Returns whether `header` is a complete record header with the right seal for `at`.
    pub(super) fn is_record_header(&self, header: &[u8], at: RecordPosition) -> bool {
        let Some((header, seal)) = header.split_last_chunk::<SEAL_BYTES>() else { return false };
        self.seal(b'f', at, header) == *seal
    }

    /// Returns the seal at the end of a record, which is written last.
    pub(super) fn end_seal(&self, header: &[u8], at: RecordPosition) -> [u8; SEAL_BYTES] {
        self.seal(b'e', at, &header[header.len() - SEAL_BYTES..])
    }

    pub(super) fn header_bytes(&self, header: &SegmentHeader) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&header.segment.to_le_bytes());
        bytes[16..24].copy_from_slice(&header.purges.to_le_bytes());
        self.seal_block(b'h', header.segment, &mut bytes);
        bytes
    }

    pub(super) fn read_header(&self, bytes: &[u8; SEGMENT_HEADER_BYTES]) -> Option<SegmentHeader> {
        let header = SegmentHeader {
            segment: u32::from_le_bytes(array_at(bytes, 8)),
            purges: u64::from_le_bytes(array_at(bytes, 16)),
        };
        (self.header_bytes(&header) == *bytes).then_some(header)
    }

    pub(super) fn tail_bytes(&self, tail: &SegmentTail) -> [u8; SEGMENT_TAIL_BYTES] {
        let mut bytes = [0; SEGMENT_TAIL_BYTES];
        bytes[..8].copy_from_slice(&SUMMARY_MAGIC);
        bytes[8..12].copy_from_slice(&tail.segment.to_le_bytes());
        bytes[12..16].copy_from_slice(&tail.sum.to_le_bytes());
        bytes[16..24].copy_from_slice(&tail.bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&tail.purges.to_le_bytes());
        self.seal_block(b't', tail.segment, &mut bytes);
        bytes
    }

    pub(super) fn read_tail(&self, bytes: &[u8; SEGMENT_TAIL_BYTES]) -> Option<SegmentTail> {
        let tail = SegmentTail {
            segment: u32::from_le_bytes(array_at(bytes, 8)),
            sum: u32::from_le_bytes(array_at(bytes, 12)),
            bytes: u64::from_le_bytes(array_at(bytes, 16)),
            purges: u64::from_le_bytes(array_at(bytes, 24)),
        };
        (self.tail_bytes(&tail) == *bytes && tail.bytes <= SUMMARY_BYTES_MAX).then_some(tail)
    }

    fn seal_block(&self, purpose: u8, segment: u32, bytes: &mut [u8; 64]) {
        let (block, seal) = bytes.split_at_mut(64 - SEAL_BYTES);
        seal.copy_from_slice(&self.seal(purpose, RecordPosition { segment, unit: 0 }, block));
    }
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a range of N bytes has N bytes")
}

const _: () =
    assert!((SEGMENT_HEADER_BYTES as u64).is_multiple_of(UNIT) && SEGMENT_TAIL_BYTES == 64);

#[cfg(test)]
mod tests {
    use super::*;

    const AT: RecordPosition = RecordPosition { segment: 7, unit: 9 };

    fn sealer() -> Sealer {
        Sealer::new(HashKey::new([3; 16]), 6)
    }

    fn fixed() -> FixedHeader {
        let id = ResponseId { key: Key(1 << 100), variant: 5 };
        let mut fixed = FixedHeader { purges: 77, ..FixedHeader::new(RecordKind::Response, id) };
        (fixed.has_variant, fixed.has_language, fixed.tags) = (true, true, 2);
        (fixed.vary_bytes, fixed.response_header_bytes, fixed.name_bytes) = (3, 4, 5);
        fixed.body_bytes = CHUNK_BYTES as u64 + 1;
        fixed.space = SpaceTag(0x0102_0304);
        fixed
    }

    #[test]
    fn a_record_header_is_valid_only_unchanged_and_in_its_place() {
        let fixed = fixed();
        let mut header = Vec::new();
        sealer().put_fixed(&mut header, &fixed, AT);
        let variant = VariantKey { exact: 8, by_language: Some(9) };
        header.extend_from_slice(&[1; META_BYTES]);
        put_variant(&mut header, Some(variant));
        header.extend_from_slice(b"abcheadnamet");
        header.extend_from_slice(&[2; 32]);
        header.extend_from_slice(b"12345678");
        sealer().put_header_seal(&mut header, AT);
        assert_eq!(header.len(), fixed.record_header_bytes());
        assert_eq!(sealer().read_fixed(&header, AT), Some(fixed));
        assert!(sealer().is_record_header(&header, AT));
        let parts = RecordParts::of(&fixed, &header);
        assert_eq!(
            (parts.variant, parts.vary, parts.response_header),
            (Some(variant), &b"abc"[..], &b"head"[..])
        );
        assert_eq!((parts.name, parts.tags.len(), parts.sums.len()), (&b"namet"[..], 32, 8));
        let elsewhere = RecordPosition { unit: 10, ..AT };
        assert!(
            sealer().read_fixed(&header, elsewhere).is_none()
                && !sealer().is_record_header(&header, elsewhere)
        );
        for (key, directory) in [(4, 6), (3, 7)] {
            let other = Sealer::new(HashKey::new([key; 16]), directory);
            assert!(
                other.read_fixed(&header, AT).is_none() && !other.is_record_header(&header, AT)
            );
        }
        assert_ne!(sealer().end_seal(&header, AT), sealer().end_seal(&header, elsewhere));
        for at in 0..header.len() {
            let mut flipped = header.clone();
            flipped[at] ^= 1;
            assert!(!sealer().is_record_header(&flipped, AT), "byte {at}");
            assert_eq!(
                sealer().read_fixed(&flipped, AT).is_none(),
                at < SEALED_FIXED_BYTES,
                "byte {at}"
            );
        }
    }

    #[test]
    fn items_round_trip_and_other_bytes_are_rejected() {
        let mut purge = FixedHeader {
            purges: 1,
            ..FixedHeader::new(RecordKind::Purge(PurgeScope::Tag), fixed().id)
        };
        (purge.is_soft, purge.tags, purge.name_bytes) = (true, 1, 2);
        let variant = Some(VariantKey { exact: 8, by_language: Some(9) });
        let mut bytes = Vec::new();
        put_item(
            &mut bytes,
            3,
            &fixed(),
            &RecordParts { variant, vary: b"abc", ..RecordParts::NONE },
        );
        put_item(
            &mut bytes,
            4,
            &purge,
            &RecordParts { name: b"na", tags: &[6; 16], ..RecordParts::NONE },
        );
        let mut rest = &bytes[..];
        let first = take_item(&mut rest).unwrap();
        assert_eq!((first.unit, first.fixed, first.variant), (3, fixed(), variant));
        assert_eq!((first.vary, first.name), (&b"abc"[..], &b""[..]));
        let second = take_item(&mut rest).unwrap();
        assert_eq!((second.fixed, second.name, second.tags), (purge, &b"na"[..], &[6; 16][..]));
        assert!(rest.is_empty() && take_item(&mut rest).is_none());
        for end in 0..bytes.len() {
            let mut rest = &bytes[..end];
            while take_item(&mut rest).is_some() {}
        }
    }

    #[test]
    fn headers_and_tails_round_trip_and_other_bytes_are_rejected() {
        let header = SegmentHeader { segment: 7, purges: 3 };
        let tail = SegmentTail { segment: 7, sum: 5, bytes: 1000, purges: 8 };
        let (one, other) = (sealer().header_bytes(&header), sealer().tail_bytes(&tail));
        assert_eq!(
            (sealer().read_header(&one), sealer().read_tail(&other)),
            (Some(header), Some(tail))
        );
        assert_eq!((sealer().read_header(&other), sealer().read_tail(&one)), (None, None));
        for at in 0..64 {
            let (mut one, mut other) = (one, other);
            (one[at], other[at]) = (one[at] ^ 1, other[at] ^ 1);
            assert!(sealer().read_header(&one).is_none() && sealer().read_tail(&other).is_none());
        }
    }
}
