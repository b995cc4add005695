//! Counts the new connections to an origin that have waited long for their first response.

use std::sync::Arc;

use crate::origin::shared_health::SharedOrigin;

/// A connection before its first response. It is counted from [`NewConnection::count`] until then,
/// or until its end.
#[derive(Debug)]
pub(crate) struct NewConnection {
    origin: Arc<SharedOrigin>,
    is_counted: bool,
}

impl NewConnection {
    /// Creates the state of a connection that was just opened.
    pub(super) fn new(origin: Arc<SharedOrigin>) -> Self {
        Self { origin, is_counted: false }
    }

    /// Counts the connection as one that waits, once.
    pub(super) fn count(&mut self) {
        if !self.is_counted {
            self.origin.add_waiting_connection();
            self.is_counted = true;
        }
    }
}

impl Drop for NewConnection {
    fn drop(&mut self) {
        if self.is_counted {
            self.origin.remove_waiting_connection();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_counts_from_a_long_wait_to_its_first_response() {
        let origin = Arc::new(SharedOrigin::new(1, 0));
        let [mut first, second] = [(); 2].map(|()| NewConnection::new(origin.clone()));
        drop(second);
        assert!(!origin.has_waiting_connections(), "others may stay idle while it is new");
        first.count();
        first.count();
        assert!(origin.has_waiting_connections());
        drop(first);
        assert!(!origin.has_waiting_connections());
    }
}
