//! One open connection to an origin, and its users.

use std::net::SocketAddr;

use millrace_engine::{Instant, Key, TimerId};

use crate::conn::wire::Wire;
use crate::origin::{OriginId, process_waits::NewConnection};

/// The user of an origin connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionUser {
    /// An exchange that sends its request and receives its response on the connection.
    Exchange(Key),
    /// A fill that receives a response body into the cache.
    Fill(Key),
}

/// The right to use an origin connection. `origin::release::release` ends it and returns the
/// connection to the pool or closes it; `origin::close::close` ends it and closes the connection.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct OriginUse {
    slot: Key,
}

impl OriginUse {
    /// Returns the key of the connection.
    pub(crate) fn slot(&self) -> Key {
        self.slot
    }
}

/// The users of a connection in the order of their requests. The first one receives the bytes that
/// arrive.
#[derive(Debug)]
pub(crate) struct UseQueue {
    users: [Option<ConnectionUser>; USES_MAX],
}

impl UseQueue {
    /// Returns the user that receives the bytes that arrive; `None` if the connection is idle.
    #[inline]
    pub(crate) fn first(&self) -> Option<ConnectionUser> {
        self.users[0]
    }
}

/// The number of users that a connection serves at a time. Requests to origins are not pipelined,
/// so it is one.
const USES_MAX: usize = 1;

/// One open connection to an origin.
#[derive(Debug)]
pub(crate) struct OriginConn {
    pub(crate) wire: Wire,
    pub(crate) origin: OriginId,
    /// The peer's address; `None` for a Unix socket.
    pub(crate) address: Option<SocketAddr>,
    pub(crate) uses: UseQueue,
    /// The client connection that this one is pinned to, if any. Only requests of that client
    /// connection are sent on it.
    pub(crate) pinned_to: Option<Key>,
    pub(crate) timer: TimerId,
    /// Until the first response, if the connection occupies a process of its origin.
    pub(crate) first_response: Option<NewConnection>,
    /// When the connection last became idle.
    pub(crate) idle_since: Instant,
}

impl OriginConn {
    /// Creates a connection that was just opened and has no user yet.
    pub(crate) fn new(
        wire: Wire,
        origin: OriginId,
        address: Option<SocketAddr>,
        timer: TimerId,
    ) -> Self {
        Self {
            wire,
            origin,
            address,
            uses: UseQueue { users: [None; USES_MAX] },
            pinned_to: None,
            timer,
            first_response: None,
            idle_since: Instant::default(),
        }
    }

    /// Returns whether the connection has no user.
    pub(crate) fn is_idle(&self) -> bool {
        self.uses.first().is_none()
    }

    /// Appends a user. `slot` is the key of this connection.
    ///
    /// # Panics
    /// If the connection already has `USES_MAX` users.
    pub(crate) fn begin_use(&mut self, slot: Key, user: ConnectionUser) -> OriginUse {
        let free = self.uses.users.iter_mut().find(|user| user.is_none());
        *free.expect("a connection has one use at a time") = Some(user);
        OriginUse { slot }
    }

    /// Replaces the first user; the use itself continues.
    pub(crate) fn transfer_use(&mut self, user: ConnectionUser) {
        self.uses.users[0] = Some(user);
    }

    /// Ends the first use.
    pub(crate) fn end_use(&mut self) {
        self.uses.users[0] = None;
        self.uses.users.rotate_left(1);
    }
}
