//! Health checks: threads of the control plane ask each origin of a route with `check` for a path
//! now and then, and say on the workers' board who failed. They touch no request, and nothing waits
//! for them: the process ends under them.
//!
//! A check ends in its time, but one thread would let origins that stall delay the checks of those
//! that do not: there are a few, and each takes the check that is due first.

use std::net::ToSocketAddrs;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_config::limits::Limits;
use millrace_config::{Config, Origin};
use millrace_proxy::Shared;
use millrace_proxy::shared_health::Check;

use crate::failure::Failure;
use crate::http::Connection;
use crate::print;
use crate::reload::Force;
use crate::threads::{lock, spawn};

/// Checks that are under way at once.
const THREADS_MAX: usize = 8;
/// The most that is read of a response after its head; what follows is of no interest.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// How long a thread sleeps where nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

/// The checks of the configuration in force.
struct HealthChecks(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// Something is due earlier than a thread may think.
    wake: Condvar,
}

#[derive(Default)]
struct State {
    targets: Vec<Target>,
    rules: Rules,
    /// `<= THREADS_MAX`
    threads: usize,
    /// Nobody is interested any more.
    ended: bool,
}

#[derive(Clone, Copy, Default)]
struct Rules {
    interval: Duration,
    timeout: Duration,
    fails: u32,
    passes: u32,
}

impl Rules {
    fn new(limits: &Limits) -> Self {
        Self {
            interval: Duration::from_millis(limits.check_interval_ms),
            timeout: Duration::from_millis(limits.check_timeout_ms),
            fails: limits.check_fails as u32,
            passes: limits.check_passes as u32,
        }
    }
}

/// One check and what it found so far.
struct Target {
    check: Check,
    due: Instant,
    under_way: bool,
    verdict: Verdict,
}

/// Up until so many checks in a row failed, down until so many passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Verdict {
    up: bool,
    /// Results in a row that say otherwise.
    against: u32,
}

impl Verdict {
    const UP: Self = Self { up: true, against: 0 };

    fn take(&mut self, passed: bool, rules: &Rules) {
        if passed == self.up {
            self.against = 0;
            return;
        }
        self.against += 1;
        if self.against >= if self.up { rules.fails } else { rules.passes } {
            *self = Self { up: passed, against: 0 };
        }
    }
}

/// Checks what the configuration in force says, and whatever comes after it.
///
/// # Errors
/// When a thread cannot be started.
pub(crate) fn start(force: &Force, shared: &Arc<Shared>) -> Result<(), Failure> {
    let (shared, state) = (Arc::clone(shared), Mutex::default());
    let checks = HealthChecks(Arc::new(Inner { shared, state, wake: Condvar::new() }));
    checks.set_config(&force.config())?;
    force.follow(move |config| {
        if let Err(failure) = checks.set_config(config) {
            print::error(&failure.to_string());
        }
    });
    Ok(())
}

impl HealthChecks {
    /// Goes on with another configuration. Checks that stand in both keep what they found.
    ///
    /// # Errors
    /// When a thread cannot be started; the configuration is in force all the same.
    fn set_config(&self, config: &Config) -> Result<(), Failure> {
        let checks = Check::of_config(config);
        let mut state = self.0.state();
        let rules = Rules::new(&config.limits);
        state.rules = rules;
        let mut before = std::mem::take(&mut state.targets);
        let (now, count) = (Instant::now(), checks.len().max(1) as u32);
        // They begin spread over an interval, and stay so.
        let step = rules.interval / count;
        for (index, check) in (0u32..).zip(checks) {
            let known = before.iter().position(|target| target.check == check);
            let due = now + step * index;
            state.targets.push(match known {
                // What was due within a longer interval does not wait for its end.
                Some(at) => {
                    let target = before.swap_remove(at);
                    Target { due: target.due.min(now + rules.interval), ..target }
                }
                None => {
                    // The board may remember what it found before it left the configuration.
                    self.0.shared.board.set_check(&check, true);
                    Target { check, due, under_way: false, verdict: Verdict::UP }
                }
            });
        }
        let wanted = state.targets.len().min(THREADS_MAX);
        while state.threads < wanted {
            let inner = Arc::clone(&self.0);
            spawn("health-check", move || inner.work())?;
            state.threads += 1;
        }
        self.0.wake.notify_all();
        Ok(())
    }
}

impl Drop for HealthChecks {
    /// Lets the threads end, each after the check that it is at, and waits for none.
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.wake.notify_all();
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The life of a thread.
    fn work(&self) {
        while let Some((check, timeout)) = self.next() {
            let found = examine(&check, timeout);
            let mut state = self.state();
            let rules = state.rules;
            // A reload may have taken it away meanwhile.
            let target = state.targets.iter_mut().find(|target| target.check == check);
            let Some(target) = target else { continue };
            target.under_way = false;
            target.due = Instant::now() + rules.interval;
            let before = target.verdict.up;
            target.verdict.take(found.is_ok(), &rules);
            let up = target.verdict.up;
            drop(state);
            if up != before {
                let why = found.err().map_or("passes".to_owned(), |why| format!("fails: {why}"));
                print::error(&format!("health check of {} {} {why}", check.name(), check.path));
            }
            // Said each time: a worker may have taken it over since the last.
            self.shared.board.set_check(&check, up);
        }
    }

