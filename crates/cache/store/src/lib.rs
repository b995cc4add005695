//! The shared cache: the index of stored responses and their eviction. It has no sockets and no
//! workers. Times and bytes come as arguments; a clock only limits how long an operator waits for a
//! disk. The cache builds on bodies that are read while they are filled ([`Body`]), and on disks,
//! which do their I/O on threads of their own.
#![forbid(unsafe_code)]

pub mod evict;
mod hot_bodies;
mod index;
mod object;

pub use hot_bodies::{COPIED_BYTES, HOT_BYTES, HotCopies, LARGE_BYTES};
pub use index::{
    Bounds, Cache, CacheStats, ClearReport, FetchLease, LookupRequest, LookupResult, NewEntry,
    ObjectFiller, PurgeResult, Selector, StoreRefusal, UNCOLLAPSED_MS, Waker,
};
pub use millrace_body::{Body, BodyEnd, BodyRead, Filler, Reader, WaiterId};
pub use object::Object;
