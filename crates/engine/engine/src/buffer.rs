//! Buffers that are lent with a completion, bytes that are held longer, and the budget that bounds
//! held bytes.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// Received bytes, lent by the engine with a completion. The worker returns the buffer with
/// [`Engine::recycle`](crate::Engine::recycle) before the turn ends. Bytes that are needed longer
/// are copied to a [`HeldBytes`].
#[derive(Debug)]
pub struct Buffer {
    block: Box<[u8]>,
    /// `filled <= block.len()`. The bytes after it have no meaning.
    filled: usize,
}

impl Buffer {
    /// The size of every buffer, and so the most bytes that one receive returns.
    pub const SIZE: usize = 64 * 1024;

    /// Creates an empty buffer, for engines.
    pub fn new() -> Self {
        Self { block: vec![0; Self::SIZE].into_boxed_slice(), filled: 0 }
    }

    /// Creates an empty buffer from the block of another one.
    pub(crate) fn from_block(block: Box<[u8]>) -> Self {
        assert_eq!(block.len(), Self::SIZE);
        Self { block, filled: 0 }
    }

    /// Returns the block, so that the kernel can use it for a while.
    pub(crate) fn into_block(self) -> Box<[u8]> {
        self.block
    }

    /// Returns the whole block, for an engine to receive into.
    pub fn block_mut(&mut self) -> &mut [u8] {
        &mut self.block
    }

    /// Sets how many bytes of the block, from its start, are received bytes.
    ///
    /// # Panics
    /// Panics if `filled` is above [`Buffer::SIZE`].
    pub fn set_filled(&mut self, filled: usize) {
        assert!(filled <= Self::SIZE);
        self.filled = filled;
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.block[..self.filled]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.block[..self.filled]
    }
}

/// The number of bytes that a worker may hold longer than a turn. It is shared by the engine, which
/// stops receiving while the budget is exhausted, and by all values that hold bytes. Exceeding it
/// is not an error, and only receives wait for it. So a worker may hold more than `max`. The excess
/// is what it received in the turn in which the budget ran out, and the bytes of unfinished sends.
#[derive(Clone, Default, Debug)]
pub struct Budget(Rc<BudgetState>);

#[derive(Default, Debug)]
struct BudgetState {
    used: Cell<usize>,
    max: usize,
}

impl Budget {
    /// Creates a budget of `max` bytes, with none used.
    pub fn new(max: usize) -> Self {
        Self(Rc::new(BudgetState { used: Cell::new(0), max }))
    }

    /// Returns the number of bytes held now.
    pub fn used(&self) -> usize {
        self.0.used.get()
    }

    /// Returns the number of bytes that may be held.
    pub fn max(&self) -> usize {
        self.0.max
    }

    /// Returns whether receives have to wait until held bytes are released.
    pub fn is_exhausted(&self) -> bool {
        self.used() >= self.0.max
    }

    /// Charges `bytes` that are held elsewhere than in a [`HeldBytes`], until the charge is
    /// dropped.
    pub fn charge(&self, bytes: usize) -> Charge {
        self.add(bytes);
        Charge { bytes, budget: self.clone() }
    }

    fn add(&self, bytes: usize) {
        self.0.used.set(self.used() + bytes);
    }

    fn subtract(&self, bytes: usize) {
        assert!(bytes <= self.used(), "only charged bytes are released");
        self.0.used.set(self.used() - bytes);
    }
}

/// Bytes charged to a [`Budget`] until this value is dropped.
#[derive(Debug)]
pub struct Charge {
    bytes: usize,
    budget: Budget,
}

impl Charge {
    /// Returns the number of charged bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.subtract(self.bytes);
    }
}

/// Bytes that outlive their turn. Their capacity is charged to a [`Budget`] until they are dropped.
#[derive(Debug)]
pub struct HeldBytes {
    bytes: Vec<u8>,
    /// `read <= bytes.len()`. The bytes before it are consumed.
    read: usize,
    /// Bytes charged to the budget; equals `bytes.capacity()`.
    charged: usize,
    budget: Budget,
}

impl HeldBytes {
    /// Copies `parts`, one after the other, into memory of exactly their size.
    pub fn copy(budget: &Budget, parts: &[&[u8]]) -> Self {
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        for part in parts {
            bytes.extend_from_slice(part);
        }
        let charged = bytes.capacity();
        budget.add(charged);
        Self { bytes, read: 0, charged, budget: budget.clone() }
    }

    /// Appends bytes. Consumed bytes are removed first, and memory that is more than twice as large
    /// as the unread bytes is shrunk. So memory does not grow with the number of calls.
    pub fn append(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
        if self.bytes.capacity() > 2 * self.bytes.len() {
            self.bytes.shrink_to_fit();
        }
        let charged = self.bytes.capacity();
        if charged > self.charged {
            self.budget.add(charged - self.charged);
        } else {
            self.budget.subtract(self.charged - charged);
        }
        self.charged = charged;
    }

    /// Returns the bytes, which are no longer charged.
    pub fn into_vec(mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..self.read);
        bytes
    }

    /// Drops the first `count` bytes.
    ///
    /// # Panics
    /// Panics if fewer bytes are held.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.len());
        self.read += count;
    }
}

impl Deref for HeldBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.read..]
    }
}

impl DerefMut for HeldBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.read..]
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.budget.subtract(self.charged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_bytes_are_charged_until_dropped() {
        let budget = Budget::new(8);
        let mut held = HeldBytes::copy(&budget, &[b"abc", b"", b"de"]);
        assert_eq!((&held[..], budget.used(), budget.is_exhausted()), (&b"abcde"[..], 5, false));
        held.consume(4);
        held.append(b"fghij");
        assert_eq!(&held[..], b"efghij");
        assert!(budget.used() >= 6 && budget.is_exhausted());
        held.consume(1);
        assert_eq!(held.into_vec(), b"fghij");
        assert_eq!(budget.used(), 0);
        let charge = budget.charge(5);
        assert_eq!(budget.used(), 5);
        drop(charge);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn consumed_bytes_use_no_memory_while_others_stay_unread() {
        let budget = Budget::new(1 << 20);
        let mut held = HeldBytes::copy(&budget, &[b"x"]);
        for _ in 0..1000 {
            held.append(&[0; 1000]);
            held.consume(1000);
        }
        assert_eq!(held.len(), 1);
        assert!(budget.used() <= 4096, "{}", budget.used());
    }
}
