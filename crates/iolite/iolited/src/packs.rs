//! Packs: the short files of a public folder in one piece of memory.
//!
//! A pack has files of one folder that all users may read ([`crate::public`]). It is passed only
//! while each of its files is still there, with the same version: so it has no bytes that a process
//! could not read now. A change of a mode, an owner, an access list or a name is another version.
//! Then new packs are made, from files as they are now.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use iolite::service::{
    FileKey, FileVersion, PIECE_BYTES, Refusal, SHARED_FILE_BYTES_MIN, pack_bytes, pack_of,
};
use millrace_sys::InodeKind;

use crate::access::readable_file;
use crate::bytes::read_exactly;
use crate::cache::Cache;
use crate::memory::Memory;
use crate::public::{PublicFolders, PublicPlace, open_public};

/// The packs of all public folders. The cache has their memory, and evicts it.
#[derive(Debug)]
pub(crate) struct Packs {
    folders: PublicFolders,
    state: Mutex<PacksState>,
}

#[derive(Debug, Default)]
struct PacksState {
    /// By the folder of their files. The cache may have evicted some.
    packs: HashMap<FileKey, Vec<Arc<Pack>>>,
    /// The number of packs at which those that were evicted are removed.
    prune_at: usize,
    /// The folders of which a pack could not be made, or had files that have changed.
    pauses: HashMap<FileKey, Pause>,
    /// The users for whom packs are being made, by the keys of these.
    making: HashMap<FileKey, u32>,
    /// The number of the last pack.
    last: u64,
}

/// The time in which at most one more pack of a folder is made.
#[derive(Debug)]
struct Pause {
    since: Instant,
    may_make: bool,
}

/// The state of a pack when it is requested.
enum PackState {
    Unchanged(Arc<Memory>),
    /// A file of the pack has changed.
    Changed,
    Evicted,
}

/// A pack that this thread makes, until this is dropped.
struct Making<'a> {
    packs: &'a Packs,
    key: FileKey,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.packs.state().making.remove(&self.key);
    }
}

#[derive(Debug)]
struct Pack {
    /// Where the cache has it.
    key: FileKey,
    /// The names of the files, and their versions.
    files: Vec<(Vec<u8>, FileVersion)>,
}

/// Files and their bytes for a new pack.
#[derive(Default)]
struct Draft {
    files: Vec<(Vec<u8>, FileVersion)>,
    keys: HashSet<FileKey>,
    contents: Vec<u8>,
}

/// A folder whose files change is not read for packs more often.
const MAKE_AFTER: Duration = Duration::from_secs(1);
/// The files of a pack: all are examined each time when it is passed.
const FILES_MAX: usize = 1024;
/// The names of a folder that are examined for a pack.
const NAMES_MAX: usize = 10_000;
/// The folders with a pause, before pauses that are over are removed.
const PAUSES_MAX: usize = 1_000;
/// The packs that are made at a time: each takes a few megabytes of the heap, which the limit of
/// the cache does not include.
const MAKING_MAX: usize = 8;
/// The packs that are made at a time for one user. A writer that keeps the lock of a file can make
/// that take any time.
const MAKING_PER_USER_MAX: usize = 2;
/// Evicted packs are removed from the table when it has this many packs at least.
const PRUNE_MIN: usize = 32;
/// No file system has this number, so no file has the keys of packs.
const PACKS: u64 = u64::MAX;

impl Packs {
    pub(crate) fn new(folders: PublicFolders) -> Self {
        Self { folders, state: Mutex::default() }
    }

