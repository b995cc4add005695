//! One stream connection between two endpoints, as the kernels at both ends see it. It is pure
//! state: [`crate::network`] decides when bytes travel, and which endpoint is notified.

use std::collections::VecDeque;
use std::net::SocketAddr;

use millrace_engine::Error;

/// Bytes sent in one direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Bytes that were taken from the sender and are not at the receiver yet.
    pub(crate) sent: VecDeque<u8>,
    /// Bytes that are at the receiver and were not read yet.
    pub(crate) arrived: VecDeque<u8>,
    /// The sender has ended the stream.
    pub(crate) finished: bool,
    /// The end of the stream has reached the receiver, after `arrived`.
    pub(crate) finish_arrived: bool,
    /// A segment is in flight: its event is in the queue.
    pub(crate) moving: bool,
    /// Number of bytes that have arrived so far.
    pub(crate) carried: u64,
    /// After this number of arrived bytes, one segment is up to five minutes late; `None`: no
    /// segment is late.
    pub(crate) stall_after: Option<u64>,
}

/// One endpoint of a connection.
#[derive(Debug, Default)]
pub(crate) struct Endpoint {
    /// The bytes that this endpoint sends.
    pub(crate) out: Stream,
    /// The endpoint's address; `None` for Unix sockets.
    pub(crate) address: Option<SocketAddr>,
    /// The descriptor of the endpoint; `None` before it is accepted and after it is closed.
    pub(crate) descriptor: Option<u32>,
    /// The endpoint has no descriptor and will not get one.
    pub(crate) closed: bool,
    /// The pending error. The first operation that fails with it clears it, as with SO_ERROR.
    pub(crate) error: Option<Error>,
    /// A reset was sent or received, so nothing more can be sent.
    pub(crate) reset: bool,
    /// The receiving direction was shut down.
    pub(crate) read_shut: bool,
}

/// A connection. Endpoint 0 connected, endpoint 1 is accepted.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    /// The sockets are Unix sockets, for which the simulator has no resets.
    pub(crate) unix: bool,
    /// The attempt to connect has ended, successfully or not.
    pub(crate) established: bool,
    /// The number of further segments after which the network breaks the connection.
    pub(crate) reset_after: Option<u64>,
    /// The number of further segments after which the machine of an actor goes down.
    pub(crate) vanish_after: Option<u64>,
    /// The endpoint whose machine is down. It neither sends nor receives.
    pub(crate) vanished: Option<usize>,
    /// The other endpoint retransmits bytes that are not acknowledged.
    pub(crate) resends: bool,
    pub(crate) sides: [Endpoint; 2],
}

impl Connection {
    /// Returns the stream that `side` reads.
    pub(crate) fn incoming(&mut self, side: usize) -> &mut Stream {
        &mut self.sides[1 - side].out
    }

    /// Returns whether a receive by `side` would complete now. Changes nothing.
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

    /// Returns the result of a receive by `side`: the number of bytes that can be read, 0 at the
    /// end of the stream, an error, or `None` if nothing has arrived. Removes a returned error, but
    /// no bytes. As on Linux, bytes that arrived before a reset can still be read, and a stream
    /// that ended in order stays ended whatever follows.
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

    /// Returns the error that a send by `side` would find, and removes it if it was pending.
    /// Without an error, the capacity decides how many bytes are taken.
    pub(crate) fn take_write_error(&mut self, side: usize) -> Result<(), Error> {
        let own = &mut self.sides[side];
        match own.error.take() {
            Some(error) => Err(error),
            None if own.reset || own.out.finished => Err(Error::BrokenPipe),
            None => Ok(()),
        }
    }

    /// Handles the arrival of a reset at `side`. Unsent bytes are lost, and unread bytes remain.
    pub(crate) fn receive_reset(&mut self, side: usize) {
        let ended = self.sides[1 - side].out.finish_arrived;
        // A machine that is down is detected by a timeout.
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
    fn bytes_before_a_reset_are_read_and_the_error_is_reported_once() {
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
