//! The keys of session tickets, which the supervisor rotates and all workers use.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use millrace_tls::{Provider, TicketKeys, TlsError};

/// The keys of session tickets of a process.
#[derive(Debug, Default)]
pub struct SharedTicketKeys {
    keys: Mutex<TicketKeys>,
    /// Counts the changes of `keys`, so that workers lock only to copy changed keys.
    version: AtomicU64,
}

impl SharedTicketKeys {
    /// Adds a random key, which seals from now on.
    ///
    /// # Errors
    /// If the provider has no randomness.
    pub fn rotate(&self, provider: &Provider) -> Result<(), TlsError> {
        let mut keys = self.lock();
        keys.rotate(provider)?;
        self.publish();
        Ok(())
    }

    /// Replaces the keys by those of the process from which this one takes over.
    pub fn replace(&self, keys: TicketKeys) {
        *self.lock() = keys;
        self.publish();
    }

    /// Returns a copy of the keys.
    pub fn keys(&self) -> TicketKeys {
        self.lock().clone()
    }

    /// Returns the number of changes so far. 0 means that there are no keys.
    pub(crate) fn version(&self) -> u64 {
        // Pairs with the addition in `publish`. A worker that misses a change for a moment seals
        // with the previous key.
        self.version.load(Ordering::Relaxed)
    }

    fn publish(&self) {
        // Pairs with the load in `version`. The keys themselves are read under the lock.
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, TicketKeys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
