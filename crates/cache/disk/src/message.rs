//! Requests to a disk, and its replies.

use std::fmt::Debug;
use std::sync::Arc;

use iolite::{Aggregate, AllocError};
use millrace_body::{Filler, WaiterId};
use millrace_http_cache::{META_BYTES, Space, TagHash, VariantKey};

use super::format::{FixedHeader, RecordKind, RecordPosition, ResponseId};
use super::limits::CHUNK_BYTES;

/// A response to store. Its long parts are reference-counted, so queueing does not copy them.
#[derive(Clone, Debug)]
pub struct StoredResponse {
    /// Its id.
    pub id: ResponseId,
    /// The requests that it matches, if it varies.
    pub variant: Option<VariantKey>,
    /// [`VaryNames::as_bytes`](millrace_http_cache::VaryNames::as_bytes), if it varies.
    pub vary: Option<Arc<[u8]>>,
    /// [`Meta::to_bytes`](millrace_http_cache::Meta::to_bytes); opaque here.
    pub meta: [u8; META_BYTES],
    /// Its response header; opaque here.
    pub header: Arc<[u8]>,
    /// The text of its key.
    pub name: Arc<[u8]>,
    /// The tags by which it can be purged besides its key.
    pub tags: Arc<[TagHash]>,
    /// Its whole body.
    pub body: Aggregate,
}

impl StoredResponse {
    /// Returns the fixed part of its record header; `None` if a part is too long.
    pub(super) fn fixed_header(&self) -> Option<FixedHeader> {
        let mut fixed = FixedHeader::new(RecordKind::Response, self.id);
        fixed.has_variant = self.variant.is_some();
        fixed.has_language = self.variant.is_some_and(|variant| variant.by_language.is_some());
        fixed.tags = self.tags.len().try_into().ok()?;
        fixed.vary_bytes = self.vary.as_ref().map_or(0, |vary| vary.len()).try_into().ok()?;
        fixed.response_header_bytes = self.header.len().try_into().ok()?;
        fixed.name_bytes = self.name.len().try_into().ok()?;
        fixed.body_bytes = self.body.len();
        fixed.space = Space::tag_from_key_text(&self.name);
        fixed.is_within_limits().then_some(fixed)
    }

    /// Returns the number of bytes in memory that it keeps in use while it is queued.
    pub(super) fn bytes(&self) -> u64 {
        self.body.len() + self.header.len() as u64 + self.name.len() as u64
    }

    /// Returns the CRC-32C of each chunk of its body, 4 bytes each.
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

/// The result of [`Disks::find`](super::Disks::find): a response that can be fetched.
#[derive(Clone, Debug)]
pub struct DiskHit {
    /// Its id.
    pub id: ResponseId,
    /// The requests that it matches, if it varies.
    pub variant: Option<VariantKey>,
    /// The names of the fields in its `Vary`, if it varies.
    pub vary: Option<Arc<[u8]>>,
    /// The length of its body.
    pub body_bytes: u64,
    pub(super) disk: usize,
    pub(super) at: RecordPosition,
}

/// A request to fetch a response.
#[derive(Debug)]
pub struct FetchRequest {
    /// The response.
    pub hit: DiskHit,
    /// The filler of its body. It must have been created with [`DiskHit::body_bytes`] as length.
    pub filler: Filler,
    /// The receiver of the reply.
    pub requester: WaiterId,
}

/// A stored response without its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredHeader {
    /// Its id.
    pub id: ResponseId,
    /// The requests that it matches, if it varies.
    pub variant: Option<VariantKey>,
    /// The names of the fields in its `Vary`; empty if it does not vary.
    pub vary: Box<[u8]>,
    /// Its metadata, to be checked by [`Meta::from_bytes`](millrace_http_cache::Meta::from_bytes).
    pub meta: [u8; META_BYTES],
    /// Its response header.
    pub header: Box<[u8]>,
    /// The text of its key.
    pub name: Box<[u8]>,
    /// The tags by which it can be purged besides its key.
    pub tags: Box<[TagHash]>,
    /// The length of its body.
    pub body_bytes: u64,
    /// An operator or a client's request made it stale: it must be validated before its next use.
    pub is_stale: bool,
}

/// The reply to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskReply {
    /// The reply to a fetch: the stored header. The beginning of the body was verified and is
    /// available to readers. The rest follows, or the body is cut.
    Fetched(Box<StoredHeader>),
    /// The reply to a fetch that failed: nothing was delivered, and the filler was dropped.
    NotFetched(FetchError),
    /// The second reply to a fetch, after [`DiskReply::Fetched`]: the body was cut.
    Cut(ResponseId),
    /// The reply to a purge: it was written, or writing failed. For this process the purge was
    /// effective when the call returned.
    Purged {
        /// Whether it survives a power failure, on every disk.
        is_durable: bool,
    },
    /// The reply to a listing: some stored headers, and where to continue, if there are more.
    Listed(Vec<StoredHeader>, Option<Cursor>),
}

/// Where a listing continues; opaque for callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    pub(super) disk: usize,
    pub(super) segment: u32,
    pub(super) index: usize,
}

/// Why a fetch failed. In each case the origin is used, as if nothing were stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FetchError {
    /// The response was purged, replaced or dropped meanwhile, or the disk is being closed.
    Gone,
    /// The record is damaged or cannot be read. It will not be found again.
    Damaged,
    /// There was no memory for its body.
    NoMemory,
}

/// Callbacks of the disks. They are called on the threads of the disks, and on the thread that
/// calls [`Disks::list`](super::Disks::list) or [`Disks::run_once`](super::Disks::run_once) or
/// drops the disks. No lock of the index or of a queue is held meanwhile.
pub trait DiskCallbacks: Send + Sync + Debug {
    /// Wakes a waiter of a body.
    fn wake(&self, waiter: WaiterId);

    /// Makes memory available for a body that is being fetched. Returns whether a retry is
    /// worthwhile.
    fn make_room(&self, error: AllocError) -> bool;

    /// Handles the reply to a request of `requester`.
    fn handle_reply(&self, requester: WaiterId, reply: DiskReply);
}
