//! Measures the CPU time of an engine: messages go back and forth over loopback connections.
//!
//! Both ends belong to the measured engine, so the result covers sending and receiving. [`PAIRS`]
//! messages are in flight at a time. CPU time is that of this process.

use std::time::Duration;

use millrace_engine::{Completion, CompletionEvent, Engine, Error, Fd, Token, TokenKind, Watch};

use super::Loopback;

/// Connections, each with one message in flight.
const PAIRS: usize = 32;
/// Messages of one measurement over all connections.
const MESSAGES: usize = 1024;
/// About the size of a request plus a response header.
const MESSAGE_BYTES: usize = 1024;
/// Time limit of a measurement. A machine that needs longer is too busy to be measured.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Returns the CPU time of one message over `watch`, which must not watch any descriptor yet.
///
/// # Errors
/// If the kernel refuses the engine, sockets or the loopback network; [`Error::TimedOut`] if the
/// machine is too busy.
pub(crate) fn measure_engine<W: Watch>(watch: W) -> Result<Duration, Error> {
    let mut bench = MessageBounce::connected(watch)?;
    let before = millrace_sys::cpu_time();
    bench.run(MESSAGES)?;
    let elapsed = millrace_sys::cpu_time() - before;
    bench.end();
    Ok(elapsed / MESSAGES as u32)
}

/// Connections with both ends in this engine.
struct MessageBounce<W> {
    loopback: Loopback<W>,
    /// The connecting ends, then the accepted ones.
    ends: Vec<BounceEnd>,
    message: Vec<u8>,
}

struct BounceEnd {
    fd: Fd,
    /// Bytes received of the current message: `received < MESSAGE_BYTES`.
    received: usize,
}

impl<W: Watch> MessageBounce<W> {
    fn connected(watch: W) -> Result<Self, Error> {
        let mut loopback = Loopback::over(watch, 4 * PAIRS * MESSAGE_BYTES, TIMEOUT)?;
        let mut others = Vec::new();
        let mut ends = Vec::new();
        for index in 0..PAIRS {
            let (fd, other) = loopback.connect(token(index))?;
            ends.push(BounceEnd { fd, received: 0 });
            others.push(other);
        }
        for other in others {
            let fd = loopback.engine.adopt(other)?;
            ends.push(BounceEnd { fd, received: 0 });
        }
        Ok(Self { loopback, ends, message: vec![b'm'; MESSAGE_BYTES] })
    }

    /// Exchanges this number of messages. The connecting ends send first; every end returns each
    /// message that it receives.
    fn run(&mut self, messages: usize) -> Result<(), Error> {
        for index in 0..self.ends.len() {
            let (end, token) = (&self.ends[index], token(index));
            match index < PAIRS {
                true => self.loopback.engine.send(&end.fd, &[&self.message], token),
                false => self.loopback.engine.recv(&end.fd, MESSAGE_BYTES, token),
            }
        }
        let mut received = 0;
        while received < messages {
            let Completion { token, event } = self.loopback.next()?;
            let Some(end) = self.ends.get_mut(token.slot() as usize) else { continue };
            match event {
                CompletionEvent::Sent(result) => {
                    result?;
                    self.loopback.engine.recv(&end.fd, MESSAGE_BYTES, token);
                }
                CompletionEvent::Received(result) => {
                    let buffer = result?;
                    let count = buffer.len();
                    self.loopback.engine.recycle(buffer);
                    if count == 0 {
                        return Err(Error::Reset);
                    }
                    end.received += count;
                    if end.received < MESSAGE_BYTES {
                        self.loopback.engine.recv(&end.fd, MESSAGE_BYTES - end.received, token);
                    } else {
                        end.received = 0;
                        received += 1;
                        self.loopback.engine.send(&end.fd, &[&self.message], token);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Resets the connections, so that no port stays in TIME_WAIT.
    fn end(self) {
        let Self { mut loopback, ends, .. } = self;
        ends.into_iter().for_each(|end| loopback.engine.reset(end.fd));
    }
}

fn token(index: usize) -> Token {
    Token::new(TokenKind::Client, index as u32, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_engine::{EpollWatch, PollWatch, SelectWatch, UringWatch};

    #[test]
    fn each_engine_can_be_measured() {
        for cost in [
            EpollWatch::new().and_then(measure_engine),
            UringWatch::new().and_then(measure_engine),
            PollWatch::new().and_then(measure_engine),
            SelectWatch::new().and_then(measure_engine),
        ] {
            match cost {
                // This machine has no io_uring or is too busy; the test does not depend on either.
                Err(Error::Unsupported(_) | Error::TimedOut) => {}
                cost => assert!(cost.unwrap() > Duration::ZERO),
            }
        }
    }
}
