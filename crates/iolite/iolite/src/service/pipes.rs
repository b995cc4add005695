//! The ends of pipes that this process uses, by their pipes and directions.

use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use millrace_sys::{Errno, FileAccess, InodeStatus};

use crate::account::Account;
use crate::aggregate::Aggregate;
use crate::buffer::Buffer;
use crate::channel::{Channel, ChannelOptions};
use crate::service::client::{FileClient, lock, write_bytes};
use crate::service::counters::Count;
use crate::service::message::{Request, Response};
use crate::service::pipe_reader::{PipeReader, ReadFrom};
use crate::service::pipe_writer::{PipeWriter, TEXT_BYTES};
use crate::service::version::FileKey;

/// The ends of pipes of this process. Nothing reports that a descriptor was closed, so ends that are
/// over are looked for now and then.
#[derive(Debug)]
pub(super) struct Pipes {
    /// The generation of the process that they belong to.
    process: u64,
    ends: HashMap<EndKey, Arc<Mutex<PipeEnd>>>,
    /// The number of ends from which on those that are over are removed.
    checked_at: usize,
    /// The calls that have found no room.
    refused: usize,
}

/// An end of a pipe. All descriptors that refer to it are the same end (dup(2)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct EndKey {
    pipe: FileKey,
    writes: bool,
}

/// The state of an end of a pipe.
#[derive(Debug, Default)]
pub(super) struct PipeEnd {
    /// The bytes that were read or written.
    moved: u64,
    is_tried: bool,
    reader: PipeReader,
    writer: PipeWriter,
}

/// Pairing costs more than copying fewer bytes.
const MOVED_BYTES_MIN: u64 = 32 * 1024;
/// The ends that are known at a time; further pipes carry bytes. Each takes some descriptors.
const ENDS_MAX: usize = 64;
/// The calls without room after which ends that are over are looked for again.
const REFUSED_PER_CHECK: usize = 64;
/// The ends among which none is looked for that is over.
const ENDS_UNCHECKED: usize = 16;
/// The file system of pipes that have no name (statfs(2), PIPEFS_MAGIC).
const PIPE_FILE_SYSTEM: u64 = 0x5049_5045;

impl Pipes {
    pub(super) fn new() -> Self {
        let process = millrace_sys::process_generation();
        Self { process, ends: HashMap::new(), checked_at: ENDS_UNCHECKED, refused: 0 }
    }

    /// Returns an end; `None` if there are too many.
    fn end(&mut self, key: EndKey) -> Option<Arc<Mutex<PipeEnd>>> {
        if self.process != millrace_sys::process_generation() {
            // Channels are not shared with the parent.
            *self = Self::new();
        }
        if let Some(end) = self.ends.get(&key) {
            return Some(end.clone());
        }
        if self.ends.len() >= ENDS_MAX {
            self.refused += 1;
        }
        let is_full = self.refused.is_multiple_of(REFUSED_PER_CHECK);
        if self.ends.len() >= self.checked_at && (self.ends.len() < ENDS_MAX || is_full) {
            self.remove_ended();
        }
        if self.ends.len() >= ENDS_MAX {
            return None;
        }
        Some(self.ends.entry(key).or_default().clone())
    }

    /// Removes the ends whose peers are gone, and those that this process has closed.
    fn remove_ended(&mut self) {
        let open = open_pipes();
        let is_closed =
            |key: &EndKey| open.as_ref().is_some_and(|of| !of.contains(&key.pipe.inode));
        self.ends.retain(|key, end| {
            // A thread that uses an end has locked it.
            end.try_lock().map_or(true, |mut end| !is_closed(key) && !end.is_over())
        });
        self.checked_at = (2 * self.ends.len()).clamp(ENDS_UNCHECKED, ENDS_MAX);
    }

    fn remove(&mut self, key: EndKey) {
        self.ends.remove(&key);
    }
}

impl PipeEnd {
    /// Returns once whether it is time to pair the end, if `more` bytes are about to be moved.
    fn begin_pairing(&mut self, more: u64) -> bool {
        let is_time = !self.is_tried && self.moved + more >= MOVED_BYTES_MIN;
        self.is_tried |= is_time;
        is_time
    }

    /// Returns whether nothing is lost if this end becomes a new one.
    fn is_over(&mut self) -> bool {
        self.reader.is_over() && self.writer.is_over()
    }
}

