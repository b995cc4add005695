//! Tests whether origins respond to pipelined requests in order, before workers pipeline requests
//! to them (docs/design/offload.md). A thread of the control plane tests each origin once. It
//! repeats a test that could not be made, such as that of an origin that does not respond yet.
//!
//! The test sends HEAD and GET in turn, all before the first response. Only responses to GET have
//! bodies. So a response too many, a missing one, and two in the wrong order break the framing of
//! those that follow.

use std::io::ErrorKind;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_config::Config;
use millrace_http1::{Framing, Method, Version, connection_options, response_framing};
use millrace_proxy::SharedState;
use millrace_proxy::shared_health::{HealthCheck, PipelineState};

use crate::active_config::ActiveConfig;
use crate::console;
use crate::health_checks;
use crate::http::Connection;
use crate::program_error::ProgramError;
use crate::threads::{lock, spawn};

/// The methods of the requests that are sent together.
const METHODS: [&[u8]; 6] = [b"HEAD", b"GET", b"HEAD", b"GET", b"GET", b"HEAD"];
/// How long no byte may arrive after the last response, unless the connection ends before.
const QUIET: Duration = Duration::from_millis(200);
/// Bytes of a body. With a longer one the origin cannot be tested.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// The tests of the configuration in force.
struct PipelineTests {
    shared: Arc<SharedState>,
    schedule: Mutex<Schedule>,
    /// Notified when the configuration has changed.
    wake: Condvar,
}

#[derive(Default)]
struct Schedule {
    /// The checks whose requests test the origins.
    checks: Vec<HealthCheck>,
    interval: Duration,
    timeout: Duration,
    has_thread: bool,
    has_changed: bool,
}

/// The result of a test, with its reason.
#[derive(PartialEq, Eq, Debug)]
enum TestResult {
    Passed,
    Failed(String),
    /// The test says nothing about the origin.
    Undecided(String),
}

/// Starts the tests of the configuration in force and of those that replace it.
///
/// # Errors
/// If the thread cannot be started.
pub(crate) fn start(
    active_config: &ActiveConfig,
    shared: &Arc<SharedState>,
) -> Result<(), ProgramError> {
    let tests = Arc::new(PipelineTests {
        shared: Arc::clone(shared),
        schedule: Mutex::default(),
        wake: Condvar::new(),
    });
    set_config(&tests, &active_config.config())?;
    active_config.on_change(move |config| {
        if let Err(error) = set_config(&tests, config) {
            console::log(&error.to_string());
        }
    });
    Ok(())
}

/// Applies a configuration. The thread starts with the first one that pipelines requests.
fn set_config(tests: &Arc<PipelineTests>, config: &Config) -> Result<(), ProgramError> {
    let mut schedule = lock(&tests.schedule);
    schedule.checks = HealthCheck::of_pipelining(config);
    schedule.interval = Duration::from_millis(config.limits.check_interval_ms);
    schedule.timeout = Duration::from_millis(config.limits.check_timeout_ms);
    schedule.has_changed = true;
    if !schedule.has_thread && !schedule.checks.is_empty() {
        let tests = Arc::clone(tests);
        spawn("pipeline-tests", move || tests.run())?;
        schedule.has_thread = true;
    }
    tests.wake.notify_all();
    Ok(())
}

impl PipelineTests {
    /// Tests the origins that are not tested yet, again and again, until the process ends.
    fn run(&self) {
        // The reason why each undecided test was repeated, for the log.
        let mut reasons: Vec<(HealthCheck, String)> = Vec::new();
        loop {
            let (checks, timeout) = self.begin_round();
            let states = self.shared.health.pipelining();
            for check in checks {
                if states.get(&check.name()) != Some(&PipelineState::Untested) {
                    continue;
                }
                let name = check.name();
                match test(&check, timeout) {
                    TestResult::Passed => self.shared.health.permit_pipelining(&check.origin),
                    TestResult::Failed(why) => {
                        console::log(&format!("origin {name}: no request is pipelined: {why}"));
                        self.shared.health.refuse_pipelining(&check.origin);
                    }
                    TestResult::Undecided(why) => {
                        let reason = (check, why);
                        if !reasons.contains(&reason) {
                            let why = &reason.1;
                            console::log(&format!("origin {name}: cannot test pipelining: {why}"));
                            reasons.push(reason);
                        }
                    }
                }
            }
            self.wait();
        }
    }

