//! A found file in the form in which it is served.

use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use iolite::service::SHARED_FILE_BYTES_MIN;
use millrace_engine::FileRead;
use millrace_files::{
    Coding, CompressionLevel, Errno, FileStatus, FolderRules, FoundFile, OpenFile, file_header,
    listing_header,
};
use millrace_http_cache::{CachedHeader, HashKey, Key};

use super::shared_file::SharedFile;

/// A file with the header of its response.
#[derive(Debug)]
pub(crate) struct ServedFile {
    pub(crate) header: CachedHeader,
    pub(crate) length: u64,
    /// The path of the original below its folder. Empty for a listing.
    pub(crate) path: Vec<u8>,
    /// The status when it was opened; `None` for a listing.
    pub(super) status: Option<FileStatus>,
    /// The key of its bytes in the cache. `None` if they are not kept there: the file is too long,
    /// empty, or was changed just now.
    pub(crate) key: Option<Key>,
    /// The coding into which the bytes are compressed, and the file as it is. Only the cache has
    /// the compressed bytes.
    pub(crate) compressed: Option<(Coding, Rc<ServedFile>)>,
    /// How often it may still be compressed, if the cache does not keep the result.
    compressions_left: Cell<u8>,
    /// The open file, which all its forms have. `None` once the cache has its bytes.
    source: Rc<RefCell<Option<FileSource>>>,
    /// Whether its bytes are being read into the cache, or received from iolited: see
    /// [`LoadGuard`].
    is_loading: Cell<bool>,
    /// Until then, in milliseconds since 1970, iolited is not tried: it did not have the bytes.
    unshared_until_ms: Cell<u64>,
    /// The bytes in memory of iolited, while a response has them: all responses share them.
    shared: RefCell<Weak<SharedFile>>,
}

/// The bytes of a file that are not in the cache. A file is open until the last copy is dropped.
#[derive(Clone, Debug)]
pub(crate) enum FileSource {
    File { file: Arc<dyn OpenFile>, _guard: Rc<OpenGuard> },
    Memory(Arc<dyn FileRead>),
}

impl FileSource {
    pub(crate) fn reader(&self) -> Arc<dyn FileRead> {
        match self {
            Self::File { file, .. } => file.clone(),
            Self::Memory(bytes) => bytes.clone(),
        }
    }
}

/// Marks a file as being read into the cache, until it is dropped.
#[derive(Debug)]
pub(crate) struct LoadGuard(Rc<ServedFile>);

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.0.is_loading.set(false);
    }
}

/// The number of files that a worker keeps open.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenCount(Rc<Cell<usize>>);

/// Counts one open file until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenGuard(OpenCount);

impl OpenCount {
    pub(super) fn get(&self) -> usize {
        self.0.get()
    }

    pub(super) fn guard(&self) -> OpenGuard {
        self.0.set(self.0.get() + 1);
        OpenGuard(self.clone())
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.0.set(self.0.0.get() - 1);
    }
}

impl ServedFile {
    /// Creates the form of a found file. Its bytes are kept in the cache if there is a `hash` of
    /// the cache's keys, the file has at most `kept_bytes_max` bytes, and it was left alone for
    /// [`KEEP_AFTER_MS`]. Until then, a second change might leave its times as they are.
    pub(super) fn new(
        found: FoundFile,
        rules: &FolderRules,
        hash: Option<&HashKey>,
        kept_bytes_max: u64,
        now_ms: u64,
        guard: OpenGuard,
    ) -> Rc<Self> {
        let status = found.opened.status;
        let is_kept = (1..=kept_bytes_max).contains(&status.bytes)
            && status.is_unchanged_for(KEEP_AFTER_MS, now_ms);
        let hash = hash.filter(|_| is_kept);
        let source = FileSource::File { file: found.opened.file.clone(), _guard: Rc::new(guard) };
        let source = Rc::new(RefCell::new(Some(source)));
        let level = rules.compression.as_ref().map(|rules| rules.level).unwrap_or_default();
        let form = |compressed: Option<(Coding, Rc<Self>)>| {
            let coding = compressed.as_ref().map(|(coding, _)| *coding);
            Rc::new(Self {
                header: file_header(&found, rules, coding, now_ms),
                length: status.bytes,
                key: hash.map(|hash| key_of(hash, &status, coding.map(|coding| (coding, level)))),
                path: found.path.clone(),
                status: Some(status),
                compressed,
                compressions_left: Cell::new(COMPRESSIONS_MAX),
                source: source.clone(),
                is_loading: Cell::new(false),
                unshared_until_ms: Cell::new(0),
                shared: RefCell::default(),
            })
        };
        let plain = form(None);
        match found.compressible.filter(|_| hash.is_some()) {
            Some(coding) => form(Some((coding, plain))),
            None => plain,
        }
    }

