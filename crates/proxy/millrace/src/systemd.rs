//! The protocol of the service manager: sd_notify(3), sd_watchdog_enabled(3), sd_listen_fds(3). It
//! consists of lines in datagrams to a Unix socket and needs no library. The environment is read
//! once, before any thread starts. A missing variable turns its part off.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_proxy::counters::Counters;

use crate::console;

/// The maximum length of a Unix socket path in bytes (unix(7): sun_path).
const ADDRESS_BYTES_MAX: usize = 108;
/// Checks of the workers per watchdog timeout, so that a worker may miss a check without the
/// service being restarted.
const CHECKS_PER_WATCHDOG: u32 = 3;
/// After this number of heartbeats without a reply, no more are sent to the workers. The number is
/// far below the capacity of a mailbox. Some service managers do not kill a process after the
/// timeout, so that heartbeats could fill the mailboxes.
const MISSED_MAX: u64 = 16;

/// The connection to the service manager, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Systemd {
    socket: Option<(UnixDatagram, SocketAddr)>,
    config: NotifyConfig,
}

/// The notification settings of the service manager. A successor inherits them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct NotifyConfig {
    /// The notification socket: a path, or `@` and an abstract name. Empty: none.
    pub(crate) notify: Vec<u8>,
    /// The watchdog timeout; zero: no watchdog.
    pub(crate) watchdog: Duration,
}

impl NotifyConfig {
    /// Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
    pub(crate) fn from_environment() -> Self {
        let text = |name| std::env::var(name).ok();
        let own = std::process::id().to_string();
        let is_meant = text("WATCHDOG_PID").is_none_or(|pid| pid == own);
        let watchdog = text("WATCHDOG_USEC").filter(|_| is_meant);
        Self {
            notify: std::env::var_os("NOTIFY_SOCKET")
                .map_or_else(Vec::new, |name| name.as_bytes().to_vec()),
            watchdog: watchdog
                .and_then(|time| time.parse().ok())
                .map_or(Duration::ZERO, Duration::from_micros),
        }
    }
}

impl Systemd {
    /// Creates the connection. Logs an address that cannot be used.
    pub(crate) fn new(config: NotifyConfig) -> Self {
        if config.notify.is_empty() {
            return Self::default();
        }
        let socket = address(&config.notify)
            .and_then(|address| Ok((UnixDatagram::unbound()?, address)))
            .and_then(|(socket, address)| socket.set_nonblocking(true).map(|()| (socket, address)));
        match socket {
            Ok(socket) => Self { socket: Some(socket), config },
            Err(error) => {
                console::log(&format!(
                    "NOTIFY_SOCKET: {error}; the service manager is not notified"
                ));
                Self::default()
            }
        }
    }

    /// Returns whether the notification socket has an abstract name.
    pub(crate) fn uses_abstract_socket(&self) -> bool {
        self.config.notify.starts_with(b"@")
    }

    /// Returns the settings for a successor.
    pub(crate) fn config(&self) -> &NotifyConfig {
        &self.config
    }

    /// Reports that the process serves. `status` is shown to operators.
    pub(crate) fn ready(&self, status: &str) {
        // MAINPID matters only after a takeover but is always true.
        self.notify(&format!("READY=1\nMAINPID={}\nSTATUS={status}", std::process::id()));
    }

    /// Reports that a reload begins. [`Systemd::ready`] ends it, whether it succeeded or not.
    pub(crate) fn reloading(&self) {
        let now_us = millrace_sys::monotonic_nanoseconds() / 1000;
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}\nSTATUS=reloading"));
    }

    /// Reports that the process drains and will exit.
    pub(crate) fn stopping(&self) {
        self.notify("STOPPING=1\nSTATUS=draining");
    }

    /// Reports that another process is now the main process of the service.
    pub(crate) fn set_main_process(&self, process: u32) {
        self.notify(&format!("MAINPID={process}"));
    }

    /// Stops all notifications: the successor sends them from now on.
    pub(crate) fn disable(&mut self) {
        *self = Self::default();
    }

    fn notify(&self, lines: &str) {
        let Some((socket, address)) = &self.socket else { return };
        // A service manager that is gone or too slow is not reported, since a line would repeat
        // each time.
        let _ = socket.send_to_addr(lines.as_bytes(), address);
    }
}

