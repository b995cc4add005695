//! Properties of descriptors that another process has passed on.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;

use crate::{Result, last_error};

/// The operations for which a descriptor was opened (fcntl(2), F_GETFL).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileAccess {
    /// Its bytes can be read.
    pub reads: bool,
    /// Bytes can be written.
    pub writes: bool,
    /// It never waits (O_NONBLOCK).
    pub is_nonblocking: bool,
}

/// Returns the operations for which a descriptor was opened; none for one that only names a file
/// (O_PATH). The call involves no file system, so it never waits.
///
/// # Errors
/// EBADF cannot happen.
pub fn file_access(file: BorrowedFd<'_>) -> Result<FileAccess> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    let mode = flags & OFlags::RWMODE;
    let is_open = !flags.contains(OFlags::PATH);
    let reads = is_open && (mode == OFlags::RDONLY || mode == OFlags::RDWR);
    let writes = is_open && (mode == OFlags::WRONLY || mode == OFlags::RDWR);
    let is_nonblocking = flags.contains(OFlags::NONBLOCK);
    Ok(FileAccess { reads, writes, is_nonblocking })
}

/// Returns the type of the file system that has a file (statfs(2), `f_type`).
///
/// # Errors
/// Those of fstatfs(2).
pub fn file_system(file: BorrowedFd<'_>) -> Result<u64> {
    // The type is an int whose sign is extended.
    rustix::fs::fstatfs(file).map(|status| u64::from(status.f_type as u32))
}

/// Waits until the write(2) calls that are copying bytes to a regular file now have returned. The
/// kernel sets the times of a file before it copies the bytes.
///
/// lseek(2) with SEEK_HOLE takes the lock of the inode on ext4 and tmpfs; behind the end it fails,
/// and does not move the position. On XFS read(2) takes that lock itself. Writes are not waited for
/// on Btrfs, which checks the end before it takes the lock, and if they are direct (O_DIRECT), as
/// these may share the lock.
pub fn await_writers(file: BorrowedFd<'_>) {
    // ENXIO: no file has a byte there.
    let _ = rustix::fs::seek(file, SeekFrom::Hole(i64::MAX.unsigned_abs()));
}

/// Ignores SIGIO, which the kernel sends to the holder of a lease. It would end the process.
pub fn ignore_lease_signal() {
    // SAFETY: SIG_IGN runs no code, and SIGIO may be ignored.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
}

/// Returns whether a file of this process is open or mapped through any other open file
/// description: in this process, in another one, or in a message on its way. `file` is the file of
/// memfd_create(2), opened again for reading only ([`reopen_to_read`](crate::reopen_to_read)). Its
/// first descriptor does not count; nor does a page in a pipe or a socket.
///
/// The kernel grants a lease for writing only to the sole opener (fcntl(2), F_SETLEASE). It is
/// given back at once. A process that opens the file meanwhile waits, and this process gets SIGIO:
/// see [`ignore_lease_signal`].
///
/// # Errors
/// EACCES if the file belongs to another user; EINVAL if its file system has no leases.
pub fn has_other_openers(file: BorrowedFd<'_>) -> Result<bool> {
    // SAFETY: the call takes and returns only numbers.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) } {
        0 => {}
        _ => {
            return match last_error() {
                Errno::AGAIN => Ok(true),
                error => Err(error),
            };
        }
    }
    // SAFETY: as above.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) } {
        0 => Ok(false),
        _ => Err(last_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::{MappedFile, create_memory_file, open_reference, pipe, reopen_to_read};

    #[test]
    fn the_access_of_a_descriptor_is_that_of_open() {
        let path = std::env::temp_dir().join(format!("millrace-access-{}", std::process::id()));
        let write_only = File::create(&path).unwrap();
        let read_only = File::open(&path).unwrap();
        let both = File::options().read(true).write(true).open(&path).unwrap();
        let reference = open_reference(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let access = |file: BorrowedFd<'_>| {
            let FileAccess { reads, writes, .. } = file_access(file).unwrap();
            (reads, writes)
        };
        assert_eq!(access(write_only.as_fd()), (false, true));
        assert_eq!(access(read_only.as_fd()), (true, false));
        assert_eq!(access(both.as_fd()), (true, true));
        assert_eq!(access(reference.as_fd()), (false, false));
        let (pipe_end, ..) = pipe(4096).unwrap();
        assert_eq!(access(pipe_end.as_fd()), (true, false));
    }

    #[test]
    fn a_file_system_has_a_type() {
        assert_eq!(file_system(File::open("/proc/self/stat").unwrap().as_fd()), Ok(0x9fa0));
        let memory = create_memory_file("test", 1).unwrap();
        assert_eq!(file_system(memory.as_fd()), Ok(0x0102_1994));
    }

    fn has_others(file: &OwnedFd) -> bool {
        has_other_openers(file.as_fd()).unwrap()
    }

    /// Waits for the children of other tests, which have a copy of each descriptor until exec(2).
    fn wait_for_sole_opener(file: &OwnedFd) {
        while has_others(file) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn every_other_opener_counts() {
        let first = create_memory_file("test", 4096).unwrap();
        let file = reopen_to_read(first.as_fd()).unwrap();
        drop(first);
        wait_for_sole_opener(&file);
        let _own_mapping = MappedFile::read_only_shared(file.as_fd(), 4096).unwrap();
        let _duplicate = file.try_clone().unwrap();
        // These share the open file description.
        wait_for_sole_opener(&file);
        let other = reopen_to_read(file.as_fd()).unwrap();
        assert!(has_others(&file), "another descriptor");
        let mapping = MappedFile::read_only_shared(other.as_fd(), 4096).unwrap();
        drop(other);
        assert!(has_others(&file), "its mapping");
        drop(mapping);
        wait_for_sole_opener(&file);

        let (here, there) = UnixStream::pair().unwrap();
        let other = reopen_to_read(file.as_fd()).unwrap();
        crate::send_with_descriptors(here.as_fd(), b"f", &[other.as_fd()]).unwrap();
        drop(other);
        assert!(has_others(&file), "a message on its way");
        drop((here, there));
        wait_for_sole_opener(&file);
    }
}
