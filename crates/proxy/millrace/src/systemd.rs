//! What a service manager is told, and what it gives: sd_notify(3), sd_watchdog_enabled(3),
//! sd_listen_fds(3). The protocol is lines in a datagram to a Unix socket, which is little enough
//! to do without its library. The environment is read once, before any thread is started; a
//! variable that is not there turns its part off.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_proxy::counters::Counters;

use crate::console;

/// The longest address of a Unix socket, in bytes (unix(7): sun_path).
const ADDRESS_BYTES_MAX: usize = 108;
/// Looks at the workers within the time that the service manager waits: one that is late once is
/// not yet taken for dead.
const CHECKS_PER_WATCHDOG: u32 = 3;
/// Letters that a worker may leave unanswered before it is sent no more: far below what a mailbox
/// holds, for a process that nobody watches as closely as it asked to be watched.
const UNANSWERED_MAX: u64 = 16;

/// The service manager, or nobody.
#[derive(Debug, Default)]
pub(crate) struct Systemd {
    socket: Option<(UnixDatagram, SocketAddr)>,
    given: NotifyConfig,
}

/// What the service manager said to whom it started; a successor takes it over.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct NotifyConfig {
    /// Where it hears: a path, or `@` and a name in the abstract namespace. Empty: nowhere.
    pub(crate) notify: Vec<u8>,
    /// How long it waits for a sign of life before it takes the process for dead; zero: for ever.
    pub(crate) watchdog: Duration,
}

impl NotifyConfig {
    /// What the environment says: NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID.
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
    /// Who is told by what `given` says. An address that cannot be used is said aloud.
    pub(crate) fn new(given: NotifyConfig) -> Self {
        if given.notify.is_empty() {
            return Self::default();
        }
        let socket = address(&given.notify)
            .and_then(|address| Ok((UnixDatagram::unbound()?, address)))
            .and_then(|(socket, address)| socket.set_nonblocking(true).map(|()| (socket, address)));
        match socket {
            Ok(socket) => Self { socket: Some(socket), given },
            Err(error) => {
                console::log(&format!("NOTIFY_SOCKET: {error}; nobody is notified"));
                Self::default()
            }
        }
    }

    /// Whether it hears at a socket of the abstract namespace.
    pub(crate) fn uses_abstract_socket(&self) -> bool {
        self.given.notify.starts_with(b"@")
    }

    /// What a successor needs to go on.
    pub(crate) fn config(&self) -> &NotifyConfig {
        &self.given
    }

    /// The process serves. `status` is for people.
    pub(crate) fn ready(&self, status: &str) {
        // The process's own number is news only after a takeover, and true in any case.
        self.notify(&format!("READY=1\nMAINPID={}\nSTATUS={status}", std::process::id()));
    }

    /// A reload begins; [`Systemd::ready`] ends it, however it went.
    pub(crate) fn reloading(&self) {
        let now_us = millrace_sys::monotonic_nanoseconds() / 1000;
        self.notify(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}\nSTATUS=reloading"));
    }

    /// The process ends, in its own time.
    pub(crate) fn stopping(&self) {
        self.notify("STOPPING=1\nSTATUS=draining");
    }

    /// Another process is the service's main one from now on.
    pub(crate) fn set_main_process(&self, process: u32) {
        self.notify(&format!("MAINPID={process}"));
    }

    /// Whatever is to be told is for another process to tell.
    pub(crate) fn disable(&mut self) {
        *self = Self::default();
    }

    fn notify(&self, lines: &str) {
        let Some((socket, address)) = &self.socket else { return };
        // One who does not listen any more, or not fast enough, is not worth a line at each time.
        let _ = socket.send_to_addr(lines.as_bytes(), address);
    }
}

/// Signs of life for the service manager: only while every worker turns.
#[derive(Debug)]
pub(crate) struct Watchdog {
    every: Duration,
    next: Instant,
    /// Letters in a row that not every worker has answered; `<= UNANSWERED_MAX`.
    unanswered: u64,
    /// How many each had counted when its last letter was sent.
    counted: Vec<u64>,
}

