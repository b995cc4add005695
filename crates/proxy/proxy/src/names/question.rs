//! One question to the name servers, the addresses of one family of one name: asked over a socket
//! of its own, again and of the next server until somebody answers.
//!
//! ```text
//!            ┌───── nobody answered in time, the server failed: the next try ─────┐
//!            v                                                                    │
//! ask ──> opening (UDP) ──> waiting ──> truncated ──> opening (TCP) ──> waiting ──┤
//!            │                 └──────────── answer ───────────────────────┘      │
//!            └── no descriptor ──────────────────> outcome <── no try left ───────┘
//! ```
//!
//! Each server that is turned to has a new socket, and so a new random port, beside a new identifier
//! and new letters. Where there is one server, a further try sends the same query over the same
//! socket: the answer to an earlier one may still come, and is as good. So a server that is slow is
//! heard for as long as the lookup has. Of several each is heard in its turn only: a question has
//! one socket at a time.

use std::net::SocketAddr;
use std::time::Duration;

use millrace_engine::{Address, Buffer, Engine, Error, Event, Fd, Held, Instant, Token};

use super::NameError;
use super::message::{Answer, Family, Query, Reading, read_answer, write_query};
use super::name::Name;

/// Whom to ask, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan<'a> {
    pub(super) name: &'a Name,
    /// At least one. A server that fails or cannot be reached is not asked twice.
    pub(super) servers: &'a [SocketAddr],
    /// Tries over all servers, in their order and then again, while nobody answers.
    pub(super) tries_max: usize,
    /// How long a try may take, over UDP and, if it comes to that, once more over TCP.
    pub(super) wait: Duration,
}

/// What came of a question.
pub(super) type Outcome = Result<Answer, NameError>;

/// See the module.
#[derive(Debug)]
pub(super) struct Question {
    family: Family,
    token: Token,
    /// Tries begun; `tries <= plan.tries_max`.
    tries: usize,
    /// `None` before the question is asked and once it has its outcome.
    current: Option<Try>,
    outcome: Option<Outcome>,
}

#[derive(Debug)]
struct Try {
    fd: Fd,
    query: Query,
    server: SocketAddr,
    until: Instant,
    transport: Transport,
}

#[derive(Debug)]
enum Transport {
    /// With how many datagrams came that were no answer, and whether the last send is over.
    Udp { strays: usize, sent: bool },
    /// With what has come of the answer behind its length.
    Tcp { received: Option<Held> },
}

impl Question {
    /// Datagrams to one socket that may be no answer before it is given up: somebody is guessing.
    const STRAYS_MAX: usize = 8;
    /// The longest datagram that is received whole; what a query without EDNS gets has 512 bytes.
    const DATAGRAM_MAX: usize = 4096;
    /// The longest answer over TCP that is read: hundreds of addresses fit, and looking through it
    /// for each alias of a chain stays a matter of milliseconds.
    const ANSWER_MAX: usize = 8 * 1024;

    pub(super) fn new(family: Family, token: Token) -> Self {
        Self { family, token, tries: 0, current: None, outcome: None }
    }

