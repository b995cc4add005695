//! Limits of the library, and what happens when they are reached.

use std::time::Duration;

/// The number of consecutive waits that memory alone may serve (MaxPass in the paper). The next
/// wait also calls poll(2) for the descriptors that are not tracked, and updates the recorded state
/// of the ready sockets. [`crate::Tracker::set_kernel_check_interval`] changes it.
pub const KERNEL_CHECK_WAITS_MAX: u32 = 64;
/// The time for which memory alone may serve waits, if it does not show the state of some
/// descriptors, such as untracked ones. The next wait checks these descriptors too.
pub const KERNEL_CHECK_TIME_MAX: Duration = Duration::from_millis(10);
/// The number of consecutive waits that memory alone may serve without a check that the daemon
/// still runs. A thread that sleeps is woken when the daemon ends.
pub const DAEMON_CHECK_WAITS_MAX: u32 = 256;
/// Events that one wait for an epoll instance stores at most. The next wait returns the rest.
pub(crate) const EVENTS_MAX: usize = 256;
/// Multishot polls that one io_uring_enter(2) submits. More polls take more calls.
pub(crate) const REQUESTS_MAX: u32 = 256;
/// Completions that a multishot ring holds. If the completion queue overflows, the kernel ends a
/// multishot poll. The library then calls poll(2) for that socket until the socket is armed again.
pub(crate) const COMPLETIONS_MAX: u32 = 32 << 10;
/// How long [`crate::Tracker::untrack`] waits for io_uring to release a socket. A thread that
/// submitted the socket's poll and does not enter the kernel delays this. If the limit is reached,
/// close(2) of the descriptor ends the connection only after that thread has entered the kernel.
pub(crate) const DISARM_TIME_MAX: Duration = Duration::from_millis(10);
/// The smallest number of entries for which upoll uses the poll cache. With fewer entries, a scan
/// of each entry is as fast and needs no memory.
pub(crate) const POLL_CACHE_ENTRIES_MIN: usize = 64;
/// How long a registration waits for the daemon, which may still be loading its programs. Then it
/// fails with [`crate::Error::NoReply`].
pub(crate) const REPLY_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a thread waits for the wake-up ring that it requested from the daemon. After that, its
/// wait is the plain system call.
pub(crate) const RING_REPLY_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a new watcher retries to get a sleeper. After that, it keeps all descriptors in its
/// epoll instance.
pub(crate) const WATCHER_SLEEPER_TIME_MAX: Duration = Duration::from_secs(4);
/// The pause between attempts of a new watcher to get a sleeper, while another thread requests a
/// ring.
pub(crate) const WATCHER_SLEEPER_RETRY: Duration = Duration::from_millis(1);
/// The pause after a failed request for a ring.
pub(crate) const RING_RETRY_TIME: Duration = Duration::from_secs(1);
