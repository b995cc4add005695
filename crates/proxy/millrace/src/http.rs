//! HTTP/1 over blocking sockets for the control plane: the admin server, the health checks, the
//! cache command and the web server of the demo.
//!
//! `millrace_http1` parses. This module passes it the bytes of a socket, within limits and until a
//! deadline. It makes no decision about a message.

use std::fmt::Write as _;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_http1::{
    ChunkedDecoder, Fields, Framing, HeadError, HeadLimits, HeadScan, RequestHead, ResponseHead,
};
use millrace_tls::{Session, TlsError};

/// The limits of all headers except those of origins. A larger header is an error that contains a
/// [`HeadError`].
pub(crate) const HEAD_LIMITS: HeadLimits =
    HeadLimits { bytes_max: 64 * 1024, fields_max: 256, target_bytes_max: 64 * 1024 };

/// The limits of an origin's response header: the largest that a configuration can set.
const ORIGIN_LIMITS: HeadLimits = HeadLimits { fields_max: 4096, ..HEAD_LIMITS };

/// A status code and its reason phrase, such as `(404, "Not Found")`.
pub(crate) type Status = (u16, &'static str);

/// A connection, and the received bytes that no message has used yet.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Arc<Socket>,
    deadline: Instant,
    received: Vec<u8>,
    /// TLS; `None` on a plain connection.
    session: Option<Box<Session>>,
}

