//! A directory of the file system as a [`Volume`].

use std::fmt;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_sys::{Errno, OpenMode};

use super::directory_io::{DirectoryIo, FileIo, IoResult, ensure_removed, read_short, write_all};

/// A directory that is this process's alone, as long as this lives: everything in it is found from
/// its descriptor, so it does not matter if somebody renames what leads to it.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    directory: OwnedFd,
    /// Locked; the kernel unlocks it when the process ends, however it does.
    _lock: OwnedFd,
}

/// Why a directory is not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectoryError {
    /// The last part of its path is a symbolic link that is not root's, or no directory.
    NotADirectory,
    /// It belongs to another user: its number, and ours.
    Owner(u32, u32),
    /// Others than its owner may look into it: its mode.
    Open(u32),
    /// Another process uses it.
    Locked,
    /// The kernel refuses: the call, and why.
    Kernel(&'static str, Errno),
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotADirectory => {
                f.write_str("it is a symbolic link, and not root's, or no directory")
            }
            Self::Owner(owner, own) => {
                write!(f, "it belongs to user {owner}, and this process is user {own}")
            }
            Self::Open(mode) => {
                write!(f, "others may look into it: its mode is {mode:o} and must be 700")
            }
            Self::Locked => f.write_str("another process uses it"),
            Self::Kernel(call, error) => write!(f, "{call}: {error}"),
        }
    }
}

impl std::error::Error for DirectoryError {}

/// The file that is locked.
const LOCK: &str = "lock";
/// A file on its way to replace another.
const NEW: &str = "new";

impl Directory {
    /// Opens a directory and locks it; makes it, with the mode 0700, where it is missing. Nothing
    /// in it is read yet.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        let kernel = |call| move |error| DirectoryError::Kernel(call, error);
        let own = millrace_sys::effective_user();
        millrace_sys::create_directory(path).map_err(kernel("mkdir"))?;
        let directory = millrace_sys::open_directory(path).map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR => DirectoryError::NotADirectory,
            // Most likely for being somebody else's.
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

    /// What a short file of a directory says that somebody else may have locked; `None` where it
    /// cannot be read. What is done with it must not matter if it is wrong.
    pub(super) fn peek(path: &Path, name: &str, bytes_max: usize) -> Option<Vec<u8>> {
        let directory = millrace_sys::open_directory(path).ok()?;
        let file = millrace_sys::open_file(directory.as_fd(), name, OpenMode::Existing).ok()?;
        let status = millrace_sys::file_status(file.as_fd()).ok()?;
        if !status.is_file {
            return None;
        }
        read_short(&DirectoryFile(file), status.bytes, bytes_max)
    }

    /// Where it was when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open_file(&self, name: &str, how: OpenMode) -> IoResult<DirectoryFile> {
        let file = millrace_sys::open_file(self.directory.as_fd(), name, how)?;
        let status = millrace_sys::file_status(file.as_fd())?;
        // A directory or a pipe of that name is none of ours.
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
    fn only_a_directory_of_ones_own_is_used() {
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
            // It is followed, and what is found there is not as it has to be.
            assert_eq!(Directory::open(&link).unwrap_err(), DirectoryError::Open(0o750));
            lchown(&link, Some(12345), None).unwrap();
        }
        assert_eq!(Directory::open(&link).unwrap_err(), DirectoryError::NotADirectory);
        std::fs::remove_dir_all(base).unwrap();
    }
}