    /// Returns a pack that has a short file of a public folder, for a client of `user`.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) fn find_or_make(
        &self,
        cache: &Cache,
        user: u32,
        file: BorrowedFd<'_>,
    ) -> Result<Arc<Memory>, Refusal> {
        if self.folders.is_empty() {
            return Err(Refusal::NotPublic);
        }
        let version = readable_file(file)?;
        if !is_short(&version) {
            return Err(Refusal::NotPublic);
        }
        let place = self.folders.place_of(file, version.key).ok_or(Refusal::NotPublic)?;
        let mut loading = None;
        loop {
            // Examining the files of a pack takes up to a millisecond, and making one as long as a
            // writer keeps a file locked. So a pack is examined without `Loading`: requests for one
            // folder do not wait for each other, and are served while another pack is being made.
            let packs = self.packs_of(cache, place.key);
            if let Some(pack) = packs.iter().find(|pack| pack.has(&version)) {
                match pack.examine(cache, &place, &version) {
                    PackState::Unchanged(memory) => return Ok(memory),
                    PackState::Changed => self.state().pause(place.key, true),
                    PackState::Evicted => {}
                }
                self.state().remove(place.key, pack.key);
                cache.remove_pack(pack.key);
            } else if loading.is_some() {
                let making = self.begin_making(place.key, user)?;
                let made = self.make(cache, &place, &packs, making.key);
                if made.is_err() {
                    self.state().pause(place.key, false);
                }
                return made;
            } else {
                // Another thread may have made the pack meanwhile, so look for it again.
                loading = Some(cache.begin_loading(place.key)?);
            }
        }
    }

    /// Returns the packs of a folder that the cache has.
    fn packs_of(&self, cache: &Cache, folder: FileKey) -> Vec<Arc<Pack>> {
        let mut packs = self.state().packs.get(&folder).cloned().unwrap_or_default();
        packs.retain(|pack| cache.has_pack(pack.key));
        packs
    }

    /// Begins to make a pack of a folder for a user.
    ///
    /// # Errors
    /// [`Refusal::Unpacked`] in a pause of the folder; [`Refusal::Busy`] if too many packs are
    /// being made.
    fn begin_making(&self, folder: FileKey, user: u32) -> Result<Making<'_>, Refusal> {
        let mut state = self.state();
        let of_user = state.making.values().filter(|of| **of == user).count();
        if state.making.len() >= MAKING_MAX || of_user >= MAKING_PER_USER_MAX {
            return Err(Refusal::Busy);
        }
        if let Some(pause) = state.pauses.get_mut(&folder).filter(|pause| !pause.is_over()) {
            let may_make = std::mem::take(&mut pause.may_make);
            may_make.then_some(()).ok_or(Refusal::Unpacked)?;
        }
        state.last += 1;
        let key = FileKey { device: PACKS, inode: state.last };
        state.making.insert(key, user);
        Ok(Making { packs: self, key })
    }

    /// Makes a pack of the file and others beside it that are in none of `packs`.
    fn make(
        &self,
        cache: &Cache,
        place: &PublicPlace,
        packs: &[Arc<Pack>],
        key: FileKey,
    ) -> Result<Arc<Memory>, Refusal> {
        let mut draft = Draft::default();
        if !draft.add(place, &place.name) {
            return Err(Refusal::Unpacked);
        }
        let versions = packs.iter().flat_map(|pack| &pack.files).map(|(_, version)| *version);
        let packed: HashMap<FileKey, FileVersion> =
            versions.map(|version| (version.key, version)).collect();
        for name in names_in(place.folder.as_fd())? {
            let status = millrace_sys::entry_status(place.folder.as_fd(), &name).ok();
            let version = status.and_then(|status| FileVersion::from_status(&status));
            let is_new = |version: &FileVersion| {
                is_short(version)
                    && draft.has_room(version)
                    && packed.get(&version.key) != Some(version)
            };
            if version.as_ref().is_some_and(is_new) {
                draft.add(place, &name);
            }
        }
        if (draft.contents.len() as u64) < SHARED_FILE_BYTES_MIN {
            return Err(Refusal::Unpacked);
        }
        let versions: Vec<_> = draft.files.iter().map(|(_, version)| *version).collect();
        let bytes = pack_of(&versions, &draft.contents);
        draft.files.shrink_to_fit();
        let pack = Pack { key, files: draft.files };
        let memory = cache.add_pack(key, &bytes, pack.heap_bytes())?;
        self.state().add(place.key, pack);
        self.prune(cache);
        Ok(memory)
    }

    /// Removes the packs that the cache has evicted, once the number of packs has doubled. Those of
    /// a folder that is requested no more would stay otherwise.
    fn prune(&self, cache: &Cache) {
        let keys: Vec<FileKey> = {
            let state = self.state();
            if state.len() < state.prune_at {
                return;
            }
            state.packs.values().flatten().map(|pack| pack.key).collect()
        };
        // The cache has a lock of its own, so it is not called under this one. A pack that it does
        // not have never comes back.
        let is_evicted = |key: &FileKey| !cache.has_pack(*key);
        let evicted: HashSet<FileKey> = keys.into_iter().filter(is_evicted).collect();
        let mut state = self.state();
        state.packs.retain(|_, packs| {
            packs.retain(|pack| !evicted.contains(&pack.key));
            !packs.is_empty()
        });
        state.prune_at = PRUNE_MIN.max(2 * state.len());
    }

    fn state(&self) -> MutexGuard<'_, PacksState> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

