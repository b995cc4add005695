//! The state of an exchange at the files and programs of a folder.

use std::rc::Rc;
use std::sync::Arc;

use iolite::ProgramResponse;
use millrace_config::FolderRoute;
use millrace_engine::{Charge, HeldBytes, Instant, Key};
use millrace_fastcgi::CONTENT_BYTES_MAX;
use millrace_files::{Errno, FoundScript, JobKind, UploadFile};
use millrace_store::WaiterId;

use super::kept_bytes::Loaded;
use super::reader::FileReader;
use super::search::Found;
use super::served_file::{FileSource, LoadGuard, ServedFile};
use super::shared_file::SharedFile;
use super::table::FileName;
use super::threads::{FileThreads, PendingWork};

/// The state of an exchange at the files and programs of a folder.
#[derive(Debug, Default)]
pub(crate) struct FileContext {
    /// The name of the request in the worker's table.
    pub(crate) name: FileName,
    /// When the search for the file began.
    pub(crate) searched: Instant,
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
    /// The same, if it is received into the pool of its program.
    pub(crate) pooled: Option<iolite::Buffer>,
    /// The file into which that body is received.
    pub(crate) receiving: Option<UploadFile>,
    /// That body, if it is in a file.
    pub(crate) stored: Option<Arc<UploadFile>>,
    /// The reader that sends it to the program.
    pub(crate) upload: Option<Box<FileReader>>,
    /// The work of a thread that the exchange waits for.
    pub(crate) work: Option<FileWork>,
    /// The program that has the request, or will have it.
    pub(crate) program: Option<ProgramUse>,
    /// The response of that program, when it has arrived.
    pub(crate) response: Option<ProgramResponse>,
}

/// A request at a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProgramUse {
    /// The connection to the program.
    pub(crate) slot: Key,
    /// Whether the request was sent. Otherwise it waits for room.
    pub(crate) is_sent: bool,
}

/// A file that the response of an origin names.
#[derive(Clone, Debug)]
pub(crate) struct NamedFile {
    pub(crate) folder: Arc<FolderRoute>,
    /// The path below the folder, with a slash at its beginning. Escapes are not decoded yet.
    pub(crate) path: Vec<u8>,
}

/// A body that is read from a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileBody {
    Request,
    Response,
}

/// Work that a thread does for an exchange.
#[derive(Debug)]
pub(crate) enum FileWork {
    /// Finds the file.
    Resolve(PendingWork<Found>),
    /// Reads it into the cache.
    Load(PendingWork<Loaded>, LoadGuard),
    /// Gets its bytes from iolited, if they are there.
    Share(PendingWork<Option<Arc<SharedFile>>>, LoadGuard),
    /// Reads a part of it, or of a stored body, into the page cache.
    Read(PendingWork<()>),
    /// Such a read that was refused, because too much work waits. It is tried again.
    RefusedRead(FileBody),
    /// Writes bytes of a body to its file. Their memory is charged meanwhile.
    Store(PendingWork<UploadFile>, Charge),
}

/// The bytes of a stored body that one step sends: the longest record of FastCGI, in whole pages.
const UPLOAD_STEP_BYTES: usize = CONTENT_BYTES_MAX / 4096 * 4096;

impl FileContext {
    /// Begins to send the body of the request, if it is in a file, from its first byte on.
    pub(crate) fn begin_upload(&mut self) {
        let reader = |file: &Arc<UploadFile>| {
            Box::new(FileReader::of_body(file.clone(), file.bytes(), UPLOAD_STEP_BYTES))
        };
        self.upload = self.stored.as_ref().map(reader);
        // A read for an upload that was begun before.
        self.work.take_if(|work| matches!(work, FileWork::Read(_) | FileWork::RefusedRead(_)));
    }

    /// Returns whether the upload waits for a thread, which reads bytes of a stored body.
    pub(crate) fn upload_waits(&self) -> bool {
        let is_read = matches!(self.work, Some(FileWork::Read(_) | FileWork::RefusedRead(_)));
        self.upload.is_some() && is_read
    }

    /// Has a thread read the bytes that the reader of a body awaits. Returns `false` if too much
    /// work waits: the reader still awaits them, and the caller tries again.
    pub(crate) fn begin_read(
        &mut self,
        body: FileBody,
        threads: &FileThreads,
        waiter: WaiterId,
    ) -> bool {
        let reader = match body {
            FileBody::Request => &mut self.upload,
            FileBody::Response => &mut self.reader,
        };
        let reader = reader.as_mut().expect("the caller's body is read from a file");
        let read = reader.awaited_read().expect("a reader waits only for bytes of a disk");
        let Ok(pending) = threads.run(JobKind::Io, waiter, read) else {
            self.work = Some(FileWork::RefusedRead(body));
            return false;
        };
        reader.note_fetched();
        self.work = Some(FileWork::Read(pending));
        true
    }

    /// Returns the body whose read was refused and has to be tried again.
    pub(crate) fn refused_read(&self) -> Option<FileBody> {
        match self.work {
            Some(FileWork::RefusedRead(body)) => Some(body),
            _ => None,
        }
    }

    /// Takes the result of a read by a thread. Returns `None` if it is not done.
    pub(crate) fn take_read(&mut self) -> Option<Result<(), Errno>> {
        let work = match &self.work {
            Some(FileWork::Read(work)) => work,
            Some(FileWork::RefusedRead(_)) => return None,
            _ => return Some(Ok(())),
        };
        let done = work.take();
        if done.is_some() {
            self.work = None;
        }
        done
    }
}
