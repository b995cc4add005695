//! Private memory whose pages are those of files until they are written to.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

use crate::{MappedFile, Result};

/// Contiguous memory for reading and writing, of this process alone. Ranges can have pages of
/// files: the kernel copies a page when it is written to. Children of fork(2) get a copy of the
/// memory, as of other memory. It is unmapped when dropped, and not in a child that drops it.
#[derive(Debug)]
pub struct PrivateMemory(MappedFile);

impl PrivateMemory {
    /// Returns `bytes` zeros, at least one.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new(bytes: usize) -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE;
        // SAFETY: the kernel picks an address where nothing is mapped.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }?;
        let start = NonNull::new(start.cast()).expect("nothing is mapped at zero");
        Ok(Self(MappedFile::of_range(start, bytes)))
    }

    /// Replaces `bytes` bytes, `at` bytes from the start, by those of `file` from `offset` on. They
    /// are not copied. All three are multiples of [`page_bytes`].
    ///
    /// # Errors
    /// ENODEV for a file that cannot be mapped; ENOMEM, also if the process has too many mappings.
    ///
    /// # Panics
    /// If the range exceeds the memory, or a number is no such multiple.
    ///
    /// # Safety
    /// No process changes the bytes of the file, or its length, from now on
    /// ([`seal_contents`](crate::seal_contents)), and it has all these bytes.
    pub unsafe fn map(
        &mut self,
        at: usize,
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
    ) -> Result<()> {
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.0.len()));
        assert!([at, bytes].iter().all(|number| number.is_multiple_of(page_bytes())));
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the place is inside the memory.
        let place = unsafe { self.0.start().byte_add(at) };
        // SAFETY: the range is inside the mapping of this value, which is borrowed mutably, so
        // nothing refers to it.
        unsafe { mmap(place.as_ptr().cast(), bytes, protection, flags, file, offset) }?;
        Ok(())
    }

    /// Returns the memory.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the range is mapped for reading and writing as long as `self` lives, and `self`
        // is borrowed mutably. Pages of files do not change by the contract of `map`.
        unsafe { std::slice::from_raw_parts_mut(self.0.start().as_ptr(), self.0.len()) }
    }

    /// Returns the first address and leaves it to the caller to unmap all bytes by munmap(2).
    pub fn leak(self) -> NonNull<u8> {
        std::mem::ManuallyDrop::new(self).0.start()
    }
}

/// Returns the size of a page.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::{create_memory_file, seal_contents};

    #[test]
    fn pages_of_a_file_are_copied_when_they_are_written_to() {
        let page = page_bytes();
        let file = create_memory_file("test", 2 * page as u64).unwrap();
        rustix::io::pwrite(&file, &vec![5; 2 * page], 0).unwrap();
        seal_contents(file.as_fd()).unwrap();
        let mut memory = PrivateMemory::new(3 * page + 1).unwrap();
        memory.bytes_mut()[0] = 1;
        // SAFETY: the file is sealed, and has two pages.
        unsafe { memory.map(page, file.as_fd(), 0, 2 * page) }.unwrap();
        let bytes = memory.bytes_mut();
        bytes[page + 7] = 9;
        assert_eq!((bytes[0], bytes[3 * page]), (1, 0));
        let file_bytes = &bytes[page..3 * page];
        assert!(
            file_bytes.iter().enumerate().all(|(at, byte)| *byte == if at == 7 { 9 } else { 5 })
        );
        let mut unchanged = [0; 8];
        rustix::io::pread(&file, &mut unchanged, 0).unwrap();
        assert_eq!(unchanged, [5; 8]);
    }
}
