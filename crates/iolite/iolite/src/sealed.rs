//! Memory files between processes that do not trust each other. A file is passed on only after its
//! contents were sealed; a receiver accepts no other.
//!
//! ```text
//!   producer                                   receiver
//!   UnsealedMemory ──seal──> SealedMemory ───> SealedMemory::accept
//!     write, unfilled           file()           file(), bytes()
//! ```

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use millrace_sys::{Errno, MappedFile};

use crate::account::{Account, Charge};
use crate::error::Error;
use crate::limits::{BLOCK_BYTES, HUGE_FILE_BYTES_MIN};

/// A memory file that is being filled. Only this process has it. A child that it makes by fork(2)
/// must not use the descriptor before it is closed (on exec).
#[derive(Debug)]
pub struct UnsealedMemory {
    mapping: MappedFile,
    file: OwnedFd,
    filled: usize,
}

impl UnsealedMemory {
    /// Creates a file of `capacity` bytes, at least one, with memory for all of them. From 512 KB
    /// on these are huge pages of 2 MB if the kernel has some, which take less time than the pages
    /// that they replace.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    ///
    /// # Panics
    /// If `capacity` is 0.
    pub fn new(capacity: usize) -> Result<Self, Error> {
        let huge = capacity.next_multiple_of(BLOCK_BYTES);
        Self::exactly(if capacity >= HUGE_FILE_BYTES_MIN { huge } else { capacity })
    }

    /// Creates a file of `bytes` bytes, at least one, with memory for all of them and no more than
    /// a page beside them: huge pages only if the number is a multiple of 2 MB. For memory that is
    /// kept for long.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    ///
    /// # Panics
    /// If `bytes` is 0.
    pub fn exactly(bytes: usize) -> Result<Self, Error> {
        assert!(bytes > 0, "a memory file has at least one byte");
        let file = millrace_sys::create_memory_file("iolite", bytes as u64)
            .map_err(|error| Error::Kernel("memfd_create", error))?;
        let mapping = MappedFile::populated(file.as_fd(), bytes)
            .map_err(|error| Error::Kernel("mmap", error))?;
        Ok(Self { mapping, file, filled: 0 })
    }

    /// Returns the bytes that are not filled yet. Write them from the beginning on and call
    /// [`UnsealedMemory::advance`].
    pub fn unfilled(&mut self) -> &mut [u8] {
        // SAFETY: `filled` is at most the length of the mapping.
        let start = unsafe { self.mapping.start().byte_add(self.filled) };
        // SAFETY: the range is mapped as long as `self` lives. No other process has the file, and
        // this one accesses it only through `self`, which is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.mapping.len() - self.filled) }
    }

    /// Records that the first `count` bytes of [`UnsealedMemory::unfilled`] were written.
    ///
    /// # Panics
    /// If `count` is larger than that.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.mapping.len() - self.filled);
        self.filled += count;
    }

    /// Copies as much of `bytes` as fits, and returns the number of bytes copied.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let unfilled = self.unfilled();
        let count = bytes.len().min(unfilled.len());
        unfilled[..count].copy_from_slice(&bytes[..count]);
        self.advance(count);
        count
    }

    /// Cuts the file after the filled bytes, unless it has huge pages, and seals it. Receivers of
    /// huge pages find zeros after the filled bytes.
    ///
    /// # Errors
    /// [`Error::Kernel`]: the file cannot be passed on.
    pub fn seal(self) -> Result<SealedMemory, Error> {
        let Self { mapping, file, filled } = self;
        let bytes = mapping.len();
        // The kernel seals no file that is mapped for writing.
        drop(mapping);
        // To cut a huge page takes longer than everything else.
        if filled < bytes && !bytes.is_multiple_of(BLOCK_BYTES) {
            millrace_sys::truncate_file(file.as_fd(), filled as u64)
                .map_err(|error| Error::Kernel("ftruncate", error))?;
        }
        millrace_sys::seal_contents(file.as_fd()).map_err(|error| Error::Kernel("fcntl", error))?;
        Ok(SealedMemory {
            file,
            length: filled,
            mapping: OnceLock::new(),
            charge: None,
            is_indivisible: false,
        })
    }
}

/// A memory file whose contents no process can change, not even the one that filled it, whatever
/// descriptors and mappings it has kept.
#[derive(Debug)]
pub struct SealedMemory {
    file: OwnedFd,
    length: usize,
    /// The file in memory, once it was read.
    mapping: OnceLock<MappedFile>,
    charge: Option<Charge>,
    /// Other processes get the file only if they get all its bytes.
    is_indivisible: bool,
}

