//! All bounds of the daemon.

use std::time::Duration;

use iolite::service::PIECES_PER_PACKET_MAX;

/// The memory of the cache unless an option says otherwise, in bytes.
pub(crate) const CACHE_BYTES_DEFAULT: u64 = 256 << 20;
/// The least memory of the cache: a few pieces.
pub(crate) const CACHE_BYTES_MIN: u64 = 16 << 20;
/// The connections of one user, unless an option says otherwise.
pub(crate) const CLIENTS_PER_USER_DEFAULT: usize = 128;
/// The connections of all users. Each has a thread.
pub(crate) const CLIENTS_MAX: usize = 1024;
/// How long a thread waits for another one that reads the same file.
pub(crate) const LOAD_WAIT_MAX: Duration = Duration::from_secs(2);
/// The ends of pipes and connections of one client that wait for their other ends. Beyond it, the
/// oldest one carries bytes.
pub(crate) const PAIRS_PER_CLIENT_MAX: usize = 16;
/// How often a file is read again that changes meanwhile.
pub(crate) const ATTEMPTS_MAX: usize = 3;
/// The entries that are examined to find one that no client holds.
pub(crate) const PROBES_MAX: usize = 64;
/// The descriptors for one connection: its socket, those of a request, those of a response, those
/// of a pair, and the ends of channels that wait.
pub(crate) const DESCRIPTORS_PER_CLIENT: u64 =
    1 + 2 * PIECES_PER_PACKET_MAX as u64 + 2 + PAIRS_PER_CLIENT_MAX as u64;
/// Users that have no number in the user namespace of the daemon have this one
/// (/proc/sys/kernel/overflowuid), so any two of them may be different users.
pub(crate) const UNKNOWN_USER: u32 = 65534;
/// The least number of pieces, even where too few descriptors are allowed.
pub(crate) const PIECES_MIN: u64 = 16;
/// Messages about connections that were closed are written no more often.
pub(crate) const REPORT_AFTER: Duration = Duration::from_secs(1);
/// Bytes that are compared at a time.
pub(crate) const COMPARED_BYTES: usize = 64 << 10;
