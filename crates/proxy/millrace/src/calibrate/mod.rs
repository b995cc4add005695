//! Measures costs on this machine over loopback connections, in a few milliseconds at start. The
//! callers decide what follows from the costs.

mod engine_cost;
mod forward_cost;
mod send_cost;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use millrace_engine::{
    Address, Clock, Completion, CompletionEvent, Engine, EngineOptions, Error, Fd, Instant,
    ReadinessEngine, Token, Watch,
};
use millrace_sys::Errno;

pub(crate) use engine_cost::measure_engine;
pub(crate) use forward_cost::{ForwardCosts, RestKind, measure_forwarding};
pub(crate) use send_cost::{SendCosts, measure_sending};

/// Describes why a measurement failed. Its only time limit is that of the whole measurement.
pub(crate) fn describe_failure(error: Error) -> String {
    match error {
        Error::TimedOut => "the machine is too busy".to_owned(),
        error => error.to_string(),
    }
}

/// An engine with loopback connections.
struct Loopback<W> {
    engine: ReadinessEngine<W>,
    listener: OwnedFd,
    address: Address,
    /// Time limit of the measurement.
    deadline: Instant,
}

impl<W: Watch> Loopback<W> {
    /// Creates an engine over an empty watch, without connections and with a budget of
    /// `budget_bytes`. The whole measurement must end within `timeout`.
    fn over(watch: W, budget_bytes: usize, timeout: Duration) -> Result<Self, Error> {
        let options = EngineOptions { budget_bytes, log: None, clock: Clock::new() };
        let engine = ReadinessEngine::with_watch(watch, options)?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = millrace_sys::listen_tcp(any, false).map_err(refused)?;
        let address = millrace_sys::local_address(listener.as_fd()).map_err(refused)?;
        let address = Address::Tcp(address.ok_or(Error::Unreachable)?);
        let deadline = engine.now() + timeout;
        Ok(Self { engine, listener, address, deadline })
    }

    /// Opens a connection. Returns the engine's end and the other end, a plain socket.
    fn connect(&mut self, token: Token) -> Result<(Fd, OwnedFd), Error> {
        let fd = self.engine.connect(&self.address, token)?;
        while !matches!(self.next()?.event, CompletionEvent::Connected(Ok(()))) {}
        // A loopback connection is in the accept queue as soon as it is established.
        let (other, _) = millrace_sys::accept(self.listener.as_fd()).map_err(refused)?;
        Ok((fd, other))
    }

    /// Waits for the next completion.
    fn next(&mut self) -> Result<Completion, Error> {
        loop {
            if let Some(completion) = self.engine.next_completion() {
                return Ok(completion);
            }
            if self.engine.now() >= self.deadline {
                return Err(Error::TimedOut);
            }
            self.engine.submit_and_wait(Some(self.deadline));
        }
    }
}

fn refused(number: Errno) -> Error {
    Error::Other(number.raw_os_error())
}
