//! The admin addresses: metrics, health and configuration, and changes in the running process, over
//! HTTP/1.0 on threads of their own. They never touch the data plane; they read what that wrote
//! down, and leave what has to be done to the supervisor.
//!
//! Small and bounded on purpose: one short request a connection, a fixed number of connections, a
//! deadline for each.

mod access;
mod cache_pages;
mod connection_limit;
mod listeners;
mod query;
mod request;
mod response;
mod token;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_http1::{Method, RequestHead};
use millrace_store::Cache;

use crate::console;
use crate::http::{Connection, Socket, Status};
use crate::metrics::{Metrics, MetricsFormat};
use crate::supervisor_requests::{SupervisorHandle, SupervisorRequest};
use crate::takeover::{self, TakeoverChannel};
use crate::threads::{lock, spawn};

use access::RequestSource;
use connection_limit::{ConnectionLimit, ConnectionPermit};
use request::AdminRequest;
use response::AdminResponse;

pub(crate) use access::{AccessRules, is_trusted};
pub(crate) use listeners::AdminListeners;
pub(crate) use response::MATCHED_FIELD;
pub(crate) use token::Token;

/// What is read away of a refused request, so that its answer is not lost in a reset.
const DISCARDED_BYTES_MAX: usize = 64 * 1024;
/// From the connection's beginning to its answer, and from there to its end.
const CONNECTION_MS_MAX: u64 = 5000;
/// How long whoever wants to take over waits for the end of another takeover: one that has failed
/// may not have been noticed yet.
const TAKEOVER_WAIT_MS_MAX: u64 = 3000;

/// What the admin addresses have others do.
pub(crate) struct Hooks {
    pub(crate) supervisor: SupervisorHandle,
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
    access: AccessRules,
    hooks: Hooks,
    /// Set once, when the process no longer takes connections.
    draining: AtomicBool,
    takeovers: Mutex<TakeoverState>,
    /// Notified when none is under way any more, or may begin.
    takeover_changed: Condvar,
    tcp: Arc<ConnectionLimit>,
    /// Apart: whoever may connect there may change something, and others must not be in the way.
    unix: Arc<ConnectionLimit>,
}

/// Who takes over from this process.
#[derive(Default)]
struct TakeoverState {
    /// A successor is at it.
    under_way: bool,
    /// The process is to end: none may begin.
    refused: bool,
}

/// What a path is for.
#[derive(Clone, Copy)]
enum Endpoint {
    /// POST begins a takeover, at a Unix socket.
    Takeover,
    /// GET and HEAD tell.
    Page(Handler),
    /// GET and HEAD tell who may change something too: what clients asked for is theirs.
    Private(Handler),
    /// POST does.
    Call(Handler),
}

