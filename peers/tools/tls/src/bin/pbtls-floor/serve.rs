//! The server: responses from memory.

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use pbtls::link::{Buffers, Link, Received, SEND_MAX};
use pbtls::poll::{EventFlags, Poll, accept, listen};
use pbtls::stream::{STREAM_BYTES, hash, head_length, says_close, stream};
use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;

/// Bytes of a request header section at most.
const HEAD_MAX: usize = 65536;
const LISTENER: u64 = u64::MAX;

struct Connection {
    link: Link<UnbufferedServerConnection>,
    /// A request as far as it has arrived.
    request: Vec<u8>,
    /// Header section and body that are being sent; 0 <= sent <= response.len().
    response: Rc<[u8]>,
    sent: usize,
    closes: bool,
    waits_for_room: bool,
}

impl Connection {
    fn is_sending(&self) -> bool {
        self.sent < self.response.len() || self.link.is_blocked()
    }

    /// Sends until the response is sent or the socket takes no more.
    fn pump(&mut self, buffers: &mut Buffers) -> io::Result<()> {
        while self.sent < self.response.len() && !self.link.is_blocked() {
            let end = self.response.len().min(self.sent + SEND_MAX);
            let ends = self.closes && end == self.response.len();
            self.link.send(buffers, &self.response[self.sent..end], ends)?;
            self.sent = end;
        }
        Ok(())
    }
}

/// The responses, and what was requested.
struct Origin {
    /// By the part of the target that selects the response, such as `/c/8k`.
    responses: HashMap<Vec<u8>, Rc<[u8]>>,
    requests: u64,
    urls: u64,
}

impl Origin {
    /// Returns the response to a request, or none to a bad one.
    fn respond(&mut self, head: &[u8]) -> Option<Rc<[u8]>> {
        let target = head.strip_prefix(b"GET ")?;
        let target = &target[..target.iter().position(|byte| *byte == b' ')?];
        if target.starts_with(b"/stat") {
            let text = format!("{} {}\n", self.requests, self.urls);
            return Some(response(text.as_bytes(), "no-store"));
        }
        let size = target.get(3..)?;
        let end = size.iter().position(|byte| !byte.is_ascii_alphanumeric());
        let selector = &target[..3 + end.unwrap_or(size.len())];
        self.requests += 1;
        self.urls = self.urls.wrapping_add(hash(target));
        if let Some(found) = self.responses.get(selector) {
            return Some(Rc::clone(found));
        }
        let caching = match &selector[..3] {
            b"/c/" => "public, max-age=86400",
            b"/n/" => "no-store",
            _ => return None,
        };
        let made = response(&stream()[..body_length(&selector[3..])?], caching);
        self.responses.insert(selector.to_vec(), Rc::clone(&made));
        Some(made)
    }
}

/// Returns the bytes that 8k or 8192 names.
fn body_length(size: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(size).ok()?;
    let unit = match text.bytes().last()? {
        b'k' => 1 << 10,
        b'm' => 1 << 20,
        _ => 1,
    };
    let length = text.trim_end_matches(['k', 'm']).parse::<usize>().ok()?.checked_mul(unit)?;
    (length <= STREAM_BYTES).then_some(length)
}

fn response(body: &[u8], caching: &str) -> Rc<[u8]> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nServer: o\r\nDate: {}\r\nContent-Type: application/octet-stream\r\n\
         Content-Length: {}\r\nCache-Control: {caching}\r\n\
         Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n",
        httpdate::fmt_http_date(SystemTime::now()),
        body.len(),
    );
    [head.as_bytes(), body].concat().into()
}

struct Server {
    poll: Poll,
    buffers: Buffers,
    config: Arc<ServerConfig>,
    /// By descriptor.
    connections: Vec<Option<Box<Connection>>>,
    origin: Origin,
}

/// Serves forever.
///
/// # Errors
///
/// The port is in use.
pub fn run(port: u16, config: Arc<ServerConfig>) -> io::Result<()> {
    // The first client does not wait for it.
    stream();
    let listener = listen(port)?;
    let origin = Origin { responses: HashMap::new(), requests: 0, urls: 0 };
    let mut server = Server {
        poll: Poll::new()?,
        buffers: Buffers::default(),
        config,
        connections: Vec::new(),
        origin,
    };
    server.poll.add(&listener, LISTENER, EventFlags::IN)?;
    loop {
        let ready = server.poll.wait(None)?;
        for (token, events) in &ready {
            if *token == LISTENER {
                server.accept(&listener)?;
            } else {
                server.handle(*token as usize, *events);
            }
        }
        server.poll.recycle(ready);
    }
}

impl Server {
    fn accept(&mut self, listener: &TcpListener) -> io::Result<()> {
        while let Ok(Some(socket)) = accept(listener) {
            let number = socket.as_raw_fd() as usize;
            self.poll.add(&socket, number as u64, EventFlags::IN)?;
            let session = UnbufferedServerConnection::new(Arc::clone(&self.config))
                .map_err(io::Error::other)?;
            let connection = Connection {
                link: Link::new(socket, session),
                request: Vec::new(),
                response: Rc::new([]),
                sent: 0,
                closes: false,
                waits_for_room: false,
            };
            if self.connections.len() <= number {
                self.connections.resize_with(number + 1, || None);
            }
            self.connections[number] = Some(Box::new(connection));
            self.handle(number, EventFlags::IN);
        }
        Ok(())
    }

    fn handle(&mut self, number: usize, events: EventFlags) {
        let Some(connection) = self.connections.get_mut(number).and_then(Option::as_mut) else {
            return;
        };
        let result = if events.contains(EventFlags::OUT) {
            connection.link.flush().and_then(|()| connection.pump(&mut self.buffers))
        } else {
            readable(connection, &mut self.buffers, &mut self.origin)
        };
        let is_over = connection.closes && !connection.is_sending();
        if result.is_err() || is_over || wait_for_room(&self.poll, connection).is_err() {
            self.connections[number] = None;
        }
    }
}

/// Receives, and responds to a complete request. There is no pipelining.
fn readable(
    connection: &mut Connection,
    buffers: &mut Buffers,
    origin: &mut Origin,
) -> io::Result<()> {
    let request = &mut connection.request;
    let received = connection.link.receive(buffers, |bytes| {
        request.extend_from_slice(bytes);
        Ok(())
    })?;
    let Some(end) = head_length(request) else {
        return match received {
            Received::Some if request.len() <= HEAD_MAX => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        };
    };
    if request.len() > end {
        return Err(io::Error::other("bytes after a request"));
    }
    connection.closes = says_close(request);
    let response = origin.respond(request).ok_or(io::ErrorKind::InvalidData)?;
    connection.response = response;
    // An idle connection holds no buffer.
    connection.request = Vec::new();
    connection.sent = 0;
    connection.pump(buffers)
}

/// Waits for room in the socket while a response is being sent, else for a request.
fn wait_for_room(poll: &Poll, connection: &mut Connection) -> io::Result<()> {
    let waits = connection.is_sending();
    if connection.waits_for_room != waits {
        connection.waits_for_room = waits;
        let flags = if waits { EventFlags::OUT } else { EventFlags::IN };
        let socket = &connection.link.socket;
        poll.modify(socket, socket.as_raw_fd() as u64, flags)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_or_have_a_unit() {
        let cases = [("8k", Some(8192)), ("1m", Some(1 << 20)), ("17", Some(17)), ("x", None)];
        for (text, bytes) in cases {
            assert_eq!(body_length(text.as_bytes()), bytes);
        }
        assert_eq!(body_length(b"65m"), None);
    }
}