impl SealedMemory {
    /// Accepts a descriptor from another process, and charges its memory to the sender's account
    /// until it is dropped here: whole pages, at least 64 KB.
    ///
    /// # Errors
    /// The reason why it is not accepted. The descriptor is closed then, which may block for as
    /// long as the sender has chosen, if it is a socket (socket(7), SO_LINGER).
    pub fn accept(file: OwnedFd, sender: &Account) -> Result<Self, RefusedMemory> {
        check_seals(file.as_fd())?;
        let file = millrace_sys::reopen_to_read(file.as_fd()).map_err(RefusedMemory::Kernel)?;
        // Only sealed contents keep their length, their memory and their holes.
        let (length, _) =
            millrace_sys::memory_file_size(file.as_fd()).map_err(RefusedMemory::Kernel)?;
        let memory = Self::charge_of(file.as_fd()).map_err(RefusedMemory::Kernel)?;
        let charge = sender.charge(memory).ok_or_else(|| RefusedMemory::TooLong {
            memory,
            left: sender.bytes_max().saturating_sub(sender.held()),
        })?;
        // To read a hole would take memory, which the kernel would charge to the reader.
        let hole = millrace_sys::first_hole(file.as_fd(), length);
        if let Some(offset) = hole.map_err(RefusedMemory::Kernel)? {
            return Err(RefusedMemory::Hole { offset });
        }
        let length = usize::try_from(length).map_err(|_| RefusedMemory::Kernel(Errno::FBIG))?;
        let mapping = OnceLock::new();
        Ok(Self { file, length, mapping, charge: Some(charge), is_indivisible: false })
    }

    /// Accepts a descriptor from a process that is trusted to have left no holes. The bytes are the
    /// first `length` of the file, and are charged to no account. Other processes may have no
    /// permission to read all of them, so a part is passed on as a copy.
    ///
    /// # Errors
    /// The reason why it is not accepted.
    pub(crate) fn of_trusted(file: OwnedFd, length: u64) -> Result<Self, RefusedMemory> {
        check_seals(file.as_fd())?;
        let (bytes, _) =
            millrace_sys::memory_file_size(file.as_fd()).map_err(RefusedMemory::Kernel)?;
        if bytes < length {
            return Err(RefusedMemory::TooShort { length: bytes, expected: length });
        }
        let length = usize::try_from(length).map_err(|_| RefusedMemory::Kernel(Errno::FBIG))?;
        Ok(Self { file, length, mapping: OnceLock::new(), charge: None, is_indivisible: true })
    }

    /// Returns the bytes that are charged for a file.
    pub(crate) fn charge_of(file: BorrowedFd<'_>) -> Result<u64, Errno> {
        let (length, memory) = millrace_sys::memory_file_size(file)?;
        Ok(memory.max(length).max(FILE_CHARGE_MIN).next_multiple_of(PAGE_BYTES))
    }

    /// Returns whether the file may be passed on when only `length` of its bytes are.
    pub(crate) fn can_pass(&self, length: usize) -> bool {
        !self.is_indivisible || length == self.length
    }

    /// Returns the bytes that are charged to the sender of the file; 0 if this process has made it.
    pub(crate) fn charged(&self) -> u64 {
        self.charge.as_ref().map_or(0, Charge::bytes)
    }

    /// Returns the number of bytes: the filled ones, or all of a file that was accepted.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the length of the file, which may have zeros after the bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        let size = millrace_sys::memory_file_size(self.file());
        size.map_or(self.length as u64, |(length, _)| length)
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the file, for passing it on and for sending it by reference (sendfile(2)).
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the bytes. The first call maps the file.
    ///
    /// # Errors
    /// [`Error::Kernel`] if it cannot be mapped.
    pub fn bytes(&self) -> Result<&[u8], Error> {
        if self.is_empty() {
            return Ok(&[]);
        }
        let mapping = match self.mapping.get() {
            Some(mapping) => mapping,
            None => {
                let mapping = MappedFile::read_only_populated(self.file.as_fd(), self.length)
                    .map_err(|error| Error::Kernel("mmap", error))?;
                self.mapping.get_or_init(|| mapping)
            }
        };
        let start = mapping.start().as_ptr();
        // SAFETY: the range is mapped as long as `self` lives. The file is sealed, so no process
        // writes to it or makes it shorter.
        Ok(unsafe { std::slice::from_raw_parts(start, self.length) })
    }
}

/// Checks that no process can change the contents of a file.
fn check_seals(file: BorrowedFd<'_>) -> Result<(), RefusedMemory> {
    match millrace_sys::has_sealed_contents(file) {
        Ok(true) => Ok(()),
        Ok(false) => Err(RefusedMemory::Unsealed),
        Err(_) => Err(RefusedMemory::OtherFile),
    }
}

