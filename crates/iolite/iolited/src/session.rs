//! A connected process and its requests.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use iolite::service::{PieceRange, REQUEST_BYTES_MAX, Refusal, Request, Response};
use millrace_sys::Errno;

use crate::cache::{Cache, Contents};
use crate::limits::UNKNOWN_USER;
use crate::packs::Packs;
use crate::pairs::Pairs;

/// A connected process. It has a thread of its own, which waits for slow disks, and for what the
/// process sends: so it keeps no other process waiting.
pub(crate) struct Session<'a> {
    pub(crate) cache: &'a Cache,
    pub(crate) packs: &'a Packs,
    pub(crate) pairs: &'a Pairs,
    /// The number of the connection.
    pub(crate) client: u64,
    pub(crate) socket: OwnedFd,
    /// The user of the process at connect(2).
    pub(crate) user: u32,
}

/// The reason why a connection ends.
pub(crate) enum End {
    /// The process has closed it, or has ended.
    Closed,
    /// The process has sent no request, or one before it has received a response.
    NoRequest,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.pairs.leave(self.client);
    }
}

impl Session<'_> {
    /// Responds to requests until the process leaves.
    pub(crate) fn run(&self) -> End {
        if self.send(&Response::Ready, &[]).is_err() {
            return End::Closed;
        }
        loop {
            match self.receive() {
                Ok((request, files)) => {
                    if self.handle(request, files).is_err() {
                        return End::Closed;
                    }
                }
                Err(end) => return end,
            }
        }
    }

    fn receive(&self) -> Result<(Request, Vec<OwnedFd>), End> {
        let (mut packet, mut files) = ([0; REQUEST_BYTES_MAX], Vec::new());
        match millrace_sys::await_packet(self.socket.as_fd(), &mut packet, &mut files) {
            Ok(0) | Err(Errno::CONNRESET) => Err(End::Closed),
            Ok(length) => {
                let request = Request::read(&packet[..length], files.len());
                // The kernel limits the descriptors of all packets that were not received.
                let unread = millrace_sys::unacknowledged_bytes(self.socket.as_fd());
                let request = request.filter(|_| unread == Ok(0));
                request.map(|request| (request, files)).ok_or(End::NoRequest)
            }
            Err(_) => Err(End::NoRequest),
        }
    }

    fn handle(&self, request: Request, mut files: Vec<OwnedFd>) -> Result<(), End> {
        match request {
            Request::Pair { .. } | Request::Written { .. } if self.user == UNKNOWN_USER => {
                self.send(&Response::Refused(Refusal::UnknownUser), &[])
            }
            Request::Read { offset, length } => {
                let file = files.pop().expect("the request was checked");
                let contents = self.cache.read(self.user, file.as_fd(), offset, length);
                let opened = contents.and_then(|contents| self.open(&contents));
                match opened {
                    Ok((response, memory)) => self.send(&response, &memory),
                    Err(refusal) => self.send(&Response::Refused(refusal), &[]),
                }
            }
            Request::Pack => {
                let pack = self.packs.find_or_make(self.cache, self.user, files[0].as_fd());
                let open = |memory| Ok((self.cache.open_for(self.user, &memory)?, memory.length()));
                match pack.and_then(open) {
                    Ok((memory, length)) => self.send(&Response::Packed(length), &[memory]),
                    Err(refusal) => self.send(&Response::Refused(refusal), &[]),
                }
            }
            Request::Pair { writes } => {
                match self.pairs.add(self.user, self.client, files[0].as_fd(), writes) {
                    Ok(socket) => self.send(&Response::Paired, &[socket]),
                    Err(refusal) => self.send(&Response::Refused(refusal), &[]),
                }
            }
            Request::Written { offset, length } => {
                let memory = files.pop().expect("the request was checked");
                let range = PieceRange { offset, length };
                match self.cache.add_written(self.user, files[0].as_fd(), range, memory) {
                    Ok(()) => self.send(&Response::Taken, &[]),
                    Err(refusal) => self.send(&Response::Refused(refusal), &[]),
                }
            }
        }
    }

    /// Opens the memory for the client: all of it, or the first pieces of which the user may have.
    fn open(&self, contents: &Contents) -> Result<(Response, Vec<OwnedFd>), Refusal> {
        let Contents { version, is_settled, pieces } = contents;
        let mut opened: (Vec<PieceRange>, Vec<OwnedFd>) = Default::default();
        for piece in pieces {
            match self.cache.open_for(self.user, &piece.memory) {
                Ok(file) => {
                    opened.0.push(piece.range());
                    opened.1.push(file);
                }
                Err(refusal) if opened.0.is_empty() => return Err(refusal),
                Err(_) => break,
            }
        }
        let (pieces, files) = opened;
        Ok((Response::Pieces { version: *version, is_settled: *is_settled, pieces }, files))
    }

    fn send(&self, response: &Response, memory: &[OwnedFd]) -> Result<(), End> {
        let mut packet = Vec::new();
        response.write(&mut packet);
        let files: Vec<BorrowedFd<'_>> = memory.iter().map(AsFd::as_fd).collect();
        match millrace_sys::send_packet_and_wait(self.socket.as_fd(), &[&packet], &files) {
            Ok(()) => Ok(()),
            Err(error @ Errno::TOOMANYREFS) if !files.is_empty() => {
                self.send(&Response::Refused(Refusal::Kernel(error)), &[])
            }
            Err(_) => Err(End::Closed),
        }
    }
}
