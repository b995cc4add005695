//! Where stored answers are found, and who may fetch: from a key to its objects and its fetches.
//!
//! Cut into shards by the key, each behind a lock that is held for some hundred nanoseconds: a hit
//! clones a count and looks at numbers. Nobody waits here: who has to leaves a waiter behind,
//! and whoever changes what he waits for gets it back and wakes him.

mod beneath;
mod cache;
mod claim;
mod clear;
mod filling;
mod lookup;
mod numbers;
mod operate;
mod publish;
mod recent;
mod shard;
mod tier;
mod update;
mod which;

pub use beneath::Waker;
pub use cache::{Bounds, Cache};
pub use claim::{BRIEFLY_MS, Claim};
pub use clear::Cleared;
pub use filling::Filling;
pub use lookup::{Found, Question};
pub use operate::{Purged, Stat};
pub use publish::{Draft, Unkept};
pub use which::Which;

#[cfg(test)]
mod tests;
