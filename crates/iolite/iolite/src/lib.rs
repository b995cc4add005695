//! Unified immutable buffers: one physical copy of an object, shared by the cache that stores it,
//! the sockets that send it and the values derived from it.
//!
//! The design follows IO-Lite (Pai, Druschel, Zwaenepoel). Bytes are written once, into a
//! [`Buffer`], and do not change while anything else may read them. Any thread can hold a [`Slice`]
//! of them at the cost of a reference count. Changes are made by recombining slices in an
//! [`Aggregate`]. A [`SliceId`] (pool, offset, length and generation) identifies the contents of a
//! slice: other contents never get the same id. So a checksum or a digest needs to be computed only
//! once.
//!
//! ```text
//!   Slab::allocate ──> Buffer ──freeze──> Slice ──append──> Aggregate
//!                        │ view             │ sendfile_source
//!                        v                  v
//!                     BufferView          (descriptor, offset) for sendfile(2)
//! ```
//!
//! All bytes are in a [`Slab`]: memory files that are mapped and divided into blocks of 2 MB.
//! Blocks become huge pages before their first use. **Memory that was ever sent zero-copy is not
//! written to again**, not even after every byte was acknowledged, because socket queues refer to
//! it. Its whole block is returned to the kernel and populated anew. docs/design/iolite.md has the
//! reasons. A [`PrefaultThread`] populates blocks ahead of use, or any caller of
//! [`Slab::prefault`].
//!
//! Between processes, a [`Channel`] passes aggregates. Slices of a [`Pool`], and of
//! [`SealedMemory`], are read where they were written; docs/design/pools.md has the reasons.
//!
//! This crate owns memory and decides who may write to it. It knows nothing about HTTP, keys or
//! eviction, and sends nothing to a network.

mod account;
mod aggregate;
mod blocks;
mod buffer;
mod channel;
mod checksum;
#[cfg(feature = "codings")]
mod coding;
mod derived;
mod error;
mod extent;
mod free_list;
pub mod limits;
mod mapping;
mod memory;
mod memory_kind;
mod packet;
mod pool;
mod prefault;
mod program;
mod sealed;
mod segment;
pub mod service;
mod slab;
mod slice;
mod slice_id;
mod stats;

#[cfg(test)]
mod test_slices;

pub use account::Account;
pub use aggregate::Aggregate;
pub use buffer::{Buffer, BufferView};
pub use channel::{Channel, ChannelError, ChannelOptions, PeerFault, Received, channel_sockets};
pub use checksum::Sum;
#[cfg(feature = "codings")]
pub use coding::{Coding, CompressionLevel, GzipStream};
pub use derived::Digest;
pub use error::{AllocError, Error};
pub use memory_kind::MemoryKind;
pub use pool::{Pool, PoolStats};
pub use prefault::PrefaultThread;
pub use program::{
    Interrupter, ProgramConnection, ProgramListener, ProgramOptions, ProgramRequest,
    ProgramResponse,
};
pub use sealed::{RefusedMemory, SealedMemory, UnsealedMemory};
pub use slab::{PrefaultOutcome, Slab};
pub use slice::Slice;
pub use slice_id::SliceId;
pub use stats::SlabStats;

/// The example of README.md, compiled as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct IoliteReadme;
