//! The files that a worker has found, by the requests for them.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_config::FolderRoute;
use millrace_engine::{Engine, Instant};
use millrace_files::{AcceptedCodings, FoundFile, FoundScript};
use millrace_http_cache::{HashKey, Key, KeyHasher};

use super::served_file::{OpenCount, ServedFile};

/// The folder, path and accepted codings of a request, as a hash with a secret.
pub(crate) type FileName = Key;

/// The file of a folder for requests with one name, or the reason why there is none to send.
#[derive(Clone, Debug)]
pub(crate) enum Finding {
    File(Rc<ServedFile>),
    /// The path of a folder lacks its slash.
    Redirect,
    Script(Rc<FoundScript>),
    /// A program, which is never sent.
    Program,
    Missing,
    Forbidden,
}

/// The latest findings. They count for the time `file-check` of their folder. Of two generations,
/// the older one is dropped when the newer one is full: a finding that is used moves to the newer
/// one.
#[derive(Debug, Default)]
pub(crate) struct FileTable {
    newer: Generation,
    older: Generation,
    /// The number of open files.
    open: OpenCount,
    /// The most open files.
    pub(crate) open_max: usize,
    /// The secret with which names are hashed, created when it is first needed.
    hash: Option<HashKey>,
    /// The text of the last name.
    text: Vec<u8>,
}

type Generation = HashMap<FileName, Entry, BuildHasherDefault<KeyHasher>>;

#[derive(Debug)]
struct Entry {
    finding: Finding,
    checked: Instant,
    /// Keeps the address of the folder, which is a part of the name, from being reused.
    _folder: Arc<FolderRoute>,
}

/// The most names of a generation: about 4 MB.
const NAMES_MAX: usize = 8192;

impl FileTable {
    /// Returns the name of a request for `path` in a folder.
    pub(crate) fn name<E: Engine>(
        &mut self,
        engine: &mut E,
        folder: &Arc<FolderRoute>,
        path: &[u8],
        accepted: AcceptedCodings,
    ) -> FileName {
        let hash = self.hash(engine);
        self.text.clear();
        self.text.extend_from_slice(&(Arc::as_ptr(folder) as usize).to_ne_bytes());
        // Only the order of the codings matters.
        self.text.extend(accepted.preferred().map(|coding| coding as u8));
        self.text.push(b'/');
        self.text.extend_from_slice(path);
        Key::from_text(&hash, &self.text)
    }

    /// Returns the secret of this table, for hashes that are compared only within one response.
    pub(crate) fn hash<E: Engine>(&mut self, engine: &mut E) -> HashKey {
        *self.hash.get_or_insert_with(|| {
            let random = u128::from(engine.random()) << 64 | u128::from(engine.random());
            HashKey::new(random.to_ne_bytes())
        })
    }

    /// Returns a finding that was made less than `check` ago.
    pub(crate) fn find(
        &mut self,
        name: FileName,
        now: Instant,
        check: Duration,
    ) -> Option<Finding> {
        let is_current = |entry: &Entry| now.since(entry.checked) < check;
        if let Some(entry) = self.newer.get(&name) {
            return is_current(entry).then(|| entry.finding.clone());
        }
        let entry = self.older.remove(&name)?;
        let finding = is_current(&entry).then(|| entry.finding.clone());
        self.keep(name, entry);
        finding
    }

    /// Returns the form in which a found file is served. It is that of the last finding if the file
    /// has not changed since, so that the cache still has its bytes. Returns `None` if too many
    /// files are open.
    pub(crate) fn served(
        &mut self,
        name: FileName,
        found: FoundFile,
        folder: &FolderRoute,
        (hash, kept_bytes_max): (Option<&HashKey>, u64),
        now_ms: u64,
    ) -> Option<Rc<ServedFile>> {
        if let Some(Entry { finding: Finding::File(last), .. }) = self.newer.get(&name)
            && last.is_same(&found, now_ms)
        {
            return Some(last.clone());
        }
        if self.open.get() >= self.open_max {
            self.begin_generation();
        }
        if self.open.get() >= self.open_max {
            self.begin_generation();
        }
        if self.open.get() >= self.open_max {
            return None;
        }
        let guard = self.open.guard();
        Some(ServedFile::new(found, &folder.rules, hash, kept_bytes_max, now_ms, guard))
    }

