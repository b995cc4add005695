//! The bytes of a slab: files in memory that are mapped, or, where there is no kernel, the heap.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use millrace_sys::{Errno, MappedRegion};

use crate::error::Error;
use crate::limits::{BLOCK_BYTES, FILE_BYTES};

/// What a block is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageSize {
    /// A huge page, or the heap.
    Huge,
    /// Pages of 4 KB.
    Small,
}

/// A slab's memory. Who may write where is decided elsewhere; this keeps it mapped.
#[derive(Debug)]
pub(crate) struct SlabMemory {
    start: NonNull<u8>,
    bytes: usize,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    /// Each file has `SEGMENT_BYTES`, the last one maybe less, and they are mapped one behind the
    /// other.
    Files { region: MappedRegion, files: Vec<OwnedFd> },
    /// Of this layout. Nothing of it can be sent by reference, so nothing is ever recycled.
    Heap(Layout),
}

// SAFETY: the memory belongs to this value, wherever it is.
unsafe impl Send for SlabMemory {}
// SAFETY: the methods that take `&self` hand out addresses, or make system calls that change no
// byte of a block that somebody holds something of.
unsafe impl Sync for SlabMemory {}

impl SlabMemory {
    /// Files of `bytes` altogether, a multiple of [`BLOCK_BYTES`]; without memory yet.
    pub(crate) fn in_files(bytes: usize) -> Result<Self, Error> {
        let failed = |call| move |error| Error::Kernel(call, error);
        let mut region = MappedRegion::reserve(bytes).map_err(failed("mmap"))?;
        let mut files = Vec::new();
        for at in (0..bytes).step_by(FILE_BYTES) {
            let size = FILE_BYTES.min(bytes - at);
            let file = millrace_sys::create_memory_file("iolite", size as u64)
                .map_err(failed("memfd_create"))?;
            region.map(at, file.as_fd(), size).map_err(failed("mmap"))?;
            files.push(file);
        }
        Ok(Self { start: region.start(), bytes, backing: Backing::Files { region, files } })
    }

    /// As much of the heap.
    pub(crate) fn on_heap(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, BLOCK_BYTES).expect("a size that was checked");
        assert!(bytes > 0);
        // SAFETY: the layout has a size.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, bytes, backing: Backing::Heap(layout) }
    }

    /// Where the byte at `offset` is.
    pub(crate) fn address(&self, offset: u64) -> NonNull<u8> {
        assert!(offset < self.bytes as u64);
        // SAFETY: it is inside the memory.
        unsafe { self.start.byte_add(offset as usize) }
    }

    /// The file that the byte at `offset` is in, and where in it; `None` on the heap.
    pub(crate) fn file(&self, offset: u64) -> Option<(BorrowedFd<'_>, u64)> {
        let segment = FILE_BYTES as u64;
        match &self.backing {
            Backing::Files { files, .. } => {
                Some((files[(offset / segment) as usize].as_fd(), offset % segment))
            }
            Backing::Heap(_) => None,
        }
    }

    /// Gives a block memory, as one huge page if the kernel lets us. One small page is made first
    /// because there is nothing to be collapsed otherwise; the rest is added by collapsing, which
    /// costs half as much as to populate and then to collapse.
    pub(crate) fn populate(&self, block: u32) -> Result<PageSize, Errno> {
        let Backing::Files { region, .. } = &self.backing else {
            return Ok(PageSize::Huge);
        };
        let at = block as usize * BLOCK_BYTES;
        region.populate(at, 4096)?;
        let collapsed = region.collapse(at, BLOCK_BYTES);
        // What was not collapsed gets its small pages here, and what was is mapped.
        region.populate(at, BLOCK_BYTES)?;
        Ok(if collapsed.is_ok() { PageSize::Huge } else { PageSize::Small })
    }

    /// Gives a block that nobody holds anything of back to the kernel. What sockets still refer to
    /// keeps its bytes until they are through: the block is a whole number of folios, whatever
    /// their sizes, so that none is set to zero in place (see [`millrace_sys::punch`]).
    pub(crate) fn recycle(&self, block: u32) -> Result<(), Errno> {
        match self.file(u64::from(block) * BLOCK_BYTES as u64) {
            Some((file, offset)) => millrace_sys::punch_hole(file, offset, BLOCK_BYTES as u64),
            None => Ok(()),
        }
    }
}

impl Drop for SlabMemory {
    fn drop(&mut self) {
        if let Backing::Heap(layout) = self.backing {
            // SAFETY: this is what was allocated with that layout; whoever has an address of it
            // keeps the slab.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "files in memory")]
    fn offsets_lead_to_files_across_segments() {
        let memory = SlabMemory::in_files(FILE_BYTES + BLOCK_BYTES).unwrap();
        let offset = FILE_BYTES as u64 + 5;
        memory.populate((FILE_BYTES / BLOCK_BYTES) as u32).unwrap();
        // SAFETY: it is mapped, and nobody else has it.
        unsafe { memory.address(offset).write(42) };
        let (file, at) = memory.file(offset).unwrap();
        assert_eq!(at, 5);
        let (mut byte, socket) = ([0], std::os::unix::net::UnixStream::pair().unwrap());
        millrace_sys::sendfile(socket.0.as_fd(), file, at, 1).unwrap();
        std::io::Read::read_exact(&mut &socket.1, &mut byte).unwrap();
        assert_eq!(byte, [42]);
    }
}
