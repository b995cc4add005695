//! One request and its response, from the end of the request header to the log record.

pub mod access_log;
pub(crate) mod end;
pub(crate) mod headers;
mod plan;
pub(crate) mod pool;
pub mod reason;
pub(crate) mod stage;

use std::rc::Rc;

use millrace_engine::{Charge, Engine, Instant, Key};
use millrace_http1::{
    AnswerHead, Expectation, Forwarding, Framing, OriginRequest, RequestHead, expectation,
};

use millrace_splice::Pipes;

use crate::auth::Access;
use crate::cached::CacheContext;
pub(crate) use crate::exchange::plan::{OwnResponse, RequestPlan, Sender};
pub(crate) use crate::exchange::reason::{Failure, Reason};
pub(crate) use crate::exchange::stage::{
    Abort, AfterExchange, Event, EventTarget, NextStep, Stage,
};
use crate::origin::{Phase, Transaction};
use crate::snapshot::{RouteOrigins, Snapshot};
use crate::transfer::{Transfer, TransferState, stats::TransferStats};

/// An exchange. Recycled with the memory of its headers: see [`Exchange::reset`].
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    pub(crate) stage: Stage,
    /// The client connection; outlives the exchange. `None`: a refresh, see `refresh.rs`.
    pub(crate) conn: Option<Key>,
    /// The one after it on that connection.
    pub(crate) next_in_pipeline: Option<Key>,
    /// The configuration that it began with.
    pub(crate) snapshot: Option<Rc<Snapshot>>,
    /// Index into the configuration's services.
    pub(crate) service: u16,
    pub(crate) plan: RequestPlan,
    /// Set when it is routed. A refresh has that of the exchange that caused it.
    pub(crate) sender: Sender,
    pub(crate) request: RequestHead,
    /// Whether `request` holds a header; not so where the header was refused.
    pub(crate) has_request: bool,
    pub(crate) framing: Framing,
    pub(crate) response: AnswerHead,
    pub(crate) transaction: Transaction,
    pub(crate) upload: Transfer,
    pub(crate) download: Transfer,
    pub(crate) started: Option<Instant>,
    /// The status sent to the client; 0 before one was.
    pub(crate) status: u16,
    /// Whether the client's connection goes on after this exchange.
    pub(crate) is_persistent: bool,
    /// Whether both transfers are directions of a tunnel.
    pub(crate) is_tunnel: bool,
    /// How the response ends, where it is not delivered whole.
    pub(crate) abort: Option<Abort>,
    /// Why it did not end as it should.
    pub(crate) reason: Option<Reason>,
    /// What it takes of the worker's budget: itself and the headers that it holds.
    pub(crate) charges: [Option<Charge>; 2],
    /// What is known of its sender, where a service asks.
    pub(crate) access: Access,
    /// What the cache has to do with it.
    pub(crate) caching: CacheContext,
}

impl Exchange {
    /// Resets it, and keeps the memory of its headers. Field by field: an exchange that is made
    /// elsewhere and moved here costs a twentieth of a hit.
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
            abort,
            reason,
            charges,
            access,
            caching,
        } = self;
        request.clear();
        response.clear();
        (*conn, *next_in_pipeline, *snapshot, *started, *reason) = Default::default();
        (*stage, *service, *plan, *sender, *framing) = Default::default();
        (*has_request, *status, *is_persistent, *is_tunnel, *abort) = Default::default();
        *transaction = Default::default();
        *upload = Default::default();
        *download = Default::default();
        *charges = Default::default();
        *access = Default::default();
        *caching = Default::default();
    }

    /// Whether the client waits for word from the origin before it sends its body (RFC 9110 section
    /// 10.1.1): then it is the origin that takes its time.
    pub(crate) fn awaits_continue(&self) -> bool {
        self.transaction.phase == Phase::Asked
            && self.transaction.interim == 0
            && self.upload.forwarded() == 0
            && expectation(&self.request) == Expectation::Continue
    }

    /// Whether nothing of the request is still to come from the client.
    pub(crate) fn has_received_request(&self) -> bool {
        self.has_request
            && (matches!(self.framing, Framing::None | Framing::Length(0))
                || self.upload.has_received_all())
    }

    /// Whether the request body has bytes that, as far as the engine has reported, were not sent to
    /// the origin.
    pub(crate) fn has_unsent_body(&self) -> bool {
        !matches!(self.framing, Framing::None | Framing::Length(0)) && !self.upload.has_ended()
    }

    /// Whether the upload has nothing left to do.
    pub(crate) fn has_finished_upload(&self) -> bool {
        matches!(self.upload.state(), TransferState::Off | TransferState::Ended)
    }

    /// Ends both transfers, wherever they are.
    pub(crate) fn abandon_transfers<E: Engine>(&mut self, engine: &mut E, pipes: &mut Pipes) {
        self.upload.abandon(engine, pipes);
        self.download.abandon(engine, pipes);
    }

    /// What moving its bodies took, both ways.
    pub(crate) fn transfer_stats(&self) -> TransferStats {
        self.upload.stats() + self.download.stats()
    }

    /// The client connection of an exchange that is no refresh.
    pub(crate) fn conn(&self) -> Key {
        self.conn.expect("set when the exchange begins, never taken")
    }

    /// Whether it has no client.
    pub(crate) fn is_refresh(&self) -> bool {
        self.conn.is_none()
    }

    /// The request as its origin receives it.
    pub(crate) fn origin_request(&self) -> OriginRequest<'_> {
        origin_request(&self.request, self.sender, self.service, self.plan, self.snapshot())
    }

    /// The origins of its route, where one was picked.
    pub(crate) fn route_origins(&self) -> Option<&RouteOrigins> {
        let RequestPlan::Route(index) = self.plan else { return None };
        Some(self.snapshot().route(self.service, index))
    }

    /// The configuration in force for this exchange.
    pub(crate) fn snapshot(&self) -> &Rc<Snapshot> {
        self.snapshot.as_ref().expect("set when the exchange begins, never taken")
    }
}

/// The request as its origin receives it, of an exchange whose parts are borrowed apart.
pub(crate) fn origin_request<'a>(
    request: &'a RequestHead,
    Sender { client, is_trusted }: Sender,
    service: u16,
    plan: RequestPlan,
    snapshot: &'a Snapshot,
) -> OriginRequest<'a> {
    let forwarding = match snapshot.route_of(service, plan) {
        Some(route) => Forwarding::Gateway { client, is_trusted, passed: &route.pass_fields },
        None => Forwarding::Proxy,
    };
    OriginRequest::new(request, forwarding)
}