    /// What came of it, once it is over.
    pub(super) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// When [`Question::expire`] has something to do, if nothing comes before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.current.as_ref().map(|current| current.until)
    }

    /// Asks anew. What was asked before must be over.
    pub(super) fn ask<E: Engine>(&mut self, engine: &mut E, plan: Plan, now: Instant) {
        assert!(self.current.is_none(), "a question is asked once at a time");
        (self.tries, self.outcome) = (0, None);
        if let Err(error) = self.open_next(engine, plan, now) {
            self.fail(engine, plan, now, error);
        }
    }

    /// Ends the question with `error` unless it is over.
    pub(super) fn end<E: Engine>(&mut self, engine: &mut E, error: NameError) {
        if self.outcome.is_none() {
            self.finish(engine, Err(error));
        }
    }

    /// Gives the current try up if its time is over.
    pub(super) fn expire<E: Engine>(&mut self, engine: &mut E, plan: Plan, now: Instant) {
        let over = self.deadline().is_some_and(|deadline| deadline <= now);
        if over && !self.repeat(engine, plan, now) {
            self.fail(engine, plan, now, NameError::TimedOut);
        }
    }

    /// Asks the only server once more over the socket that is there, if it is asked over UDP.
    fn repeat<E: Engine>(&mut self, engine: &mut E, plan: Plan, now: Instant) -> bool {
        let Some(Try { fd, query, until, transport: Transport::Udp { sent, .. }, .. }) =
            &mut self.current
        else {
            return false;
        };
        if plan.servers.len() > 1 || self.tries >= plan.tries_max {
            return false;
        }
        self.tries += 1;
        *until = now + plan.wait;
        // One send at a time: what the kernel has not taken by now is the query of this try.
        if std::mem::replace(sent, false) {
            engine.send(fd, &[query], self.token);
        }
        true
    }

    /// Takes a completion of this question's socket.
    pub(super) fn handle<E: Engine>(
        &mut self,
        engine: &mut E,
        plan: Plan,
        now: Instant,
        event: Event,
    ) {
        match event {
            Event::Connected(Ok(())) => self.send(engine),
            Event::Sent(Ok(())) => self.sent(),
            Event::Received(Ok(buffer)) => {
                let reading = self.read(engine, &buffer);
                engine.recycle(buffer);
                self.handle_reading(engine, plan, now, reading);
            }
            Event::Connected(Err(error))
            | Event::Sent(Err(error))
            | Event::Received(Err(error)) => {
                self.fail(engine, plan, now, sorted(error));
            }
            Event::Accepted(_) | Event::Spliced(_) | Event::Readable | Event::Woken => {
                unreachable!("a question only connects, sends and receives")
            }
        }
    }

    fn sent(&mut self) {
        if let Some(Try { transport: Transport::Udp { sent, .. }, .. }) = &mut self.current {
            *sent = true;
        }
    }

    fn send<E: Engine>(&mut self, engine: &mut E) {
        let Some(Try { fd, query, transport, .. }) = &self.current else { return };
        let length = (query.len() as u16).to_be_bytes();
        match transport {
            Transport::Udp { .. } => engine.send(fd, &[query], self.token),
            Transport::Tcp { .. } => engine.send(fd, &[&length, query], self.token),
        }
        engine.recv(fd, Self::DATAGRAM_MAX, self.token);
    }

    /// What the bytes that came are; `None` when more are needed, or none of this try's.
    fn read<E: Engine>(&mut self, engine: &mut E, bytes: &Buffer) -> Option<Reading> {
        let Some(Try { fd, query, transport, .. }) = &mut self.current else { return None };
        match transport {
            Transport::Udp { strays, .. } => {
                let reading = read_answer(bytes, query, false);
                if reading == Reading::Stray && *strays < Self::STRAYS_MAX {
                    *strays += 1;
                    engine.recv(fd, Self::DATAGRAM_MAX, self.token);
                    return None;
                }
                Some(reading)
            }
            Transport::Tcp { .. } if bytes.is_empty() => Some(Reading::Failed),
            Transport::Tcp { received } => {
                let received = match received {
                    Some(received) => {
                        received.append(bytes);
                        received
                    }
                    None => received.insert(Held::copy(engine.budget(), &[bytes])),
                };
                let length = match &received[..] {
                    [high, low, ..] => usize::from(u16::from_be_bytes([*high, *low])),
                    _ => 0,
                };
                if length > Self::ANSWER_MAX {
                    return Some(Reading::Failed);
                }
                match received.get(2..2 + length) {
                    Some(message) if received.len() > 2 => Some(read_answer(message, query, true)),
                    _ => {
                        engine.recv(fd, Self::DATAGRAM_MAX, self.token);
                        None
                    }
                }
            }
        }
    }

    fn handle_reading<E: Engine>(
        &mut self,
        engine: &mut E,
        plan: Plan,
        now: Instant,
        reading: Option<Reading>,
    ) {
        match reading {
            None => {}
            Some(Reading::Answer(answer)) => self.finish(engine, Ok(answer)),
            Some(Reading::OverTcp) => {
                let Some(Closed { server, query }) = self.close(engine) else { return };
                let tcp = Transport::Tcp { received: None };
                if let Err(error) = self.open(engine, server, query, tcp, now + plan.wait) {
                    self.fail(engine, plan, now, error);
                }
            }
            Some(Reading::Stray | Reading::Failed) => {
                self.fail(engine, plan, now, NameError::ServerFailed);
            }
        }
    }

    /// The current try came to nothing: begins the next one, or ends the question.
    fn fail<E: Engine>(&mut self, engine: &mut E, plan: Plan, now: Instant, mut error: NameError) {
        self.close(engine);
        loop {
            let tries_max = match error {
                NameError::TimedOut => plan.tries_max,
                NameError::Overloaded => 0,
                _ => plan.servers.len(),
            };
            if self.tries >= tries_max {
                return self.finish(engine, Err(error));
            }
            match self.open_next(engine, plan, now) {
                Ok(()) => return,
                Err(next) => error = next,
            }
        }
    }

    fn open_next<E: Engine>(
        &mut self,
        engine: &mut E,
        plan: Plan,
        now: Instant,
    ) -> Result<(), NameError> {
        let server = plan.servers[self.tries % plan.servers.len()];
        self.tries += 1;
        let query = write_query(plan.name, self.family, || engine.random());
        self.open(engine, server, query, Transport::Udp { strays: 0, sent: false }, now + plan.wait)
    }

    fn open<E: Engine>(
        &mut self,
        engine: &mut E,
        server: SocketAddr,
        query: Query,
        transport: Transport,
        until: Instant,
    ) -> Result<(), NameError> {
        let address = match transport {
            Transport::Udp { .. } => Address::Udp(server),
            Transport::Tcp { .. } => Address::Tcp(server),
        };
        let fd = engine.connect(&address, self.token).map_err(sorted)?;
        self.current = Some(Try { fd, query, server, until, transport });
        Ok(())
    }

    fn finish<E: Engine>(&mut self, engine: &mut E, outcome: Outcome) {
        self.close(engine);
        self.outcome = Some(outcome);
    }

    /// Ends the current try's socket. Gives what a further one needs: server and query.
    fn close<E: Engine>(&mut self, engine: &mut E) -> Option<Closed> {
        let Try { fd, query, server, .. } = self.current.take()?;
        engine.close(fd);
        Some(Closed { query, server })
    }
}

/// What is left of a try.
struct Closed {
    query: Query,
    server: SocketAddr,
}

fn sorted(error: Error) -> NameError {
    match error {
        Error::OutOfDescriptors | Error::OutOfMemory => NameError::Overloaded,
        Error::TimedOut => NameError::TimedOut,
        Error::Reset
        | Error::BrokenPipe
        | Error::Refused
        | Error::Unreachable
        | Error::Unsupported(_)
        | Error::Other(_) => NameError::ServerFailed,
    }
}
