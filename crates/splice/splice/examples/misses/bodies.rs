//! Moves the rest of a body from the origin to the client.

use std::io;

use millrace_splice::{Handle, KeepCopy, Notice, Request, Side, SpliceMode, SpliceOutcome};

use crate::{COPY_BYTES, Connection, MissState, Proxy};

/// The parameters of section 4 of the paper.
const KEEP: KeepCopy = KeepCopy { min2read: 16 * 1024, max2cache: 64 * 1024 };
/// The size of a read from the copy: the maximum that the copy can hold.
const READ_BYTES: usize = KEEP.max2cache;

impl Proxy {
    /// Splices the rest of a body. The first `first` bytes of the buffer are the prefix.
    pub(crate) fn splice(
        &mut self,
        number: usize,
        fd0: Connection,
        fd1: Connection,
        first: usize,
        rest: u64,
        is_public: bool,
    ) -> io::Result<()> {
        let input = self.store.room(if is_public { READ_BYTES } else { 0 });
        let request = Request {
            fd0,
            fd1,
            mode: SpliceMode::Unidirectional { limit: Some(rest) },
            keep_copy: is_public.then_some(KEEP),
            auto_release: true,
            prefix: &self.buffer[..first],
            input,
        };
        match self.splicer.splice(request).map_err(io::Error::other)? {
            SpliceOutcome::Started { handle, input } => {
                self.store.keep(input);
                self.bodies.insert(handle, number);
                self.set(number, MissState::Spliced);
            }
            SpliceOutcome::Ended { end, input, .. } => {
                self.store.keep(input);
                self.finish(number, end.error().is_none());
            }
        }
        Ok(())
    }

    /// Lets the splicer forward, and handles its notices.
    pub(crate) fn forward(&mut self) -> io::Result<()> {
        self.splicer.forward(Some(0))?;
        while let Some(notice) = self.splicer.next_notice() {
            match notice {
                Notice::Readable(handle) => self.read(handle),
                Notice::Ended { handle, end, .. } => {
                    if let Some(number) = self.bodies.remove(&handle) {
                        self.finish(number, end.error().is_none());
                    }
                }
            }
        }
        Ok(())
    }

    /// Stores kept payload.
    fn read(&mut self, handle: Handle) {
        // The end of the transfer reports the error as well.
        let room = self.store.room(READ_BYTES);
        let count = self.splicer.read(handle, Side::Fd0, room).unwrap_or(0);
        self.store.keep(count);
    }

    /// Continues with a body that is copied.
    pub(crate) fn copy(&mut self, number: usize) -> io::Result<()> {
        let Some(client) = &mut self.clients[number] else { return Ok(()) };
        let MissState::Copied(copied) = &mut client.state else { return Ok(()) };
        let origin = self.origins[client.origin].as_ref().ok_or(io::ErrorKind::NotFound)?;
        while copied.flush(&client.connection)? {
            if copied.rest == 0 {
                self.finish(number, true);
                break;
            }
            let (is_public, buffer) = (copied.is_public, &mut self.buffer[..]);
            let room = if is_public { self.store.room(COPY_BYTES) } else { buffer };
            let Some(count) = copied.receive(&origin.connection, room)? else { break };
            copied.send(&client.connection, &room[..count])?;
            self.store.keep(if is_public { count } else { 0 });
        }
        Ok(())
    }
}
