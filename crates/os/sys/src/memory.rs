//! Memory files: mapped for writing and reading, sent by reference, and returned to the kernel in
//! parts.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::{Result, last_error, process_generation};

/// The size of a huge page where a page has 4 KB (x86-64, and arm64 as distributions build it).
/// A huge page begins at a multiple of it, in the file and in memory.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Creates a file of `bytes` zeros that exists in memory only (memfd_create(2)); closed on exec,
/// never executable. It takes no memory until it is written to or populated.
///
/// # Errors
/// EMFILE, ENFILE, ENOMEM; ENOSYS if a filter of system calls hides memfd_create(2).
pub fn create_memory_file(name: &str, bytes: u64) -> Result<OwnedFd> {
    let file = match memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know MFD_NOEXEC_SEAL.
        Err(Errno::INVAL) => memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING),
        made => made,
    }?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// Returns the memory of a range of a memory file to the kernel (fallocate(2),
/// FALLOC_FL_PUNCH_HOLE). The range reads as zeros from then on. Bytes that the kernel still has to
/// send from there are preserved, but **only in folios that are entirely inside the range**. If a
/// folio extends beyond the range, the kernel sets its part inside the range to zero in place
/// (`truncate_inode_partial_folio`, at least in Linux 5.17 to 6.18). A peer that has yet to receive
/// that part gets zeros.
///
/// # Errors
/// EPERM for a file that is sealed against writing; ENOMEM.
pub fn punch_hole(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<()> {
    fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes)
}

/// Sends up to `max` bytes of a file, beginning at `offset`, to a socket by reference
/// (sendfile(2)), and returns their number. The send queue refers to the file's memory until the
/// bytes are acknowledged. If the peer is on the same machine, its receive queue refers to that
/// memory until the peer has read the bytes. SIGPIPE has to be ignored: see
/// [`ignore_broken_pipe_signal`](crate::ignore_broken_pipe_signal).
///
/// # Errors
/// EAGAIN if a non-blocking socket has no room; those of write(2).
pub fn sendfile(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    offset: u64,
    max: usize,
) -> Result<usize> {
    rustix::io::retry_on_intr(|| {
        let mut offset = offset;
        rustix::fs::sendfile(socket, file, Some(&mut offset), max)
    })
}

/// A range of address space, aligned to huge pages, into which files are mapped. It is unmapped
/// when dropped, so the owner of pointers into it has to keep it. A child of fork(2) that drops it
/// unmaps nothing, because the addresses may belong to other mappings of the child.
#[derive(Debug)]
pub struct MappedRegion {
    start: NonNull<u8>,
    bytes: usize,
    /// The generation of the process that has mapped it.
    process: u64,
}

// SAFETY: the value is an address and a length. Code that dereferences pointers into the region has
// to prevent data races itself.
unsafe impl Send for MappedRegion {}
// SAFETY: as above; the methods that take `&self` are system calls about the range.
unsafe impl Sync for MappedRegion {}

