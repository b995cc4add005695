//! Requests to FastCGI servers: the environment of the program that responds.

use std::net::SocketAddr;

use millrace_config::OriginProtocol;
use millrace_engine::{Engine, Key};
use millrace_fastcgi::{AuthorizationFor, CGI_FOLDER_VARIABLE, Environment, write_input_header};
use millrace_http1::format::{write_ip, write_ip_host, write_normalised_authority, write_number};
use millrace_http1::{
    Authority, Expectation, Framing, HeaderWriter, Method, RequestHead, Scheme, Version,
    destination, expectation, path,
};

use crate::conn::h1;
use crate::core::{Core, ExchangeParts};
use crate::exchange::{Exchange, headers};
use crate::origin::{OriginAddress, OriginId, events, fastcgi_errors};
use crate::transfer::sink::TransferSink;
use crate::transfer::{TransferProgress, upload};

/// Returns whether the origins of the exchange's route speak FastCGI.
#[inline]
pub(crate) fn is_used(exchange: &Exchange) -> bool {
    exchange.snapshot().origin_protocol(exchange.service, exchange.plan) == OriginProtocol::FastCgi
}

/// Returns whether a program responds to the requests of the exchange's route, by any protocol.
#[inline]
fn is_for_program(exchange: &Exchange) -> bool {
    exchange.snapshot().origin_protocol(exchange.service, exchange.plan) != OriginProtocol::Http
}

/// Returns whether the path of a request may be that of a program: decoded, it has no NUL, which
/// would end a variable, and no segment `..`, which would lead out of a folder.
pub(crate) fn is_valid_path(request: &RequestHead) -> bool {
    let Ok(destination) = destination(request) else { return false };
    let (path, _) = path::split_query(destination.path_and_query);
    if path::is_plain(path) {
        return true;
    }
    let mut decoded = Vec::new();
    path::decode_escapes(&path::normalise(path), &mut decoded);
    let mut segments = decoded.split(|byte| matches!(byte, b'/' | b'\\'));
    !decoded.contains(&0) && !segments.any(|segment| segment == b"..")
}

/// Returns whether a connection to the origins of the exchange's route occupies a process there,
/// even while it is idle. The launcher of CGI programs starts a process for each request.
pub(crate) fn occupies_process(exchange: &Exchange) -> bool {
    let route = exchange.snapshot().route_of(exchange.service, exchange.plan);
    route.is_some_and(|it| it.protocol == OriginProtocol::FastCgi && it.cgi.is_none())
}

/// Returns whether the body of a request is received before the request is sent. A longer body is
/// sent while it arrives, if its length is known.
#[inline(always)]
pub(crate) fn receives_body_first<E: Engine>(core: &mut Core<E>, key: Key) -> bool {
    let exchange = core.exchange(key);
    let has_body = !matches!(exchange.framing, Framing::None | Framing::Length(0));
    if !has_body || !is_for_program(exchange) {
        return false;
    }
    if !is_used(exchange) {
        return true;
    }
    let has_folders = core.shared.uploads.get().is_some();
    let exchange = core.exchange(key);
    match exchange.framing {
        Framing::Length(length) => length <= received_bytes_max(exchange, has_folders),
        _ => true,
    }
}

/// Returns the most bytes of a body that is received before its request is sent: in memory, or in
/// a file if there are folders for such files.
pub(crate) fn received_bytes_max(exchange: &Exchange, has_folders: bool) -> u64 {
    let in_file = if has_folders && is_used(exchange) {
        exchange.snapshot().limits().upload_file_bytes
    } else {
        0
    };
    buffer_bytes(exchange).max(in_file)
}

/// Returns the most bytes of a body that is received into memory.
pub(crate) fn buffer_bytes(exchange: &Exchange) -> u64 {
    let route = exchange.snapshot().route_of(exchange.service, exchange.plan);
    route.map_or(0, |route| route.upload_buffer_bytes)
}

