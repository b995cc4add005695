//! The ends of pipes and connections that this process uses, by their inodes and directions.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use millrace_sys::{FileAccess, InodeKind, InodeStatus};

use crate::service::stream_reader::StreamReader;
use crate::service::stream_writer::StreamWriter;
use crate::service::version::FileKey;

/// The ends of this process. Nothing reports that a descriptor was closed, so the process
/// looks for ends that are over now and then.
#[derive(Debug)]
pub(super) struct Streams {
    /// The generation of the process that they belong to.
    process: u64,
    ends: HashMap<EndKey, Arc<Mutex<StreamEnd>>>,
    /// The number of ends from which on those that are over are removed.
    checked_at: usize,
    /// The calls that have found no room.
    refused: usize,
}

/// An end of a pipe, or a direction of a connection at one end. All descriptors that refer to it
/// are the same end (dup(2)).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct EndKey {
    stream: FileKey,
    pub(super) writes: bool,
}

/// The state of an end.
#[derive(Debug, Default)]
pub(super) struct StreamEnd {
    /// The bytes that were read or written.
    pub(super) moved: u64,
    is_tried: bool,
    pub(super) reader: StreamReader,
    pub(super) writer: StreamWriter,
}

/// Pairing costs more than copying fewer bytes.
const MOVED_BYTES_MIN: u64 = 32 * 1024;
/// The ends that are known at a time; further ones carry bytes. Each takes some descriptors.
const ENDS_MAX: usize = 64;
/// The calls without room after which ends that are over are looked for again.
const REFUSED_PER_CHECK: usize = 64;
/// The ends among which none is looked for that is over.
const ENDS_UNCHECKED: usize = 16;

impl Streams {
    pub(super) fn new() -> Self {
        let process = millrace_sys::process_generation();
        Self { process, ends: HashMap::new(), checked_at: ENDS_UNCHECKED, refused: 0 }
    }

    /// Returns an end; `None` if there are too many.
    pub(super) fn end(&mut self, key: EndKey) -> Option<Arc<Mutex<StreamEnd>>> {
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
        let open = open_streams();
        let is_closed =
            |key: &EndKey| open.as_ref().is_some_and(|of| !of.contains(&key.stream.inode));
        self.ends.retain(|key, end| {
            // A thread that uses an end has locked it.
            end.try_lock().map_or(true, |end| !is_closed(key) && !end.is_over())
        });
        self.checked_at = (2 * self.ends.len()).clamp(ENDS_UNCHECKED, ENDS_MAX);
    }

    pub(super) fn remove(&mut self, key: EndKey) {
        self.ends.remove(&key);
    }
}

impl StreamEnd {
    /// Returns once whether it is time to pair the end, if `more` bytes are about to be moved.
    pub(super) fn begin_pairing(&mut self, more: u64) -> bool {
        let is_time = !self.is_tried && self.moved + more >= MOVED_BYTES_MIN;
        self.is_tried |= is_time;
        is_time
    }

    /// Returns whether no bytes were moved yet.
    pub(super) fn is_new(&self) -> bool {
        self.moved == 0 && !self.is_tried
    }

    /// Lets the end carry bytes only.
    pub(super) fn never_pair(&mut self) {
        self.is_tried = true;
    }

    /// Lets the end be paired when as many bytes have moved again.
    pub(super) fn postpone_pairing(&mut self) {
        (self.is_tried, self.moved) = (false, 0);
    }

    /// Returns whether the end carries bytes now and later.
    pub(super) fn is_plain(&self) -> bool {
        self.is_tried && self.reader.is_plain() && self.writer.is_plain()
    }

    /// Returns whether nothing is lost if this end becomes a new one.
    fn is_over(&self) -> bool {
        self.reader.is_over() && self.writer.is_over()
    }
}

impl EndKey {
    /// Returns the end that a descriptor refers to; `None` if it is not open for this direction, or
    /// is a pipe that was opened by its name for both.
    pub(super) fn new(access: FileAccess, status: &InodeStatus, writes: bool) -> Option<Self> {
        let stream = FileKey { device: status.device, inode: status.inode };
        let is_open = if writes { access.writes } else { access.reads };
        let has_two_ends = status.kind == InodeKind::Pipe && access.reads && access.writes;
        (is_open && !has_two_ends).then_some(Self { stream, writes })
    }
}

/// Returns the inodes of the pipes and sockets that this process has open; `None` without /proc.
fn open_streams() -> Option<HashSet<u64>> {
    let descriptors = std::fs::read_dir("/proc/self/fd").ok()?;
    let inode = |entry: std::io::Result<std::fs::DirEntry>| {
        let target = std::fs::read_link(entry.ok()?.path()).ok()?;
        let target = target.to_str()?;
        let number = target.strip_prefix("pipe:[").or_else(|| target.strip_prefix("socket:["))?;
        number.strip_suffix(']')?.parse().ok()
    };
    Some(descriptors.filter_map(inode).collect())
}
