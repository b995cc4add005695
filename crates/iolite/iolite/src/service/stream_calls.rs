//! The calls of a client on pipes and sockets.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use millrace_sys::{Errno, FileAccess, InodeStatus};

use crate::aggregate::Aggregate;
use crate::buffer::Buffer;
use crate::channel::{Channel, ChannelOptions};
use crate::service::client::{FileClient, lock};
use crate::service::counters::Count;
use crate::service::message::{Request, Response};
use crate::service::stream_reader::ReadFrom;
use crate::service::stream_state::{Candidate, PairedStream, StreamKind, TEXT_BYTES};
use crate::service::streams::{EndKey, StreamEnd};
use crate::service::write::write_bytes;

impl FileClient {
    /// Reads from a pipe or a socket.
    pub(super) fn read_end(
        &self,
        stream: BorrowedFd<'_>,
        status: &InodeStatus,
        length: u64,
    ) -> Result<Aggregate, Errno> {
        let access = millrace_sys::file_access(stream)?;
        let key = EndKey::new(access, status, false).filter(|_| length > 0);
        let Some((key, end)) = self.end(key) else { return self.read_stream(stream, length) };
        let mut end = lock(&end);
        if let Some(paired) = self.pair(&mut end, stream, status, access, 0, false) {
            end.reader.pair(paired);
        }
        if end.is_plain() {
            // Other threads may read it meanwhile, as by read(2).
            drop(end);
            return self.read_stream(stream, length);
        }
        if self.trusts_user.load(Ordering::Relaxed) {
            end.reader.trust_writer();
        }
        match end.reader.next(stream, length, access.is_nonblocking)? {
            ReadFrom::Aggregate(bytes) => {
                self.counters.count(Count::Passed);
                Ok(bytes)
            }
            ReadFrom::Stream(length) => {
                end.reader.begin();
                let bytes = self.read_stream(stream, length);
                let count = bytes.as_ref().map_or(0, Aggregate::len);
                end.reader.end(count);
                end.moved += count;
                if bytes.as_ref().is_ok_and(Aggregate::is_empty) {
                    // A stream that has ended stays so.
                    lock(&self.streams).remove(key);
                }
                bytes
            }
        }
    }

    /// Writes to a pipe or a socket.
    pub(super) fn write_end(
        &self,
        stream: BorrowedFd<'_>,
        status: &InodeStatus,
        bytes: &Aggregate,
    ) -> Result<u64, Errno> {
        let access = millrace_sys::file_access(stream)?;
        let key = EndKey::new(access, status, true).filter(|_| !bytes.is_empty());
        let Some((key, end)) = self.end(key) else { return write_bytes(stream, bytes) };
        let mut end = lock(&end);
        let paired = self.pair(&mut end, stream, status, access, bytes.len(), true);
        if let Some(PairedStream { kind, channel, .. }) = paired {
            end.writer.pair(kind, channel);
        }
        if end.is_plain() {
            drop(end);
            return write_bytes(stream, bytes);
        }
        let written = end.writer.write(stream, bytes);
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

    /// Returns memory for bytes that are written to a pipe or a socket later, if its reader reads
    /// them where they are.
    pub(super) fn allocate_for_end(
        &self,
        stream: BorrowedFd<'_>,
        status: &InodeStatus,
        bytes: usize,
    ) -> Option<Buffer> {
        let key = EndKey::new(millrace_sys::file_access(stream).ok()?, status, true);
        let (_, end) = self.end(key)?;
        lock(&end).writer.allocate(bytes)
    }

    fn end(&self, key: Option<EndKey>) -> Option<(EndKey, Arc<Mutex<StreamEnd>>)> {
        let key = key?;
        Some((key, lock(&self.streams).end(key)?))
    }

    /// Returns the channel to the process at the other end, which may come later, if it is time to
    /// pair this end.
    fn pair(
        &self,
        end: &mut StreamEnd,
        stream: BorrowedFd<'_>,
        status: &InodeStatus,
        access: FileAccess,
        more: u64,
        writes: bool,
    ) -> Option<PairedStream> {
        if end.is_new() && millrace_sys::is_stream_socket(stream) == Ok(false) {
            end.never_pair();
        }
        if access.is_nonblocking || !end.begin_pairing(more) {
            return None;
        }
        match StreamKind::of(stream, status) {
            Ok(Candidate::Stream(kind, state)) => {
                let waiting = millrace_sys::waiting_bytes(stream).ok()?;
                let channel = self.channel(stream, writes)?;
                let files_max = self.stream_files_max;
                Some(PairedStream { kind, state, waiting, channel, files_max })
            }
            Ok(Candidate::Later) => {
                end.postpone_pairing();
                None
            }
            Ok(Candidate::Never) | Err(_) => None,
        }
    }

    fn channel(&self, stream: BorrowedFd<'_>, writes: bool) -> Option<Channel> {
        let request = Request::Pair { writes };
        let paired = self.link.request(request, &[stream], |response, sockets| match response {
            Response::Paired => sockets.into_iter().next(),
            _ => None,
        });
        let socket = paired.map_err(|refusal| self.count_refusal(refusal)).ok()?;
        let options = ChannelOptions {
            joins_pools: self.trusts_user.load(Ordering::Relaxed),
            text_max: TEXT_BYTES,
            // Copies go through the ring, which bounds what is under way.
            copied_max: usize::MAX,
            account: self.stream_account.clone(),
            ..ChannelOptions::new(self.slab.clone())
        };
        Channel::new(socket, options).ok()
    }
}
