//! Helper of the tests.

use crate::memory_kind::MemoryKind;
use crate::slab::Slab;
use crate::slice::Slice;

/// Returns a slice of `bytes` in memory of its own.
pub(crate) fn slice(slab: &Slab, bytes: &[u8]) -> Slice {
    let mut buffer = slab.allocate(MemoryKind::Copied, bytes.len()..=bytes.len(), 0).unwrap();
    assert_eq!(buffer.write(bytes), bytes.len());
    buffer.freeze()
}
