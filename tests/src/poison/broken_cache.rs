//! A cache that makes every mistake that the campaign looks for, and that the check has to detect.
//!
//! Its key is the URL, with Host in lower case and with the path as the client writes it, and the
//! service. It forwards every field, and stores every response with a lifetime. It compares the
//! fields of `Vary` as case-insensitive lists. It merges every field of a 304 and of a response to
//! HEAD, and it reuses origin connections in any state.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use super::mutant::{SERVICES, Service};
use crate::strict::{self, Field, Message, RequestContext, StartLine};

/// The state that the services of one broken cache share.
struct BrokenCache {
    modelled: SocketAddr,
    early: SocketAddr,
    stored: Mutex<HashMap<String, StoredResponse>>,
    /// Idle connections to the origin that never reads bodies.
    idle: Mutex<Vec<TcpStream>>,
}

struct StoredResponse {
    response: Message,
    /// The fields that the response varies by, with the values of the request that caused it.
    varies: Vec<(String, String)>,
}

/// Starts the cache and returns the address of each service. Its threads end with the process.
pub(super) fn start(modelled: SocketAddr, early: SocketAddr) -> Vec<(Service, SocketAddr)> {
    let (stored, idle) = (Mutex::default(), Mutex::default());
    let shared = Arc::new(BrokenCache { modelled, early, stored, idle });
    let listen = |service| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                thread::spawn(move || serve(stream, service, &shared));
            }
        });
        (service, address)
    };
    SERVICES.map(listen).into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread of the broken cache panics")
}

