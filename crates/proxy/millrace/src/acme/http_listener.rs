//! The listeners for the challenge http-01. They redirect every other request to https.
//!
//! Each connection gets one response, on a thread of its own, within a limit of connections and of
//! time: this is not the data plane.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millrace_config::{Config, ListenAddress};
use millrace_http1::{Method, RequestHead};
use millrace_sys::{Errno, EventFd, Events, Poller};

use super::challenge::HttpChallenges;
use crate::admin::ConnectionLimit;
use crate::console;
use crate::http::{self, Connection};
use crate::listeners::{has_port, listen_error};
use crate::program_error::ProgramError;
use crate::threads::{lock, spawn};

/// Time from accepting a connection to the end of its response.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of the threads, one for each connection, with those of evicted connections.
const THREADS_MAX: u64 = 320;
/// The part of the process's descriptors that connections use at most: 1 / this.
const DESCRIPTORS_DIVISOR: u64 = 8;
/// The connections that are accepted at an address before the next look at the others.
const ACCEPTS_PER_TURN: usize = 64;
/// Time between attempts to accept while the process has no free descriptor.
const ACCEPT_PAUSE_MS: u32 = 100;
/// Bytes that are read and discarded after a response.
const DISCARDED_BYTES_MAX: usize = 16 * 1024;
/// The most bytes of a host in a redirect.
const HOST_BYTES_MAX: usize = 260;
/// The beginning of a target in absolute form.
const HTTP: &str = "http://";
/// The events that one wait returns at most.
const EVENTS_MAX: usize = 16;
/// The poller token of each listener.
const LISTENER: u64 = 0;
/// The poller token of the descriptor that ends the thread.
const STOP: u64 = 1;

/// The addresses for http-01 in a configuration, after the attempt to open each.
#[derive(Default)]
pub(crate) struct HttpListeners {
    opened: Vec<HttpListener>,
    /// The addresses that cannot be opened.
    pub(super) failed: Vec<HttpFailure>,
}

/// An address that cannot be opened.
pub(super) type HttpFailure = (SocketAddr, Errno);

struct HttpListener {
    address: SocketAddr,
    socket: OwnedFd,
    /// The port of the listener with TLS.
    https_port: u16,
}

/// When addresses are opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenTime {
    /// At a start, or for test orders.
    Start,
    /// In a process that takes over from a running one, which may have the addresses open, too.
    Takeover,
    /// By a reload, after the process has dropped its privileges.
    Reload,
}

/// The accepting thread. Dropping this ends it and closes the addresses.
pub(super) struct HttpThread {
    acceptor: Arc<Acceptor>,
    thread: Option<JoinHandle<()>>,
}

/// The part that the thread shares with the configuration. The listeners change while it runs.
struct Acceptor {
    listeners: Mutex<Vec<HttpListener>>,
    poller: Poller,
    stop: EventFd,
    challenges: Arc<HttpChallenges>,
    limit: Arc<ConnectionLimit>,
}

impl HttpListeners {
    /// Opens the addresses of a configuration. An address that cannot be opened is reported in one
    /// line: tls-alpn-01 needs none.
    pub(crate) fn open(config: &Config, time: OpenTime) -> Self {
        let listeners = Self::open_missing(config, &[], time, || false);
        for failure in &listeners.failed {
            log_failure(*failure, time);
        }
        listeners
    }

    /// Opens the addresses that are not in `open`. One that is in use is tried again while `wait`
    /// returns true.
    pub(super) fn open_missing(
        config: &Config,
        open: &[SocketAddr],
        time: OpenTime,
        mut wait: impl FnMut() -> bool,
    ) -> Self {
        let mut listeners = Self::default();
        let missing = wanted(config).into_iter().filter(|(address, _)| !open.contains(address));
        for (address, https_port) in missing {
            let socket = loop {
                match open_one(config, address, time == OpenTime::Takeover) {
                    // The port of an own listener does not become free.
                    Err(Errno::ADDRINUSE) if !has_port(config, address.port()) && wait() => {}
                    result => break result,
                }
            };
            match socket {
                Ok(socket) => listeners.opened.push(HttpListener { address, socket, https_port }),
                Err(error) => listeners.failed.push((address, error)),
            }
        }
        listeners
    }

