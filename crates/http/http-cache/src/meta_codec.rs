//! Encoding of [`Meta`] for the disk: little-endian numbers at fixed offsets.

use super::meta::{EtagSpan, Flags, Meta, StoredRange};

/// The length of an encoded [`Meta`] in bytes.
pub const META_BYTES: usize = 88;

/// Bits for the optional parts.
const HAS_MODIFIED: u8 = 1;
const HAS_ETAG: u8 = 2;
const ETAG_IS_STRONG: u8 = 4;
const HAS_STORED_RANGE: u8 = 8;
const HAS_COMPLETE: u8 = 16;

impl Meta {
    /// Encodes the metadata for [`Meta::from_bytes`]. The range tag is a hash, so the hash key of
    /// the writing process has to be stored as well.
    pub fn to_bytes(&self) -> [u8; META_BYTES] {
        let etag = self.etag.unwrap_or(EtagSpan { start: 0, len: 0, is_strong: false });
        let extent = self.stored_range.unwrap_or(StoredRange { first: 0, last: 0, complete: None });
        let bit = |bit: u8, is_set: bool| if is_set { bit } else { 0 };
        let present = bit(HAS_MODIFIED, self.last_modified_s.is_some())
            | bit(HAS_ETAG, self.etag.is_some())
            | bit(ETAG_IS_STRONG, etag.is_strong)
            | bit(HAS_STORED_RANGE, self.stored_range.is_some())
            | bit(HAS_COMPLETE, extent.complete.is_some());
        let mut bytes = [0; META_BYTES];
        let mut at = 0;
        let mut put = |number: &[u8]| {
            bytes[at..at + number.len()].copy_from_slice(number);
            at += number.len();
        };
        put(&self.response_ms.to_le_bytes());
        put(&self.date_s.to_le_bytes());
        put(&self.last_modified_s.unwrap_or(0).to_le_bytes());
        put(&self.lifetime_s.to_le_bytes());
        put(&self.initial_age_s.to_le_bytes());
        put(&self.stale_while_revalidate_s.to_le_bytes());
        put(&self.stale_if_error_s.to_le_bytes());
        put(&etag.start.to_le_bytes());
        put(&etag.len.to_le_bytes());
        put(&self.lines_at.to_le_bytes());
        put(&extent.first.to_le_bytes());
        put(&extent.last.to_le_bytes());
        put(&extent.complete.unwrap_or(0).to_le_bytes());
        put(&self.range_tag.to_le_bytes());
        put(&self.status.to_le_bytes());
        put(&[self.flags.bits(), present]);
        debug_assert_eq!(at, META_BYTES, "the numbers fill all bytes");
        bytes
    }

    /// Decodes bytes that [`Meta::to_bytes`] wrote, for a header of `head_len` bytes. Returns
    /// `None` if they do not fit such a header or were not written by `to_bytes`: bytes from a disk
    /// are untrusted input.
    pub fn from_bytes(bytes: &[u8; META_BYTES], head_len: usize) -> Option<Self> {
        let mut read = NumberReader(bytes);
        let (response_ms, date_s, modified_s) = (read.u64(), read.u64(), read.u64());
        let (lifetime_s, initial_age_s) = (read.u32(), read.u32());
        let (stale_while_revalidate_s, stale_if_error_s) = (read.u32(), read.u32());
        let (start, len, lines_at) = (read.u32(), read.u32(), read.u32());
        let (first, last, complete) = (read.u64(), read.u64(), read.u64());
        let range_tag = read.u64();
        let status = u16::from_le_bytes(read.take());
        let [flags, present] = read.take();
        let has = |bit: u8| present & bit != 0;
        let etag = EtagSpan { start, len, is_strong: has(ETAG_IS_STRONG) };
        let complete = has(HAS_COMPLETE).then_some(complete);
        let meta = Self {
            response_ms,
            date_s,
            last_modified_s: has(HAS_MODIFIED).then_some(modified_s),
            lifetime_s,
            initial_age_s,
            stale_while_revalidate_s,
            stale_if_error_s,
            etag: has(HAS_ETAG).then_some(etag),
            status,
            flags: Flags::from_bits(flags)?,
            lines_at,
            stored_range: has(HAS_STORED_RANGE).then_some(StoredRange { first, last, complete }),
            range_tag,
        };
        (meta.is_sound(head_len) && meta.to_bytes() == *bytes).then_some(meta)
    }

    fn is_sound(&self, head_len: usize) -> bool {
        let is_in_head = |at: u32, len: u32| u64::from(at) + u64::from(len) <= head_len as u64;
        let is_part = |extent: StoredRange| {
            extent.first <= extent.last
                && extent.last < u64::MAX
                && extent.complete.is_none_or(|length| extent.last < length)
        };
        (200..600).contains(&self.status)
            && is_in_head(self.lines_at, 0)
            && self.etag.is_none_or(|etag| is_in_head(etag.start, etag.len))
            && self.stored_range.is_none_or(is_part)
    }
}

/// Reads numbers in sequence. The caller reads no more than there are.
struct NumberReader<'a>(&'a [u8]);

impl NumberReader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (number, rest) = self.0.split_first_chunk().expect("no more is read than was written");
        self.0 = rest;
        *number
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_messages::{DATE, stored_response};
    use super::*;

    fn whole() -> (Meta, usize) {
        let modified = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
        let directives = "Cache-Control: max-age=1, stale-while-revalidate=2, stale-if-error=3\r\n";
        let stored = stored_response(&format!(
            "{DATE}{directives}{modified}ETag: \"a\"\r\nAge: 4\r\nVary: a\r\n"
        ));
        (stored.meta, stored.head.len())
    }

    #[test]
    fn encoded_metadata_is_decoded() {
        let (meta, head_len) = whole();
        let part = StoredRange { first: 3, last: 9, complete: Some(10) };
        for meta in [
            meta,
            Meta { stored_range: Some(part), range_tag: u64::MAX, ..meta },
            Meta { stored_range: Some(StoredRange { complete: None, ..part }), ..meta },
            Meta { etag: None, last_modified_s: None, ..meta },
        ] {
            assert_eq!(Meta::from_bytes(&meta.to_bytes(), head_len), Some(meta));
        }
    }

    #[test]
    fn invalid_metadata_is_refused() {
        let (meta, head_len) = whole();
        let read = |meta: Meta, head_len| Meta::from_bytes(&meta.to_bytes(), head_len);
        assert_eq!(read(meta, meta.lines_at as usize), None, "the tag is not in the head");
        assert_eq!(read(Meta { lines_at: u32::MAX, ..meta }, head_len), None);
        for status in [0, 199, 600, u16::MAX] {
            assert_eq!(read(Meta { status, ..meta }, head_len), None);
        }
        for (first, last, complete) in [(5, 4, None), (0, 9, Some(9)), (0, u64::MAX, None)] {
            let stored_range = Some(StoredRange { first, last, complete });
            assert_eq!(read(Meta { stored_range, ..meta }, head_len), None);
        }
    }

    #[test]
    fn a_changed_bit_is_valid_or_refused() {
        let (meta, head_len) = whole();
        for bit in 0..META_BYTES * 8 {
            let mut bytes = meta.to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Some(changed) = Meta::from_bytes(&bytes, head_len) {
                assert!(changed.is_sound(head_len) && changed != meta);
                assert_eq!(changed.to_bytes(), bytes);
            }
        }
    }
}
