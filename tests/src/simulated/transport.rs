//! The connection of an actor: plain, or secured by TLS.
//!
//! Actors see the same operations and results in both cases, so that they judge plaintext. The
//! TLS side is the buffered interface of rustls, which the program does not use.

use millrace_engine::Error;
use millrace_sim::{ActorSocket, ReadResult, World};

use super::tls_stream::TlsStream;

/// A connection of an actor.
pub(super) struct Transport {
    socket: ActorSocket,
    tls: Option<Box<TlsStream>>,
}

impl Transport {
    /// Creates a connection whose bytes are sent as they are.
    pub(super) fn plain(socket: ActorSocket) -> Self {
        Self { socket, tls: None }
    }

    /// Creates a connection whose bytes `tls` seals.
    pub(super) fn secured(world: &World, socket: ActorSocket, tls: TlsStream) -> Self {
        world.secure(socket);
        Self { socket, tls: Some(Box::new(tls)) }
    }

    /// Returns the socket, for operations that concern no bytes.
    pub(super) fn socket(&self) -> ActorSocket {
        self.socket
    }

    /// Returns whether TLS continues an earlier session.
    pub(super) fn is_resumed(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_resumed())
    }

    /// Continues the handshake, and sends sealed bytes that the kernel has not taken. Called at
    /// each step of the actor once the socket is connected.
    ///
    /// # Errors
    /// Returns the peer's violation of TLS, if there was one.
    pub(super) fn advance(&mut self, world: &World) -> Result<(), String> {
        match &mut self.tls {
            None => Ok(()),
            Some(tls) => tls.advance(world, self.socket),
        }
    }

    /// Reads up to `max` bytes, like [`World::read`]. The end of a secured stream that was not
    /// announced is a reset.
    pub(super) fn read(&mut self, world: &World, max: usize) -> ReadResult {
        match &mut self.tls {
            None => world.read(self.socket, max),
            Some(tls) => tls.read(world, self.socket, max),
        }
    }

    /// Writes a part of `bytes`, like [`World::write`]. If the result is 0, the next call has to
    /// begin with the same bytes.
    ///
    /// # Errors
    /// If the connection can never take more.
    pub(super) fn write(&mut self, world: &World, bytes: &[u8]) -> Result<usize, Error> {
        match &mut self.tls {
            None => world.write(self.socket, bytes),
            Some(tls) => tls.write(world, self.socket, bytes),
        }
    }

    /// Returns whether bytes that [`Transport::write`] has not reported may have reached the peer.
    pub(super) fn has_in_flight(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_in_flight())
    }

    /// Returns the number of sent bytes that have not reached the peer.
    pub(super) fn undelivered(&self, world: &World) -> usize {
        world.undelivered(self.socket) + self.tls.as_ref().map_or(0, |tls| tls.unsent())
    }

    /// Ends the stream that this side sends.
    pub(super) fn shutdown_write(&mut self, world: &World) {
        match &mut self.tls {
            None => world.shutdown_write(self.socket),
            Some(tls) => tls.finish(world, self.socket),
        }
    }

    /// Announces the end of the stream that this side sends. Returns whether the connection can be
    /// closed without a loss. If not, an event follows when more can be sent.
    pub(super) fn prepare_close(&mut self, world: &World) -> bool {
        self.tls.as_mut().is_none_or(|tls| tls.prepare_close(world, self.socket))
    }

    /// Closes the connection.
    pub(super) fn close(mut self, world: &World) {
        self.prepare_close(world);
        world.close(self.socket);
    }

    /// Closes the connection with a reset.
    pub(super) fn reset(self, world: &World) {
        world.reset(self.socket);
    }
}
