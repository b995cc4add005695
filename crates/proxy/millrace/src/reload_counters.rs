//! How reloads went, for whoever counts them and whoever shows them.

use std::sync::atomic::AtomicU64;

/// How reloads went.
#[derive(Debug, Default)]
pub(crate) struct ReloadCounters {
    pub(crate) done: AtomicU64,
    pub(crate) refused: AtomicU64,
}
