//! Measures the CPU time of forwarding the rest of a body ([`RestKind`]) in two ways: by receiving
//! and sending it, and through a pipe.
//!
//! An engine has the middle of two connections, like a worker. The ends are plain sockets of this
//! thread. Copying and splicing alternate, so that a disturbance affects both. The result is the
//! CPU time of this thread from the first wait to the last byte sent. It includes the origin's
//! sending, which is the same for both, and excludes the client's receiving.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use millrace_engine::{Buffer, CompletionEvent, Engine, Error, Fd, Token, TokenKind, Watch};
use millrace_proxy::congestion::NEARBY;
use millrace_splice::{FillResult, Pipe, Pipes, Thresholds};
use millrace_sys::Errno;

use super::{Loopback, refused};

/// The kind of a forwarded body. Its rest is the part that did not arrive with the header; copying
/// and splicing are compared for the rest only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RestKind {
    /// No byte of the body was received with the header.
    Alone,
    /// [`WITH_HEADER_BYTES`] of the body were received with the header and are sent first.
    AfterHeader,
}

/// The cost of forwarding a rest.
#[derive(Clone, Debug)]
pub(crate) struct ForwardCosts {
    pub(crate) kind: RestKind,
    /// The length of the rest.
    pub(crate) bytes: usize,
    /// One pair (copied, spliced) per round; at least [`ROUNDS_MIN`].
    pub(crate) rounds: Vec<(Duration, Duration)>,
}

/// The minimum number of rounds for a result.
const ROUNDS_MIN: usize = 12;
/// The number of rounds after which the measurement ends.
const ROUNDS_MAX: usize = 48;
/// Bodies forwarded in one measurement, so that the cost of reading the clock is negligible.
const BATCH: u32 = 8;
/// CPU time after which no further round begins.
const CPU_MAX: Duration = Duration::from_millis(600);
/// Bytes of a body received together with its header.
const WITH_HEADER_BYTES: usize = 4096;
/// The maximum length of a rest in bytes. One receive returns at most this many.
const REST_MAX: usize = Buffer::SIZE;

/// Measures the cost of each cell over `W`. A cell is a kind of body and the length of its rest,
/// `1..=REST_MAX` bytes. The measurement takes little more CPU time than [`CPU_MAX`], and at most
/// `timeout`.
///
/// # Errors
/// If the kernel refuses the engine, sockets, the loopback network or a pipe; [`Error::TimedOut`]
/// if the machine is too busy.
pub(crate) fn measure_forwarding<W: Watch>(
    cells: &[(RestKind, usize)],
    timeout: Duration,
) -> Result<Vec<ForwardCosts>, Error> {
    let start = millrace_sys::thread_cpu_time();
    let mut bench = ForwardBench::<W>::connected(timeout)?;
    let of_cell = |&(kind, bytes): &_| ForwardCosts { kind, bytes, rounds: Vec::new() };
    let mut costs: Vec<ForwardCosts> = cells.iter().map(of_cell).collect();
    for round in 0..ROUNDS_MAX {
        let is_enough = round >= ROUNDS_MIN;
        if is_enough && millrace_sys::thread_cpu_time() - start > CPU_MAX {
            break;
        }
        match costs.iter_mut().try_for_each(|costs| bench.measure(costs)) {
            Err(Error::TimedOut) if is_enough => break,
            result => result?,
        }
    }
    bench.end();
    Ok(costs)
}

/// The middle of two connections, from an origin and to a client.
struct ForwardBench<W> {
    loopback: Loopback<W>,
    origin: OwnedFd,
    source: Fd,
    sink: Fd,
    client: OwnedFd,
    pipe: Pipe,
    /// The bytes that the origin sends.
    body: Vec<u8>,
    /// Bytes at the start of `body` that the origin has not sent yet.
    unsent: usize,
    /// The client's receive buffer.
    memory: Vec<u8>,
    /// Time limit of receiving at the client. The engine has a limit of its own, because its clock
    /// advances only with a turn.
    deadline: Instant,
}

