//! The client's side: reading and writing files, with the daemon or without it.

use std::io::{IoSlice, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use millrace_sys::{Errno, InodeKind, WRITE_PARTS_MAX};

use crate::aggregate::Aggregate;
use crate::buffer::Buffer;
use crate::error::{AllocError, Error};
use crate::limits::BLOCK_BYTES;
use crate::memory_kind::MemoryKind;
use crate::sealed::{SealedMemory, UnsealedMemory};
use crate::service::connection::DaemonConnection;
use crate::service::kept::KeptFiles;
use crate::service::message::{PieceRange, Refusal, Request, Response};
use crate::service::pipes::Pipes;
use crate::service::version::FileVersion;
use crate::service::{PIECE_BYTES, SHARED_FILE_BYTES_MIN};
use crate::slab::Slab;
use crate::slice::Slice;

/// Reads and writes files as aggregates. Bytes of long files come from iolited(8) without a copy.
/// System calls copy those of other files, and of all files without the daemon. Applications see
/// the same bytes.
///
/// A child that was made by fork(2) can use it, but not read what its parent has read.
#[derive(Debug)]
pub struct FileClient {
    pub(super) path: Option<PathBuf>,
    pub(super) slab: Slab,
    state: Mutex<ClientState>,
    pub(super) pipes: Mutex<Pipes>,
    /// Writers of the same user are trusted not to change the bytes that they have passed.
    pub(super) trusts_user: AtomicBool,
}

#[derive(Debug)]
pub(super) struct ClientState {
    /// The process that this state belongs to.
    process: u32,
    connection: Option<DaemonConnection>,
    /// When the daemon is tried next.
    retry_at: Option<Instant>,
    has_lost_daemon: bool,
    kept: KeptFiles,
    pub(super) stats: ClientStats,
}

/// Where the bytes came from that a [`FileClient`] has returned.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ClientStats {
    /// Calls whose bytes were all here already.
    pub kept: u64,
    /// Responses of the daemon with memory.
    pub received: u64,
    /// Responses of the daemon without memory.
    pub refused: u64,
    /// Calls whose bytes were copied by the kernel.
    pub copied: u64,
    /// Calls whose bytes went from one process to the other through a channel.
    pub passed: u64,
    /// The last refusal.
    pub last_refusal: Option<Refusal>,
}

