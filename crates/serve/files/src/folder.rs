//! A folder of the file system as a [`FolderIo`].

use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_engine::FileRead;
use millrace_sys::{BeneathRules, BeneathUse, Errno, InodeKind, InodeStatus};

use super::folder_io::{
    Entries, FileKind, FileStatus, FolderIo, ListEntry, OpenFile, OpenMode, OpenedFile,
};
use super::granted_folder::{Granted, GrantedFolder, Place};
use super::limits::{LEAVING_LINKS_MAX, LISTED_ENTRIES_MAX, OPEN_TRIES_MAX, READ_NAMES_MAX};

/// The symbolic links that a folder follows.
#[derive(Clone, Debug, Default)]
pub enum Symlinks {
    /// Those whose target lies below the folder.
    #[default]
    Inside,
    /// None.
    None,
    /// Those whose target lies below the folder or below one of these.
    AndInto(Vec<Arc<GrantedFolder>>),
}

/// A folder of the file system. Its files are found below its descriptor, so renaming it changes
/// nothing.
#[derive(Debug)]
pub struct Folder {
    root: GrantedFolder,
    symlinks: Symlinks,
    withheld: Vec<WithheldFolder>,
}

/// A folder whose files count as missing.
#[derive(Clone, Debug)]
pub struct WithheldFolder {
    /// Its path without links. Another folder at this path is withheld too.
    path: PathBuf,
    /// The folder, also under another name later; `None` if it does not exist yet.
    folder: Option<Arc<OwnedFd>>,
}

impl WithheldFolder {
    /// Opens a folder.
    pub fn new(path: &Path) -> Self {
        let folder = millrace_sys::open_folder(path).ok().map(Arc::new);
        let known = folder.as_deref().and_then(path_of);
        let known = known.or_else(|| std::path::absolute(path).ok());
        Self { path: known.unwrap_or_else(|| path.to_owned()), folder }
    }

    /// Returns whether a path without links is that of the folder, or below it.
    fn has(&self, path: &Path) -> Result<bool, Errno> {
        let present = match &self.folder {
            Some(folder) => Some(path_of(folder).ok_or(Errno::NOENT)?),
            None => None,
        };
        let starts = |folder: &PathBuf| path.starts_with(folder);
        Ok(starts(&self.path) || present.as_ref().is_some_and(starts))
    }
}

/// A path that was found and not opened.
struct Found<'a> {
    /// The place, from which links that leave a folder are gone.
    place: Place<'a>,
    /// A descriptor that cannot read.
    descriptor: OwnedFd,
    /// Whether the path has a link.
    is_linked: bool,
}

impl Folder {
    /// Opens a folder. A path that is itself a symbolic link is followed, because the operator
    /// chose it.
    ///
    /// # Errors
    /// Those of open(2), also ENOTDIR.
    pub fn open(path: &Path, symlinks: Symlinks) -> Result<Self, Errno> {
        Ok(Self { root: GrantedFolder::open(path)?, symlinks, withheld: Vec::new() })
    }

    /// Withholds everything below other folders, whatever path or link leads to it.
    #[must_use]
    pub fn withholding(self, withheld: Vec<WithheldFolder>) -> Self {
        Self { withheld, ..self }
    }

    /// Returns a found file, unless it is withheld. The kernel knows the present path of an open
    /// file and of an open folder. Without /proc, everything is withheld.
    fn unless_withheld(&self, found: OwnedFd) -> Result<OwnedFd, Errno> {
        if self.withheld.is_empty() {
            return Ok(found);
        }
        let path = path_of(&found).ok_or(Errno::NOENT)?;
        for folder in &self.withheld {
            if folder.has(&path)? {
                return Err(Errno::NOENT);
            }
        }
        Ok(found)
    }

