//! Files of an open directory. They are found by name relative to its descriptor. A name that is a
//! symbolic link is never followed.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::Result;

/// The most parts that one [`write_parts_at`] takes (IOV_MAX).
pub const WRITE_PARTS_MAX: usize = 1024;

/// How to open a file of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// The file has to exist.
    Existing,
    /// The file is created with the mode 0600 and must not exist.
    New,
    /// The file is created with the mode 0600 if it does not exist.
    Any,
}

/// The type, owner, permissions and size of a file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileStatus {
    /// Whether it is a regular file.
    pub is_file: bool,
    /// The owner's user id.
    pub owner: u32,
    /// The permission bits, as in chmod(1).
    pub mode: u32,
    /// The size of a regular file, in bytes.
    pub bytes: u64,
}

/// Creates a directory with the mode 0700, which common umasks do not reduce. Returns `false` if
/// the name exists already.
///
/// # Errors
/// Those of mkdir(2) other than EEXIST.
pub fn create_directory(path: &Path) -> Result<bool> {
    match rustix::fs::mkdirat(CWD, path, Mode::RWXU) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens a directory; closed on exec.
///
/// # Errors
/// ELOOP or ENOTDIR if the last component of `path` is not a directory, or is a symbolic link that
/// root does not own; those of open(2).
pub fn open_directory(path: &Path) -> Result<OwnedFd> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat(CWD, path, how | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::LOOP | Errno::NOTDIR) if is_link_of_root(path) => {
            rustix::fs::openat(CWD, path, how, Mode::empty())
        }
        opened => opened,
    }
}

/// Returns whether `path` is a symbolic link owned by root. Only root can create such a link.
/// Another user can rename the link only within the directories of that user, who could replace
/// everything there anyway.
fn is_link_of_root(path: &Path) -> bool {
    let found = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|it| FileType::from_raw_mode(it.st_mode) == FileType::Symlink && it.st_uid == 0)
}

/// Opens a file of a directory for reading and writing; closed on exec.
///
/// # Errors
/// ELOOP if it is a symbolic link; EEXIST, ENOENT; those of open(2).
pub fn open_file(directory: BorrowedFd<'_>, name: &str, how: OpenMode) -> Result<OwnedFd> {
    let made = match how {
        OpenMode::Existing => OFlags::empty(),
        OpenMode::New => OFlags::CREATE | OFlags::EXCL,
        OpenMode::Any => OFlags::CREATE,
    };
    // Non-blocking, so that a named pipe in the directory does not block the open.
    let how = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | made;
    rustix::io::retry_on_intr(|| rustix::fs::openat(directory, name, how, Mode::RUSR | Mode::WUSR))
}

/// Creates a file without a name in a directory, for reading and writing; closed on exec. It is
/// gone when its last descriptor is closed. A file system without such files (O_TMPFILE) gets one
/// with the name `name`, which is removed at once.
///
/// # Errors
/// Those of open(2) and unlink(2): ENOSPC, EDQUOT, EMFILE.
pub fn create_unnamed_file(directory: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
    // With O_EXCL, no link can give it a name.
    let how = OFlags::RDWR | OFlags::TMPFILE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::io::retry_on_intr(|| rustix::fs::openat(directory, ".", how, mode)) {
        // EISDIR: the kernel or the file system does not know the flag.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => create_and_remove(directory, name),
        created => created,
    }
}

fn create_and_remove(directory: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
    let file = open_file(directory, name, OpenMode::New)?;
    match remove_file(directory, name) {
        // Another process has removed it as a leftover.
        Ok(()) | Err(Errno::NOENT) => Ok(file),
        Err(error) => Err(error),
    }
}

/// Returns the status of an open file or directory.
///
/// # Errors
/// Those of fstat(2).
pub fn file_status(file: BorrowedFd<'_>) -> Result<FileStatus> {
    let status = rustix::fs::fstat(file)?;
    Ok(FileStatus {
        is_file: FileType::from_raw_mode(status.st_mode) == FileType::RegularFile,
        owner: status.st_uid,
        mode: status.st_mode & 0o7777,
        bytes: status.st_size as u64,
    })
}

/// Locks a file for this open file description (flock(2)), until it is closed. Returns `false` if
/// another one holds the lock.
///
/// # Errors
/// ENOLCK.
pub fn lock_file(file: BorrowedFd<'_>) -> Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the names in a directory that are valid UTF-8, without `.` and `..`, in any order.
///
/// # Errors
/// Those of getdents(2).
pub fn list_directory(directory: BorrowedFd<'_>) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        match entry.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(name) => names.push(name.to_owned()),
        }
    }
    Ok(names)
}

/// Reads from an offset of a file, and returns the number of bytes, which may be fewer than
/// requested.
///
/// # Errors
/// Those of pread(2).
pub fn read_at(file: BorrowedFd<'_>, bytes: &mut [u8], at: u64) -> Result<usize> {
    rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *bytes, at))
}

