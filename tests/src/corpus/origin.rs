//! The recording origin. Every byte that reaches it goes through the strict parser.
//!
//! One thread polls all connections in turn. A pass over all connections reads every byte that was
//! sent before the pass began. So after a complete pass, no more bytes of a case can arrive, and no
//! test has to wait for an arbitrary time.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use super::literal::{Literal, Step, escaped};
use super::timeouts::{PATIENCE, PAUSE};
use crate::strict::{self, Message};

/// A message, or a part of one, that reached the origin.
#[derive(Clone, Debug)]
pub enum Seen {
    /// A request with one meaning.
    Whole(Message),
    /// The end of a connection inside a request that had one meaning so far.
    Cut(Vec<u8>),
    /// An ambiguous request, with the reason.
    Ambiguous(Vec<u8>, String),
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(message) => {
                write!(f, "{} {}", message.method(), message.target())?;
                for field in &message.fields {
                    write!(f, ", {}: {}", field.name, escaped(&field.value))?;
                }
                write!(f, ", body {}", escaped(&message.body))
            }
            Self::Cut(bytes) => write!(f, "half of {}", escaped(bytes)),
            Self::Ambiguous(bytes, why) => write!(f, "AMBIGUOUS ({why}): {}", escaped(bytes)),
        }
    }
}

#[derive(Default)]
struct OriginState {
    script: Vec<(String, Literal)>,
    seen: Vec<Seen>,
    /// Connections inside a request, after the last pass.
    busy: usize,
    /// The number of requested passes.
    requested_passes: u64,
    /// The value of `requested_passes` when the last complete pass began.
    completed_pass: u64,
    ended: bool,
}

#[derive(Default)]
struct OriginShared {
    state: Mutex<OriginState>,
    changed: Condvar,
}

impl OriginShared {
    fn state(&self) -> MutexGuard<'_, OriginState> {
        self.state.lock().expect("no thread of the origin panics")
    }

    fn record(&self, seen: Seen) {
        self.state().seen.push(seen);
    }
}

/// An origin on a loopback port of its own.
pub struct Origin {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<OriginShared>,
}

impl Origin {
    /// Starts the origin.
    ///
    /// # Panics
    /// Panics if no loopback port is available.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let address = listener.local_addr().expect("a bound socket has an address");
        listener.set_nonblocking(true).expect("sockets can be made non-blocking");
        let shared = Arc::new(OriginShared::default());
        let serving = Arc::clone(&shared);
        thread::spawn(move || serve(&listener, &serving));
        Self { address, shared }
    }

    /// Responds by this script from now on: pairs of target and response. Every other target gets
    /// [`default_response`]. Returns what was seen since the last script, and clears it.
    pub fn begin(&self, script: Vec<(String, Literal)>) -> Vec<Seen> {
        let mut state = self.shared.state();
        state.script = script;
        std::mem::take(&mut state.seen)
    }

    /// Waits until everything that was sent to the origin before this call has been read, and its
    /// responses have been sent.
    ///
    /// # Errors
    /// Returns an error if this takes longer than [`PATIENCE`].
    pub fn catch_up(&self) -> Result<(), String> {
        self.wait(|_| true).map(|_| ())
    }

    /// Like `catch_up`, and waits until no request is incomplete. Returns what was seen since the
    /// script began.
    ///
    /// # Errors
    /// Returns an error if this takes longer than [`PATIENCE`].
    pub fn settle(&self) -> Result<Vec<Seen>, String> {
        self.wait(|state| state.busy == 0).map(|state| state.seen.clone())
    }

    fn wait(
        &self,
        enough: impl Fn(&OriginState) -> bool,
    ) -> Result<MutexGuard<'_, OriginState>, String> {
        let mut state = self.shared.state();
        state.requested_passes += 1;
        let pass = state.requested_passes;
        self.shared.changed.notify_all();
        let going = |state: &mut OriginState| state.completed_pass < pass || !enough(state);
        let waited = self.shared.changed.wait_timeout_while(state, PATIENCE, going);
        let (state, wait) = waited.expect("no thread of the origin panics");
        if wait.timed_out() {
            return Err(format!("the origin still waits for the rest of {} requests", state.busy));
        }
        Ok(state)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_all();
    }
}

/// Returns the response for a target that the script does not have: method and target as the body.
pub fn default_response(method: &str, target: &str) -> Vec<u8> {
    let body = format!("{method} {target}");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let body = if method == "HEAD" { String::new() } else { body };
    format!("{head}{body}").into_bytes()
}

/// How long the thread sleeps after a pass without bytes.
const REST: Duration = Duration::from_micros(150);

fn serve(listener: &TcpListener, shared: &OriginShared) {
    let mut connections: Vec<OriginConnection> = Vec::new();
    loop {
        let pass = shared.state().requested_passes;
        let mut moved = false;
        while let Ok((stream, _)) = listener.accept() {
            connections.push(OriginConnection::new(stream));
        }
        for connection in &mut connections {
            moved |= connection.poll(shared);
        }
        connections.retain(|connection| connection.mode != ReadMode::Ended);
        let mut state = shared.state();
        state.busy = connections.iter().filter(|connection| connection.busy()).count();
        state.completed_pass = pass;
        shared.changed.notify_all();
        if state.ended {
            return;
        }
        if !moved && state.requested_passes == pass {
            drop(shared.changed.wait_timeout(state, REST));
        }
    }
}

