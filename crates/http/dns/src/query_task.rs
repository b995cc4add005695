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

use millrace_engine::{Instant, Token};

use super::error::NameError;
use super::message::{
    AddressFamily, Answer, QueryMessage, ResponseKind, parse_response, write_query,
};
use super::name::DomainName;
use super::operations::{LookupContext, SocketEvent, SocketOperation};

/// Whom to ask, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueryOptions<'a> {
    pub(super) name: &'a DomainName,
    /// At least one. A server that fails or cannot be reached is not asked twice.
    pub(super) servers: &'a [SocketAddr],
    /// Tries over all servers, in their order and then again, while nobody answers.
    pub(super) tries_max: usize,
    /// How long a try may take, over UDP and, if it comes to that, once more over TCP.
    pub(super) wait: Duration,
}

/// What came of a question.
pub(super) type QueryResult = Result<Answer, NameError>;

/// See the module.
#[derive(Debug)]
pub(super) struct QueryTask {
    family: AddressFamily,
    token: Token,
    /// Tries begun; `tries <= plan.tries_max`.
    tries: usize,
    /// `None` before the question is asked and once it has its outcome.
    current: Option<QueryAttempt>,
    outcome: Option<QueryResult>,
}

#[derive(Debug)]
struct QueryAttempt {
    query: QueryMessage,
    server: SocketAddr,
    until: Instant,
    transport: Transport,
}

#[derive(Debug)]
enum Transport {
    /// With how many datagrams came that were no answer, and whether the last send is over.
    Udp {
        strays: usize,
        sent: bool,
    },
    Tcp,
}

impl QueryTask {
    /// Datagrams to one socket that may be no answer before it is given up: somebody is guessing.
    const STRAYS_MAX: usize = 8;
    /// The longest datagram that is received whole; what a query without EDNS gets has 512 bytes.
    const DATAGRAM_MAX: usize = 4096;
    /// The longest answer over TCP that is read: hundreds of addresses fit, and looking through it
    /// for each alias of a chain stays a matter of milliseconds.
    const ANSWER_MAX: usize = 8 * 1024;

    pub(super) fn new(family: AddressFamily, token: Token) -> Self {
        Self { family, token, tries: 0, current: None, outcome: None }
    }

    /// What came of it, once it is over.
    pub(super) fn outcome(&self) -> Option<&QueryResult> {
        self.outcome.as_ref()
    }

