//! Health checks: threads of the control plane send a request to each origin of a route with
//! `check` at an interval and publish failures in the workers' shared health. They touch no request
//! of a client. They end with the process.
//!
//! Each check has a timeout. There are several threads, so that stalled origins do not delay the
//! checks of others. Each thread takes the check that is due first.

use std::net::ToSocketAddrs;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_config::limits::Limits;
use millrace_config::{Config, Origin, OriginTls};
use millrace_proxy::SharedState;
use millrace_proxy::shared_health::HealthCheck;
use millrace_tls::{Aead, Clock, Provider, ServerName, Session, TlsError};

use crate::active_config::ActiveConfig;
use crate::console;
use crate::http::Connection;
use crate::program_error::ProgramError;
use crate::threads::{lock, spawn};

/// Limit of concurrent checks.
const THREADS_MAX: usize = 8;
/// Bytes of a response body that are read at most. The content does not matter.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// Time that a thread sleeps if no check is due.
const IDLE_WAIT: Duration = Duration::from_secs(3600);

/// The health checks of the configuration in force.
struct HealthChecks(Arc<Scheduler>);

struct Scheduler {
    shared: Arc<SharedState>,
    state: Mutex<ScheduleState>,
    /// Notified when a check may be due earlier than the threads expect.
    wake: Condvar,
}

#[derive(Default)]
struct ScheduleState {
    checks: Vec<ScheduledCheck>,
    limits: CheckLimits,
    /// `<= THREADS_MAX`
    threads: usize,
    /// The threads must end.
    is_ended: bool,
}

#[derive(Clone, Copy, Default)]
struct CheckLimits {
    interval: Duration,
    timeout: Duration,
    fails: u32,
    passes: u32,
}

impl CheckLimits {
    fn new(limits: &Limits) -> Self {
        Self {
            interval: Duration::from_millis(limits.check_interval_ms),
            timeout: Duration::from_millis(limits.check_timeout_ms),
            fails: limits.check_fails as u32,
            passes: limits.check_passes as u32,
        }
    }
}

/// A check, its schedule and its status.
struct ScheduledCheck {
    check: HealthCheck,
    due: Instant,
    is_running: bool,
    status: CheckStatus,
}

/// The status of a check. It becomes down after a number of consecutive failures and up after a
/// number of consecutive successes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CheckStatus {
    up: bool,
    /// Consecutive results that contradict `up`.
    contrary: u32,
}

impl CheckStatus {
    const UP: Self = Self { up: true, contrary: 0 };

    fn record(&mut self, passed: bool, rules: &CheckLimits) {
        if passed == self.up {
            self.contrary = 0;
            return;
        }
        self.contrary += 1;
        if self.contrary >= if self.up { rules.fails } else { rules.passes } {
            *self = Self { up: passed, contrary: 0 };
        }
    }
}

/// Starts the checks of the configuration in force and of those that replace it.
///
/// # Errors
/// If a thread cannot be started.
pub(crate) fn start(
    active_config: &ActiveConfig,
    shared: &Arc<SharedState>,
) -> Result<(), ProgramError> {
    let (shared, state) = (Arc::clone(shared), Mutex::default());
    let checks = HealthChecks(Arc::new(Scheduler { shared, state, wake: Condvar::new() }));
    checks.set_config(&active_config.config())?;
    active_config.on_change(move |config| {
        if let Err(error) = checks.set_config(config) {
            console::log(&error.to_string());
        }
    });
    Ok(())
}

impl HealthChecks {
    /// Applies another configuration. A check that is in both keeps its status.
    ///
    /// # Errors
    /// If a thread cannot be started. The configuration is applied nevertheless.
    fn set_config(&self, config: &Config) -> Result<(), ProgramError> {
        let checks = HealthCheck::of_config(config);
        let mut state = self.0.state();
        let rules = CheckLimits::new(&config.limits);
        state.limits = rules;
        let mut before = std::mem::take(&mut state.checks);
        let (now, count) = (Instant::now(), checks.len().max(1) as u32);
        // The checks are spread over the interval.
        let step = rules.interval / count;
        for (index, check) in (0u32..).zip(checks) {
            let known = before.iter().position(|scheduled| scheduled.check == check);
            let due = now + step * index;
            state.checks.push(match known {
                // A check scheduled with a longer interval must not wait for its end.
                Some(at) => {
                    let scheduled = before.swap_remove(at);
                    ScheduledCheck { due: scheduled.due.min(now + rules.interval), ..scheduled }
                }
                None => {
                    // The shared health may still have the status from before the check left the
                    // configuration.
                    self.0.shared.health.set_check_result(&check, true);
                    ScheduledCheck { check, due, is_running: false, status: CheckStatus::UP }
                }
            });
        }
        let wanted = state.checks.len().min(THREADS_MAX);
        while state.threads < wanted {
            let inner = Arc::clone(&self.0);
            spawn("health-check", move || inner.run())?;
            state.threads += 1;
        }
        self.0.wake.notify_all();
        Ok(())
    }
}