    /// Adds or replaces the finding of a name.
    pub(crate) fn insert(
        &mut self,
        name: FileName,
        finding: Finding,
        folder: &Arc<FolderRoute>,
        now: Instant,
    ) {
        self.older.remove(&name);
        self.keep(name, Entry { finding, checked: now, _folder: folder.clone() });
    }

    /// Removes the finding of a name.
    pub(crate) fn remove(&mut self, name: FileName) {
        self.newer.remove(&name);
        self.older.remove(&name);
    }

    /// Removes all findings: another configuration is in force.
    pub(crate) fn clear(&mut self) {
        (self.newer, self.older) = Default::default();
    }

    fn keep(&mut self, name: FileName, entry: Entry) {
        if self.newer.len() >= NAMES_MAX {
            self.begin_generation();
        }
        self.newer.insert(name, entry);
    }

    fn begin_generation(&mut self) {
        self.older = std::mem::take(&mut self.newer);
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_folder::TestFolder;
    use super::*;

    const CHECK: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Instant {
        Instant::from_nanoseconds(ms * 1_000_000)
    }

    /// Returns whether the table has a finding for a name.
    fn has(table: &mut FileTable, number: u128, ms: u64) -> bool {
        table.find(Key(number), at(ms), CHECK).is_some()
    }

    #[test]
    fn a_finding_counts_for_the_time_of_the_check() {
        let (folder, mut table) = (TestFolder::new(&[]), FileTable::default());
        table.insert(Key(1), Finding::Missing, &folder.route, at(5));
        assert!(has(&mut table, 1, 5) && has(&mut table, 1, 1004) && !has(&mut table, 1, 1005));
        assert!(!has(&mut table, 2, 5));
        assert!(table.find(Key(1), at(5), Duration::ZERO).is_none(), "0s: it never counts");
        table.insert(Key(1), Finding::Forbidden, &folder.route, at(1005));
        assert!(has(&mut table, 1, 1005));
        table.remove(Key(1));
        assert!(!has(&mut table, 1, 1005));
    }

    #[test]
    fn of_many_findings_those_that_are_used_remain() {
        let (folder, mut table) = (TestFolder::new(&[]), FileTable::default());
        let unused = NAMES_MAX as u128;
        for number in 0..3 * NAMES_MAX as u128 {
            table.insert(Key(number), Finding::Missing, &folder.route, at(0));
            assert!(has(&mut table, 0, 0), "after {number}");
        }
        assert!(!has(&mut table, unused - 1, 0) && has(&mut table, 3 * unused - 1, 0));
        assert!(table.newer.len() <= NAMES_MAX && table.older.len() <= NAMES_MAX);
    }

    #[test]
    fn a_file_keeps_its_form_until_it_changes() {
        let folder = TestFolder::new(&[("a", b"one"), ("b", b"two")]);
        let mut table = FileTable { open_max: 9, ..FileTable::default() };
        let mut serve = |path: &str| {
            let file = folder.served(&mut table, Key(1), path).unwrap();
            table.insert(Key(1), Finding::File(file.clone()), &folder.route, at(0));
            file
        };
        let first = serve("a");
        assert!(Rc::ptr_eq(&first, &serve("a")) && first.key.is_some());
        let other = serve("b");
        assert!(first.key != other.key && first.header.etag_bytes() != other.header.etag_bytes());
        assert!(folder.folder.rewrite(b"b", b"2"));
        let changed = serve("b");
        assert_eq!((changed.length, changed.key), (1, None), "it changed just now");
        assert!(!Rc::ptr_eq(&changed, &serve("b")), "another change might leave its times");
    }

    #[test]
    fn files_are_closed_before_too_many_are_open() {
        let folder = TestFolder::new(&[("a", b"a"), ("b", b"b"), ("c", b"c")]);
        let mut table = FileTable { open_max: 2, ..FileTable::default() };
        let mut served = Vec::new();
        for (number, path) in [(1, "a"), (2, "b")] {
            let file = folder.served(&mut table, Key(number), path).unwrap();
            table.insert(Key(number), Finding::File(file.clone()), &folder.route, at(0));
            served.push(file);
        }
        assert_eq!(table.open.get(), 2);
        assert!(folder.served(&mut table, Key(3), "c").is_none(), "responses hold both files");
        served[0].close();
        assert!(folder.served(&mut table, Key(3), "c").is_some());
        let source = served[1].source();
        drop(served);
        assert_eq!(table.open.get(), 1, "a response holds the file");
        drop(source);
        assert_eq!(table.open.get(), 0);
    }
}
