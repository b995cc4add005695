//! Bounds of the library, with what happens when they are reached.

use std::time::Duration;

/// Waits in a row that are answered from memory; by the next one descriptors that are not tracked
/// are looked at too, and the kernel looks at those that are told (the paper's MaxPass). Unless
/// [`crate::Tracker::set_passes`] says otherwise.
pub const KERNEL_CHECK_WAITS_MAX: u32 = 64;
/// Nor is it longer than this that those are not looked at, while waits are asked for at all.
pub const KERNEL_CHECK_TIME_MAX: Duration = Duration::from_millis(10);
/// Waits in a row that are answered from memory without a look whether the daemon that keeps it is
/// still there; who sleeps is told.
pub const DAEMON_CHECK_WAITS_MAX: u32 = 256;
/// Descriptors that an epoll instance of the library tells of at once; the rest is told next.
pub(crate) const EVENTS_MAX: usize = 256;
/// Sockets that a filter arms in a call; the rest in further ones.
pub(crate) const REQUESTS_MAX: u32 = 256;
/// What a filter's ring has room to tell until somebody looks. A socket that there is no room for is
/// asked about, and armed anew.
pub(crate) const COMPLETIONS_MAX: u32 = 32 << 10;
/// How long a descriptor that is to be closed waits for a busy thread that has armed it. After that
/// the connection ends when that thread is next in the kernel.
pub(crate) const DISARM_TIME_MAX: Duration = Duration::from_millis(10);
/// Entries of an upoll from which on the question is remembered to the next one; with fewer it is as
/// fast to look at each, and no memory is taken.
pub(crate) const POLL_CACHE_ENTRIES_MIN: usize = 64;
/// How long the daemon is waited for by who registers, which it may do before it has loaded its
/// programs; then there is none.
pub(crate) const REPLY_TIME_MAX: Duration = Duration::from_secs(10);
/// By who asks for a ring: then it waits in the system call.
pub(crate) const RING_REPLY_TIME_MAX: Duration = Duration::from_secs(1);
/// By a watcher, which has none for good then: several such tries,
pub(crate) const KEPT_SLEEPER_TIME_MAX: Duration = Duration::from_secs(4);
/// and between looks whether another thread still has one asked for.
pub(crate) const KEPT_SLEEPER_STEP: Duration = Duration::from_millis(1);
/// Where the daemon has given no ring none is asked for before this.
pub(crate) const RING_RETRY_TIME: Duration = Duration::from_secs(1);