    /// Starts to accept, unless nothing was opened.
    ///
    /// # Errors
    /// If the thread or a descriptor cannot be created.
    pub(super) fn start(
        self,
        challenges: &Arc<HttpChallenges>,
    ) -> Result<Option<HttpThread>, ProgramError> {
        if self.opened.is_empty() {
            return Ok(None);
        }
        let (connections, threads) = limits(millrace_sys::descriptor_limit());
        let acceptor = Arc::new(Acceptor {
            listeners: Mutex::default(),
            poller: Poller::new().map_err(poll_error)?,
            stop: EventFd::new().map_err(poll_error)?,
            challenges: Arc::clone(challenges),
            limit: Arc::new(ConnectionLimit::new(connections as usize, threads as usize)),
        });
        acceptor.poller.add_listener(acceptor.stop.as_fd(), STOP).map_err(poll_error)?;
        let body = Arc::clone(&acceptor);
        let thread = Some(spawn("acme-http", move || body.accept())?);
        let thread = HttpThread { acceptor, thread };
        thread.add(self)?;
        Ok(Some(thread))
    }
}

fn poll_error(error: Errno) -> ProgramError {
    ProgramError::system("cannot poll for HTTP connections", error)
}

fn open_one(config: &Config, address: SocketAddr, is_takeover: bool) -> Result<OwnedFd, Errno> {
    if address.port() != 0 {
        // With SO_REUSEPORT, it would take a part of that listener's connections.
        if has_port(config, address.port()) {
            return Err(Errno::ADDRINUSE);
        }
        if !is_takeover {
            // A socket without SO_REUSEPORT detects another process.
            drop(millrace_sys::listen_tcp(address, false)?);
        }
    }
    millrace_sys::listen_tcp(address, true)
}

/// Reports an address that cannot be opened.
pub(super) fn log_failure((address, error): HttpFailure, time: OpenTime) {
    let may_be_allowed = time == OpenTime::Reload && error == Errno::ACCESS;
    let until = if may_be_allowed { " until a restart or an upgrade" } else { "" };
    let error = listen_error(&address, error);
    console::log(&format!("acme-http: {error}; only tls-alpn-01 remains{until}"));
}

/// Returns the limits of connections and of threads of a process with this limit of descriptors.
/// 256 connections are served at the same time at most. A new one evicts the oldest one.
fn limits(descriptors: u64) -> (u64, u64) {
    let threads = (descriptors / DESCRIPTORS_DIVISOR).clamp(2, THREADS_MAX);
    (threads * 4 / 5, threads)
}

/// Returns the most descriptors that the connections of a configuration use, in a process with this
/// limit of descriptors. Connections of an address that only a reload opens use descriptors of the
/// workers.
pub(crate) fn descriptors_max(config: &Config, limit: u64) -> u64 {
    let mut services = config.services.iter().filter_map(|service| service.tls.as_ref());
    let has_http = services.any(|tls| tls.acme.as_ref().is_some_and(|acme| acme.http.is_some()));
    if has_http { limits(limit).1 } else { 0 }
}

/// Returns the addresses of a configuration, each with the port of its listener with TLS.
pub(super) fn wanted(config: &Config) -> Vec<(SocketAddr, u16)> {
    let mut wanted: Vec<(SocketAddr, u16)> = Vec::new();
    for (index, service) in config.services.iter().enumerate() {
        let acme = service.tls.as_ref().and_then(|tls| tls.acme.as_ref());
        let Some(address) = acme.and_then(|acme| acme.http) else { continue };
        if wanted.iter().all(|(other, _)| *other != address) {
            wanted.push((address, https_port(config, index)));
        }
    }
    wanted
}

/// Returns the port of the listener with TLS of a service.
fn https_port(config: &Config, service: usize) -> u16 {
    let secured = config.listeners.iter().find(|it| it.service == service && it.tls);
    match secured.map(|listener| &listener.address) {
        Some(ListenAddress::Tcp(address)) => address.port(),
        _ => 443,
    }
}

impl Acceptor {
    fn accept(&self) {
        let mut events = Events::new(EVENTS_MAX);
        let mut wait_ms_max = None;
        loop {
            // EINTR only ends the wait early.
            let _ = self.poller.wait(&mut events, wait_ms_max);
            let is_ended = events.any(|(token, _)| token == STOP);
            // The connections that wait would be reset with the socket.
            wait_ms_max = lock(&self.listeners).iter().filter_map(|it| self.accept_some(it)).min();
            if is_ended {
                return;
            }
        }
    }

