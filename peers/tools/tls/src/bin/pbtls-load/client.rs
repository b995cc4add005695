//! The connections of the load and the phases in which they make requests.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pbtls::link::{Buffers, Link, Received};
use pbtls::poll::{EventFlags, Poll, connect};
use rustix::time::{ClockId, clock_gettime};
use rustls::ClientConfig;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;

use crate::counts::Counts;
use crate::options::Options;
use crate::request::{Expected, Requests, Response};

const ERRORS_MAX: u64 = 20_000;
/// Requests under way while each connection makes its first one.
const SET_UP_MAX: usize = 64;
const SECOND_NS: u64 = 1_000_000_000;
const TUNNEL_SECONDS_MAX: u64 = 5;

/// The work of one phase.
#[derive(Clone, Copy)]
pub struct Phase {
    /// Requests per second; 0: a closed loop.
    pub rate: f64,
    pub seconds: f64,
    /// Connections that make requests, evenly spread over all.
    pub active: usize,
    /// The client never sleeps, so that response times do not contain its own wake-up.
    pub spins: bool,
}

#[derive(Default)]
struct Connection {
    link: Option<Link<UnbufferedClientConnection>>,
    response: Response,
    has_request: bool,
    is_handshaking: bool,
    /// Makes no request in this phase, and has to stay open.
    rests: bool,
    /// In nanoseconds since the start of the program.
    due: u64,
}

/// The load.
pub struct Client {
    options: Options,
    config: Arc<ClientConfig>,
    expected: Expected,
    poll: Poll,
    buffers: Buffers,
    requests: Requests,
    request: Vec<u8>,
    connections: Vec<Connection>,
    /// Connections without an outstanding request, in the order of their last use.
    queue: VecDeque<usize>,
    counts: Counts,
    made: u64,
    start: Instant,
}

impl Client {
    /// # Errors
    ///
    /// The kernel refuses a descriptor.
    pub fn new(options: Options, config: ClientConfig, requests: Requests) -> io::Result<Self> {
        let count = options.connections;
        let expected =
            Expected { length: options.length, closes: options.closes, verifies: options.verifies };
        Ok(Self {
            options,
            config: Arc::new(config),
            expected,
            poll: Poll::new()?,
            buffers: Buffers::default(),
            requests,
            request: Vec::new(),
            connections: (0..count).map(|_| Connection::default()).collect(),
            queue: (0..count).collect(),
            counts: Counts::default(),
            made: 0,
            start: Instant::now(),
        })
    }

    /// Makes one request on each connection.
    ///
    /// # Errors
    ///
    /// A request fails.
    pub fn set_up(&mut self) -> io::Result<()> {
        let count = self.options.connections;
        while self.counts.done < count as u64 {
            while (self.counts.started - self.counts.done) < SET_UP_MAX as u64
                && self.counts.started < count as u64
                && let Some(number) = self.queue.pop_front()
            {
                let now = self.now();
                self.begin(number, now)?;
            }
            self.turn(SECOND_NS)?;
            if self.counts.errors > 0 {
                return Err(io::Error::other("error in set-up"));
            }
        }
        self.requests.end_set_up(&self.options);
        Ok(())
    }

    /// Replaces the size of the bodies that are requested.
    pub fn set_size(&mut self, bytes: usize) {
        self.requests.set_size(bytes);
        self.expected.length = Some(bytes);
    }

    /// Makes requests, waits for the last response and prints the counts. Returns the errors.
    ///
    /// # Errors
    ///
    /// There are too many errors, or no sockets left.
    pub fn phase(&mut self, phase: Phase) -> io::Result<u64> {
        self.choose(phase.active);
        self.counts = Counts::default();
        let cpu = cpu_seconds();
        let first = self.now();
        let end = first + (phase.seconds * 1e9) as u64;
        let step = if phase.rate > 0.0 { (1e9 / phase.rate) as u64 } else { 0 };
        let (mut now, mut next) = (first, first);
        loop {
            let mut wait = SECOND_NS;
            while (if step > 0 { next < end && next <= now } else { now < end })
                && self.counts.started < self.options.requests_max
                && let Some(number) = self.queue.pop_front()
            {
                self.begin(number, if step > 0 { next } else { now })?;
                next += step;
            }
            if step > 0 && !self.queue.is_empty() && next > now {
                wait = next - now;
            }
            let is_over = self.counts.started >= self.options.requests_max
                || if step > 0 { next >= end } else { now >= end };
            if is_over && self.queue.len() == phase.active {
                break;
            }
            self.turn(if phase.spins { 0 } else { wait })?;
            now = self.now();
        }
        let seconds = (self.now() - first) as f64 / 1e9;
        println!("{}", self.counts.line(seconds, cpu_seconds() - cpu, self.made));
        io::stdout().flush()?;
        Ok(self.counts.errors)
    }

    /// Resets all open connections, so that none stays in TIME_WAIT at either end.
    pub fn reset(&mut self) {
        for connection in &mut self.connections {
            if let Some(link) = connection.link.take() {
                let at_once = Some(Duration::ZERO);
                let _ = rustix::net::sockopt::set_socket_linger(&link.socket, at_once);
            }
        }
    }

