//! Readers of cached bodies. A reader delivers to one client a whole body, a range of it, or
//! several ranges with text between them.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use millrace_engine::{Instant, SharedBytes};
use millrace_http_cache::ByteRange;
use millrace_store::{Body, BodyEnd, BodyRead, Reader, WaiterId};

use crate::secure::layer::STEP_BYTES_MAX;

/// A reader of a cached body for one client.
#[derive(Debug)]
pub(crate) struct CachedReader {
    reader: Reader,
    waiter: WaiterId,
    /// Whether the kernel may refer to the cache's memory. Memory to which the kernel refers cannot
    /// be reused at once after its object was evicted.
    may_zero_copy: bool,
    /// The most bytes of a slice.
    slice_bytes_max: u64,
    /// The bytes of the present part that are still to be read. `u64::MAX`: until the body ends.
    remaining: u64,
    /// The parts after the present one, in order.
    parts: VecDeque<ResponsePart>,
    /// The fill that waited for this reader to make progress.
    fill_waiter: Option<WaiterId>,
    /// How many bytes of the body had arrived at the last check, and since when their number has
    /// not changed.
    last_arrival: Option<(u64, Instant)>,
}

/// One part of a response with several ranges.
#[derive(Debug)]
pub(crate) enum ResponsePart {
    Text(Vec<u8>),
    Range(ByteRange),
}

/// The next chunk for the client.
#[derive(Debug)]
pub(crate) enum NextChunk {
    Slice(CachedSlice),
    Text(Vec<u8>),
    /// No byte has arrived; the waiter will be woken.
    Wait,
    /// The body has ended.
    End(BodyEnd),
}

impl CachedReader {
    /// Creates a reader of a whole body or of one range. Returns `None` if the beginning was
    /// discarded already.
    #[inline(always)]
    pub(crate) fn new(
        body: &Arc<Body>,
        range: Option<ByteRange>,
        waiter: WaiterId,
    ) -> Option<Self> {
        let (at, remaining) = range.map_or((0, u64::MAX), |range| (range.first, range.length()));
        let reader = Reader::new(body.clone(), at)?;
        let parts = VecDeque::new();
        let may_zero_copy = true;
        Some(Self {
            reader,
            waiter,
            may_zero_copy,
            slice_bytes_max: u64::MAX,
            remaining,
            parts,
            fill_waiter: None,
            last_arrival: None,
        })
    }

    /// Makes the engine send the bytes by copy. Used while the object is hot, and for a client that
    /// began to read while the body was arriving.
    pub(crate) fn disable_zero_copy(&mut self) {
        self.may_zero_copy = false;
    }

    /// Prepares the reader for a secured client: the bytes are sealed, in steps.
    pub(crate) fn seal_in_steps(&mut self) {
        self.may_zero_copy = false;
        self.slice_bytes_max = STEP_BYTES_MAX;
    }

    /// Creates a reader of these parts of a body that is stored.
    pub(crate) fn of_parts(
        body: &Arc<Body>,
        parts: VecDeque<ResponsePart>,
        waiter: WaiterId,
    ) -> Option<Self> {
        Some(Self { remaining: 0, parts, ..Self::new(body, None, waiter)? })
    }

    /// Returns the next chunk. A slice of the body has at most `max` bytes.
    #[inline(always)]
    pub(crate) fn next(&mut self, max: u64) -> NextChunk {
        while self.remaining == 0 {
            match self.parts.pop_front() {
                None => return NextChunk::End(BodyEnd::Whole),
                Some(ResponsePart::Text(text)) => return NextChunk::Text(text),
                Some(ResponsePart::Range(range)) => {
                    // The body is stored, so a reader may begin anywhere.
                    let body = self.reader.body().clone();
                    let Some(reader) = Reader::new(body, range.first) else {
                        return NextChunk::End(BodyEnd::Cut);
                    };
                    (self.reader, self.remaining) = (reader, range.length());
                }
            }
        }
        let max = self.remaining.min(max).min(self.slice_bytes_max);
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        let (read, woken) = self.reader.read(max, self.waiter);
        self.fill_waiter = self.fill_waiter.or(woken);
        match read {
            BodyRead::Bytes(slice) => {
                if self.remaining != u64::MAX {
                    self.remaining -= slice.len() as u64;
                }
                let may_zero_copy = self.may_zero_copy;
                NextChunk::Slice(CachedSlice { bytes: slice, may_zero_copy })
            }
            BodyRead::Wait => NextChunk::Wait,
            BodyRead::End(end) => NextChunk::End(end),
        }
    }

    /// Returns whether the reader delivers the body from its beginning to its end.
    pub(crate) fn reads_whole_body(&self) -> bool {
        self.remaining == u64::MAX && self.parts.is_empty()
    }

    /// Returns whether every byte of the body that has arrived was read.
    pub(crate) fn has_read_all_arrived(&self) -> bool {
        self.reader.at() == self.reader.body().arrived()
    }

    /// Skips the next `count` bytes, which reach the client in another way.
    pub(crate) fn skip(&mut self, count: usize) {
        self.reader.skip(count as u64);
    }

    /// Returns the body that is read.
    pub(crate) fn body(&self) -> &Arc<Body> {
        self.reader.body()
    }

    /// Returns since when no byte of the body has arrived. The time is that of the first call that
    /// found the present number of bytes.
    pub(crate) fn stalled_since(&mut self, now: Instant) -> Instant {
        let arrived = self.reader.body().arrived();
        let seen = self.last_arrival.filter(|(seen, _)| *seen == arrived);
        let since = seen.map_or(now, |(_, since)| since);
        self.last_arrival = Some((arrived, since));
        since
    }

    /// Takes the waiter of the fill, which may continue now.
    pub(crate) fn take_fill_waiter(&mut self) -> Option<WaiterId> {
        self.fill_waiter.take()
    }

    /// Ends the reading. Returns the waiter of the fill to wake.
    pub(crate) fn close(self) -> Option<WaiterId> {
        let woken = self.fill_waiter;
        self.reader.close().or(woken)
    }
}

/// Bytes of the slab in the form in which the engine sends them.
#[derive(Clone, Debug)]
pub(crate) struct CachedSlice {
    bytes: iolite::Slice,
    may_zero_copy: bool,
}

impl CachedSlice {
    /// Returns whether the bytes are sent by copy although the engine could refer to them.
    pub(crate) fn is_copied(&self) -> bool {
        !self.may_zero_copy
    }
}

impl SharedBytes for CachedSlice {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        // A caller that gets the file will refer to its memory.
        if self.may_zero_copy { self.bytes.sendfile_source() } else { None }
    }

    fn clone_box(&self) -> Box<dyn SharedBytes> {
        Box::new(self.clone())
    }
}
