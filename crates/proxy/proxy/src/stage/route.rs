//! Stage route: decides by the request header alone what is done with a request.

use millrace_engine::{Engine, Key};
use millrace_http1::{
    Expectation, FieldName, Framing, Host, Method, RequestHead, Scheme, TargetError, TargetForm,
    destination, expectation, parse_decimal, split_list,
};

use crate::admission;
use crate::auth;
use crate::core::{Core, ExchangeParts};
use crate::exchange::reason::Reason;
use crate::exchange::stage::{Event, NextStep, Stage};
use crate::exchange::{Exchange, OwnResponse, RequestPlan, Sender};
use crate::origin::fastcgi;
use crate::route_match;
use crate::secure::layer::SecureLayer;
use crate::snapshot::Snapshot;
use millrace_config::{OriginProtocol, PathForward, Service, ServiceRole};

/// Handles an event of an exchange in this stage.
#[inline]
pub(crate) fn on<E: Engine>(core: &mut Core<E>, key: Key, event: Event) -> NextStep {
    match event {
        Event::Enter | Event::BecameFirst => route(core, key),
        Event::Verified(Ok(())) => route(core, key),
        Event::Verified(Err(reason)) | Event::End(reason) => NextStep::End(reason),
        _ => NextStep::Wait,
    }
}

fn route<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let ExchangeParts { exchange, client, .. } = core.parts_with_client(key);
    let (conn, client) = (&*client, client.client_address.map(|address| address.ip()));
    #[cfg(debug_assertions)]
    panic_if_requested(exchange.request.target());
    let snapshot = exchange.snapshot().clone();
    let service = snapshot.service(exchange.service);
    // After a PROXY header, the client that it names wrote the request, not the trusted peer.
    let is_trusted = admission::is_trusted(service, client);
    (exchange.sender.client, exchange.sender.is_trusted) = (client, is_trusted);
    if !admission::may_use(service, client) {
        return NextStep::End(Reason::ClientDenied);
    }
    if let Some(tls) = conn.wire.tls()
        && is_misdirected(exchange, tls, service, &snapshot)
    {
        return NextStep::End(Reason::Misdirected);
    }
    if service.auth.is_some() && is_proxy_request(exchange) {
        match auth::admit(core, key) {
            Ok(true) => {}
            Ok(false) => return NextStep::Wait,
            Err(reason) => return NextStep::End(reason),
        }
    }
    let exchange = core.exchange(key);
    if is_loop(exchange, &snapshot.pseudonym) {
        return NextStep::End(Reason::Loop);
    }
    if expectation(&exchange.request) == Expectation::Unknown {
        return NextStep::End(Reason::ExpectationUnknown);
    }
    if let Some(own) = own_response(exchange) {
        exchange.plan = RequestPlan::Respond(own);
        return NextStep::Advance(Stage::Deliver);
    }
    match plan(exchange, service, &snapshot) {
        Ok(plan) => {
            exchange.plan = plan;
            let mut next = match plan {
                RequestPlan::Tunnel => Stage::Fetch,
                RequestPlan::Respond(_) => Stage::Deliver,
                _ => Stage::Lookup,
            };
            if let Some(route) = snapshot.route_of(exchange.service, plan) {
                if route.path_forward == PathForward::Normalised {
                    exchange.request.normalise_path();
                }
                if let Some(folder) = &route.folder {
                    if folder.is_internal {
                        return NextStep::End(Reason::FileMissing);
                    }
                    next = Stage::File;
                } else if route.protocol != OriginProtocol::Http
                    && !fastcgi::is_valid_path(&exchange.request)
                {
                    return NextStep::End(Reason::FileNameInvalid);
                }
            }
            NextStep::Advance(next)
        }
        Err(reason) => NextStep::End(reason),
    }
}

/// Returns whether the host of a request to a reverse proxy selects another certificate, or another
/// request for client certificates, than the handshake of its connection did (RFC 9110 section
/// 15.5.20). A client could otherwise evade the request for its certificate.
#[inline(never)]
fn is_misdirected(
    exchange: &Exchange,
    tls: &SecureLayer,
    service: &Service,
    snapshot: &Snapshot,
) -> bool {
    let Some(settings) = snapshot.tls(exchange.service) else { return false };
    if settings.serves_every_host(tls.session()) || matches!(service.role, ServiceRole::Forward(_))
    {
        return false;
    }
    // A malformed target is refused later.
    let Ok(destination) = destination(&exchange.request) else { return false };
    let host = destination.authority.map(|authority| match authority.host {
        Host::Name(name) => String::from_utf8_lossy(name),
        address => address.to_string().into(),
    });
    let server_name = tls.hello.as_ref().and_then(|hello| hello.server_name.as_deref());
    settings.is_misdirected(tls.session(), server_name, host.as_deref())
}

/// Returns whether the request is addressed to a forward proxy. Only such requests need
/// authentication: a browser that takes this proxy for a web server gets an error that says so, not
/// a password prompt.
fn is_proxy_request(exchange: &Exchange) -> bool {
    matches!(exchange.request.form(), TargetForm::Authority | TargetForm::Absolute)
}

