//! The engine over user-level connection tracking (crates/uselect/uselect). The kernel writes the
//! readiness of connections to shared memory, and the engine reads it there. A wait that finds
//! events in memory makes no system call, unless the epoll instance is due (see below).
//!
//! Connections are tracked in lean mode: the kernel only sets readiness bits, and this process
//! clears them. That suffices for an engine over edges, which remembers each event, and receives
//! and sends until nothing is left.
//!
//! Descriptors that are not tracked, including listeners, are in an epoll instance of the watcher.
//! While memory shows events, that instance is polled only after every [`KERNEL_CHECK_WAITS_MAX`]
//! waits, or [`KERNEL_CHECK_TIME_MAX`] after the last poll.

mod expected_bytes;

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use millrace_sys::{Errno, Interest, Readiness, Result};
use uselect::{Backend, DescriptorEvent, SocketState, Tracker, TrackingMode, Watcher, bits};

use expected_bytes::ExpectedBytes;

use crate::limits::{EVENTS_MAX, KERNEL_CHECK_TIME_MAX, KERNEL_CHECK_WAITS_MAX};
use crate::{Error, PathEstimate, ReadinessEngine, Unsupported, Watch, WatchEvent};

/// The engine over user-level connection tracking.
pub type UselectEngine = ReadinessEngine<UselectWatch>;

/// The registration of this process, made by the first call of [`register_process`]. All workers
/// share it.
static TRACKER: OnceLock<std::result::Result<Tracker, uselect::Error>> = OnceLock::new();

/// Registers this process with the daemon that listens at `path`. Only the first call registers;
/// later calls return the same result. Waits spin on the shared memory for up to `spin` before they
/// sleep, if recent spins have found events; 0 disables spinning.
///
/// # Errors
/// The reason why tracking is not available, as text for the operator.
pub fn register_process(path: &Path, spin: Duration) -> std::result::Result<(), uselect::Error> {
    let tracker = TRACKER.get_or_init(|| Tracker::register(path, TrackingMode::Lean));
    let tracker = tracker.as_ref().map_err(|error| *error)?;
    tracker.set_kernel_check_interval(KERNEL_CHECK_WAITS_MAX, KERNEL_CHECK_TIME_MAX);
    tracker.set_spin(spin);
    Ok(())
}

/// Returns whether engines read readiness from memory: this process was registered by
/// [`register_process`], and the daemon has not ended.
pub fn is_tracked() -> bool {
    tracker().is_some_and(|tracker| tracker.backend() != Backend::Calls)
}

/// Sleeps until the daemon of [`register_process`] ends. Engines use system calls from then on.
/// Returns at once if the process was not registered.
pub fn wait_for_daemon_end() {
    if let Some(tracker) = tracker() {
        tracker.wait_for_daemon_end();
    }
}

fn tracker() -> Option<&'static Tracker> {
    TRACKER.get()?.as_ref().ok()
}

/// The watch over shared memory.
pub struct UselectWatch {
    tracker: Tracker,
    watcher: Watcher,
    events: Vec<DescriptorEvent>,
    /// Number of `events` that the last wait found.
    ready_count: usize,
    /// Number of events of the last wait that were returned: `returned_count <= ready_count`.
    returned_count: usize,
    expected_bytes: ExpectedBytes,
    /// The time at which the last wait ended. It is updated only while connections expect bytes.
    now: Instant,
}

/// The interest in a connection.
const CONNECTION: u32 = bits::IN | bits::OUT | bits::PRI | bits::RDHUP | bits::EDGE;
/// The interest in a listener.
const LISTENER: u32 = bits::IN | bits::EXCLUSIVE | bits::EDGE;

