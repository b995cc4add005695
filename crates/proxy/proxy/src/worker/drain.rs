//! The drain state of a worker.

use std::time::Duration;

/// Whether a worker drains, and how long idle clients may stay.
#[derive(Debug, Default)]
pub(crate) struct DrainState {
    /// The worker finishes the exchanges in progress and accepts no further request on idle
    /// connections.
    pub(crate) is_draining: bool,
    /// How long a client has to have been idle before a drain closes its connection.
    pub(crate) idle_grace: Duration,
}
