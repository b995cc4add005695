//! A file in memory of iolited.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use iolite::service::FileClient;
use iolite::{Aggregate, Slice};
use millrace_engine::{FilePart, FileRead};
use millrace_files::{Errno, FileStatus, OpenFile};

/// The client of iolited. One thread at a time waits for it: others read their files themselves, so
/// that a daemon or a file that does not respond takes one thread only.
#[derive(Debug)]
pub struct SharedFiles {
    client: FileClient,
    is_waiting: AtomicBool,
}

/// The turn of a thread that waits for iolited, until it is dropped.
#[derive(Debug)]
pub(crate) struct SharingTurn(Arc<SharedFiles>);

/// The bytes of a file in memory files that never change. iolited cannot free them before it is
/// dropped.
#[derive(Debug)]
pub(crate) struct SharedFile {
    parts: Vec<SharedPart>,
    bytes: u64,
}

#[derive(Debug)]
struct SharedPart {
    /// The offset of its first byte in the file.
    at: u64,
    bytes: u64,
    file: Arc<dyn FileRead>,
}

/// The beginning of a memory file.
#[derive(Debug)]
struct MemoryFile(Slice);

impl SharedFiles {
    /// Creates the state for a client.
    pub fn new(client: FileClient) -> Self {
        Self { client, is_waiting: AtomicBool::new(false) }
    }

    /// Returns the turn to wait; `None` while another thread has it.
    pub(crate) fn take_turn(self: &Arc<Self>) -> Option<SharingTurn> {
        let is_taken = self.is_waiting.swap(true, Ordering::Relaxed);
        (!is_taken).then(|| SharingTurn(self.clone()))
    }

    /// Returns a file that this process has received already.
    ///
    /// # Errors
    /// EAGAIN if iolited may have it; those of fstat(2).
    pub(crate) fn find(
        &self,
        file: &dyn OpenFile,
        status: &FileStatus,
    ) -> Result<Option<Arc<SharedFile>>, Errno> {
        SharedFile::find(&self.client, file, status, false)
    }
}

impl SharingTurn {
    /// Waits for iolited to pass a file; `None` if it does not.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub(crate) fn wait_for(
        self,
        file: &dyn OpenFile,
        status: &FileStatus,
    ) -> Result<Option<Arc<SharedFile>>, Errno> {
        SharedFile::find(&self.0.client, file, status, true)
    }
}

impl Drop for SharingTurn {
    fn drop(&mut self) {
        self.0.is_waiting.store(false, Ordering::Relaxed);
    }
}

impl SharedFile {
    /// Returns a file with this status from memory of iolited; `None` if it is not there. With
    /// `waits` false, iolited is not involved: only memory that this process has is used.
    ///
    /// # Errors
    /// EAGAIN if `waits` is false and iolited may have the file; those of fstat(2).
    fn find(
        client: &FileClient,
        file: &dyn OpenFile,
        status: &FileStatus,
        waits: bool,
    ) -> Result<Option<Arc<Self>>, Errno> {
        let Some(descriptor) = file.descriptor() else { return Ok(None) };
        let Some(bytes) = client.whole_file(descriptor, waits)? else { return Ok(None) };
        // The header belongs to the version that was found.
        let is_current = bytes.len() == status.bytes && file.status()? == *status;
        Ok(if is_current { Self::new(&bytes).map(Arc::new) } else { None })
    }

    fn new(bytes: &Aggregate) -> Option<Self> {
        let mut shared = Self { parts: Vec::new(), bytes: 0 };
        for slice in bytes.slices() {
            if slice.sendfile_source()?.1 != 0 {
                return None;
            }
            let (at, bytes) = (shared.bytes, slice.len() as u64);
            shared.parts.push(SharedPart { at, bytes, file: Arc::new(MemoryFile(slice.clone())) });
            shared.bytes += bytes;
        }
        Some(shared)
    }

    fn part(&self, at: u64) -> Option<&SharedPart> {
        let after = self.parts.partition_point(|part| part.at <= at);
        self.parts[..after].last().filter(|part| at < part.at + part.bytes)
    }
}

impl FileRead for SharedFile {
    fn read_at(&self, at: u64, bytes: &mut [u8], waits: bool) -> Result<usize, Errno> {
        match self.part(at) {
            Some(part) => part.file.read_at(at - part.at, bytes, waits),
            None => Ok(0),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn part_at(&self, at: u64) -> Option<FilePart<'_>> {
        let SharedPart { at: begin, bytes, file } = self.part(at)?;
        Some(FilePart { file, offset: at - begin, bytes: begin + bytes - at })
    }
}

impl FileRead for MemoryFile {
    fn read_at(&self, at: u64, bytes: &mut [u8], _: bool) -> Result<usize, Errno> {
        let rest = usize::try_from(at).ok().and_then(|at| self.0.get(at..)).unwrap_or_default();
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.sendfile_source().map(|(file, _)| file)
    }
}