/// A connected socket in blocking mode.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connection {
    /// Wraps a connected socket. Every read and write fails until a deadline is set.
    ///
    /// # Errors
    /// If the socket cannot be set to blocking mode.
    pub(crate) fn new(fd: OwnedFd, is_unix: bool) -> Result<Self> {
        let socket = if is_unix { Socket::Unix(fd.into()) } else { Socket::Tcp(fd.into()) };
        match &socket {
            Socket::Tcp(stream) => stream.set_nonblocking(false)?,
            Socket::Unix(stream) => stream.set_nonblocking(false)?,
        }
        let (socket, deadline) = (Arc::new(socket), Instant::now());
        Ok(Self { socket, deadline, received: Vec::new(), session: None })
    }

    /// Connects to the first of `addresses` that accepts. Each address gets a share of the
    /// remaining time, so that an unresponsive address does not use it up.
    ///
    /// # Errors
    /// The error of the last address; [`ErrorKind::NotFound`] if there is no address.
    pub(crate) fn to_tcp(addresses: &[SocketAddr], deadline: Instant) -> Result<Self> {
        let mut last = ErrorKind::NotFound.into();
        for (tried, address) in addresses.iter().enumerate() {
            let share = time_left(deadline)? / (addresses.len() - tried) as u32;
            match TcpStream::connect_timeout(address, share) {
                Ok(stream) => return Ok(Self { deadline, ..Self::new(stream.into(), false)? }),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// The kernel's error, also if the backlog of the listening socket is full.
    pub(crate) fn to_unix(path: &Path, deadline: Instant) -> Result<Self> {
        // The standard library's connect blocks while the backlog is full.
        let (fd, connected) = millrace_sys::connect_unix(path)?;
        connected?;
        Ok(Self { deadline, ..Self::new(fd, true)? })
    }

    /// Secures the connection, whose bytes so far were plain, and completes the handshake.
    ///
    /// # Errors
    /// Those of the socket; [`ErrorKind::InvalidData`] if the handshake fails.
    pub(crate) fn secure(&mut self, session: Session) -> Result<()> {
        let mut session = Box::new(session);
        let mut output = Vec::new();
        session.flush(&mut output).map_err(failed)?;
        self.write_plain(&output)?;
        let is_handshaking = |session: &Option<Box<Session>>| {
            session.as_ref().is_some_and(|session| session.is_handshaking())
        };
        self.session = Some(session);
        while is_handshaking(&self.session) {
            self.receive()?;
        }
        Ok(())
    }

    /// Returns whether the connection is secured.
    pub(crate) fn is_secure(&self) -> bool {
        self.session.is_some()
    }

    /// Returns the socket, which another thread may shut down.
    pub(crate) fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// Sets when reads and writes start to fail with [`ErrorKind::TimedOut`].
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Reads the header of the next request.
    ///
    /// # Errors
    /// Those of the socket; [`ErrorKind::UnexpectedEof`] if the stream ends within the header;
    /// [`ErrorKind::InvalidData`] with a [`HeadError`] if the header is malformed or too large.
    pub(crate) fn read_request(&mut self) -> Result<RequestHead> {
        let mut head = RequestHead::default();
        self.read_head(|input, scan| head.parse(input, scan, &HEAD_LIMITS))?;
        Ok(head)
    }

    /// Reads the header of the final response and skips interim responses (RFC 9110 section 15.2).
    ///
    /// # Errors
    /// Those of [`read_request`](Self::read_request).
    pub(crate) fn read_response(&mut self) -> Result<ResponseHead> {
        let mut head = ResponseHead::default();
        while head.status() < 200 {
            self.read_head(|input, scan| head.parse(input, scan, &HEAD_LIMITS))?;
        }
        Ok(head)
    }

    /// Reads the header of an origin's final response, as leniently as the data plane does.
    ///
    /// # Errors
    /// Those of [`read_request`](Self::read_request).
    pub(crate) fn read_origin_response(&mut self) -> Result<ResponseHead> {
        let mut head = ResponseHead::default();
        while head.status() < 200 {
            self.read_head(|input, scan| head.parse_lenient(input, scan, &ORIGIN_LIMITS))?;
        }
        Ok(head)
    }

    /// Reads the next header with `parse`, the parse method of a request or response header.
    fn read_head(
        &mut self,
        mut parse: impl FnMut(&[u8], &mut HeadScan) -> std::result::Result<Option<usize>, HeadError>,
    ) -> Result<()> {
        let mut scan = HeadScan::default();
        loop {
            if let Some(length) = parse(&self.received, &mut scan).map_err(refused)? {
                self.received.drain(..length);
                return Ok(());
            }
            self.receive()?;
        }
    }

    /// Reads `length` bytes of a body.
    ///
    /// # Errors
    /// Those of the socket; [`ErrorKind::UnexpectedEof`] if the stream ends earlier.
    pub(crate) fn read_body(&mut self, length: usize) -> Result<Vec<u8>> {
        while self.received.len() < length {
            self.receive()?;
        }
        Ok(self.received.drain(..length).collect())
    }

    /// Reads a body with this framing, of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// Those of the socket; [`ErrorKind::UnexpectedEof`] if the stream ends within the body;
    /// [`ErrorKind::InvalidData`] if it is malformed or too large.
    pub(crate) fn read_framed_body(
        &mut self,
        framing: Framing,
        bytes_max: usize,
    ) -> Result<Vec<u8>> {
        let too_large = || Error::new(ErrorKind::InvalidData, "the body is too large");
        let (mut body, mut chunks) = (Vec::new(), ChunkedDecoder::default());
        match framing {
            Framing::None => return Ok(body),
            Framing::Length(length) if length > bytes_max as u64 => return Err(too_large()),
            Framing::Length(length) => return self.read_body(length as usize),
            Framing::Chunked | Framing::UntilClose => {}
        }
        loop {
            let mut received = std::mem::take(&mut self.received);
            if framing == Framing::Chunked {
                let decoded = chunks.decode(&mut received);
                let decoded = decoded.map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
                body.extend_from_slice(&received[decoded.payload]);
                self.received = received.split_off(decoded.consumed);
                if decoded.ended {
                    return Ok(body);
                }
            } else {
                body.append(&mut received);
            }
            if body.len() > bytes_max {
                return Err(too_large());
            }
            match self.receive() {
                Err(error)
                    if error.kind() == ErrorKind::UnexpectedEof
                        && framing == Framing::UntilClose =>
                {
                    return Ok(body);
                }
                received => received?,
            }
        }
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// Those of the socket; [`ErrorKind::TimedOut`] after the deadline.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(session) = &mut self.session else { return self.write_plain(bytes) };
        let mut sealed = Vec::new();
        session.seal(&[bytes], &mut Vec::new(), &mut sealed).map_err(failed)?;
        self.write_plain(&sealed)
    }

    fn write_plain(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let sent = self.socket.write(bytes, time_left(self.deadline)?)?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Shuts the sending direction down, then reads and discards about `bytes_max` bytes. Closing a
    /// socket with unread bytes would reset the connection and destroy the response. Errors are
    /// ignored, because the response has been sent.
    pub(crate) fn finish(mut self, bytes_max: usize) {
        if let Some(session) = &mut self.session {
            let mut output = Vec::new();
            session.close(&mut output);
            let _ = self.write_plain(&output);
        }
        let _ = self.socket.shutdown(Shutdown::Write).and_then(|()| self.discard(bytes_max));
    }

    /// Reads and discards bytes until at least `bytes_min` are discarded; the last read may exceed
    /// it.
    ///
    /// # Errors
    /// Those of the socket; [`ErrorKind::UnexpectedEof`] if the stream ends earlier.
    pub(crate) fn discard(&mut self, bytes_min: usize) -> Result<()> {
        let mut dropped = self.received.len();
        while dropped < bytes_min {
            self.received.clear();
            self.receive()?;
            dropped += self.received.len();
        }
        Ok(())
    }

    /// Appends bytes to `received`: at least one, unless TLS records without plaintext arrive.
    fn receive(&mut self) -> Result<()> {
        let mut part = [0; 4096];
        let count = self.socket.read(&mut part, time_left(self.deadline)?)?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let Some(session) = &mut self.session else {
            self.received.extend_from_slice(&part[..count]);
            return Ok(());
        };
        let (mut plaintext, mut output) = (vec![0; PLAINTEXT_BYTES], Vec::new());
        let opened = session.open(&mut part[..count], &mut plaintext, &mut output);
        let has_ended = session.has_peer_closed();
        // An alert for the peer, or the next messages of the handshake.
        let written = self.write_plain(&output);
        let count = opened.map_err(failed)?;
        written?;
        self.received.extend_from_slice(&plaintext[..count]);
        if count == 0 && has_ended { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

impl Socket {
    fn read(&self, bytes: &mut [u8], patience: Duration) -> Result<usize> {
        let count = match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(patience)).and_then(|()| (&*stream).read(bytes))
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(patience)).and_then(|()| (&*stream).read(bytes))
            }
        };
        count.map_err(map_timeout)
    }

    fn write(&self, bytes: &[u8], patience: Duration) -> Result<usize> {
        let count = match self {
            Self::Tcp(stream) => {
                stream.set_write_timeout(Some(patience)).and_then(|()| (&*stream).write(bytes))
            }
            Self::Unix(stream) => {
                stream.set_write_timeout(Some(patience)).and_then(|()| (&*stream).write(bytes))
            }
        };
        count.map_err(map_timeout)
    }

    /// Shuts one or both directions down for every owner of the socket.
    ///
    /// # Errors
    /// The kernel's error, also if the peer has ended the connection already.
    pub(crate) fn shutdown(&self, how: Shutdown) -> Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        }
    }
}

