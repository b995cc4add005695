//! What a running process has to hand over.

use crate::inherited_sockets::ListeningSocket;
use crate::systemd::NotifyConfig;

/// What the supervisor hands over.
pub(crate) struct Offer {
    pub(crate) clients: Vec<ListeningSocket>,
    pub(crate) admin: Vec<ListeningSocket>,
    pub(crate) notify: NotifyConfig,
}
