//! Compression of responses of origins, on routes that ask for it (docs/design/compression.md). A
//! stored response is compressed once, by a thread, and the result is kept in the cache. Until
//! then, and for responses that are not stored, the body is compressed while it passes: see
//! `transfer/compressed.rs`.

pub(crate) mod choice;
pub(crate) mod coder;
pub(crate) mod derived;
