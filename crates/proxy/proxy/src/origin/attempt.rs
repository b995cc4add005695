//! The state of a connection that is being opened to an origin.

use std::net::SocketAddr;

use millrace_engine::{Error, Fd, Instant, Key, TimerId};

use crate::exchange::Reason;
use millrace_dns::Race;

/// A connection that is being opened for an exchange, by one attempt per address.
#[derive(Debug)]
pub(crate) struct Dial {
    /// The race of the origin's addresses; `None` for a Unix socket, which has one address.
    pub(super) race: Option<Race>,
    pub(super) port: u16,
    /// The attempts in progress.
    pub(super) attempts: Vec<Key>,
    pub(super) started: Instant,
    /// The reason why the latest attempt failed.
    pub(super) failure: Reason,
    /// The latest event of an attempt, until [`advance`](super::dial::advance) handles it: the
    /// attempt and its result, or the attempt and `None` if its timer expired.
    pub(super) pending_event: Option<(Key, Option<Result<(), Error>>)>,
}

impl Dial {
    /// Records that an attempt failed.
    pub(super) fn record_failure(&mut self, reason: Reason) {
        self.failure = reason;
        if let Some(race) = &mut self.race {
            race.record_failure();
        }
    }
}

/// A connect(2) in progress to one address.
#[derive(Debug)]
pub(crate) struct ConnectAttempt {
    pub(super) fd: Fd,
    /// The address; `None` for a Unix socket.
    pub(super) address: Option<SocketAddr>,
    pub(crate) exchange: Key,
    pub(super) timer: TimerId,
}
