//! All bounds of the daemon.

use std::time::Duration;

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
/// The ends of pipes of one connection that wait for their other ends.
pub(crate) const PAIRS_PER_CLIENT_MAX: usize = 16;
/// How often a file is read again that changes meanwhile.
pub(crate) const ATTEMPTS_MAX: usize = 3;
/// The entries that are examined to find one that no client holds.
pub(crate) const PROBES_MAX: usize = 64;
/// Descriptors that are not used for pieces: connections, and files under way.
pub(crate) const RESERVED_DESCRIPTORS: u64 = 4 * CLIENTS_MAX as u64;
/// Bytes that are compared at a time.
pub(crate) const COMPARED_BYTES: usize = 64 << 10;