impl Watchdog {
    /// For what the service manager asks of us; `None`: nothing.
    pub(crate) fn new(systemd: &Systemd) -> Option<Self> {
        let watchdog = systemd.config().watchdog;
        if systemd.socket.is_none() || watchdog.is_zero() {
            return None;
        }
        let every = watchdog / CHECKS_PER_WATCHDOG;
        Some(Self { every, next: Instant::now(), unanswered: 0, counted: Vec::new() })
    }

    /// The time until the next look.
    pub(crate) fn time_left(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// If it is time: tells the service manager that every worker answered its last letter, or
    /// tells it nothing; and has `ask` send each worker another.
    pub(crate) fn check(
        &mut self,
        systemd: &Systemd,
        workers: &[Arc<Counters>],
        ask: impl FnOnce(),
    ) {
        if !self.time_left().is_zero() {
            return;
        }
        self.next = Instant::now() + self.every;
        let counts: Vec<u64> = workers.iter().map(|worker| worker.watchdog_replies.get()).collect();
        let moved = |(before, now): (&u64, &u64)| now > before;
        if self.counted.iter().zip(&counts).all(moved) {
            systemd.notify("WATCHDOG=1");
            self.unanswered = 0;
        }
        if self.unanswered < UNANSWERED_MAX {
            self.unanswered += 1;
            self.counted = counts;
            ask();
        }
    }
}

/// The address that NOTIFY_SOCKET names.
fn address(name: &[u8]) -> io::Result<SocketAddr> {
    match name {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] if name.len() < ADDRESS_BYTES_MAX => {
            SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))
        }
        _ => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "is neither a path from / on nor a name behind @",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(socket: &UnixDatagram) -> Vec<String> {
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
        let given = NotifyConfig { notify, watchdog: Duration::from_nanos(3) };
        (UnixDatagram::bind_addr(&address).unwrap(), given)
    }

    #[test]
    fn what_is_told_reaches_an_abstract_socket() {
        let (socket, given) = manager("told");
        let mut systemd = Systemd::new(given);
        systemd.ready("serving");
        systemd.stopping();
        systemd.set_main_process(7);
        systemd.disable();
        systemd.ready("nobody hears this");
        let own = format!("READY=1\nMAINPID={}\nSTATUS=serving", std::process::id());
        assert_eq!(heard(&socket), [&own, "STOPPING=1\nSTATUS=draining", "MAINPID=7"]);
        let nowhere = NotifyConfig { notify: b"vsock:2:1".to_vec(), ..NotifyConfig::default() };
        Systemd::new(nowhere).ready("nobody hears this either");
    }

    #[test]
    fn a_path_is_an_address_too() {
        let path = std::env::temp_dir().join(format!("millrace-notify-{}", std::process::id()));
        let socket = UnixDatagram::bind(&path).unwrap();
        let notify = path.as_os_str().as_bytes().to_vec();
        Systemd::new(NotifyConfig { notify, ..NotifyConfig::default() }).stopping();
        assert_eq!(heard(&socket).len(), 1);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_watchdog_is_fed_only_while_every_worker_answers() {
        let (socket, given) = manager("watchdog");
        let systemd = Systemd::new(given);
        let mut watchdog = Watchdog::new(&systemd).unwrap();
        let workers = [Arc::<Counters>::default(), Arc::default()];
        let mut sent = 0;
        watchdog.check(&systemd, &workers, || sent += 1);
        // At the first look nothing was asked yet, so nobody owes an answer.
        assert_eq!((sent, heard(&socket).len()), (1, 1));
        for _ in 0..2 * UNANSWERED_MAX {
            watchdog.check(&systemd, &workers, || sent += 1);
        }
        assert_eq!((sent, heard(&socket).len()), (UNANSWERED_MAX, 0));
    }
}
