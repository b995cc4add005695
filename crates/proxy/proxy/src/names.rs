//! Name lookups over sockets of the worker's engine. [`DnsResolver`] implements the protocol
//! without I/O. This module executes its socket operations and reports their events to it.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use millrace_config::limits::Limits;
use millrace_dns::{
    DnsResolver, LookupResult, NameError, ResolverConfig, ResolverLimits, SocketEvent,
    SocketOperation,
};
use millrace_engine::{Address, CompletionEvent, Engine, Error, Fd, HeldBytes, Instant, Token};

use crate::exchange::Reason;

/// Returns the reason with which a failed lookup ends an exchange.
pub(crate) const fn reason_of(error: NameError) -> Reason {
    match error {
        NameError::Invalid | NameError::NotFound | NameError::NoAddress => Reason::NameUnknown,
        NameError::ServerFailed => Reason::NameFailed,
        NameError::TimedOut => Reason::NameTimedOut,
        NameError::Overloaded => Reason::Overloaded,
    }
}

/// The resolver of a worker. `W` identifies a waiting exchange.
#[derive(Debug)]
pub(crate) struct Resolver<W> {
    names: DnsResolver<W>,
    /// The sockets, by the slots of their tokens.
    sockets: Vec<Option<NameSocket>>,
}

#[derive(Debug)]
struct NameSocket {
    fd: Fd,
    token: Token,
    /// The bytes that a stream socket has received; `None` if there are none, and for datagrams.
    received: Option<HeldBytes>,
    is_stream: bool,
}

impl<W: Copy + PartialEq> Resolver<W> {
    /// Creates a resolver with these sources of names. It applies the limits `name_ms`, `names` and
    /// `name_lookups`.
    pub(crate) fn new(sources: Arc<ResolverConfig>, limits: &Limits, now: Instant) -> Self {
        Self { names: DnsResolver::new(sources, bounds(limits), now), sockets: Vec::new() }
    }

    /// Changes the limits. Lookups in progress keep their deadlines.
    pub(crate) fn set_limits(&mut self, limits: &Limits) {
        self.names.set_bounds(bounds(limits));
    }

    /// Returns whether the number of lookups is at its limit.
    pub(crate) fn is_full(&self) -> bool {
        self.names.is_full()
    }

    /// Returns the number of lookups in progress.
    #[cfg(test)]
    fn active_lookups(&self) -> usize {
        self.names.active_lookups()
    }

    /// Looks a name up; see [`DnsResolver::lookup`]. A pending result comes from
    /// [`Resolver::poll_finished`] later.
    pub(crate) fn lookup<E: Engine>(
        &mut self,
        engine: &mut E,
        name: &[u8],
        waiter: W,
    ) -> Poll<LookupResult> {
        let now = engine.now();
        let found = self.names.lookup(name, waiter, now, &mut || engine.random());
        self.execute_operations(engine, now);
        if found.is_ready() {
            return found;
        }
        // The lookup may have failed at once, for example if no socket could be opened.
        self.names.take_finished(waiter).map_or(Poll::Pending, Poll::Ready)
    }

    /// Handles a completion whose token is of
    /// [`TokenKind::Name`](millrace_engine::TokenKind::Name).
    pub(crate) fn handle<E: Engine>(
        &mut self,
        engine: &mut E,
        token: Token,
        event: CompletionEvent,
    ) {
        let now = engine.now();
        match event {
            CompletionEvent::Connected(Ok(())) => {
                self.notify(engine, token, SocketEvent::Opened, now)
            }
            CompletionEvent::Sent(Ok(())) => self.notify(engine, token, SocketEvent::Sent, now),
            CompletionEvent::Received(Ok(buffer)) => {
                self.notify_received(engine, token, &buffer, now);
                engine.recycle(buffer);
            }
            CompletionEvent::Connected(Err(error))
            | CompletionEvent::Sent(Err(error))
            | CompletionEvent::Received(Err(error)) => {
                self.notify(engine, token, SocketEvent::Failed(name_error(error)), now);
            }
            CompletionEvent::Accepted(_)
            | CompletionEvent::Spliced(_)
            | CompletionEvent::Readable
            | CompletionEvent::Woken => {
                unreachable!("a name server's socket only connects, sends and receives")
            }
        }
        self.execute_operations(engine, now);
    }

