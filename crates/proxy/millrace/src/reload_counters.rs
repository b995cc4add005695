//! Counters of reloads, for the metrics.

use std::sync::atomic::AtomicU64;

/// Counters of reloads.
#[derive(Debug, Default)]
pub(crate) struct ReloadCounters {
    pub(crate) done: AtomicU64,
    pub(crate) refused: AtomicU64,
}