/// Serves a client connection until it ends.
fn serve(mut client: TcpStream, service: Service, shared: &BrokenCache) -> Option<()> {
    client.set_nodelay(true).ok()?;
    let mut input = Vec::new();
    // One origin connection for each client is enough here. Only early responses need a pool.
    let mut origin = TcpStream::connect(shared.modelled).ok()?;
    origin.set_nodelay(true).ok()?;
    loop {
        let end = input.windows(4).position(|four| four == b"\r\n\r\n");
        if let Some(end) = end.filter(|_| service.is_early()) {
            let header: Vec<u8> = input.drain(..end + 4).collect();
            serve_early(&mut client, &mut input, &header, shared)?;
            continue;
        }
        match strict_request(&input) {
            Some(Ok(request)) => {
                let bytes: Vec<u8> = input.drain(..request.bytes).collect();
                let response = respond(&request, &bytes, service, &mut origin, shared)?;
                client.write_all(&response).ok()?;
            }
            Some(Err(())) => {
                let _ = client.write_all(b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n");
                return None;
            }
            None => read(&mut client, &mut input)?,
        }
    }
}

/// Parses the request at the beginning of the input, with any form of target.
fn strict_request(input: &[u8]) -> Option<Result<Message, ()>> {
    let absolute = input.windows(7).position(|seven| seven == b"http://");
    let line_end = input.iter().position(|byte| *byte == b'\r')?;
    let Some(at) = absolute.filter(|at| *at < line_end) else {
        return strict::request(input).map_err(|_| ()).transpose();
    };
    let path = input[at + 7..].iter().position(|byte| *byte == b'/')? + at + 7;
    let shorter = [&input[..at], &input[path..]].concat();
    let request = strict::request(&shorter).map_err(|_| ()).transpose()?;
    Some(request.map(|mut request| {
        request.bytes += path - at;
        request
    }))
}

fn respond(
    request: &Message,
    bytes: &[u8],
    service: Service,
    origin: &mut TcpStream,
    shared: &BrokenCache,
) -> Option<Vec<u8>> {
    let method = request.method();
    let host = values(request, "host").to_lowercase();
    let site = host.trim_end_matches(":80").to_owned();
    let key = format!("{site}{}\n{service:?}", request.target());
    let wants_new = values(request, "cache-control").contains("no-cache");
    let condition = {
        let stored = lock(&shared.stored);
        let fitting = stored.get(&key).filter(|stored| fits(stored, request));
        match fitting {
            Some(stored) if method == "GET" && !wants_new => return Some(write(&stored.response)),
            Some(stored) if method == "GET" => values(&stored.response, "etag"),
            _ => String::new(),
        }
    };
    let mut sent = bytes.to_vec();
    if !condition.is_empty() {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 2;
        sent.splice(end..end, format!("If-None-Match: {condition}\r\n").into_bytes());
    }
    // The origin accepts only origin-form.
    if let Some(at) = sent.windows(7).position(|it| it == b"http://").filter(|at| *at < 10) {
        let path = sent[at + 7..].iter().position(|byte| *byte == b'/')? + at + 7;
        sent.drain(at..path);
    }
    origin.write_all(&sent).ok()?;
    let response = receive(origin, method)?;
    let mut stored = lock(&shared.stored);
    if !values(&response, "cache-group-invalidation").is_empty() {
        stored.retain(|key, _| !key.starts_with(&site));
    }
    let is_merged = response.status() == 304 || method == "HEAD";
    if let Some(old) = stored.get_mut(&key).filter(|_| is_merged) {
        for field in response.fields.iter().filter(|field| !field.is("content-length")) {
            old.response.fields.retain(|old| !old.is(&field.name));
            old.response.fields.push(field.clone());
        }
        if response.status() == 304 && !condition.is_empty() {
            return Some(write(&old.response));
        }
    }
    let has_lifetime = values(&response, "cache-control").contains("max-age");
    let is_static = service.has_paths() && !request.target().starts_with("/account");
    if method == "GET" && response.status() != 304 {
        stored.remove(&key);
        if has_lifetime || is_static {
            let names = values(&response, "vary");
            let names = names.split(", ").filter(|name| !name.is_empty());
            let varies = names.map(|name| (name.to_owned(), members(request, name))).collect();
            stored.insert(key, StoredResponse { response: response.clone(), varies });
        }
    }
    let is_head = method == "HEAD";
    let response = write(&response);
    let header = response.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    Some(if is_head { response[..header].to_vec() } else { response })
}

fn fits(stored: &StoredResponse, request: &Message) -> bool {
    stored.varies.iter().all(|(name, members_then)| members(request, name) == *members_then)
}

/// Returns a field as if it were a case-insensitive list.
fn members(request: &Message, name: &str) -> String {
    let list = values(request, name).to_lowercase();
    let members = list.split([',', ';']).map(str::trim).filter(|member| !member.is_empty());
    members.collect::<Vec<_>>().join(",")
}

fn values(message: &Message, name: &str) -> String {
    let named = message.fields.iter().filter(|field| field.is(name));
    named.map(|it| String::from_utf8_lossy(&it.value).into_owned()).collect::<Vec<_>>().join(",")
}

fn write(response: &Message) -> Vec<u8> {
    let StartLine::Response { status, reason } = &response.start else { return Vec::new() };
    let mut bytes = format!("HTTP/1.1 {status} {}\r\n", String::from_utf8_lossy(reason));
    for Field { name, value } in &response.fields {
        bytes.push_str(&format!("{name}: {}\r\n", String::from_utf8_lossy(value)));
    }
    [bytes.as_bytes(), b"\r\n", &response.body].concat()
}

/// Forwards the header, then the response, and then the body. Afterwards it returns the connection
/// to the pool, although the response came before the body.
fn serve_early(
    client: &mut TcpStream,
    input: &mut Vec<u8>,
    header: &[u8],
    shared: &BrokenCache,
) -> Option<()> {
    let text = String::from_utf8_lossy(header).into_owned();
    let length = text.split("Content-Length: ").nth(1).and_then(|it| it.split('\r').next());
    let length: usize = length.map_or(Ok(0), str::parse).ok()?;
    let method = text.split(' ').next()?;
    let response = loop {
        let idle = lock(&shared.idle).pop();
        let mut origin = idle.or_else(|| TcpStream::connect(shared.early).ok())?;
        origin.write_all(header).ok()?;
        // An idle connection may have ended. The header is then sent on another one.
        if let Some(response) = receive(&mut origin, method) {
            break (response, origin);
        }
    };
    let (response, mut origin) = response;
    let mut response = write(&response);
    if method == "HEAD" {
        response.truncate(response.windows(4).position(|four| four == b"\r\n\r\n")? + 4);
    }
    client.write_all(&response).ok()?;
    let is_chunked = text.contains("\r\nTransfer-Encoding: chunked\r\n");
    let is_whole = |input: &[u8]| match is_chunked {
        true => input.ends_with(b"\r\n0\r\n\r\n"),
        false => input.len() >= length,
    };
    while !is_whole(input) {
        read(client, input)?;
    }
    let length = if is_chunked { input.len() } else { length };
    let body: Vec<u8> = input.drain(..length).collect();
    origin.write_all(&body).ok()?;
    lock(&shared.idle).push(origin);
    Some(())
}

fn receive(origin: &mut TcpStream, method: &str) -> Option<Message> {
    let mut input = Vec::new();
    let context = RequestContext::with(method);
    loop {
        match strict::response(&input, &context, false).ok()? {
            Some(message) if message.interim() => drop(input.drain(..message.bytes)),
            Some(message) => return Some(message),
            None => read(origin, &mut input)?,
        }
    }
}

fn read(stream: &mut TcpStream, input: &mut Vec<u8>) -> Option<()> {
    let mut chunk = [0; 16 * 1024];
    let length = stream.read(&mut chunk).ok().filter(|length| *length > 0)?;
    input.extend_from_slice(&chunk[..length]);
    Some(())
}