impl PacksState {
    fn len(&self) -> usize {
        self.packs.values().map(Vec::len).sum()
    }

    fn add(&mut self, folder: FileKey, pack: Pack) {
        self.packs.entry(folder).or_default().push(Arc::new(pack));
    }

    fn remove(&mut self, folder: FileKey, pack: FileKey) {
        let Some(packs) = self.packs.get_mut(&folder) else { return };
        packs.retain(|other| other.key != pack);
        if packs.is_empty() {
            self.packs.remove(&folder);
        }
    }

    /// Begins a pause, unless there is one. In it, one more pack is made if `may_make`.
    fn pause(&mut self, folder: FileKey, may_make: bool) {
        if self.pauses.len() >= PAUSES_MAX {
            self.pauses.retain(|_, pause| !pause.is_over());
        }
        if self.pauses.get(&folder).is_none_or(Pause::is_over) {
            self.pauses.insert(folder, Pause { since: Instant::now(), may_make });
        }
    }
}

impl Pause {
    fn is_over(&self) -> bool {
        self.since.elapsed() >= MAKE_AFTER
    }
}

impl Pack {
    /// Returns the bytes of the names and versions.
    fn heap_bytes(&self) -> u64 {
        let of_file = |(name, _): &(Vec<u8>, FileVersion)| {
            (size_of::<(Vec<u8>, FileVersion)>() + name.len()) as u64
        };
        self.files.iter().map(of_file).sum()
    }

    /// Returns whether the pack has the file, maybe another version of it.
    fn has(&self, version: &FileVersion) -> bool {
        self.files.iter().any(|(_, of)| of.key == version.key)
    }

    /// Finds out whether the pack has a version of a file, and each of its files was unchanged
    /// at some moment of this call.
    fn examine(&self, cache: &Cache, place: &PublicPlace, version: &FileVersion) -> PackState {
        let is_as_before = |(name, version): &(Vec<u8>, FileVersion)| {
            let status = millrace_sys::entry_status(place.folder.as_fd(), name);
            status.is_ok_and(|status| FileVersion::from_status(&status) == Some(*version))
        };
        let has_version = self.files.iter().any(|(_, of)| of == version);
        if !has_version || !self.files.iter().all(is_as_before) {
            return PackState::Changed;
        }
        cache.find_pack(self.key).map_or(PackState::Evicted, PackState::Unchanged)
    }
}

/// Returns whether a pack may have a file.
fn is_short(version: &FileVersion) -> bool {
    (1..SHARED_FILE_BYTES_MIN).contains(&version.bytes)
}

