//! The admin addresses: metrics, health and configuration, and changes in the running process, over
//! HTTP/1.0 on threads of their own. They never touch the data plane; they read what that wrote
//! down, and leave what has to be done to the supervisor.
//!
//! Small and bounded on purpose: one short request a connection, a fixed number of connections, a
//! deadline for each.

mod answer;
mod cached;
mod connection_limit;
mod guard;
mod listeners;
mod query;
mod request;
mod token;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_http1::{Method, RequestHead};
use millrace_store::Cache;

use crate::errands::{Desk, Errand};
use crate::http::{Connection, Socket, Status};
use crate::metrics::{self, Metrics};
use crate::print;
use crate::takeover::{self, Line};
use crate::threads::{lock, spawn};

use answer::Answer;
use connection_limit::{ConnectionLimit, Place};
use guard::Asked;
use request::Request;

pub(crate) use answer::MATCHED;
pub(crate) use guard::{Guard, is_trusted};
pub(crate) use listeners::AdminListeners;
pub(crate) use token::Token;

/// What is read away of a refused request, so that its answer is not lost in a reset.
const REST_BYTES_MAX: usize = 64 * 1024;
/// From the connection's beginning to its answer, and from there to its end.
const CONNECTION_MS_MAX: u64 = 5000;
/// How long whoever wants to take over waits for the end of another takeover: one that has failed
/// may not have been noticed yet.
const TAKEOVER_MS_MAX: u64 = 3000;

/// What the admin addresses have others do.
pub(crate) struct Hooks {
    pub(crate) desk: Desk,
    /// Opens the access log again; `None`: there is none.
    pub(crate) reopen_log: Box<dyn Fn() -> Option<std::io::Result<()>> + Send + Sync>,
    /// What is stored, if anything is.
    pub(crate) cache: Option<Arc<Cache>>,
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
    takeovers: Mutex<Takeovers>,
    /// Notified when none is under way any more, or may begin.
    upgraded: Condvar,
    tcp: Arc<ConnectionLimit>,
    /// Apart: whoever may connect there may change something, and others must not be in the way.
    unix: Arc<ConnectionLimit>,
}

/// Who takes over from this process.
#[derive(Default)]
struct Takeovers {
    /// A successor is at it.
    under_way: bool,
    /// The process is to end: none may begin.
    refused: bool,
}

/// What a path is for.
#[derive(Clone, Copy)]
enum Path {
    /// POST begins a takeover, at a Unix socket.
    Takeover,
    /// GET and HEAD tell.
    Page(Page),
    /// GET and HEAD tell who may change something too: what clients asked for is theirs.
    Private(Page),
    /// POST does.
    Call(Page),
}

