//! The mapped memory of a ring.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Result;

/// Memory shared with the kernel while this value lives.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory may be used from any thread. Atomic words may be accessed at any time;
// everything else is accessed only by functions whose callers exclude each other.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(fd: BorrowedFd<'_>, offset: u64, length: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel picks an address where nothing is mapped.
        let start = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, fd, offset) }?;
        let start = NonNull::new(start.cast()).expect("nothing is mapped at zero");
        Ok(Self { start, length })
    }

    /// Returns the first address.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the word at `offset` bytes from the start. The offsets come from the kernel, so they
    /// are checked.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.length);
        // SAFETY: the place is inside the mapping.
        let place = unsafe { self.start.byte_add(offset) };
        // SAFETY: it is aligned, since the mapping is aligned to pages; it is mapped as long as
        // `self` lives, and both sides access it atomically.
        unsafe { AtomicU32::from_ptr(place.as_ptr().cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more, since references borrow `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
