//! The admin addresses: metrics, health and configuration, and changes in the running process, over
//! HTTP/1.0 on threads of their own. They never touch the data plane; they read what that wrote
//! down, and leave what has to be done to the supervisor.
//!
//! Small and bounded on purpose: one short request a connection, a fixed number of connections, a
//! deadline for each.

mod answer;
mod doors;
mod guard;
mod request;
mod stream;
mod token;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::errands::{Desk, Errand};
use crate::metrics::{self, Metrics};
use crate::{say, takeover};

use answer::Answer;
use guard::Asked;
use request::Request;
use stream::Stream;

pub(crate) use doors::Doors;
pub(crate) use guard::{Guard, is_trusted};
pub(crate) use token::Token;

/// Connections answered at once. Further ones are closed; who asks for metrics asks again.
const CONNECTIONS_MAX: usize = 16;
/// The longest request head.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// What is read away of a refused request, so that its answer is not lost in a reset.
const REST_BYTES_MAX: usize = 64 * 1024;
/// From the connection's beginning to its end.
const CONNECTION_MS_MAX: u64 = 5000;

/// What the admin addresses have others do.
pub(crate) struct Hooks {
    pub(crate) desk: Desk,
    /// Applies the configuration's file anew: the number of the snapshot in force, or why not.
    pub(crate) reload: Box<dyn Fn() -> Result<u64, String> + Send + Sync>,
    /// Opens the access log again; `None`: there is none.
    pub(crate) reopen_log: Box<dyn Fn() -> Option<std::io::Result<()>> + Send + Sync>,
}

/// What the admin addresses tell and do.
pub(crate) struct Admin {
    metrics: Metrics,
    /// The configuration in force, as a file. It names files with secrets and holds none.
    config: Mutex<String>,
    guard: Guard,
    hooks: Hooks,
    /// Set once, when the process no longer takes connections.
    draining: AtomicBool,
    /// A successor is taking over.
    upgrading: AtomicBool,
    /// `<= CONNECTIONS_MAX`
    connections: AtomicUsize,
}

/// What a path is for.
#[derive(Clone, Copy)]
enum Path {
    /// POST begins a takeover, at a Unix socket.
    Takeover,
    /// GET and HEAD tell.
    Page(fn(&Admin) -> Answer),
    /// POST does.
    Call(fn(&Admin) -> Answer),
}

const SWITCHING: &str = "101 Switching Protocols";

const PATHS: &[(&str, Path)] = &[
    ("/metrics", Path::Page(Admin::metrics)),
    ("/healthz", Path::Page(Admin::health)),
    ("/config", Path::Page(Admin::config)),
    ("/reload", Path::Call(Admin::reload)),
    ("/drain", Path::Call(Admin::drain)),
    ("/log/reopen", Path::Call(Admin::reopen_log)),
    (takeover::PATH, Path::Takeover),
];

impl Admin {
    /// What to tell before the first request; `config` as a file.
    pub(crate) fn new(metrics: Metrics, config: String, guard: Guard, hooks: Hooks) -> Self {
        Self {
            metrics,
            config: Mutex::new(config),
            guard,
            hooks,
            draining: AtomicBool::new(false),
            upgrading: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
        }
    }

    /// Another configuration is in force.
    pub(crate) fn set_config(&self, config: String) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// From now on, health is "draining".
    pub(crate) fn set_draining(&self) {
        // Pairs with the load in `health`; nothing else is read by what it says.
        self.draining.store(true, Ordering::Relaxed);
    }

    /// The takeover that was under way is not any more.
    pub(crate) fn takeover_failed(&self) {
        // Pairs with the swap in `begin_takeover`.
        self.upgrading.store(false, Ordering::Relaxed);
    }

