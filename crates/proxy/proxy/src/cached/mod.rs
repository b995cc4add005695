//! The cache in the request path: serving, storing and refreshing responses, and waiting for them.

mod context;
pub(crate) mod fill;
pub(crate) mod reader;
pub(crate) mod refresh;
pub(crate) mod serve;
pub(crate) mod store_outcome;
pub(crate) mod waiting;

pub(crate) use context::{CacheContext, CacheReport, CachedState, ResponseSource, key_of, now_ms};
pub use fill::DIRECT_BYTES;
