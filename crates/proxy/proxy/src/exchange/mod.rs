//! Exchanges: a request and its response, from the end of the request header to the log record.

pub mod access_log;
pub(crate) mod end;
pub(crate) mod headers;
pub(crate) mod hello_peek;
pub(crate) mod local_redirect;
mod plan;
pub(crate) mod pool;
pub mod reason;
pub(crate) mod sendfile;
pub(crate) mod stage;

use std::rc::Rc;

use millrace_engine::{Charge, Engine, Instant, Key};
use millrace_http1::{
    Expectation, Forwarding, Framing, OriginRequest, RequestHead, ResponseHead, expectation,
};

use millrace_splice::Pipes;

use crate::auth::Access;
use crate::cached::CacheContext;
use crate::exchange::hello_peek::HelloPeek;
pub(crate) use crate::exchange::plan::{OwnResponse, RequestPlan, Sender};
pub(crate) use crate::exchange::reason::{Failure, Reason};
pub(crate) use crate::exchange::stage::{
    Abort, AfterExchange, Event, EventTarget, NextStep, Stage,
};
use crate::files::FileContext;
use crate::origin::{Phase, Transaction};
use crate::snapshot::{RouteOrigins, Snapshot};
use crate::transfer::{Transfer, TransferState, stats::TransferStats};

/// An exchange. Its memory is recycled together with that of its headers: see [`Exchange::reset`].
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    pub(crate) stage: Stage,
    /// The client connection, which outlives the exchange. `None` for a refresh (see
    /// `cached/refresh.rs`).
    pub(crate) conn: Option<Key>,
    /// The next exchange of the same client connection.
    pub(crate) next_in_pipeline: Option<Key>,
    /// The configuration snapshot with which the exchange began.
    pub(crate) snapshot: Option<Rc<Snapshot>>,
    /// The index of the service in the configuration.
    pub(crate) service: u16,
    pub(crate) plan: RequestPlan,
    /// The client, set by the parse and route stages. A refresh copies it from the exchange that
    /// caused it.
    pub(crate) sender: Sender,
    pub(crate) request: RequestHead,
    /// Whether `request` holds a valid header. False if the header was refused.
    pub(crate) has_request: bool,
    pub(crate) framing: Framing,
    pub(crate) response: ResponseHead,
    pub(crate) transaction: Transaction,
    pub(crate) upload: Transfer,
    pub(crate) download: Transfer,
    pub(crate) started: Option<Instant>,
    /// The status sent to the client. 0 if none was sent yet.
    pub(crate) status: u16,
    /// Whether the client connection stays open after this exchange.
    pub(crate) is_persistent: bool,
    /// Whether both transfers are directions of a tunnel.
    pub(crate) is_tunnel: bool,
    /// The peek at the ClientHello of a tunnel; `None` if nothing depends on the ClientHello.
    pub(crate) peek: Option<Box<HelloPeek>>,
    /// How the client connection ends, if the response was not delivered whole.
    pub(crate) abort: Option<Abort>,
    /// Why the exchange was refused or broken off.
    pub(crate) reason: Option<Reason>,
    /// Charges to the worker's memory budget: for the exchange with its request header, and for its
    /// response header.
    pub(crate) charges: [Option<Charge>; 2],
    /// The result of authentication, if the service requires it.
    pub(crate) access: Access,
    /// The state of this exchange at the cache.
    pub(crate) caching: CacheContext,
    /// The state of this exchange at the files and programs of a folder; `None` until its route
    /// has some. See [`Exchange::file_mut`].
    pub(crate) file: Option<Box<FileContext>>,
}

impl Exchange {
    /// Resets the exchange and keeps the memory of its headers. The fields are reset one by one,
    /// because building a new exchange and moving it here would cost 5 % of a cache hit.
    pub(crate) fn reset(&mut self) {
        let Self {
            stage,
            conn,
            next_in_pipeline,
            snapshot,
            service,
            plan,
            sender,
            request,
            has_request,
            framing,
            response,
            transaction,
            upload,
            download,
            started,
            status,
            is_persistent,
            is_tunnel,
            peek,
            abort,
            reason,
            charges,
            access,
            caching,
            file,
        } = self;
        request.clear();
        response.clear();
        (*conn, *next_in_pipeline, *snapshot, *started, *reason) = Default::default();
        (*stage, *service, *plan, *framing) = Default::default();
        *sender = Default::default();
        (*has_request, *status, *is_persistent, *is_tunnel, *abort) = Default::default();
        *peek = None;
        *transaction = Default::default();
        *upload = Default::default();
        *download = Default::default();
        *charges = Default::default();
        *access = Default::default();
        *caching = Default::default();
        if file.is_some() {
            *file = None;
        }
    }

    /// Returns the request of the client, without the effect of local redirects.
    pub(crate) fn client_request(&self) -> &RequestHead {
        self.sender.redirected.as_ref().map_or(&self.request, |client| &client.head)
    }

