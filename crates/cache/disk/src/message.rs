//! What goes to a disk and comes back.

use std::fmt::Debug;
use std::sync::Arc;

use iolite::{Aggregate, AllocError};
use millrace_body::{Filler, WaiterId};
use millrace_http_cache::{META_BYTES, Space, TagHash, VariantKey};

use super::format::{FixedHeader, RecordKind, RecordPosition, ResponseId};
use super::limits::CHUNK_BYTES;

/// An answer to be stored. Everything is held by count: nothing is copied before it is written.
#[derive(Clone, Debug)]
pub struct StoredResponse {
    /// Which it is.
    pub id: ResponseId,
    /// What requests it fits, if it varies.
    pub variant: Option<VariantKey>,
    /// [`VaryNames::as_bytes`](millrace_http_cache::VaryNames::as_bytes), if it varies.
    pub vary: Option<Arc<[u8]>>,
    /// [`Meta::to_bytes`](millrace_http_cache::Meta::to_bytes), of no meaning here.
    pub meta: [u8; META_BYTES],
    /// Its head, of no meaning here.
    pub header: Arc<[u8]>,
    /// The text of its key.
    pub name: Arc<[u8]>,
    /// What it may be purged by besides.
    pub tags: Arc<[TagHash]>,
    /// All of its body.
    pub body: Aggregate,
}

impl StoredResponse {
    /// What its record begins with; `None` where something is too long.
    pub(super) fn fixed_header(&self) -> Option<FixedHeader> {
        let mut fixed = FixedHeader::new(RecordKind::Response, self.id);
        fixed.has_variant = self.variant.is_some();
        fixed.has_language = self.variant.is_some_and(|variant| variant.by_language.is_some());
        fixed.tags = self.tags.len().try_into().ok()?;
        fixed.vary_bytes = self.vary.as_ref().map_or(0, |vary| vary.len()).try_into().ok()?;
        fixed.response_header_bytes = self.header.len().try_into().ok()?;
        fixed.name_bytes = self.name.len().try_into().ok()?;
        fixed.body_bytes = self.body.len();
        fixed.space = Space::tag_of(&self.name);
        fixed.is_within_limits().then_some(fixed)
    }

    /// Bytes that it keeps from being used for anything else while it is in the queue.
    pub(super) fn bytes(&self) -> u64 {
        self.body.len() + self.header.len() as u64 + self.name.len() as u64
    }

    /// CRC-32C of each chunk of its body, 4 bytes each.
    pub(super) fn chunk_sums(&self) -> Vec<u8> {
        let mut sums = Vec::new();
        let (mut sum, mut count) = (0, 0);
        for slice in self.body.slices() {
            let mut rest = &slice[..];
            while !rest.is_empty() {
                let (part, behind) = rest.split_at(rest.len().min(CHUNK_BYTES - count));
                (sum, count, rest) = (crc32c::crc32c_append(sum, part), count + part.len(), behind);
                if count == CHUNK_BYTES {
                    sums.extend_from_slice(&u32::to_le_bytes(sum));
                    (sum, count) = (0, 0);
                }
            }
        }
        if count > 0 {
            sums.extend_from_slice(&u32::to_le_bytes(sum));
        }
        sums
    }
}

/// A stored answer that may be fetched, as far as memory knows it.
#[derive(Clone, Debug)]
pub struct DiskHit {
    /// Which it is.
    pub id: ResponseId,
    /// What requests it fits, if it varies.
    pub variant: Option<VariantKey>,
    /// The names of the fields that it varies by, if it does.
    pub vary: Option<Arc<[u8]>>,
    /// The length of its body.
    pub body_bytes: u64,
    pub(super) disk: usize,
    pub(super) at: RecordPosition,
}

/// A wish to have what is stored.
#[derive(Debug)]
pub struct FetchRequest {
    /// What.
    pub candidate: DiskHit,
    /// Where its body goes; takes as many bytes as that has.
    pub filler: Filler,
    /// Who is told.
    pub requester: WaiterId,
}

/// What is said of a stored answer besides its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredHeader {
    /// Which it is.
    pub id: ResponseId,
    /// What requests it fits, if it varies.
    pub variant: Option<VariantKey>,
    /// The names of the fields that it varies by; empty if it does not.
    pub vary: Box<[u8]>,
    /// Its numbers, to be checked by [`Meta::from_bytes`](millrace_http_cache::Meta::from_bytes).
    pub meta: [u8; META_BYTES],
    /// Its head.
    pub header: Box<[u8]>,
    /// The text of its key.
    pub name: Box<[u8]>,
    /// What it may be purged by besides.
    pub tags: Box<[TagHash]>,
    /// The length of its body.
    pub body_bytes: u64,
    /// It was made stale, by an operator or by a client's request: to be validated before it is used
    /// again.
    pub is_stale: bool,
}

/// What became of a wish.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskReply {
    /// Of a fetch: the head, and the beginning of the body was compared with its checksum and is
    /// with whoever reads. The rest follows, or the body is cut.
    Fetched(Box<StoredHeader>),
    /// Of a fetch: nothing was given to anybody, and the filler was dropped.
    NotFetched(FetchError),
    /// Of a fetch that was told as [`Answered::Fetched`]: the body was cut.
    Cut(ResponseId),
    /// Of a purge: it is done, here and for the process from the call on. `is_durable`: it will be
    /// even if the machine loses its power now.
    Purged {
        /// On every disk.
        is_durable: bool,
    },
    /// Of a listing: some heads, and where it goes on, if it does.
    Listed(Vec<StoredHeader>, Option<Cursor>),
}

/// Where a listing goes on: of no meaning to others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    pub(super) disk: usize,
    pub(super) segment: u32,
    pub(super) index: usize,
}

/// Why nothing was fetched. In each case the origin is asked, as if nothing were stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FetchError {
    /// It was purged, replaced or dropped meanwhile.
    Gone,
    /// What was read is not what was written, or could not be read. It will not be found again.
    Damaged,
    /// There was no memory for it.
    NoMemory,
}

/// What the disks ask of those who use them. Called on the disks' threads, without any lock of
/// theirs.
pub trait DiskCallbacks: Send + Sync + Debug {
    /// Somebody who waited for a body may go on.
    fn wake(&self, waiter: WaiterId);

    /// There was no memory for a body that is being fetched. Gives whether it is worth to try
    /// again.
    fn make_room(&self, error: AllocError) -> bool;

    /// What became of what `asker` wanted.
    fn handle_reply(&self, requester: WaiterId, reply: DiskReply);
}