/// Returns the names of files in a folder.
fn names_in(folder: BorrowedFd<'_>) -> Result<Vec<Vec<u8>>, Refusal> {
    let mut names = Vec::new();
    let visited = millrace_sys::visit_entries(folder, &mut |name, kind| {
        if matches!(kind, InodeKind::Regular | InodeKind::Other) {
            names.push(name.to_vec());
        }
        if names.len() < NAMES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    visited.map(|()| names).map_err(Refusal::Kernel)
}

impl Draft {
    fn has_room(&self, version: &FileVersion) -> bool {
        let bytes = self.contents.len() as u64 + version.bytes;
        let fits = pack_bytes(self.files.len() + 1, 0) as u64 + bytes <= PIECE_BYTES;
        fits && self.files.len() < FILES_MAX
    }

    /// Adds a file, if it may be in a pack, and does not change meanwhile. Returns whether it is
    /// there now.
    fn add(&mut self, place: &PublicPlace, name: &[u8]) -> bool {
        let now = millrace_sys::time_of_day();
        let Some(file) = open_public(place.folder.as_fd(), name) else { return false };
        let Ok(version) = readable_file(file.as_fd()) else { return false };
        let is_wanted = is_short(&version) && self.has_room(&version) && version.is_settled(now);
        if !is_wanted || self.keys.contains(&version.key) {
            return false;
        }
        // A write that the version includes may not have copied all of its bytes yet.
        millrace_sys::await_writers(file.as_fd());
        let mut bytes = vec![0; version.bytes as usize];
        // The mode belongs to the version, so all users could read the file until now.
        let is_read = read_exactly(file.as_fd(), 0, &mut bytes).is_ok()
            && millrace_sys::permits_all_users(file.as_fd(), 4) == Ok(true)
            && readable_file(file.as_fd()) == Ok(version);
        if is_read {
            self.contents.extend(bytes);
            self.keys.insert(version.key);
            self.files.push((name.to_vec(), version));
        }
        is_read
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;
    use crate::budget::{Budget, memory_for};

    /// Public folders with two files each, which a pack may have.
    struct Tree {
        path: PathBuf,
        packs: Packs,
        cache: Cache,
    }

    impl Tree {
        fn new(name: &str, folders: usize) -> Self {
            // Containers often have temporary files in a file system that is not shared.
            let bases = [std::env::temp_dir(), PathBuf::from("/dev/shm")];
            let paths = bases.map(|of| of.join(format!("iolited-{name}-{}", std::process::id())));
            let is_shared = |path: &PathBuf| {
                fs::write(path, b"file").unwrap();
                let version = readable_file(File::open(path).unwrap().as_fd());
                fs::remove_file(path).unwrap();
                version.is_ok()
            };
            let path = paths.into_iter().find(is_shared).expect("ext4, XFS or tmpfs");
            let set_mode = |path, mode| {
                fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            };
            for folder in (0..folders).map(|number| path.join(number.to_string())) {
                fs::create_dir_all(&folder).unwrap();
                set_mode(folder.clone(), 0o755);
                for name in ["a", "b"] {
                    fs::write(folder.join(name), [5; 20_000]).unwrap();
                    set_mode(folder.join(name), 0o644);
                }
            }
            set_mode(path.clone(), 0o755);
            let packs = Packs::new(PublicFolders::open(std::slice::from_ref(&path)).unwrap());
            let cache = Cache::new(Budget::new(1 << 20, 1000), None).unwrap();
            let tree = Self { path, packs, cache };
            while !(0..folders).all(|folder| tree.is_settled(folder)) {
                std::thread::yield_now();
            }
            tree
        }

        fn open(&self, folder: usize, name: &str) -> File {
            File::open(self.path.join(folder.to_string()).join(name)).unwrap()
        }

        /// Returns whether the files of a folder may be in a pack now.
        fn is_settled(&self, folder: usize) -> bool {
            let now = millrace_sys::time_of_day();
            let version = |name| readable_file(self.open(folder, name).as_fd()).unwrap();
            ["a", "b"].iter().all(|name| version(name).is_settled(now))
        }

        /// Returns the number of the memory with the pack of a folder.
        fn request(&self, folder: usize) -> Result<u64, Refusal> {
            let file = self.open(folder, "a");
            self.packs.find_or_make(&self.cache, 0, file.as_fd()).map(|memory| memory.id())
        }

        fn key(&self, folder: usize) -> FileKey {
            let file = self.open(folder, "a");
            let key = readable_file(file.as_fd()).unwrap().key;
            self.packs.folders.place_of(file.as_fd(), key).unwrap().key
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.path);
        }
    }

    #[test]
    fn packs_are_passed_while_another_one_is_being_made() {
        let tree = Tree::new("passed", 1);
        let pack = tree.request(0).unwrap();
        let loading = tree.cache.begin_loading(tree.key(0)).unwrap();
        assert_eq!(tree.request(0), Ok(pack));
        drop(loading);
        // The other file alone is too short for a pack.
        fs::set_permissions(tree.path.join("0/b"), Permissions::from_mode(0o600)).unwrap();
        assert_eq!(tree.request(0), Err(Refusal::Unpacked));
        assert!(tree.packs.state().packs.is_empty());
        assert_eq!(tree.cache.evictable_bytes(), 0, "the memory of the pack was removed");
    }

    #[test]
    fn few_packs_are_made_at_a_time() {
        let tree = Tree::new("making", 1);
        let begin = |user| tree.packs.begin_making(FileKey { device: 1, inode: 1 }, user);
        let making: Vec<_> = (0..9).filter_map(|_| begin(0).ok()).collect();
        assert_eq!(making.len(), MAKING_PER_USER_MAX);
        assert!(making.iter().all(|of| of.key.device == PACKS));
        assert_eq!(tree.request(0), Err(Refusal::Busy));
        let others: Vec<_> = (1..9).filter_map(|user| begin(user).ok()).collect();
        assert_eq!(others.len(), MAKING_MAX - MAKING_PER_USER_MAX);
        drop(making);
        assert!(tree.request(0).is_ok(), "that was no failure of the folder");
        drop(others);
        assert!(tree.packs.state().making.is_empty());
    }

    #[test]
    fn a_folder_whose_files_change_has_one_new_pack_in_a_pause() {
        let tree = Tree::new("pauses", 1);
        let begin = |folder| tree.packs.begin_making(folder, 0).map(drop);
        let key = tree.key(0);
        tree.request(0).unwrap();
        for _ in 0..3 {
            tree.packs.state().pause(key, true);
        }
        // The test may be slow: the pause begins in an hour, and is not over before.
        let begin_at = |at| tree.packs.state().pauses.get_mut(&key).unwrap().since = at;
        begin_at(Instant::now() + Duration::from_secs(3600));
        assert_eq!(begin(key), Ok(()));
        assert_eq!(begin(key), Err(Refusal::Unpacked));
        tree.packs.state().pause(key, true);
        assert_eq!(begin(key), Err(Refusal::Unpacked), "another change begins no other pause");
        begin_at(Instant::now().checked_sub(MAKE_AFTER).unwrap());
        assert_eq!((begin(key), begin(key)), (Ok(()), Ok(())));
        // An eviction is no change.
        let pack = tree.packs.state().packs[&key][0].key;
        tree.cache.remove_pack(pack);
        assert!(tree.request(0).is_ok());
        assert!(tree.packs.state().pauses[&key].is_over());
    }

    #[test]
    fn packs_that_were_evicted_are_removed() {
        let tree = Tree::new("evicted", 3 * PRUNE_MIN);
        let cached = |packs: &PacksState| {
            let packs = packs.packs.values().flatten();
            packs.filter(|pack| tree.cache.has_pack(pack.key)).count()
        };
        let mut last = None;
        for folder in 0..3 * PRUNE_MIN {
            last = Some(tree.request(folder).unwrap());
            let state = tree.packs.state();
            assert!(state.len() <= PRUNE_MIN.max(2 * cached(&state)), "{}", state.len());
        }
        let cached = cached(&tree.packs.state());
        assert!((8..=PRUNE_MIN / 2).contains(&cached), "1 MB has {cached} packs");
        assert_eq!(tree.request(3 * PRUNE_MIN - 1).ok(), last, "it is passed again");
    }

    #[test]
    fn names_and_versions_are_charged() {
        let tree = Tree::new("charged", 1);
        tree.request(0).unwrap();
        let memory = memory_for((pack_bytes(2, 0) + 2 * 20_000) as u64);
        let names = 2 * (size_of::<(Vec<u8>, FileVersion)>() + "a".len());
        assert_eq!(tree.cache.bytes(), memory + names as u64);
    }
}
