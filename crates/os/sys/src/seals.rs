//! Seals of memory files: changes that the kernel refuses from then on, whatever descriptor or
//! mapping a process has (fcntl(2), F_ADD_SEALS).

use std::os::fd::BorrowedFd;

use rustix::fs::{SealFlags, SeekFrom};
use rustix::io::Errno;

use crate::Result;

/// Seals a memory file permanently: no process can write to it, make it shorter or longer, or add a
/// seal, not even the owner, or the holder of a descriptor that was opened for writing.
///
/// # Errors
/// EBUSY while a mapping of the file exists that was made from a descriptor open for writing, even
/// a read-only one, or while a pipe or a socket refers to a page of it; EINVAL if it is no memory
/// file; EPERM if its seals are sealed.
pub fn seal_contents(file: BorrowedFd<'_>) -> Result<()> {
    rustix::fs::fcntl_add_seals(file, FINAL)
}

/// Returns whether the contents of a file are sealed permanently, as by [`seal_contents`]: no
/// holder of a descriptor or mapping can change them.
///
/// # Errors
/// EINVAL if the file is no memory file, and if it is none that can be sealed: one that was created
/// without that permission, or a file of a folder in memory.
pub fn has_sealed_contents(file: BorrowedFd<'_>) -> Result<bool> {
    let seals = rustix::fs::fcntl_get_seals(file)?;
    match seals.difference(SealFlags::EXEC) {
        // Files of tmpfs(5) have this seal from the beginning.
        SealFlags::SEAL => Err(Errno::INVAL),
        seals => Ok(seals.contains(FINAL.difference(SealFlags::SEAL))),
    }
}

const FINAL: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// Returns the length of a file in bytes, and the offset of its first hole; the length if it has
/// none (lseek(2), SEEK_HOLE). A page that was reserved but never written is a hole. This moves the
/// file offset, which the descriptor shares with its duplicates.
///
/// # Errors
/// Those of fstat(2) and lseek(2).
pub fn first_hole(file: BorrowedFd<'_>) -> Result<(u64, u64)> {
    let length = rustix::fs::fstat(file)?.st_size.unsigned_abs();
    match rustix::fs::seek(file, SeekFrom::Hole(0)) {
        Ok(hole) => Ok((length, hole)),
        // There is no byte.
        Err(Errno::NXIO) => Ok((length, length)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::fs::{FallocateFlags, fallocate, ftruncate, memfd_create};

    use super::*;
    use crate::{HUGE_PAGE_BYTES, MappedRegion, create_memory_file};

    fn file(bytes: &[u8]) -> OwnedFd {
        let file = create_memory_file("test", bytes.len() as u64).unwrap();
        assert_eq!(rustix::io::pwrite(&file, bytes, 0).unwrap(), bytes.len());
        file
    }

    #[test]
    fn nobody_changes_sealed_contents() {
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
    fn what_is_no_memory_file_is_refused() {
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
        assert_eq!(first_hole(file(&[1; 5000]).as_fd()), Ok((5000, 5000)));
        assert_eq!(first_hole(file(&[]).as_fd()), Ok((0, 0)));
        let sparse = file(&[1; 8192]);
        ftruncate(&sparse, mib).unwrap();
        // Pages behind the end, which `st_blocks` counts.
        fallocate(&sparse, FallocateFlags::KEEP_SIZE, mib, mib).unwrap();
        assert_eq!(first_hole(sparse.as_fd()), Ok((mib, 8192)));
        let reserved = create_memory_file("test", mib).unwrap();
        fallocate(&reserved, FallocateFlags::empty(), 0, mib).unwrap();
        assert_eq!(first_hole(reserved.as_fd()), Ok((mib, 0)));
    }
}
