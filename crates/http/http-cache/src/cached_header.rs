//! The stored header of a response.

use millrace_http1::FieldName;

use super::etag::Etag;
use super::field_lines::{StoredFieldLine, field_lines};
use super::meta::Meta;
use super::vary::VaryNames;

/// The stored part of a response besides its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CachedHeader {
    /// The metadata that determines its reuse.
    pub meta: Meta,
    /// The status line and the end-to-end fields, each line with its line end, without the empty
    /// line.
    pub head: Vec<u8>,
    /// The request fields that it depends on.
    pub vary: Option<VaryNames>,
}

impl CachedHeader {
    /// Returns the field lines.
    pub fn lines(&self) -> impl Iterator<Item = StoredFieldLine<'_>> {
        field_lines(&self.head[self.meta.lines_at as usize..])
    }

    /// Returns the entity tag.
    pub fn etag(&self) -> Option<Etag<'_>> {
        self.etag_bytes().map(Etag::parse)
    }

    /// Returns the entity tag as received.
    pub fn etag_bytes(&self) -> Option<&[u8]> {
        let at = self.meta.etag?;
        self.head.get(at.start as usize..)?.get(..at.len as usize)
    }

    /// Returns the value of `Last-Modified` as received.
    pub(super) fn last_modified(&self) -> Option<&[u8]> {
        self.meta.last_modified_s?;
        self.lines().find(|line| line.known == FieldName::LastModified).map(|line| line.value)
    }
}
