//! All thresholds and bounds of this crate. docs/design/splice.md has the measurements.

use std::ops::RangeInclusive;

/// Remaining bytes of known length from which a body is spliced. Below, one receive and one send
/// are cheaper.
pub const SPLICE_MIN: u64 = 32 * 1024;
/// Range to which a measured [`SPLICE_MIN`] is clamped.
pub const SPLICE_CLAMP: RangeInclusive<u64> = 16 * 1024..=64 * 1024;
/// Like [`SPLICE_MIN`], for bytes that follow a header, or other bytes that were received before. A
/// further receive and send would cost more than a splice.
pub const SPLICE_BEHIND_MIN: u64 = 4 * 1024;
/// Range to which a measured [`SPLICE_BEHIND_MIN`] is clamped.
pub const BEHIND_CLAMP: RangeInclusive<u64> = 4 * 1024..=32 * 1024;
/// A source of unknown length is spliced only after a receive of this many bytes.
pub const BULK_MIN: usize = 32 * 1024;
/// Bytes that a source of unknown length must have sent in total before it is spliced. A response
/// of 64 KB in a tunnel ends before a pipe would pay.
pub const BULK_AFTER: u64 = 128 * 1024;
/// If a fill moved fewer bytes than this although more were expected, the source is slow, and
/// copying is as cheap as a pipe.
pub const FILL_MIN: usize = 8 * 1024;
/// Bytes moved at a time, and the size of an engine's pipe. After them, a transfer waits for its
/// next turn.
pub const PIPE_BYTES: usize = 256 * 1024;
/// Remaining bytes from which a stored body goes to the client through one pipe and is read from a
/// second one for the cache. Below, the cache receives the body and the client is served from
/// there.
pub const TEE_MIN: u64 = 512 * 1024;
/// Pipes of one process, divided between its workers. Without a free pipe, bodies are copied. This
/// many pipes use at most three quarters of the pipe memory that Linux allows a user (pipe(7),
/// `pipe-user-pages-soft`: 16,384 pages, or 256 such pipes).
pub const PIPES_MAX: usize = 192;
/// After the kernel refused a pipe, this many requests for one fail without a system call.
pub(crate) const REFUSALS_AFTER_FAILURE: u32 = 64;
/// The smallest usable pipe in bytes. With a smaller one, copying is cheaper.
pub(crate) const PIPE_BYTES_MIN: usize = 64 * 1024;
/// Transfers of one splicer. Further ones are refused.
pub const TRANSFERS_MAX: u32 = 1 << 20;
/// Socket events that one [`Splicer::forward`](crate::Splicer::forward) handles. The next call
/// handles the rest.
pub(crate) const EVENTS_PER_CALL: usize = 256;
/// Bytes that are copied at a time without a pipe.
pub(crate) const COPY_BYTES: usize = 64 * 1024;
/// Pause of a direction for which the kernel had no memory, in milliseconds: too short for a user
/// to notice, and long compared with the cost of a retry.
pub(crate) const SHORTAGE_PAUSE_MS: u32 = 10;
/// Calls of a splicer between two checks for unused pipes.
pub(crate) const CALLS_PER_TRIM: u32 = 256;
