//! A fetch as it stands between two turns.

use std::sync::Arc;

use millrace_body::{Filler, Waiter};

use super::format::{Id, Position};
use super::front::Front;
use super::message::{Fetch, StoredHead};
use super::segments::Segment;

/// A fetch that is not over.
#[derive(Debug)]
pub(super) struct Fetching {
    pub(super) id: Id,
    pub(super) at: Position,
    pub(super) asker: Waiter,
    /// `None` once it has ended.
    pub(super) filler: Option<Filler>,
    /// Once its front was read.
    pub(super) opened: Option<Opened>,
    /// Bytes of the body that were given.
    pub(super) given: u64,
    /// What was compared already and did not fit into memory yet.
    pub(super) left: Vec<u8>,
    /// How often in a row there was no memory.
    pub(super) tries: u32,
    pub(super) has_answered: bool,
}

/// An answer whose front was read.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) segment: Arc<Segment>,
    pub(super) front: Front,
    /// Where its body begins in the segment.
    pub(super) body_at: u64,
    pub(super) head: Box<StoredHead>,
}

impl Fetching {
    pub(super) fn new(fetch: Fetch) -> Self {
        Self {
            id: fetch.candidate.id,
            at: fetch.candidate.at,
            asker: fetch.asker,
            filler: Some(fetch.filler),
            opened: None,
            given: 0,
            left: Vec::new(),
            tries: 0,
            has_answered: false,
        }
    }
}
