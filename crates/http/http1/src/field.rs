//! One field line, as ranges of its head.

use std::ops::Range;

use crate::name::FieldName;

/// A range of a head's own bytes: `start + len <= bytes().len()`, as long as the head is not parsed
/// again or cleared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Where it begins.
    pub start: u32,
    /// How many bytes it has.
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

/// One field line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FieldLine {
    /// The name as received: a token.
    pub name: Span,
    /// The value without the spaces and tabs around it; may be empty. No control bytes but tabs.
    pub value: Span,
    /// The name by its meaning.
    pub known: FieldName,
    /// Whether its line was received in canonical form: after the colon one space, and nothing but
    /// the value before the line end.
    pub(crate) is_canonical: bool,
    /// Whether `Connection` names it, and it is not known: such a field is for the next hop only.
    /// Set once the head is whole.
    pub(crate) is_nominated: bool,
}

impl FieldLine {
    /// Where the next line begins, if this one is canonical.
    pub(crate) fn canonical_end(&self) -> u32 {
        self.name.start + self.name.len + 2 + self.value.len + 2
    }
}
