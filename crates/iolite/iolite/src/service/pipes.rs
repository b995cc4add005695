//! The ends of pipes that this process uses, by their descriptors.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use millrace_sys::{Errno, InodeStatus};

use crate::aggregate::Aggregate;
use crate::channel::{Channel, ChannelOptions};
use crate::service::client::{FileClient, lock, write_bytes};
use crate::service::counters::Count;
use crate::service::message::{Request, Response};
use crate::service::pipe_reader::{PipeReader, ReadFrom};
use crate::service::pipe_writer::{PipeWriter, Sent, TEXT_BYTES};
use crate::service::version::FileKey;

/// The ends of pipes of this process.
#[derive(Debug)]
pub(super) struct Pipes {
    /// The generation of the process that they belong to.
    process: u64,
    ends: HashMap<i32, Arc<Mutex<PipeEnd>>>,
}

/// An end of a pipe.
#[derive(Debug)]
pub(super) struct PipeEnd {
    key: FileKey,
    /// The bytes that were read or written.
    moved: u64,
    is_tried: bool,
    pub(super) reader: PipeReader,
    pub(super) writer: PipeWriter,
}

/// Pairing costs more than copying fewer bytes.
const MOVED_BYTES_MIN: u64 = 32 * 1024;

impl Pipes {
    pub(super) fn new() -> Self {
        Self { process: millrace_sys::process_generation(), ends: HashMap::new() }
    }

    /// Returns the end that a descriptor refers to. A program may have closed another one that had
    /// the same number.
    pub(super) fn end(&mut self, descriptor: i32, key: FileKey) -> Arc<Mutex<PipeEnd>> {
        if self.process != millrace_sys::process_generation() {
            // Channels are not shared with the parent.
            *self = Self::new();
        }
        let new = || PipeEnd {
            key,
            moved: 0,
            is_tried: false,
            reader: PipeReader::default(),
            writer: PipeWriter::default(),
        };
        let end = self.ends.entry(descriptor).or_insert_with(|| Arc::new(Mutex::new(new())));
        // An end that a thread uses now is the same one.
        if end.try_lock().is_ok_and(|end| end.key != key) {
            *end = Arc::new(Mutex::new(new()));
        }
        end.clone()
    }
}

impl PipeEnd {
    /// Counts moved bytes.
    pub(super) fn count(&mut self, bytes: u64) {
        self.moved += bytes;
    }

    /// Returns once whether it is time to pair the end, if `more` bytes are about to be moved.
    pub(super) fn begin_pairing(&mut self, more: u64) -> bool {
        let is_time = !self.is_tried && self.moved + more >= MOVED_BYTES_MIN;
        self.is_tried |= is_time;
        is_time
    }
}

impl FileClient {
    pub(super) fn read_pipe(
        &self,
        pipe: BorrowedFd<'_>,
        status: &InodeStatus,
        length: u64,
    ) -> Result<Aggregate, Errno> {
        let end = self.pipe_end(pipe, status);
        let mut end = lock(&end);
        if end.begin_pairing(0)
            && let Some(channel) = self.pair(pipe)
        {
            end.reader.pair(channel);
        }
        match end.reader.next(pipe, length)? {
            ReadFrom::Aggregate(bytes) => {
                self.counters.count(Count::Passed);
                Ok(bytes)
            }
            ReadFrom::Pipe(length) => {
                end.reader.begin();
                let bytes = self.read_stream(pipe, length);
                let count = bytes.as_ref().map_or(0, Aggregate::len);
                end.reader.end(count);
                end.count(count);
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
        if bytes.is_empty() {
            return write_bytes(pipe, bytes);
        }
        let end = self.pipe_end(pipe, status);
        let mut end = lock(&end);
        if end.begin_pairing(bytes.len())
            && let Some(channel) = self.pair(pipe)
        {
            end.writer.pair(channel);
        }
        match end.writer.send(pipe, bytes)? {
            Sent::Bytes(count) => {
                self.counters.count(Count::Passed);
                Ok(count)
            }
            Sent::ToPipe(mut all) => {
                let last = all.pop().expect("it has the new one");
                for mut earlier in all {
                    while !earlier.is_empty() {
                        earlier.skip(write_bytes(pipe, &earlier)?);
                    }
                }
                let written = write_bytes(pipe, &last)?;
                end.count(written);
                Ok(written)
            }
        }
    }

    pub(super) fn pipe_end(
        &self,
        pipe: BorrowedFd<'_>,
        status: &InodeStatus,
    ) -> Arc<Mutex<PipeEnd>> {
        let key = FileKey { device: status.device, inode: status.inode };
        lock(&self.pipes).end(pipe.as_raw_fd(), key)
    }

    /// Returns the channel to the process at the other end of a pipe, which may come later.
    fn pair(&self, pipe: BorrowedFd<'_>) -> Option<Channel> {
        if millrace_sys::is_nonblocking(pipe).unwrap_or(true) {
            // Its program waits for the pipe, and not for a channel.
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
            ..ChannelOptions::new(self.slab.clone())
        };
        Channel::new(socket, options).ok()
    }
}
