//! The admin server: metrics, health, configuration, and changes of the running process, over
//! HTTP/1.0 on its own threads. It never touches the data plane: it reads what the workers publish
//! and sends requests to the supervisor.
//!
//! It is small and bounded on purpose: one short request per connection, a limit of connections,
//! and a deadline for each.

mod access;
mod cache_pages;
mod connection_limit;
mod listeners;
mod query;
mod request;
mod response;
mod tls;
mod token;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_config::Config;
use millrace_http1::{Method, RequestHead};
use millrace_store::Cache;

use crate::console;
use crate::http::{Connection, Socket, Status};
use crate::metrics::{Metrics, MetricsFormat};
use crate::supervisor_requests::{SupervisorHandle, SupervisorRequest};
use crate::takeover::{self, TakeoverChannel};
use crate::threads::{lock, spawn};

use access::RequestSource;
use connection_limit::ConnectionPermit;
use query::Query;
use request::AdminRequest;
use response::AdminResponse;

pub(crate) use access::{AccessRules, is_trusted};
pub(crate) use connection_limit::ConnectionLimit;
pub(crate) use listeners::AdminListeners;
pub(crate) use response::MATCHED_FIELD;
pub(crate) use token::Token;

/// Bytes that are read and discarded after a refused request, so that a reset does not destroy the
/// response.
const DISCARDED_BYTES_MAX: usize = 64 * 1024;
/// Time from accepting a connection to its response, and from the response to the end.
const CONNECTION_MS_MAX: u64 = 5000;
/// Time that a takeover request waits for the end of another takeover, whose failure may not have
/// been noticed yet.
const TAKEOVER_WAIT_MS_MAX: u64 = 3000;

type TestCertificates = dyn Fn(Option<&[u8]>) -> Result<String, String> + Send + Sync;

/// The parts of the process that the admin server calls.
pub(crate) struct Hooks {
    pub(crate) supervisor: SupervisorHandle,
    /// Reopens the access log; `None`: there is none.
    pub(crate) reopen_log: Box<dyn Fn() -> Option<std::io::Result<()>> + Send + Sync>,
    /// Places test orders of the certificates by ACME, whose checksum the request may name. The
    /// error is one line with the failures.
    pub(crate) test_certificates: Box<TestCertificates>,
    /// The cache, if there is one.
    pub(crate) cache: Option<Arc<Cache>>,
}

/// The admin server.
pub(crate) struct Admin {
    metrics: Metrics,
    /// The configuration in force, as TOML. It names files with secrets and contains no secret.
    config: Mutex<String>,
    access: AccessRules,
    /// TLS of those addresses that use it.
    tls: tls::AdminTlsSettings,
    hooks: Hooks,
    /// Set once, when the process stops accepting connections.
    draining: AtomicBool,
    takeovers: Mutex<TakeoverState>,
    /// Notified when a takeover ends or when takeovers are refused.
    takeover_changed: Condvar,
    tcp: Arc<ConnectionLimit>,
    /// Separate from `tcp`: clients of a Unix socket may change the process, and many connections
    /// over TCP must not keep them out.
    unix: Arc<ConnectionLimit>,
}

/// The state of takeovers.
#[derive(Default)]
struct TakeoverState {
    /// A successor is taking over.
    under_way: bool,
    /// The process is ending: no takeover may start.
    refused: bool,
}

/// The methods and permissions of a path.
#[derive(Clone, Copy)]
enum Endpoint {
    /// POST starts a takeover; Unix sockets only.
    Takeover,
    /// GET and HEAD, for every client.
    Read(Handler),
    /// GET and HEAD, for authorized clients: the response contains data of the proxy's clients.
    PrivateRead(Handler),
    /// POST, for authorized clients.
    Action(Handler),
}

