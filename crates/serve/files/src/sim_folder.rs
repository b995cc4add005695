//! A simulated folder in memory, with faults that a seed decides.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_engine::FileRead;
use millrace_sys::Errno;

use super::folder_io::{
    Entries, FileKind, FileStatus, FileTime, FolderIo, ListEntry, OpenFile, OpenMode, OpenedFile,
};
use super::limits::LISTED_ENTRIES_MAX;

/// The frequencies of faults. A value of 40 means that, on average, one in 40 calls has the fault;
/// 0 means that none has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SimFolderFaults {
    /// An open, a list or a read fails with EIO.
    pub io_errors: u32,
    /// An open or a list fails with EACCES.
    pub denials: u32,
    /// An open or a list fails with EMFILE.
    pub no_descriptors: u32,
    /// An open or a list fails with ENOENT, as if the name was removed just before.
    pub missing: u32,
    /// A call that must not wait fails with EAGAIN.
    pub waits: u32,
    /// A read returns fewer bytes than requested.
    pub short: u32,
    /// Before an open or a read, a file is replaced by a new one with other bytes of any length.
    pub replaced: u32,
    /// Before an open or a read, a file is cut or extended in place.
    pub resized: u32,
}

/// A [`FolderIo`] in memory. Clones are the same folder. Its behaviour depends only on the seed and
/// on the calls.
#[derive(Clone, Debug)]
pub struct SimFolder(Arc<Mutex<SimFolderState>>);

#[derive(Debug)]
struct SimFolderState {
    random: Random,
    /// The nodes by path; the root is not among them.
    names: BTreeMap<Vec<u8>, SimNode>,
    files: BTreeMap<u64, SimFileBytes>,
    last_inode: u64,
    now: FileTime,
    /// The unit of the times of files in nanoseconds; 0: no two changes have the same time.
    clock_unit_ns: u32,
    faults: SimFolderFaults,
    /// The faults of paths that begin with these bytes, in place of the others.
    faults_below: Option<(Vec<u8>, SimFolderFaults)>,
}

#[derive(Clone, Debug)]
enum SimNode {
    /// A regular file, by its number.
    File(u64),
    Folder(FileTime),
    Link(Vec<u8>),
    /// A pipe, a socket or a device.
    Special,
}

/// The bytes of a file. They remain for its open descriptors when its name is gone.
#[derive(Clone, Debug)]
struct SimFileBytes {
    bytes: Vec<u8>,
    modified: FileTime,
    changed: FileTime,
}

