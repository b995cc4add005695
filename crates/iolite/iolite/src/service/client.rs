//! The client's side: reading and writing files, with the daemon or without it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use millrace_sys::{Errno, InodeKind};

use crate::account::Account;
use crate::aggregate::Aggregate;
use crate::buffer::Buffer;
use crate::error::{AllocError, Error};
use crate::limits::BLOCK_BYTES;
use crate::memory_kind::MemoryKind;
use crate::sealed::{SealedMemory, UnsealedMemory};
use crate::service::counters::{ClientStats, Count, Counters};
use crate::service::kept::KeptFiles;
use crate::service::kept_packs::KeptPacks;
use crate::service::link::DaemonLink;
use crate::service::message::{PieceRange, Refusal, Request, Response};
use crate::service::streams::Streams;
use crate::service::version::FileVersion;
use crate::service::write::write_bytes;
use crate::service::{PIECE_BYTES, SHARED_FILE_BYTES_MIN};
use crate::slab::Slab;
use crate::slice::Slice;

/// Reads and writes files as aggregates. Bytes of long files come from iolited(8) without a copy.
/// System calls copy those of other files, and of all files without the daemon. Applications see
/// the same bytes.
///
/// A child that was made by fork(2) can use it, unless another thread of the parent used it during
/// the fork, but the child cannot read what its parent has read.
#[derive(Debug)]
pub struct FileClient {
    pub(super) link: DaemonLink,
    pub(super) slab: Slab,
    kept: Mutex<KeptFiles>,
    packs: Mutex<KeptPacks>,
    pub(super) streams: Mutex<Streams>,
    /// The memory that was received from streams.
    pub(super) stream_account: Account,
    pub(super) stream_files_max: usize,
    /// Writers of the same user are trusted not to change the bytes that they have passed.
    pub(super) trusts_user: AtomicBool,
    pub(super) counters: Counters,
}

/// The memory for bytes that the kernel copies; more is taken from the kernel as it is needed.
const SLAB_BYTES: usize = 64 << 20;
/// The memory of files that is kept for further calls, in bytes.
const KEPT_BYTES_MAX: u64 = 64 << 20;
/// The most memory files from streams that are held. Each channel keeps some of them that its
/// writer is about to use again.
const STREAM_FILES_MAX: u64 = 256;

impl FileClient {
    /// The most descriptors that a client keeps open for pieces of files. Packs take up to 128
    /// more.
    pub const KEPT_DESCRIPTORS_MAX: u64 = 1024;

    /// Creates a client of the daemon that listens at `path`; without a path, of none. The daemon
    /// does not have to run yet.
    ///
    /// # Errors
    /// [`Error::Kernel`] without memory.
    pub fn new(path: Option<&Path>) -> Result<Self, Error> {
        Ok(Self {
            link: DaemonLink::new(path),
            slab: Slab::on_heap(SLAB_BYTES)?,
            kept: Mutex::new(no_kept_files()),
            packs: Mutex::new(KeptPacks::new(KEPT_BYTES_MAX)),
            streams: Mutex::new(Streams::new()),
            // The program decides how much of what it has read it keeps.
            stream_account: Account::new(u64::MAX),
            stream_files_max: descriptors_for(STREAM_FILES_MAX),
            trusts_user: AtomicBool::new(false),
            counters: Counters::default(),
        })
    }

    /// Returns the counters.
    pub fn stats(&self) -> ClientStats {
        self.counters.stats()
    }

