//! Most sizes and bounds of the disk tier, and what happens when they are reached.

use std::time::Duration;

/// The minimum size of a disk. A smaller disk is refused with [`Error::Size`](super::Error::Size).
pub const DISK_BYTES_MIN: u64 = 1 << 20;

/// On disks of 512 MB to 64 GB, a segment ends with the record that reaches this size. On a smaller
/// disk, it ends at an eighth of the disk, so that dropping it loses little. On a larger disk, it
/// ends at 1/1024 of the disk, because each segment is an open file.
pub const SEGMENT_BYTES: u64 = 64 << 20;
pub(super) const SEGMENTS_MIN: u64 = 8;
pub(super) const SEGMENTS: u64 = 1024;

/// Returns the size at which a segment ends on a disk of `disk_bytes`.
pub(super) fn segment_bytes(disk_bytes: u64) -> u64 {
    let least = SEGMENT_BYTES.min(disk_bytes / SEGMENTS_MIN);
    (disk_bytes / SEGMENTS).max(least)
}

/// Returns the number of open files of a full disk whose segments have their normal size.
/// `disk_bytes` is [`DISK_BYTES_MIN`] or more. After many restarts, a disk may have more segments
/// that are smaller, up to 2,048.
pub fn files(disk_bytes: u64) -> u64 {
    disk_bytes.div_ceil(segment_bytes(disk_bytes).max(1)) + 1
}

/// The maximum number of segment files on a disk. With more, the oldest one is dropped. A process
/// that is restarted often may create many small ones.
pub(super) const SEGMENTS_MAX: usize = 2 * SEGMENTS as usize;

/// The unit of positions in bytes. Records begin at multiples of it.
pub(super) const UNIT: u64 = 64;

/// The size of a chunk. Each chunk of a body has a checksum, and is verified as a whole before any
/// of it is delivered.
pub const CHUNK_BYTES: usize = 64 << 10;

/// Maximum bytes of a stored response header. A response with more is not stored.
pub(super) const RESPONSE_HEADER_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of a key's text. A response with more is not stored.
pub(super) const NAME_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of the names in `Vary`. A response with more is not stored.
pub(super) const VARY_BYTES_MAX: usize = 64 << 10;
/// The maximum number of tags. A response with more is not stored.
pub(super) const TAGS_MAX: usize = 1024;

/// The size of a disk divided by this is the maximum length of a body on it. A longer body is not
/// stored.
pub const BODY_SHARE: u64 = 8;
/// The maximum length of a body on any disk. A longer body is not stored.
pub(super) const BODY_BYTES_MAX: u64 = 64 << 30;

/// The distance between the two copies of a purge for which a requester waits. It is a page, so
/// that one bad place on the medium does not destroy both.
pub(super) const COPY_BYTES: u64 = 4096;

/// Longer bodies are synced before the end seal of their record is written. So the end seal proves
/// that the body is there, and recovery without a summary does not read it.
pub(super) const VERIFIED_BYTES_MAX: u64 = 8 << 20;

/// Bytes that recovery without a summary reads at a time.
pub(super) const WINDOW_BYTES: usize = 1 << 20;

/// The maximum size of a summary. A segment with a larger one is read as if it had none.
pub(super) const SUMMARY_BYTES_MAX: u64 = 1 << 30;

/// The maximum number of responses on a disk, with about 150 bytes of memory each. A disk with this
/// number stores no further ones.
pub(super) const RESPONSES_MAX: usize = 32 << 20;

/// The maximum number of purge rules other than by prefix. With more, a single rule replaces all
/// rules that are on the disk already: it purges everything that was written before the newest of
/// them.
pub(super) const TAG_RULES_MAX: usize = 1 << 18;
/// The maximum number of purge rules by prefix; see [`TAG_RULES_MAX`].
pub(super) const PREFIX_RULES_MAX: usize = 1024;

/// When a segment is dropped, a fetched response is rewritten only if its body and twice its header
/// together have at most this size.
pub(super) const REWRITTEN_BYTES_MAX: u64 = 1 << 20;
/// At most the size of a segment divided by this is rewritten when the segment is dropped.
pub(super) const REWRITTEN_SHARE: u64 = 4;

/// The number of stores that are skipped after a write failed.
pub(super) const PAUSE_STORES: u32 = 64;

/// The number of times that a failed allocation is repeated before a fetch fails. After each
/// failure the reading thread pauses for a millisecond. Another reading thread may try the same
/// fetch meanwhile, so a thousand tries may take less than a second.
pub(super) const MEMORY_TRIES_MAX: u32 = 1000;
/// Like [`MEMORY_TRIES_MAX`], while a client reads the body. If the fetch fails, the body is cut.
pub(super) const MEMORY_TRIES_WITH_READER_MAX: u32 = 60_000;

/// How long the caller of a purge waits for a queue that has reached its second mark. After that,
/// the disk counts as stuck: purges are queued without waiting, up to [`JOBS_MAX`]. This ends when
/// the writer takes a job that leaves the queue below the mark.
pub(super) const PURGE_WAIT_MAX: Duration = Duration::from_secs(1);

/// The maximum number of jobs of a stuck disk. With more, a single purge of everything replaces all
/// further purges, except those that an operator waits for.
pub(super) const JOBS_MAX: usize = 8192;

/// Bytes that one fetch moves before other fetches have their turn.
pub(super) const TURN_BYTES: usize = 1 << 20;
