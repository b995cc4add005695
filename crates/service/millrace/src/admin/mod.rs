//! The admin address: metrics, health and configuration over HTTP/1.0, on threads of its own. It
//! never touches the data plane; it reads what that wrote down.
//!
//! Small and bounded on purpose: one short request a connection, a fixed number of connections, a
//! deadline for each.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::metrics::{self, Metrics};

/// Connections answered at once. Further ones are closed; who asks for metrics asks again.
const CONNECTIONS_MAX: usize = 16;
/// The longest request head.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// From the connection's beginning to its end.
const CONNECTION_MS_MAX: u64 = 5000;
/// Between two tries to accept when the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the admin address tells.
pub(crate) struct Admin {
    metrics: Metrics,
    /// The configuration in force, as a file.
    config: Mutex<String>,
    /// Set once, when the process no longer takes connections.
    draining: AtomicBool,
    /// `<= CONNECTIONS_MAX`
    connections: AtomicUsize,
}

impl Admin {
    /// What to tell before the first request.
    pub(crate) fn new(metrics: Metrics, config: String) -> Self {
        let draining = AtomicBool::new(false);
        let config = Mutex::new(config);
        Self { metrics, config, draining, connections: AtomicUsize::new(0) }
    }

    /// Another configuration is in force.
    pub(crate) fn set_config(&self, config: String) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// From now on, health is "draining".
    pub(crate) fn set_draining(&self) {
        // Pairs with the load in `answer`; nothing else is read by what it says.
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Answers the connections of `listener` until the process ends.
    pub(crate) fn start(self: Arc<Self>, listener: TcpListener) -> Result<(), Failure> {
        let accept = move || {
            for stream in listener.incoming() {
                match stream {
                    Ok(stream) => Arc::clone(&self).take(stream),
                    Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        };
        spawn("admin", accept)
            .map_err(|error| Failure::Machine(format!("no thread for the admin address: {error}")))
    }

    /// Answers one connection on a thread of its own, unless there are too many.
    fn take(self: Arc<Self>, stream: TcpStream) {
        // Pairs with the subtraction below. The accepting thread alone adds, so that the bound
        // holds without more.
        if self.connections.load(Ordering::Acquire) >= CONNECTIONS_MAX {
            return;
        }
        self.connections.fetch_add(1, Ordering::Relaxed);
        let this = Arc::clone(&self);
        let started = spawn("admin-connection", move || {
            // The other side is gone or too slow: nobody is left to be told.
            let _ = this.serve(stream);
            // Pairs with the load above.
            this.connections.fetch_sub(1, Ordering::Release);
        });
        if started.is_err() {
            self.connections.fetch_sub(1, Ordering::Release);
        }
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let deadline = Instant::now() + Duration::from_millis(CONNECTION_MS_MAX);
        let mut head = Vec::new();
        let answer = loop {
            let mut part = [0; 1024];
            stream.set_read_timeout(Some(left(deadline)?))?;
            let count = stream.read(&mut part)?;
            if count == 0 {
                return Ok(());
            }
            head.extend_from_slice(&part[..count]);
            if head.windows(4).any(|end| end == b"\r\n\r\n") {
                break self.answer(&head);
            }
            if head.len() > HEAD_BYTES_MAX {
                break Answer::text("431 Request Header Fields Too Large", "too large\n");
            }
        };
        let bytes = answer.bytes();
        let mut sent = 0;
        while sent < bytes.len() {
            stream.set_write_timeout(Some(left(deadline)?))?;
            sent += stream.write(&bytes[sent..])?;
        }
        stream.shutdown(std::net::Shutdown::Write)
    }

    fn answer(&self, head: &[u8]) -> Answer {
        let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let mut words = line.split(|byte| *byte == b' ');
        let (method, target, version) = (words.next(), words.next(), words.next());
        let (Some(method), Some(target), Some(b"HTTP/1.0" | b"HTTP/1.1"), None) =
            (method, target, version, words.next())
        else {
            return Answer::text("400 Bad Request", "not an HTTP/1 request\n");
        };
        let is_head = method == b"HEAD";
        if !is_head && method != b"GET" {
            return Answer::text("405 Method Not Allowed", "only GET and HEAD\n");
        }
        let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
        let answer = match path {
            b"/metrics" => Answer {
                status: "200 OK",
                content_type: metrics::CONTENT_TYPE,
                body: self.metrics.page(),
                is_head,
            },
            // Pairs with the store in `set_draining`.
            b"/healthz" if self.draining.load(Ordering::Relaxed) => {
                Answer::text("503 Service Unavailable", "draining\n")
            }
            b"/healthz" => Answer::text("200 OK", "ok\n"),
            b"/config" => {
                let config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
                Answer::text("200 OK", &config)
            }
            _ => Answer::text("404 Not Found", "here are /metrics, /healthz and /config\n"),
        };
        Answer { is_head, ..answer }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

/// The time until `deadline`; an error when there is none.
fn left(deadline: Instant) -> std::io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

struct Answer {
    status: &'static str,
    content_type: &'static str,
    body: String,
    /// The body is only counted, not sent.
    is_head: bool,
}

impl Answer {
    fn text(status: &'static str, body: &str) -> Self {
        let content_type = "text/plain; charset=utf-8";
        Self { status, content_type, body: body.to_owned(), is_head: false }
    }

    fn bytes(&self) -> Vec<u8> {
        let allow = if self.status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let mut bytes = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
             Connection: close\r\n\r\n",
            self.status,
            self.content_type,
            self.body.len()
        )
        .into_bytes();
        if !self.is_head {
            bytes.extend_from_slice(self.body.as_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use millrace_event::LogSink;

    use super::*;

    fn ask(admin: &Arc<Admin>, request: &str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        Arc::clone(admin).take(stream);
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn pages_are_told_apart_and_draining_is_not_healthy() {
        let admin = Arc::new(Admin::new(
            Metrics::new(vec![Arc::default()], LogSink::closed(), Arc::default()),
            "a = 1\n".into(),
        ));
        let get = |path: &str| ask(&admin, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(get("/healthz").ends_with("\r\n\r\nok\n"));
        assert!(get("/config?a").ends_with("\r\n\r\na = 1\n"));
        assert!(get("/metrics").contains(metrics::CONTENT_TYPE));
        assert!(get("/").starts_with("HTTP/1.1 404 "));
        let head = ask(&admin, "HEAD /healthz HTTP/1.0\r\n\r\n");
        assert!(head.contains("Content-Length: 3\r\n") && head.ends_with("\r\n\r\n"));
        assert!(ask(&admin, "POST / HTTP/1.1\r\n\r\n").contains("\r\nAllow: GET, HEAD\r\n"));
        assert!(ask(&admin, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
        let long = "a".repeat(HEAD_BYTES_MAX + 1);
        assert!(ask(&admin, &long).starts_with("HTTP/1.1 431 "));
        admin.set_draining();
        assert!(get("/healthz").starts_with("HTTP/1.1 503 "));
    }
}
