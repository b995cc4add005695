//! What is stored under a key.

use std::sync::Arc;

use millrace_http_cache::{Meta, Stored, TagHash, VariantKey};

use millrace_body::{Body, BodyEnd};

/// A stored answer: its head, what decides about its reuse, and its body, which may still be on its
/// way. Never changed, only replaced; those that replace it may share its body.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its head, and what decides about its reuse.
    pub stored: Stored,
    /// What the request that it answers said in the fields that it varies by.
    pub variant: Option<VariantKey>,
    /// The length of its body, where the origin announced it.
    pub declared: Option<u64>,
    /// Its body.
    pub body: Arc<Body>,
    /// The text of its key: the URI, and what else counts.
    pub name: Arc<[u8]>,
    /// What it may be purged by besides its name.
    pub tags: Arc<[TagHash]>,
    /// Whether its body comes, or came, from a disk.
    pub is_from_disk: bool,
}

impl Object {
    /// What decides about its reuse.
    pub fn meta(&self) -> &Meta {
        &self.stored.meta
    }

    /// Its status line and end-to-end fields, each line with its end.
    pub fn header(&self) -> &[u8] {
        &self.stored.head
    }

    /// The length of its body; `None` where nobody has said how much will come, and it still
    /// arrives, or was cut: what came is not all of it.
    pub fn length(&self) -> Option<u64> {
        let is_whole = || self.body.end() == Some(BodyEnd::Whole);
        self.declared.or_else(|| is_whole().then(|| self.body.arrived()))
    }

    /// Whether what is missing of its body will never come.
    pub fn is_cut(&self) -> bool {
        self.body.end() == Some(BodyEnd::Cut)
    }

    /// The same with another head, after it was validated.
    #[must_use]
    pub fn with(&self, stored: Stored) -> Self {
        Self { stored, ..self.clone() }
    }

    /// Bytes that it takes beside those of its body.
    pub(crate) fn overhead(&self) -> u64 {
        let text = self.stored.head.len() + self.name.len() + size_of_val(&*self.tags);
        (text + FIXED_BYTES) as u64
    }
}

/// What an object takes of the heap whatever is in it: itself, its body's bookkeeping and its
/// places in the index.
const FIXED_BYTES: usize = size_of::<Object>() + 512;