    /// Accepts waiting connections. Returns the time in milliseconds until the next attempt; `None`
    /// if none waits.
    fn accept_some(&self, listener: &HttpListener) -> Option<u32> {
        for _ in 0..ACCEPTS_PER_TURN {
            match millrace_sys::accept(listener.socket.as_fd()) {
                Ok((socket, _)) => self.begin(socket, listener.https_port),
                Err(Errno::AGAIN) => return None,
                // The client closed the connection before it was accepted.
                Err(Errno::CONNABORTED) => {}
                Err(_) => return Some(ACCEPT_PAUSE_MS),
            }
        }
        Some(0)
    }

    /// Begins to serve a connection.
    fn begin(&self, socket: OwnedFd, https_port: u16) {
        let Ok(connection) = Connection::new(socket, false) else { return };
        let Some(permit) = self.limit.acquire(connection.socket()) else { return };
        let challenges = Arc::clone(&self.challenges);
        // An error means that the client is gone or too slow, or that no thread could be started.
        let _ = spawn("acme-http-connection", move || {
            let _ = serve(connection, &challenges, https_port);
            drop(permit);
        });
    }
}

impl HttpThread {
    /// Returns the open addresses as configured.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        lock(&self.acceptor.listeners).iter().map(|listener| listener.address).collect()
    }

    /// Closes the addresses that are not wanted, and sets the ports of the others.
    pub(super) fn keep(&self, wanted: &[(SocketAddr, u16)]) {
        lock(&self.acceptor.listeners).retain_mut(|open| {
            let kept = wanted.iter().find(|(address, _)| *address == open.address);
            match kept {
                Some((_, port)) => open.https_port = *port,
                // The connections that wait would be reset with the socket.
                None => _ = self.acceptor.accept_some(open),
            }
            kept.is_some()
        });
    }

    /// Adds opened addresses.
    ///
    /// # Errors
    /// If the kernel registers no more sockets. The remaining ones are closed then.
    pub(super) fn add(&self, added: HttpListeners) -> Result<(), ProgramError> {
        // The thread waits for the lock, so it finds each listener after its first event.
        let mut listeners = lock(&self.acceptor.listeners);
        for listener in added.opened {
            let socket = listener.socket.as_fd();
            self.acceptor.poller.add_listener(socket, LISTENER).map_err(poll_error)?;
            listeners.push(listener);
        }
        Ok(())
    }
}

impl Drop for HttpThread {
    fn drop(&mut self) {
        self.acceptor.stop.signal();
        let thread = self.thread.take().expect("only this ends the thread");
        thread.join().expect("a thread that panics ends the process");
    }
}

fn serve(
    mut connection: Connection,
    challenges: &HttpChallenges,
    https_port: u16,
) -> std::io::Result<()> {
    connection.set_deadline(Instant::now() + CONNECTION_TIMEOUT);
    let head = connection.read_request()?;
    connection.write_all(respond(&head, challenges, https_port).as_bytes())?;
    connection.finish(DISCARDED_BYTES_MAX);
    Ok(())
}

/// Returns the response: the content of a challenge, or a redirect to the same target by https.
fn respond(head: &RequestHead, challenges: &HttpChallenges, https_port: u16) -> String {
    let target = std::str::from_utf8(head.target()).unwrap_or_default();
    let (authority, target) = split(target);
    if let Some(content) = challenges.content(&target) {
        return format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{content}",
            content.len()
        );
    }
    // The authority of the target replaces the field Host (RFC 9112 section 3.2.2).
    let host = authority.map(str::as_bytes).or_else(|| http::values(head, "host").next());
    let host = host.and_then(host_without_port);
    let (Some(host), true) = (host, target.starts_with('/')) else {
        return "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".into();
    };
    // As the option redirect-https: every client follows 301, and 308 keeps the method.
    let status = match head.method() {
        Method::Get | Method::Head => "301 Moved Permanently",
        _ => "308 Permanent Redirect",
    };
    let port = if https_port == 443 { String::new() } else { format!(":{https_port}") };
    format!(
        "HTTP/1.1 {status}\r\nLocation: https://{host}{port}{target}\r\n\
         Content-Length: 0\r\nConnection: close\r\n\r\n"
    )
}

