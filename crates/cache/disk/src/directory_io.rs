//! The file system as the disk tier uses it: a directory of its own, with files that grow at their
//! end.

use std::fmt::Debug;
use std::io::IoSlice;
use std::sync::Arc;

use millrace_sys::Errno;

/// A value, or the kernel's error number.
pub type IoResult<T> = Result<T, Errno>;

/// A directory. Changes are visible at once and survive the process. They survive a failure of the
/// machine once they are synced.
pub trait DirectoryIo: Send + Sync + Debug {
    /// Returns the names of its files, in any order.
    ///
    /// # Errors
    /// The error of the kernel.
    fn list(&self) -> IoResult<Vec<String>>;

    /// Creates a file for reading and writing.
    ///
    /// # Errors
    /// EEXIST, ENOSPC.
    fn create(&self, name: &str) -> IoResult<Arc<dyn FileIo>>;

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// ENOENT.
    fn open(&self, name: &str) -> IoResult<Arc<dyn FileIo>>;

    /// Removes a file's name. Processes that have it open can still read it.
    ///
    /// # Errors
    /// ENOENT.
    fn remove(&self, name: &str) -> IoResult<()>;

    /// Creates or replaces a file with these bytes atomically, and syncs it.
    ///
    /// # Errors
    /// ENOSPC; the old file is then still there.
    fn replace(&self, name: &str, bytes: &[u8]) -> IoResult<()>;

    /// Syncs created and removed names.
    ///
    /// # Errors
    /// EIO.
    fn sync(&self) -> IoResult<()>;
}

/// An open file of a [`DirectoryIo`].
pub trait FileIo: Send + Sync + Debug {
    /// Returns its size in bytes.
    ///
    /// # Errors
    /// EIO.
    fn bytes(&self) -> IoResult<u64>;

    /// Reads from an offset into `bytes`, and returns the number of bytes read. It may be less than
    /// requested, and is 0 at the end of the file.
    ///
    /// # Errors
    /// EIO.
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> IoResult<usize>;

    /// Writes parts one after the other, at most [`millrace_sys::WRITE_PARTS_MAX`]. May write fewer
    /// bytes, and returns their number.
    ///
    /// # Errors
    /// ENOSPC, EIO.
    fn write_at(&self, at: u64, parts: &[IoSlice<'_>]) -> IoResult<usize>;

    /// Truncates the file to a size in bytes.
    ///
    /// # Errors
    /// EIO.
    fn truncate(&self, bytes: u64) -> IoResult<()>;

    /// Syncs the written data.
    ///
    /// # Errors
    /// EIO: some of it may be lost.
    fn sync(&self) -> IoResult<()>;
}

/// Removes a file if it exists.
///
/// # Errors
/// Those of [`DirectoryIo::remove`], without ENOENT.
pub(super) fn ensure_removed(directory_io: &dyn DirectoryIo, name: &str) -> IoResult<()> {
    match directory_io.remove(name) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// Reads all of `bytes`. Returns `false` if the file ends before.
///
/// # Errors
/// Those of [`FileIo::read_at`].
pub(super) fn read_exactly(file: &dyn FileIo, at: u64, bytes: &mut [u8]) -> IoResult<bool> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(at + done as u64, &mut bytes[done..])? {
            0 => return Ok(false),
            count => done += count,
        }
    }
    Ok(true)
}

/// Reads a file of `bytes` bytes. `None` if it is longer than `bytes_max` or cannot be read.
pub(super) fn read_short(file: &dyn FileIo, bytes: u64, bytes_max: usize) -> Option<Vec<u8>> {
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= bytes_max)?;
    let mut read = vec![0; bytes];
    read_exactly(file, 0, &mut read).ok().filter(|is_whole| *is_whole)?;
    Some(read)
}

/// Writes all of the parts.
///
/// # Errors
/// Those of [`FileIo::write_at`]; some of the parts may have been written.
pub(super) fn write_all(file: &dyn FileIo, at: u64, parts: &[&[u8]]) -> IoResult<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, 0);
    let mut at = at;
    while !rest.is_empty() {
        let some = &rest[..rest.len().min(millrace_sys::WRITE_PARTS_MAX)];
        let count = file.write_at(at, some)?;
        if count == 0 {
            return Err(Errno::IO);
        }
        at += count as u64;
        IoSlice::advance_slices(&mut rest, count);
    }
    Ok(())
}
