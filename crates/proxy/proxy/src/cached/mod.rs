//! The cache's part in exchanges.

mod caching;
pub(crate) mod fill;
pub(crate) mod outcome;
pub(crate) mod reader;
pub(crate) mod refresh;
pub(crate) mod serve;
pub(crate) mod waiting;

pub(crate) use caching::{Answer, CacheWaits, Caching, key_of, now_ms};
pub use fill::DIRECT_BYTES;