    /// Reads from the position of a descriptor, and moves it, as read(2) does: up to `length`
    /// bytes, and none at the end. Later changes of a file do not show in the aggregate. Memory of
    /// the daemon has the file as it was at one moment of the call; the kernel may copy some bytes
    /// before another process's write and some after it.
    ///
    /// Two threads that read from one descriptor of a file at the same time may get the same bytes.
    ///
    /// As with stdio(3), a program that reads a pipe or a connection by these calls reads it only
    /// by them until its end: read(2) and poll(2) do not show what the writer has passed, and a
    /// child or a next program does not get what was received here.
    ///
    /// # Errors
    /// Those of read(2); ENOMEM. EINTR ends a wait for a pipe or a connection also with SA_RESTART
    /// (sigaction(2)).
    pub fn read(&self, file: BorrowedFd<'_>, length: u64) -> Result<Aggregate, Errno> {
        let status = millrace_sys::inode_status(file)?;
        let Some(version) = FileVersion::from_status(&status) else {
            return match status.kind {
                InodeKind::Pipe | InodeKind::Socket => self.read_end(file, &status, length),
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
            None => self.copy_at(file, offset, length, UNKNOWN_BYTES_MAX),
        }
    }

    /// Writes an aggregate to a descriptor, as write(2) does, and returns the number of bytes
    /// written. The daemon learns which sealed memory the file has now, so that readers get that
    /// memory.
    ///
    /// A pipe or a socket that blocks takes all bytes, unless a signal comes. If a reader ends, the
    /// next call writes the bytes to it that the reader has not returned. They are lost if the
    /// writer ends first.
    ///
    /// # Errors
    /// Those of write(2), if nothing was written: ENOSPC, EDQUOT, EFBIG, EAGAIN.
    pub fn write(&self, file: BorrowedFd<'_>, bytes: &Aggregate) -> Result<u64, Errno> {
        let status = millrace_sys::inode_status(file)?;
        if let InodeKind::Pipe | InodeKind::Socket = status.kind {
            return self.write_end(file, &status, bytes);
        }
        let written = write_bytes(file, bytes)?;
        if let Some(version) = FileVersion::from_status(&status) {
            self.report_written(file, version, bytes, written);
        }
        Ok(written)
    }

    /// Returns memory for up to `bytes` bytes, at most 2 MB, that are written to `file` later. If
    /// it is a pipe or a connection whose reader trusts the writer, the reader reads them where
    /// they are.
    ///
    /// # Errors
    /// ENOMEM while all memory is in use.
    ///
    /// # Panics
    /// If `bytes` is 0.
    pub fn allocate(&self, file: BorrowedFd<'_>, bytes: usize) -> Result<Buffer, Errno> {
        let status = millrace_sys::inode_status(file)?;
        if let InodeKind::Pipe | InodeKind::Socket = status.kind
            && let Some(buffer) = self.allocate_for_end(file, &status, bytes)
        {
            return Ok(buffer);
        }
        self.allocate_here(bytes.min(BLOCK_BYTES)).map_err(|_| Errno::NOMEM)
    }

    /// Returns memory of the slab for up to `bytes` bytes.
    fn allocate_here(&self, bytes: usize) -> Result<Buffer, AllocError> {
        let kind = MemoryKind::for_copy(bytes as u64);
        let allocate = || self.slab.allocate(kind, bytes.min(kind.unit())..=bytes, 0);
        self.slab.with_ready_block(allocate)
    }

    /// From now on, bytes of pipes and connections are read where writers of the same user have
    /// them, also of ones that are in use already. Such a writer can change them while they are
    /// read.
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
        if version.bytes == 0 {
            // Files of proc(5) and others have bytes beyond their length.
            return self.copy_at(file, offset, length, UNKNOWN_BYTES_MAX);
        }
        let end = offset.saturating_add(length);
        let length = length.min(version.bytes.saturating_sub(offset));
        if length == 0 {
            return Ok(Aggregate::new());
        }
        let shared = if version.bytes >= SHARED_FILE_BYTES_MIN {
            self.read_shared(file, version, offset, end)
        } else {
            self.read_packed(file, version, offset, length)
        };
        if let Some(bytes) = shared {
            return Ok(bytes);
        }
        self.copy_at(file, offset, length, BLOCK_BYTES)
    }