/// Sends 100 (Continue) to a client that waits for it before it sends the body. A program cannot.
pub(crate) fn send_continue<E: Engine>(core: &mut Core<E>, key: Key) {
    let ExchangeParts { engine, exchange, client, out, .. } = core.parts_with_client(key);
    let request = &exchange.request;
    let is_awaited =
        expectation(request) == Expectation::Continue && request.version() == Version::Http11;
    if is_awaited && client.may_send(key) {
        out.clear();
        let mut header = h1::header(out);
        header.response(100, b"Continue");
        header.end();
        client.wire.send(engine, &[out]);
    }
}

/// Sends the request to the program at `id`, over the connection that the exchange has now.
#[inline(never)]
pub(crate) fn send_request<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    id: OriginId,
) -> TransferProgress {
    let exchange = core.exchange(key);
    let has_body = exchange.file.as_ref().is_some_and(|file| file.body.is_some());
    if !exchange.has_received_request() && !has_body && !exchange.is_refresh() {
        send_continue(core, key);
    }
    let Core { engine, exchanges, origins, conns, out, .. } = core;
    let exchange = exchanges.get_mut(key).expect("the exchange has a connection");
    let client = exchange.conn.and_then(|conn| conns.get_mut(conn));
    let peer = client.as_ref().and_then(|client| client.client_address);
    let local = client.and_then(|client| client.destination(engine));
    out.clear();
    let mut environment = std::mem::take(&mut origins.environment);
    let origin = (origins.address(id), origins.default_port(id));
    set_environment(&mut environment, exchange, origin, [peer, local]);
    write_request(out, exchange, &environment);
    origins.environment = environment;
    let ExchangeParts { exchange, origin, .. } = core.parts(key);
    let is_head = exchange.request.method() == Method::Head;
    let header_max = exchange.snapshot().response_limits.bytes_max;
    let target = exchange.request.target();
    let origin = origin.expect("the request has its connection");
    origin.wire.begin_records(is_head, header_max, target);
    events::receive(core, key);
    let ExchangeParts { engine, exchange, client, origin, out, .. } = core.parts(key);
    if client.is_none() {
        // A refresh has no body.
        exchange.upload = Default::default();
        origin.expect("the request has its connection").wire.send(engine, &[out]);
        return TransferProgress::Waiting;
    }
    exchange.upload.start(exchange.framing, false, engine.now());
    exchange.upload.send_records();
    if let Some(file) = &mut exchange.file {
        file.begin_upload();
    }
    upload::pump(core, key, true)
}

/// Composes the environment of a request to the program at `origin`, with the fields that an origin
/// of HTTP receives too.
pub(super) fn set_environment(
    environment: &mut Environment,
    exchange: &mut Exchange,
    origin: (&OriginAddress, u16),
    [peer, local]: [Option<SocketAddr>; 2],
) {
    let route = exchange.snapshot().route_of(exchange.service, exchange.plan);
    let authorization = match route.is_some_and(|route| route.cgi.is_some()) {
        true => AuthorizationFor::NoProgram,
        false => AuthorizationFor::Program,
    };
    environment.restart(authorization);
    if exchange.sender.redirected.is_some() {
        let client = destination(exchange.client_request());
        let client = client.expect("the route stage has checked it before the local redirect");
        environment.set_client_target(client.path_and_query);
    }
    headers::write_request(environment, exchange, origin);
    set_program(environment, exchange);
    set_connection(environment, exchange, [peer, local]);
}

/// Writes a request to a program: its environment, and the end of its body if it has none.
fn write_request(out: &mut Vec<u8>, exchange: &Exchange, environment: &Environment) {
    millrace_fastcgi::write_request(out, environment);
    let is_received = exchange.file.as_ref().is_some_and(|file| file.body.is_some());
    // The upload of a received body, even of an empty one, ends with such a record.
    if matches!(exchange.framing, Framing::None | Framing::Length(0)) && !is_received {
        out.extend_from_slice(&write_input_header(0));
    }
}

/// Notes that the header of the response was received.
#[inline(never)]
pub(crate) fn note_response<E: Engine>(core: &mut Core<E>, key: Key) {
    let now = core.engine.now();
    let Core { exchanges, origins, shared, .. } = core;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is in the table");
    let transaction = &mut exchange.transaction;
    let origin_use = transaction.connection.as_ref().expect("the response arrives on it");
    let connection = origins.connections.get_mut(origin_use.slot()).expect("it is in use");
    transaction.is_local_redirect = connection.wire.is_local_redirect();
    // The rest is reported with the end of the response, which may be far.
    fastcgi_errors::report(shared, &mut connection.wire);
    let (is_first, id) = (connection.first_response.take().is_some(), connection.origin);
    if let Some(processes) = &origins.state(id).processes {
        let time = now.since(transaction.awaiting_since);
        processes.waits.note_response(time, is_first);
    }
}

