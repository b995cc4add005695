//! How a response is coded, and the coders of bodies that are compressed while they pass.

use std::rc::Rc;

use iolite::GzipStream;
use millrace_files::{Coding, CompressionLevel};

/// The coding in which a response of an origin is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ResponseCoding {
    /// The coding; `None` if the bytes are sent as they are.
    pub(crate) coding: Option<Coding>,
    /// Whether the entity tag becomes weak: that of coded bytes, or of a 304 for a client that may
    /// have got coded bytes.
    pub(crate) weakens_tag: bool,
    /// Whether the response has to say that it varies with `Accept-Encoding`.
    pub(crate) adds_vary: bool,
}

/// The body of one response that is compressed while it passes.
#[derive(Debug)]
pub(crate) struct BodyCoder {
    pub(crate) stream: GzipStream,
    /// Counts the coders of the worker.
    _slot: Rc<()>,
}

/// The number of bodies that a worker compresses at a time. Each takes some 300 KB.
const CODERS_MAX: usize = 128;

/// A worker's bodies that are being compressed.
#[derive(Debug, Default)]
pub(crate) struct BodyCoders(Rc<()>);

impl BodyCoders {
    /// Returns a coder; `None` if there are too many.
    pub(crate) fn acquire(&self, level: CompressionLevel) -> Option<Box<BodyCoder>> {
        let is_free = Rc::strong_count(&self.0) <= CODERS_MAX;
        let coder = || BodyCoder { stream: GzipStream::new(level), _slot: self.0.clone() };
        is_free.then(|| Box::new(coder()))
    }
}

/// Takes the coder of a body that has ended, and returns the last compressed bytes; none if the
/// body is not compressed.
pub(crate) fn finish(coder: &mut Option<Box<BodyCoder>>) -> Vec<u8> {
    coder.take().map_or_else(Vec::new, |coder| coder.stream.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_has_a_limited_number_of_coders() {
        let coders = BodyCoders::default();
        let mut used: Vec<_> =
            (0..CODERS_MAX).map(|_| coders.acquire(CompressionLevel::Fast).unwrap()).collect();
        assert!(coders.acquire(CompressionLevel::Fast).is_none());
        used.pop();
        assert!(coders.acquire(CompressionLevel::Fast).is_some());
    }
}
