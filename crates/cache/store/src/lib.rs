//! The shared cache: where what it keeps is found, and what of it stays. No sockets, no worker, no
//! clock: times and bytes come as arguments. Below it are bodies, which fill while they are read
//! ([`Body`]), and the disks, which do input and output on threads of their own.
#![forbid(unsafe_code)]

pub mod evict;
mod heat;
mod index;
mod object;

pub use heat::{COPIED_BYTES, HOT_BYTES, HotCopies, LARGE_BYTES};
pub use index::{
    BRIEFLY_MS, Bounds, Cache, Claim, Cleared, Draft, Filling, Found, Purged, Question, Stat,
    Unkept, Waker, Which,
};
pub use millrace_body::{Body, End, Filler, Read, Reader, Waiter};
pub use object::Object;
