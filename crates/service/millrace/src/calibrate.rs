//! What an engine costs on this machine: messages bounced over loopback connections, for the few
//! milliseconds that a start can spare.
//!
//! Both ends belong to the engine that is measured, so that the figure is of whole messages, sent
//! and received, [`PAIRS`] under way at a time. It is CPU time, of this process alone.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use millrace_event::{
    Address, Clock, Completion, Engine, EngineOptions, Error, Event, Fd, Kind, Sockets, Token,
    Watch,
};

/// Connections, each with a message under way.
const PAIRS: usize = 32;
/// Messages of one measurement, all connections together.
const MESSAGES: usize = 1024;
/// What a request with its answer's head is like.
const MESSAGE_BYTES: usize = 1024;
/// How long a measurement may take; a machine that is so busy tells nothing.
const PATIENCE: Duration = Duration::from_millis(500);

/// CPU time of a message over `W`.
///
/// # Errors
/// What the kernel refused: the engine, sockets, the loopback network; [`Error::TimedOut`] when
/// the machine is too busy.
pub(crate) fn cost<W: Watch>() -> Result<Duration, Error> {
    let mut bouncing = Bouncing::<W>::connected()?;
    let before = millrace_sys::cpu_time();
    bouncing.run(MESSAGES)?;
    let taken = millrace_sys::cpu_time() - before;
    bouncing.end();
    Ok(taken / MESSAGES as u32)
}

/// Connections of which both ends are here.
struct Bouncing<W> {
    engine: Sockets<W>,
    ends: Vec<End>,
    message: Vec<u8>,
    deadline: millrace_event::Instant,
}

struct End {
    fd: Fd,
    /// Bytes of the message that is being received: `received < MESSAGE_BYTES`.
    received: usize,
}

impl<W: Watch> Bouncing<W> {
    fn connected() -> Result<Self, Error> {
        let budget_bytes = 4 * PAIRS * MESSAGE_BYTES;
        let options = EngineOptions { budget_bytes, log: None, clock: Clock::new() };
        let engine = Sockets::<W>::new(options)?;
        let deadline = engine.now() + PATIENCE;
        let mut bouncing =
            Self { engine, ends: Vec::new(), message: vec![b'm'; MESSAGE_BYTES], deadline };
        bouncing.connect()?;
        Ok(bouncing)
    }

    fn connect(&mut self) -> Result<(), Error> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let refused = |number: millrace_sys::Errno| Error::Other(number.raw_os_error());
        let listener = self.engine.adopt(millrace_sys::listen_tcp(any, false).map_err(refused)?)?;
        let address = self.engine.local_address(&listener).ok_or(Error::Unreachable)?;
        self.engine.accept(&listener, Token::new(Kind::Listener, 0, 0));
        let mut open = 0;
        for _ in 0..PAIRS {
            let fd = self.engine.connect(&Address::Tcp(address), self.next_token())?;
            self.ends.push(End { fd, received: 0 });
        }
        while open < 2 * PAIRS {
            match self.next()?.event {
                Event::Connected(result) => result?,
                Event::Accepted(result) => {
                    let fd = result?.0;
                    self.ends.push(End { fd, received: 0 });
                }
                _ => continue,
            }
            open += 1;
        }
        self.engine.close(listener);
        Ok(())
    }

    /// Those that connected send first; from then on each end sends back what it received.
    fn run(&mut self, messages: usize) -> Result<(), Error> {
        for index in 0..self.ends.len() {
            let (end, token) = (&self.ends[index], token(index));
            match index < PAIRS {
                true => self.engine.send(&end.fd, &[&self.message], token),
                false => self.engine.recv(&end.fd, MESSAGE_BYTES, token),
            }
        }
        let mut received = 0;
        while received < messages {
            let Completion { token, event } = self.next()?;
            let Some(end) = self.ends.get_mut(token.slot() as usize) else { continue };
            match event {
                Event::Sent(result) => {
                    result?;
                    self.engine.recv(&end.fd, MESSAGE_BYTES, token);
                }
                Event::Received(result) => {
                    let buffer = result?;
                    let count = buffer.len();
                    self.engine.recycle(buffer);
                    if count == 0 {
                        return Err(Error::Reset);
                    }
                    end.received += count;
                    if end.received < MESSAGE_BYTES {
                        self.engine.recv(&end.fd, MESSAGE_BYTES - end.received, token);
                    } else {
                        end.received = 0;
                        received += 1;
                        self.engine.send(&end.fd, &[&self.message], token);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// By resets, so that no port is kept waiting for what is late (TIME_WAIT).
    fn end(self) {
        let Self { mut engine, ends, .. } = self;
        ends.into_iter().for_each(|end| engine.reset(end.fd));
    }

    fn next(&mut self) -> Result<Completion, Error> {
        loop {
            if let Some(completion) = self.engine.next() {
                return Ok(completion);
            }
            if self.engine.now() >= self.deadline {
                return Err(Error::TimedOut);
            }
            self.engine.turn(Some(self.deadline));
        }
    }

    fn next_token(&self) -> Token {
        token(self.ends.len())
    }
}

fn token(index: usize) -> Token {
    Token::new(Kind::Client, index as u32, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_event::{EpollWatch, UringWatch};

    #[test]
    fn both_engines_can_be_measured() {
        for cost in [cost::<EpollWatch>(), cost::<UringWatch>()] {
            match cost {
                // The machine has no io_uring, or has no time: neither is what is tested.
                Err(Error::Unsupported(_) | Error::TimedOut) => {}
                cost => assert!(cost.unwrap() > Duration::ZERO),
            }
        }
    }
}
