//! What the disk tier asks of a file system: a directory of its own, and files that are written at
//! their end.

use std::fmt::Debug;
use std::io::IoSlice;
use std::sync::Arc;

use millrace_sys::Errno;

/// What a call gives: a value, or the kernel's error number.
pub type IoResult<T> = Result<T, Errno>;

/// A directory. What is changed in it is there for everybody at once, and survives the process;
/// it survives the machine when it was synced.
pub trait DirectoryIo: Send + Sync + Debug {
    /// The names of its files, in any order.
    ///
    /// # Errors
    /// As the kernel has them, here and below.
    fn list(&self) -> IoResult<Vec<String>>;

    /// Makes a file, which must not be there yet, for reading and writing.
    ///
    /// # Errors
    /// EEXIST, ENOSPC.
    fn create(&self, name: &str) -> IoResult<Arc<dyn FileIo>>;

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// ENOENT.
    fn open(&self, name: &str) -> IoResult<Arc<dyn FileIo>>;

    /// Takes a file's name away. Who has it open goes on reading it.
    ///
    /// # Errors
    /// ENOENT.
    fn remove(&self, name: &str) -> IoResult<()>;

    /// Puts a file with these bytes in the place of whatever has its name, all or nothing, and
    /// synced.
    ///
    /// # Errors
    /// ENOSPC; then what was there is still there.
    fn replace(&self, name: &str, bytes: &[u8]) -> IoResult<()>;

    /// Waits until names that were made or taken away are on the disk.
    ///
    /// # Errors
    /// EIO.
    fn sync(&self) -> IoResult<()>;
}

/// An open file of a [`Volume`].
pub trait FileIo: Send + Sync + Debug {
    /// Its bytes.
    ///
    /// # Errors
    /// EIO.
    fn bytes(&self) -> IoResult<u64>;

    /// Reads from a place: as many as there are, or fewer. 0 at its end.
    ///
    /// # Errors
    /// EIO.
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> IoResult<usize>;

    /// Writes parts behind each other, at most [`millrace_sys::WRITE_PARTS_MAX`]; may write fewer
    /// bytes than there are, and gives how many.
    ///
    /// # Errors
    /// ENOSPC, EIO.
    fn write_at(&self, at: u64, parts: &[IoSlice<'_>]) -> IoResult<usize>;

    /// Cuts it.
    ///
    /// # Errors
    /// EIO.
    fn truncate(&self, bytes: u64) -> IoResult<()>;

    /// Waits until what was written is on the disk.
    ///
    /// # Errors
    /// EIO: some of it may be lost.
    fn sync(&self) -> IoResult<()>;
}

/// Removes a file unless it is gone already.
///
/// # Errors
/// As [`Volume::remove`].
pub(super) fn ensure_removed(volume: &dyn DirectoryIo, name: &str) -> IoResult<()> {
    match volume.remove(name) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// Reads all of `bytes`.
///
/// # Errors
/// As [`VolumeFile::read_at`]; `Ok(false)` where the file ends before.
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

/// Reads a file of `bytes` bytes. `None`: it is longer than `bytes_max`, or the read fails.
pub(super) fn read_short(file: &dyn FileIo, bytes: u64, bytes_max: usize) -> Option<Vec<u8>> {
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= bytes_max)?;
    let mut read = vec![0; bytes];
    read_exactly(file, 0, &mut read).ok().filter(|is_whole| *is_whole)?;
    Some(read)
}

/// Writes all of the parts.
///
/// # Errors
/// As [`VolumeFile::write_at`]: some of it may have been written.
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