impl MappedRegion {
    /// Reserves `bytes` of address space, a multiple of [`HUGE_PAGE_BYTES`]. It cannot be accessed
    /// before a file is mapped.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn reserve(bytes: usize) -> Result<Self> {
        assert!(bytes > 0 && bytes.is_multiple_of(HUGE_PAGE_BYTES));
        let whole = bytes + HUGE_PAGE_BYTES;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel picks an address where nothing is mapped.
        let found =
            unsafe { mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::empty(), flags) }?;
        let before = found.cast::<u8>().align_offset(HUGE_PAGE_BYTES);
        assert!(before < HUGE_PAGE_BYTES);
        // SAFETY: `before + bytes` is less than the whole mapping.
        let start = unsafe { found.byte_add(before) };
        if before > 0 {
            // SAFETY: nothing refers to the beginning of a mapping that was created just now.
            unsafe { munmap(found, before) }?;
        }
        // SAFETY: it is the end of the range, at most one huge page before the end of the mapping.
        let end = unsafe { start.byte_add(bytes) };
        // SAFETY: nothing refers to the end of that mapping either; `before` is smaller than a huge
        // page, so the length is not 0.
        unsafe { munmap(end, whole - before - bytes) }?;
        let start = NonNull::new(start.cast()).expect("nothing is mapped at zero");
        Ok(Self { start, bytes, process: process_generation() })
    }

    /// Maps the first `bytes` of `file` for reading and writing, `at` bytes from the start of the
    /// region; both are multiples of [`HUGE_PAGE_BYTES`]. It stays mapped after the file is closed.
    /// An earlier mapping there is replaced, so the method takes the region exclusively.
    ///
    /// # Errors
    /// ENOMEM, also if the process has too many mappings (vm.max_map_count).
    pub fn map(&mut self, at: usize, file: BorrowedFd<'_>, bytes: usize) -> Result<()> {
        let place = self.place(at, bytes);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range is inside the address space that this region has reserved. Nothing
        // refers to it: `self` is borrowed mutably, and callers take pointers only after they have
        // mapped all files.
        unsafe { mmap(place.as_ptr().cast(), bytes, protection, flags, file, 0) }?;
        Ok(())
    }

    /// Maps `bytes` of `file` like [`MappedRegion::map`], but for reading only. No call makes the
    /// mapping writable if the file is sealed by [`seal_for_readers`](crate::seal_for_readers).
    ///
    /// # Errors
    /// As [`MappedRegion::map`].
    pub fn map_read_only(&mut self, at: usize, file: BorrowedFd<'_>, bytes: usize) -> Result<()> {
        let place = self.place(at, bytes);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: as in `map`; the mapping cannot be written to.
        unsafe { mmap(place.as_ptr().cast(), bytes, ProtFlags::READ, flags, file, 0) }?;
        Ok(())
    }

    /// Unmaps the files of a range, which stays reserved. Pointers into it must not be used any
    /// more. In a child of the process that has mapped them it does nothing.
    ///
    /// # Errors
    /// ENOMEM if the process has too many mappings.
    pub fn unmap(&mut self, at: usize, bytes: usize) -> Result<()> {
        let place = self.place(at, bytes);
        if self.process != process_generation() {
            return Ok(());
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range is inside the address space of this region, and nothing refers to it.
        unsafe { mmap_anonymous(place.as_ptr().cast(), bytes, ProtFlags::empty(), flags) }?;
        Ok(())
    }

    /// Keeps a range out of the children that this process makes by fork(2) from now on
    /// (MADV_DONTFORK). Mapping other files there ends that.
    ///
    /// # Errors
    /// EINVAL if the kernel does not allow it.
    pub fn keep_from_children(&self, at: usize, bytes: usize) -> Result<()> {
        let place = self.place(at, bytes);
        // SAFETY: the range is mapped as long as `self` lives; the advice changes no byte.
        unsafe { madvise(place.as_ptr().cast(), bytes, Advice::LinuxDontFork) }
    }

    /// Returns the first address of the region.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Allocates memory for the pages of a range that have none, and maps all of them for writing
    /// (MADV_POPULATE_WRITE, since Linux 5.14). Accesses do not fault from then on.
    ///
    /// # Errors
    /// EINVAL before Linux 5.14; ENOMEM, EFAULT if there is no memory.
    pub fn populate(&self, at: usize, bytes: usize) -> Result<()> {
        let place = self.place(at, bytes);
        // SAFETY: the range is mapped as long as `self` lives; populating changes no byte.
        unsafe { madvise(place.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) }
    }

    /// Maps all pages of a range for reading, and allocates those that have no memory
    /// (MADV_POPULATE_READ, since Linux 5.14).
    ///
    /// # Errors
    /// As [`MappedRegion::populate`].
    pub fn populate_for_reading(&self, at: usize, bytes: usize) -> Result<()> {
        let place = self.place(at, bytes);
        // SAFETY: the range is mapped as long as `self` lives; populating changes no byte.
        unsafe { madvise(place.as_ptr().cast(), bytes, Advice::LinuxPopulateRead) }
    }

    /// Turns each aligned part of [`HUGE_PAGE_BYTES`] of a range into one huge page (MADV_COLLAPSE,
    /// since Linux 6.1), whatever the machine's settings for huge pages are. Each part must have at
    /// least one page of memory; its missing pages are filled with zeros.
    ///
    /// # Errors
    /// EINVAL before Linux 6.1, and if the kernel was built without huge pages; ENOMEM, EAGAIN,
    /// EBUSY if none is available now.
    pub fn collapse(&self, at: usize, bytes: usize) -> Result<()> {
        let place = self.place(at, bytes);
        // SAFETY: the range is mapped as long as `self` lives; collapsing changes no byte.
        let result = unsafe { libc::madvise(place.as_ptr().cast(), bytes, libc::MADV_COLLAPSE) };
        if result == 0 { Ok(()) } else { Err(last_error()) }
    }

    fn place(&self, at: usize, bytes: usize) -> NonNull<u8> {
        assert!(bytes > 0 && at.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        // SAFETY: the place is inside the region.
        unsafe { self.start.byte_add(at) }
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        if self.process != process_generation() {
            return;
        }
        // SAFETY: the owners of pointers into the region have kept it until the pointers were gone.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// The beginning of a file in memory, mapped by itself. Children of the process do not inherit the
/// mapping. It is unmapped when dropped, so the owner of pointers into it has to keep it. A child
/// that drops it unmaps nothing.
#[derive(Debug)]
pub struct MappedFile {
    start: NonNull<u8>,
    bytes: usize,
    /// The generation of the process that has mapped it.
    process: u64,
}

// SAFETY: the value is an address and a length, as a `MappedRegion` is.
unsafe impl Send for MappedFile {}
// SAFETY: as above; no method accesses the memory.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps the first `bytes` of `file`, at least one, for reading only.
    ///
    /// # Errors
    /// Those of mmap(2) and madvise(2): ENODEV for what cannot be mapped; ENOMEM.
    pub fn read_only(file: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        // Before Linux 6.7 no file that is sealed against writing can be mapped MAP_SHARED by a
        // descriptor for writing.
        Self::new(file, bytes, ProtFlags::READ, MapFlags::PRIVATE)
    }

    /// Maps the first `bytes` of `file`, at least one, for reading only, and all pages that have
    /// memory at once. Each access to another page would take half a microsecond otherwise. Huge
    /// pages are mapped as such if `bytes` is a multiple of [`HUGE_PAGE_BYTES`].
    ///
    /// # Errors
    /// As [`MappedFile::read_only`].
    pub fn read_only_populated(file: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        if !bytes.is_multiple_of(HUGE_PAGE_BYTES) {
            return Self::new(file, bytes, ProtFlags::READ, flags);
        }
        let region = MappedRegion::reserve(bytes)?;
        let place = region.start.as_ptr().cast();
        // SAFETY: the range is the address space that was reserved just now.
        unsafe { mmap(place, bytes, ProtFlags::READ, flags | MapFlags::FIXED, file, 0) }?;
        region.keep_from_children(0, bytes)?;
        Ok(Self::of_region(region))
    }

    /// Maps the first `bytes` of `file`, at least one, for reading what others write there. The
    /// descriptor is open for reading only, or the file is sealed by
    /// [`seal_for_readers`](crate::seal_for_readers): else this process could make it writable.
    ///
    /// # Errors
    /// As [`MappedFile::read_only`].
    pub fn read_only_shared(file: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        Self::new(file, bytes, ProtFlags::READ, MapFlags::SHARED)
    }

    /// Maps the first `bytes` of `file`, at least one, for reading and writing.
    ///
    /// # Errors
    /// As [`MappedFile::read_only`]; EPERM for a file that is sealed against writing.
    pub fn writable(file: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        Self::new(file, bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
    }

    /// Maps a whole file of `bytes` for reading and writing, and allocates its memory now: as huge
    /// pages if `bytes` is a multiple of [`HUGE_PAGE_BYTES`] and the kernel has some.
    ///
    /// # Errors
    /// As [`MappedFile::writable`].
    pub fn populated(file: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        if !bytes.is_multiple_of(HUGE_PAGE_BYTES) {
            let mapped = Self::writable(file, bytes)?;
            // SAFETY: the range is mapped; populating changes no byte. If it fails, as before Linux
            // 5.14, the first accesses allocate the memory.
            let _ =
                unsafe { madvise(mapped.start.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) };
            return Ok(mapped);
        }
        let mut region = MappedRegion::reserve(bytes)?;
        region.map(0, file, bytes)?;
        region.keep_from_children(0, bytes)?;
        for at in (0..bytes).step_by(HUGE_PAGE_BYTES) {
            // There is nothing to collapse before a page has memory.
            let _ = region.populate(at, 4096);
        }
        let _ = region.collapse(0, bytes);
        let _ = region.populate(0, bytes);
        Ok(Self::of_region(region))
    }

    /// Takes over a region.
    fn of_region(region: MappedRegion) -> Self {
        let MappedRegion { start, bytes, process } = *std::mem::ManuallyDrop::new(region);
        Self { start, bytes, process }
    }

    fn new(
        file: BorrowedFd<'_>,
        bytes: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> Result<Self> {
        // SAFETY: the kernel picks an address where nothing is mapped.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).expect("nothing is mapped at zero");
        let mapped = Self::of_range(start, bytes);
        // SAFETY: the range was mapped just now; the advice changes no byte.
        unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxDontFork) }?;
        Ok(mapped)
    }

    /// Takes over a range that this process has mapped just now.
    pub(crate) fn of_range(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes, process: process_generation() }
    }

    /// Returns the first address.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the number of mapped bytes, at least one.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        if self.process != process_generation() {
            return;
        }
        // SAFETY: the owners of pointers into the mapping have kept it until the pointers were
        // gone.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_mapped_file_is_sent_by_reference_and_punched() {
        let file = create_memory_file("test", 2 * HUGE_PAGE_BYTES as u64).unwrap();
        let mut region = MappedRegion::reserve(4 * HUGE_PAGE_BYTES).unwrap();
        assert!(region.start().as_ptr().cast::<u8>().addr().is_multiple_of(HUGE_PAGE_BYTES));
        region.map(HUGE_PAGE_BYTES, file.as_fd(), 2 * HUGE_PAGE_BYTES).unwrap();
        region.populate(2 * HUGE_PAGE_BYTES, 4096).unwrap();
        // SAFETY: the place is inside the region.
        let place = unsafe { region.start().byte_add(2 * HUGE_PAGE_BYTES) };
        // SAFETY: it is mapped, and nothing else refers to it.
        unsafe { place.write_bytes(7, 4096) };
        let (mut reader, socket) = UnixStream::pair().unwrap();
        let offset = HUGE_PAGE_BYTES as u64;
        assert_eq!(sendfile(socket.as_fd(), file.as_fd(), offset, 4096).unwrap(), 4096);
        punch_hole(file.as_fd(), offset, HUGE_PAGE_BYTES as u64).unwrap();
        // SAFETY: as above; a hole reads as zeros.
        assert_eq!(unsafe { place.read() }, 0);
        let mut bytes = [0; 4096];
        reader.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096]);
    }

    #[test]
    fn a_populated_file_has_all_its_memory() {
        for bytes in [5000, HUGE_PAGE_BYTES] {
            let file = create_memory_file("test", bytes as u64).unwrap();
            let mapped = MappedFile::populated(file.as_fd(), bytes).unwrap();
            let blocks = rustix::fs::fstat(&file).unwrap().st_blocks;
            assert_eq!(blocks as usize * 512, bytes.next_multiple_of(4096));
            // SAFETY: the last byte is mapped.
            let last = unsafe { mapped.start().byte_add(bytes - 1) };
            // SAFETY: nothing else refers to it.
            unsafe { last.write(1) };
        }
    }

    #[test]
    fn huge_pages_are_mapped_as_such_for_reading() {
        let file = create_memory_file("test", 2 * HUGE_PAGE_BYTES as u64).unwrap();
        let writable = MappedFile::populated(file.as_fd(), 2 * HUGE_PAGE_BYTES).unwrap();
        let mapped = MappedFile::read_only_populated(file.as_fd(), 2 * HUGE_PAGE_BYTES).unwrap();
        let pages = |mapped: &MappedFile| {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let begin = format!("{:x}-", mapped.start().as_ptr().addr());
            let mapping = &maps[maps.find(&begin).unwrap()..];
            let pages = mapping.lines().find(|line| line.starts_with("ShmemPmdMapped:"));
            pages.unwrap().split_whitespace().nth(1).unwrap().to_owned()
        };
        if pages(&writable) == "0" {
            return println!("skip: the machine has no free huge page");
        }
        assert_eq!(pages(&mapped), pages(&writable));
    }

    #[test]
    fn one_page_is_enough_to_make_a_huge_one() {
        let file = create_memory_file("test", HUGE_PAGE_BYTES as u64).unwrap();
        let mut region = MappedRegion::reserve(HUGE_PAGE_BYTES).unwrap();
        region.map(0, file.as_fd(), HUGE_PAGE_BYTES).unwrap();
        assert!(region.collapse(0, HUGE_PAGE_BYTES).is_err(), "there is no page yet");
        region.populate(0, 4096).unwrap();
        match region.collapse(0, HUGE_PAGE_BYTES) {
            Err(Errno::NOMEM) => return println!("skip: the machine has no free huge page"),
            collapsed => collapsed.unwrap(),
        }
        let blocks = rustix::fs::fstat(&file).unwrap().st_blocks;
        assert_eq!(blocks as usize * 512, HUGE_PAGE_BYTES);
    }
}
