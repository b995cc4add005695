//! Every threshold and bound of this crate. docs/design/splice.md has the figures behind them.

use std::ops::RangeInclusive;

/// Bytes still to come from which a rest of known length is spliced; below it, one receive and one
/// send are cheaper.
pub const SPLICE_MIN: u64 = 32 * 1024;
/// What a measurement may make of it.
pub const SPLICE_CLAMP: RangeInclusive<u64> = 16 * 1024..=64 * 1024;
/// The same where something goes before it in any case, the head or what was received with it, and
/// the rest is there already: a splice then costs less than a further receive and send.
pub const SPLICE_BEHIND_MIN: u64 = 4 * 1024;
/// What a measurement may make of it.
pub const BEHIND_CLAMP: RangeInclusive<u64> = 4 * 1024..=32 * 1024;
/// A receive of so many bytes shows that a source of unknown length brings much at a time.
pub const BULK_MIN: usize = 32 * 1024;
/// Bytes that it has to have brought in all: an answer of 64 KB in a tunnel of its own is over
/// before a pipe would pay.
pub const BULK_AFTER: u64 = 128 * 1024;
/// A pipe that a source filled with less than this, though more was to come, shows that it brings
/// little at a time: then copying is no dearer, and needs no pipe.
pub const FILL_MIN: usize = 8 * 1024;
/// Bytes moved at a time, as much as an engine's pipe has room for. After them a transfer queues
/// behind the others.
pub const PIPE_BYTES: usize = 256 * 1024;
/// Bytes still to come from which a body that is stored goes to who asked for it through a pipe and
/// is read out of a second one for the cache; below, it is received there and sent from there.
pub const TEE_MIN: u64 = 512 * 1024;
/// Pipes of one process, divided between its workers; at it, bodies are copied. They take at most
/// three quarters of what Linux lets one user's pipes hold (pipe(7), `pipe-user-pages-soft`: 16,384
/// pages, which is 256 such pipes).
pub const PIPES_MAX: usize = 192;
/// Requests for a pipe that are refused without asking the kernel, after it refused one.
pub(crate) const REFUSALS_AFTER_FAILURE: u32 = 64;
/// Room that a pipe has at least, in bytes: with less, copying is cheaper.
pub(crate) const PIPE_BYTES_MIN: usize = 64 * 1024;
/// Transfers of one splicer at a time; a further one is refused.
pub const TRANSFERS_MAX: u32 = 1 << 20;
/// Changes of connections that one turn of a splicer finds; the next one finds the others.
pub(crate) const EVENTS_PER_CALL: usize = 256;
/// Bytes that are copied at a time where there is no pipe.
pub(crate) const COPY_BYTES: usize = 64 * 1024;
/// How long a direction pauses for which the kernel had no memory, in milliseconds: short beside
/// what a person notices, long beside what a try costs.
pub(crate) const SHORTAGE_PAUSE_MS: u32 = 10;
/// Turns of a splicer between two looks for pipes that nobody needed meanwhile.
pub(crate) const CALLS_PER_TRIM: u32 = 256;
