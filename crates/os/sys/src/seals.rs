//! Seals of memory files: changes that the kernel refuses from then on, whatever descriptor or
//! mapping a process has (fcntl(2), F_ADD_SEALS).

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, SealFlags, SeekFrom};
use rustix::io::Errno;

use crate::Result;

/// Seals a memory file permanently: no process can write to it, make it shorter or longer, or add a
/// seal, not even the owner, or the holder of a descriptor that was opened for writing.
///
/// # Errors
/// EBUSY while a mapping of the file exists that was made from a descriptor open for writing, even
/// a read-only one, or while a pipe or a socket refers to a page of it, for which the call waits up
/// to 0.2 s; EINVAL if it is no memory file; EPERM if its seals are sealed.
pub fn seal_contents(file: BorrowedFd<'_>) -> Result<()> {
    rustix::fs::fcntl_add_seals(file, FINAL)
}

/// Returns whether the contents of a file are sealed permanently, as by [`seal_contents`]: no
/// holder of a descriptor or mapping can change them.
///
/// # Errors
/// EINVAL if the file is no memory file, or one in reserved huge pages (MFD_HUGETLB), and if it is
/// none that can be sealed: one that was created without that permission, or a file of a folder in
/// memory. EBADF for a descriptor that only names a file (O_PATH).
pub fn has_sealed_contents(file: BorrowedFd<'_>) -> Result<bool> {
    Ok(seals(file)?.contains(FINAL.difference(SealFlags::SEAL)))
}

/// Returns the seals of a memory file in memory that is not reserved.
fn seals(file: BorrowedFd<'_>) -> Result<SealFlags> {
    // The first call involves no file system: a process may implement one (FUSE), and be slow.
    let seals = rustix::fs::fcntl_get_seals(file)?;
    if rustix::fs::fstatfs(file)?.f_type != TMPFS_MAGIC {
        return Err(Errno::INVAL);
    }
    match seals.difference(SealFlags::EXEC) {
        // Files of tmpfs(5) have this seal from the beginning.
        SealFlags::SEAL => Err(Errno::INVAL),
        seals => Ok(seals),
    }
}

/// Seals a memory file so that only mappings that exist already can write to it, and no process can
/// make it shorter or longer. Its writer maps it first, and then passes it to readers.
///
/// # Errors
/// EINVAL if it is no memory file; EPERM if its seals are sealed.
pub fn seal_for_readers(file: BorrowedFd<'_>) -> Result<()> {
    rustix::fs::fcntl_add_seals(file, FOR_READERS)
}

/// Returns whether a memory file keeps its size, and whether no mapping for writing can be added,
/// as by [`seal_for_readers`].
///
/// # Errors
/// As [`has_sealed_contents`].
pub fn is_sealed_for_readers(file: BorrowedFd<'_>) -> Result<bool> {
    Ok(seals(file)?.contains(FOR_READERS.difference(SealFlags::SEAL)))
}

const FOR_READERS: SealFlags =
    SealFlags::FUTURE_WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// The type of the file system in which memory files are (statfs(2)).
const TMPFS_MAGIC: i64 = 0x0102_1994;

const FINAL: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// Opens a memory file again, for reading only (proc_pid_fd(5)). Another process may share a
/// received descriptor, and can lock its offset or have opened it for writing alone; the new one
/// belongs to this process.
///
/// # Errors
/// EACCES if the owner has taken the permission away; EAGAIN if another process holds a lease;
/// ENOENT if proc(5) is not mounted.
pub fn reopen_to_read(file: BorrowedFd<'_>) -> Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::io::retry_on_intr(|| rustix::fs::open(&path, flags, Mode::empty()))
}

/// Returns the length of a file, and the memory that it occupies, in bytes. The memory may be more:
/// fallocate(2) adds pages behind the end.
///
/// # Errors
/// Those of fstat(2).
pub fn memory_file_size(file: BorrowedFd<'_>) -> Result<(u64, u64)> {
    let status = rustix::fs::fstat(file)?;
    Ok((status.st_size.unsigned_abs(), status.st_blocks.unsigned_abs().saturating_mul(512)))
}