const SOURCE: Token = Token::new(TokenKind::Origin, 0, 0);
const SINK: Token = Token::new(TokenKind::Client, 0, 0);

impl<W: Watch> ForwardBench<W> {
    fn connected(timeout: Duration) -> Result<Self, Error> {
        let deadline = Instant::now() + timeout;
        let mut loopback = Loopback::over(W::new()?, 4 * Buffer::SIZE, timeout)?;
        let (source, origin) = loopback.connect(SOURCE)?;
        let (sink, client) = loopback.connect(SINK)?;
        // A pacing algorithm such as bbr would distort the result; NEARBY does not pace. If the
        // kernel does not have NEARBY, the measurement uses the default algorithm.
        loopback.engine.set_congestion(&sink, NEARBY);
        let _ = millrace_sys::set_congestion(origin.as_fd(), NEARBY);
        let mut pipes = Pipes::new(1, Thresholds::SPLICE);
        let pipe = pipes.acquire(&mut loopback.engine).ok_or(Error::OutOfMemory)?;
        let body = vec![b'm'; WITH_HEADER_BYTES + REST_MAX];
        let memory = vec![0; Buffer::SIZE];
        Ok(Self { loopback, origin, source, sink, client, pipe, body, unsent: 0, memory, deadline })
    }

    /// Adds a round to the costs of a cell.
    fn measure(&mut self, costs: &mut ForwardCosts) -> Result<(), Error> {
        let copied = self.forward_batch(costs.kind, costs.bytes, false)?;
        let spliced = self.forward_batch(costs.kind, costs.bytes, true)?;
        costs.rounds.push((copied, spliced));
        Ok(())
    }

    /// Forwards a few bodies. Returns the mean CPU time of one.
    fn forward_batch(
        &mut self,
        kind: RestKind,
        rest: usize,
        splices: bool,
    ) -> Result<Duration, Error> {
        let mut elapsed = Duration::ZERO;
        for _ in 0..BATCH {
            let start = millrace_sys::thread_cpu_time();
            let total = self.forward(kind, rest, splices)?;
            elapsed += millrace_sys::thread_cpu_time() - start;
            self.receive(total)?;
        }
        Ok(elapsed / BATCH)
    }

    /// Forwards a body and copies or splices its `rest`. Returns the length of the body.
    fn forward(&mut self, kind: RestKind, rest: usize, splices: bool) -> Result<usize, Error> {
        let total = if kind == RestKind::AfterHeader { WITH_HEADER_BYTES + rest } else { rest };
        // As in a worker, the first attempt finds the socket empty.
        match (kind, splices) {
            (RestKind::AfterHeader, _) => {
                self.loopback.engine.recv(&self.source, WITH_HEADER_BYTES, SOURCE);
            }
            (RestKind::Alone, true) if self.forward_part(None, total, true)? > 0 => {
                return Err(Error::Reset);
            }
            (RestKind::Alone, _) => self.await_source(splices),
        }
        while self.loopback.engine.next_completion().is_some() {}
        self.unsent = total;
        let mut left = total;
        loop {
            let in_memory = match self.wait()? {
                CompletionEvent::Received(result) => Some(result?),
                _ => None,
            };
            left -= self.forward_part(in_memory, left, splices)?;
            if left == 0 {
                return Ok(total);
            }
            self.await_source(splices);
        }
    }

    fn await_source(&mut self, splices: bool) {
        match splices {
            true => self.loopback.engine.poll_readable(&self.source, SOURCE),
            false => self.loopback.engine.recv(&self.source, Buffer::SIZE, SOURCE),
        }
    }