/// The unit of charges.
const PAGE_BYTES: u64 = 4096;
/// The least charge for a file, because a process has a limited number of descriptors.
const FILE_CHARGE_MIN: u64 = 16 * PAGE_BYTES;

/// The reason why a descriptor of another process was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusedMemory {
    /// It is no memory file that can be sealed.
    OtherFile,
    /// A process may still change the contents.
    Unsealed,
    /// The file has no memory for the page at this offset.
    Hole {
        /// In bytes.
        offset: u64,
    },
    /// It is shorter than it has to be.
    TooShort {
        /// The length in bytes.
        length: u64,
        /// The least length in bytes.
        expected: u64,
    },
    /// It takes more memory than is left of the sender's account.
    TooLong {
        /// The memory of the file in bytes.
        memory: u64,
        /// The bytes that the account has left.
        left: u64,
    },
    /// The kernel refused to examine it.
    Kernel(Errno),
}

impl fmt::Display for RefusedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherFile => f.write_str("a descriptor that is no memory file (memfd_create(2))"),
            Self::Unsealed => f.write_str(
                "a memory file that is not sealed (expected: F_SEAL_SHRINK, F_SEAL_GROW, and \
                 F_SEAL_WRITE, or F_SEAL_FUTURE_WRITE for a pool that was joined)",
            ),
            Self::Hole { offset } => write!(f, "a memory file with a hole at byte {offset}"),
            Self::TooShort { length, expected } => {
                write!(f, "a memory file of {length} bytes (expected: at least {expected})")
            }
            Self::TooLong { memory, left } => {
                write!(f, "a memory file that takes {memory} bytes (expected: at most {left})")
            }
            Self::Kernel(error) => write!(f, "a memory file that cannot be examined: {error}"),
        }
    }
}

