//! One field line, as ranges of its header.

use std::ops::Range;

use crate::name::FieldName;

/// A range of the bytes of a header. It is valid until the header is parsed again or cleared. The
/// spans of a [`FieldLine`] are inside [`Fields::bytes`](crate::Fields::bytes).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Length in bytes.
    pub len: u32,
}

impl Span {
    pub(crate) fn new(range: Range<usize>) -> Self {
        Self { start: range.start as u32, len: range.len() as u32 }
    }

    pub(crate) fn range(self) -> Range<usize> {
        self.start as usize..(self.start + self.len) as usize
    }

    pub(crate) fn slice(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..][..self.len as usize]
    }
}

/// One field line of a header (RFC 9112 section 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FieldLine {
    /// The name as received: a token.
    pub name: Span,
    /// The value without surrounding spaces and tabs. It may be empty and has no control bytes
    /// except tabs.
    pub value: Span,
    /// The name as a [`FieldName`].
    pub known: FieldName,
    /// Whether the line was received in canonical form: one space after the colon, and no white
    /// space after the value.
    pub(crate) is_canonical: bool,
    /// Whether `Connection` names this field and `known` is [`FieldName::Other`], so that the field
    /// applies to the next hop only. Set when the header is complete.
    pub(crate) is_nominated: bool,
}

impl FieldLine {
    /// Returns the offset of the next line. This line has to be canonical.
    pub(crate) fn canonical_end(&self) -> u32 {
        self.name.start + self.name.len + 2 + self.value.len + 2
    }
}
