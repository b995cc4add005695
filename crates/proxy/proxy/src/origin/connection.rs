//! One open connection to an origin, and what it is used for.

use std::net::SocketAddr;

use millrace_engine::{Instant, Key, TimerId};

use crate::conn::wire::Wire;
use crate::origin::OriginId;

/// What an origin connection is used by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionUser {
    /// An exchange, whose request goes out and whose response comes in on it.
    Exchange(Key),
    /// A fill, which receives a body into the cache.
    Fill(Key),
}

/// The right to use an origin connection. It ends by `origin::side::release`, which returns the
/// connection to the pool or closes it, or by `origin::side::close`.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct OriginUse {
    slot: Key,
}

impl OriginUse {
    /// The key of the connection.
    pub(crate) fn slot(&self) -> Key {
        self.slot
    }
}

/// The users of a connection in the order of their requests: the first receives what comes.
#[derive(Debug)]
pub(crate) struct UseQueue {
    users: [Option<ConnectionUser>; USES_MAX],
}

impl UseQueue {
    /// The user that receives what comes; `None`: the connection is idle.
    #[inline]
    pub(crate) fn first(&self) -> Option<ConnectionUser> {
        self.users[0]
    }
}

/// Users that a connection serves at a time. HTTP/1 without pipelining to origins serves one.
const USES_MAX: usize = 1;

/// One open connection to an origin.
#[derive(Debug)]
pub(crate) struct OriginConn {
    pub(crate) wire: Wire,
    pub(crate) origin: OriginId,
    /// Where it leads; `None`: to a Unix socket.
    pub(crate) address: Option<SocketAddr>,
    pub(crate) uses: UseQueue,
    /// The client connection that it is pinned to, if any: no other is served on it.
    pub(crate) pinned_to: Option<Key>,
    pub(crate) timer: TimerId,
    /// When it last became idle.
    pub(crate) idle_since: Instant,
}

impl OriginConn {
    /// A connection that was just opened and is idle.
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
            idle_since: Instant::default(),
        }
    }

    /// Whether nobody uses it.
    pub(crate) fn is_idle(&self) -> bool {
        self.uses.first().is_none()
    }

    /// Appends a user. `slot`: the connection's key.
    ///
    /// # Panics
    /// When it has as many users as it may have.
    pub(crate) fn begin_use(&mut self, slot: Key, user: ConnectionUser) -> OriginUse {
        let free = self.uses.users.iter_mut().find(|user| user.is_none());
        *free.expect("a connection has one use at a time") = Some(user);
        OriginUse { slot }
    }

    /// Replaces the first user: the same use goes on for another object.
    pub(crate) fn transfer_use(&mut self, user: ConnectionUser) {
        self.uses.users[0] = Some(user);
    }

    /// Ends the first use.
    pub(crate) fn end_use(&mut self) {
        self.uses.users[0] = None;
        self.uses.users.rotate_left(1);
    }
}
