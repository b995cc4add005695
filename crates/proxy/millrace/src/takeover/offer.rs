//! The sockets and settings that a running process hands over.

use millrace_tls::TicketKeys;

use crate::inherited_sockets::ListeningSocket;
use crate::systemd::NotifyConfig;

/// Everything that the supervisor hands over.
pub(crate) struct Offer {
    pub(crate) clients: Vec<ListeningSocket>,
    pub(crate) admin: Vec<ListeningSocket>,
    pub(crate) notify: NotifyConfig,
    pub(crate) ticket_keys: TicketKeys,
}
