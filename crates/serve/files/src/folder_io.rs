//! A folder as the crate uses it: files are found and opened below it, and names are listed.

use std::fmt::Debug;
use std::sync::Arc;

use millrace_engine::FileRead;
use millrace_sys::Errno;

pub use millrace_sys::InodeTime as FileTime;

/// Whether a call may wait for a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenMode {
    /// It fails with EAGAIN instead of waiting.
    Cached,
    /// It may wait, and never fails with EAGAIN.
    Waiting,
}

/// A folder whose files are served: real ([`Folder`](super::Folder)) or simulated
/// ([`SimFolder`](super::SimFolder)).
pub trait FolderIo: Send + Sync + Debug {
    /// Opens a file or a folder. The segments of `path` are separated by `/`; none is empty, `.` or
    /// `..`, and none has a NUL. An empty path is the folder itself. A folder is opened only to be
    /// described.
    ///
    /// # Errors
    /// EACCES for anything else than a regular file or a folder, for a link that leads out, and for
    /// any link if the folder follows none. ENOENT, ENOTDIR, ENAMETOOLONG. EMFILE and other errors
    /// of the kernel.
    fn open(&self, path: &[u8], mode: OpenMode) -> Result<OpenedFile, Errno>;

    /// Lists the entries of a folder for whose names `is_listed` returns true, in any order. May
    /// wait. Entries that cannot be opened because of their type or a link are left out.
    ///
    /// # Errors
    /// Those of [`FolderIo::open`].
    fn list(&self, path: &[u8], is_listed: &dyn Fn(&[u8]) -> bool) -> Result<Entries, Errno>;
}

/// An open file of a folder.
pub trait OpenFile: FileRead {
    /// Returns the status now.
    ///
    /// # Errors
    /// Those of fstat(2).
    fn status(&self) -> Result<FileStatus, Errno>;

    /// Reads from offset `at` and may wait. The caller keeps the bytes, so the kernel need not keep
    /// them too. Returns their number, 0 at the end of the file.
    ///
    /// # Errors
    /// Those of [`FileRead::read_at`].
    fn read_to_keep(&self, at: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        self.read_at(at, bytes, true)
    }
}

/// An open regular file, or a found folder.
#[derive(Clone, Debug)]
pub struct OpenedFile {
    /// The bytes. Those of a folder cannot be read.
    pub file: Arc<dyn OpenFile>,
    /// The status when it was opened.
    pub status: FileStatus,
    /// The path of the file itself, if a link led to it: segments separated by `/`. It begins below
    /// the root, or below the granted folder that has the file.
    pub linked_path: Option<Vec<u8>>,
}

/// The type of an opened file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A folder.
    Folder,
}

/// The status of a file. A file whose status is the same has, as far as the file system can tell,
/// the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileStatus {
    /// The type.
    pub kind: FileKind,
    /// The number of the file system that has the file.
    pub device: u64,
    /// The number of the file there.
    pub inode: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// The time at which the bytes changed last, as the writer set it.
    pub modified: FileTime,
    /// The time at which the bytes or the attributes changed last.
    pub changed: FileTime,
}

impl FileStatus {
    /// Returns whether the last change was more than `pause_ms` milliseconds before `now_ms`, which
    /// counts from 1970. It must also be so old that a change from now on gets a later time. A
    /// change in the future is one of another clock, and counts as too recent.
    pub fn is_unchanged_for(&self, pause_ms: u64, now_ms: u64) -> bool {
        let FileTime { seconds, nanoseconds } = self.changed;
        let Ok(seconds) = u64::try_from(seconds) else { return true };
        let ms = u64::from(nanoseconds / 1_000_000);
        let changed_ms = seconds.saturating_mul(1000).saturating_add(ms);
        let unit_ms = if nanoseconds == 0 { COARSE_UNIT_MS } else { TICK_MS };
        changed_ms.saturating_add(pause_ms.max(unit_ms)) < now_ms
    }
}

/// Two ticks of the slowest kernel (100 Hz): the tick of the change, and that of the clock.
const TICK_MS: u64 = 20;
/// The unit of file systems without nanoseconds; that of FAT is the longest.
const COARSE_UNIT_MS: u64 = 2000;

/// An entry of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListEntry {
    /// The name, without a slash.
    pub name: Vec<u8>,
    /// The type; that of the target for a symbolic link.
    pub kind: FileKind,
    /// The size of a regular file in bytes.
    pub bytes: u64,
    /// The time at which the bytes changed last.
    pub modified: FileTime,
    /// The path of the target of a symbolic link, as in [`OpenedFile::linked_path`].
    pub linked_path: Option<Vec<u8>>,
}

impl ListEntry {
    pub(super) fn new(name: &[u8], status: &FileStatus, linked_path: Option<Vec<u8>>) -> Self {
        let FileStatus { kind, bytes, modified, .. } = *status;
        Self { name: name.to_vec(), kind, bytes, modified, linked_path }
    }
}

/// The entries of a folder.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Entries {
    /// At most [`LISTED_ENTRIES_MAX`](super::limits::LISTED_ENTRIES_MAX) entries.
    pub list: Vec<ListEntry>,
    /// Whether the folder has more names.
    pub is_cut: bool,
}
