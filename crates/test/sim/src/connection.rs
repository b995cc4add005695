//! One stream connection between two sides, as the kernels at both ends see it. Pure state: who is
//! woken and when bytes travel is decided by [`crate::kernel`].

use std::collections::VecDeque;
use std::net::SocketAddr;

use millrace_engine::Error;

/// Bytes on their way from one side to the other.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Taken from the sender, not yet at the receiver.
    pub(crate) sent: VecDeque<u8>,
    /// At the receiver, not yet read.
    pub(crate) arrived: VecDeque<u8>,
    /// The sender will add nothing.
    pub(crate) finished: bool,
    /// The receiver knows it, once it has read `arrived`.
    pub(crate) finish_arrived: bool,
    /// A segment is under way: its event is in the queue.
    pub(crate) moving: bool,
    /// Bytes that ever arrived.
    pub(crate) carried: u64,
    /// Once so many have arrived, the next segment is minutes late; then it is taken away.
    pub(crate) stall_after: Option<u64>,
}

/// One end of a connection.
#[derive(Debug, Default)]
pub(crate) struct Endpoint {
    /// What this side sends.
    pub(crate) out: Stream,
    /// Its own address; `None` for Unix sockets.
    pub(crate) address: Option<SocketAddr>,
    /// The descriptor that holds it; `None` before it is accepted and after it was closed.
    pub(crate) descriptor: Option<u32>,
    /// Nobody holds it and nobody will.
    pub(crate) closed: bool,
    /// Told once, by whichever operation asks first, as SO_ERROR is.
    pub(crate) error: Option<Error>,
    /// A reset came or went: nothing more can be sent.
    pub(crate) reset: bool,
    /// It said that it will not read.
    pub(crate) read_shut: bool,
}

/// Two sides. Side 0 connected, side 1 accepts.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    /// A Unix socket knows no reset.
    pub(crate) unix: bool,
    /// The handshake is over.
    pub(crate) established: bool,
    /// The network breaks the connection when so many more segments have arrived.
    pub(crate) reset_after: Option<u64>,
    /// The machine at an actor's side goes down when so many more segments have arrived.
    pub(crate) vanish_after: Option<u64>,
    /// That side is gone: nothing comes from it, and nothing is taken.
    pub(crate) vanished: Option<usize>,
    /// The other side sends again what nobody takes.
    pub(crate) resends: bool,
    pub(crate) sides: [Endpoint; 2],
}

impl Connection {
    /// What `side` reads from.
    pub(crate) fn incoming(&mut self, side: usize) -> &mut Stream {
        &mut self.sides[1 - side].out
    }

    /// Whether a receive by `side` would end now. Takes nothing.
    pub(crate) fn is_readable(&self, side: usize) -> bool {
        let incoming = &self.sides[1 - side].out;
        let own = &self.sides[side];
        self.established
            && (!incoming.arrived.is_empty()
                || incoming.finish_arrived
                || own.error.is_some()
                || own.reset
                || own.read_shut)
    }

    /// What a receive by `side` gives: how many bytes, 0 at the end of the stream, an error, which
    /// is taken, or nothing yet. Bytes that arrived before a reset are still read, as on Linux; a
    /// stream that ended in order stays ended whatever comes after.
    pub(crate) fn take_read_result(&mut self, side: usize) -> Option<Result<usize, Error>> {
        let arrived = self.sides[1 - side].out.arrived.len();
        let ended = self.sides[1 - side].out.finish_arrived;
        let own = &mut self.sides[side];
        if !self.established {
            None
        } else if arrived > 0 && !own.read_shut {
            Some(Ok(arrived))
        } else if ended || own.read_shut {
            Some(Ok(0))
        } else if let Some(error) = own.error.take() {
            Some(Err(error))
        } else {
            own.reset.then_some(Ok(0))
        }
    }

    /// Whether a send by `side` meets an error; one that was pending is taken. How many bytes are
    /// taken otherwise is up to the capacity.
    pub(crate) fn take_write_error(&mut self, side: usize) -> Result<(), Error> {
        let own = &mut self.sides[side];
        match own.error.take() {
            Some(error) => Err(error),
            None if own.reset || own.out.finished => Err(Error::BrokenPipe),
            None => Ok(()),
        }
    }

    /// A reset reaches `side`. What it had not sent is lost; what it had not read stays.
    pub(crate) fn receive_reset(&mut self, side: usize) {
        let ended = self.sides[1 - side].out.finish_arrived;
        // A machine that is gone is noticed by a timeout.
        let error = if self.vanished == Some(1 - side) { Error::TimedOut } else { Error::Reset };
        let own = &mut self.sides[side];
        if own.reset || own.closed {
            return;
        }
        own.reset = true;
        // A socket whose peer had already ended its stream reports EPIPE (tcp_reset, CLOSE_WAIT).
        own.error = Some(if ended { Error::BrokenPipe } else { error });
        own.out.sent.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrived_before_a_reset_is_read_and_the_error_is_told_once() {
        let mut connection = Connection { established: true, ..Connection::default() };
        connection.incoming(0).arrived.extend(b"abc");
        connection.receive_reset(0);
        assert_eq!(connection.take_read_result(0), Some(Ok(3)));
        connection.incoming(0).arrived.clear();
        assert_eq!(connection.take_read_result(0), Some(Err(Error::Reset)));
        assert_eq!(connection.take_read_result(0), Some(Ok(0)));
        assert_eq!(connection.take_write_error(0), Err(Error::BrokenPipe));
    }

    #[test]
    fn a_stream_that_ended_stays_ended_after_a_reset() {
        let mut connection = Connection { established: true, ..Connection::default() };
        connection.incoming(1).finish_arrived = true;
        connection.receive_reset(1);
        assert_eq!(connection.take_read_result(1), Some(Ok(0)));
        assert_eq!(connection.take_write_error(1), Err(Error::BrokenPipe));
    }
}
