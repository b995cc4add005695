//! The memory of a ring.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Result;

/// Memory shared with the kernel, as long as this lives.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it is memory like any other. What is no atomic of it is looked at by functions alone
// whose callers exclude each other.
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

    /// Its first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The word `offset` bytes from the start. The kernel says where its words are, so what it
    /// said is checked.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.length);
        // SAFETY: the place is inside the mapping.
        let place = unsafe { self.start.byte_add(offset) };
        // SAFETY: it is aligned, as the mapping is by pages; it is mapped as long as `self` lives,
        // and both sides access it atomically.
        unsafe { AtomicU32::from_ptr(place.as_ptr().cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more: references borrow `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
