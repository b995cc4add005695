//! The budget that memory is charged to, until the kernel has freed it.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use iolite::service::Refusal;
use millrace_sys::{FreedFiles, WatchNumber};

/// The bytes and pieces of all memory together. Clones are the same budget.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    bytes: AtomicU64,
    /// It may be less than `bytes` while clients hold memory.
    bytes_max: AtomicU64,
    pieces: AtomicU64,
    pieces_max: u64,
}

/// A part of the budget, which returns to it when this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    budget: Budget,
    bytes: u64,
}

/// The parts of the budget for memory that the kernel has not freed. Clients may refer to memory
/// that the daemon has closed.
#[derive(Debug)]
pub(crate) struct Unfreed {
    files: FreedFiles,
    reserved: Mutex<HashMap<WatchNumber, Arc<Reserved>>>,
}

/// Returns the bytes that are charged for memory of a length: whole pages, and at least 64 KB,
/// because a process has a limited number of descriptors.
pub(crate) fn memory_for(length: u64) -> u64 {
    length.max(64 << 10).next_multiple_of(millrace_sys::page_bytes() as u64)
}

impl Budget {
    pub(crate) fn new(bytes_max: u64, pieces_max: u64) -> Self {
        let [bytes, bytes_max, pieces] = [0, bytes_max, 0].map(AtomicU64::new);
        Self(Arc::new(BudgetState { bytes, bytes_max, pieces, pieces_max }))
    }

    /// Returns the bytes of the whole budget.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.0.bytes_max.load(Ordering::Relaxed)
    }

    /// Changes the bytes of the whole budget. Reserved parts stay reserved.
    pub(crate) fn set_bytes_max(&self, bytes_max: u64) {
        self.0.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Returns the bytes that are reserved.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Reserves memory for a piece of `bytes`; `None` if too little is left.
    pub(crate) fn reserve(&self, bytes: u64) -> Option<Reserved> {
        let BudgetState { bytes: all, pieces, pieces_max, .. } = &*self.0;
        let add =
            |count: u64, max: u64| move |now: u64| now.checked_add(count).filter(|sum| *sum <= max);
        let order = Ordering::Relaxed;
        all.fetch_update(order, order, add(bytes, self.bytes_max())).ok()?;
        if pieces.fetch_update(order, order, add(1, *pieces_max)).is_err() {
            all.fetch_sub(bytes, order);
            return None;
        }
        Some(Reserved { budget: self.clone(), bytes })
    }
}

impl Reserved {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.0.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.budget.0.pieces.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Unfreed {
    /// # Errors
    /// Those of inotify_init1(2).
    pub(crate) fn new() -> Result<Self, millrace_sys::Errno> {
        Ok(Self { files: FreedFiles::new()?, reserved: Mutex::default() })
    }

    /// Keeps a part of the budget until the kernel has freed `file`, which no client has yet.
    ///
    /// # Errors
    /// [`Refusal::Kernel`] if too many files are watched.
    pub(crate) fn add(&self, file: BorrowedFd<'_>, part: &Arc<Reserved>) -> Result<(), Refusal> {
        // The event may be read by another thread at once.
        let mut reserved = self.reserved();
        let number = self.files.watch(file).map_err(Refusal::Kernel)?;
        reserved.insert(number, part.clone());
        Ok(())
    }

    /// Returns to the budget what the kernel has freed.
    pub(crate) fn collect(&self) {
        let mut reserved = self.reserved();
        let collected = self.files.collect(|number| {
            reserved.remove(&number);
        });
        collected.expect("reading events has no errors");
    }

    fn reserved(&self) -> MutexGuard<'_, HashMap<WatchNumber, Arc<Reserved>>> {
        self.reserved.lock().expect("no holder of this lock panics")
    }
}