/// Returns the authority of a target in absolute form, and the target in origin form.
fn split(target: &str) -> (Option<&str>, Cow<'_, str>) {
    match target.split_at_checked(HTTP.len()) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case(HTTP) => {
            let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
            match path.starts_with('/') {
                true => (Some(authority), path.into()),
                false => (Some(authority), format!("/{path}").into()),
            }
        }
        _ => (None, target.into()),
    }
}

/// Returns the host of a Host field; `None` if it cannot be part of a URL.
fn host_without_port(value: &[u8]) -> Option<&str> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(byte);
    let value = std::str::from_utf8(value).ok()?;
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let host = match value.rsplit_once(':') {
        Some((host, port)) if is_port(port) && !host.ends_with(':') => host,
        _ => value,
    };
    let is_valid =
        !host.is_empty() && host.len() <= HOST_BYTES_MAX && host.as_bytes().iter().all(is_plain);
    is_valid.then_some(host)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;

    use millrace_http1::{HeadLimits, HeadScan};

    use super::*;

    fn response(request: &str, port: u16) -> String {
        let mut head = RequestHead::default();
        let limits = HeadLimits { bytes_max: 4096, fields_max: 9, target_bytes_max: 4096 };
        let parsed = head.parse(request.as_bytes(), &mut HeadScan::default(), &limits);
        assert!(parsed.unwrap().is_some());
        respond(&head, &HttpChallenges::default(), port)
    }

    /// Opens a port that the kernel chooses.
    fn opened() -> (SocketAddr, HttpListeners) {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let socket = millrace_sys::listen_tcp(any, true).unwrap();
        let address = millrace_sys::local_address(socket.as_fd()).unwrap().unwrap();
        let listener = HttpListener { address, socket, https_port: 443 };
        (address, HttpListeners { opened: vec![listener], failed: Vec::new() })
    }

    #[test]
    fn addresses_change_while_the_thread_runs() {
        let [(first, listeners), (second, added)] = [opened(), opened()];
        let thread = listeners.start(&Arc::default()).unwrap().unwrap();
        thread.add(added).unwrap();
        let port = |address| {
            let mut stream = TcpStream::connect(address)?;
            stream.write_all(b"GET /b HTTP/1.1\r\nHost: a\r\n\r\n")?;
            std::io::read_to_string(stream).map(|response| response.contains("://a:8443/b"))
        };
        assert!(!port(first).unwrap() && !port(second).unwrap());
        thread.keep(&[(second, 8443)]);
        assert_eq!(thread.addresses(), [second]);
        assert!(port(first).is_err() && port(second).unwrap());
        drop(thread);
        assert!(port(second).is_err());
    }

    #[test]
    fn connections_use_a_part_of_the_descriptors() {
        assert_eq!(limits(1 << 20), (256, 320));
        assert_eq!(limits(400), (40, 50));
        assert_eq!(limits(8), (1, 2));
    }

    #[test]
    fn requests_are_redirected_to_the_same_target() {
        for (host, port, url) in [
            ("a.example", 443, "https://a.example/b?c"),
            ("a.example:80", 8443, "https://a.example:8443/b?c"),
            ("[::1]:80", 443, "https://[::1]/b?c"),
        ] {
            let response = response(&format!("GET /b?c HTTP/1.1\r\nHost: {host}\r\n\r\n"), port);
            assert!(response.contains(&format!("\r\nLocation: {url}\r\n")), "{response}");
            assert!(response.starts_with("HTTP/1.1 301 "), "{response}");
        }
        for (target, url) in [
            ("http://b.example:80/c?d", "https://b.example/c?d"),
            ("HTTP://b.example?c", "https://b.example/?c"),
            ("http://b.example", "https://b.example/"),
        ] {
            let response = response(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"), 443);
            assert!(response.contains(&format!("\r\nLocation: {url}\r\n")), "{response}");
        }
        let post = response("POST /b HTTP/1.1\r\nHost: a\r\n\r\n", 443);
        assert!(post.starts_with("HTTP/1.1 308 "), "{post}");
        for request in [
            "GET /.well-known/acme-challenge/unknown HTTP/1.0\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\"b\r\n\r\n",
            "GET http://a@b/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET http:///a HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            assert!(response(request, 443).starts_with("HTTP/1.1 400 "), "{request}");
        }
    }
}