    /// Answers one connection on a thread of its own, unless there are too many.
    fn take(self: &Arc<Self>, stream: Stream) {
        // Pairs with the subtraction below. The accepting thread alone adds, so that the bound
        // holds without more.
        if self.connections.load(Ordering::Acquire) >= CONNECTIONS_MAX {
            return;
        }
        self.connections.fetch_add(1, Ordering::Relaxed);
        let this = Arc::clone(self);
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

    fn serve(&self, mut stream: Stream) -> std::io::Result<()> {
        stream.set_deadline(Instant::now() + Duration::from_millis(CONNECTION_MS_MAX));
        let mut head = Vec::new();
        let answer = loop {
            let mut part = [0; 1024];
            let count = stream.read(&mut part)?;
            if count == 0 {
                return Ok(());
            }
            head.extend_from_slice(&part[..count]);
            if let Some(end) = head.windows(4).position(|end| end == b"\r\n\r\n") {
                let answer = self.answer(&head[..end + 4], stream.asked()?);
                if answer.status == SWITCHING {
                    return self.hand_over(stream, &answer);
                }
                break answer;
            }
            if head.len() > HEAD_BYTES_MAX {
                break Answer::text("431 Request Header Fields Too Large", "too large");
            }
        };
        // To do what was asked for may have taken its time.
        stream.set_deadline(Instant::now() + Duration::from_millis(CONNECTION_MS_MAX));
        stream.write_all(&answer.bytes())?;
        stream.end(REST_BYTES_MAX)
    }

    fn answer(&self, head: &[u8], asked: Asked) -> Answer {
        let request = match Request::read(head) {
            Ok(request) => request,
            Err(wrong) => return Answer::text("400 Bad Request", wrong),
        };
        let answer = self.answer_to(&request, asked).unwrap_or_else(|refusal| refusal);
        answer.without_body(request.method == "HEAD")
    }

    fn answer_to(&self, request: &Request<'_>, asked: Asked) -> Result<Answer, Answer> {
        self.guard.may_ask(request, asked)?;
        let path = PATHS.iter().find(|(path, _)| *path == request.path).map(|(_, path)| *path);
        let is_read = matches!(request.method, "GET" | "HEAD");
        if request.has_body {
            return Err(Answer::text("413 Content Too Large", "nothing here takes a body"));
        }
        match path {
            Some(Path::Page(page)) if is_read => Ok(page(self)),
            Some(Path::Page(_)) => Err(Answer::not_allowed("GET, HEAD")),
            Some(Path::Call(call)) if request.method == "POST" => {
                self.guard.may_change(request, asked)?;
                say::error(&format!("admin: POST {} from {asked}", request.path));
                Ok(call(self))
            }
            Some(Path::Takeover) if request.method == "POST" => {
                self.guard.may_change(request, asked)?;
                self.begin_takeover(request, asked)
            }
            Some(Path::Call(_) | Path::Takeover) => Err(Answer::not_allowed("POST")),
            None => {
                let paths: Vec<_> = PATHS.iter().map(|(path, _)| *path).collect();
                Err(Answer::text("404 Not Found", &format!("here are {}", paths.join(", "))))
            }
        }
    }

    /// Claims the one takeover that may be under way, if the other side speaks our protocol.
    fn begin_takeover(&self, request: &Request<'_>, asked: Asked) -> Result<Answer, Answer> {
        if matches!(asked, Asked::Tcp(_)) {
            return Err(Answer::text("403 Forbidden", "this goes over a Unix socket only"));
        }
        if request.upgrade != Some(takeover::PROTOCOL) {
            return Err(Answer::switching(
                "426 Upgrade Required",
                &format!("this process speaks {} only", takeover::PROTOCOL),
            ));
        }
        // Pairs with the store in `takeover_failed`, and with that in `set_draining`.
        if self.draining.load(Ordering::Relaxed) || self.upgrading.swap(true, Ordering::Relaxed) {
            return Err(Answer::text(
                "409 Conflict",
                "this process is draining, or another one is taking over",
            ));
        }
        Ok(Answer::switching(SWITCHING, ""))
    }

    fn hand_over(&self, mut stream: Stream, answer: &Answer) -> std::io::Result<()> {
        let line = stream.write_all(&answer.bytes()).and_then(|()| stream.into_line());
        if !line.is_ok_and(|line| takeover::give(line, &self.hooks.desk)) {
            self.takeover_failed();
        }
        Ok(())
    }

    fn metrics(&self) -> Answer {
        Answer::page("200 OK", metrics::CONTENT_TYPE, self.metrics.page())
    }

    fn health(&self) -> Answer {
        // Pairs with the store in `set_draining`.
        match self.draining.load(Ordering::Relaxed) {
            true => Answer::text("503 Service Unavailable", "draining"),
            false => Answer::text("200 OK", "ok"),
        }
    }

    fn config(&self) -> Answer {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Answer::page("200 OK", "text/plain; charset=utf-8", config)
    }

    fn reload(&self) -> Answer {
        match (self.hooks.reload)() {
            Ok(number) => Answer::text("200 OK", &format!("configuration {number} is in force")),
            Err(wrong) => Answer::text("422 Unprocessable Content", &wrong),
        }
    }

    fn drain(&self) -> Answer {
        self.hooks.desk.ask(Errand::Drain);
        Answer::text("202 Accepted", "draining")
    }

    fn reopen_log(&self) -> Answer {
        match (self.hooks.reopen_log)() {
            None => Answer::text("409 Conflict", "there is no access log"),
            Some(Ok(())) => Answer::text("200 OK", "access log reopened"),
            Some(Err(error)) => {
                let line = format!("access log not reopened: {error}");
                Answer::text("500 Internal Server Error", &line)
            }
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

#[cfg(test)]
mod tests;