    fn granted(&self) -> Granted<'_> {
        let others = match &self.symlinks {
            Symlinks::AndInto(others) => &others[..],
            Symlinks::Inside | Symlinks::None => &[],
        };
        Granted { root: &self.root, others }
    }

    fn rules(&self, mode: OpenMode) -> BeneathRules {
        BeneathRules {
            follows_links: !matches!(self.symlinks, Symlinks::None),
            may_wait: mode == OpenMode::Waiting,
        }
    }

    fn rules_without_links(&self, mode: OpenMode) -> BeneathRules {
        BeneathRules { follows_links: false, ..self.rules(mode) }
    }

    /// Finds a path without opening it: first without links, which most paths are.
    fn find(&self, path: &[u8], mode: OpenMode) -> Result<Found<'_>, Errno> {
        let mut place = Place::new(&self.root, path);
        let rules = self.rules(mode);
        let direct = self.rules_without_links(mode);
        match repeat(mode, || place.open(BeneathUse::Find, direct)) {
            Err(Errno::LOOP) if rules.follows_links => {}
            Err(Errno::XDEV) => return Err(Errno::ACCESS),
            found => {
                let descriptor = self.unless_withheld(found?)?;
                return Ok(Found { place, descriptor, is_linked: false });
            }
        }
        for _ in 0..=LEAVING_LINKS_MAX {
            match repeat(mode, || place.open(BeneathUse::Find, rules)) {
                Ok(found) => {
                    let descriptor = self.unless_withheld(found)?;
                    return Ok(Found { place, descriptor, is_linked: true });
                }
                // To read the link may take a disk.
                Err(Errno::XDEV) if mode == OpenMode::Cached => return Err(Errno::AGAIN),
                Err(Errno::XDEV) => place = place.after_link(&self.granted())?,
                Err(error) => return Err(error),
            }
        }
        Err(Errno::LOOP)
    }

    /// Opens a found regular file.
    ///
    /// The first descriptor, of O_PATH, shows the type without opening the file: the open of a
    /// device may have an effect, and that of a pipe wakes a writer. Then the same path is opened
    /// for reading, below the same folder. Opening /proc/self/fd/N instead would need /proc. If the
    /// path was replaced between the two, the second status shows it. Only an owner of the folder
    /// can put a pipe there in time, and only root a device.
    ///
    /// A path without links is opened without links, so that the names that were checked are those
    /// of the file. If there are some, the kernel's path of the open file is checked.
    fn open_found(&self, found: &Found<'_>, mode: OpenMode) -> Result<OpenedFile, Errno> {
        let place = &found.place;
        let direct = self.rules_without_links(mode);
        let opened = match found.is_linked {
            false => repeat(mode, || place.open(BeneathUse::Read, direct)),
            true => Err(Errno::LOOP),
        };
        let (file, linked_path) = match opened {
            Err(Errno::LOOP) => {
                let file = self.open_at(place, BeneathUse::Read, mode)?;
                let path = path_below(place, &file)?;
                (file, Some(path))
            }
            opened => (opened.map_err(replaced)?, None),
        };
        let file = self.unless_withheld(file)?;
        let status = millrace_sys::inode_status(file.as_fd())?;
        if status.kind != InodeKind::Regular {
            return Err(Errno::ACCESS);
        }
        let status = file_status(&status).ok_or(Errno::ACCESS)?;
        Ok(OpenedFile { file: Arc::new(RealFile(file)), status, linked_path })
    }

    /// Opens a found place.
    fn open_at(
        &self,
        place: &Place<'_>,
        purpose: BeneathUse,
        mode: OpenMode,
    ) -> Result<OwnedFd, Errno> {
        repeat(mode, || place.open(purpose, self.rules(mode))).map_err(replaced)
    }

    /// Returns the entry of a name in a listed folder; `None` if it cannot be opened because of its
    /// type or a link, or is gone.
    fn entry(
        &self,
        listed: BorrowedFd<'_>,
        path: &[u8],
        name: &[u8],
        kind: InodeKind,
    ) -> Option<ListEntry> {
        if kind != InodeKind::Link {
            let status = millrace_sys::entry_status(listed, name).ok()?;
            if status.kind != InodeKind::Link {
                return Some(ListEntry::new(name, &file_status(&status)?, None));
            }
        }
        self.linked_entry(path, name)
    }

    /// Returns the entry of a link.
    fn linked_entry(&self, path: &[u8], name: &[u8]) -> Option<ListEntry> {
        let path = if path.is_empty() { name.to_vec() } else { [path, name].join(&b'/') };
        let found = self.find(&path, OpenMode::Waiting).ok()?;
        let status = millrace_sys::inode_status(found.descriptor.as_fd()).ok()?;
        let linked_path = path_below(&found.place, &found.descriptor).ok()?;
        Some(ListEntry::new(name, &file_status(&status)?, Some(linked_path)))
    }
}

impl FolderIo for Folder {
    fn open(&self, path: &[u8], mode: OpenMode) -> Result<OpenedFile, Errno> {
        let found = self.find(path, mode)?;
        let status = millrace_sys::inode_status(found.descriptor.as_fd())?;
        match file_status(&status).ok_or(Errno::ACCESS)? {
            FileStatus { kind: FileKind::Regular, .. } => self.open_found(&found, mode),
            status => {
                let Found { place, descriptor, is_linked } = found;
                let linked_path = is_linked.then(|| path_below(&place, &descriptor)).transpose()?;
                Ok(OpenedFile { file: Arc::new(RealFile(descriptor)), status, linked_path })
            }
        }
    }

