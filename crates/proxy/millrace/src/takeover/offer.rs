//! The sockets and settings that a running process hands over.

use std::time::Duration;

use millrace_tls::TicketKeys;

use crate::inherited_sockets::ListeningSocket;
use crate::systemd::NotifyConfig;

/// Everything that the supervisor hands over.
pub(crate) struct Offer {
    pub(crate) clients: Vec<ListeningSocket>,
    pub(crate) admin: Vec<ListeningSocket>,
    pub(crate) notify: NotifyConfig,
    pub(crate) tickets: TicketOffer,
}

/// The keys of session tickets, so that clients resume their sessions.
#[derive(PartialEq, Eq)]
pub(crate) struct TicketOffer {
    /// At least one.
    pub(crate) keys: TicketKeys,
    /// The time until the next rotation, in whole seconds. Frequent upgrades must not postpone it.
    pub(crate) rotates_in: Duration,
}

impl TicketOffer {
    /// Returns the offer as secret bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        [&self.rotates_in.as_secs().to_be_bytes(), &self.keys.to_bytes()[..]].concat()
    }

    /// Restores the offer from [`TicketOffer::to_bytes`]. `None` if other code wrote the bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (seconds, keys) = bytes.split_first_chunk()?;
        let keys = TicketKeys::from_bytes(keys).filter(|keys| !keys.is_empty())?;
        Some(Self { keys, rotates_in: Duration::from_secs(u64::from_be_bytes(*seconds)) })
    }
}
