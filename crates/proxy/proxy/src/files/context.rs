//! The state of an exchange at the files and programs of a folder.

use std::rc::Rc;
use std::sync::Arc;

use millrace_config::FolderRoute;
use millrace_engine::HeldBytes;
use millrace_files::{Errno, FoundScript, Resolution};

use super::kept_bytes::Loaded;
use super::reader::FileReader;
use super::served_file::{FileSource, LoadGuard, ServedFile};
use super::table::FileName;
use super::threads::PendingWork;

/// The state of an exchange at the files and programs of a folder.
#[derive(Debug, Default)]
pub(crate) struct FileContext {
    /// The name of the request in the worker's table.
    pub(crate) name: FileName,
    /// The file that the response of an origin names. Then it is looked for, not that of the
    /// request.
    pub(crate) named: Option<NamedFile>,
    /// The file that is the response.
    pub(crate) served: Option<Rc<ServedFile>>,
    /// Its bytes, if they are not in the cache. The exchange keeps them, because the file may be
    /// closed for others before its response has its turn on the connection.
    pub(crate) source: Option<FileSource>,
    /// The reader of its body, if that is not in the cache.
    pub(crate) reader: Option<Box<FileReader>>,
    /// The script that responds.
    pub(crate) script: Option<Rc<FoundScript>>,
    /// The body of a request for a program, if it is received before the request is sent.
    pub(crate) body: Option<HeldBytes>,
    /// The work of a thread that the exchange waits for.
    pub(crate) work: Option<FileWork>,
}

/// A file that the response of an origin names.
#[derive(Clone, Debug)]
pub(crate) struct NamedFile {
    pub(crate) folder: Arc<FolderRoute>,
    /// The path below the folder, with a slash at its beginning. Escapes are not decoded yet.
    pub(crate) path: Vec<u8>,
}

/// Work that a thread does for an exchange.
#[derive(Debug)]
pub(crate) enum FileWork {
    /// Finds the file.
    Resolve(PendingWork<Resolution>),
    /// Reads it into the cache.
    Load(PendingWork<Loaded>, LoadGuard),
    /// Reads a part of it into the page cache.
    Read(PendingWork<()>),
}

impl FileContext {
    /// Takes the result of a read by a thread. Returns `None` if it is not done.
    pub(crate) fn take_read(&mut self) -> Option<Result<(), Errno>> {
        let Some(FileWork::Read(work)) = &self.work else { return Some(Ok(())) };
        let done = work.take();
        if done.is_some() {
            self.work = None;
        }
        done
    }
}
