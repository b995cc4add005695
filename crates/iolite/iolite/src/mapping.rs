//! Aggregates as contiguous memory of the process.

use millrace_sys::{PrivateMemory, page_bytes};

use crate::aggregate::Aggregate;
use crate::error::Error;
use crate::slice::Slice;

impl Aggregate {
    /// Returns memory of this process alone that has all bytes, one after the other. Whole, aligned
    /// pages of sealed memory, such as those of files, are not copied before they are written to.
    /// Other bytes are copied now.
    ///
    /// # Errors
    /// [`Error::Kernel`] with ENOMEM, also if the process has too many mappings; with EINVAL for an
    /// aggregate without bytes.
    pub fn map(&self) -> Result<PrivateMemory, Error> {
        let kernel = |error| Error::Kernel("mmap", error);
        if self.is_empty() {
            return Err(kernel(millrace_sys::Errno::INVAL));
        }
        let bytes = usize::try_from(self.len()).map_err(|_| kernel(millrace_sys::Errno::NOMEM))?;
        let mut memory = PrivateMemory::new(bytes).map_err(kernel)?;
        let mut at = 0;
        for slice in self.slices() {
            let mapped = map_pages(&mut memory, at, slice).map_err(kernel)?;
            memory.bytes_mut()[at + mapped..at + slice.len()].copy_from_slice(&slice[mapped..]);
            at += slice.len();
        }
        Ok(memory)
    }
}

/// Maps the whole pages at the start of a slice, and returns their length in bytes.
fn map_pages(memory: &mut PrivateMemory, at: usize, slice: &Slice) -> millrace_sys::Result<usize> {
    let Some((file, offset)) = slice.sealed_file() else { return Ok(0) };
    let pages = slice.len() - slice.len() % page_bytes();
    let is_aligned = at.is_multiple_of(page_bytes()) && offset.is_multiple_of(page_bytes() as u64);
    if pages == 0 || !is_aligned {
        return Ok(0);
    }
    // SAFETY: the file is sealed, and has the bytes of the slice.
    unsafe { memory.map(at, file, offset, pages) }?;
    Ok(pages)
}
