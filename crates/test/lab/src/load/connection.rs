//! One connection to the server.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use millrace_sys::{Errno, Poller};

use crate::load::pattern::Pattern;
use crate::load::plan::PlannedRequest;
use crate::load::response::{ExpectedObject, ReceivedResponse, ResponseError, ResponseReader};

/// A connection, with the request that it serves.
pub(super) struct LoadConnection {
    socket: OwnedFd,
    /// The user that may use it.
    pub(super) user: u32,
    /// The request under way; `None` if the connection is idle.
    pub(super) request: Option<PlannedRequest>,
    is_connecting: bool,
    /// The bytes of the request, of which `sent` were sent.
    bytes: Vec<u8>,
    sent: usize,
    reader: ResponseReader,
}

/// The reason why a connection ends before its response is complete.
#[derive(Debug)]
pub(super) enum ConnectionError {
    Connect(Errno),
    Send(Errno),
    Receive(Errno),
    Response(ResponseError),
}

/// The result of one receive.
pub(super) enum Received {
    /// There are no bytes.
    Nothing,
    /// Bytes, of which the last may have completed the response. `is_all`: no more were there.
    Bytes { response: Option<ReceivedResponse>, is_all: bool },
    /// The end of the connection, which may have completed the response.
    End(Option<ReceivedResponse>),
}

impl LoadConnection {
    /// Begins to connect. Readiness is reported with the number `token`.
    pub(super) fn open(
        source: Option<IpAddr>,
        address: SocketAddr,
        user: u32,
        poller: &Poller,
        token: u64,
    ) -> Result<Self, Errno> {
        let (socket, connected) = match source {
            Some(source) => millrace_sys::connect_tcp_from(source, address),
            None => millrace_sys::connect_tcp(address),
        }?;
        let is_connecting = !connected?;
        poller.add_connection(socket.as_fd(), token)?;
        let (bytes, reader) = (Vec::new(), ResponseReader::default());
        Ok(Self { socket, user, request: None, is_connecting, bytes, sent: 0, reader })
    }

    /// Begins a request with these parts, which [`LoadConnection::send`] will send.
    pub(super) fn begin(
        &mut self,
        request: PlannedRequest,
        expected: ExpectedObject,
        parts: [&[u8]; 3],
    ) {
        assert!(self.request.is_none(), "requests are not pipelined");
        self.request = Some(request);
        self.bytes.clear();
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.sent = 0;
        self.reader.begin(expected);
    }

    /// Sends bytes of the request. Returns whether that were the last ones.
    pub(super) fn send(&mut self) -> Result<bool, ConnectionError> {
        if self.is_connecting || self.sent == self.bytes.len() {
            return Ok(false);
        }
        match millrace_sys::send(self.socket.as_fd(), &[&self.bytes[self.sent..]], false) {
            Ok(count) => self.sent += count,
            Err(Errno::AGAIN) => {}
            Err(error) => return Err(ConnectionError::Send(error)),
        }
        Ok(self.sent == self.bytes.len())
    }

    /// Completes the connect when the socket is writable.
    pub(super) fn finish_connect(&mut self) -> Result<(), ConnectionError> {
        if std::mem::replace(&mut self.is_connecting, false) {
            millrace_sys::take_error(self.socket.as_fd()).map_err(ConnectionError::Connect)?;
        }
        Ok(())
    }

    /// Returns whether an error at this time cuts a response.
    pub(super) fn has_part_of_response(&self) -> bool {
        self.request.is_some() && self.reader.has_begun()
    }

    /// Receives once into `room`.
    pub(super) fn receive(
        &mut self,
        pattern: &Pattern,
        room: &mut [u8],
    ) -> Result<Received, ConnectionError> {
        let is_idle = self.request.is_none();
        let count = match millrace_sys::receive(self.socket.as_fd(), room) {
            Ok(0) if is_idle => return Ok(Received::End(None)),
            Ok(0) => {
                let response = self.reader.end().map_err(ConnectionError::Response)?;
                return Ok(Received::End(Some(response)));
            }
            Ok(_) if is_idle => return Err(ConnectionError::Response(ResponseError::Surplus)),
            Ok(count) => count,
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(error) => return Err(ConnectionError::Receive(error)),
        };
        let response = self.reader.read(pattern, &mut room[..count]);
        let response = response.map_err(ConnectionError::Response)?;
        Ok(Received::Bytes { response, is_all: count < room.len() })
    }
}

impl std::fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "connect: {error}"),
            Self::Send(error) => write!(f, "send: {error}"),
            Self::Receive(error) => write!(f, "receive: {error}"),
            Self::Response(error) => write!(f, "{error}"),
        }
    }
}