    fn begin_round(&self) -> (Vec<HealthCheck>, Duration) {
        let mut schedule = lock(&self.schedule);
        schedule.has_changed = false;
        (schedule.checks.clone(), schedule.timeout)
    }

    /// Waits until the configuration has changed. While an origin is untested, waits for one
    /// interval at most.
    fn wait(&self) {
        let states = self.shared.health.pipelining();
        let schedule = lock(&self.schedule);
        let is_untested = |check: &HealthCheck| {
            states.get(&check.name()).is_none_or(|state| *state == PipelineState::Untested)
        };
        let wait = match schedule.checks.iter().any(is_untested) {
            true => schedule.interval,
            false => Duration::MAX,
        };
        let waited = self.wake.wait_timeout_while(schedule, wait, |schedule| !schedule.has_changed);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Tests an origin.
fn test(check: &HealthCheck, timeout: Duration) -> TestResult {
    let undecided = |error: std::io::Error| TestResult::Undecided(error.to_string());
    let mut connection = match health_checks::open(check, timeout) {
        Ok(connection) => connection,
        Err(error) => return undecided(error),
    };
    let requests: Vec<u8> = METHODS.iter().flat_map(|it| check.request(it, true)).collect();
    if let Err(error) = connection.write_all(&requests) {
        return undecided(error);
    }
    let mut lengths = Vec::new();
    for method in METHODS.map(Method::from_bytes) {
        match read_response(&mut connection, method, true) {
            Ok(length) => lengths.push((method, length)),
            Err(result) => return result,
        }
    }
    if lengths.contains(&(Method::Get, 0)) {
        let path = &check.path;
        return TestResult::Undecided(format!(
            "the response to GET {path} has no body, which would show the order of responses \
             (expected: check with a path whose response has one)"
        ));
    }
    // A response too many would be that to this request.
    let last = connection
        .write_all(&check.request(b"HEAD", false))
        .map_err(undecided)
        .and_then(|()| read_response(&mut connection, Method::Head, false));
    connection.set_deadline(Instant::now() + QUIET);
    match last.map(|_| connection.discard(1)) {
        // The connection has ended, or is silent.
        Ok(Err(_)) => TestResult::Passed,
        Ok(Ok(())) => TestResult::Failed("bytes follow the last response".to_owned()),
        Err(result) => result,
    }
}

/// Reads a response whose connection persists, or that is the last. Returns the length of its body.
fn read_response(
    connection: &mut Connection,
    method: Method,
    persists: bool,
) -> Result<usize, TestResult> {
    let of_error = |error: std::io::Error| match error.kind() {
        ErrorKind::InvalidData => TestResult::Failed(format!("a malformed response: {error}")),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
            TestResult::Failed("the connection ended before a response".to_owned())
        }
        _ => TestResult::Undecided(error.to_string()),
    };
    let head = connection.read_origin_response().map_err(of_error)?;
    let options = connection_options(&head);
    if head.version() != Version::Http11 {
        return Err(TestResult::Failed("a response of HTTP/1.0".to_owned()));
    }
    if persists && !options.is_persistent(head.version()) {
        return Err(TestResult::Failed("the origin closes its connections".to_owned()));
    }
    let framing = response_framing(&head, method)
        .map_err(|error| TestResult::Failed(format!("a malformed response: {error}")))?;
    if framing == Framing::UntilClose {
        return Err(TestResult::Failed("a response without a length".to_owned()));
    }
    if matches!(framing, Framing::Length(length) if length > BODY_BYTES_MAX as u64) {
        return Err(TestResult::Undecided("the body is too large for the test".to_owned()));
    }
    let body = connection.read_framed_body(framing, BODY_BYTES_MAX).map_err(of_error)?;
    Ok(body.len())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use millrace_config::{Origin, SendProxy};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);
    const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n";
    const GET: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage";

