//! Files for bodies of requests that are too long for memory. They have no names, so they are gone
//! with the process that wrote them, however it ends.

use std::fmt;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use millrace_engine::FileRead;
use millrace_sys::Errno;

/// Closes a file. The last close of a long file frees its blocks, which may wait for the disk.
pub type CloseFile = Box<dyn Fn(OwnedFd) + Send + Sync>;

/// The folders in which bodies are stored, used in turn.
pub struct UploadFolders {
    folders: Vec<OwnedFd>,
    close: CloseFile,
    next: AtomicUsize,
    /// The bytes of all open files.
    used: AtomicU64,
}

/// The beginning of a name that a file may have for a moment.
const NAME: &str = "upload-";

impl UploadFolders {
    /// Opens folders, which belong to this process alone, and removes what a killed process may
    /// have left there. `close` closes the files.
    ///
    /// # Errors
    /// The number of the first folder that cannot be opened, and why.
    pub fn open<'p>(
        paths: impl IntoIterator<Item = &'p Path>,
        close: CloseFile,
    ) -> Result<Self, (usize, Errno)> {
        let open = |(number, path)| {
            let folder = millrace_sys::open_directory(path).map_err(|error| (number, error))?;
            remove_leftovers(folder.as_fd());
            Ok(folder)
        };
        let folders = paths.into_iter().enumerate().map(open).collect::<Result<_, _>>()?;
        Ok(Self { folders, close, next: AtomicUsize::new(0), used: AtomicU64::new(0) })
    }

    /// Returns an empty body. Its file is created with the first byte.
    pub fn begin(self: &Arc<Self>) -> UploadFile {
        UploadFile { folders: self.clone(), file: None, bytes: 0 }
    }

    /// Returns the bytes of all bodies that are stored now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn create(&self) -> Result<OwnedFd, Errno> {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.folders.len().max(1);
        let folder = self.folders.get(number).ok_or(Errno::NOENT)?;
        let mut random = [0; 16];
        millrace_sys::fill_random(&mut random);
        let name = format!("{NAME}{:032x}", u128::from_ne_bytes(random));
        millrace_sys::create_unnamed_file(folder.as_fd(), &name)
    }

    /// Counts bytes before they are written.
    fn reserve(&self, bytes: u64, all_max: u64) -> Result<(), Errno> {
        // Only the number counts; no memory depends on it.
        let added = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&used| used <= all_max)
        });
        added.map(drop).map_err(|_| Errno::NOSPC)
    }
}

impl fmt::Debug for UploadFolders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UploadFolders").field("used", &self.used()).finish_non_exhaustive()
    }
}

/// Removes names that a process had no time to remove.
fn remove_leftovers(folder: BorrowedFd<'_>) {
    let names = millrace_sys::list_directory(folder).unwrap_or_default();
    for name in names.iter().filter(|name| name.starts_with(NAME)) {
        // The file is unused in any case.
        let _ = millrace_sys::remove_file(folder, name);
    }
}

/// A body in a file without a name.
#[derive(Debug)]
pub struct UploadFile {
    folders: Arc<UploadFolders>,
    /// `None` while no byte was appended.
    file: Option<OwnedFd>,
    bytes: u64,
}

impl UploadFile {
    /// Appends bytes, and may wait for the disk. All bodies together have at most `all_max` bytes.
    ///
    /// # Errors
    /// ENOSPC if there is no space or `all_max` is reached; EDQUOT, EMFILE, EIO and others of the
    /// kernel. The body cannot be used then.
    pub fn append(&mut self, bytes: &[u8], all_max: u64) -> Result<(), Errno> {
        self.folders.reserve(bytes.len() as u64, all_max)?;
        let at = self.bytes;
        self.bytes += bytes.len() as u64;
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(self.folders.create()?),
        };
        write_all(file.as_fd(), bytes, at)
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn write_all(file: BorrowedFd<'_>, bytes: &[u8], at: u64) -> Result<(), Errno> {
    let mut written = 0;
    while written < bytes.len() {
        let part = [IoSlice::new(&bytes[written..])];
        match millrace_sys::write_parts_at(file, &part, at + written as u64)? {
            0 => return Err(Errno::IO),
            count => written += count,
        }
    }
    Ok(())
}

impl Drop for UploadFile {
    fn drop(&mut self) {
        // As in `reserve`.
        self.folders.used.fetch_sub(self.bytes, Ordering::Relaxed);
        if let Some(file) = self.file.take() {
            (self.folders.close)(file);
        }
    }
}

impl FileRead for UploadFile {
    fn read_at(&self, at: u64, bytes: &mut [u8], waits: bool) -> Result<usize, Errno> {
        let Some(file) = &self.file else { return Ok(0) };
        if waits {
            return millrace_sys::read_at(file.as_fd(), bytes, at);
        }
        match millrace_sys::read_cached_at(file.as_fd(), bytes, at) {
            // The file system cannot tell whether the bytes are in memory.
            Err(Errno::OPNOTSUPP) => Err(Errno::AGAIN),
            read => read,
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let name = format!("millrace-uploads-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    fn open(path: &Path) -> Arc<UploadFolders> {
        Arc::new(UploadFolders::open([path], Box::new(drop)).unwrap())
    }

    #[test]
    fn a_body_is_read_as_it_was_appended_and_has_no_name() {
        let path = folder("body");
        fs::write(path.join("upload-0"), "of a killed process").unwrap();
        fs::write(path.join("segment-00000001"), "").unwrap();
        let folders = open(&path);
        let mut body = folders.begin();
        assert_eq!(body.read_at(0, &mut [0], true), Ok(0));
        for part in [&b"one "[..], b"", b"two"] {
            body.append(part, 100).unwrap();
        }
        assert_eq!((body.bytes(), folders.used()), (7, 7));
        let mut read = [0; 9];
        assert_eq!(body.read_at(1, &mut read, true), Ok(6));
        assert_eq!(&read[..6], b"ne two");
        assert!(matches!(body.read_at(1, &mut read, false), Ok(6) | Err(Errno::AGAIN)));
        let names: Vec<_> =
            fs::read_dir(&path).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, ["segment-00000001"]);
        drop(body);
        assert_eq!(folders.used(), 0);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn all_bodies_together_are_bounded() {
        let path = folder("bound");
        let folders = open(&path);
        let (mut first, mut second) = (folders.begin(), folders.begin());
        first.append(b"1234", 6).unwrap();
        assert_eq!(second.append(b"123", 6), Err(Errno::NOSPC));
        second.append(b"12", 6).unwrap();
        assert_eq!(folders.used(), 6);
        drop(first);
        second.append(b"3456", 6).unwrap();
        drop(second);
        assert_eq!(folders.used(), 0);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_full_disk_is_an_error_of_one_body() {
        let path = folder("full");
        let folders = open(&path);
        let full = fs::OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
        let mut body = folders.begin();
        body.file = Some(full.into());
        assert_eq!(body.append(b"123", 100), Err(Errno::NOSPC));
        drop(body);
        assert_eq!(folders.used(), 0);
        assert_eq!(folders.begin().append(b"123", 100), Ok(()));
        fs::remove_dir_all(path).unwrap();
        let mut missing = folders.begin();
        assert!(missing.append(b"1", 100).is_err());
        let opened = UploadFolders::open([Path::new("/no/such")], Box::new(drop));
        assert_eq!(opened.map(drop), Err((0, Errno::NOENT)));
    }
}
