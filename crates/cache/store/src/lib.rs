//! The shared cache: where what it keeps is found, and what of it stays. No sockets, no worker, no
//! clock: times and bytes come as arguments. Below it are bodies, which fill while they are read
//! ([`Body`]), and the disks, which do input and output on threads of their own.
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