/// Returns the offset of the first hole before `length`, the length of the file (lseek(2),
/// SEEK_HOLE). A page that was reserved but never written is a hole. This moves the file offset,
/// which the descriptor shares with its duplicates, and takes 10 us for 1 MB in pages of 4 KB.
///
/// # Errors
/// Those of lseek(2).
pub fn first_hole(file: BorrowedFd<'_>, length: u64) -> Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Hole(0)) {
        Ok(hole) => Ok(Some(hole).filter(|hole| *hole < length)),
        // There is no byte.
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::fs::{FallocateFlags, fallocate, ftruncate, memfd_create};

    use super::*;
    use crate::{HUGE_PAGE_BYTES, MappedFile, MappedRegion, create_memory_file};

    fn file(bytes: &[u8]) -> OwnedFd {
        let file = create_memory_file("test", bytes.len() as u64).unwrap();
        assert_eq!(rustix::io::pwrite(&file, bytes, 0).unwrap(), bytes.len());
        file
    }

    #[test]
    fn a_writer_keeps_its_mapping_alone() {
        let file = file(&[1; 4096]);
        let writer = MappedFile::writable(file.as_fd(), 4096).unwrap();
        assert_eq!(is_sealed_for_readers(file.as_fd()), Ok(false));
        seal_for_readers(file.as_fd()).unwrap();
        assert_eq!(is_sealed_for_readers(file.as_fd()), Ok(true));
        assert_eq!(has_sealed_contents(file.as_fd()), Ok(false));
        assert!(MappedFile::writable(file.as_fd(), 4096).is_err());
        assert!(rustix::io::pwrite(&file, b"x", 0).is_err() && ftruncate(&file, 1).is_err());
        let reader = MappedFile::read_only_shared(file.as_fd(), 4096).unwrap();
        // SAFETY: it is mapped for writing, and nothing else refers to it.
        unsafe { writer.start().write_volatile(2) };
        // SAFETY: it is mapped, and nothing writes to it now.
        assert_eq!(unsafe { reader.start().read_volatile() }, 2);
    }

    #[test]
    fn sealed_contents_do_not_change() {
        let file = file(&[7; 8192]);
        assert_eq!(has_sealed_contents(file.as_fd()), Ok(false));
        seal_contents(file.as_fd()).unwrap();
        assert_eq!(has_sealed_contents(file.as_fd()), Ok(true));
        assert_eq!(rustix::io::pwrite(&file, b"8", 0), Err(Errno::PERM));
        assert_eq!(ftruncate(&file, 1), Err(Errno::PERM));
        assert_eq!(ftruncate(&file, 10_000), Err(Errno::PERM));
        let punched = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fallocate(&file, punched, 0, 4096), Err(Errno::PERM));
        assert_eq!(seal_contents(file.as_fd()), Err(Errno::PERM), "the seals are sealed");
    }

    #[test]
    fn a_mapping_delays_the_seals() {
        let file = create_memory_file("test", HUGE_PAGE_BYTES as u64).unwrap();
        let mut region = MappedRegion::reserve(HUGE_PAGE_BYTES).unwrap();
        region.map(0, file.as_fd(), HUGE_PAGE_BYTES).unwrap();
        assert_eq!(seal_contents(file.as_fd()), Err(Errno::BUSY));
        drop(region);
        seal_contents(file.as_fd()).unwrap();
    }

    #[test]
    fn other_files_have_no_sealed_contents() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let folder = std::fs::File::open("/").unwrap();
        let unsealable = memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for fd in [one.as_fd(), folder.as_fd(), unsealable.as_fd()] {
            assert_eq!(has_sealed_contents(fd), Err(Errno::INVAL));
        }
    }

    #[test]
    fn holes_are_found_wherever_they_are() {
        let mib = 1 << 20;
        assert_eq!(first_hole(file(&[1; 5000]).as_fd(), 5000), Ok(None));
        assert_eq!(first_hole(file(&[]).as_fd(), 0), Ok(None));
        let sparse = file(&[1; 8192]);
        ftruncate(&sparse, mib).unwrap();
        fallocate(&sparse, FallocateFlags::KEEP_SIZE, mib, mib).unwrap();
        assert_eq!(first_hole(sparse.as_fd(), mib), Ok(Some(8192)));
        assert_eq!(memory_file_size(sparse.as_fd()), Ok((mib, mib + 8192)));
        let reserved = create_memory_file("test", mib).unwrap();
        fallocate(&reserved, FallocateFlags::empty(), 0, mib).unwrap();
        assert_eq!(first_hole(reserved.as_fd(), mib), Ok(Some(0)));
    }
}
