//! How a worker ends.

use std::time::Duration;

/// Whether a worker drains, and how patiently.
#[derive(Debug, Default)]
pub(crate) struct DrainState {
    /// No further request is accepted on connections that are idle.
    pub(crate) is_draining: bool,
    /// How long a client may be idle before a drain closes its connection.
    pub(crate) idle_grace: Duration,
}