fn plan(
    exchange: &mut Exchange,
    service: &Service,
    snapshot: &Snapshot,
) -> Result<RequestPlan, Reason> {
    let Exchange { request, sender, service: index, .. } = exchange;
    let destination = destination(request).map_err(|error| match error {
        TargetError::SchemeUnsupported => Reason::SchemeUnsupported,
        _ => Reason::MalformedTarget,
    })?;
    check_scheme(service, sender.scheme, destination.scheme)?;
    if service.redirect_port.is_some() && needs_https(request, sender) {
        destination.authority.ok_or(Reason::MalformedTarget)?;
        return Ok(RequestPlan::Respond(OwnResponse::HttpsRedirect));
    }
    match &service.role {
        ServiceRole::Boost(_) if request.method() == Method::Connect => Err(Reason::ConnectRefused),
        ServiceRole::Boost(routes) => {
            route_match::select(routes, service, &destination).map(RequestPlan::Route)
        }
        ServiceRole::Forward(rules) => {
            let plan = match request.form() {
                TargetForm::Authority => RequestPlan::Tunnel,
                TargetForm::Absolute => RequestPlan::Target,
                TargetForm::Origin | TargetForm::Asterisk => return Err(Reason::NotAProxyRequest),
            };
            let mut authority = destination.authority.ok_or(Reason::MalformedTarget)?;
            if destination.scheme == Some(Scheme::Https) {
                sender.scheme = Scheme::Https;
                authority.port.get_or_insert(Scheme::Https.port());
            }
            snapshot.target_filter(*index).check(rules, &authority)?;
            Ok(plan)
        }
    }
}

/// Returns whether a service that redirects plain requests to `https` redirects this one. It serves
/// a request that a trusted peer received over `https`, because its client would be redirected for
/// ever.
#[inline(never)]
fn needs_https(request: &RequestHead, sender: &Sender) -> bool {
    let reported = request.values(FieldName::XForwardedProto).next();
    let is_https = |name: &[u8]| Scheme::from_name(name) == Some(Scheme::Https);
    let is_served = sender.scheme == Scheme::Https
        || request.method() == Method::Connect
        || (sender.is_trusted && reported.is_some_and(is_https));
    !is_served
}

/// Checks the scheme of the target, if it is absolute. `own` is that of the client connection.
///
/// RFC 9110 section 7.4: a request for an `https` URI has to arrive over a secured connection. A
/// request for an `http` URI that arrives over one is for the plain port of that host. A client
/// that requests an `https` URI of a forward proxy asks it to secure the connection to the origin.
fn check_scheme(service: &Service, own: Scheme, target: Option<Scheme>) -> Result<(), Reason> {
    let Some(target) = target else { return Ok(()) };
    match (&service.role, own, target) {
        (ServiceRole::Boost(_), Scheme::Https, Scheme::Http) => Err(Reason::Misdirected),
        (ServiceRole::Boost(_), Scheme::Https, Scheme::Https) => Ok(()),
        (ServiceRole::Forward(_), _, Scheme::Https) if service.fetch_tls.is_some() => Ok(()),
        (_, _, Scheme::Https) => Err(Reason::SchemeUnsupported),
        (_, _, Scheme::Http) => Ok(()),
    }
}

/// Returns the response that millrace makes itself to OPTIONS or TRACE with `Max-Forwards: 0` (RFC
/// 9110 section 7.6.2).
fn own_response(exchange: &Exchange) -> Option<OwnResponse> {
    let request = &exchange.request;
    let own = match request.method() {
        Method::Options => OwnResponse::Options,
        Method::Trace if exchange.framing == Framing::None => OwnResponse::Trace,
        _ => return None,
    };
    let field = request.find(FieldName::MaxForwards)?;
    (parse_decimal(request.value_of(field)) == Some(0)).then_some(own)
}

/// Returns whether the request has passed this proxy before: its Via field has our own pseudonym
/// (RFC 9110 section 7.6.3).
fn is_loop(exchange: &Exchange, pseudonym: &str) -> bool {
    let hops = || exchange.request.values(FieldName::Via).flat_map(split_list);
    let is_ours = |hop: &[u8]| {
        let mut words = hop.split(|byte| byte.is_ascii_whitespace());
        words.nth(1) == Some(pseudonym.as_bytes())
    };
    hops().any(is_ours)
}

/// Panics if the target ends with the value of the environment variable `MILLRACE_PANIC`, which is
/// read once. Tests of the worker's restart need a panic.
#[cfg(debug_assertions)]
fn panic_if_requested(target: &[u8]) {
    use std::os::unix::ffi::OsStringExt;
    use std::sync::LazyLock;

    static END: LazyLock<Option<Vec<u8>>> = LazyLock::new(|| {
        let value = std::env::var_os("MILLRACE_PANIC")?.into_vec();
        (!value.is_empty()).then_some(value)
    });
    if END.as_ref().is_some_and(|end| target.ends_with(end)) {
        panic!("MILLRACE_PANIC requests this panic");
    }
}
