//! Bounds of the daemon, with what happens when they are reached.

use std::time::Duration;

/// Processes that are registered at the same time, with those that were and whose memory somebody
/// has still; the next one is answered `Full`.
pub const REGIONS_MAX: usize = uselect::layout::REGIONS as usize;
/// Those of one user, unless the policy has another number; the next one is answered `Full`.
pub const REGIONS_PER_USER: usize = 32;
/// Groups that a process has beside its own (NGROUPS_MAX, since Linux 2.6.4).
pub(crate) const GROUPS_MAX: usize = 65536;
/// Connections of who may ask and has not yet; the next one is answered `Full`.
pub(crate) const PENDING_MAX: usize = 128;
/// Those of one user, so that nobody keeps others from asking; the next one is answered `Full`.
pub(crate) const PENDING_PER_USER_MAX: usize = 16;
/// Who has not asked by then is closed.
pub(crate) const REQUEST_TIME_MAX: Duration = Duration::from_secs(1);
/// Where a connection cannot be taken, as descriptors have run out, the next one is after this.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Another daemon at the same socket is given so long to end,
pub(crate) const OLD_DAEMON_WAIT_MAX: Duration = Duration::from_secs(1);
/// and looked for so often.
pub(crate) const OLD_DAEMON_RETRY: Duration = Duration::from_millis(10);
/// While somebody is registered, a part of the tracked sockets is looked at each time that this has
/// gone by.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Sockets of a part at least, each of which takes 0.3 to 0.8 us of a processor.
pub(crate) const SWEEP_BATCH_MIN: usize = 512;
/// And at most: well below the 32 KiB that the kernel has room for in a read of an iterator, where it
/// would stop at the socket that finds none, and show that again. More than 163,840 take over 10 s.
pub(crate) const SWEEP_BATCH_MAX: usize = 16 << 10;
/// Parts of as many sockets as there were in the pass before, at most: the kernel finds the first
/// one of a part by going through those before it.
pub(crate) const SWEEP_BATCHES: usize = 10;
/// Where a pass has seen more than that, a part is such a share of what it has seen: it is over
/// after 11 s where 10,000 are new, and after 19 s where 65,536 are.
pub(crate) const SWEEP_GROWTH_DIVISOR: usize = 4;
/// What was doubted is looked at again when this has gone by.
pub(crate) const RECHECK_DELAY: Duration = Duration::from_millis(50);
/// Bytes of a process's ring: the least that the kernel allows, of which a record takes 16. A full
/// ring drops records and stays readable, which is all that it is for.
pub(crate) const RING_BYTES: u32 = 4096;
/// What was said in the log is not said again within this.
pub(crate) const LOG_REPEAT_AFTER: Duration = Duration::from_secs(600);