/// The answer, or the refusal.
type Page = fn(&Admin, &Request<'_>) -> Result<Answer, Answer>;

const SWITCHING: Status = (101, "Switching Protocols");

const PATHS: &[(&str, Path)] = &[
    ("/metrics", Path::Page(|admin, _| Ok(admin.metrics()))),
    ("/healthz", Path::Page(|admin, _| Ok(admin.health()))),
    ("/config", Path::Page(|admin, _| Ok(admin.config()))),
    ("/reload", Path::Call(|admin, _| Ok(admin.reload()))),
    ("/drain", Path::Call(|admin, _| Ok(admin.drain()))),
    ("/log/reopen", Path::Call(|admin, _| Ok(admin.reopen_log()))),
    ("/cache", Path::Private(cached::list)),
    ("/cache/object", Path::Private(cached::show)),
    ("/cache/stat", Path::Page(cached::stat)),
    ("/cache/purge", Path::Call(cached::purge)),
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
            takeovers: Mutex::default(),
            upgraded: Condvar::new(),
            tcp: Arc::default(),
            unix: Arc::default(),
        }
    }

    /// Another configuration is in force.
    pub(crate) fn set_config(&self, config: String) {
        *lock(&self.config) = config;
    }

    /// From now on, health is "draining".
    pub(crate) fn set_draining(&self) {
        // Pairs with the loads in `is_draining`; nothing else is read by what it says.
        self.draining.store(true, Ordering::Relaxed);
        self.refuse_takeovers();
    }

    /// From now on no takeover may begin; one that is under way goes on.
    pub(crate) fn refuse_takeovers(&self) {
        lock(&self.takeovers).refused = true;
        self.upgraded.notify_all();
    }

    fn is_draining(&self) -> bool {
        // Pairs with the store in `set_draining`.
        self.draining.load(Ordering::Relaxed)
    }

    /// The takeover that was under way is not any more.
    pub(crate) fn takeover_failed(&self) {
        lock(&self.takeovers).under_way = false;
        self.upgraded.notify_one();
    }

    /// Whether a successor is taking over, with a configuration that it has read already.
    pub(crate) fn is_upgrading(&self) -> bool {
        lock(&self.takeovers).under_way
    }

    /// Answers one connection on a thread of its own, unless there are too many.
    fn take(self: &Arc<Self>, connection: Connection) {
        let is_unix = matches!(**connection.socket(), Socket::Unix(_));
        let limit = if is_unix { &self.unix } else { &self.tcp };
        let Some(place) = limit.enter(connection.socket()) else { return };
        let this = Arc::clone(self);
        // The other side is gone or too slow, or there is no thread: nobody is left to be told.
        let _ = spawn("admin-connection", move || _ = this.serve(connection, &place));
    }

    fn serve(&self, mut connection: Connection, place: &Place) -> std::io::Result<()> {
        connection.set_deadline(Instant::now() + Duration::from_millis(CONNECTION_MS_MAX));
        let answer = match connection.read_request() {
            Ok(head) => self.answer(&head, Asked::at(connection.socket())?, place),
            Err(error) => Answer::malformed(error.downcast()?),
        };
        // To do what was asked for may have taken its time.
        connection.set_deadline(Instant::now() + Duration::from_millis(CONNECTION_MS_MAX));
        if answer.status == SWITCHING {
            place.stay();
            self.hand_over(connection, &answer);
            return Ok(());
        }
        connection.write_all(&answer.bytes())?;
        connection.finish(REST_BYTES_MAX);
        Ok(())
    }

    fn answer(&self, head: &RequestHead, asked: Asked, place: &Place) -> Answer {
        let request = match Request::of(head) {
            Ok(request) => request,
            Err(wrong) => return Answer::text((400, "Bad Request"), &wrong),
        };
        let answer = self.answer_to(&request, asked, place).unwrap_or_else(|refusal| refusal);
        answer.without_body(request.method == Method::Head)
    }

    fn answer_to(
        &self,
        request: &Request<'_>,
        asked: Asked,
        place: &Place,
    ) -> Result<Answer, Answer> {
        self.guard.may_ask(request, asked)?;
        let path = PATHS.iter().find(|(path, _)| *path == request.path).map(|(_, path)| *path);
        let is_read = matches!(request.method, Method::Get | Method::Head);
        if request.has_body {
            return Err(Answer::text((413, "Content Too Large"), "nothing here takes a body"));
        }
        match path {
            Some(Path::Page(page)) if is_read => page(self, request),
            Some(Path::Private(page)) if is_read => {
                self.guard.may_change(request, asked)?;
                page(self, request)
            }
            Some(Path::Page(_) | Path::Private(_)) => Err(Answer::not_allowed("GET, HEAD")),
            Some(Path::Call(call)) if request.method == Method::Post => {
                self.guard.may_change(request, asked)?;
                print::error(&format!("admin: POST {} from {asked}", request.path));
                // Whoever comes meanwhile does not keep it from hearing what came of it.
                place.stay();
                call(self, request)
            }
            Some(Path::Takeover) if request.method == Method::Post => {
                self.guard.may_change(request, asked)?;
                self.begin_takeover(request, asked)
            }
            Some(Path::Call(_) | Path::Takeover) => Err(Answer::not_allowed("POST")),
            None => {
                let paths: Vec<_> = PATHS.iter().map(|(path, _)| *path).collect();
                let line = format!("404 Not Found (expected: {})", paths.join(", "));
                Err(Answer::text((404, "Not Found"), &line))
            }
        }
    }

    /// Claims the one takeover that may be under way, if the other side speaks our protocol.
    fn begin_takeover(&self, request: &Request<'_>, asked: Asked) -> Result<Answer, Answer> {
        if matches!(asked, Asked::Tcp(_)) {
            return Err(Answer::text((403, "Forbidden"), "this goes over a Unix socket only"));
        }
        if request.upgrade != Some(takeover::PROTOCOL) {
            return Err(Answer::switching(
                (426, "Upgrade Required"),
                &format!("this process speaks {} only", takeover::PROTOCOL),
            ));
        }
        let patience = Duration::from_millis(TAKEOVER_MS_MAX);
        let is_taken = |takeovers: &mut Takeovers| takeovers.under_way && !takeovers.refused;
        let waited = self.upgraded.wait_timeout_while(lock(&self.takeovers), patience, is_taken);
        let (mut takeovers, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if takeovers.under_way {
            return Err(Answer::text((409, "Conflict"), "another process is taking over"));
        }
        if takeovers.refused {
            let wrong = "this process is ending, and hands nothing over any more";
            return Err(Answer::text((409, "Conflict"), wrong));
        }
        takeovers.under_way = true;
        Ok(Answer::switching(SWITCHING, ""))
    }

    fn hand_over(&self, mut connection: Connection, answer: &Answer) {
        let line = connection.write_all(&answer.bytes()).and_then(|()| Line::over(&connection));
        if !line.is_ok_and(|line| takeover::give(line, &self.hooks.desk)) {
            self.takeover_failed();
            // After that, for the supervisor may wait for just this.
            self.hooks.desk.ask(Errand::Rearm);
        }
    }

    fn metrics(&self) -> Answer {
        Answer::page((200, "OK"), metrics::CONTENT_TYPE, self.metrics.page())
    }

    fn health(&self) -> Answer {
        match self.is_draining() {
            true => Answer::text((503, "Service Unavailable"), "draining"),
            false => Answer::text((200, "OK"), "ok"),
        }
    }

    fn config(&self) -> Answer {
        let config = lock(&self.config).clone();
        Answer::page((200, "OK"), "text/plain; charset=utf-8", config)
    }

    fn reload(&self) -> Answer {
        let (sender, outcome) = channel();
        self.hooks.desk.ask(Errand::Reload(sender));
        match outcome.recv() {
            Ok(Ok(number)) => {
                Answer::text((200, "OK"), &format!("configuration {number} is in force"))
            }
            Ok(Err(wrong)) => Answer::text((422, "Unprocessable Content"), &wrong),
            Err(_) => Answer::text((503, "Service Unavailable"), "the process has ended"),
        }
    }

    fn drain(&self) -> Answer {
        self.hooks.desk.ask(Errand::Drain);
        Answer::text((202, "Accepted"), "draining")
    }

    fn reopen_log(&self) -> Answer {
        match (self.hooks.reopen_log)() {
            None => Answer::text((409, "Conflict"), "there is no access log"),
            Some(Ok(())) => Answer::text((200, "OK"), "access log reopened"),
            Some(Err(error)) => {
                let line = format!("access log not reopened: {error}");
                Answer::text((500, "Internal Server Error"), &line)
            }
        }
    }
}

#[cfg(test)]
mod tests;
