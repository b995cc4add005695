//! The recording origin: every byte that reaches it goes through the strict parser.

use std::fmt;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use super::lane::{PATIENCE, PAUSE};
use super::literal::{Literal, Step, escaped};
use crate::strict::{self, Message};

/// Something that reached the origin.
#[derive(Clone, Debug)]
pub enum Seen {
    /// A request with one meaning.
    Whole(Message),
    /// A connection's end inside a request that had one meaning so far.
    Cut(Vec<u8>),
    /// A request that could be read in two ways, with the reason.
    Doubtful(Vec<u8>, String),
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
            Self::Doubtful(bytes, why) => write!(f, "DOUBTFUL ({why}): {}", escaped(bytes)),
        }
    }
}

#[derive(Default)]
struct State {
    script: Vec<(String, Literal)>,
    seen: Vec<Seen>,
    /// Connections inside a request or an answer.
    busy: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread of the origin panics")
    }

    fn record(&self, seen: Seen) {
        self.state().seen.push(seen);
        self.changed.notify_all();
    }

    fn set_busy(&self, was: &mut bool, busy: bool) {
        if *was != busy {
            let mut state = self.state();
            if busy {
                state.busy += 1;
            } else {
                state.busy -= 1;
            }
            *was = busy;
            self.changed.notify_all();
        }
    }
}

/// An origin on a loopback port of its own. Its threads end with their connections.
pub struct Origin {
    /// Where it listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Origin {
    /// Starts it; one thread accepts, one more serves each connection.
    ///
    /// # Panics
    /// If there is no loopback port to be had.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&accepting);
                thread::spawn(move || Connection::new(stream, shared).serve());
            }
        });
        Self { address, shared }
    }

    /// Forgets what was seen, and answers from now on by this script: target and answer. Every other
    /// target is answered by [`default_answer`].
    pub fn begin(&self, script: Vec<(String, Literal)>) -> Vec<Seen> {
        let mut state = self.shared.state();
        state.script = script;
        std::mem::take(&mut state.seen)
    }

    /// Waits until no connection is inside a request or an answer, and gives what was seen since the
    /// script began.
    ///
    /// # Errors
    /// If that does not come to pass within [`PATIENCE`].
    pub fn settle(&self) -> Result<Vec<Seen>, String> {
        let state = self.shared.state();
        let (state, wait) = self
            .shared
            .changed
            .wait_timeout_while(state, PATIENCE, |state| state.busy > 0)
            .expect("no thread of the origin panics");
        if wait.timed_out() {
            return Err(format!("the origin still waits for the rest of {} messages", state.busy));
        }
        Ok(state.seen.clone())
    }
}

/// What the origin answers where the script says nothing: the method and the target as a body.
pub fn default_answer(method: &str, target: &str) -> Vec<u8> {
    let body = format!("{method} {target}");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let body = if method == "HEAD" { String::new() } else { body };
    format!("{head}{body}").into_bytes()
}

/// One connection, served by one thread.
struct Connection {
    stream: TcpStream,
    shared: Arc<Shared>,
    input: Vec<u8>,
    busy: bool,
}

impl Connection {
    fn new(stream: TcpStream, shared: Arc<Shared>) -> Self {
        // Without it a second small segment would wait for the first one's acknowledgement.
        let _ = stream.set_nodelay(true);
        Self { stream, shared, input: Vec::new(), busy: false }
    }

    fn serve(mut self) {
        self.exchange();
        let rest = std::mem::take(&mut self.input);
        if !rest.is_empty() {
            self.shared.record(Seen::Cut(rest));
        }
        self.shared.set_busy(&mut self.busy, false);
    }

    /// Reads and answers until the connection's end, or the script's.
    fn exchange(&mut self) {
        // How many steps of the answer were done at the head of the request in `input`.
        let mut done = 0;
        loop {
            match strict::request(&self.input) {
                Err(doubt) => {
                    let bytes = std::mem::take(&mut self.input);
                    self.shared.record(Seen::Doubtful(bytes, doubt.0));
                    return;
                }
                Ok(Some(message)) => {
                    self.input.drain(..message.bytes);
                    let answer = self.answer(message.method(), message.target());
                    self.shared.record(Seen::Whole(message));
                    if !self.say(&answer.steps[done..]) {
                        return;
                    }
                    if answer.bytes().starts_with(b"HTTP/1.1 101") {
                        return self.echo();
                    }
                    done = 0;
                    continue;
                }
                Ok(None) => {}
            }
            if done == 0 && !self.say_at_head(&mut done) {
                return self.drain();
            }
            let waiting = !self.input.is_empty();
            self.shared.set_busy(&mut self.busy, waiting);
            if !self.receive() {
                return;
            }
        }
    }

    /// Sends what the script says before the request's end. Gives whether the connection goes on.
    fn say_at_head(&mut self, done: &mut usize) -> bool {
        let Some(end) = self.input.windows(4).position(|four| four == b"\r\n\r\n") else {
            return true;
        };
        let head = String::from_utf8_lossy(&self.input[..end]).into_owned();
        let mut words = head.split(' ');
        let answer = self.answer(words.next().unwrap_or(""), words.next().unwrap_or(""));
        let Some(body) = answer.steps.iter().position(|step| *step == Step::Body) else {
            return true;
        };
        *done = body + 1;
        self.say(&answer.steps[..body])
    }

    fn answer(&self, method: &str, target: &str) -> Literal {
        let state = self.shared.state();
        match state.script.iter().find(|(scripted, _)| scripted == target) {
            Some((_, answer)) => answer.clone(),
            None => Literal::of(default_answer(method, target)),
        }
    }

    /// Gives whether the connection goes on.
    fn say(&mut self, steps: &[Step]) -> bool {
        self.shared.set_busy(&mut self.busy, true);
        for step in steps {
            match step {
                Step::Bytes(bytes) => {
                    if self.stream.write_all(bytes).is_err() {
                        return false;
                    }
                }
                Step::Pause => thread::sleep(PAUSE),
                Step::Close => {
                    let _ = self.stream.shutdown(Shutdown::Write);
                    return false;
                }
                Step::Wait | Step::End | Step::Body => {}
            }
        }
        true
    }

    fn receive(&mut self) -> bool {
        let mut chunk = [0; 65536];
        match self.stream.read(&mut chunk) {
            Ok(length) if length > 0 => {
                self.input.extend_from_slice(&chunk[..length]);
                true
            }
            _ => false,
        }
    }

    /// After an early close: closing with unread bytes would take the answer away from the proxy.
    fn drain(&mut self) {
        while self.receive() {}
    }

    /// After a switch of protocols: sends everything back.
    fn echo(&mut self) {
        self.shared.set_busy(&mut self.busy, false);
        let _ = self.stream.set_read_timeout(Some(Duration::from_secs(60)));
        loop {
            let bytes = std::mem::take(&mut self.input);
            if self.stream.write_all(&bytes).is_err() || !self.receive() {
                return;
            }
        }
    }
}