    /// Returns the time by which [`Resolver::handle_deadlines`] has to be called, if at all.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.names.next_deadline()
    }

    /// Ends the lookups and queries whose deadlines are over at `now`.
    pub(crate) fn handle_deadlines<E: Engine>(&mut self, engine: &mut E, now: Instant) {
        self.names.handle_deadlines(now, &mut || engine.random());
        self.execute_operations(engine, now);
    }

    /// Returns the next waiter whose lookup has finished, and the result.
    pub(crate) fn poll_finished(&mut self) -> Option<(W, LookupResult)> {
        self.names.poll_finished()
    }

    /// Removes a waiter, which gets no result then.
    pub(crate) fn forget(&mut self, waiter: W) {
        self.names.remove_waiter(waiter);
    }

    /// Ends all lookups and closes their sockets, because the worker ends. The waiters get no
    /// results.
    pub(crate) fn shut_down<E: Engine>(&mut self, engine: &mut E) {
        let now = engine.now();
        self.names.end(now);
        self.execute_operations(engine, now);
    }

    fn notify<E: Engine>(
        &mut self,
        engine: &mut E,
        token: Token,
        event: SocketEvent,
        now: Instant,
    ) {
        self.names.handle(token, event, now, &mut || engine.random());
    }

    /// Passes received bytes to [`DnsResolver`]. Bytes of a stream are held, and all of them are
    /// passed each time, until the message is complete.
    fn notify_received<E: Engine>(
        &mut self,
        engine: &mut E,
        token: Token,
        bytes: &[u8],
        now: Instant,
    ) {
        let Some(socket) = self.sockets.get_mut(token.slot() as usize).and_then(Option::as_mut)
        else {
            return;
        };
        let event = match &mut socket.received {
            _ if !socket.is_stream => SocketEvent::Received(bytes),
            _ if bytes.is_empty() => SocketEvent::Ended,
            Some(received) => {
                received.append(bytes);
                SocketEvent::Received(received)
            }
            none => SocketEvent::Received(none.insert(HeldBytes::copy(engine.budget(), &[bytes]))),
        };
        self.names.handle(token, event, now, &mut || engine.random());
    }

    /// Executes the operations of [`DnsResolver`]. In nearly every turn there are none.
    #[inline]
    fn execute_operations<E: Engine>(&mut self, engine: &mut E, now: Instant) {
        while let Some((token, operation)) = self.names.next_operation() {
            self.execute(engine, token, operation, now);
        }
    }

    #[inline(never)]
    fn execute<E: Engine>(
        &mut self,
        engine: &mut E,
        token: Token,
        operation: SocketOperation,
        now: Instant,
    ) {
        let slot = token.slot() as usize;
        match operation {
            SocketOperation::OpenUdp(server) => {
                self.open(engine, token, &Address::Udp(server), now)
            }
            SocketOperation::OpenTcp(server) => {
                self.open(engine, token, &Address::Tcp(server), now)
            }
            SocketOperation::Close => {
                if let Some(socket) = self.sockets.get_mut(slot).and_then(Option::take) {
                    engine.close(socket.fd);
                }
            }
            SocketOperation::Send(bytes) => engine.send(self.fd(token), &[&bytes], token),
            SocketOperation::Receive(bytes_max) => engine.recv(self.fd(token), bytes_max, token),
        }
    }

    fn open<E: Engine>(&mut self, engine: &mut E, token: Token, address: &Address, now: Instant) {
        match engine.connect(address, token) {
            Ok(fd) => {
                let slot = token.slot() as usize;
                if self.sockets.len() <= slot {
                    self.sockets.resize_with(slot + 1, || None);
                }
                let is_stream = matches!(address, Address::Tcp(_));
                self.sockets[slot] = Some(NameSocket { fd, token, received: None, is_stream });
            }
            Err(error) => self.notify(engine, token, SocketEvent::Failed(name_error(error)), now),
        }
    }

    fn fd(&self, token: Token) -> &Fd {
        let socket =
            self.sockets[token.slot() as usize].as_ref().expect("the socket of a query is open");
        assert!(socket.token == token, "a closed socket has no operations");
        &socket.fd
    }
}

fn bounds(limits: &Limits) -> ResolverLimits {
    ResolverLimits {
        time: Duration::from_millis(limits.name_ms),
        lookups: limits.name_lookups as u32,
        names: limits.names as usize,
    }
}

fn name_error(error: Error) -> NameError {
    match error {
        Error::OutOfDescriptors | Error::OutOfMemory => NameError::Overloaded,
        Error::TimedOut => NameError::TimedOut,
        _ => NameError::ServerFailed,
    }
}

#[cfg(test)]
mod tests;