    fn check_of(port: u16) -> HealthCheck {
        HealthCheck {
            origin: Origin::Tcp { host: "127.0.0.1".to_owned(), port, tls: false },
            path: "/page".to_owned(),
            host: "app.example".to_owned(),
            send_proxy: SendProxy::Off,
            statuses: (200, 599),
            tls: None,
        }
    }

    /// Tests an origin that sends `first` for the requests that are sent together, and `last` for
    /// the last request, unless that is empty. Then it closes the connection.
    fn test_origin(first: &str, last: &str) -> TestResult {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let check = check_of(listener.local_addr().unwrap().port());
        let responses = [(METHODS.len(), first.to_owned()), (1, last.to_owned())];
        let origin = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for (count, responses) in responses.into_iter().filter(|(_, it)| !it.is_empty()) {
                let mut requests = Vec::new();
                while requests.windows(4).filter(|it| it == b"\r\n\r\n").count() < count {
                    let mut part = [0; 512];
                    match stream.read(&mut part) {
                        // The test has ended.
                        Ok(0) | Err(_) => return,
                        Ok(count) => requests.extend_from_slice(&part[..count]),
                    }
                }
                stream.write_all(responses.as_bytes()).unwrap();
            }
        });
        let result = test(&check, PATIENCE);
        origin.join().unwrap();
        result
    }

    fn together(parts: [&str; 6]) -> String {
        parts.concat()
    }

    #[test]
    fn an_origin_that_responds_in_order_passes() {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npage\r\n0\r\n\r\n";
        let early = format!("HTTP/1.1 103 Early Hints\r\n\r\n{HEAD}");
        let responses = together([&early, chunked, HEAD, GET, GET, HEAD]);
        assert_eq!(test_origin(&responses, HEAD), TestResult::Passed);
    }

    #[test]
    fn an_origin_that_miscounts_fails() {
        let old = GET.replace("HTTP/1.1", "HTTP/1.0");
        let closing = GET.replace("OK\r\n", "OK\r\nConnection: close\r\n");
        let endless = "HTTP/1.1 200 OK\r\n\r\npage";
        for (name, responses) in [
            ("swapped", [GET, HEAD, HEAD, GET, GET, HEAD]),
            ("HEAD with a body", [HEAD, GET, GET, GET, GET, HEAD]),
            ("one too many", [HEAD, GET, GET, HEAD, GET, GET]),
            ("repeated", [HEAD, HEAD, GET, HEAD, GET, GET]),
            ("of HTTP/1.0", [HEAD, &old, HEAD, GET, GET, HEAD]),
            ("closing", [HEAD, &closing, HEAD, GET, GET, HEAD]),
            ("without a length", [HEAD, endless, HEAD, GET, GET, HEAD]),
            ("cut", [HEAD, GET, HEAD, GET, GET, "HTTP/1.1"]),
        ] {
            let result = test_origin(&together(responses), "");
            assert!(matches!(result, TestResult::Failed(_)), "{name}: {result:?}");
        }
        let right = together([HEAD, GET, HEAD, GET, GET, HEAD]);
        for last in [GET, "", &[HEAD, "x"].concat()] {
            let result = test_origin(&right, last);
            assert!(matches!(result, TestResult::Failed(_)), "{last}: {result:?}");
        }
        let result = test_origin(&[&right, GET].concat(), HEAD);
        assert!(matches!(result, TestResult::Failed(_)), "one too many at the end: {result:?}");
    }

    #[test]
    fn an_origin_without_a_body_or_without_a_connection_is_tested_again() {
        let empty = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        let result = test_origin(&together([empty; 6]), empty);
        assert!(matches!(&result, TestResult::Undecided(why) if why.contains("no body")));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let check = check_of(listener.local_addr().unwrap().port());
        let result = test(&check, Duration::from_millis(50));
        assert!(matches!(result, TestResult::Undecided(_)), "no response: {result:?}");
        drop(listener);
        assert!(matches!(test(&check, PATIENCE), TestResult::Undecided(_)));
    }
}
