//! What a running process has to hand over.

use crate::inherited::Socket;
use crate::systemd::Given;

/// What the supervisor hands over.
pub(crate) struct Offer {
    pub(crate) clients: Vec<Socket>,
    pub(crate) admin: Vec<Socket>,
    pub(crate) manager: Given,
}