    /// Returns bytes of a file from `offset` to `end`, or to the end of the file, from memory of
    /// the daemon; `None` if the file has to be read.
    pub(super) fn read_shared(
        &self,
        file: BorrowedFd<'_>,
        mut version: FileVersion,
        offset: u64,
        end: u64,
    ) -> Option<Aggregate> {
        let length = end.min(version.bytes) - offset;
        let mut bytes = self.kept().read(&version, offset, length);
        if bytes.len() == length {
            self.counters.count(Count::Kept);
            return Some(bytes);
        }
        let mut versions = 1;
        while offset + bytes.len() < end.min(version.bytes) {
            let position = offset + bytes.len();
            let (received, more) = self.receive(file, position, end - position)?;
            if received != version {
                // All bytes, and the length, are those of one moment, so the others are received
                // again.
                bytes = Aggregate::new();
                (version, versions) = (received, versions + 1);
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

    /// Returns bytes of a short file from a pack; `None` if the file has to be read.
    fn read_packed(
        &self,
        file: BorrowedFd<'_>,
        version: FileVersion,
        offset: u64,
        length: u64,
    ) -> Option<Aggregate> {
        if !self.link.has_path() {
            return None;
        }
        let mut packs = self.packs();
        if let Some(bytes) = packs.read(&version, offset, length) {
            self.counters.count(Count::Kept);
            return Some(bytes);
        }
        if !packs.take_turn() {
            return None;
        }
        drop(packs);
        let received = self.receive_pack(file);
        // The daemon makes other packs. It may have one of this file soon.
        let is_busy = matches!(received, Err(Some(Refusal::Busy)));
        let mut packs = self.packs();
        let wrong = || self.link.lose("iolited has sent a wrong pack".to_owned());
        let added = received.ok().and_then(|pack| packs.add(&pack).ok_or_else(wrong).ok());
        // It may have another version.
        let bytes = added.and_then(|()| packs.read(&version, offset, length));
        if bytes.is_none() && !is_busy {
            packs.count_refusal();
        }
        bytes
    }

    /// Requests a pack with a file.
    ///
    /// # Errors
    /// The refusal; `None` without a daemon.
    fn receive_pack(&self, file: BorrowedFd<'_>) -> Result<Slice, Option<Refusal>> {
        let received = self.link.request(Request::Pack, &[file], |response, memory| {
            let Response::Packed(length) = response else { return None };
            Some((PieceRange { offset: 0, length }, memory.into_iter().next()?))
        });
        let (range, memory) = received.inspect_err(|refusal| self.count_refusal(*refusal))?;
        self.counters.count(Count::Received);
        slice_of(range, memory).map_err(|reason| {
            self.link.lose(reason);
            None
        })
    }

    /// Requests bytes of a file. Returns the version that has them, and as many as came.
    fn receive(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        length: u64,
    ) -> Option<(FileVersion, Aggregate)> {
        let request = Request::Read { offset, length };
        let received = self.link.request(request, &[file], |response, memory| match response {
            Response::Pieces { version, is_settled, pieces } => {
                Some((version, is_settled, pieces, memory))
            }
            _ => None,
        });
        let (version, is_settled, pieces, memory) =
            received.map_err(|refusal| self.count_refusal(refusal)).ok()?;
        self.counters.count(Count::Received);
        let mut bytes = Aggregate::new();
        for (piece, memory) in pieces.into_iter().zip(memory) {
            let slice = slice_of(piece, memory).map_err(|reason| self.link.lose(reason)).ok()?;
            if is_settled {
                self.kept().add(&version, piece.offset, slice.clone());
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

    /// Has the kernel copy bytes of a file, up to `part_max` at a time.
    fn copy_at(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        length: u64,
        part_max: usize,
    ) -> Result<Aggregate, Errno> {
        self.counters.count(Count::Copied);
        let mut copy = Aggregate::new();
        loop {
            let position = offset + copy.len();
            let wanted = (length - copy.len()).min(part_max as u64) as usize;
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
        self.counters.count(Count::Copied);
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
        if !self.link.has_path() || !bytes.slices().any(shared) {
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
                self.report(file, offset, memory);
            }
            offset = slice_end;
        }
    }

    /// Reports memory that was written to a file. If the daemon refuses it, it reads the file.
    fn report(&self, file: BorrowedFd<'_>, offset: u64, memory: &SealedMemory) {
        let request = Request::Written { offset, length: memory.len() as u64 };
        let files = [file, memory.file()];
        let taken = self.link.request(request, &files, |response, _| {
            matches!(response, Response::Taken).then_some(())
        });
        if let Err(refusal) = taken {
            self.count_refusal(refusal);
        }
    }

    pub(super) fn count_refusal(&self, refusal: Option<Refusal>) {
        let Some(refusal) = refusal else { return };
        self.counters.count_refusal(refusal);
        if matches!(refusal, Refusal::UserMemory | Refusal::Memory) {
            // The kept pieces of other files may be all of that memory.
            let dropped = std::mem::replace(&mut *self.kept(), no_kept_files());
            // Unmapping takes long, so it does not keep other threads from the table.
            drop(dropped);
            self.packs().clear();
        }
    }

    fn packs(&self) -> MutexGuard<'_, KeptPacks> {
        let mut packs = lock(&self.packs);
        if !packs.is_of_this_process() {
            // The mappings of the parent do not exist here.
            *packs = KeptPacks::new(KEPT_BYTES_MAX);
        }
        packs
    }

    pub(super) fn kept(&self) -> MutexGuard<'_, KeptFiles> {
        let mut kept = lock(&self.kept);
        if !kept.is_of_this_process() {
            // The mappings of the parent do not exist here.
            *kept = no_kept_files();
        }
        kept
    }
}

/// The most bytes that one call reads from a pipe, a socket or a device.
const STREAM_BYTES_MAX: usize = 1 << 20;
/// The bytes that are read at a time from a file whose length is not known.
const UNKNOWN_BYTES_MAX: usize = 64 << 10;
/// A file that has had more versions during one call is copied by the kernel.
const VERSIONS_MAX: usize = 4;

/// Returns a table without files. Each piece has a descriptor, of which the program needs others.
fn no_kept_files() -> KeptFiles {
    KeptFiles::new(KEPT_BYTES_MAX, descriptors_for(FileClient::KEPT_DESCRIPTORS_MAX))
}

/// Returns the number of memory files of one kind that a process may hold: `wanted`, but no more
/// than a quarter of its descriptors.
fn descriptors_for(wanted: u64) -> usize {
    (millrace_sys::descriptor_limit() / 4).min(wanted) as usize
}

/// Returns the bytes of a piece.
fn slice_of(piece: PieceRange, memory: OwnedFd) -> Result<Slice, String> {
    let wrong = |what: String| format!("iolited has sent {what}");
    let memory = SealedMemory::of_trusted(memory, piece.length)
        .map_err(|refused| wrong(refused.to_string()))?;
    memory.into_slice().map_err(|error| error.to_string())
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