    /// Sends the received bytes, if any. With `splices`, also moves the bytes that follow them from
    /// the source through the pipe, up to `left` bytes in all. Returns the number of bytes that the
    /// sink took.
    fn forward_part(
        &mut self,
        received: Option<Buffer>,
        left: usize,
        splices: bool,
    ) -> Result<usize, Error> {
        let Self { loopback, source, sink, pipe, .. } = self;
        let engine = &mut loopback.engine;
        let in_memory = received.as_deref().unwrap_or_default();
        let mut count = in_memory.len();
        let filled = match splices && left > count {
            true => pipe.fill(engine, source, left - count),
            false => FillResult::WouldBlock,
        };
        match filled {
            FillResult::Bytes(more) => {
                pipe.drain_after(engine, &[in_memory], sink, SINK);
                count += more;
            }
            FillResult::WouldBlock if count > 0 => engine.send(sink, &[in_memory], SINK),
            // The source was reported readable but had no bytes.
            FillResult::WouldBlock if received.is_none() => return Ok(0),
            FillResult::WouldBlock | FillResult::End => return Err(Error::Reset),
            FillResult::Failed(error) => return Err(error),
        }
        if let Some(buffer) = received {
            engine.recycle(buffer);
        }
        loop {
            match self.wait()? {
                CompletionEvent::Spliced(result) => {
                    let Self { loopback, sink, pipe, .. } = self;
                    pipe.continue_drain(&mut loopback.engine, result?, sink, SINK);
                    if pipe.filled() == 0 {
                        return Ok(count);
                    }
                }
                CompletionEvent::Sent(result) => return result.map(|()| count),
                _ => {}
            }
        }
    }

    /// Waits for the next completion of either connection. The origin continues to send meanwhile.
    fn wait(&mut self) -> Result<CompletionEvent, Error> {
        loop {
            if self.unsent > 0 {
                match millrace_sys::send(self.origin.as_fd(), &[&self.body[..self.unsent]], false) {
                    Ok(count) => self.unsent -= count,
                    Err(Errno::AGAIN) => {}
                    Err(error) => return Err(refused(error)),
                }
            }
            let completion = self.loopback.next()?;
            if completion.token == SOURCE || completion.token == SINK {
                return Ok(completion.event);
            }
        }
    }

    /// Receives a whole body at the client.
    fn receive(&mut self, mut left: usize) -> Result<(), Error> {
        while left > 0 {
            match millrace_sys::receive(self.client.as_fd(), &mut self.memory) {
                Ok(0) => return Err(Error::Reset),
                Ok(count) => left -= count,
                Err(Errno::AGAIN) if Instant::now() < self.deadline => std::thread::yield_now(),
                Err(Errno::AGAIN) => return Err(Error::TimedOut),
                Err(error) => return Err(refused(error)),
            }
        }
        Ok(())
    }

    /// Resets the connections, so that no port stays in TIME_WAIT.
    fn end(self) {
        let Self { mut loopback, source, sink, .. } = self;
        loopback.engine.reset(source);
        loopback.engine.reset(sink);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_engine::{EpollWatch, PollWatch, SelectWatch, UringWatch};

    #[test]
    fn rests_of_every_kind_and_size_are_forwarded_over_each_engine() {
        let cells =
            [(RestKind::Alone, 1), (RestKind::Alone, REST_MAX), (RestKind::AfterHeader, REST_MAX)];
        // Long enough for a machine that other tests keep busy.
        let minute = Duration::from_secs(60);
        for costs in [
            measure_forwarding::<EpollWatch>(&cells, minute),
            measure_forwarding::<UringWatch>(&cells, minute),
            measure_forwarding::<PollWatch>(&cells, minute),
            measure_forwarding::<SelectWatch>(&cells, minute),
        ] {
            match costs {
                // This machine has no io_uring or is too busy; the test does not depend on either.
                Err(Error::Unsupported(_) | Error::TimedOut) => {}
                costs => {
                    let costs = costs.unwrap();
                    assert_eq!(costs.len(), cells.len());
                    assert!(costs.iter().all(|cell| cell.rounds.len() >= ROUNDS_MIN));
                }
            }
        }
    }

    #[test]
    fn a_busy_machine_is_reported_as_a_timeout() {
        let costs = measure_forwarding::<EpollWatch>(&[(RestKind::Alone, 1)], Duration::ZERO);
        assert_eq!(costs.unwrap_err(), Error::TimedOut);
    }
}