/// The memory for bytes that the kernel copies; more is taken from the kernel as it is needed.
const SLAB_BYTES: usize = 64 << 20;
/// The memory of files that is kept for further calls, in bytes.
const KEPT_BYTES_MAX: u64 = 64 << 20;
/// The time before the daemon is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl FileClient {
    /// Creates a client of the daemon that listens at `path`; without a path, of none. The daemon
    /// does not have to run yet.
    ///
    /// # Errors
    /// [`Error::Kernel`] without memory.
    pub fn new(path: Option<&Path>) -> Result<Self, Error> {
        Ok(Self {
            path: path.map(Path::to_owned),
            slab: Slab::on_heap(SLAB_BYTES)?,
            state: Mutex::new(ClientState::new()),
            pipes: Mutex::new(Pipes::new()),
            trusts_user: AtomicBool::new(false),
        })
    }

    /// Returns the counters.
    pub fn stats(&self) -> ClientStats {
        self.state().stats
    }

    /// Reads from the position of a descriptor, and moves it, as read(2) does: up to `length`
    /// bytes, and none at the end. Later changes of a file do not show in the aggregate. Memory of
    /// the daemon has the file as it was at one moment of the call; the kernel may copy some bytes
    /// before another process's write and some after it.
    ///
    /// Two threads that read from one descriptor at the same time may get the same bytes.
    ///
    /// # Errors
    /// Those of read(2); ENOMEM.
    pub fn read(&self, file: BorrowedFd<'_>, length: u64) -> Result<Aggregate, Errno> {
        let status = millrace_sys::inode_status(file)?;
        let Some(version) = FileVersion::from_status(&status) else {
            return match status.kind {
                InodeKind::Pipe => self.read_pipe(file, &status, length),
                _ => self.read_stream(file, length),
            };
        };
        let position = millrace_sys::position(file)?;
        let bytes = self.read_version(file, version, position, length)?;
        if !bytes.is_empty() {
            millrace_sys::set_position(file, position + bytes.len())?;
        }
        Ok(bytes)
    }

    /// Reads from an offset of a file, as pread(2) does, and otherwise like [`FileClient::read`].
    ///
    /// # Errors
    /// Those of pread(2): ESPIPE if it is a pipe or a socket.
    pub fn read_at(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        length: u64,
    ) -> Result<Aggregate, Errno> {
        match FileVersion::of(file)? {
            Some(version) => self.read_version(file, version, offset, length),
            None => self.copy_at(file, offset, length),
        }
    }

    /// Writes an aggregate to a descriptor, as write(2) does, and returns the number of bytes
    /// written. The daemon learns which sealed memory the file has now, so that readers get that
    /// memory.
    ///
    /// # Errors
    /// Those of write(2), if nothing was written: ENOSPC, EDQUOT, EFBIG, EAGAIN.
    pub fn write(&self, file: BorrowedFd<'_>, bytes: &Aggregate) -> Result<u64, Errno> {
        let status = millrace_sys::inode_status(file)?;
        if status.kind == InodeKind::Pipe {
            return self.write_pipe(file, &status, bytes);
        }
        let written = write_bytes(file, bytes)?;
        if let Some(version) = FileVersion::from_status(&status) {
            self.report_written(file, version, bytes, written);
        }
        Ok(written)
    }

    /// Returns memory for up to `bytes` bytes, at most 2 MB, that are written to `file` later. If
    /// it is a pipe whose reader trusts the writer, the reader reads them where they are.
    ///
    /// # Errors
    /// ENOMEM while all memory is in use.
    ///
    /// # Panics
    /// If `bytes` is 0.
    pub fn allocate(&self, file: BorrowedFd<'_>, bytes: usize) -> Result<Buffer, Errno> {
        let status = millrace_sys::inode_status(file)?;
        if status.kind == InodeKind::Pipe {
            let end = self.pipe_end(file, &status);
            if let Some(buffer) = lock(&end).writer.allocate(bytes) {
                return Ok(buffer);
            }
        }
        self.allocate_here(bytes.min(BLOCK_BYTES)).map_err(|_| Errno::NOMEM)
    }

    /// Returns memory of the slab for up to `bytes` bytes.
    fn allocate_here(&self, bytes: usize) -> Result<Buffer, AllocError> {
        let kind = match bytes {
            0..=COPIED_BYTES_MAX => MemoryKind::Copied,
            _ => MemoryKind::ZeroCopy,
        };
        let allocate = || self.slab.allocate(kind, bytes.min(kind.unit())..=bytes, 0);
        self.slab.with_ready_block(allocate)
    }

    /// From now on, bytes of pipes are read where writers of the same user have them. Such a writer
    /// can change them while they are read.
    pub fn trust_user(&self) {
        self.trusts_user.store(true, Ordering::Relaxed);
    }

    fn read_version(
        &self,
        file: BorrowedFd<'_>,
        version: FileVersion,
        offset: u64,
        length: u64,
    ) -> Result<Aggregate, Errno> {
        if !millrace_sys::file_access(file)?.reads {
            return Err(Errno::BADF);
        }
        let length = length.min(version.bytes.saturating_sub(offset));
        if length == 0 {
            return Ok(Aggregate::new());
        }
        if version.bytes >= SHARED_FILE_BYTES_MIN {
            let shared = self.state().read(self.path.as_deref(), file, version, offset, length);
            if let Some(bytes) = shared {
                return Ok(bytes);
            }
        }
        self.copy_at(file, offset, length)
    }

    /// Has the kernel copy bytes of a file.
    fn copy_at(&self, file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<Aggregate, Errno> {
        self.state().stats.copied += 1;
        let mut copy = Aggregate::new();
        loop {
            let position = offset + copy.len();
            let wanted = (length - copy.len()).min(BLOCK_BYTES as u64) as usize;
            let slice = self.filled(wanted, |part| millrace_sys::read_at(file, part, position));
            match slice {
                Ok(None) => return Ok(copy),
                Ok(Some(slice)) => copy.append(slice),
                Err(_) if !copy.is_empty() => return Ok(copy),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads once from a pipe, a socket or a device.
    pub(super) fn read_stream(
        &self,
        file: BorrowedFd<'_>,
        length: u64,
    ) -> Result<Aggregate, Errno> {
        self.state().stats.copied += 1;
        let wanted = length.min(STREAM_BYTES_MAX as u64) as usize;
        let slice = self.filled(wanted, |part| millrace_sys::read_next(file, part))?;
        Ok(slice.map_or_else(Aggregate::new, Aggregate::from))
    }

    /// Returns new memory of up to `wanted` bytes, as far as `fill` fills it by one call; `None` if
    /// there is nothing to fill it with.
    fn filled(
        &self,
        wanted: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<Option<Slice>, Errno> {
        if wanted == 0 {
            return Ok(None);
        }
        match self.allocate_here(wanted) {
            Ok(mut buffer) => {
                let part = buffer.unfilled();
                let room = part.len().min(wanted);
                let count = fill(&mut part[..room])?;
                buffer.advance(count);
                Ok((count > 0).then(|| buffer.freeze()))
            }
            Err(AllocError::Full | AllocError::Fragmented | AllocError::NotReady) => {
                let mut memory = UnsealedMemory::new(wanted).map_err(errno)?;
                let count = fill(&mut memory.unfilled()[..wanted])?;
                memory.advance(count);
                let slice = || memory.seal()?.into_slice();
                if count == 0 { Ok(None) } else { slice().map(Some).map_err(errno) }
            }
        }
    }

    /// Passes the sealed memory that a file has now to the daemon. `version` is the one before.
    fn report_written(
        &self,
        file: BorrowedFd<'_>,
        version: FileVersion,
        bytes: &Aggregate,
        written: u64,
    ) {
        let shared = |slice: &'_ Slice| {
            slice.len() as u64 >= SHARED_FILE_BYTES_MIN && slice.whole_file().is_some()
        };
        if self.path.is_none() || !bytes.slices().any(shared) {
            return;
        }
        let Ok(end) = millrace_sys::position(file) else { return };
        if version.bytes.max(end) < SHARED_FILE_BYTES_MIN {
            return;
        }
        let Some(mut offset) = end.checked_sub(written) else { return };
        for slice in bytes.slices() {
            let slice_end = offset + slice.len() as u64;
            if slice_end > end {
                break;
            }
            if shared(slice)
                && let Some(memory) = slice.whole_file()
            {
                self.state().report(self.path.as_deref(), file, offset, memory);
            }
            offset = slice_end;
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ClientState> {
        let mut state = lock(&self.state);
        if state.process != std::process::id() {
            // The mappings of the parent do not exist here, and its connection is not shared. To
            // drop them would unmap what has their addresses now.
            std::mem::forget(std::mem::replace(&mut *state, ClientState::new()));
        }
        state
    }
}

/// The most bytes that one call reads from a pipe, a socket or a device.
const STREAM_BYTES_MAX: usize = 1 << 20;
/// A file that has had more versions during one call is copied by the kernel.
const VERSIONS_MAX: usize = 4;
/// Longer memory is allocated in pages.
const COPIED_BYTES_MAX: usize = MemoryKind::Copied.bytes_max();

impl ClientState {
    fn new() -> Self {
        Self {
            process: std::process::id(),
            connection: None,
            retry_at: None,
            has_lost_daemon: false,
            kept: KeptFiles::new(KEPT_BYTES_MAX),
            stats: ClientStats::default(),
        }
    }

    /// Returns bytes of a file from memory of the daemon; `None` if the file has to be read.
    fn read(
        &mut self,
        path: Option<&Path>,
        file: BorrowedFd<'_>,
        version: FileVersion,
        offset: u64,
        length: u64,
    ) -> Option<Aggregate> {
        let (mut version, mut end) = (version, offset + length);
        let mut bytes = self.kept.read(&version, offset, length);
        if bytes.len() == length {
            self.stats.kept += 1;
            return Some(bytes);
        }
        let mut versions = 1;
        while offset + bytes.len() < end {
            let position = offset + bytes.len();
            let (received, more) = self.request(path, file, position, end - position)?;
            if received != version {
                // All bytes are those of one moment, so the others are received again.
                bytes = Aggregate::new();
                (version, versions) = (received, versions + 1);
                end = end.min(version.bytes);
                if versions > VERSIONS_MAX {
                    return None;
                }
                if position > offset {
                    continue;
                }
            }
            if more.is_empty() {
                break;
            }
            bytes.concatenate(more);
        }
        Some(bytes)
    }

    /// Requests bytes of a file. Returns the version that has them, and as many as came.
    fn request(
        &mut self,
        path: Option<&Path>,
        file: BorrowedFd<'_>,
        offset: u64,
        length: u64,
    ) -> Option<(FileVersion, Aggregate)> {
        let connection = self.connect(path)?;
        let response = connection.request(&Request::Read { offset, length }, &[file]);
        let (response, memory) = match response {
            Ok(response) => response,
            Err(reason) => {
                self.lose_daemon(&reason);
                return None;
            }
        };
        let (version, is_settled, pieces) = match response {
            Response::Pieces { version, is_settled, pieces } => (version, is_settled, pieces),
            Response::Refused(refusal) => {
                self.count_refusal(refusal);
                return None;
            }
            Response::Taken | Response::Paired => {
                self.lose_daemon("iolited has sent another response");
                return None;
            }
        };
        self.stats.received += 1;
        let mut bytes = Aggregate::new();
        for (piece, memory) in pieces.into_iter().zip(memory) {
            let slice = match slice_of(piece, memory) {
                Ok(slice) => slice,
                Err(reason) => {
                    self.lose_daemon(&reason);
                    return None;
                }
            };
            if is_settled {
                self.kept.add(&version, piece.offset, slice.clone());
            }
            let begin = offset.max(piece.offset);
            let end = piece.end().min(offset + length);
            if begin < end {
                let range = (begin - piece.offset) as usize..(end - piece.offset) as usize;
                bytes.append(slice.slice(range));
            }
        }
        Some((version, bytes))
    }

    /// Reports memory that was written to a file. If the daemon refuses it, it reads the file.
    fn report(
        &mut self,
        path: Option<&Path>,
        file: BorrowedFd<'_>,
        offset: u64,
        memory: &SealedMemory,
    ) {
        let Some(connection) = self.connect(path) else { return };
        let request = Request::Written { offset, lengths: vec![memory.len() as u64] };
        match connection.request(&request, &[file, memory.file()]) {
            Ok((Response::Refused(refusal), _)) => self.count_refusal(refusal),
            Ok(_) => {}
            Err(reason) => self.lose_daemon(&reason),
        }
    }

    fn count_refusal(&mut self, refusal: Refusal) {
        self.stats.refused += 1;
        self.stats.last_refusal = Some(refusal);
        if matches!(refusal, Refusal::UserMemory | Refusal::Memory) {
            // The kept pieces of other files may be all of that memory.
            self.kept = KeptFiles::new(KEPT_BYTES_MAX);
        }
        if refusal == Refusal::Clients {
            // The daemon has closed the connection.
            self.connection = None;
            self.retry_at = Some(Instant::now() + RETRY_AFTER);
        }
    }

    /// Returns an end of a socket for a channel beside a pipe.
    pub(super) fn pair(&mut self, path: Option<&Path>, pipe: BorrowedFd<'_>) -> Option<OwnedFd> {
        let connection = self.connect(path)?;
        match connection.request(&Request::Pair, &[pipe]) {
            Ok((Response::Paired, sockets)) => return sockets.into_iter().next(),
            Ok((Response::Refused(refusal), _)) => self.count_refusal(refusal),
            Ok(_) => self.lose_daemon("iolited has sent another response"),
            Err(reason) => self.lose_daemon(&reason),
        }
        None
    }

    /// Returns the connection, which it opens if there is none.
    fn connect(&mut self, path: Option<&Path>) -> Option<&mut DaemonConnection> {
        let path = path?;
        if self.connection.is_none() {
            if self.retry_at.is_some_and(|at| Instant::now() < at) {
                return None;
            }
            match DaemonConnection::open(path) {
                Ok(connection) => self.connection = Some(connection),
                Err(reason) => {
                    if let Some(reason) = reason {
                        self.report_loss(&reason);
                    }
                    self.retry_at = Some(Instant::now() + RETRY_AFTER);
                }
            }
        }
        self.connection.as_mut()
    }

    fn lose_daemon(&mut self, reason: &str) {
        self.connection = None;
        self.retry_at = Some(Instant::now() + RETRY_AFTER);
        self.report_loss(reason);
    }

    /// Reports once that the daemon is not used for now.
    fn report_loss(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.has_lost_daemon, true) {
            // The program goes on if nothing reads its standard error.
            let _ = writeln!(
                std::io::stderr(),
                "iolite: files are copied by the kernel from now on: {reason}"
            );
        }
    }
}

/// Returns the bytes of a piece.
fn slice_of(piece: PieceRange, memory: OwnedFd) -> Result<Slice, String> {
    let wrong = |what: String| format!("iolited has sent {what}");
    let memory = SealedMemory::of_trusted(memory, piece.length)
        .map_err(|refused| wrong(refused.to_string()))?;
    memory.into_slice().map_err(|error| error.to_string())
}

/// Writes as much of an aggregate as write(2) takes, and returns the number of bytes.
pub(super) fn write_bytes(file: BorrowedFd<'_>, bytes: &Aggregate) -> Result<u64, Errno> {
    let parts: Vec<IoSlice<'_>> = bytes.slices().map(|slice| IoSlice::new(slice)).collect();
    if parts.is_empty() {
        return millrace_sys::write_next(file, &[IoSlice::new(&[])]).map(|count| count as u64);
    }
    let mut written = 0;
    for parts in parts.chunks(WRITE_PARTS_MAX) {
        let expected: usize = parts.iter().map(|part| part.len()).sum();
        match millrace_sys::write_next(file, parts) {
            Ok(count) => {
                written += count as u64;
                if count < expected {
                    break;
                }
            }
            Err(error) if written == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(written)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder of this lock panics")
}

fn errno(error: Error) -> Errno {
    match error {
        Error::Kernel(_, error) => error,
        _ => Errno::NOMEM,
    }
}

const _: () = assert!(PIECE_BYTES <= u32::MAX as u64);
