//! A directory of the file system as a [`DirectoryIo`].

use std::fmt;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_sys::{Errno, OpenMode};

use super::directory_io::{DirectoryIo, FileIo, IoResult, ensure_removed, read_short, write_all};

/// A directory that only this process uses while this value lives. Its files are opened relative to
/// its descriptor, so renaming the path does not matter.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    directory: OwnedFd,
    /// The lock file, locked. The kernel releases the lock when the process ends, however it ends.
    _lock: OwnedFd,
}

/// Why a directory cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectoryError {
    /// It is not a directory, or the last part of its path is a symbolic link that root does not
    /// own.
    NotADirectory,
    /// The directory belongs to another user: the user ids of its owner and of this process.
    Owner(u32, u32),
    /// Other users may access the directory, which has this mode.
    Open(u32),
    /// Another process uses it.
    Locked,
    /// The kernel refused: the name of the call, and its error.
    Kernel(&'static str, Errno),
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotADirectory => {
                f.write_str("not a directory, or a symbolic link that root does not own")
            }
            Self::Owner(owner, own) => {
                write!(f, "owned by user {owner}, but this process is user {own}")
            }
            Self::Open(mode) => {
                write!(f, "accessible by other users: mode is {mode:o}, expected 700")
            }
            Self::Locked => f.write_str("in use by another process"),
            Self::Kernel(call, error) => write!(f, "{call}: {error}"),
        }
    }
}

impl std::error::Error for DirectoryError {}

/// The lock file.
const LOCK: &str = "lock";
/// The temporary file of [`DirectoryIo::replace`].
const NEW: &str = "new";

impl Directory {
    /// Opens and locks a directory. A missing one is created with mode 0700. Its contents are not
    /// read yet.
    ///
    /// # Errors
    /// The reason why the directory cannot be used.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        let kernel = |call| move |error| DirectoryError::Kernel(call, error);
        let own = millrace_sys::effective_user();
        millrace_sys::create_directory(path).map_err(kernel("mkdir"))?;
        let directory = millrace_sys::open_directory(path).map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR => DirectoryError::NotADirectory,
            // The directory probably belongs to another user.
            Errno::ACCESS => match std::fs::symlink_metadata(path) {
                Ok(found) if found.uid() != own => DirectoryError::Owner(found.uid(), own),
                _ => DirectoryError::Kernel("open", error),
            },
            error => DirectoryError::Kernel("open", error),
        })?;
        let status = millrace_sys::file_status(directory.as_fd()).map_err(kernel("fstat"))?;
        if status.owner != own {
            return Err(DirectoryError::Owner(status.owner, own));
        }
        if status.mode & 0o077 != 0 {
            return Err(DirectoryError::Open(status.mode));
        }
        let lock = millrace_sys::open_file(directory.as_fd(), LOCK, OpenMode::Any);
        let lock = lock.map_err(kernel("open"))?;
        if !millrace_sys::lock_file(lock.as_fd()).map_err(kernel("flock"))? {
            return Err(DirectoryError::Locked);
        }
        Ok(Self { path: path.into(), directory, _lock: lock })
    }

    /// Reads a short file of a directory that another process may have locked; `None` if it cannot
    /// be read. Owner and mode of the directory are not checked, and the file may be replaced at
    /// any time, so the result must be verified once the directory is opened.
    pub(super) fn peek(path: &Path, name: &str, bytes_max: usize) -> Option<Vec<u8>> {
        let directory = millrace_sys::open_directory(path).ok()?;
        let file = millrace_sys::open_file(directory.as_fd(), name, OpenMode::Existing).ok()?;
        let status = millrace_sys::file_status(file.as_fd()).ok()?;
        if !status.is_file {
            return None;
        }
        read_short(&DirectoryFile(file), status.bytes, bytes_max)
    }

    /// Returns the path with which the directory was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open_file(&self, name: &str, how: OpenMode) -> IoResult<DirectoryFile> {
        let file = millrace_sys::open_file(self.directory.as_fd(), name, how)?;
        let status = millrace_sys::file_status(file.as_fd())?;
        // A directory or pipe of that name is not ours.
        if status.is_file { Ok(DirectoryFile(file)) } else { Err(Errno::INVAL) }
    }
}

