//! What is kept of a response besides its body.

use millrace_http1::FieldName;

use super::etag::Etag;
use super::field_lines::{StoredFieldLine, field_lines};
use super::meta::Meta;
use super::vary::VaryNames;

/// What is kept of a response besides its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CachedHeader {
    /// What decides about its reuse.
    pub meta: Meta,
    /// Its status line and its end-to-end fields, each line with its end, without the empty line.
    pub head: Vec<u8>,
    /// The fields that it depends on.
    pub vary: Option<VaryNames>,
}

impl CachedHeader {
    /// Its field lines.
    pub fn lines(&self) -> impl Iterator<Item = StoredFieldLine<'_>> {
        field_lines(&self.head[self.meta.lines_at as usize..])
    }

    /// Its entity tag.
    pub fn etag(&self) -> Option<Etag<'_>> {
        self.etag_bytes().map(Etag::parse)
    }

    /// The same as it is written.
    pub fn etag_bytes(&self) -> Option<&[u8]> {
        let at = self.meta.etag?;
        self.head.get(at.start as usize..)?.get(..at.len as usize)
    }

    /// The value of its `Last-Modified` as it was received.
    pub(super) fn last_modified(&self) -> Option<&[u8]> {
        self.meta.last_modified_s?;
        self.lines().find(|line| line.known == FieldName::LastModified).map(|line| line.value)
    }
}
