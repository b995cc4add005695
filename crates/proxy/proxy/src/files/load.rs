//! Reads a file into the memory of the cache.

use std::sync::Arc;

use millrace_files::{Errno, FileStatus, OpenFile};
use millrace_http_cache::{CachedHeader, Key};
use millrace_store::{Cache, NewEntry, Object};

use super::served_file::ServedFile;

/// The file that is read, and the place in the cache.
#[derive(Debug)]
pub(crate) struct FileLoad {
    file: Arc<dyn OpenFile>,
    /// The status when it was opened.
    status: FileStatus,
    key: Key,
    header: CachedHeader,
    name: Arc<[u8]>,
    now_ms: u64,
}

impl FileLoad {
    /// Returns the load of a file that is open and may be kept. `folder` is the path of its folder,
    /// for operators.
    pub(crate) fn new(served: &ServedFile, folder: &[u8], now_ms: u64) -> Option<Self> {
        let (file, status) = served.opened()?;
        let name = [b"file ", folder, b"/", &served.path].concat().into();
        Some(Self { file, status, key: served.key?, header: served.header.clone(), name, now_ms })
    }

    /// Returns the length of the file.
    pub(crate) fn length(&self) -> u64 {
        self.status.bytes
    }

    /// Reads the file. Returns `None` if it is not kept: the cache does not admit it or has no
    /// memory, or the file was changed meanwhile.
    ///
    /// # Errors
    /// EAGAIN if a disk has to be awaited and the caller may not wait. Those of reading.
    pub(crate) fn run(
        &self,
        cache: &Arc<Cache>,
        waits: bool,
    ) -> Result<Option<Arc<Object>>, Errno> {
        let entry = NewEntry {
            stored: self.header.clone(),
            variant: None,
            declared: Some(self.status.bytes),
            name: self.name.clone(),
            tags: Arc::new([]),
            since: cache.invalidation_seq(),
            own_invalidation: 0,
            stays_in_memory: true,
        };
        let (filler, woken) = cache.publish(self.key, None, entry, self.now_ms);
        assert!(woken.is_empty(), "there was no lease for which an exchange could wait");
        let Ok(mut filler) = filler else { return Ok(None) };
        let mut at = 0;
        while at < self.status.bytes {
            let Ok(memory) = filler.unfilled(self.now_ms) else { return Ok(None) };
            let count = match waits {
                true => self.file.read_to_keep(at, memory)?,
                false => self.file.read_at(at, memory, false)?,
            };
            if count == 0 {
                return Ok(None);
            }
            at += count as u64;
            // Only a whole object is found by its key, so it has no readers yet.
            let woken = filler.advance(count, self.now_ms);
            assert!(woken.is_empty(), "an object that is not whole has no readers");
        }
        if self.file.status()? != self.status {
            return Ok(None);
        }
        let object = filler.object().clone();
        let woken = filler.finish(self.now_ms);
        assert!(woken.is_empty(), "an object that is not whole has no readers");
        Ok(Some(object))
    }
}

#[cfg(test)]
mod tests {
    use millrace_files::SimFolderFaults;

    use super::super::test_folder::{NOW_MS, TestFolder, cache};
    use super::*;

    /// The cache admits a file of this length at its first request.
    const KEPT_BYTES: usize = 70_000;

    /// Loads the only file of a folder.
    fn load(
        folder: &TestFolder,
        cache: &Arc<Cache>,
        faults: SimFolderFaults,
        waits: bool,
    ) -> Result<Option<Vec<u8>>, Errno> {
        let served = folder.serve("a");
        let key = served.key.expect("it was left alone");
        let load = FileLoad::new(&served, b"/sim/site", NOW_MS).expect("it is open");
        folder.folder.set_faults(faults);
        let loaded = load.run(cache, waits);
        folder.folder.set_faults(SimFolderFaults::default());
        let found = cache.find(key).map(|object| object.body.bytes().unwrap().to_vec());
        let object = loaded?.map(|object| object.body.bytes().unwrap().to_vec());
        assert_eq!(object, found, "the object that was published");
        Ok(object)
    }

    #[test]
    fn a_file_is_read_whole() {
        let bytes = vec![7; KEPT_BYTES];
        for (waits, short) in [(true, 0), (true, 2), (false, 2)] {
            let (folder, cache) = (TestFolder::new(&[("a", &bytes)]), cache());
            let faults = SimFolderFaults { short, waits: u32::from(waits), ..Default::default() };
            assert!(load(&folder, &cache, faults, waits) == Ok(Some(bytes.clone())));
        }
    }

    #[test]
    fn what_cannot_be_read_at_once_leaves_nothing() {
        let (folder, cache) = (TestFolder::new(&[("a", &[7; 100])]), cache());
        for (faults, error) in [
            (SimFolderFaults { waits: 1, ..Default::default() }, Errno::AGAIN),
            (SimFolderFaults { io_errors: 1, ..Default::default() }, Errno::IO),
        ] {
            assert_eq!(load(&folder, &cache, faults, false), Err(error));
            assert_eq!((cache.clear().objects, cache.slab().stats().live), (0, 0));
        }
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_not_kept() {
        let faults = SimFolderFaults { resized: 1, ..Default::default() };
        let cache = cache();
        for length in [1, 100, KEPT_BYTES] {
            let folder = TestFolder::new(&[("a", &vec![7; length])]);
            assert_eq!(load(&folder, &cache, faults, true), Ok(None));
            assert_eq!((cache.clear().objects, cache.slab().stats().live), (0, 0));
        }
    }
}
