//! The shared cache: what it may keep, when it may answer with it, and where it is found. No
//! sockets, no worker, no clock: times and bytes come as arguments. [`disk`] alone does input and
//! output, on threads of its own.
#![forbid(unsafe_code)]

mod body;
pub mod disk;
pub mod evict;
mod index;
mod object;

pub use body::{Body, End, Filler, Read, Reader, Waiter};
pub use index::{
    BRIEFLY_MS, Bounds, COPIED_BYTES, Cache, Claim, Cleared, Draft, Filling, Found, Purged,
    Question, Stat, Unkept, Waker, Which,
};
pub use object::Object;
