//! Every size and bound of the disk tier, with what happens at it.

use std::time::Duration;

/// The smallest disk. Below: [`Error::Size`](super::Error::Size).
pub const DISK_BYTES_MIN: u64 = 1 << 20;

/// A segment ends with the record that reaches this size, on disks of 512 MB to 64 GB. Smaller ones
/// have eight segments at least, so that not too much goes at once; larger ones 1,024, each of which
/// is an open file.
pub const SEGMENT_BYTES: u64 = 64 << 20;
pub(super) const SEGMENTS_MIN: u64 = 8;
pub(super) const SEGMENTS: u64 = 1024;

/// Bytes at which a segment ends, on a disk of so many.
pub(super) fn segment_bytes(disk_bytes: u64) -> u64 {
    let least = SEGMENT_BYTES.min(disk_bytes / SEGMENTS_MIN);
    (disk_bytes / SEGMENTS).max(least)
}

/// Files that a disk of so many bytes, [`DISK_BYTES_MIN`] or more, has open once it is full.
pub fn files(disk_bytes: u64) -> u64 {
    disk_bytes.div_ceil(segment_bytes(disk_bytes).max(1)) + 1
}

/// Segment files of one disk; starts that write little each make a small one. Above: the oldest goes.
pub(super) const SEGMENTS_MAX: usize = 2 * SEGMENTS as usize;

/// What a record begins at multiples of, and what places are counted in.
pub(super) const UNIT: u64 = 64;

/// Bytes of a body that have a checksum of their own: nothing of them is given to anybody before
/// all of them were compared.
pub const CHUNK_BYTES: usize = 64 << 10;

/// Bytes of a stored head, of the text of a key, of the names in `Vary`, and tags. Above: the answer
/// is not stored.
pub(super) const RESPONSE_HEADER_BYTES_MAX: usize = 1 << 20;
pub(super) const NAME_BYTES_MAX: usize = 1 << 20;
pub(super) const VARY_BYTES_MAX: usize = 64 << 10;
pub(super) const TAGS_MAX: usize = 1024;

/// The share of its disk, as a divisor, that a body may take. Above: it is not stored.
pub const BODY_SHARE: u64 = 8;
/// The longest body. Above: it is not stored.
pub(super) const BODY_BYTES_MAX: u64 = 64 << 30;

/// Second copies of purges are so far away from the first ones, a page, so that one bad place does
/// not take both.
pub(super) const COPY_BYTES: u64 = 4096;

/// Longer bodies are synced before their record is completed, and are not read when a segment
/// without a summary is: to have the end of such a record is to have its body.
pub(super) const VERIFIED_BYTES_MAX: u64 = 8 << 20;

/// Bytes that are read at a time when a segment without a summary is.
pub(super) const WINDOW_BYTES: usize = 1 << 20;

/// Of a summary. Above: the segment is read as if it had none.
pub(super) const SUMMARY_BYTES_MAX: u64 = 1 << 30;

/// Answers that one disk keeps, at some 150 bytes of memory each. Above: no further are stored.
pub(super) const RESPONSES_MAX: usize = 32 << 20;

/// Purges by tag or key, and those by prefix, that are remembered because there may be answers that
/// they are about. Above: everything that was stored on the disk before is dropped.
pub(super) const TAG_RULES_MAX: usize = 1 << 18;
pub(super) const PREFIX_RULES_MAX: usize = 1024;

/// Longer bodies are not written again when their segment goes, though they were asked for.
pub(super) const REWRITTEN_BYTES_MAX: u64 = 1 << 20;
/// The share of a segment, as a divisor, that is written again at most.
pub(super) const REWRITTEN_SHARE: u64 = 4;

/// Stores that are skipped after the disk refused to be written to.
pub(super) const PAUSE_STORES: u32 = 64;

/// How often memory is asked for before a fetch is given up, and in the middle of a body that somebody
/// reads before it is cut; a millisecond and more lies between.
pub(super) const MEMORY_TRIES_MAX: u32 = 1000;
pub(super) const MEMORY_TRIES_WITH_READER_MAX: u32 = 60_000;

/// How long somebody waits because a queue is above its second mark. After that the disk is taken as
/// stuck: what cannot be left out is queued all the same, up to [`JOBS_MAX`], and nobody waits before
/// it has gone on.
pub(super) const PURGE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Jobs of a disk that is stuck. Above: one purge of all that it has takes the place of every further
/// one, but for those that operators wait for.
pub(super) const JOBS_MAX: usize = 8192;

/// Bytes that one fetch moves before others have their turn.
pub(super) const TURN_BYTES: usize = 1 << 20;
