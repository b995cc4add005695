//! What is kept of an answer besides its body.

use millrace_http1::Name;

use super::etag::Etag;
use super::meta::Meta;
use super::stored_head::{Line, lines};
use super::vary::VaryNames;

/// What is kept of an answer besides its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// What decides about its reuse.
    pub meta: Meta,
    /// Its status line and its end-to-end fields, each line with its end, without the empty line.
    pub head: Vec<u8>,
    /// The fields that it depends on.
    pub vary: Option<VaryNames>,
}

impl Stored {
    /// Its field lines.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        lines(&self.head[self.meta.lines_at as usize..])
    }

    /// Its entity tag.
    pub fn etag(&self) -> Option<Etag<'_>> {
        self.etag_bytes().map(Etag::of)
    }

    /// The same as it is written.
    pub fn etag_bytes(&self) -> Option<&[u8]> {
        let at = self.meta.etag?;
        self.head.get(at.start as usize..)?.get(..at.len as usize)
    }

    /// The value of its `Last-Modified` as it was received.
    pub(super) fn last_modified(&self) -> Option<&[u8]> {
        self.meta.last_modified_s?;
        self.lines().find(|line| line.known == Name::LastModified).map(|line| line.value)
    }
}
