//! Opens the folders for request bodies that are too long for memory: those of the cache's disks.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use millrace_config::Config;
use millrace_files::UploadFolders;
use millrace_proxy::SharedState;

use crate::console;

/// Opens the folders of the disks, if there are any. A folder that cannot be opened is reported;
/// long bodies are then sent while they arrive. Called after the disks are opened and before the
/// first worker runs. A predecessor may still use the folders, which does not matter.
pub(crate) fn open(config: &Config, shared: &Arc<SharedState>) {
    let disks = config.cache.as_ref().map_or(&[][..], |cache| &cache.disks);
    if disks.is_empty() {
        return;
    }
    let state = Arc::downgrade(shared);
    let close = move |file: OwnedFd| {
        if let Some(shared) = state.upgrade() {
            shared.files.drop_later(file);
        }
    };
    let folders = disks.iter().map(|disk| Path::new(&disk.folder));
    match UploadFolders::open(folders, Box::new(close)) {
        Ok(folders) => {
            let is_first = shared.uploads.set(Arc::new(folders)).is_ok();
            assert!(is_first, "the folders are opened once");
        }
        Err((number, error)) => console::log(&format!(
            "--disk {}: no long request bodies are stored: {}",
            disks[number].folder.display(),
            std::io::Error::from(error)
        )),
    }
}
