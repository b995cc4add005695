//! The bytes of a slab: mapped memory files, or the heap if there is no kernel to use.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use millrace_sys::{Errno, MappedRegion};

use crate::error::Error;
use crate::limits::{BLOCK_BYTES, FILE_BYTES};

/// The page size of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageSize {
    /// A huge page, or the heap.
    Huge,
    /// Pages of 4 KB.
    Small,
}

/// The memory of a slab. This type keeps it mapped; other modules decide who may write where.
#[derive(Debug)]
pub(crate) struct SlabMemory {
    start: NonNull<u8>,
    bytes: usize,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    /// Each file has `FILE_BYTES`, the last one possibly fewer. They are mapped one after the
    /// other.
    Files { region: MappedRegion, files: Vec<OwnedFd> },
    /// Memory that was allocated here with this layout. The slab begins at the first whole block
    /// in it. Nothing can be sent zero-copy, so nothing is ever recycled.
    Heap { allocated: NonNull<u8>, layout: Layout },
}

// SAFETY: this value owns the memory, on whatever thread it is.
unsafe impl Send for SlabMemory {}
// SAFETY: the methods that take `&self` return addresses, or make system calls that change no byte
// of a block in use.
unsafe impl Sync for SlabMemory {}

impl SlabMemory {
    /// Creates files of `bytes` in total, a multiple of [`BLOCK_BYTES`], without populating them.
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

    /// Allocates `bytes` on the heap. They begin at a multiple of [`BLOCK_BYTES`]. The kernel adds
    /// memory when it is used.
    pub(crate) fn on_heap(bytes: usize) -> Self {
        // For a larger alignment than that of malloc(3), `alloc_zeroed` clears the memory itself,
        // which populates all of it.
        let layout = Layout::from_size_align(bytes + BLOCK_BYTES, align_of::<usize>());
        let layout = layout.expect("the size was checked");
        // SAFETY: the size of the layout is not 0.
        let allocated = unsafe { alloc_zeroed(layout) };
        let allocated = NonNull::new(allocated).unwrap_or_else(|| handle_alloc_error(layout));
        let address = allocated.addr().get();
        let skipped = address.next_multiple_of(BLOCK_BYTES) - address;
        // SAFETY: fewer than the additional `BLOCK_BYTES` are skipped.
        let start = unsafe { allocated.byte_add(skipped) };
        Self { start, bytes, backing: Backing::Heap { allocated, layout } }
    }

    /// Returns the address of the byte at `offset`.
    pub(crate) fn address(&self, offset: u64) -> NonNull<u8> {
        assert!(offset < self.bytes as u64);
        // SAFETY: the offset is inside the memory.
        unsafe { self.start.byte_add(offset as usize) }
    }

    /// Returns the file of the byte at `offset`, and the offset in it; `None` on the heap.
    pub(crate) fn file(&self, offset: u64) -> Option<(BorrowedFd<'_>, u64)> {
        let file_bytes = FILE_BYTES as u64;
        match &self.backing {
            Backing::Files { files, .. } => {
                Some((files[(offset / file_bytes) as usize].as_fd(), offset % file_bytes))
            }
            Backing::Heap { .. } => None,
        }
    }

    /// Populates a block, as one huge page if the kernel allows it. One small page is populated
    /// first, because there is nothing to collapse otherwise. Collapsing adds the rest, at a small
    /// part of the cost of populating all small pages first (docs/design/iolite.md).
    pub(crate) fn populate(&self, block: u32) -> Result<PageSize, Errno> {
        let Backing::Files { region, .. } = &self.backing else {
            return Ok(PageSize::Huge);
        };
        let at = block as usize * BLOCK_BYTES;
        region.populate(at, 4096)?;
        let collapsed = region.collapse(at, BLOCK_BYTES);
        // Populates small pages if collapsing failed, and maps the huge page otherwise.
        region.populate(at, BLOCK_BYTES)?;
        Ok(if collapsed.is_ok() { PageSize::Huge } else { PageSize::Small })
    }

    /// Returns an unused block to the kernel. Pages that sockets still refer to keep their bytes
    /// until the sockets have sent them: the block is a whole number of folios, whatever their
    /// sizes, so that none is zeroed in place (see [`millrace_sys::punch_hole`]).
    pub(crate) fn recycle(&self, block: u32) -> Result<(), Errno> {
        match self.file(u64::from(block) * BLOCK_BYTES as u64) {
            Some((file, offset)) => millrace_sys::punch_hole(file, offset, BLOCK_BYTES as u64),
            None => Ok(()),
        }
    }
}

impl Drop for SlabMemory {
    fn drop(&mut self) {
        if let Backing::Heap { allocated, layout } = self.backing {
            // SAFETY: this memory was allocated with that layout; every holder of an address in it
            // keeps the slab alive.
            unsafe { dealloc(allocated.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Returns whether the kernel has assigned memory to the page at an address.
    fn is_present(address: NonNull<u8>) -> bool {
        let (mut entry, at) = ([0; 8], address.addr().get() / 4096 * 8);
        File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entry, at as u64).unwrap();
        u64::from_ne_bytes(entry) >> 63 == 1
    }

    #[test]
    #[cfg_attr(miri, ignore = "the page table of the kernel")]
    fn memory_on_the_heap_is_populated_when_it_is_used() {
        let memory = SlabMemory::on_heap(FILE_BYTES);
        let block = |number: usize| memory.address((number * BLOCK_BYTES) as u64);
        assert!(block(0).addr().get().is_multiple_of(BLOCK_BYTES));
        let blocks = FILE_BYTES / BLOCK_BYTES;
        assert!((1..blocks).all(|number| !is_present(block(number))));
        // SAFETY: the address is in the memory, and only this test uses it.
        assert_eq!(unsafe { block(5).read() }, 0);
        // SAFETY: likewise.
        unsafe { block(5).write(1) };
        assert!((1..blocks).all(|number| is_present(block(number)) == (number == 5)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "files in memory")]
    fn offsets_map_to_files() {
        let memory = SlabMemory::in_files(FILE_BYTES + BLOCK_BYTES).unwrap();
        let offset = FILE_BYTES as u64 + 5;
        memory.populate((FILE_BYTES / BLOCK_BYTES) as u32).unwrap();
        // SAFETY: the address is mapped, and only this test uses it.
        unsafe { memory.address(offset).write(42) };
        let (file, at) = memory.file(offset).unwrap();
        assert_eq!(at, 5);
        let (mut byte, socket) = ([0], std::os::unix::net::UnixStream::pair().unwrap());
        millrace_sys::sendfile(socket.0.as_fd(), file, at, 1).unwrap();
        std::io::Read::read_exact(&mut &socket.1, &mut byte).unwrap();
        assert_eq!(byte, [42]);
    }
}