impl Watch for UselectWatch {
    /// Creates an empty set for the process that [`register_process`] has registered.
    ///
    /// # Errors
    /// [`Error::Unsupported`] unless [`register_process`] has succeeded before.
    fn new() -> std::result::Result<Self, Error> {
        let tracker = tracker().ok_or(Error::Unsupported(Unsupported::Untracked))?;
        let watcher = Watcher::new(tracker).map_err(|_| Error::OutOfDescriptors)?;
        let events = vec![DescriptorEvent::default(); EVENTS_MAX];
        Ok(Self {
            tracker: tracker.clone(),
            watcher,
            events,
            ready_count: 0,
            returned_count: 0,
            expected_bytes: ExpectedBytes::default(),
            now: Instant::now(),
        })
    }

    /// Sockets that cannot be tracked (Unix, UDP) are in the watcher's epoll instance.
    fn add_connection(&mut self, fd: BorrowedFd<'_>, data: u64) -> Result<()> {
        self.tracker.track(fd.as_raw_fd());
        self.watcher.add(fd.as_raw_fd(), CONNECTION, data)
    }

    fn add_listener(&mut self, fd: BorrowedFd<'_>, data: u64) -> Result<()> {
        self.watcher.add(fd.as_raw_fd(), LISTENER, data)
    }

    fn remove(&mut self, fd: BorrowedFd<'_>, data: u64) {
        self.expected_bytes.remove(data);
        self.watcher.remove(fd.as_raw_fd()).expect("a watched descriptor is registered");
        self.tracker.untrack(fd.as_raw_fd());
    }

    fn close(&mut self, fd: OwnedFd, data: u64) {
        self.expected_bytes.remove(data);
        self.watcher.remove_closing(fd.as_raw_fd());
        self.tracker.untrack(fd.as_raw_fd());
        drop(fd);
    }

    fn notify_unwritable(&mut self, fd: BorrowedFd<'_>) {
        self.watcher.report_short_send(fd.as_raw_fd());
    }

    /// Returns the estimate that the kernel wrote at the connection's last event, or `None` if it
    /// has written none yet.
    fn path_estimate(&self, fd: BorrowedFd<'_>) -> Option<PathEstimate> {
        let SocketState { rtt_us, cwnd: window, .. } = self.tracker.state(fd.as_raw_fd())?;
        (rtt_us > 0 && window > 0).then_some(PathEstimate { rtt_us, window })
    }

    const USES_EXPECTED_BYTES: bool = true;

    fn expect_bytes(&mut self, fd: BorrowedFd<'_>, data: u64, bytes: u64) {
        self.expected_bytes.begin(&self.tracker, fd.as_raw_fd(), data, bytes);
    }

    fn wait<'a>(
        &mut self,
        wait_max: Option<Duration>,
        _interests: impl Iterator<Item = Interest<'a>>,
    ) {
        self.returned_count = 0;
        if !self.expected_bytes.has_active() {
            self.ready_count = self.poll_events(wait_max);
            return;
        }
        let left = self.expected_bytes.time_left(Instant::now());
        self.ready_count = self.poll_events(wait_max.into_iter().chain(left).min());
        self.now = Instant::now();
        if self.expected_bytes.end_overdue(&self.tracker, self.now) && self.ready_count == 0 {
            self.ready_count = self.poll_events(Some(Duration::ZERO));
        }
    }

    fn next_event(&mut self) -> Option<(u64, WatchEvent)> {
        (self.returned_count < self.ready_count).then(|| {
            self.returned_count += 1;
            let event = self.events[self.returned_count - 1];
            let readiness = Readiness::from_bits(event.events);
            if readiness.is_readable() {
                self.expected_bytes.handle_edge(&self.tracker, event.data, self.now);
            }
            (event.data, WatchEvent::Ready(readiness))
        })
    }
}

impl UselectWatch {
    fn poll_events(&mut self, wait_max: Option<Duration>) -> usize {
        match self.watcher.wait(&mut self.events, wait_max, None) {
            Ok(found) => found,
            Err(Errno::INTR) => 0,
            Err(error) => panic!("uselect wait: {error}"),
        }
    }
}

/// Ends the tracking of all descriptors, before the engine closes them.
impl Drop for UselectWatch {
    fn drop(&mut self) {
        self.watcher.untrack_all();
    }
}
