//! The memory of pieces, and the budget that it is charged to.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use iolite::service::Refusal;
use iolite::{Account, Error, RefusedMemory, SealedMemory, UnsealedMemory};

/// The bytes and descriptors that all pieces take together. Clones are the same budget.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    bytes: AtomicU64,
    bytes_max: u64,
    pieces: AtomicU64,
    pieces_max: u64,
}

/// Returns the bytes that are charged for memory of a length: whole pages, and at least 64 KB,
/// because a process has a limited number of descriptors.
pub(crate) fn memory_for(length: u64) -> u64 {
    length.max(64 << 10).next_multiple_of(4096)
}

/// The id of the last memory.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// A part of the budget, which returns to it when this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    budget: Budget,
    bytes: u64,
}

/// Sealed memory that has bytes of files. It is freed when the daemon has dropped it and no client
/// holds it.
#[derive(Debug)]
pub(crate) struct Memory {
    /// No other memory ever has it.
    id: u64,
    sealed: SealedMemory,
    /// The bytes from the start on that belong to files; a client's memory may be longer.
    length: u64,
    /// The user of the client that has filled it; `None` for the daemon's own.
    owner: Option<u32>,
    reserved: Reserved,
}

impl Budget {
    pub(crate) fn new(bytes_max: u64, pieces_max: u64) -> Self {
        let (bytes, pieces) = (AtomicU64::new(0), AtomicU64::new(0));
        Self(Arc::new(BudgetState { bytes, bytes_max, pieces, pieces_max }))
    }

    /// Reserves memory for a piece of `bytes`; `None` if too little is left.
    pub(crate) fn reserve(&self, bytes: u64) -> Option<Reserved> {
        let BudgetState { bytes: all, bytes_max, pieces, pieces_max } = &*self.0;
        let add =
            |count: u64, max: u64| move |now: u64| now.checked_add(count).filter(|sum| *sum <= max);
        let order = Ordering::Relaxed;
        all.fetch_update(order, order, add(bytes, *bytes_max)).ok()?;
        if pieces.fetch_update(order, order, add(1, *pieces_max)).is_err() {
            all.fetch_sub(bytes, order);
            return None;
        }
        Some(Reserved { budget: self.clone(), bytes })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.0.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.budget.0.pieces.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Memory {
    /// Fills new memory of `length` bytes, and seals it. `fill` fills the whole slice.
    ///
    /// # Errors
    /// Those of `fill`, and of the kernel.
    pub(crate) fn filled(
        length: u64,
        reserved: Reserved,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Refusal>,
    ) -> Result<Self, Refusal> {
        let refusal = |error: Error| match error {
            Error::Kernel(_, error) => Refusal::Kernel(error),
            _ => Refusal::Memory,
        };
        let mut memory = UnsealedMemory::exactly(length as usize).map_err(refusal)?;
        fill(&mut memory.unfilled()[..length as usize])?;
        memory.advance(length as usize);
        let made = memory.seal().map_err(refusal)?;
        let file = made.file().try_clone_to_owned().map_err(|_| Refusal::Memory)?;
        // Its descriptor is the only one that the kernel counts as an opener.
        Self::new(file, length, None, reserved)
    }

    /// Accepts memory that a client of the user `owner` has filled, with `length` bytes of a file
    /// at its start.
    ///
    /// # Errors
    /// The reason why it is refused.
    pub(crate) fn accept(
        file: OwnedFd,
        length: u64,
        owner: u32,
        reserved: Reserved,
    ) -> Result<Self, Refusal> {
        Self::new(file, length, Some(owner), reserved)
    }

    fn new(
        file: OwnedFd,
        length: u64,
        owner: Option<u32>,
        reserved: Reserved,
    ) -> Result<Self, Refusal> {
        let accepted = SealedMemory::accept(file, &Account::new(reserved.bytes));
        let sealed = accepted.map_err(|refused| match refused {
            RefusedMemory::Kernel(error) => Refusal::Kernel(error),
            RefusedMemory::TooLong { .. } => Refusal::Memory,
            _ => Refusal::Unsealed,
        })?;
        if (sealed.len() as u64) < length {
            return Err(Refusal::Unsealed);
        }
        let id = LAST_ID.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Self { id, sealed, length, owner, reserved })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.reserved.bytes
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Returns a descriptor for a client.
    pub(crate) fn open(&self) -> Result<OwnedFd, Refusal> {
        millrace_sys::reopen_to_read(self.sealed.file()).map_err(Refusal::Kernel)
    }

    /// Returns whether processes of a user may get the memory. The kernel charges memory to the
    /// process that has filled it, as long as any process holds it: so that of a client is not
    /// passed to other users.
    pub(crate) fn is_for(&self, user: u32) -> bool {
        self.owner.is_none_or(|owner| owner == user)
    }

    /// Returns whether a client holds the memory, or a message to one has it. Memory of a client's
    /// user is charged to that user.
    pub(crate) fn is_held(&self) -> bool {
        self.owner.is_none() && millrace_sys::has_other_openers(self.sealed.file()).unwrap_or(true)
    }

    /// Copies bytes of the memory.
    pub(crate) fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Refusal> {
        let file = self.sealed.file();
        match millrace_sys::read_at(file, bytes, offset) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) => Err(Refusal::Changing),
            Err(error) => Err(Refusal::Kernel(error)),
        }
    }
}
