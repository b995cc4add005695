//! What it costs to send a body that is in the processor's cache: by copy and by reference.
//!
//! The body rests in a slab, as those of the cache do, and goes to a client over a loopback
//! connection. Both ways take turns, round after round, so that what disturbs the machine meets
//! both. What counts is CPU time of this thread in the calls that send. There is one client, as
//! with several the kernel's memory for what is under way would leave the processor's cache, which
//! makes copies dearer than they are between a server and clients that read at once.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use iolite::limits::SLAB_BYTES_MIN;
use iolite::{MemoryKind, Slab, Slice};
use millrace_engine::Error;
use millrace_proxy::congestion::NEARBY;
use millrace_sys::Errno;

use super::refused;

/// How often each body is sent each way.
const ROUNDS: usize = 16;
/// Rounds before those that count: until the socket has as much room as the kernel will give it.
const WARM_UP_ROUNDS: usize = 4;
/// The most that the client takes at once.
const RECEIVED_MAX: usize = 256 * 1024;

/// What sending a body costs.
#[derive(Clone, Debug)]
pub(crate) struct SendCosts {
    pub(crate) bytes: usize,
    /// In each round (by copy, by reference).
    pub(crate) rounds: Vec<(Duration, Duration)>,
}

/// What bodies of these sizes cost. Takes some milliseconds, and never longer than `patience`.
///
/// # Errors
/// What the kernel refused: memory, sockets, the loopback network; [`Error::TimedOut`] when the
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

/// A connection of which both ends are here.
struct SendBench {
    server: OwnedFd,
    client: OwnedFd,
    /// Room that the client offers; nothing is copied there.
    buffer: Vec<u8>,
    /// When it has taken too long.
    deadline: Instant,
}

impl SendBench {
    fn connected(deadline: Instant) -> Result<Self, Error> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = millrace_sys::listen_tcp(any, false).map_err(refused)?;
        // Set before the connection exists: a socket that bbr has begun to pace stays paced. Where
        // this algorithm is missing, the system's is measured.
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
        // The port does not stay in TIME_WAIT.
        millrace_sys::reset_on_close(server.as_fd()).map_err(refused)?;
        Ok(Self { server, client, buffer: vec![0; RECEIVED_MAX], deadline })
    }

    /// CPU time of the calls that send all of a slice.
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

    /// Sends from `at` on what the socket takes: how many bytes.
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

    /// Takes all that has arrived: how many bytes.
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
    fn bodies_are_sent_by_either_way() {
        let costs = measure_sending(&[64 << 10, 1 << 20], Duration::from_secs(60)).unwrap();
        assert_eq!(costs.iter().map(|cell| cell.bytes).collect::<Vec<_>>(), [64 << 10, 1 << 20]);
        for (copied, referred) in costs.into_iter().flat_map(|cell| cell.rounds) {
            assert!(copied > Duration::ZERO && referred > Duration::ZERO);
        }
        assert_eq!(measure_sending(&[1 << 20], Duration::ZERO).unwrap_err(), Error::TimedOut);
    }
}
