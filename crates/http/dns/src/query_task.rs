//! One query to the name servers, for the addresses of one family of one name. It has a socket of
//! its own, and is repeated with the next server until one answers.
//!
//! ```text
//!            ┌──── no answer in time, or the server failed: the next attempt ─────┐
//!            v                                                                    │
//! start ─> opening (UDP) ─> waiting ──> truncated ──> opening (TCP) ──> waiting ──┤
//!            │                 └─────────── answer ─────┬──────────────────┘      │
//!            │                                          v                         │
//!            └── no descriptor ─────────────────────> result <── no attempt left ─┘
//! ```
//!
//! Each server is queried from a new socket, and so from a new random port, with a new identifier
//! and new random case. If there is only one server, a further attempt sends the same query over
//! the same socket: the answer to an earlier attempt may still arrive and is equally valid, so a
//! slow server can answer during the whole lookup. If there are several servers, each can answer
//! only during its own attempt, because a query has one socket at a time.

use std::net::SocketAddr;
use std::time::Duration;

use millrace_engine::{Instant, Token};

use super::error::NameError;
use super::message::{
    AddressFamily, Answer, QueryMessage, ResponseKind, parse_response, write_query,
};
use super::name::DomainName;
use super::operations::{LookupContext, SocketEvent, SocketOperation};

/// The parameters of a query.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueryOptions<'a> {
    pub(super) name: &'a DomainName,
    /// At least one. After a server failed or could not be reached, the query continues only if
    /// there were fewer attempts than servers. After a timeout, it continues up to `tries_max`.
    pub(super) servers: &'a [SocketAddr],
    /// Maximum number of attempts. Attempts go to the servers in order, and then to the first
    /// server again.
    pub(super) tries_max: usize,
    /// Maximum time of an attempt over UDP. Its repetition over TCP may take the same time again.
    pub(super) wait: Duration,
}

/// The result of a query.
pub(super) type QueryResult = Result<Answer, NameError>;

/// The state of one query.
#[derive(Debug)]
pub(super) struct QueryTask {
    family: AddressFamily,
    token: Token,
    /// Attempts started; `tries <= options.tries_max`.
    tries: usize,
    /// The current attempt. `None` before the query starts and after it ended.
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
    /// `strays` counts received datagrams that did not respond to the query; `sent` is whether the
    /// last send completed.
    Udp {
        strays: usize,
        sent: bool,
    },
    Tcp,
}

impl QueryTask {
    /// Maximum number of unrelated datagrams to one socket. Beyond it the attempt fails, because an
    /// attacker may be guessing.
    const STRAYS_MAX: usize = 8;
    /// Maximum bytes of a datagram. Without EDNS, a response has at most 512 bytes.
    const DATAGRAM_MAX: usize = 4096;
    /// Maximum bytes of a response over TCP. Hundreds of addresses fit, and searching it for each
    /// alias of a chain takes milliseconds at most.
    const ANSWER_MAX: usize = 8 * 1024;

    pub(super) fn new(family: AddressFamily, token: Token) -> Self {
        Self { family, token, tries: 0, current: None, outcome: None }
    }

    /// Returns the result, once the query ended.
    pub(super) fn outcome(&self) -> Option<&QueryResult> {
        self.outcome.as_ref()
    }

