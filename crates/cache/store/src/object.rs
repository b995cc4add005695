//! Stored responses.

use std::sync::Arc;

use millrace_http_cache::{CachedHeader, Meta, TagHash, VariantKey};

use millrace_body::{Body, BodyEnd};

/// A stored response: its header, the metadata that decides about its reuse, and its body, which
/// may still be arriving. Objects never change; they are replaced. A replacement may share the
/// body.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its header, and the metadata that decides about its reuse.
    pub stored: CachedHeader,
    /// Hashes of the values that the fields in `Vary` had in the request for which the response was
    /// stored. `None` if there is no `Vary`.
    pub variant: Option<VariantKey>,
    /// The length of its body, if the origin announced it, a disk has recorded it, or the object is
    /// the part that a cut body has left.
    pub declared: Option<u64>,
    /// Its body.
    pub body: Arc<Body>,
    /// The text of its key: the URI, and the other parts of the key.
    pub name: Arc<[u8]>,
    /// The tags by which it can be purged besides its name.
    pub tags: Arc<[TagHash]>,
    /// Whether its body was loaded from a disk.
    pub is_from_disk: bool,
}

impl Object {
    /// Returns the metadata that decides about its reuse.
    pub fn meta(&self) -> &Meta {
        &self.stored.meta
    }

    /// Returns its status line and end-to-end fields, each line with its line end.
    pub fn header(&self) -> &[u8] {
        &self.stored.head
    }

    /// Returns the length of its body. `None` if no length was announced, and the body still
    /// arrives or was cut: the bytes that arrived are not all of it.
    pub fn length(&self) -> Option<u64> {
        let is_whole = || self.body.end() == Some(BodyEnd::Whole);
        self.declared.or_else(|| is_whole().then(|| self.body.arrived()))
    }

    /// Returns whether the missing bytes of its body will never arrive.
    pub fn is_cut(&self) -> bool {
        self.body.end() == Some(BodyEnd::Cut)
    }

    /// Returns a copy with another header, after a validation.
    #[must_use]
    pub fn with(&self, stored: CachedHeader) -> Self {
        Self { stored, ..self.clone() }
    }

    /// Returns its size without the bytes of its body.
    pub(crate) fn overhead(&self) -> u64 {
        let text = self.stored.head.len() + self.name.len() + size_of_val(&*self.tags);
        (text + FIXED_BYTES) as u64
    }
}

/// The heap memory of every object: the object itself, its body's state and its index entries.
const FIXED_BYTES: usize = size_of::<Object>() + 512;
