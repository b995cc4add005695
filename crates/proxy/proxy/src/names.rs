//! Names looked up over sockets of the worker's engine: carries out what [`Names`] orders, and
//! tells it what became of that.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use millrace_config::limits::Limits;
use millrace_dns::{Bounds, Event as Told, Found, NameError, Names, Order, Sources};
use millrace_engine::{Address, CompletionEvent, Engine, Error, Fd, HeldBytes, Instant, Token};

use crate::exchange::Reason;

/// What the client is told.
pub(crate) const fn reason_of(error: NameError) -> Reason {
    match error {
        NameError::Invalid | NameError::NotFound | NameError::NoAddress => Reason::NameUnknown,
        NameError::ServerFailed => Reason::NameFailed,
        NameError::TimedOut => Reason::NameTimedOut,
        NameError::Overloaded => Reason::Overloaded,
    }
}

/// A worker's resolver. `W` is what its caller knows a waiting exchange by.
#[derive(Debug)]
pub(crate) struct Resolver<W> {
    names: Names<W>,
    /// By the slots of their tokens.
    sockets: Vec<Option<NameSocket>>,
}

#[derive(Debug)]
struct NameSocket {
    fd: Fd,
    token: Token,
    /// What a stream has brought. `None`: nothing, or it is for datagrams.
    received: Option<HeldBytes>,
    is_stream: bool,
}

impl<W: Copy + PartialEq> Resolver<W> {
    /// A resolver that knows what `sources` say. Of the limits, `name_ms`, `names` and
    /// `name_lookups` count.
    pub(crate) fn new(sources: Arc<Sources>, limits: &Limits, now: Instant) -> Self {
        Self { names: Names::new(sources, bounds(limits), now), sockets: Vec::new() }
    }

    /// Goes on under other limits. Lookups under way keep the time that they began with.
    pub(crate) fn set_limits(&mut self, limits: &Limits) {
        self.names.set_bounds(bounds(limits));
    }

    /// Whether no further lookup can begin before one is over.
    pub(crate) fn is_full(&self) -> bool {
        self.names.is_full()
    }

    /// As [`Names::under_way`].
    #[cfg(test)]
    fn under_way(&self) -> usize {
        self.names.under_way()
    }

    /// As [`Names::lookup`].
    pub(crate) fn lookup<E: Engine>(
        &mut self,
        engine: &mut E,
        name: &[u8],
        waiter: W,
    ) -> Poll<Found> {
        let now = engine.now();
        let answered = self.names.lookup(name, waiter, now, &mut || engine.random());
        self.execute_orders(engine, now);
        if answered.is_ready() {
            return answered;
        }
        // It may have come to nothing at once.
        self.names.take_finished(waiter).map_or(Poll::Pending, Poll::Ready)
    }

    /// Takes a completion whose token is of [`TokenKind::Name`](millrace_engine::TokenKind::Name).
    pub(crate) fn handle<E: Engine>(
        &mut self,
        engine: &mut E,
        token: Token,
        event: CompletionEvent,
    ) {
        let now = engine.now();
        match event {
            CompletionEvent::Connected(Ok(())) => self.notify(engine, token, Told::Opened, now),
            CompletionEvent::Sent(Ok(())) => self.notify(engine, token, Told::Sent, now),
            CompletionEvent::Received(Ok(buffer)) => {
                self.notify_received(engine, token, &buffer, now);
                engine.recycle(buffer);
            }
            CompletionEvent::Connected(Err(error))
            | CompletionEvent::Sent(Err(error))
            | CompletionEvent::Received(Err(error)) => {
                self.notify(engine, token, Told::Failed(name_error(error)), now);
            }
            CompletionEvent::Accepted(_)
            | CompletionEvent::Spliced(_)
            | CompletionEvent::Readable
            | CompletionEvent::Woken => {
                unreachable!("a question only connects, sends and receives")
            }
        }
        self.execute_orders(engine, now);
    }

    /// When [`Resolver::handle_deadlines`] has to be called at the latest; `None`: not at all.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.names.next_deadline()
    }

    /// Gives up what has taken too long by `now`.
    pub(crate) fn handle_deadlines<E: Engine>(&mut self, engine: &mut E, now: Instant) {
        self.names.handle_deadlines(now, &mut || engine.random());
        self.execute_orders(engine, now);
    }

    /// As [`Names::poll_finished`].
    pub(crate) fn poll_finished(&mut self) -> Option<(W, Found)> {
        self.names.poll_finished()
    }

    /// As [`Names::forget`].
    pub(crate) fn forget(&mut self, waiter: W) {
        self.names.forget(waiter);
    }

    /// Ends every lookup and closes its sockets: the worker ends. No waiter gets a result.
    pub(crate) fn shut_down<E: Engine>(&mut self, engine: &mut E) {
        let now = engine.now();
        self.names.end(now);
        self.execute_orders(engine, now);
    }

    fn notify<E: Engine>(&mut self, engine: &mut E, token: Token, told: Told, now: Instant) {
        self.names.handle(token, told, now, &mut || engine.random());
    }

    /// Tells what has come: of a stream all that it has brought, which is held until it is whole.
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
        let told = match &mut socket.received {
            _ if !socket.is_stream => Told::Received(bytes),
            _ if bytes.is_empty() => Told::Ended,
            Some(received) => {
                received.append(bytes);
                Told::Received(received)
            }
            none => Told::Received(none.insert(HeldBytes::copy(engine.budget(), &[bytes]))),
        };
        self.names.handle(token, told, now, &mut || engine.random());
    }

    /// Carries out what is ordered, until nothing is, as in nearly every turn.
    #[inline]
    fn execute_orders<E: Engine>(&mut self, engine: &mut E, now: Instant) {
        while let Some((token, order)) = self.names.next_order() {
            self.execute(engine, token, order, now);
        }
    }

    #[inline(never)]
    fn execute<E: Engine>(&mut self, engine: &mut E, token: Token, order: Order, now: Instant) {
        let place = token.slot() as usize;
        match order {
            Order::OpenUdp(server) => self.open(engine, token, &Address::Udp(server), now),
            Order::OpenTcp(server) => self.open(engine, token, &Address::Tcp(server), now),
            Order::Close => {
                if let Some(socket) = self.sockets.get_mut(place).and_then(Option::take) {
                    engine.close(socket.fd);
                }
            }
            Order::Send(bytes) => engine.send(self.fd(token), &[&bytes], token),
            Order::Receive(bytes_max) => engine.recv(self.fd(token), bytes_max, token),
        }
    }

    fn open<E: Engine>(&mut self, engine: &mut E, token: Token, address: &Address, now: Instant) {
        match engine.connect(address, token) {
            Ok(fd) => {
                let place = token.slot() as usize;
                if self.sockets.len() <= place {
                    self.sockets.resize_with(place + 1, || None);
                }
                let is_stream = matches!(address, Address::Tcp(_));
                self.sockets[place] = Some(NameSocket { fd, token, received: None, is_stream });
            }
            Err(error) => self.notify(engine, token, Told::Failed(name_error(error)), now),
        }
    }

    fn fd(&self, token: Token) -> &Fd {
        let socket = self.sockets[token.slot() as usize].as_ref().expect("a question's socket");
        assert!(socket.token == token, "orders for a socket end with it");
        &socket.fd
    }
}

fn bounds(limits: &Limits) -> Bounds {
    Bounds {
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
