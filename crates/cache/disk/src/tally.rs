//! What is counted of a disk while it works.

use std::sync::atomic::AtomicU64;

/// Numbers that are only ever counted up, apart from each other.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) stored: AtomicU64,
    pub(super) stores_skipped: AtomicU64,
    pub(super) fetched: AtomicU64,
    pub(super) fetches_skipped: AtomicU64,
    pub(super) gone: AtomicU64,
    pub(super) damaged: AtomicU64,
    pub(super) read_errors: AtomicU64,
    pub(super) write_errors: AtomicU64,
    pub(super) full: AtomicU64,
    pub(super) waits: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) rewritten: AtomicU64,
    pub(super) lost_purges: AtomicU64,
}