impl std::error::Error for RefusedMemory {}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::os::unix::net::UnixStream;

    use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

    use super::*;

    const ACCOUNT_BYTES: u64 = 1 << 18;

    fn account() -> Account {
        Account::new(ACCOUNT_BYTES)
    }

    fn memory_file(bytes: u64) -> OwnedFd {
        millrace_sys::create_memory_file("test", bytes).unwrap()
    }

    fn refused(file: OwnedFd) -> RefusedMemory {
        let account = account();
        let refused = SealedMemory::accept(file, &account).unwrap_err();
        assert_eq!(account.held(), 0, "nothing is charged");
        refused
    }

    /// Passes a descriptor as one process passes it to another.
    fn passed(file: BorrowedFd<'_>) -> OwnedFd {
        let (here, there) = UnixStream::pair().unwrap();
        millrace_sys::send_with_descriptors(here.as_fd(), b"f", &[file]).unwrap();
        let mut files = Vec::new();
        millrace_sys::receive_with_descriptors(there.as_fd(), &mut [0], &mut files).unwrap();
        files.pop().unwrap()
    }

    #[test]
    fn sealed_memory_is_read_where_it_was_written() {
        let mut memory = UnsealedMemory::new(10_000).unwrap();
        assert_eq!(memory.write(b"first "), 6);
        memory.unfilled()[..6].copy_from_slice(b"second");
        memory.advance(6);
        let sent = memory.seal().unwrap();
        let account = account();
        let received = SealedMemory::accept(passed(sent.file()), &account).unwrap();
        drop(sent);
        assert_eq!((received.bytes().unwrap(), received.len()), (&b"first second"[..], 12));
        assert_eq!(account.held(), FILE_CHARGE_MIN);
        drop(received);
        assert_eq!(account.held(), 0);
    }

    #[test]
    fn an_empty_file_is_accepted() {
        let empty = UnsealedMemory::new(1).unwrap().seal().unwrap();
        let received = SealedMemory::accept(passed(empty.file()), &account()).unwrap();
        assert!(received.is_empty() && received.bytes().unwrap().is_empty());
    }

    #[test]
    fn writing_takes_no_more_than_there_is_room_for() {
        let mut memory = UnsealedMemory::new(4).unwrap();
        assert_eq!((memory.write(b"abc"), memory.write(b"def"), memory.write(b"g")), (3, 1, 0));
        assert_eq!(memory.seal().unwrap().bytes().unwrap(), b"abcd");
    }

    #[test]
    fn a_producer_cannot_write_later() {
        let file = memory_file(4096);
        let kept = File::from(file.try_clone().unwrap());
        kept.write_all_at(&[7; 4096], 0).unwrap();
        let mapping = MappedFile::writable(file.as_fd(), 4096).unwrap();
        assert_eq!(
            millrace_sys::seal_contents(file.as_fd()),
            Err(Errno::BUSY),
            "a kept mapping prevents the seals"
        );
        assert_eq!(refused(passed(file.as_fd())), RefusedMemory::Unsealed);
        drop(mapping);
        millrace_sys::seal_contents(file.as_fd()).unwrap();
        let received = SealedMemory::accept(passed(file.as_fd()), &account()).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let reopened = File::options().write(true).open(path).unwrap();
        for writer in [&kept, &reopened] {
            assert!(writer.write_all_at(b"8", 0).is_err());
            assert!(writer.set_len(1).is_err() && writer.set_len(10_000).is_err());
        }
        assert!(MappedFile::writable(file.as_fd(), 4096).is_err());
        assert_eq!(received.bytes().unwrap(), [7; 4096]);
    }

    #[test]
    fn other_descriptors_are_refused() {
        let (socket, _peer) = UnixStream::pair().unwrap();
        let mut on_disk = tempfile();
        on_disk.write_all(b"bytes").unwrap();
        for other in [
            OwnedFd::from(socket),
            File::open("/").unwrap().into(),
            File::open("/dev/zero").unwrap().into(),
            on_disk.into(),
        ] {
            assert_eq!(refused(other), RefusedMemory::OtherFile);
        }
        assert_eq!(refused(memory_file(10)), RefusedMemory::Unsealed);
    }

    fn tempfile() -> File {
        let path = std::env::temp_dir().join(format!("iolite-sealed-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    #[test]
    fn a_sparse_or_long_file_is_refused() {
        let sparse = memory_file(ACCOUNT_BYTES);
        let writer = File::from(sparse.try_clone().unwrap());
        writer.write_all_at(&[1; 8192], 0).unwrap();
        millrace_sys::seal_contents(sparse.as_fd()).unwrap();
        assert_eq!(refused(sparse), RefusedMemory::Hole { offset: 8192 });
        let long = memory_file(ACCOUNT_BYTES + 1);
        millrace_sys::seal_contents(long.as_fd()).unwrap();
        let memory = ACCOUNT_BYTES + PAGE_BYTES;
        assert_eq!(refused(long), RefusedMemory::TooLong { memory, left: ACCOUNT_BYTES });
    }

    #[test]
    fn reserved_huge_pages_are_refused() {
        let flags = MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING;
        match memfd_create("test", flags) {
            Ok(huge) => {
                ftruncate(&huge, 2 << 20).unwrap();
                millrace_sys::seal_contents(huge.as_fd()).unwrap();
                assert_eq!(refused(huge), RefusedMemory::OtherFile);
            }
            Err(error) => println!("skip: the kernel has no reserved huge pages: {error}"),
        }
    }

    #[test]
    fn a_descriptor_for_writing_alone_can_be_read() {
        let mut memory = UnsealedMemory::new(4).unwrap();
        memory.write(b"text");
        let sent = memory.seal().unwrap();
        let path = format!("/proc/self/fd/{}", sent.file().as_raw_fd());
        let for_writing = File::options().write(true).open(path).unwrap();
        let received = SealedMemory::accept(for_writing.into(), &account()).unwrap();
        assert_eq!(received.bytes().unwrap(), b"text");
    }

    #[test]
    fn memory_behind_the_end_is_charged() {
        let file = memory_file(4096);
        File::from(file.try_clone().unwrap()).write_all_at(&[1; 4096], 0).unwrap();
        fallocate(&file, FallocateFlags::KEEP_SIZE, 4096, ACCOUNT_BYTES).unwrap();
        millrace_sys::seal_contents(file.as_fd()).unwrap();
        let memory = ACCOUNT_BYTES + 4096;
        assert_eq!(refused(file), RefusedMemory::TooLong { memory, left: ACCOUNT_BYTES });
    }

    #[test]
    fn a_sender_has_one_account_for_all_its_files() {
        let mut memory = UnsealedMemory::new(ACCOUNT_BYTES as usize).unwrap();
        memory.write(&vec![1; ACCOUNT_BYTES as usize - 1]);
        let (sent, account) = (memory.seal().unwrap(), account());
        let first = SealedMemory::accept(passed(sent.file()), &account).unwrap();
        assert_eq!(
            SealedMemory::accept(passed(sent.file()), &account).unwrap_err(),
            RefusedMemory::TooLong { memory: ACCOUNT_BYTES, left: 0 }
        );
        drop(first);
        assert!(SealedMemory::accept(passed(sent.file()), &account).is_ok());
    }
}
