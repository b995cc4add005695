//! Limits of the daemon, and what happens when they are reached.

use std::time::Duration;

/// Registered processes at the same time, including former clients whose memory is still
/// referenced. The next process gets the reply `Full`.
pub const REGIONS_MAX: usize = uselect::layout::REGIONS as usize;
/// Default for [`AccessPolicy::per_user`](crate::AccessPolicy::per_user): registrations of one
/// user, counted like [`REGIONS_MAX`]. The next process gets the reply `Full`.
pub const REGIONS_PER_USER: usize = 32;
/// Supplementary groups of a process (NGROUPS_MAX since Linux 2.6.4).
pub(crate) const GROUPS_MAX: usize = 65536;
/// Connections that have not sent a request yet. The next one gets the reply `Full`.
pub(crate) const PENDING_MAX: usize = 128;
/// Connections of one user that have not sent a request yet, so that no user can block the others.
/// The next one gets the reply `Full`.
pub(crate) const PENDING_PER_USER_MAX: usize = 16;
/// Time for a process to send its request; then its connection is closed.
pub(crate) const REQUEST_TIME_MAX: Duration = Duration::from_secs(1);
/// Pause of accepting after accept(2) has failed, because the daemon has no descriptor left.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for another daemon at the same path to end; then the start fails.
pub(crate) const OLD_DAEMON_WAIT_MAX: Duration = Duration::from_secs(1);
/// Interval at which a starting daemon checks whether the other one has ended.
pub(crate) const OLD_DAEMON_RETRY: Duration = Duration::from_millis(10);
/// Interval between two batches of a sweep over the tracked sockets.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Least number of sockets in a batch. A socket takes 0.3 to 0.8 us of CPU time.
pub(crate) const SWEEP_BATCH_MIN: usize = 512;
/// Largest number of sockets in a batch, so more than 163,840 sockets take longer than 10 s. The
/// iterator yields a byte for each socket, and this is well below the 32 KiB that the kernel
/// buffers in one read: with a full buffer the kernel would stop at a socket and visit it again.
pub(crate) const SWEEP_BATCH_MAX: usize = 16 << 10;
/// Batches of a pass over as many sockets as the previous pass had. More batches would cost more in
/// total, because the kernel finds the start of a batch by walking over all sockets before it.
pub(crate) const SWEEP_BATCHES: usize = 10;
/// Once a pass has visited more sockets than the whole previous pass, a batch is the number of
/// sockets visited so far divided by this. A pass then ends after 11 s if 10,000 sockets are new,
/// and after 19 s if 65,536 are.
pub(crate) const SWEEP_GROWTH_DIVISOR: usize = 4;
/// Delay after which sockets with a mismatch are checked again.
pub(crate) const RECHECK_DELAY: Duration = Duration::from_millis(50);
/// Size of a ring buffer in bytes: the least that the kernel allows. A record takes 16 bytes. A
/// full ring drops records but stays readable, which is all that a wake-up needs.
pub(crate) const RING_BYTES: u32 = 4096;
/// Time within which the log does not repeat a message.
pub(crate) const LOG_REPEAT_AFTER: Duration = Duration::from_secs(600);