    /// Selects the connections of the next phase. All are idle.
    fn choose(&mut self, active: usize) {
        let count = self.connections.len();
        if active == count && self.queue.len() == count {
            return;
        }
        self.queue = (0..active).map(|number| number * count / active).collect();
        for connection in &mut self.connections {
            connection.rests = true;
        }
        for number in &self.queue {
            self.connections[*number].rests = false;
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Makes the next request on a connection, which is opened if it is not.
    fn begin(&mut self, number: usize, due: u64) -> io::Result<()> {
        self.counts.started += 1;
        let connection = &mut self.connections[number];
        connection.due = due;
        connection.has_request = true;
        connection.response.reset();
        let mut result = Ok(());
        if connection.link.is_none() {
            result = self.dial(number);
        }
        self.counts.urls = self.counts.urls.wrapping_add(self.requests.write(&mut self.request));
        // During the handshake the request waits for its end.
        if result.is_ok()
            && let Some(link) = &mut self.connections[number].link
        {
            result = link.send(&mut self.buffers, &self.request, false);
        }
        result.or_else(|error| self.fail(number, &error.to_string()))
    }

    fn dial(&mut self, number: usize) -> io::Result<()> {
        let mut socket = connect(self.options.port)?;
        if let Some(host) = &self.options.tunnel {
            open_tunnel(&mut socket, host)?;
        }
        self.poll.add(&socket, number as u64, EventFlags::IN)?;
        self.made += 1;
        let name = ServerName::try_from("bench.test").map_err(io::Error::other)?;
        let session = UnbufferedClientConnection::new(Arc::clone(&self.config), name)
            .map_err(io::Error::other)?;
        let mut link = Link::new(socket, session);
        link.begin(&mut self.buffers)?;
        self.connections[number].link = Some(link);
        self.connections[number].is_handshaking = true;
        Ok(())
    }

    fn turn(&mut self, wait_ns: u64) -> io::Result<()> {
        let ready = self.poll.wait(Some(wait_ns))?;
        for (number, _) in &ready {
            self.readable(*number as usize)?;
        }
        self.poll.recycle(ready);
        Ok(())
    }

    fn readable(&mut self, number: usize) -> io::Result<()> {
        let connection = &mut self.connections[number];
        let Some(link) = &mut connection.link else { return Ok(()) };
        let (expected, response) = (self.expected, &mut connection.response);
        let (counts, has_request) = (&mut self.counts, connection.has_request);
        let result = link.receive(&mut self.buffers, |bytes| {
            counts.bytes += bytes.len() as u64;
            if !has_request {
                return Err(io::Error::other("bytes without a request"));
            }
            response.take(bytes, expected).map_err(io::Error::other)
        });
        if connection.is_handshaking
            && let Some(is_resumed) = link.is_resumed()
        {
            connection.is_handshaking = false;
            *(if is_resumed { &mut counts.resumed } else { &mut counts.full }) += 1;
        }
        match result {
            Err(error) => self.fail(number, &error.to_string()),
            Ok(_) if has_request && connection.response.is_complete() => self.finish(number),
            Ok(Received::Some) => Ok(()),
            Ok(Received::End) if has_request => self.fail(number, "end before the response"),
            Ok(Received::End) => {
                connection.link = None;
                // Only a resting connection has to stay open.
                counts.errors += u64::from(connection.rests);
                Ok(())
            }
        }
    }

    fn finish(&mut self, number: usize) -> io::Result<()> {
        let now = self.now();
        let connection = &mut self.connections[number];
        connection.has_request = false;
        self.counts.finish(now - connection.due);
        if self.options.closes
            && let Some(mut link) = connection.link.take()
            && !link.is_closed()
        {
            // The server may have closed already, so that a failure means nothing.
            drop(link.send(&mut self.buffers, &[], true));
        }
        self.queue.push_back(number);
        Ok(())
    }

    fn fail(&mut self, number: usize, what: &str) -> io::Result<()> {
        let connection = &mut self.connections[number];
        connection.link = None;
        self.counts.errors += 1;
        if self.counts.errors <= 5 {
            eprintln!("error: connection {number}: {what}");
        }
        if self.counts.errors > ERRORS_MAX {
            return Err(io::Error::other("too many errors"));
        }
        // One without a request is in the queue, or rests.
        if std::mem::take(&mut connection.has_request) {
            self.queue.push_back(number);
        }
        Ok(())
    }
}

/// Sends CONNECT and waits for the response. The socket blocks meanwhile.
fn open_tunnel(socket: &mut TcpStream, host: &str) -> io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(Duration::from_secs(TUNNEL_SECONDS_MAX)))?;
    socket.write_all(format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())?;
    let mut head = [0; 1024];
    let mut have = 0;
    // The client of TLS sends first, so no bytes follow the header section.
    while !head[..have].ends_with(b"\r\n\r\n") {
        match socket.read(&mut head[have..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => have += count,
        }
    }
    if head.get(9..12) != Some(b"200") {
        return Err(io::Error::other("status of CONNECT"));
    }
    socket.set_nonblocking(true)
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
