//! The index of stored responses: maps a key to its objects and to the fetches for it.
//!
//! It is divided into shards by the key. A hit holds a shard's lock for some hundred nanoseconds:
//! it increments a reference count and compares numbers. Lookups and fills do not block. A caller
//! that has to wait leaves a waiter id. The call that changes the condition returns it, and its
//! caller wakes the waiter. Only the calls of operators block until a disk replies, and purges and
//! invalidations block while a disk is overloaded.

mod admin;
mod cache;
mod clear;
mod disk_state;
mod disk_tier;
mod fetch_lease;
mod invalidation_table;
mod invalidations;
mod lookup;
mod object_filler;
mod publish;
mod selector;
mod shard;
mod update;

pub use admin::{CacheStats, PurgeResult};
pub use cache::{Bounds, Cache};
pub use clear::ClearReport;
pub use disk_tier::Waker;
pub use fetch_lease::{FetchLease, UNCOLLAPSED_MS};
pub use lookup::{LookupRequest, LookupResult};
pub use object_filler::ObjectFiller;
pub use publish::{NewEntry, StoreRefusal};
pub use selector::Selector;

#[cfg(test)]
mod tests;
