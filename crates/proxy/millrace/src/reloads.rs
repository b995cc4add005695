//! How reloads went, for whoever counts them and whoever shows them.

use std::sync::atomic::{AtomicU64, Ordering};

/// How reloads went.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) done: AtomicU64,
    pub(crate) refused: AtomicU64,
}

impl Counts {
    /// Reloads that were done.
    pub(crate) fn done(&self) -> u64 {
        // Pairs with the addition by who reloads; nothing else is read by what it says.
        self.done.load(Ordering::Relaxed)
    }

    /// Reloads that were refused.
    pub(crate) fn refused(&self) -> u64 {
        // As above.
        self.refused.load(Ordering::Relaxed)
    }
}