    /// Returns the number of payload bytes of the client's body that were passed on.
    pub(crate) fn body_bytes(&self) -> u64 {
        let before = self.sender.redirected.as_ref().map_or(0, |client| client.body_bytes);
        before + self.upload.forwarded()
    }

    /// Returns the state at the files and programs of a folder, which begins here.
    pub(crate) fn file_mut(&mut self) -> &mut FileContext {
        self.file.get_or_insert_default()
    }

    /// Returns whether the client waits for an interim response before it sends its body (RFC 9110
    /// section 10.1.1). The origin causes that delay, not the client.
    pub(crate) fn awaits_continue(&self) -> bool {
        self.transaction.phase == Phase::Requesting
            && self.transaction.interim_count == 0
            && self.upload.forwarded() == 0
            && expectation(&self.request) == Expectation::Continue
    }

    /// Returns whether the bytes of the client are held until the ClientHello of a tunnel is known.
    pub(crate) fn is_peeking(&self) -> bool {
        self.peek.as_ref().is_some_and(|peek| peek.holds())
    }

    /// Returns whether the whole request was received from the client.
    pub(crate) fn has_received_request(&self) -> bool {
        self.has_request
            && self.sender.redirected.as_ref().is_none_or(|client| !client.has_unread_body)
            && (matches!(self.framing, Framing::None | Framing::Length(0))
                || self.upload.has_received_all()
                || self.file.as_ref().is_some_and(|file| file.stored.is_some()))
    }

    /// Returns whether the request has a body that is not completely sent to the origin, as far as
    /// the engine has reported.
    pub(crate) fn has_unsent_body(&self) -> bool {
        !matches!(self.framing, Framing::None | Framing::Length(0)) && !self.upload.has_ended()
    }

    /// Returns whether the upload has ended or never begun.
    pub(crate) fn has_finished_upload(&self) -> bool {
        matches!(self.upload.state(), TransferState::Off | TransferState::Ended)
    }

    /// Returns whether this is a tunnel of which both directions have ended. Only the announced end
    /// of the stream to the origin is unsent.
    pub(crate) fn is_finished_tunnel(&self) -> bool {
        self.is_tunnel && self.upload.has_ended() && self.download.has_ended()
    }

    /// Ends both transfers in any state.
    pub(crate) fn abandon_transfers<E: Engine>(&mut self, engine: &mut E, pipes: &mut Pipes) {
        self.upload.abandon(engine, pipes);
        self.download.abandon(engine, pipes);
    }

    /// Returns the statistics of both transfers together.
    pub(crate) fn transfer_stats(&self) -> TransferStats {
        let before = self.sender.redirected.as_ref().map(|client| client.body_stats);
        self.upload.stats() + self.download.stats() + before.unwrap_or_default()
    }

    /// Returns the client connection of an exchange that is not a refresh.
    pub(crate) fn conn(&self) -> Key {
        self.conn.expect("set when the exchange begins, never taken")
    }

    /// Returns whether this is a refresh, which has no client.
    pub(crate) fn is_refresh(&self) -> bool {
        self.conn.is_none()
    }

    /// Returns the request as its origin receives it.
    pub(crate) fn origin_request(&self) -> OriginRequest<'_> {
        origin_request(&self.request, &self.sender, self.service, self.plan, self.snapshot())
    }

    /// Returns whether the route permits its origins to name files.
    #[inline]
    pub(crate) fn permits_sendfile(&self) -> bool {
        let route = self.snapshot().route_of(self.service, self.plan);
        route.is_some_and(|route| route.sendfile.is_some())
    }

    /// Returns the origins of the selected route, if there is one.
    pub(crate) fn route_origins(&self) -> Option<&RouteOrigins> {
        let RequestPlan::Route(index) = self.plan else { return None };
        Some(self.snapshot().route(self.service, index))
    }

    /// Returns the configuration that is in force for this exchange.
    pub(crate) fn snapshot(&self) -> &Rc<Snapshot> {
        self.snapshot.as_ref().expect("set when the exchange begins, never taken")
    }
}

/// Returns the request as its origin receives it, for an exchange whose fields are borrowed
/// separately.
pub(crate) fn origin_request<'a>(
    request: &'a RequestHead,
    sender: &'a Sender,
    service: u16,
    plan: RequestPlan,
    snapshot: &'a Snapshot,
) -> OriginRequest<'a> {
    let &Sender { scheme, client, is_trusted, ref certificate, .. } = sender;
    let forwarding = match snapshot.route_of(service, plan) {
        Some(route) => {
            Forwarding::Gateway { client, is_trusted, always_forwarded: &route.pass_fields }
        }
        None => Forwarding::Proxy,
    };
    let certificate = certificate.as_deref().map(|client| &client.fields);
    OriginRequest::new(request, scheme, forwarding).with_certificate(certificate)
}
