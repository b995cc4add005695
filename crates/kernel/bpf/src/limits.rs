//! Bounds of the daemon, with what happens when they are reached.

use std::time::Duration;

/// Processes of one user that are registered at the same time; the next one is answered `Full`.
pub const REGIONS_PER_USER_MAX: usize = 32;
/// Connections that have not asked for anything yet; the next one is closed.
pub(crate) const STRANGERS_MAX: usize = 16;
/// Who has not asked by then is closed.
pub(crate) const REQUEST_TIME_MAX: Duration = Duration::from_secs(1);
/// Bytes of a process's ring: the least that the kernel allows, of which a record takes 16. A full
/// ring drops records and stays readable, which is all that it is for.
pub(crate) const RING_BYTES: u32 = 4096;