/// Handles a request; the error is the response of a refusal.
type Handler = fn(&Admin, &AdminRequest<'_>) -> Result<AdminResponse, AdminResponse>;

/// The path for test orders of certificates.
pub(crate) const TEST_ORDERS_PATH: &str = "/acme/test";
/// The parameter for the checksum of the certificates to test.
pub(crate) const ORDERS_PARAMETER: &str = "orders";

const SWITCHING: Status = (101, "Switching Protocols");

const ENDPOINTS: &[(&str, Endpoint)] = &[
    ("/metrics", Endpoint::Read(|admin, request| Ok(admin.metrics(request)))),
    ("/healthz", Endpoint::Read(|admin, _| Ok(admin.health()))),
    ("/config", Endpoint::Read(|admin, _| Ok(admin.config()))),
    ("/reload", Endpoint::Action(|admin, _| Ok(admin.reload()))),
    ("/drain", Endpoint::Action(|admin, _| Ok(admin.drain()))),
    ("/log/reopen", Endpoint::Action(|admin, _| Ok(admin.reopen_log()))),
    ("/cache", Endpoint::PrivateRead(cache_pages::list)),
    ("/cache/object", Endpoint::PrivateRead(cache_pages::show)),
    ("/cache/stat", Endpoint::Read(cache_pages::stat)),
    ("/cache/purge", Endpoint::Action(cache_pages::purge)),
    (TEST_ORDERS_PATH, Endpoint::Action(Admin::test_certificates)),
    (takeover::PATH, Endpoint::Takeover),
];

impl Admin {
    /// Creates the server, which needs [`Admin::set_config`].
    pub(crate) fn new(metrics: Metrics, access: AccessRules, hooks: Hooks) -> Self {
        Self {
            metrics,
            config: Mutex::default(),
            access,
            tls: tls::AdminTlsSettings::default(),
            hooks,
            draining: AtomicBool::new(false),
            takeovers: Mutex::default(),
            takeover_changed: Condvar::new(),
            tcp: Arc::default(),
            unix: Arc::default(),
        }
    }

    /// Sets the configuration that `/config` returns, and the certificate.
    pub(crate) fn set_config(&self, config: &Config) {
        *lock(&self.config) = millrace_config::to_toml(config);
        self.tls.set(config.admin_tls.as_ref());
    }

    /// Marks the process as draining for `/healthz`, and refuses takeovers.
    pub(crate) fn set_draining(&self) {
        // Relaxed: pairs with the load in `is_draining`; the flag guards no other memory.
        self.draining.store(true, Ordering::Relaxed);
        self.refuse_takeovers();
    }

    /// Refuses new takeovers; a takeover in progress continues.
    pub(crate) fn refuse_takeovers(&self) {
        lock(&self.takeovers).refused = true;
        self.takeover_changed.notify_all();
    }

    fn is_draining(&self) -> bool {
        // Pairs with the store in `set_draining`.
        self.draining.load(Ordering::Relaxed)
    }

    /// Records that the takeover in progress has failed.
    pub(crate) fn handle_takeover_failure(&self) {
        lock(&self.takeovers).under_way = false;
        self.takeover_changed.notify_one();
    }

    /// Returns whether a successor is taking over. A reload would not reach it, because it has read
    /// its configuration already.
    pub(crate) fn is_upgrading(&self) -> bool {
        lock(&self.takeovers).under_way
    }

    /// Serves a connection on a thread of its own. Closes it if there are too many.
    fn handle_connection(self: &Arc<Self>, connection: Connection, uses_tls: bool) {
        let is_unix = matches!(**connection.socket(), Socket::Unix(_));
        let limit = if is_unix { &self.unix } else { &self.tcp };
        let Some(permit) = limit.acquire(connection.socket()) else { return };
        let this = Arc::clone(self);
        // An error means that the client is gone or too slow, or that no thread could be started.
        let _ = spawn("admin-connection", move || {
            _ = this.serve(connection, uses_tls, &permit);
        });
    }

    fn serve(
        &self,
        mut connection: Connection,
        uses_tls: bool,
        permit: &ConnectionPermit,
    ) -> std::io::Result<()> {
        connection.set_deadline(Instant::now() + Duration::from_millis(CONNECTION_MS_MAX));
        if uses_tls {
            connection.secure(self.tls.accept()?)?;
        }
        let response = match connection.read_request() {
            Ok(head) => self.respond(&head, RequestSource::of_connection(&connection)?, permit),
            Err(error) => AdminResponse::malformed(error.downcast()?),
        };
        // Handling the request may have used up the first deadline.
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
                "request bodies are not allowed",
            ));
        }
        match path {
            Some(Endpoint::Read(page)) if is_read => page(self, request),
            Some(Endpoint::PrivateRead(page)) if is_read => {
                self.access.check_authorized(request, source)?;
                page(self, request)
            }
            Some(Endpoint::Read(_) | Endpoint::PrivateRead(_)) => {
                Err(AdminResponse::method_not_allowed("GET, HEAD"))
            }
            Some(Endpoint::Action(call)) if request.method == Method::Post => {
                self.access.check_authorized(request, source)?;
                console::log(&format!("admin: POST {} from {source}", request.path));
                // Further connections must not evict this one before its response is sent.
                permit.make_unevictable();
                call(self, request)
            }
            Some(Endpoint::Takeover) if request.method == Method::Post => {
                self.access.check_authorized(request, source)?;
                self.begin_takeover(request, source)
            }
            Some(Endpoint::Action(_) | Endpoint::Takeover) => {
                Err(AdminResponse::method_not_allowed("POST"))
            }
            None => {
                let paths: Vec<_> = ENDPOINTS.iter().map(|(path, _)| *path).collect();
                let text = format!("404 Not Found (expected: {})", paths.join(", "));
                Err(AdminResponse::text((404, "Not Found"), &text))
            }
        }
    }

    /// Reserves the single takeover, if the client sent the right upgrade token.
    fn begin_takeover(
        &self,
        request: &AdminRequest<'_>,
        source: RequestSource,
    ) -> Result<AdminResponse, AdminResponse> {
        if matches!(source, RequestSource::Tcp(..)) {
            return Err(AdminResponse::text(
                (403, "Forbidden"),
                "takeovers are only allowed over a Unix socket",
            ));
        }
        if request.upgrade != Some(takeover::PROTOCOL) {
            return Err(AdminResponse::switching(
                (426, "Upgrade Required"),
                &format!("unsupported Upgrade (expected: {})", takeover::PROTOCOL),
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
            let wrong = "this process is draining, so no other process can take over";
            return Err(AdminResponse::text((409, "Conflict"), wrong));
        }
        takeovers.under_way = true;
        Ok(AdminResponse::switching(SWITCHING, ""))
    }

    fn hand_over(&self, mut connection: Connection, response: &AdminResponse) {
        let channel = connection
            .write_all(&response.encode())
            .and_then(|()| TakeoverChannel::from_admin_connection(&connection));
        if !channel.is_ok_and(|channel| takeover::offer_takeover(channel, &self.hooks.supervisor)) {
            self.handle_takeover_failure();
            // This request wakes the supervisor, which may be waiting for the end of the takeover.
            // So the failure is recorded first.
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

    fn test_certificates(
        &self,
        request: &AdminRequest<'_>,
    ) -> Result<AdminResponse, AdminResponse> {
        let query = Query::parse(request.query, &[ORDERS_PARAMETER])?;
        let lines = (self.hooks.test_certificates)(query.get(ORDERS_PARAMETER));
        Ok(match lines {
            Ok(lines) => AdminResponse::text((200, "OK"), &lines),
            Err(line) => AdminResponse::text((502, "Bad Gateway"), &line),
        })
    }

    fn reopen_log(&self) -> AdminResponse {
        match (self.hooks.reopen_log)() {
            None => AdminResponse::text((409, "Conflict"), "there is no access log"),
            Some(Ok(())) => AdminResponse::text((200, "OK"), "access log reopened"),
            Some(Err(error)) => {
                let text = format!("cannot reopen the access log: {error}");
                AdminResponse::text((500, "Internal Server Error"), &text)
            }
        }
    }
}

#[cfg(test)]
mod tests;