/// Sets the variables that name the program.
fn set_program(environment: &mut Environment, exchange: &Exchange) {
    let destination = destination(&exchange.request).expect("the route stage has checked it");
    let snapshot = exchange.snapshot();
    let route = snapshot.route_of(exchange.service, exchange.plan).expect("the plan is a route");
    let (full_path, _) = path::split_query(destination.path_and_query);
    let mut mount = route.path.trim_end_matches('/').as_bytes();
    environment.set(b"DOCUMENT_URI", full_path);
    if let Some(cgi) = &route.cgi {
        environment.set(CGI_FOLDER_VARIABLE.as_bytes(), cgi.number.to_string().as_bytes());
    }
    let script = exchange.file.as_ref().and_then(|file| file.script.as_ref());
    match (&route.folder, script) {
        (Some(folder), Some(script)) => {
            let root = folder.path.as_os_str().as_encoded_bytes();
            let root = root.strip_suffix(b"/").unwrap_or(root);
            let name = [mount, b"/", &script.path[..]].concat();
            environment.set(b"SCRIPT_NAME", &name);
            environment.set(b"SCRIPT_FILENAME", &[root, b"/", &script.path[..]].concat());
            environment.set(b"DOCUMENT_ROOT", root);
            environment.set(b"PATH_INFO", &script.path_info);
        }
        // One application responds to all paths, or the launcher finds the program.
        _ => {
            let normal = path::normalise(full_path);
            let mut rest = normal.strip_prefix(mount).unwrap_or(&normal);
            if !rest.is_empty() && !rest.starts_with(b"/") {
                // RFC 3875 section 4.1.5: the path of the route may end within a segment.
                let end = mount.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                (mount, rest) = (&mount[..end], &normal[end..]);
            }
            environment.set(b"SCRIPT_NAME", mount);
            let mut path_info = Vec::new();
            path::decode_escapes(rest, &mut path_info);
            environment.set(b"PATH_INFO", &path_info);
        }
    }
}

/// Sets the variables that describe the server and the client's connection.
fn set_connection(
    environment: &mut Environment,
    exchange: &Exchange,
    [peer, local]: [Option<SocketAddr>; 2],
) {
    if let Some(peer) = peer {
        environment.set_with(b"REMOTE_ADDR", |text| write_ip(text, peer.ip()));
        environment.set_with(b"REMOTE_PORT", |text| write_number(text, peer.port().into()));
    }
    if let Some(local) = local {
        environment.set_with(b"SERVER_ADDR", |text| write_ip(text, local.ip()));
        environment.set_with(b"SERVER_PORT", |text| write_number(text, local.port().into()));
    }
    environment.set_with(b"SERVER_NAME", |text| {
        let destination = destination(&exchange.request).ok();
        match destination.and_then(|destination| destination.authority) {
            Some(authority) => {
                let without_port = Authority { port: None, ..authority };
                write_normalised_authority(text, &without_port, Scheme::Http.port());
            }
            // A request of HTTP/1.0 without Host.
            None => match local {
                Some(local) => write_ip_host(text, local.ip()),
                None => text.extend_from_slice(b"localhost"),
            },
        }
    });
    environment.set(b"GATEWAY_INTERFACE", b"CGI/1.1");
    environment.set(b"SERVER_SOFTWARE", b"millrace");
    environment.set(b"SERVER_PROTOCOL", exchange.request.version().as_str().as_bytes());
    // php-cgi refuses requests that no server has passed on.
    environment.set(b"REDIRECT_STATUS", b"200");
    let scheme = exchange.sender.scheme;
    environment.set(b"REQUEST_SCHEME", scheme.as_str().as_bytes());
    if scheme == Scheme::Https {
        environment.set(b"HTTPS", b"on");
    }
}