impl DirectoryIo for Directory {
    fn list(&self) -> IoResult<Vec<String>> {
        let mut names = millrace_sys::list_directory(self.directory.as_fd())?;
        names.retain(|name| name != LOCK && name != NEW);
        Ok(names)
    }

    fn create(&self, name: &str) -> IoResult<Arc<dyn FileIo>> {
        Ok(Arc::new(self.open_file(name, OpenMode::New)?))
    }

    fn open(&self, name: &str) -> IoResult<Arc<dyn FileIo>> {
        Ok(Arc::new(self.open_file(name, OpenMode::Existing)?))
    }

    fn remove(&self, name: &str) -> IoResult<()> {
        millrace_sys::remove_file(self.directory.as_fd(), name)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> IoResult<()> {
        ensure_removed(self, NEW)?;
        let file = self.open_file(NEW, OpenMode::New)?;
        write_all(&file, 0, &[bytes])?;
        file.sync()?;
        millrace_sys::rename_file(self.directory.as_fd(), NEW, name)?;
        self.sync()
    }

    fn sync(&self) -> IoResult<()> {
        millrace_sys::sync_directory(self.directory.as_fd())
    }
}

#[derive(Debug)]
struct DirectoryFile(OwnedFd);

impl FileIo for DirectoryFile {
    fn bytes(&self) -> IoResult<u64> {
        Ok(millrace_sys::file_status(self.0.as_fd())?.bytes)
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> IoResult<usize> {
        millrace_sys::read_at(self.0.as_fd(), bytes, at)
    }

    fn write_at(&self, at: u64, parts: &[IoSlice<'_>]) -> IoResult<usize> {
        millrace_sys::write_parts_at(self.0.as_fd(), parts, at)
    }

    fn truncate(&self, bytes: u64) -> IoResult<()> {
        millrace_sys::truncate_file(self.0.as_fd(), bytes)
    }

    fn sync(&self) -> IoResult<()> {
        millrace_sys::sync_file(self.0.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::*;

    #[test]
    fn only_a_private_directory_is_used() {
        let base = std::env::temp_dir().join(format!("millrace-volume-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let path = base.join("cache");
        let directory = Directory::open(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        assert_eq!(Directory::open(&path).unwrap_err(), DirectoryError::Locked);
        drop(directory);
        let directory = Directory::open(&path).unwrap();
        directory.replace("identity", b"one").unwrap();
        directory.replace("identity", b"two").unwrap();
        assert_eq!(directory.list().unwrap(), ["identity"]);
        let mut read = [0; 4];
        let file = directory.open("identity").unwrap();
        assert_eq!((file.bytes(), file.read_at(0, &mut read)), (Ok(3), Ok(3)));
        assert_eq!(&read, b"two\0");
        symlink("identity", path.join("link")).unwrap();
        std::fs::create_dir(path.join("folder")).unwrap();
        for name in ["link", "folder"] {
            assert!(directory.open(name).is_err(), "{name}");
        }
        drop(directory);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
        assert_eq!(Directory::open(&path).unwrap_err(), DirectoryError::Open(0o750));
        let refused = Directory::open(&base.join("cache/identity")).unwrap_err();
        assert_eq!(refused, DirectoryError::NotADirectory);
        let link = base.join("link");
        symlink(&path, &link).unwrap();
        if millrace_sys::effective_user() == 0 {
            // The link is followed, and its target has the wrong mode.
            assert_eq!(Directory::open(&link).unwrap_err(), DirectoryError::Open(0o750));
            lchown(&link, Some(12345), None).unwrap();
        }
        assert_eq!(Directory::open(&link).unwrap_err(), DirectoryError::NotADirectory);
        std::fs::remove_dir_all(base).unwrap();
    }
}
