//! What of a body that the cache has goes to one client: all of it, a part, or several with lines
//! of text between them.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use millrace_engine::{Instant, Shared};
use millrace_http_cache::ByteRange;
use millrace_store::{Body, End, Read, Reader, Waiter};

/// Reads a body for one client.
#[derive(Debug)]
pub(crate) struct CachedReader {
    reader: Reader,
    waiter: Waiter,
    /// Whether the kernel may come to refer to it. The memory of what nobody asks for again is used
    /// for others at once only where it does not.
    may_zero_copy: bool,
    /// Bytes of the present part still to be read; `u64::MAX`: until the body ends.
    remaining: u64,
    /// What follows the present part; the first goes next.
    parts: VecDeque<ResponsePart>,
    /// The fill that waited for this client to read on.
    fill_waiter: Option<Waiter>,
    /// Bytes of the body that had arrived when it was last looked whether some do, and since when
    /// it has been as many.
    arrived_at: Option<(u64, Instant)>,
}

/// A piece of a response with several parts.
#[derive(Debug)]
pub(crate) enum ResponsePart {
    Text(Vec<u8>),
    Range(ByteRange),
}

/// What goes to the client next.
#[derive(Debug)]
pub(crate) enum NextChunk {
    Slice(CachedSlice),
    Text(Vec<u8>),
    /// Nothing yet: the waiter will be woken.
    Wait,
    /// Nothing more.
    End(End),
}

impl CachedReader {
    /// All of a body, or the range of it. `None` where the beginning was let go already.
    pub(crate) fn new(body: &Arc<Body>, range: Option<ByteRange>, waiter: Waiter) -> Option<Self> {
        let (at, left) = range.map_or((0, u64::MAX), |range| (range.first, range.length()));
        let reader = Reader::new(body.clone(), at)?;
        let follows = VecDeque::new();
        let may_be_referred = true;
        Some(Self {
            reader,
            waiter,
            may_zero_copy: may_be_referred,
            remaining: left,
            parts: follows,
            fill_waiter: None,
            arrived_at: None,
        })
    }

    /// Has what is read sent by copy: to whom it is fetched for, and while it is hot.
    pub(crate) fn disable_zero_copy(&mut self) {
        self.may_zero_copy = false;
    }

    /// These pieces of a body that is kept for good.
    pub(crate) fn of_parts(
        body: &Arc<Body>,
        pieces: VecDeque<ResponsePart>,
        waiter: Waiter,
    ) -> Option<Self> {
        Some(Self { remaining: 0, parts: pieces, ..Self::new(body, None, waiter)? })
    }

    /// What goes next, `max` bytes at most where it is of the body.
    pub(crate) fn next(&mut self, max: u64) -> NextChunk {
        while self.remaining == 0 {
            match self.parts.pop_front() {
                None => return NextChunk::End(End::Whole),
                Some(ResponsePart::Text(text)) => return NextChunk::Text(text),
                Some(ResponsePart::Range(range)) => {
                    // It is kept for good, so that any of it can be read.
                    let body = self.reader.body().clone();
                    let Some(reader) = Reader::new(body, range.first) else {
                        return NextChunk::End(End::Cut);
                    };
                    (self.reader, self.remaining) = (reader, range.length());
                }
            }
        }
        let max = self.remaining.min(max);
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        let (read, woken) = self.reader.read(max, self.waiter);
        self.fill_waiter = self.fill_waiter.or(woken);
        match read {
            Read::Bytes(slice) => {
                if self.remaining != u64::MAX {
                    self.remaining -= slice.len() as u64;
                }
                let may_be_referred = self.may_zero_copy;
                NextChunk::Slice(CachedSlice { bytes: slice, may_zero_copy: may_be_referred })
            }
            Read::Wait => NextChunk::Wait,
            Read::End(end) => NextChunk::End(end),
        }
    }

    /// Whether all of the body is read, from its beginning to its end.
    pub(crate) fn reads_whole_body(&self) -> bool {
        self.remaining == u64::MAX && self.parts.is_empty()
    }

    /// Whether everything was read that has come of the body.
    pub(crate) fn has_read_all_arrived(&self) -> bool {
        self.reader.at() == self.reader.body().arrived()
    }

    /// The next `count` bytes, which are about to come, go to the client another way.
    pub(crate) fn skip(&mut self, count: usize) {
        self.reader.skip(count as u64);
    }

    /// What is read.
    pub(crate) fn body(&self) -> &Arc<Body> {
        self.reader.body()
    }

    /// Since when nothing has come of the body, as far as that was looked at.
    pub(crate) fn stalled_since(&mut self, now: Instant) -> Instant {
        let arrived = self.reader.body().arrived();
        let seen = self.arrived_at.filter(|(seen, _)| *seen == arrived);
        let since = seen.map_or(now, |(_, since)| since);
        self.arrived_at = Some((arrived, since));
        since
    }

    /// Takes the waiter to wake, as there may be room now.
    pub(crate) fn take_fill_waiter(&mut self) -> Option<Waiter> {
        self.fill_waiter.take()
    }

    /// Ends the reading. Returns the waiter to wake.
    pub(crate) fn close(self) -> Option<Waiter> {
        let woken = self.fill_waiter;
        self.reader.leave().or(woken)
    }
}

/// Bytes of the slab as the engine sends them.
#[derive(Clone, Debug)]
pub(crate) struct CachedSlice {
    bytes: iolite::Slice,
    may_zero_copy: bool,
}

impl CachedSlice {
    /// Whether it is sent from memory like other bytes, though the engine could refer to it.
    pub(crate) fn is_copied(&self) -> bool {
        !self.may_zero_copy
    }
}

impl Shared for CachedSlice {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        // To ask for the file is to say that it will be referred to.
        if self.may_zero_copy { self.bytes.file() } else { None }
    }

    fn share(&self) -> Box<dyn Shared> {
        Box::new(self.clone())
    }
}
