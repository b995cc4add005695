//! One open connection to an origin.

use std::net::SocketAddr;

use millrace_engine::{Fd, Instant, Key, TimerId};

use crate::conn::recv_buffer::Input;
use crate::origin::OriginId;

/// What an origin connection does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Kept; since when is in the pool's order.
    Idle,
    /// Serves this exchange.
    Busy(Key),
    /// What this fill receives comes on it.
    Filling(Key),
}

/// One open connection to an origin.
#[derive(Debug)]
pub(crate) struct OriginConn {
    pub(crate) fd: Fd,
    pub(crate) input: Input,
    pub(crate) origin: OriginId,
    /// Where it leads; `None`: to a Unix socket.
    pub(crate) address: Option<SocketAddr>,
    pub(crate) used_for: Use,
    /// The client connection that it is bound to, if any: no other is served on it.
    pub(crate) owner: Option<Key>,
    pub(crate) timer: TimerId,
    /// When it was last kept.
    pub(crate) idle_since: Instant,
    /// A receive is outstanding.
    pub(crate) receiving: bool,
    /// A send is outstanding.
    pub(crate) sending: bool,
    /// The origin ended its stream while something else had to happen before that could be told.
    pub(crate) ended: bool,
    /// A send failed, or a receive: how its stream ends says nothing any more, since the kernel
    /// tells an error once and then a clean end.
    pub(crate) broken: bool,
}

impl OriginConn {
    /// A connection that was just opened for `exchange`.
    pub(crate) fn new(
        fd: Fd,
        origin: OriginId,
        address: Option<SocketAddr>,
        exchange: Key,
        timer: TimerId,
    ) -> Self {
        Self {
            fd,
            input: Input::Empty,
            origin,
            address,
            used_for: Use::Busy(exchange),
            owner: None,
            timer,
            idle_since: Instant::default(),
            receiving: false,
            sending: false,
            ended: false,
            broken: false,
        }
    }
}
