//! The memory of pieces.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use iolite::service::Refusal;
use iolite::{Account, Error, RefusedMemory, SealedMemory, UnsealedMemory};

use crate::budget::{Budget, Reserved, Unfreed, memory_for};

/// The id of the last memory.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// Sealed memory that has bytes of files. It is freed when the daemon has dropped it and no client
/// refers to it.
#[derive(Debug)]
pub(crate) struct Memory {
    /// No other memory ever has it.
    id: u64,
    sealed: SealedMemory,
    /// The bytes from the start on that belong to files; a client's memory may be longer.
    length: u64,
    /// The user of the client that has filled it; `None` for the daemon's own.
    owner: Option<u32>,
    reserved: Arc<Reserved>,
}

impl Memory {
    /// Fills new memory of `length` bytes, and seals it. `fill` fills the whole slice.
    ///
    /// # Errors
    /// Those of `fill`, and of the kernel.
    pub(crate) fn filled(
        length: u64,
        reserved: Reserved,
        unfreed: &Unfreed,
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
        let sealed = accept(file, reserved.bytes())?;
        let memory = Self::new(sealed, length, None, reserved)?;
        unfreed.add(memory.file(), &memory.reserved)?;
        Ok(memory)
    }

    /// Accepts memory that a client of the user `owner` has filled, with `length` bytes of a file
    /// at its start. `make_room` reserves a number of bytes for it.
    ///
    /// # Errors
    /// The reason why it is refused, and those of `make_room`.
    pub(crate) fn accept(
        file: OwnedFd,
        length: u64,
        owner: u32,
        budget: &Budget,
        make_room: impl FnOnce(u64) -> Result<Reserved, Refusal>,
    ) -> Result<Self, Refusal> {
        let sealed = accept(file, budget.bytes_max())?;
        let reserved = make_room(memory_for(sealed.len() as u64))?;
        Self::new(sealed, length, Some(owner), reserved)
    }

    fn new(
        sealed: SealedMemory,
        length: u64,
        owner: Option<u32>,
        reserved: Reserved,
    ) -> Result<Self, Refusal> {
        if (sealed.len() as u64) < length {
            return Err(Refusal::Unsealed);
        }
        let id = LAST_ID.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Self { id, sealed, length, owner, reserved: Arc::new(reserved) })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns its part of the budget.
    pub(crate) fn reserved(&self) -> &Arc<Reserved> {
        &self.reserved
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.sealed.file()
    }

    /// Returns a descriptor for a client.
    pub(crate) fn open(&self) -> Result<OwnedFd, Refusal> {
        millrace_sys::reopen_to_read(self.file()).map_err(Refusal::Kernel)
    }

    /// Returns whether processes of a user may get the memory. The kernel charges memory to the
    /// process that has filled it, as long as any process holds it: so that of a client is not
    /// passed to other users.
    pub(crate) fn is_for(&self, user: u32) -> bool {
        self.owner.is_none_or(|owner| owner == user)
    }

    /// Returns whether the daemon has filled it.
    pub(crate) fn is_of_daemon(&self) -> bool {
        self.owner.is_none()
    }

    /// Returns whether a client holds the daemon's memory, or a message to one has it. Memory of a
    /// client's user is charged to that user.
    pub(crate) fn is_held(&self) -> bool {
        self.is_of_daemon() && millrace_sys::has_other_openers(self.file()).unwrap_or(true)
    }

    /// Copies bytes of the memory.
    pub(crate) fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Refusal> {
        match millrace_sys::read_at(self.file(), bytes, offset) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) => Err(Refusal::Changing),
            Err(error) => Err(Refusal::Kernel(error)),
        }
    }
}

/// Accepts a sealed file of up to `bytes_max` bytes without holes.
fn accept(file: OwnedFd, bytes_max: u64) -> Result<SealedMemory, Refusal> {
    SealedMemory::accept(file, &Account::new(bytes_max)).map_err(|refused| match refused {
        RefusedMemory::Kernel(error) => Refusal::Kernel(error),
        RefusedMemory::TooLong { .. } => Refusal::Memory,
        _ => Refusal::Unsealed,
    })
}
