//! A simulated folder for unit tests, and the files of it as they are served.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use iolite::Slab;
use millrace_config::FolderRoute;
use millrace_files::{
    AcceptedCodings, FileTime, FoundFile, OpenMode, RequestPath, Resolution, SimFolder, resolve,
};
use millrace_http_cache::{HashKey, Key};
use millrace_store::{Bounds, Cache};

use super::served_file::ServedFile;
use super::table::{FileName, FileTable};

/// The time of day in milliseconds. The files were changed an hour before.
pub(super) const NOW_MS: u64 = 1_795_256_160_000;
/// The length up to which files are kept.
pub(super) const KEPT_BYTES_MAX: u64 = 1 << 20;
const HASH: HashKey = HashKey::new([7; 16]);

/// A folder and the route that serves it.
pub(super) struct TestFolder {
    pub(super) folder: SimFolder,
    pub(super) route: Arc<FolderRoute>,
    /// The codings that clients accept.
    pub(super) accepted: AcceptedCodings,
}

impl TestFolder {
    pub(super) fn new(files: &[(&str, &[u8])]) -> Self {
        let config = millrace_config::from_arguments(["serve", "/sim/site"].map(str::to_owned));
        let route = config.unwrap().services[0].routes()[0].folder.clone();
        let folder = SimFolder::new(1);
        folder.set_now(time(NOW_MS - 3_600_000));
        for (path, bytes) in files {
            folder.write(path.as_bytes(), bytes);
        }
        folder.set_now(time(NOW_MS));
        Self { folder, route: route.unwrap(), accepted: AcceptedCodings::NONE }
    }

    /// Finds and opens a file.
    pub(super) fn found(&self, path: &str) -> FoundFile {
        let path = RequestPath::decode(format!("/{path}").as_bytes()).unwrap();
        match resolve(&self.folder, &self.route.rules, &path, self.accepted, OpenMode::Waiting) {
            Ok(Resolution::File(found)) => found,
            other => panic!("{other:?}"),
        }
    }

    /// Returns a file as a table serves it.
    pub(super) fn served(
        &self,
        table: &mut FileTable,
        name: FileName,
        path: &str,
    ) -> Option<Rc<ServedFile>> {
        let kept = (Some(&HASH), KEPT_BYTES_MAX);
        table.served(name, self.found(path), &self.route, kept, NOW_MS)
    }

    /// Returns a file as a new table serves it.
    pub(super) fn serve(&self, path: &str) -> Rc<ServedFile> {
        let mut table = FileTable::default();
        table.open_max = 1;
        self.served(&mut table, Key(0), path).unwrap()
    }
}

/// Returns an empty cache.
pub(super) fn cache() -> Arc<Cache> {
    let bounds = Bounds { bytes: 8 << 20, object_bytes: 1 << 20, variants: 4, prefaults: true };
    Cache::new(Slab::on_heap(8 << 20).unwrap(), HASH, bounds)
}

fn time(ms: u64) -> FileTime {
    let time = Duration::from_millis(ms);
    FileTime { seconds: time.as_secs() as i64, nanoseconds: time.subsec_nanos() }
}