    /// Returns whether `found` is the same file in the same form, which was left alone long enough
    /// before it was opened.
    pub(super) fn is_same(&self, found: &FoundFile, now_ms: u64) -> bool {
        let is_coded = |coding: &str| self.has_coding(coding);
        self.status == Some(found.opened.status)
            && self.path == found.path
            && found
                .coding
                .or(found.compressible)
                .map_or(!is_coded(""), |coding| is_coded(coding.name()))
            && found
                .opened
                .status
                .is_unchanged_for(KEEP_AFTER_MS, self.header.meta.response_ms.min(now_ms))
    }

    /// Returns whether the bytes have this content coding; any coding if it is empty.
    fn has_coding(&self, coding: &str) -> bool {
        use millrace_http1::FieldName;
        let mut lines = self.header.lines();
        let value = lines.find(|line| line.known == FieldName::ContentEncoding);
        value.is_some_and(|line| coding.is_empty() || line.value == coding.as_bytes())
    }

    /// Returns the file as it is if the bytes are not worth a compression.
    pub(crate) fn instead(&self) -> Option<Rc<Self>> {
        let (_, plain) = self.compressed.as_ref()?;
        (self.compressions_left.get() == 0).then(|| plain.clone())
    }

    /// Notes that the compressed bytes are not shorter.
    pub(crate) fn note_incompressible(&self) {
        self.compressions_left.set(0);
    }

    /// Notes that the cache did not keep the bytes. It may admit a large object only at a later
    /// request, but a file is not compressed at each request.
    pub(crate) fn note_not_kept(&self) {
        self.compressions_left.set(self.compressions_left.get().saturating_sub(1));
    }

    /// Returns the open file; `None` if it was closed because the cache has its bytes.
    pub(crate) fn source(&self) -> Option<FileSource> {
        self.source.borrow().clone()
    }

    /// Marks the file as being read into the cache. Returns `None` if it is marked already.
    pub(crate) fn begin_load(self: &Rc<Self>) -> Option<LoadGuard> {
        (!self.is_loading.replace(true)).then(|| LoadGuard(self.clone()))
    }

    /// Returns the same file with another header.
    pub(crate) fn with_header(&self, header: CachedHeader) -> Self {
        Self {
            header,
            length: self.length,
            path: self.path.clone(),
            status: self.status,
            key: self.key,
            compressed: self.compressed.clone(),
            compressions_left: self.compressions_left.clone(),
            source: self.source.clone(),
            is_loading: Cell::new(false),
            unshared_until_ms: self.unshared_until_ms.clone(),
            shared: self.shared.clone(),
        }
    }

    /// Returns whether the bytes are served from memory of iolited if it has them.
    pub(crate) fn is_shareable(&self) -> bool {
        self.status.is_some_and(|status| SHARED_BYTES.contains(&status.bytes))
            && self.compressed.is_none()
            && !self.is_copied()
    }

    /// Returns whether iolited may have the bytes now.
    pub(crate) fn may_be_shared(&self, now_ms: u64) -> bool {
        now_ms >= self.unshared_until_ms.get()
    }

