//! Measures the CPU time of sending a body that is in the processor's cache, by copy and by
//! reference.
//!
//! The body is in a slab, like cached bodies, and is sent to a client over a loopback connection.
//! The two methods alternate, so that a disturbance affects both. The result is the CPU time of
//! this thread in the calls that send. There is one client only. With several, the socket buffers
//! would not fit into the processor's cache, and copies would cost more than they do with clients
//! that read without delay.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use iolite::limits::SLAB_BYTES_MIN;
use iolite::{MemoryKind, Slab, Slice};
use millrace_engine::Error;
use millrace_proxy::congestion::NEARBY;
use millrace_sys::Errno;

use super::refused;

/// Measured rounds. In each, every body is sent once by each method.
const ROUNDS: usize = 16;
/// Rounds before the measured ones, in which the socket buffer grows to its final size.
const WARM_UP_ROUNDS: usize = 4;
/// Bytes that the client receives at most in one call.
const RECEIVED_MAX: usize = 256 * 1024;

/// The cost of sending a body.
#[derive(Clone, Debug)]
pub(crate) struct SendCosts {
    pub(crate) bytes: usize,
    /// One pair (by copy, by reference) per round.
    pub(crate) rounds: Vec<(Duration, Duration)>,
}

/// Measures the cost of bodies of these sizes. Takes some milliseconds, and at most `timeout`.
///
/// # Errors
/// If the kernel refuses memory, sockets or the loopback network; [`Error::TimedOut`] if the
/// machine is too busy.
pub(crate) fn measure_sending(sizes: &[usize], timeout: Duration) -> Result<Vec<SendCosts>, Error> {
    let deadline = Instant::now() + timeout;
    let body = body(sizes.iter().copied().max().unwrap_or(1))?;
    let mut bench = SendBench::connected(deadline)?;
    let of_size = |&bytes: &usize| SendCosts { bytes, rounds: Vec::new() };
    let mut costs: Vec<SendCosts> = sizes.iter().map(of_size).collect();
    for round in 0..WARM_UP_ROUNDS + ROUNDS {
        for cell in &mut costs {
            let slice = body.slice(0..cell.bytes);
            let both = (bench.send(&slice, false)?, bench.send(&slice, true)?);
            if round >= WARM_UP_ROUNDS {
                cell.rounds.push(both);
            }
        }
    }
    Ok(costs)
}

fn body(bytes: usize) -> Result<Slice, Error> {
    let slab = Slab::new(SLAB_BYTES_MIN).map_err(|_| Error::OutOfMemory)?;
    let buffer = slab.allocate(MemoryKind::ZeroCopy, bytes..=bytes, 0);
    let mut buffer = buffer.map_err(|_| Error::OutOfMemory)?;
    buffer.unfilled().fill(b'm');
    buffer.advance(bytes);
    Ok(buffer.freeze())
}

/// A connection with both ends in this thread.
struct SendBench {
    server: OwnedFd,
    client: OwnedFd,
    /// A buffer whose length limits how many bytes one call discards. Nothing is copied into it.
    buffer: Vec<u8>,
    /// Time limit of the measurement.
    deadline: Instant,
}

impl SendBench {
    fn connected(deadline: Instant) -> Result<Self, Error> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = millrace_sys::listen_tcp(any, false).map_err(refused)?;
        // NEARBY is set before the connection exists, because a socket that began with bbr is paced
        // even after a change. If the kernel does not have NEARBY, the measurement uses the default
        // algorithm.
        let _ = millrace_sys::set_congestion(listener.as_fd(), NEARBY);
        let address = millrace_sys::local_address(listener.as_fd()).map_err(refused)?;
        let address = address.ok_or(Error::Unreachable)?;
        let (client, _) = millrace_sys::connect_tcp(address).map_err(refused)?;
        let server = loop {
            match millrace_sys::accept(listener.as_fd()) {
                Ok((server, _)) => break server,
                Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::yield_now(),
                Err(Errno::AGAIN) => return Err(Error::TimedOut),
                Err(error) => return Err(refused(error)),
            }
        };
        // Avoid TIME_WAIT for the port.
        millrace_sys::reset_on_close(server.as_fd()).map_err(refused)?;
        Ok(Self { server, client, buffer: vec![0; RECEIVED_MAX], deadline })
    }

    /// Sends a slice and returns the CPU time of the sending calls.
    fn send(&mut self, slice: &Slice, by_reference: bool) -> Result<Duration, Error> {
        let (mut sent, mut received, mut elapsed) = (0, 0, Duration::ZERO);
        while received < slice.len() {
            let start = millrace_sys::thread_cpu_time();
            sent += self.send_some(slice, sent, by_reference)?;
            elapsed += millrace_sys::thread_cpu_time() - start;
            received += self.drain_client()?;
            if Instant::now() > self.deadline {
                return Err(Error::TimedOut);
            }
        }
        Ok(elapsed)
    }

    /// Sends from `at` as much as the socket takes. Returns the number of bytes.
    fn send_some(&mut self, slice: &Slice, at: usize, by_reference: bool) -> Result<usize, Error> {
        let file = if by_reference {
            Some(slice.sendfile_source().ok_or(Error::OutOfMemory)?)
        } else {
            None
        };
        let socket = self.server.as_fd();
        let mut sent = at;
        while sent < slice.len() {
            let count = match file {
                Some((file, start)) => {
                    millrace_sys::sendfile(socket, file, start + sent as u64, slice.len() - sent)
                }
                None => millrace_sys::send(socket, &[&slice[sent..]], false),
            };
            match count {
                Ok(count) => sent += count,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(refused(error)),
            }
        }
        Ok(sent - at)
    }

    /// Receives everything that has arrived. Returns the number of bytes.
    fn drain_client(&mut self) -> Result<usize, Error> {
        let mut received = 0;
        loop {
            match millrace_sys::discard(self.client.as_fd(), &mut self.buffer) {
                Ok(0) => return Err(Error::Reset),
                Ok(count) => received += count,
                Err(Errno::AGAIN) => return Ok(received),
                Err(error) => return Err(refused(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_sent_by_either_method() {
        let costs = measure_sending(&[64 << 10, 1 << 20], Duration::from_secs(60)).unwrap();
        assert_eq!(costs.iter().map(|cell| cell.bytes).collect::<Vec<_>>(), [64 << 10, 1 << 20]);
        for (copied, referred) in costs.into_iter().flat_map(|cell| cell.rounds) {
            assert!(copied > Duration::ZERO && referred > Duration::ZERO);
        }
        assert_eq!(measure_sending(&[1 << 20], Duration::ZERO).unwrap_err(), Error::TimedOut);
    }
}
