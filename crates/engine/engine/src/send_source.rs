//! The bytes that a send takes from a source after its parts.

use std::sync::Arc;

use crate::{FileRead, SharedBytes};

/// Bytes that follow the parts of a send, for implementations of [`Engine`](crate::Engine).
#[derive(Clone, Copy, Debug)]
pub enum SendSource<'a> {
    /// All bytes of this value.
    Shared(&'a dyn SharedBytes),
    /// Bytes of a file.
    File {
        /// The file.
        file: &'a Arc<dyn FileRead>,
        /// The offset of the first byte.
        at: u64,
        /// The number of bytes, at least 1.
        count: usize,
    },
}

/// Like [`SendSource`], for a send that is outstanding.
#[derive(Debug)]
pub enum HeldSource {
    /// As [`SendSource::Shared`].
    Shared(Box<dyn SharedBytes>),
    /// As [`SendSource::File`].
    File {
        /// The file.
        file: Arc<dyn FileRead>,
        /// The offset of the first byte.
        at: u64,
        /// The number of bytes, at least 1.
        count: usize,
    },
}

impl SendSource<'_> {
    /// Creates a value that refers to the same bytes, without copying them.
    pub fn hold(self) -> HeldSource {
        match self {
            Self::Shared(shared) => HeldSource::Shared(shared.clone_box()),
            Self::File { file, at, count } => HeldSource::File { file: file.clone(), at, count },
        }
    }

    /// Returns the number of bytes to send.
    pub fn byte_count(self) -> usize {
        match self {
            Self::Shared(shared) => shared.bytes().len(),
            Self::File { count, .. } => count,
        }
    }
}

impl HeldSource {
    /// Returns the source.
    pub fn source(&self) -> SendSource<'_> {
        match self {
            Self::Shared(shared) => SendSource::Shared(&**shared),
            Self::File { file, at, count } => SendSource::File { file, at: *at, count: *count },
        }
    }
}