/// The watchdog: notifies the service manager as long as every worker replies.
#[derive(Debug)]
pub(crate) struct Watchdog {
    every: Duration,
    next: Instant,
    /// Consecutive heartbeats to which not every worker has replied; `<= MISSED_MAX`.
    missed: u64,
    /// The counter of replies of each worker when the last heartbeat was sent.
    counted: Vec<u64>,
}

impl Watchdog {
    /// Creates the watchdog; `None` if the service manager has not requested one.
    pub(crate) fn new(systemd: &Systemd) -> Option<Self> {
        let watchdog = systemd.config().watchdog;
        if systemd.socket.is_none() || watchdog.is_zero() {
            return None;
        }
        let every = watchdog / CHECKS_PER_WATCHDOG;
        Some(Self { every, next: Instant::now(), missed: 0, counted: Vec::new() })
    }

    /// Returns the time until the next check.
    pub(crate) fn time_left(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Checks the workers if it is time. If each has replied to the last heartbeat, notifies the
    /// service manager. Then `send_heartbeats` sends another heartbeat to each.
    pub(crate) fn check(
        &mut self,
        systemd: &Systemd,
        workers: &[Arc<Counters>],
        send_heartbeats: impl FnOnce(),
    ) {
        if !self.time_left().is_zero() {
            return;
        }
        self.next = Instant::now() + self.every;
        let counts: Vec<u64> = workers.iter().map(|worker| worker.watchdog_replies.get()).collect();
        let moved = |(before, now): (&u64, &u64)| now > before;
        if self.counted.iter().zip(&counts).all(moved) {
            systemd.notify("WATCHDOG=1");
            self.missed = 0;
        }
        if self.missed < MISSED_MAX {
            self.missed += 1;
            self.counted = counts;
            send_heartbeats();
        }
    }
}

/// Parses the value of NOTIFY_SOCKET.
fn address(name: &[u8]) -> io::Result<SocketAddr> {
    match name {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] if name.len() < ADDRESS_BYTES_MAX => {
            SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))
        }
        _ => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "unsupported address (expected: an absolute path or @NAME)",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> Vec<String> {
        socket.set_nonblocking(true).unwrap();
        let mut bytes = [0; 1024];
        let mut lines = Vec::new();
        while let Ok(count) = socket.recv(&mut bytes) {
            lines.push(String::from_utf8(bytes[..count].to_vec()).unwrap());
        }
        lines
    }

    fn manager(name: &str) -> (UnixDatagram, NotifyConfig) {
        let name = format!("millrace-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let notify = format!("@{name}").into_bytes();
        let config = NotifyConfig { notify, watchdog: Duration::from_nanos(3) };
        (UnixDatagram::bind_addr(&address).unwrap(), config)
    }

    #[test]
    fn notifications_reach_an_abstract_socket() {
        let (socket, config) = manager("notify");
        let mut systemd = Systemd::new(config);
        systemd.ready("serving");
        systemd.stopping();
        systemd.set_main_process(7);
        systemd.disable();
        systemd.ready("not sent");
        let own = format!("READY=1\nMAINPID={}\nSTATUS=serving", std::process::id());
        assert_eq!(received(&socket), [&own, "STOPPING=1\nSTATUS=draining", "MAINPID=7"]);
        let nowhere = NotifyConfig { notify: b"vsock:2:1".to_vec(), ..NotifyConfig::default() };
        Systemd::new(nowhere).ready("not sent either");
    }

    #[test]
    fn a_path_is_an_address_too() {
        let path = std::env::temp_dir().join(format!("millrace-notify-{}", std::process::id()));
        let socket = UnixDatagram::bind(&path).unwrap();
        let notify = path.as_os_str().as_bytes().to_vec();
        Systemd::new(NotifyConfig { notify, ..NotifyConfig::default() }).stopping();
        assert_eq!(received(&socket).len(), 1);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_watchdog_is_fed_only_while_every_worker_replies() {
        let (socket, config) = manager("watchdog");
        let systemd = Systemd::new(config);
        let mut watchdog = Watchdog::new(&systemd).unwrap();
        let workers = [Arc::<Counters>::default(), Arc::default()];
        let mut sent = 0;
        watchdog.check(&systemd, &workers, || sent += 1);
        // Before the first heartbeat no reply is missing.
        assert_eq!((sent, received(&socket).len()), (1, 1));
        for _ in 0..2 * MISSED_MAX {
            watchdog.check(&systemd, &workers, || sent += 1);
        }
        assert_eq!((sent, received(&socket).len()), (MISSED_MAX, 0));
    }
}
