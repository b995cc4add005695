//! The store for payload: memory that is overwritten in a ring. It costs as much as the memory of a
//! full cache, but holds no index.

/// The store of a proxy.
pub(crate) struct Store {
    bytes: Box<[u8]>,
    /// The position of the next write; `next <= bytes.len()`.
    next: usize,
}

impl Store {
    /// Creates a store. All its memory is written once, so that the first round costs as much as
    /// others.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { bytes: vec![1; bytes].into_boxed_slice(), next: 0 }
    }

    /// Returns room for the next `bytes` bytes, at most the size of the store.
    pub(crate) fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.bytes.len() - self.next < bytes {
            self.next = 0;
        }
        &mut self.bytes[self.next..][..bytes]
    }

    /// Keeps the first `bytes` bytes of the room.
    pub(crate) fn keep(&mut self, bytes: usize) {
        self.next += bytes;
        assert!(self.next <= self.bytes.len(), "no more than the room is kept");
    }
}