/// The answer, or the refusal.
type Handler = fn(&Admin, &AdminRequest<'_>) -> Result<AdminResponse, AdminResponse>;

const SWITCHING: Status = (101, "Switching Protocols");

const ENDPOINTS: &[(&str, Endpoint)] = &[
    ("/metrics", Endpoint::Page(|admin, request| Ok(admin.metrics(request)))),
    ("/healthz", Endpoint::Page(|admin, _| Ok(admin.health()))),
    ("/config", Endpoint::Page(|admin, _| Ok(admin.config()))),
    ("/reload", Endpoint::Call(|admin, _| Ok(admin.reload()))),
    ("/drain", Endpoint::Call(|admin, _| Ok(admin.drain()))),
    ("/log/reopen", Endpoint::Call(|admin, _| Ok(admin.reopen_log()))),
    ("/cache", Endpoint::Private(cache_pages::list)),
    ("/cache/object", Endpoint::Private(cache_pages::show)),
    ("/cache/stat", Endpoint::Page(cache_pages::stat)),
    ("/cache/purge", Endpoint::Call(cache_pages::purge)),
    (takeover::PATH, Endpoint::Takeover),
];

impl Admin {
    /// What to tell before the first request; `config` as a file.
    pub(crate) fn new(metrics: Metrics, config: String, guard: AccessRules, hooks: Hooks) -> Self {
        Self {
            metrics,
            config: Mutex::new(config),
            access: guard,
            hooks,
            draining: AtomicBool::new(false),
            takeovers: Mutex::default(),
            takeover_changed: Condvar::new(),
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
        self.takeover_changed.notify_all();
    }

    fn is_draining(&self) -> bool {
        // Pairs with the store in `set_draining`.
        self.draining.load(Ordering::Relaxed)
    }

    /// The takeover that was under way is not any more.
    pub(crate) fn handle_takeover_failure(&self) {
        lock(&self.takeovers).under_way = false;
        self.takeover_changed.notify_one();
    }

    /// Whether a successor is taking over, with a configuration that it has read already.
    pub(crate) fn is_upgrading(&self) -> bool {
        lock(&self.takeovers).under_way
    }

    /// Answers one connection on a thread of its own, unless there are too many.
    fn handle_connection(self: &Arc<Self>, connection: Connection) {
        let is_unix = matches!(**connection.socket(), Socket::Unix(_));
        let limit = if is_unix { &self.unix } else { &self.tcp };
        let Some(permit) = limit.acquire(connection.socket()) else { return };
        let this = Arc::clone(self);
        // The other side is gone or too slow, or there is no thread: nobody is left to be told.
        let _ = spawn("admin-connection", move || _ = this.serve(connection, &permit));
    }

    fn serve(&self, mut connection: Connection, permit: &ConnectionPermit) -> std::io::Result<()> {
        connection.set_deadline(Instant::now() + Duration::from_millis(CONNECTION_MS_MAX));
        let response = match connection.read_request() {
            Ok(head) => self.respond(&head, RequestSource::of_socket(connection.socket())?, permit),
            Err(error) => AdminResponse::malformed(error.downcast()?),
        };
        // To do what was asked for may have taken its time.
        connection.set_deadline(Instant::now() + Duration::from_millis(CONNECTION_MS_MAX));
        if response.status == SWITCHING {
            permit.make_unevictable();
            self.hand_over(connection, &response);
            return Ok(());
        }
        connection.write_all(&response.encode())?;
        connection.finish(DISCARDED_BYTES_MAX);
        Ok(())
    }

    fn respond(
        &self,
        head: &RequestHead,
        source: RequestSource,
        permit: &ConnectionPermit,
    ) -> AdminResponse {
        let request = match AdminRequest::parse(head) {
            Ok(request) => request,
            Err(wrong) => return AdminResponse::text((400, "Bad Request"), &wrong),
        };
        let response = self.dispatch(&request, source, permit).unwrap_or_else(|refusal| refusal);
        response.without_body(request.method == Method::Head)
    }

    fn dispatch(
        &self,
        request: &AdminRequest<'_>,
        source: RequestSource,
        permit: &ConnectionPermit,
    ) -> Result<AdminResponse, AdminResponse> {
        self.access.check_host(request, source)?;
        let path = ENDPOINTS.iter().find(|(path, _)| *path == request.path).map(|(_, path)| *path);
        let is_read = matches!(request.method, Method::Get | Method::Head);
        if request.has_body {
            return Err(AdminResponse::text(
                (413, "Content Too Large"),
                "nothing here takes a body",
            ));
        }
        match path {
            Some(Endpoint::Page(page)) if is_read => page(self, request),
            Some(Endpoint::Private(page)) if is_read => {
                self.access.check_authorized(request, source)?;
                page(self, request)
            }
            Some(Endpoint::Page(_) | Endpoint::Private(_)) => {
                Err(AdminResponse::method_not_allowed("GET, HEAD"))
            }
            Some(Endpoint::Call(call)) if request.method == Method::Post => {
                self.access.check_authorized(request, source)?;
                console::log(&format!("admin: POST {} from {source}", request.path));
                // Whoever comes meanwhile does not keep it from hearing what came of it.
                permit.make_unevictable();
                call(self, request)
            }
            Some(Endpoint::Takeover) if request.method == Method::Post => {
                self.access.check_authorized(request, source)?;
                self.begin_takeover(request, source)
            }
            Some(Endpoint::Call(_) | Endpoint::Takeover) => {
                Err(AdminResponse::method_not_allowed("POST"))
            }
            None => {
                let paths: Vec<_> = ENDPOINTS.iter().map(|(path, _)| *path).collect();
                let text = format!("404 Not Found (expected: {})", paths.join(", "));
                Err(AdminResponse::text((404, "Not Found"), &text))
            }
        }
    }

    /// Claims the one takeover that may be under way, if the other side speaks our protocol.
    fn begin_takeover(
        &self,
        request: &AdminRequest<'_>,
        source: RequestSource,
    ) -> Result<AdminResponse, AdminResponse> {
        if matches!(source, RequestSource::Tcp(_)) {
            return Err(AdminResponse::text(
                (403, "Forbidden"),
                "this goes over a Unix socket only",
            ));
        }
        if request.upgrade != Some(takeover::PROTOCOL) {
            return Err(AdminResponse::switching(
                (426, "Upgrade Required"),
                &format!("this process speaks {} only", takeover::PROTOCOL),
            ));
        }
        let timeout = Duration::from_millis(TAKEOVER_WAIT_MS_MAX);
        let is_taken = |takeovers: &mut TakeoverState| takeovers.under_way && !takeovers.refused;
        let waited =
            self.takeover_changed.wait_timeout_while(lock(&self.takeovers), timeout, is_taken);
        let (mut takeovers, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if takeovers.under_way {
            return Err(AdminResponse::text((409, "Conflict"), "another process is taking over"));
        }
        if takeovers.refused {
            let wrong = "this process is ending, and hands nothing over any more";
            return Err(AdminResponse::text((409, "Conflict"), wrong));
        }
        takeovers.under_way = true;
        Ok(AdminResponse::switching(SWITCHING, ""))
    }

    fn hand_over(&self, mut connection: Connection, response: &AdminResponse) {
        let text = connection
            .write_all(&response.encode())
            .and_then(|()| TakeoverChannel::from_admin_connection(&connection));
        if !text.is_ok_and(|text| takeover::offer_takeover(text, &self.hooks.supervisor)) {
            self.handle_takeover_failure();
            // After that, for the supervisor may wait for just this.
            self.hooks.supervisor.send(SupervisorRequest::Repoll);
        }
    }

    fn metrics(&self, request: &AdminRequest<'_>) -> AdminResponse {
        let format = match request.accepts_only_text {
            true => MetricsFormat::PrometheusText,
            false => MetricsFormat::OpenMetrics,
        };
        AdminResponse::page((200, "OK"), format.content_type(), self.metrics.page(format))
    }

    fn health(&self) -> AdminResponse {
        match self.is_draining() {
            true => AdminResponse::text((503, "Service Unavailable"), "draining"),
            false => AdminResponse::text((200, "OK"), "ok"),
        }
    }

    fn config(&self) -> AdminResponse {
        let config = lock(&self.config).clone();
        AdminResponse::page((200, "OK"), "text/plain; charset=utf-8", config)
    }

    fn reload(&self) -> AdminResponse {
        let (sender, outcome) = channel();
        self.hooks.supervisor.send(SupervisorRequest::Reload(sender));
        match outcome.recv() {
            Ok(Ok(number)) => {
                AdminResponse::text((200, "OK"), &format!("configuration {number} is in force"))
            }
            Ok(Err(wrong)) => AdminResponse::text((422, "Unprocessable Content"), &wrong),
            Err(_) => AdminResponse::text((503, "Service Unavailable"), "the process has ended"),
        }
    }

    fn drain(&self) -> AdminResponse {
        self.hooks.supervisor.send(SupervisorRequest::Drain);
        AdminResponse::text((202, "Accepted"), "draining")
    }

    fn reopen_log(&self) -> AdminResponse {
        match (self.hooks.reopen_log)() {
            None => AdminResponse::text((409, "Conflict"), "there is no access log"),
            Some(Ok(())) => AdminResponse::text((200, "OK"), "access log reopened"),
            Some(Err(error)) => {
                let text = format!("access log not reopened: {error}");
                AdminResponse::text((500, "Internal Server Error"), &text)
            }
        }
    }
}

#[cfg(test)]
mod tests;