    /// When [`Question::expire`] has something to do, if nothing comes before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.current.as_ref().map(|current| current.until)
    }

    /// Asks anew. What was asked before must be over.
    pub(super) fn start(&mut self, desk: &mut LookupContext, plan: QueryOptions) {
        assert!(self.current.is_none(), "a question is asked once at a time");
        (self.tries, self.outcome) = (0, None);
        self.open_next(desk, plan);
    }

    /// Ends the question with `error` unless it is over.
    pub(super) fn end(&mut self, desk: &mut LookupContext, error: NameError) {
        if self.outcome.is_none() {
            self.finish(desk, Err(error));
        }
    }

    /// Gives the current try up if its time is over.
    pub(super) fn expire(&mut self, desk: &mut LookupContext, plan: QueryOptions) {
        let over = self.deadline().is_some_and(|deadline| deadline <= desk.now);
        if over && !self.retransmit(desk, plan) {
            self.fail_attempt(desk, plan, NameError::TimedOut);
        }
    }

    /// Asks the only server once more over the socket that is there, if it is asked over UDP.
    fn retransmit(&mut self, desk: &mut LookupContext, plan: QueryOptions) -> bool {
        let Some(QueryAttempt { query, until, transport: Transport::Udp { sent, .. }, .. }) =
            &mut self.current
        else {
            return false;
        };
        if plan.servers.len() > 1 || self.tries >= plan.tries_max {
            return false;
        }
        self.tries += 1;
        *until = desk.now + plan.wait;
        // One send at a time: what the kernel has not taken by now is the query of this try.
        if std::mem::replace(sent, false) {
            desk.queue(self.token, SocketOperation::Send(query.as_ref().into()));
        }
        true
    }

    /// Takes what became of this question's socket.
    pub(super) fn handle(
        &mut self,
        desk: &mut LookupContext,
        plan: QueryOptions,
        event: SocketEvent,
    ) {
        match event {
            SocketEvent::Opened => self.send(desk),
            SocketEvent::Sent => self.sent(),
            SocketEvent::Received(bytes) => {
                let reading = self.read(desk, bytes);
                self.handle_response(desk, plan, reading);
            }
            SocketEvent::Ended => self.fail_attempt(desk, plan, NameError::ServerFailed),
            SocketEvent::Failed(error) => self.fail_attempt(desk, plan, error),
        }
    }

    fn sent(&mut self) {
        if let Some(QueryAttempt { transport: Transport::Udp { sent, .. }, .. }) = &mut self.current
        {
            *sent = true;
        }
    }

    fn send(&mut self, desk: &mut LookupContext) {
        let Some(QueryAttempt { query, transport, .. }) = &self.current else { return };
        let length = (query.len() as u16).to_be_bytes();
        let bytes = match transport {
            Transport::Udp { .. } => query.as_ref().into(),
            Transport::Tcp => [&length, query.as_ref()].concat().into(),
        };
        desk.queue(self.token, SocketOperation::Send(bytes));
        desk.queue(self.token, SocketOperation::Receive(Self::DATAGRAM_MAX));
    }

    /// What the bytes that came are; `None` when more are needed, or none of this try's.
    fn read(&mut self, desk: &mut LookupContext, bytes: &[u8]) -> Option<ResponseKind> {
        let Some(QueryAttempt { query, transport, .. }) = &mut self.current else { return None };
        let reading = match transport {
            Transport::Udp { strays, .. } => {
                let reading = parse_response(bytes, query, false);
                let is_passed_over = reading == ResponseKind::Stray && *strays < Self::STRAYS_MAX;
                *strays += usize::from(is_passed_over);
                (!is_passed_over).then_some(reading)
            }
            Transport::Tcp => {
                let length = match bytes {
                    [high, low, ..] => usize::from(u16::from_be_bytes([*high, *low])),
                    _ => 0,
                };
                if length > Self::ANSWER_MAX {
                    return Some(ResponseKind::Failed);
                }
                let message = bytes.get(2..2 + length).filter(|_| bytes.len() > 2);
                message.map(|message| parse_response(message, query, true))
            }
        };
        if reading.is_none() {
            desk.queue(self.token, SocketOperation::Receive(Self::DATAGRAM_MAX));
        }
        reading
    }

    fn handle_response(
        &mut self,
        desk: &mut LookupContext,
        plan: QueryOptions,
        reading: Option<ResponseKind>,
    ) {
        match reading {
            None => {}
            Some(ResponseKind::Answer(answer)) => self.finish(desk, Ok(answer)),
            Some(ResponseKind::OverTcp) => {
                let Some(QueryAttempt { server, query, .. }) = self.close(desk) else { return };
                desk.queue(self.token, SocketOperation::OpenTcp(server));
                let until = desk.now + plan.wait;
                self.current =
                    Some(QueryAttempt { query, server, until, transport: Transport::Tcp });
            }
            Some(ResponseKind::Stray | ResponseKind::Failed) => {
                self.fail_attempt(desk, plan, NameError::ServerFailed);
            }
        }
    }

    /// The current try came to nothing: begins the next one, or ends the question.
    fn fail_attempt(&mut self, desk: &mut LookupContext, plan: QueryOptions, error: NameError) {
        // What is told of a question that is over is of a socket that is closed.
        if self.close(desk).is_none() {
            return;
        }
        let tries_max = match error {
            NameError::TimedOut => plan.tries_max,
            NameError::Overloaded => 0,
            _ => plan.servers.len(),
        };
        if self.tries >= tries_max {
            self.finish(desk, Err(error));
        } else {
            self.open_next(desk, plan);
        }
    }

    fn open_next(&mut self, desk: &mut LookupContext, plan: QueryOptions) {
        let server = plan.servers[self.tries % plan.servers.len()];
        self.tries += 1;
        let query = write_query(plan.name, self.family, &mut *desk.random);
        desk.queue(self.token, SocketOperation::OpenUdp(server));
        let transport = Transport::Udp { strays: 0, sent: false };
        self.current = Some(QueryAttempt { query, server, until: desk.now + plan.wait, transport });
    }

    fn finish(&mut self, desk: &mut LookupContext, outcome: QueryResult) {
        self.close(desk);
        self.outcome = Some(outcome);
    }

    /// Ends the current try and its socket. Gives what a further one needs: server and query.
    fn close(&mut self, desk: &mut LookupContext) -> Option<QueryAttempt> {
        let current = self.current.take()?;
        desk.queue(self.token, SocketOperation::Close);
        Some(current)
    }
}