    /// Waits for the check that is due first; `None`: there will be none.
    fn next(&self) -> Option<(Check, Duration)> {
        let mut state = self.state();
        loop {
            if state.ended {
                return None;
            }
            let now = Instant::now();
            let timeout = state.rules.timeout;
            let waiting = state.targets.iter_mut().filter(|target| !target.under_way);
            let wait = match waiting.min_by_key(|target| target.due) {
                Some(target) if target.due <= now => {
                    target.under_way = true;
                    return Some((target.check.clone(), timeout));
                }
                Some(target) => target.due - now,
                None => IDLE,
            };
            let woken = self.wake.wait_timeout(state, wait);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Whether the origin is well, or why not.
fn examine(check: &Check, timeout: Duration) -> Result<(), String> {
    let (first, last) = check.statuses;
    match ask(check, timeout) {
        Ok(status) if (first..=last).contains(&status) => Ok(()),
        Ok(status) => Err(format!("status {status}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Asks, and gives the status of the final response.
fn ask(check: &Check, timeout: Duration) -> std::io::Result<u16> {
    let mut connection = connect(&check.origin, Instant::now() + timeout)?;
    connection.write_all(&check.request())?;
    let status = connection.read_origin_response()?.status();
    // The rest is read so that the origin can end in order; how that goes decides nothing.
    let _ = connection.discard(BODY_BYTES_MAX);
    Ok(status)
}

/// Connects to an origin. Names are looked up each time, by the system's resolver and in its time.
fn connect(origin: &Origin, deadline: Instant) -> std::io::Result<Connection> {
    match origin {
        Origin::Tcp { host, port } => {
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

    fn check(origin: Origin) -> Check {
        let (path, host) = ("/up?full".to_owned(), "app.example".to_owned());
        Check { origin, path, host, send_proxy: SendProxy::Off, statuses: (200, 399) }
    }

    fn here(listener: &TcpListener) -> Origin {
        let port = listener.local_addr().unwrap().port();
        Origin::Tcp { host: "127.0.0.1".to_owned(), port }
    }

    /// Asks an origin that answers one connection with `answer`; gives what came of it and what it
    /// was sent.
    fn asked(answer: &'static [u8]) -> (std::io::Result<u16>, String) {
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
            stream.write_all(answer).unwrap();
            String::from_utf8(request).unwrap()
        });
        let result = ask(&check, PATIENCE);
        (result, origin.join().unwrap())
    }

    #[test]
    fn a_check_is_one_plain_request() {
        let (status, request) = asked(b"HTTP/1.1 204 No Content\r\n\r\n");
        assert_eq!(status.unwrap(), 204);
        let wanted = "GET /up?full HTTP/1.1\r\nHost: app.example\r\n\
                      User-Agent: millrace-check\r\nConnection: close\r\n\r\n";
        assert_eq!(request, wanted);
        let (status, _) =
            asked(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(status.unwrap(), 200);
    }

    #[test]
    fn a_reload_with_a_shorter_interval_does_not_wait_for_the_end_of_a_longer_one() {
        let shared = Shared::new(1, "test".to_owned(), None, None, |_| {}, None);
        let inner = Inner { shared, state: Mutex::default(), wake: Condvar::new() };
        let checks = HealthChecks(Arc::new(inner));
        // So none is started, and nobody is asked.
        checks.0.state().threads = THREADS_MAX;
        let check_every = |interval: &str| {
            let interval = format!("--limit=check_interval_ms={interval}");
            let words = ["boost", "--origin=http://127.0.0.1:1", "--check=/", &interval];
            checks.set_config(&from_arguments(words).unwrap()).unwrap();
        };
        check_every("1h");
        checks.0.state().targets[0].due = Instant::now() + Duration::from_secs(3600);
        check_every("1s");
        let due = checks.0.state().targets[0].due;
        assert!(due <= Instant::now() + Duration::from_secs(1));
    }

    #[test]
    fn what_is_no_answer_fails() {
        for answer in [
            &b""[..],
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/2 200 OK\r\n\r\n",
            b"HTTP/1.1 2000 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nno field\r\n\r\n",
            b"SSH-2.0-x\r\n\r\n",
        ] {
            assert!(asked(answer).0.is_err(), "{}", answer.escape_ascii());
        }
    }

    #[test]
    fn silence_and_closed_doors_fail_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = check(here(&listener));
        let short = Duration::from_millis(50);
        assert!(ask(&silent, short).is_err(), "its connection waits in the backlog");
        drop(listener);
        assert!(ask(&silent, PATIENCE).is_err());
        let nowhere = check(Origin::Unix(std::path::Path::new("/nonexistent/socket").into()));
        assert!(ask(&nowhere, PATIENCE).is_err());
    }

    #[test]
    fn so_many_in_a_row_turn_the_verdict() {
        let rules = Rules { fails: 3, passes: 2, ..Rules::default() };
        let mut verdict = Verdict::UP;
        let mut after = |results: &[bool]| {
            results.iter().for_each(|&passed| verdict.take(passed, &rules));
            verdict.up
        };
        assert!(after(&[false, false, true, false, false]));
        assert!(!after(&[false]));
        assert!(!after(&[true, false, true]));
        assert!(after(&[true]));
    }
}