impl FileClient {
    pub(super) fn read_pipe(
        &self,
        pipe: BorrowedFd<'_>,
        status: &InodeStatus,
        length: u64,
    ) -> Result<Aggregate, Errno> {
        let access = millrace_sys::file_access(pipe)?;
        let key = EndKey::new(access, status).filter(|key| !key.writes && length > 0);
        let Some((key, end)) = self.end(key) else { return self.read_stream(pipe, length) };
        let mut end = lock(&end);
        if !access.is_nonblocking
            && end.begin_pairing(0)
            && let Some(channel) = self.pair(pipe)
        {
            end.reader.pair(channel);
        }
        if self.trusts_user.load(Ordering::Relaxed) {
            end.reader.trust_writer();
        }
        match end.reader.next(pipe, length, access.is_nonblocking)? {
            ReadFrom::Aggregate(bytes) => {
                self.counters.count(Count::Passed);
                Ok(bytes)
            }
            ReadFrom::Pipe(length) => {
                end.reader.begin();
                let bytes = self.read_stream(pipe, length);
                let count = bytes.as_ref().map_or(0, Aggregate::len);
                end.reader.end(count);
                end.moved += count;
                if bytes.as_ref().is_ok_and(Aggregate::is_empty) {
                    // A pipe that has ended stays so.
                    lock(&self.pipes).remove(key);
                }
                bytes
            }
        }
    }

    pub(super) fn write_pipe(
        &self,
        pipe: BorrowedFd<'_>,
        status: &InodeStatus,
        bytes: &Aggregate,
    ) -> Result<u64, Errno> {
        let access = millrace_sys::file_access(pipe)?;
        let key = EndKey::new(access, status).filter(|key| key.writes && !bytes.is_empty());
        let Some((key, end)) = self.end(key) else { return write_bytes(pipe, bytes) };
        let mut end = lock(&end);
        if !access.is_nonblocking
            && end.begin_pairing(bytes.len())
            && let Some(channel) = self.pair(pipe)
        {
            end.writer.pair(channel);
        }
        let written = end.writer.write(pipe, bytes);
        if written.as_ref().is_err_and(|error| *error == Errno::PIPE) {
            // No process can read from it any more.
            lock(&self.pipes).remove(key);
        }
        let written = written?;
        if written.was_sent {
            self.counters.count(Count::Passed);
        }
        end.moved += written.bytes;
        Ok(written.bytes)
    }

    /// Returns memory for bytes that are written to a pipe later, if its reader reads them where
    /// they are.
    pub(super) fn allocate_for_pipe(
        &self,
        pipe: BorrowedFd<'_>,
        status: &InodeStatus,
        bytes: usize,
    ) -> Option<Buffer> {
        let key = EndKey::new(millrace_sys::file_access(pipe).ok()?, status);
        let (_, end) = self.end(key.filter(|key| key.writes))?;
        lock(&end).writer.allocate(bytes)
    }

    fn end(&self, key: Option<EndKey>) -> Option<(EndKey, Arc<Mutex<PipeEnd>>)> {
        let key = key?;
        Some((key, lock(&self.pipes).end(key)?))
    }

    /// Returns the channel to the process at the other end of a pipe, which may come later.
    fn pair(&self, pipe: BorrowedFd<'_>) -> Option<Channel> {
        if millrace_sys::file_system(pipe) != Ok(PIPE_FILE_SYSTEM) {
            // One with a name can be opened by others later.
            return None;
        }
        let paired =
            self.link.request(Request::Pair, &[pipe], |response, sockets| match response {
                Response::Paired => sockets.into_iter().next(),
                _ => None,
            });
        let socket = paired.map_err(|refusal| self.count_refusal(refusal)).ok()?;
        let options = ChannelOptions {
            joins_pools: self.trusts_user.load(Ordering::Relaxed),
            text_max: TEXT_BYTES,
            // Copies go through the ring, which bounds what is under way.
            copied_max: usize::MAX,
            // The program decides how much of what it has read it keeps.
            account: Account::new(u64::MAX),
            ..ChannelOptions::new(self.slab.clone())
        };
        Channel::new(socket, options).ok()
    }
}

impl EndKey {
    /// Returns the end that a descriptor refers to; `None` for one of both ends, as of a pipe that
    /// was opened by its name.
    fn new(access: FileAccess, status: &InodeStatus) -> Option<Self> {
        let pipe = FileKey { device: status.device, inode: status.inode };
        (access.reads != access.writes).then_some(Self { pipe, writes: access.writes })
    }
}

/// Returns the inodes of the pipes that this process has open; `None` without /proc.
fn open_pipes() -> Option<HashSet<u64>> {
    let descriptors = std::fs::read_dir("/proc/self/fd").ok()?;
    let inode = |entry: std::io::Result<std::fs::DirEntry>| {
        let target = std::fs::read_link(entry.ok()?.path()).ok()?;
        target.to_str()?.strip_prefix("pipe:[")?.strip_suffix(']')?.parse().ok()
    };
    Some(descriptors.filter_map(inode).collect())
}
