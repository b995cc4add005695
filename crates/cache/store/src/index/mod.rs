//! Where stored answers are found, and who may fetch: from a key to its objects and its fetches.
//!
//! Cut into shards by the key, each behind a lock that is held for some hundred nanoseconds: a hit
//! clones a count and looks at numbers. Nobody waits here: who has to leaves a waiter behind,
//! and whoever changes what he waits for gets it back and wakes him.

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