impl SimFolder {
    /// Creates an empty folder.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(SimFolderState {
            random: Random(seed),
            names: BTreeMap::new(),
            files: BTreeMap::new(),
            // Folders of one file system have no number in common.
            last_inode: seed << 20,
            now: FileTime::default(),
            clock_unit_ns: 0,
            faults: SimFolderFaults::default(),
            faults_below: None,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, SimFolderState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: SimFolderFaults) {
        self.lock().faults = faults;
    }

    /// Sets the faults of paths that begin with `prefix`, and of the files opened by them. Other
    /// paths have those of [`SimFolder::set_faults`]. Changes of files are not among them.
    pub fn set_faults_of(&self, prefix: &[u8], faults: SimFolderFaults) {
        self.lock().faults_below = Some((prefix.to_vec(), faults));
    }

    /// Sets the clock. Each change makes it one nanosecond later, so that no two have the same
    /// time, unless there is a unit.
    pub fn set_now(&self, now: FileTime) {
        self.lock().now = now;
    }

    /// Makes times of files multiples of this unit, as those of a kernel are of its tick.
    pub fn set_clock_unit_ns(&self, unit_ns: u32) {
        self.lock().clock_unit_ns = unit_ns;
    }

    /// Creates or replaces a file, as rename(2) does, and the folders on its way. Open files keep
    /// their bytes.
    pub fn write(&self, path: &[u8], bytes: &[u8]) {
        let mut state = self.lock();
        state.make_parents(path);
        state.replace(path, bytes.to_vec());
    }

    /// Changes the bytes of a file in place, also those of open files. Returns `false` if there is
    /// no such file.
    pub fn rewrite(&self, path: &[u8], bytes: &[u8]) -> bool {
        let mut state = self.lock();
        let Some(SimNode::File(inode)) = state.names.get(path).cloned() else { return false };
        state.change(inode, |file| *file = bytes.to_vec());
        true
    }

    /// Sets the time of modification of a file, as utimensat(2) does.
    pub fn set_modified(&self, path: &[u8], modified: FileTime) {
        let mut state = self.lock();
        let now = state.tick();
        if let Some(SimNode::File(inode)) = state.names.get(path).cloned()
            && let Some(file) = state.files.get_mut(&inode)
        {
            (file.modified, file.changed) = (modified, now);
        }
    }

    /// Creates a folder, and those on its way.
    pub fn create_folder(&self, path: &[u8]) {
        let mut state = self.lock();
        state.make_parents(&[path, b"/x"].concat());
    }

    /// Creates a symbolic link. A target that begins with `/` leads out of the folder.
    pub fn link(&self, path: &[u8], target: &[u8]) {
        let mut state = self.lock();
        state.make_parents(path);
        state.names.insert(path.to_vec(), SimNode::Link(target.to_vec()));
    }

    /// Creates a pipe.
    pub fn create_pipe(&self, path: &[u8]) {
        let mut state = self.lock();
        state.make_parents(path);
        state.names.insert(path.to_vec(), SimNode::Special);
    }

    /// Removes a name, and all below it. Open files keep their bytes.
    pub fn remove(&self, path: &[u8]) {
        let below = [path, b"/"].concat();
        self.lock().names.retain(|name, _| name != path && !name.starts_with(&below));
    }
}

impl SimFolderState {
    fn chance(&mut self, one_in: u32) -> bool {
        one_in > 0 && self.random.below(u64::from(one_in)) == 0
    }

    /// Returns the time of a change. Without a unit of the clock, advances it by a nanosecond.
    fn tick(&mut self) -> FileTime {
        if self.clock_unit_ns > 0 {
            let FileTime { seconds, nanoseconds } = self.now;
            return FileTime {
                seconds,
                nanoseconds: nanoseconds - nanoseconds % self.clock_unit_ns,
            };
        }
        self.now.nanoseconds += 1;
        if self.now.nanoseconds == 1_000_000_000 {
            self.now = FileTime { seconds: self.now.seconds + 1, nanoseconds: 0 };
        }
        self.now
    }