    /// Returns the time at which [`QueryTask::expire`] has to be called, if no event occurs before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.current.as_ref().map(|current| current.until)
    }

    /// Starts the query. An earlier one must have ended.
    pub(super) fn start(&mut self, context: &mut LookupContext, options: QueryOptions) {
        assert!(self.current.is_none(), "a query runs once at a time");
        (self.tries, self.outcome) = (0, None);
        self.open_next(context, options);
    }

    /// Ends the query with `error` unless it has ended.
    pub(super) fn end(&mut self, context: &mut LookupContext, error: NameError) {
        if self.outcome.is_none() {
            self.finish(context, Err(error));
        }
    }

    /// Ends the current attempt if its time is over.
    pub(super) fn expire(&mut self, context: &mut LookupContext, options: QueryOptions) {
        let over = self.deadline().is_some_and(|deadline| deadline <= context.now);
        if over && !self.retransmit(context, options) {
            self.fail_attempt(context, options, NameError::TimedOut);
        }
    }

    /// Sends the query to the only server again over the same UDP socket. Returns whether it could.
    fn retransmit(&mut self, context: &mut LookupContext, options: QueryOptions) -> bool {
        let Some(QueryAttempt { query, until, transport: Transport::Udp { sent, .. }, .. }) =
            &mut self.current
        else {
            return false;
        };
        if options.servers.len() > 1 || self.tries >= options.tries_max {
            return false;
        }
        self.tries += 1;
        *until = context.now + options.wait;
        // Only one send is in progress at a time. If the kernel has not accepted the last query
        // yet, that query counts for this attempt.
        if std::mem::replace(sent, false) {
            context.queue(self.token, SocketOperation::Send(query.as_ref().into()));
        }
        true
    }

    /// Handles an event of this query's socket.
    pub(super) fn handle(
        &mut self,
        context: &mut LookupContext,
        options: QueryOptions,
        event: SocketEvent,
    ) {
        match event {
            SocketEvent::Opened => self.send(context),
            SocketEvent::Sent => self.record_sent(),
            SocketEvent::Received(bytes) => {
                let response = self.read(context, bytes);
                self.handle_response(context, options, response);
            }
            SocketEvent::Ended => self.fail_attempt(context, options, NameError::ServerFailed),
            SocketEvent::Failed(error) => self.fail_attempt(context, options, error),
        }
    }

    fn record_sent(&mut self) {
        if let Some(QueryAttempt { transport: Transport::Udp { sent, .. }, .. }) = &mut self.current
        {
            *sent = true;
        }
    }

    fn send(&mut self, context: &mut LookupContext) {
        let Some(QueryAttempt { query, transport, .. }) = &self.current else { return };
        let length = (query.len() as u16).to_be_bytes();
        let bytes = match transport {
            Transport::Udp { .. } => query.as_ref().into(),
            Transport::Tcp => [&length, query.as_ref()].concat().into(),
        };
        context.queue(self.token, SocketOperation::Send(bytes));
        context.queue(self.token, SocketOperation::Receive(Self::DATAGRAM_MAX));
    }

    /// Parses received bytes. Returns `None` if more bytes are needed, or if the datagram is
    /// ignored.
    fn read(&mut self, context: &mut LookupContext, bytes: &[u8]) -> Option<ResponseKind> {
        let Some(QueryAttempt { query, transport, .. }) = &mut self.current else { return None };
        let response = match transport {
            Transport::Udp { strays, .. } => {
                let response = parse_response(bytes, query, false);
                let is_ignored = response == ResponseKind::Stray && *strays < Self::STRAYS_MAX;
                *strays += usize::from(is_ignored);
                (!is_ignored).then_some(response)
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
        if response.is_none() {
            context.queue(self.token, SocketOperation::Receive(Self::DATAGRAM_MAX));
        }
        response
    }

    fn handle_response(
        &mut self,
        context: &mut LookupContext,
        options: QueryOptions,
        response: Option<ResponseKind>,
    ) {
        match response {
            None => {}
            Some(ResponseKind::Answer(answer)) => self.finish(context, Ok(answer)),
            Some(ResponseKind::OverTcp) => {
                let Some(QueryAttempt { server, query, .. }) = self.close(context) else { return };
                context.queue(self.token, SocketOperation::OpenTcp(server));
                let until = context.now + options.wait;
                self.current =
                    Some(QueryAttempt { query, server, until, transport: Transport::Tcp });
            }
            Some(ResponseKind::Stray | ResponseKind::Failed) => {
                self.fail_attempt(context, options, NameError::ServerFailed);
            }
        }
    }

    /// Ends the current attempt, and starts the next one or ends the query.
    fn fail_attempt(
        &mut self,
        context: &mut LookupContext,
        options: QueryOptions,
        error: NameError,
    ) {
        // An event after the end of a query belongs to a closed socket.
        if self.close(context).is_none() {
            return;
        }
        let tries_max = match error {
            NameError::TimedOut => options.tries_max,
            NameError::Overloaded => 0,
            _ => options.servers.len(),
        };
        if self.tries >= tries_max {
            self.finish(context, Err(error));
        } else {
            self.open_next(context, options);
        }
    }

    fn open_next(&mut self, context: &mut LookupContext, options: QueryOptions) {
        let server = options.servers[self.tries % options.servers.len()];
        self.tries += 1;
        let query = write_query(options.name, self.family, &mut *context.random);
        context.queue(self.token, SocketOperation::OpenUdp(server));
        let transport = Transport::Udp { strays: 0, sent: false };
        self.current =
            Some(QueryAttempt { query, server, until: context.now + options.wait, transport });
    }

    fn finish(&mut self, context: &mut LookupContext, outcome: QueryResult) {
        self.close(context);
        self.outcome = Some(outcome);
    }

    /// Ends the current attempt and closes its socket. Returns the attempt, whose server and query
    /// a further one needs.
    fn close(&mut self, context: &mut LookupContext) -> Option<QueryAttempt> {
        let current = self.current.take()?;
        context.queue(self.token, SocketOperation::Close);
        Some(current)
    }
}
