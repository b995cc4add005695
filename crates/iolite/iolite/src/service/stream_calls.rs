//! The calls of a client on pipes.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use millrace_sys::{Errno, InodeStatus};

use crate::account::Account;
use crate::aggregate::Aggregate;
use crate::buffer::Buffer;
use crate::channel::{Channel, ChannelOptions};
use crate::service::client::{FileClient, lock};
use crate::service::counters::Count;
use crate::service::message::{Request, Response};
use crate::service::stream_reader::ReadFrom;
use crate::service::stream_state::TEXT_BYTES;
use crate::service::streams::{EndKey, StreamEnd};
use crate::service::write::write_bytes;

/// The file system of pipes that have no name (statfs(2), PIPEFS_MAGIC).
const PIPE_FILE_SYSTEM: u64 = 0x5049_5045;

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
        if !access.is_nonblocking && end.begin_pairing(0) {
            let waiting = millrace_sys::waiting_bytes(pipe)?;
            if let Some(channel) = self.pair(pipe) {
                end.reader.pair(channel, waiting);
            }
        }
        if self.trusts_user.load(Ordering::Relaxed) {
            end.reader.trust_writer();
        }
        match end.reader.next(pipe, length, access.is_nonblocking)? {
            ReadFrom::Aggregate(bytes) => {
                self.counters.count(Count::Passed);
                Ok(bytes)
            }
            ReadFrom::Stream(length) => {
                end.reader.begin();
                let bytes = self.read_stream(pipe, length);
                let count = bytes.as_ref().map_or(0, Aggregate::len);
                end.reader.end(count);
                end.moved += count;
                if bytes.as_ref().is_ok_and(Aggregate::is_empty) {
                    // A pipe that has ended stays so.
                    lock(&self.streams).remove(key);
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
            lock(&self.streams).remove(key);
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

    fn end(&self, key: Option<EndKey>) -> Option<(EndKey, Arc<Mutex<StreamEnd>>)> {
        let key = key?;
        Some((key, lock(&self.streams).end(key)?))
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