    /// Returns the bytes in memory of iolited, if another response has them now.
    pub(crate) fn shared(&self) -> Option<Arc<SharedFile>> {
        self.shared.borrow().upgrade()
    }

    /// Lets other responses share these bytes.
    pub(crate) fn set_shared(&self, shared: &Arc<SharedFile>) {
        *self.shared.borrow_mut() = Arc::downgrade(shared);
    }

    /// Notes that iolited does not have the bytes now.
    pub(crate) fn note_unshared(&self, now_ms: u64) {
        self.unshared_until_ms.set(now_ms + UNSHARED_MS);
    }

    /// Returns whether this is a listing, whose bytes are in memory.
    pub(crate) fn is_listing(&self) -> bool {
        self.status.is_none()
    }

    /// Returns whether the bytes are copied to the socket instead of sent by reference: those of a
    /// listing, and of a file that was changed just now. It is probably written still, and a
    /// truncation would clear referenced bytes that wait in the socket.
    pub(crate) fn is_copied(&self) -> bool {
        let found_ms = self.header.meta.response_ms;
        !self.status.is_some_and(|status| status.is_unchanged_for(KEEP_AFTER_MS, found_ms))
    }

    /// Returns the open file, with its status when it was opened.
    pub(crate) fn opened(&self) -> Option<(Arc<dyn OpenFile>, FileStatus)> {
        match (self.source.borrow().as_ref()?, self.status) {
            (FileSource::File { file, .. }, Some(status)) => Some((file.clone(), status)),
            _ => None,
        }
    }

    /// Closes the file, because the cache has its bytes.
    pub(crate) fn close(&self) {
        self.source.take();
    }
}

/// Returns the page of a listing as a file in memory.
pub(crate) fn listing(page: Vec<u8>, rules: &FolderRules, now_ms: u64) -> ServedFile {
    ServedFile {
        header: listing_header(rules, now_ms),
        length: page.len() as u64,
        path: Vec::new(),
        status: None,
        key: None,
        compressed: None,
        compressions_left: Cell::new(0),
        source: Rc::new(RefCell::new(Some(FileSource::Memory(Arc::new(Text(page)))))),
        is_loading: Cell::new(false),
        unshared_until_ms: Cell::new(0),
        shared: RefCell::default(),
    }
}

/// Text as a file without a descriptor.
#[derive(Debug)]
struct Text(Vec<u8>);

impl FileRead for Text {
    fn read_at(&self, at: u64, bytes: &mut [u8], _: bool) -> Result<usize, Errno> {
        let rest = usize::try_from(at).ok().and_then(|at| self.0.get(at..)).unwrap_or_default();
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

/// Returns the key of a file's bytes, in a coding if they are compressed. It changes with the file.
fn key_of(
    hash: &HashKey,
    status: &FileStatus,
    compressed: Option<(Coding, CompressionLevel)>,
) -> Key {
    let FileStatus { device, inode, bytes, modified, changed, .. } = *status;
    let mut text = b"file ".to_vec();
    if let Some((coding, level)) = compressed {
        text.extend_from_slice(&[coding as u8, level as u8]);
    }
    for number in [device, inode, bytes, modified.seconds as u64, changed.seconds as u64] {
        text.extend_from_slice(&number.to_ne_bytes());
    }
    for number in [modified.nanoseconds, changed.nanoseconds] {
        text.extend_from_slice(&number.to_ne_bytes());
    }
    Key::from_text(hash, &text)
}

/// The lengths of files that are served from memory of iolited. It does not pass shorter ones, and
/// longer ones would take too much of what a user may hold there.
const SHARED_BYTES: RangeInclusive<u64> = SHARED_FILE_BYTES_MIN..=32 << 20;

/// For how long iolited is not tried again.
const UNSHARED_MS: u64 = 1000;

/// How often a file is compressed if the cache does not keep the result.
const COMPRESSIONS_MAX: u8 = 3;

/// For how long a file has to be left alone before its bytes are kept. Two changes within the
/// resolution of the file system's clock leave the same times.
const KEEP_AFTER_MS: u64 = 1000;