/// Returns the values of all fields with this name, in any case.
pub(crate) fn values<'a>(fields: &'a Fields, name: &str) -> impl Iterator<Item = &'a [u8]> {
    let is_named = move |field: &&_| fields.name_of(field).eq_ignore_ascii_case(name.as_bytes());
    fields.fields().iter().filter(is_named).map(|field| fields.value_of(field))
}

/// Encodes bytes that are not plain as `%XX` (RFC 3986 section 2.1).
pub(crate) fn percent_encoded(bytes: &[u8], is_plain: impl Fn(u8) -> bool) -> String {
    bytes.iter().fold(String::new(), |mut text, &byte| {
        match is_plain(byte) {
            true => text.push(char::from(byte)),
            false => _ = write!(text, "%{byte:02X}"),
        }
        text
    })
}

/// The most plaintext of one read: that of a record which earlier reads began, and of the bytes
/// read.
const PLAINTEXT_BYTES: usize = 24 * 1024;

fn failed(error: TlsError) -> Error {
    Error::new(ErrorKind::InvalidData, error)
}

fn refused(why: HeadError) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}

/// Maps EAGAIN, the error of a blocking socket's timeout, to [`ErrorKind::TimedOut`].
fn map_timeout(error: Error) -> Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

/// Returns the time until `deadline`, or an error if it has passed.
fn time_left(deadline: Instant) -> Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_pieces_and_behind_each_other() {
        let (client, server) = UnixStream::pair().unwrap();
        let connection = |stream: UnixStream| {
            let mut connection = Connection::new(stream.into(), true).unwrap();
            connection.set_deadline(Instant::now() + Duration::from_secs(30));
            connection
        };
        let (mut client, mut server) = (connection(client), connection(server));
        let sender = std::thread::spawn(move || {
            let text = "GET /1 HTTP/1.1\r\nHost: a\r\nX-Own: b\r\n\r\nPUT /2 HTTP/1.0\r\n\r\nbody";
            text.as_bytes().chunks(7).for_each(|part| client.write_all(part).unwrap());
            let last = client.read_response().unwrap();
            let result = (last.status(), client.read_body(2).unwrap());
            let status = client.read_origin_response().unwrap().status();
            (result, status)
        });
        let first = server.read_request().unwrap();
        assert_eq!((first.target(), values(&first, "x-own").next()), (&b"/1"[..], Some(&b"b"[..])));
        assert_eq!(server.read_request().unwrap().target(), b"/2");
        assert_eq!(server.read_body(4).unwrap(), b"body");
        server.write_all(b"HTTP/1.1 103 x\r\n\r\nHTTP/1.1 200 OK\r\n\r\nok").unwrap();
        server.write_all(b"HTTP/1.1 103 x\r\n\r\nHTTP/1.1 204 x\nA : b\n\n").unwrap();
        assert_eq!(sender.join().unwrap(), ((200, b"ok".to_vec()), 204));
        let kind = |result: Result<RequestHead>| result.unwrap_err().kind();
        assert_eq!(kind(server.read_request()), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn errors_contain_the_cause() {
        let (client, mut server) = UnixStream::pair().unwrap();
        let mut client = Connection::new(client.into(), true).unwrap();
        client.set_deadline(Instant::now() + Duration::from_millis(20));
        assert_eq!(client.read_response().unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(client.write_all(b"late").unwrap_err().kind(), ErrorKind::TimedOut);
        server.write_all(b"HTTP/2 200\r\n").unwrap();
        client.set_deadline(Instant::now() + Duration::from_secs(30));
        let error = client.read_response().unwrap_err().downcast::<HeadError>().unwrap();
        assert_eq!(error, HeadError::VersionInvalid);
    }
}