/// Writes up to [`WRITE_PARTS_MAX`] parts, one after the other, to an offset of a file. Returns the
/// number of bytes written, which may be fewer than given.
///
/// # Errors
/// Those of pwritev(2): ENOSPC, EIO, EDQUOT, EFBIG.
pub fn write_parts_at(file: BorrowedFd<'_>, parts: &[IoSlice<'_>], at: u64) -> Result<usize> {
    assert!(parts.len() <= WRITE_PARTS_MAX);
    rustix::io::retry_on_intr(|| rustix::io::pwritev(file, parts, at))
}

/// Truncates a file, or extends it with zeros.
///
/// # Errors
/// Those of ftruncate(2).
pub fn truncate_file(file: BorrowedFd<'_>, bytes: u64) -> Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::ftruncate(file, bytes))
}

/// Waits until a file's bytes, and the metadata needed to find them, are on the disk
/// (fdatasync(2)).
///
/// # Errors
/// EIO: some bytes may be lost, and no later call reports it.
pub fn sync_file(file: BorrowedFd<'_>) -> Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::fdatasync(file))
}

/// Waits until the names in a directory are on the disk (fsync(2)).
///
/// # Errors
/// Those of fsync(2).
pub fn sync_directory(directory: BorrowedFd<'_>) -> Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::fsync(directory))
}

/// Removes a file's name.
///
/// # Errors
/// Those of unlink(2).
pub fn remove_file(directory: BorrowedFd<'_>, name: &str) -> Result<()> {
    rustix::fs::unlinkat(directory, name, AtFlags::empty())
}

/// Renames a file. A file that already has the new name is replaced atomically.
///
/// # Errors
/// Those of rename(2).
pub fn rename_file(directory: BorrowedFd<'_>, from: &str, to: &str) -> Result<()> {
    rustix::fs::renameat(directory.as_fd(), from, directory.as_fd(), to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unnamed_file_is_in_no_directory() {
        let path = std::env::temp_dir().join(format!("millrace-unnamed-{}", std::process::id()));
        assert!(create_directory(&path).unwrap());
        let directory = open_directory(&path).unwrap();
        let directory = directory.as_fd();
        for create in [create_unnamed_file, create_and_remove] {
            let file = create(directory, "a").unwrap();
            assert_eq!(write_parts_at(file.as_fd(), &[IoSlice::new(b"one")], 0), Ok(3));
            let status = file_status(file.as_fd()).unwrap();
            assert!(status.is_file && (status.bytes, status.mode) == (3, 0o600), "{status:?}");
            assert!(list_directory(directory).unwrap().is_empty());
        }
        std::fs::remove_dir(path).unwrap();
    }

    #[test]
    fn files_live_in_their_directory() {
        let path = std::env::temp_dir().join(format!("millrace-directory-{}", std::process::id()));
        assert!(create_directory(&path).unwrap());
        assert!(!create_directory(&path).unwrap());
        let directory = open_directory(&path).unwrap();
        let directory = directory.as_fd();
        let status = file_status(directory).unwrap();
        assert!(!status.is_file && status.owner == crate::effective_user());
        assert_eq!(status.mode, 0o700);
        let file = open_file(directory, "a", OpenMode::New).unwrap();
        assert_eq!(open_file(directory, "a", OpenMode::New).unwrap_err(), Errno::EXIST);
        let parts = [IoSlice::new(b"one "), IoSlice::new(b"two")];
        assert_eq!(write_parts_at(file.as_fd(), &parts, 2), Ok(7));
        let mut read = [1; 20];
        assert_eq!(read_at(file.as_fd(), &mut read, 1), Ok(8));
        assert_eq!(&read[..8], b"\0one two");
        truncate_file(file.as_fd(), 5).unwrap();
        sync_file(file.as_fd()).unwrap();
        let status = file_status(file.as_fd()).unwrap();
        assert!(status.is_file && (status.bytes, status.mode) == (5, 0o600), "{status:?}");
        assert!(lock_file(file.as_fd()).unwrap());
        let again = open_file(directory, "a", OpenMode::Existing).unwrap();
        assert!(!lock_file(again.as_fd()).unwrap());
        rename_file(directory, "a", "b").unwrap();
        sync_directory(directory).unwrap();
        assert_eq!(list_directory(directory).unwrap(), ["b"]);
        std::os::unix::fs::symlink("b", path.join("link")).unwrap();
        assert_eq!(open_file(directory, "link", OpenMode::Any).unwrap_err(), Errno::LOOP);
        let link = std::env::temp_dir().join(format!("millrace-link-{}", std::process::id()));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        if crate::effective_user() == 0 {
            assert!(open_directory(&link).is_ok());
            std::os::unix::fs::lchown(&link, Some(12345), None).unwrap();
        }
        assert!(open_directory(&link).is_err());
        std::fs::remove_file(link).unwrap();
        remove_file(directory, "b").unwrap();
        remove_file(directory, "link").unwrap();
        std::fs::remove_dir(path).unwrap();
    }
}
