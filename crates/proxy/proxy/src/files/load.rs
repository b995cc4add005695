//! Reads a file into the memory of the cache, compressed if the response is.

use std::sync::Arc;

use millrace_config::FolderRoute;
use millrace_files::{Coding, CompressionLevel, Errno, FileStatus, JobKind, OpenFile};
use millrace_store::Cache;

use super::kept_bytes::{KeptBytes, Loaded};
use super::served_file::ServedFile;

/// The file that is read, and the place in the cache.
#[derive(Debug)]
pub(crate) struct FileLoad {
    file: Arc<dyn OpenFile>,
    /// The status when it was opened.
    status: FileStatus,
    kept: KeptBytes,
    /// The coding into which the bytes are compressed.
    compression: Option<(Coding, CompressionLevel)>,
}

impl FileLoad {
    /// Returns the load of a file of `folder` that is open and may be kept.
    pub(crate) fn new(served: &ServedFile, folder: &FolderRoute, now_ms: u64) -> Option<Self> {
        let (file, status) = served.opened()?;
        let folder_path = folder.path.as_os_str().as_encoded_bytes();
        let mut name = [b"file ", folder_path, b"/", &served.path].concat();
        let compression = served.compressed.as_ref().map(|(coding, _)| {
            name.extend_from_slice(coding.suffix().as_bytes());
            let rules = folder.rules.compression.as_ref();
            (*coding, rules.map_or(CompressionLevel::Default, |rules| rules.level))
        });
        let (key, header, name) = (served.key?, served.header.clone(), name.into());
        let kept = KeptBytes { key, header, name, now_ms };
        Some(Self { file, status, kept, compression })
    }

    /// Returns whether the load takes so little time that a worker can do it.
    pub(crate) fn is_short(&self) -> bool {
        self.status.bytes <= READ_BYTES_MAX && self.compression.is_none()
    }

    /// Returns the kind of the work for a thread.
    pub(crate) fn kind(&self) -> JobKind {
        if self.compression.is_some() { JobKind::Compression } else { JobKind::Io }
    }

    /// Reads the file, unless another worker has done so since the caller looked for its bytes.
    ///
    /// # Errors
    /// EAGAIN if a disk has to be awaited and the caller may not wait. Those of reading.
    pub(crate) fn run(&self, cache: &Arc<Cache>, waits: bool) -> Result<Loaded, Errno> {
        if waits && let Some(object) = cache.find(self.kept.key) {
            return Ok(Loaded::Kept(object));
        }
        let is_current = || Ok(self.file.status()? == self.status);
        if let Some((coding, level)) = self.compression {
            let mut bytes = vec![0; usize::try_from(self.status.bytes).map_err(|_| Errno::FBIG)?];
            let mut at = 0;
            while at < bytes.len() {
                match self.file.read_to_keep(at as u64, &mut bytes[at..])? {
                    0 => return Ok(Loaded::NotKept),
                    count => at += count,
                }
            }
            let compressed = coding.compress(&[&bytes], level);
            if compressed.len() >= bytes.len() {
                return Ok(Loaded::Incompressible);
            }
            return self.kept.store_copy(cache, &compressed, is_current);
        }
        let read = |at, memory: &mut [u8]| match waits {
            true => self.file.read_to_keep(at, memory),
            false => self.file.read_at(at, memory, false),
        };
        self.kept.store(cache, self.status.bytes, read, is_current)
    }
}

/// A worker reads up to this many bytes itself: to hand them to a thread would cost more.
const READ_BYTES_MAX: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use millrace_files::{AcceptedCodings, SimFolderFaults};

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
        let load = FileLoad::new(&served, &folder.route, NOW_MS).expect("it is open");
        folder.folder.set_faults(faults);
        let loaded = load.run(cache, waits);
        folder.folder.set_faults(SimFolderFaults::default());
        let found = cache.find(key).map(|object| object.body.bytes().unwrap().to_vec());
        let object = match loaded? {
            Loaded::Kept(object) => Some(object.body.bytes().unwrap().to_vec()),
            Loaded::NotKept | Loaded::Incompressible => None,
        };
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
    fn a_file_is_compressed_once() {
        let text = b"text ".repeat(KEPT_BYTES / 5);
        let mut folder = TestFolder::new(&[("a", b""), ("a.css", &text)]);
        folder.accepted = AcceptedCodings::parse([&b"gzip"[..]].into_iter());
        let (served, cache) = (folder.serve("a.css"), cache());
        let (coding, plain) = served.compressed.as_ref().expect("text is compressed");
        assert!(*coding == Coding::Gzip && served.key != plain.key);
        assert_ne!(served.header.etag_bytes(), plain.header.etag_bytes());
        let load = FileLoad::new(&served, &folder.route, NOW_MS).expect("it is open");
        assert!(!load.is_short());
        let Ok(Loaded::Kept(object)) = load.run(&cache, true) else { panic!("admitted") };
        let bytes = object.body.bytes().unwrap().to_vec();
        assert_eq!(bytes, Coding::Gzip.compress(&[&text], CompressionLevel::Default));
        assert!(cache.find(served.key.unwrap()).is_some());
        served.close();
        assert!(plain.source().is_none(), "both forms have one open file");
    }

    #[test]
    fn bytes_that_another_worker_has_stored_are_not_read_again() {
        let text = b"text ".repeat(KEPT_BYTES / 5);
        let mut folder = TestFolder::new(&[("a.css", &text)]);
        folder.accepted = AcceptedCodings::parse([&b"gzip"[..]].into_iter());
        let (served, cache) = (folder.serve("a.css"), cache());
        let load = || FileLoad::new(&served, &folder.route, NOW_MS).expect("it is open");
        let (first, second) = (load(), load());
        let Ok(Loaded::Kept(object)) = first.run(&cache, true) else { panic!("admitted") };
        // A read would fail.
        folder.folder.set_faults(SimFolderFaults { io_errors: 1, ..Default::default() });
        let Ok(Loaded::Kept(found)) = second.run(&cache, true) else { panic!("in the cache") };
        assert!(Arc::ptr_eq(&object, &found));
        assert_eq!((load().kind(), cache.clear().objects), (JobKind::Compression, 1));
    }

    #[test]
    fn bytes_that_do_not_become_shorter_are_sent_as_they_are() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..KEPT_BYTES).map(|_| random()).collect();
        let mut folder = TestFolder::new(&[("a.css", &noise)]);
        folder.accepted = AcceptedCodings::parse([&b"br"[..]].into_iter());
        let (served, cache) = (folder.serve("a.css"), cache());
        let load = FileLoad::new(&served, &folder.route, NOW_MS).expect("it is open");
        assert!(matches!(load.run(&cache, true), Ok(Loaded::Incompressible)));
        assert!(served.instead().is_none());
        served.note_incompressible();
        let plain = served.instead().expect("the plain form");
        assert!(plain.compressed.is_none());
        plain.close();
        assert!(served.source().is_none(), "both forms have one open file");
        let other = folder.serve("a.css");
        for _ in 0..3 {
            assert!(other.instead().is_none());
            other.note_not_kept();
        }
        assert!(other.instead().is_some(), "the cache never keeps it");
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
