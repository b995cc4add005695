//! One open connection to an origin, and its users.

use std::collections::VecDeque;
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
/// arrive. The others are exchanges that have sent their requests behind that of the first one:
/// see `pipeline.rs`.
#[derive(Debug, Default)]
pub(crate) struct UseQueue {
    first: Option<ConnectionUser>,
    followers: VecDeque<Key>,
    /// Whether another request may be sent behind the last one.
    pub(super) accepts_more: bool,
    /// Whether a follower has become the first since the connection was idle.
    pub(super) has_advanced: bool,
    /// Whether `OriginState::pipelines` lists the connection.
    pub(super) is_listed: bool,
    /// Whether followers have left, whose responses will come nevertheless. The connection serves
    /// no request after the remaining ones.
    pub(super) is_cut: bool,
}

impl UseQueue {
    /// Returns the user that receives the bytes that arrive; `None` if the connection is idle.
    #[inline]
    pub(crate) fn first(&self) -> Option<ConnectionUser> {
        self.first
    }

    /// Returns the number of users.
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.followers.len()
    }

    /// Returns whether requests were sent behind that of the first user.
    #[inline]
    pub(crate) fn has_followers(&self) -> bool {
        !self.followers.is_empty()
    }

    /// Returns the users behind the first one.
    pub(super) fn followers(&self) -> impl Iterator<Item = Key> {
        self.followers.iter().copied()
    }

    /// Removes the followers from `exchange` on, or all, and accepts no more. Returns the removed
    /// ones.
    pub(super) fn cut(&mut self, exchange: Option<Key>) -> VecDeque<Key> {
        let position = |key| self.followers.iter().position(|&other| other == key);
        let at = exchange.map_or(0, |key| position(key).expect("it is among the followers"));
        self.accepts_more = false;
        self.followers.split_off(at)
    }
}

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
            uses: UseQueue::default(),
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

    /// Makes `user` the first user. `slot` is the key of this connection.
    ///
    /// # Panics
    /// If the connection is in use.
    pub(crate) fn begin_use(&mut self, slot: Key, user: ConnectionUser) -> OriginUse {
        assert!(self.is_idle(), "the connection is idle, or was just opened");
        self.uses.first = Some(user);
        (self.uses.accepts_more, self.uses.has_advanced) = (false, false);
        OriginUse { slot }
    }

    /// Appends an exchange behind the present users. `slot` is the key of this connection.
    pub(super) fn follow(&mut self, slot: Key, exchange: Key) -> OriginUse {
        assert!(!self.is_idle(), "a follower is not the first");
        self.uses.followers.push_back(exchange);
        OriginUse { slot }
    }

    /// Replaces the first user; the use itself continues.
    pub(crate) fn transfer_use(&mut self, user: ConnectionUser) {
        self.uses.first = Some(user);
    }

    /// Ends the first use. Returns the follower that is the first user now, if there is one.
    pub(crate) fn end_use(&mut self) -> Option<Key> {
        let next = self.uses.followers.pop_front();
        self.uses.first = next.map(ConnectionUser::Exchange);
        self.uses.has_advanced = next.is_some();
        next
    }
}
