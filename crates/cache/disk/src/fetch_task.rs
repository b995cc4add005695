//! The state of a fetch between two turns.

use std::sync::Arc;

use millrace_body::{Filler, WaiterId};

use super::format::{RecordPosition, ResponseId};
use super::message::{FetchRequest, StoredHeader};
use super::record::RecordHeader;
use super::segments::Segment;

/// A fetch in progress.
#[derive(Debug)]
pub(super) struct FetchTask {
    pub(super) id: ResponseId,
    pub(super) at: RecordPosition,
    pub(super) requester: WaiterId,
    /// `None` once it has ended.
    pub(super) filler: Option<Filler>,
    /// Present once the record header was read.
    pub(super) opened: Option<OpenRecord>,
    /// Bytes of the body delivered so far.
    pub(super) delivered: u64,
    /// Verified bytes that are not in the memory of the body yet.
    pub(super) unplaced: Vec<u8>,
    /// Failed allocations in a row.
    pub(super) tries: u32,
    pub(super) has_reported: bool,
}

/// A response whose record header was read.
#[derive(Debug)]
pub(super) struct OpenRecord {
    pub(super) segment: Arc<Segment>,
    pub(super) record: RecordHeader,
    /// The offset of its body in the segment.
    pub(super) body_at: u64,
    pub(super) header: Box<StoredHeader>,
}

impl FetchTask {
    pub(super) fn new(fetch: FetchRequest) -> Self {
        Self {
            id: fetch.hit.id,
            at: fetch.hit.at,
            requester: fetch.requester,
            filler: Some(fetch.filler),
            opened: None,
            delivered: 0,
            unplaced: Vec::new(),
            tries: 0,
            has_reported: false,
        }
    }
}
