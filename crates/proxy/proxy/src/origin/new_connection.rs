//! Counts the new connections to an origin: those that wait for their first response.

use std::sync::Arc;

use crate::origin::shared_health::SharedOrigin;

/// Counts one connection until its first response, or its end.
#[derive(Debug)]
pub(crate) struct NewConnection(Arc<SharedOrigin>);

impl NewConnection {
    /// Counts a connection that was just opened.
    pub(super) fn new(shared: Arc<SharedOrigin>) -> Self {
        shared.add_new_connection();
        Self(shared)
    }
}

impl Drop for NewConnection {
    fn drop(&mut self) {
        self.0.remove_new_connection();
    }
}
