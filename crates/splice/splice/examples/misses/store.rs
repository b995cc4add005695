//! Where payload is stored: memory that is written to over and over again, and so is warm, like
//! that of a full cache.

/// The store of one proxy.
pub(crate) struct Store {
    bytes: Box<[u8]>,
    /// `next <= bytes.len()`.
    next: usize,
}

impl Store {
    /// One of so many bytes, each written to, so that the first round over it is like the others.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { bytes: vec![1; bytes].into_boxed_slice(), next: 0 }
    }

    /// Where the next `bytes` go, which are no more than the store has.
    pub(crate) fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.bytes.len() - self.next < bytes {
            self.next = 0;
        }
        &mut self.bytes[self.next..][..bytes]
    }

    /// Keeps so many bytes of the room.
    pub(crate) fn keep(&mut self, bytes: usize) {
        self.next += bytes;
        assert!(self.next <= self.bytes.len(), "more was kept than there was room for");
    }
}
