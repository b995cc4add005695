//! A connection being opened to an origin: the race of its addresses, and each attempt.

use std::net::SocketAddr;

use millrace_engine::{Error, Fd, Instant, Key, TimerId};

use crate::exchange::Reason;
use millrace_dns::Race;

/// A connection being opened for an exchange.
#[derive(Debug)]
pub(crate) struct Dial {
    /// `None`: a Unix socket, which has one address.
    pub(super) race: Option<Race>,
    pub(super) port: u16,
    /// Attempts under way.
    pub(super) attempts: Vec<Key>,
    pub(super) started: Instant,
    /// Why the latest attempt failed.
    pub(super) failure: Reason,
    /// The attempt that something happened to, and how it ended; `None`: its timer is due.
    pub(super) pending_event: Option<(Key, Option<Result<(), Error>>)>,
}

impl Dial {
    /// An attempt failed.
    pub(super) fn record_failure(&mut self, reason: Reason) {
        self.failure = reason;
        if let Some(race) = &mut self.race {
            race.failed();
        }
    }
}

/// One address being connected to.
#[derive(Debug)]
pub(crate) struct ConnectAttempt {
    pub(super) fd: Fd,
    /// `None`: a Unix socket.
    pub(super) address: Option<SocketAddr>,
    pub(crate) exchange: Key,
    pub(super) timer: TimerId,
}