    fn make_parents(&mut self, path: &[u8]) {
        let now = self.tick();
        for at in path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at) {
            self.names.entry(path[..at].to_vec()).or_insert(SimNode::Folder(now));
        }
    }

    fn replace(&mut self, path: &[u8], bytes: Vec<u8>) {
        let now = self.tick();
        self.last_inode += 1;
        let inode = self.last_inode;
        self.files.insert(inode, SimFileBytes { bytes, modified: now, changed: now });
        self.names.insert(path.to_vec(), SimNode::File(inode));
    }

    fn change(&mut self, inode: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let now = self.tick();
        if let Some(file) = self.files.get_mut(&inode) {
            change(&mut file.bytes);
            (file.modified, file.changed) = (now, now);
        }
    }

    /// Changes a file, as another process would between two calls.
    fn meddle(&mut self) {
        let SimFolderFaults { replaced, resized, .. } = self.faults;
        let is_replaced = self.chance(replaced);
        if !is_replaced && !self.chance(resized) {
            return;
        }
        let files = self.names.iter().filter_map(|(name, node)| match node {
            SimNode::File(inode) => Some((name.clone(), *inode)),
            _ => None,
        });
        let mut files: Vec<(Vec<u8>, u64)> = files.collect();
        if files.is_empty() {
            return;
        }
        let (name, inode) = files.swap_remove(self.random.below(files.len() as u64) as usize);
        let before = self.files.get(&inode).map_or(0, |file| file.bytes.len());
        let length = self.random.below(2 * before as u64 + 2) as usize;
        let byte = self.random.below(256) as u8;
        if is_replaced {
            self.replace(&name, vec![byte; length]);
        } else {
            self.change(inode, |bytes| bytes.resize(length, byte));
        }
    }

    /// Returns the faults of the calls for a path.
    fn faults_of(&self, path: &[u8]) -> SimFolderFaults {
        match &self.faults_below {
            Some((prefix, faults)) if path.starts_with(prefix) => *faults,
            _ => self.faults,
        }
    }

    /// Applies the faults of an open or a list.
    fn before_open(&mut self, path: &[u8], mode: OpenMode) -> Result<(), Errno> {
        self.meddle();
        let faults = self.faults_of(path);
        if mode == OpenMode::Cached && self.chance(faults.waits) {
            return Err(Errno::AGAIN);
        }
        for (one_in, error) in [
            (faults.io_errors, Errno::IO),
            (faults.denials, Errno::ACCESS),
            (faults.no_descriptors, Errno::MFILE),
            (faults.missing, Errno::NOENT),
        ] {
            if self.chance(one_in) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Resolves links. Returns the node at the end, and its path.
    fn resolve(&self, path: &[u8]) -> Result<(Vec<u8>, SimNode), Errno> {
        let mut rest: Vec<Vec<u8>> = segments(path).rev().collect();
        let mut at: Vec<Vec<u8>> = Vec::new();
        let (mut node, mut links) = (SimNode::Folder(FileTime::default()), 0);
        while let Some(segment) = rest.pop() {
            if !matches!(node, SimNode::Folder(_)) {
                return Err(Errno::NOTDIR);
            }
            if segment == b".." {
                at.pop().ok_or(Errno::ACCESS)?;
                node = SimNode::Folder(FileTime::default());
                continue;
            }
            at.push(segment);
            let found = self.names.get(&at.join(&b'/')).ok_or(Errno::NOENT)?;
            if let SimNode::Link(target) = found {
                links += 1;
                if target.starts_with(b"/") {
                    return Err(Errno::ACCESS);
                }
                if links > LINKS_MAX {
                    return Err(Errno::LOOP);
                }
                at.pop();
                rest.extend(segments(target).rev());
                node = SimNode::Folder(FileTime::default());
            } else {
                node = found.clone();
            }
        }
        Ok((at.join(&b'/'), node))
    }

    fn status(&self, node: &SimNode) -> Result<FileStatus, Errno> {
        let (kind, inode, bytes, modified, changed) = match node {
            SimNode::File(inode) => {
                let file = self.files.get(inode).ok_or(Errno::IO)?;
                let bytes = file.bytes.len() as u64;
                (FileKind::Regular, *inode, bytes, file.modified, file.changed)
            }
            SimNode::Folder(time) => (FileKind::Folder, 0, 0, *time, *time),
            SimNode::Link(_) | SimNode::Special => return Err(Errno::ACCESS),
        };
        Ok(FileStatus { kind, device: 1, inode, bytes, modified, changed })
    }
}

/// The links that one path may have, as in the kernel.
const LINKS_MAX: usize = 40;

fn segments(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    let segments = path.split(|&byte| byte == b'/');
    segments.filter(|segment| !matches!(*segment, b"" | b".")).map(<[u8]>::to_vec)
}

impl FolderIo for SimFolder {
    fn open(&self, path: &[u8], mode: OpenMode) -> Result<OpenedFile, Errno> {
        let mut state = self.lock();
        state.before_open(path, mode)?;
        let (at, node) = state.resolve(path)?;
        let status = state.status(&node)?;
        let is_linked = at != segments(path).collect::<Vec<_>>().join(&b'/');
        let linked_path = is_linked.then_some(at);
        let inode = matches!(node, SimNode::File(_)).then_some(status.inode);
        drop(state);
        let file = Arc::new(SimOpenFile { folder: self.clone(), path: path.to_vec(), inode });
        Ok(OpenedFile { file, status, linked_path })
    }

    fn list(&self, path: &[u8], is_listed: &dyn Fn(&[u8]) -> bool) -> Result<Entries, Errno> {
        let mut state = self.lock();
        state.before_open(path, OpenMode::Waiting)?;
        let (at, node) = state.resolve(path)?;
        if !matches!(node, SimNode::Folder(_)) {
            return Err(Errno::NOTDIR);
        }
        let prefix = if at.is_empty() { Vec::new() } else { [&at[..], b"/"].concat() };
        let names: BTreeSet<&[u8]> = state
            .names
            .keys()
            .filter_map(|name| name.strip_prefix(&prefix[..]))
            .filter(|name| !name.contains(&b'/') && is_listed(name))
            .collect();
        let is_cut = names.len() > LISTED_ENTRIES_MAX;
        let entry = |name: &&[u8]| {
            let path = [&prefix[..], name].concat();
            let (at, node) = state.resolve(&path).ok()?;
            let linked_path = (at != path).then_some(at);
            Some(ListEntry::new(name, &state.status(&node).ok()?, linked_path))
        };
        let list = names.iter().take(LISTED_ENTRIES_MAX).filter_map(entry).collect();
        Ok(Entries { list, is_cut })
    }
}

#[derive(Debug)]
struct SimOpenFile {
    folder: SimFolder,
    /// The path by which it was opened.
    path: Vec<u8>,
    /// The number of a regular file; `None` for a folder.
    inode: Option<u64>,
}

impl FileRead for SimOpenFile {
    fn read_at(&self, at: u64, bytes: &mut [u8], waits: bool) -> Result<usize, Errno> {
        let inode = self.inode.ok_or(Errno::ISDIR)?;
        let mut state = self.folder.lock();
        state.meddle();
        let faults = state.faults_of(&self.path);
        if !waits && state.chance(faults.waits) {
            return Err(Errno::AGAIN);
        }
        if state.chance(faults.io_errors) {
            return Err(Errno::IO);
        }
        let is_short = state.chance(faults.short);
        let file = state.files.get(&inode).ok_or(Errno::IO)?;
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        let there = file.bytes.get(start..).unwrap_or_default();
        let mut count = there.len().min(bytes.len());
        if is_short {
            count = count.div_ceil(2);
        }
        bytes[..count].copy_from_slice(&there[..count]);
        Ok(count)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl OpenFile for SimOpenFile {
    fn status(&self) -> Result<FileStatus, Errno> {
        let node = match self.inode {
            Some(inode) => SimNode::File(inode),
            None => SimNode::Folder(FileTime::default()),
        };
        self.folder.lock().status(&node)
    }
}

/// SplitMix64: good enough for tests.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &OpenedFile) -> Result<Vec<u8>, Errno> {
        let mut bytes = [0; 64];
        let count = file.file.read_at(0, &mut bytes, true)?;
        Ok(bytes[..count].to_vec())
    }

    #[test]
    fn an_open_file_survives_its_name_but_not_a_change_in_place() {
        let folder = SimFolder::new(1);
        folder.write(b"a/b", b"one");
        let open = || folder.open(b"a/b", OpenMode::Cached);
        let first = open().unwrap();
        folder.write(b"a/b", b"two");
        let second = open().unwrap();
        assert_eq!((read(&first), read(&second)), (Ok(b"one".to_vec()), Ok(b"two".to_vec())));
        assert!(first.status != second.status && second.status == open().unwrap().status);
        assert!(folder.rewrite(b"a/b", b"3"));
        assert_eq!(read(&second), Ok(b"3".to_vec()));
        assert!(open().unwrap().status.changed > second.status.changed);
        folder.remove(b"a");
        assert_eq!(open().map(drop), Err(Errno::NOENT));
        assert_eq!(read(&second), Ok(b"3".to_vec()));
        assert!(second.file.descriptor().is_none());
        folder.create_folder(b"a/b");
        assert_eq!(read(&open().unwrap()), Err(Errno::ISDIR));
    }

    #[test]
    fn two_changes_in_one_unit_of_the_clock_have_the_same_time() {
        let folder = SimFolder::new(1);
        folder.set_clock_unit_ns(10);
        folder.write(b"a", b"1");
        let status = |nanoseconds, bytes: &[u8]| {
            folder.set_now(FileTime { seconds: 1, nanoseconds });
            assert!(folder.rewrite(b"a", bytes));
            folder.open(b"a", OpenMode::Cached).unwrap().status
        };
        assert_eq!(status(25, b"2"), status(29, b"3"));
        assert_ne!(status(29, b"3"), status(30, b"3"));
    }

    #[test]
    fn links_are_resolved_as_below_a_folder() {
        let folder = SimFolder::new(1);
        folder.write(b"a/b", b"");
        for (name, target) in [
            ("ok", "a/../a/./b"),
            ("a/up", "../ok"),
            ("out", "../x"),
            ("absolute", "/a/b"),
            ("loop", "loop"),
            ("dead", "x"),
        ] {
            folder.link(name.as_bytes(), target.as_bytes());
        }
        folder.create_pipe(b"pipe");
        for (path, expected) in [
            ("ok", Ok(())),
            ("a/up", Ok(())),
            ("", Ok(())),
            ("out", Err(Errno::ACCESS)),
            ("absolute", Err(Errno::ACCESS)),
            ("loop", Err(Errno::LOOP)),
            ("dead", Err(Errno::NOENT)),
            ("pipe", Err(Errno::ACCESS)),
            ("ok/x", Err(Errno::NOTDIR)),
        ] {
            let opened = folder.open(path.as_bytes(), OpenMode::Waiting).map(drop);
            assert_eq!(opened, expected, "{path}");
        }
        let entries = folder.list(b"", &|name| name != b"a").unwrap();
        let names: Vec<&[u8]> = entries.list.iter().map(|entry| &entry.name[..]).collect();
        assert_eq!((names, entries.is_cut), (vec![&b"ok"[..]], false));
    }

    #[test]
    fn faults_depend_on_the_seed() {
        let run = |seed| {
            let folder = SimFolder::new(seed);
            folder.write(b"a", &[7; 40]);
            folder.set_faults(SimFolderFaults {
                io_errors: 9,
                denials: 9,
                no_descriptors: 9,
                missing: 9,
                waits: 9,
                short: 3,
                replaced: 9,
                resized: 9,
            });
            let results = (0..200).map(|_| match folder.open(b"a", OpenMode::Cached) {
                Ok(opened) => read(&opened).map(|bytes| (opened.status.bytes, bytes)),
                Err(error) => Err(error),
            });
            results.collect::<Vec<_>>()
        };
        let results = run(3);
        assert_eq!(results, run(3));
        assert_ne!(results, run(4));
        for error in [Errno::IO, Errno::ACCESS, Errno::MFILE, Errno::NOENT, Errno::AGAIN] {
            assert!(results.iter().any(|it| it.as_ref().err() == Some(&error)), "{error}");
        }
        let cut = |it: &Result<(u64, Vec<u8>), Errno>| {
            it.as_ref().is_ok_and(|(bytes, read)| *bytes > read.len() as u64)
        };
        assert!(results.iter().any(cut), "cut between open and read, or read shortly");
    }

    #[test]
    fn faults_of_some_paths_leave_the_others_alone() {
        let folder = SimFolder::new(1);
        folder.write(b"a/b", b"bytes");
        folder.write(b"a2", b"bytes");
        let opened = folder.open(b"a/b", OpenMode::Cached).unwrap();
        folder.set_faults_of(b"a/", SimFolderFaults { io_errors: 1, ..Default::default() });
        assert_eq!(folder.open(b"a/b", OpenMode::Cached).map(drop), Err(Errno::IO));
        assert_eq!(read(&opened), Err(Errno::IO));
        assert_eq!(read(&folder.open(b"a2", OpenMode::Cached).unwrap()), Ok(b"bytes".to_vec()));
    }
}