impl Drop for HealthChecks {
    /// Makes the threads end after their current check. Does not wait for them.
    fn drop(&mut self) {
        self.0.state().is_ended = true;
        self.0.wake.notify_all();
    }
}

impl Scheduler {
    fn state(&self) -> MutexGuard<'_, ScheduleState> {
        lock(&self.state)
    }

    /// Runs a thread.
    fn run(&self) {
        while let Some((check, timeout)) = self.wait_for_due() {
            let found = run_check(&check, timeout);
            let mut state = self.state();
            let rules = state.limits;
            // A reload may have removed the check meanwhile.
            let scheduled = state.checks.iter_mut().find(|scheduled| scheduled.check == check);
            let Some(scheduled) = scheduled else { continue };
            scheduled.is_running = false;
            scheduled.due = Instant::now() + rules.interval;
            let before = scheduled.status.up;
            scheduled.status.record(found.is_ok(), &rules);
            let up = scheduled.status.up;
            drop(state);
            if up != before {
                let why = found.err().map_or("passes".to_owned(), |why| format!("fails: {why}"));
                console::log(&format!("health check of {} {} {why}", check.name(), check.path));
            }
            // Published each time: a worker may have registered the origin since the last check.
            self.shared.health.set_check_result(&check, up);
        }
    }

    /// Waits for the check that is due first; `None`: the thread must end.
    fn wait_for_due(&self) -> Option<(HealthCheck, Duration)> {
        let mut state = self.state();
        loop {
            if state.is_ended {
                return None;
            }
            let now = Instant::now();
            let timeout = state.limits.timeout;
            let waiting = state.checks.iter_mut().filter(|scheduled| !scheduled.is_running);
            let wait = match waiting.min_by_key(|scheduled| scheduled.due) {
                Some(scheduled) if scheduled.due <= now => {
                    scheduled.is_running = true;
                    return Some((scheduled.check.clone(), timeout));
                }
                Some(scheduled) => scheduled.due - now,
                None => IDLE_WAIT,
            };
            let woken = self.wake.wait_timeout(state, wait);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Runs a check.
fn run_check(check: &HealthCheck, timeout: Duration) -> Result<(), String> {
    let (first, last) = check.statuses;
    match request_status(check, timeout) {
        Ok(status) if (first..=last).contains(&status) => Ok(()),
        Ok(status) => Err(format!("status {status}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Sends the request of a check and returns the status code of the final response.
fn request_status(check: &HealthCheck, timeout: Duration) -> std::io::Result<u16> {
    let mut connection = open(check, timeout)?;
    connection.write_all(&check.request(b"GET", false))?;
    let status = connection.read_origin_response()?.status();
    // Read the body so that the origin can close in order. An error does not change the result.
    let _ = connection.discard(BODY_BYTES_MAX);
    Ok(status)
}

/// Opens a connection to the origin of a check.
pub(crate) fn open(check: &HealthCheck, timeout: Duration) -> std::io::Result<Connection> {
    let mut connection = connect(&check.origin, Instant::now() + timeout)?;
    connection.write_all(&check.proxy_header())?;
    if let Some(tls) = &check.tls {
        let session = begin_session(tls, &check.origin).map_err(std::io::Error::other)?;
        connection.secure(session)?;
    }
    Ok(connection)
}

/// Begins a TLS session with an origin.
fn begin_session(tls: &OriginTls, origin: &Origin) -> Result<Session, TlsError> {
    let clock = Clock::default();
    clock.set(millrace_sys::time_of_day());
    let Origin::Tcp { host, .. } = origin else { unreachable!("a Unix socket has no TLS") };
    let name = ServerName::parse(tls.name.as_deref().unwrap_or(host));
    let name = name.expect("the configuration has checked the name");
    millrace_proxy::client_settings(tls, &Provider::new(Aead::fastest()), &clock).connect(name)
}

/// Connects to an origin. The system's resolver looks the name up for each check; `deadline` does
/// not bound the lookup.
fn connect(origin: &Origin, deadline: Instant) -> std::io::Result<Connection> {
    match origin {
        Origin::Tcp { host, port, .. } => {
            let addresses: Vec<_> = (host.as_str(), *port).to_socket_addrs()?.collect();
            Connection::to_tcp(&addresses, deadline)
        }
        Origin::Unix(path) => Connection::to_unix(path, deadline),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_config::{SendProxy, from_arguments};
    use std::io::{Read, Write};
    use std::net::TcpListener;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn check(origin: Origin) -> HealthCheck {
        let (path, host) = ("/up?full".to_owned(), "app.example".to_owned());
        HealthCheck {
            origin,
            path,
            host,
            send_proxy: SendProxy::Off,
            statuses: (200, 399),
            tls: None,
        }
    }

    fn here(listener: &TcpListener) -> Origin {
        let port = listener.local_addr().unwrap().port();
        Origin::Tcp { host: "127.0.0.1".to_owned(), port, tls: false }
    }

    /// Runs a check of an origin that sends `response`. Returns the result and the request.
    fn respond_with(response: &'static [u8]) -> (std::io::Result<u16>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let check = check(here(&listener));
        let origin = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut part = [0; 512];
                let count = stream.read(&mut part).unwrap();
                request.extend_from_slice(&part[..count]);
            }
            stream.write_all(response).unwrap();
            String::from_utf8(request).unwrap()
        });
        let result = request_status(&check, PATIENCE);
        (result, origin.join().unwrap())
    }

    #[test]
    fn a_check_is_one_plain_request() {
        let (status, request) = respond_with(b"HTTP/1.1 204 No Content\r\n\r\n");
        assert_eq!(status.unwrap(), 204);
        let wanted = "GET /up?full HTTP/1.1\r\nHost: app.example\r\n\
                      User-Agent: millrace-check\r\nConnection: close\r\n\r\n";
        assert_eq!(request, wanted);
        let (status, _) =
            respond_with(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(status.unwrap(), 200);
    }

    #[test]
    fn a_reload_with_a_shorter_interval_does_not_wait_for_the_end_of_a_longer_one() {
        let shared = SharedState::new(1, "test".to_owned(), None, None, |_| {}, None);
        let inner = Scheduler { shared, state: Mutex::default(), wake: Condvar::new() };
        let checks = HealthChecks(Arc::new(inner));
        // With this value no thread is started.
        checks.0.state().threads = THREADS_MAX;
        let check_every = |interval: &str| {
            let interval = format!("--limit=check_interval_ms={interval}");
            let arguments = ["boost", "--origin=http://127.0.0.1:1", "--check=/", &interval];
            checks.set_config(&from_arguments(arguments).unwrap()).unwrap();
        };
        check_every("1h");
        checks.0.state().checks[0].due = Instant::now() + Duration::from_secs(3600);
        check_every("1s");
        let due = checks.0.state().checks[0].due;
        assert!(due <= Instant::now() + Duration::from_secs(1));
    }

    #[test]
    fn malformed_responses_fail() {
        for response in [
            &b""[..],
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/2 200 OK\r\n\r\n",
            b"HTTP/1.1 2000 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nno field\r\n\r\n",
            b"SSH-2.0-x\r\n\r\n",
        ] {
            assert!(respond_with(response).0.is_err(), "{}", response.escape_ascii());
        }
    }

    #[test]
    fn silent_and_unreachable_origins_fail_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = check(here(&listener));
        let short = Duration::from_millis(50);
        assert!(request_status(&silent, short).is_err(), "the connection waits in the backlog");
        drop(listener);
        assert!(request_status(&silent, PATIENCE).is_err());
        let nowhere = check(Origin::Unix(std::path::Path::new("/nonexistent/socket").into()));
        assert!(request_status(&nowhere, PATIENCE).is_err());
    }

    #[test]
    fn consecutive_results_change_the_status() {
        let rules = CheckLimits { fails: 3, passes: 2, ..CheckLimits::default() };
        let mut status = CheckStatus::UP;
        let mut after = |results: &[bool]| {
            results.iter().for_each(|&passed| status.record(passed, &rules));
            status.up
        };
        assert!(after(&[false, false, true, false, false]));
        assert!(!after(&[false]));
        assert!(!after(&[true, false, true]));
        assert!(after(&[true]));
    }
}