    fn list(&self, path: &[u8], is_listed: &dyn Fn(&[u8]) -> bool) -> Result<Entries, Errno> {
        let found = self.find(path, OpenMode::Waiting)?;
        let folder = self.open_at(&found.place, BeneathUse::List, OpenMode::Waiting)?;
        let (mut names, mut read, mut is_cut) = (Vec::new(), 0, false);
        millrace_sys::visit_entries(folder.as_fd(), &mut |name, kind| {
            if names.len() == LISTED_ENTRIES_MAX || read == READ_NAMES_MAX {
                is_cut = true;
                return ControlFlow::Break(());
            }
            read += 1;
            if is_listed(name) {
                names.push((name.to_vec(), kind));
            }
            ControlFlow::Continue(())
        })?;
        let entry =
            |(name, kind): &(Vec<u8>, InodeKind)| self.entry(folder.as_fd(), path, name, *kind);
        Ok(Entries { list: names.iter().filter_map(entry).collect(), is_cut })
    }
}

/// Returns the error for a found file that was replaced before it was opened: it became a link that
/// leaves the folder, or a socket.
fn replaced(error: Errno) -> Errno {
    match error {
        Errno::XDEV | Errno::NXIO => Errno::ACCESS,
        error => error,
    }
}

/// Returns the present path of an open file below the folder of its place: segments separated by
/// `/`. The kernel knows both paths.
///
/// # Errors
/// EACCES if the file was moved out of the folder meanwhile, or without /proc.
fn path_below(place: &Place<'_>, file: &OwnedFd) -> Result<Vec<u8>, Errno> {
    // The folder may be renamed between the two calls.
    for _ in 0..OPEN_TRIES_MAX {
        let folder = path_of(&place.folder.descriptor()).ok_or(Errno::ACCESS)?;
        let path = path_of(file).ok_or(Errno::ACCESS)?;
        if let Ok(below) = path.strip_prefix(folder) {
            let below = below.as_os_str().as_bytes();
            // The kernel marks a file that was removed meanwhile.
            return Ok(below.strip_suffix(b" (deleted)").unwrap_or(below).to_vec());
        }
    }
    Err(Errno::ACCESS)
}

/// Returns the present path of an open file. `None` without /proc.
fn path_of(file: &impl AsFd) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())).ok()
}

/// Repeats an open that failed because a folder was renamed meanwhile, if it may wait. A file with
/// a lease that its holder does not give up remains busy.
fn repeat(mode: OpenMode, open: impl Fn() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    if mode == OpenMode::Cached {
        return open();
    }
    for _ in 0..OPEN_TRIES_MAX {
        match open() {
            Err(Errno::AGAIN) => {}
            opened => return opened,
        }
    }
    Err(Errno::BUSY)
}

/// Returns the status of a regular file or a folder; `None` for anything else.
fn file_status(status: &InodeStatus) -> Option<FileStatus> {
    let InodeStatus { kind, device, inode, bytes, modified, changed } = *status;
    let kind = match kind {
        InodeKind::Regular => FileKind::Regular,
        InodeKind::Folder => FileKind::Folder,
        InodeKind::Link | InodeKind::Pipe | InodeKind::Socket | InodeKind::Other => return None,
    };
    Some(FileStatus { kind, device, inode, bytes, modified, changed })
}

#[derive(Debug)]
struct RealFile(OwnedFd);

impl FileRead for RealFile {
    fn read_at(&self, at: u64, bytes: &mut [u8], waits: bool) -> Result<usize, Errno> {
        if waits {
            return millrace_sys::read_at(self.0.as_fd(), bytes, at);
        }
        match millrace_sys::read_cached_at(self.0.as_fd(), bytes, at) {
            // The file system cannot tell whether the bytes are in memory.
            Err(Errno::OPNOTSUPP) => Err(Errno::AGAIN),
            read => read,
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

impl OpenFile for RealFile {
    fn status(&self) -> Result<FileStatus, Errno> {
        file_status(&millrace_sys::inode_status(self.0.as_fd())?).ok_or(Errno::ACCESS)
    }

    fn read_to_keep(&self, at: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        match millrace_sys::read_uncached_at(self.0.as_fd(), bytes, at) {
            Err(Errno::OPNOTSUPP) => self.read_at(at, bytes, true),
            read => read,
        }
    }
}
