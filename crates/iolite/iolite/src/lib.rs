//! Unified immutable buffers: one physical copy of an object, for the cache that keeps it, the
//! sockets that send it and whatever was computed from it.
//!
//! After IO-Lite (Pai, Druschel, Zwaenepoel). Bytes are written once, into a [`Buffer`], and never
//! change after that: a [`Slice`] of them can be held by anybody, anywhere, at the price of a
//! count. What changes is how slices are put together, in an [`Aggregate`]. A slice is known by
//! its pool, offset, length and generation ([`Reference`]); no two contents ever have the same, so
//! what was computed from a slice once, a checksum or a digest, is found again.
//!
//! ```text
//!   Slab::allocate ──> Buffer ──freeze──> Slice ──append──> Aggregate
//!                        │ extent           │ file
//!                        v                  v
//!                      Extent             (descriptor, offset) for sendfile(2): "sent"
//! ```
//!
//! All bytes rest in a [`Slab`]: files in memory, mapped, cut into blocks of 2 MB that are made
//! huge pages before they are used. **Memory that was ever sent by reference is not written to
//! again**, not even when every byte was acknowledged, because the queues of sockets refer to it;
//! its block is given back to the kernel as a whole and made anew. docs/design/iolite.md has the
//! reasons. Who makes blocks ready is a [`Helper`] thread, or whoever calls [`Slab::tend`].
//!
//! This crate owns memory and who may write to it. It knows nothing of HTTP, keys or eviction, and
//! never sends anything itself.

mod aggregate;
mod blocks;
mod buffer;
mod checksum;
#[cfg(feature = "codings")]
mod coding;
mod derived;
mod error;
mod extent;
mod free_list;
pub mod limits;
mod memory;
mod memory_kind;
mod prefault;
mod segment;
mod slab;
mod slice;
mod slice_id;
mod stats;

#[cfg(test)]
mod test_slices;

pub use aggregate::Aggregate;
pub use buffer::{Buffer, BufferView};
pub use checksum::Sum;
#[cfg(feature = "codings")]
pub use coding::Coding;
pub use derived::Digest;
pub use error::{AllocError, Error};
pub use memory_kind::MemoryKind;
pub use prefault::PrefaultThread;
pub use slab::{PrefaultOutcome, Slab};
pub use slice::Slice;
pub use slice_id::SliceId;
pub use stats::SlabStats;
