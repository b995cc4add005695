//! Errors.

use std::fmt;

use millrace_sys::Errno;

use crate::limits::{POOL_BYTES_MAX, POOL_BYTES_MIN, SLAB_BYTES_MAX, SLAB_BYTES_MIN};

/// The reason why memory could not be created, or a program could not listen or receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The requested size in bytes is out of bounds: an error of the caller.
    Size(usize),
    /// The requested size of a pool in bytes is out of bounds: an error of the caller.
    PoolSize(usize),
    /// The kernel is too old.
    Unsupported {
        /// The name of the missing feature.
        feature: &'static str,
        /// The first Linux version that has it.
        since: &'static str,
    },
    /// The kernel refused a file, addresses or memory: the name of the call, and its error number.
    Kernel(&'static str, Errno),
    /// [`Interrupter::interrupt`](crate::Interrupter::interrupt) was called. The program can
    /// receive again.
    Interrupted,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(bytes) => write!(
                f,
                "invalid slab size {bytes}: expected {SLAB_BYTES_MIN} to {SLAB_BYTES_MAX} bytes"
            ),
            Self::PoolSize(bytes) => write!(
                f,
                "invalid pool size {bytes}: expected {POOL_BYTES_MIN} to {POOL_BYTES_MAX} bytes"
            ),
            Self::Unsupported { feature, since } => write!(f, "{feature} needs Linux {since}"),
            Self::Kernel(call, error) => write!(f, "{call}: {error}"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Error {}

/// The reason why an allocation failed. Failures are expected: a slab is bounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocError {
    /// Nearly all memory is in use. Some is freed when slices are dropped.
    Full,
    /// Much memory is unused, but it is tainted, scattered, or in blocks of the other kind, so that
    /// dropping arbitrary slices may free nothing usable. [`Slab::start_evacuation`] says which
    /// objects occupy one block.
    ///
    /// [`Slab::start_evacuation`]: crate::Slab::start_evacuation
    Fragmented,
    /// There is memory, but it is not populated yet: [`Slab::prefault`](crate::Slab::prefault) has
    /// fallen behind. The caller may retry soon; nothing has to be dropped.
    NotReady,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "all memory of the slab is in use",
            Self::Fragmented => "free memory of the slab is fragmented",
            Self::NotReady => "memory of the slab is not ready yet",
        })
    }
}

impl std::error::Error for AllocError {}