/// How input is handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReadMode {
    /// It is parsed as requests.
    Http,
    /// An early response was sent, and this side is closed for writing. The input is still read,
    /// because a close with unread bytes resets the connection and destroys the response.
    Closing,
    /// After an upgrade: it is echoed.
    Echo,
    /// The input has ended.
    Ended,
}

struct OriginConnection {
    stream: TcpStream,
    input: Vec<u8>,
    mode: ReadMode,
    /// How many steps of the response were performed before the request in `input` was complete.
    steps_sent: usize,
}

impl OriginConnection {
    fn new(stream: TcpStream) -> Self {
        stream.set_nonblocking(true).expect("sockets can be made non-blocking");
        // Otherwise a second small segment would wait for the acknowledgement of the first one.
        let _ = stream.set_nodelay(true);
        Self { stream, input: Vec::new(), mode: ReadMode::Http, steps_sent: 0 }
    }

    fn busy(&self) -> bool {
        matches!(self.mode, ReadMode::Http | ReadMode::Closing) && !self.input.is_empty()
    }

    /// Reads the available bytes and responds to them. Returns whether there were any, or the input
    /// ended.
    fn poll(&mut self, shared: &OriginShared) -> bool {
        let mut moved = false;
        let mut chunk = [0; 65536];
        while self.mode != ReadMode::Ended {
            match self.stream.read(&mut chunk) {
                Ok(length) if length > 0 => {
                    self.input.extend_from_slice(&chunk[..length]);
                    self.take(shared);
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                _ => {
                    self.end(shared);
                    moved = true;
                }
            }
        }
        moved
    }

    fn end(&mut self, shared: &OriginShared) {
        let rest = std::mem::take(&mut self.input);
        if !rest.is_empty() && self.mode != ReadMode::Echo {
            shared.record(Seen::Cut(rest));
        }
        self.mode = ReadMode::Ended;
    }

    /// Takes every complete request from the input and responds to it.
    fn take(&mut self, shared: &OriginShared) {
        if self.mode == ReadMode::Echo {
            let bytes = std::mem::take(&mut self.input);
            self.send(&bytes);
        }
        while self.mode == ReadMode::Http {
            match strict::request(&self.input) {
                Err(ambiguity) => {
                    let bytes = std::mem::take(&mut self.input);
                    shared.record(Seen::Ambiguous(bytes, ambiguity.0));
                    self.mode = ReadMode::Ended;
                }
                Ok(Some(message)) => {
                    self.input.drain(..message.bytes);
                    self.respond(message, shared);
                }
                Ok(None) => {
                    self.respond_early(shared);
                    return;
                }
            }
        }
    }

    fn respond(&mut self, message: Message, shared: &OriginShared) {
        let response = scripted_response(shared, message.method(), message.target());
        shared.record(Seen::Whole(message));
        let steps_sent = std::mem::take(&mut self.steps_sent);
        if !self.send_steps(&response.steps[steps_sent..]) {
            self.end(shared);
        } else if response.bytes().starts_with(b"HTTP/1.1 101") {
            self.mode = ReadMode::Echo;
        }
    }

    /// Sends the steps of the response before [`Step::Body`], once the request header has arrived.
    fn respond_early(&mut self, shared: &OriginShared) {
        let end = self.input.windows(4).position(|four| four == b"\r\n\r\n");
        let (Some(end), 0) = (end, self.steps_sent) else { return };
        let head = String::from_utf8_lossy(&self.input[..end]).into_owned();
        let mut words = head.split(' ');
        let response =
            scripted_response(shared, words.next().unwrap_or(""), words.next().unwrap_or(""));
        if let Some(body) = response.steps.iter().position(|step| *step == Step::Body) {
            self.steps_sent = body + 1;
            if !self.send_steps(&response.steps[..body]) {
                self.mode = ReadMode::Closing;
            }
        }
    }

    /// Performs these steps. Returns whether the connection continues.
    fn send_steps(&mut self, steps: &[Step]) -> bool {
        for step in steps {
            match step {
                Step::Bytes(bytes) if !self.send(bytes) => return false,
                Step::Pause => thread::sleep(PAUSE),
                Step::Close => {
                    let _ = self.stream.shutdown(Shutdown::Write);
                    return false;
                }
                Step::Bytes(_) | Step::Wait | Step::End | Step::Reset | Step::Body => {}
            }
        }
        true
    }

    /// Sends all of `bytes`, and waits for the proxy up to [`PATIENCE`]. Returns whether it
    /// accepted them.
    fn send(&mut self, mut bytes: &[u8]) -> bool {
        let begun = Instant::now();
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(REST),
                Err(_) => return false,
            }
            if begun.elapsed() > PATIENCE {
                return false;
            }
        }
        true
    }
}

fn scripted_response(shared: &OriginShared, method: &str, target: &str) -> Literal {
    let state = shared.state();
    match state.script.iter().find(|(scripted, _)| scripted == target) {
        Some((_, response)) => response.clone(),
        None => Literal::of(default_response(method, target)),
    }
}
