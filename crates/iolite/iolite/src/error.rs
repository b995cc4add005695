//! What can go wrong.

use std::fmt;

use millrace_sys::Errno;

use crate::limits::{SLAB_BYTES_MAX, SLAB_BYTES_MIN};

/// Why there is no slab. None of these is cured by trying again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// So many bytes are too few or too many; the caller's doing.
    Size(usize),
    /// The kernel lacks something; it is too old.
    Unsupported {
        /// What it lacks, by its own name.
        feature: &'static str,
        /// The first version that has it.
        since: &'static str,
    },
    /// The kernel gave no file, no addresses or no memory: the call, and its number.
    Kernel(&'static str, Errno),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(bytes) => write!(
                f,
                "a slab of {bytes} bytes; {SLAB_BYTES_MIN} to {SLAB_BYTES_MAX} are allowed"
            ),
            Self::Unsupported { feature, since } => write!(f, "{feature} needs Linux {since}"),
            Self::Kernel(call, error) => write!(f, "{call}: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// Why memory was not given. Nothing is wrong: a slab is bounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocError {
    /// Nearly all of it is in use: there will be some when slices are dropped.
    Full,
    /// Much of it is held by nobody, but is spoiled, in pieces, or in blocks of the other kind: to
    /// drop any slices may bring nothing. [`Slab::condemn`] says which bring a whole block.
    ///
    /// [`Slab::condemn`]: crate::Slab::condemn
    Fragmented,
    /// There is some, but it is not ready yet: [`Slab::tend`](crate::Slab::tend) has fallen behind.
    /// Sound to try again in a moment; nothing has to be dropped.
    NotReady,
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "all memory of the slab is in use",
            Self::Fragmented => "free memory of the slab is scattered",
            Self::NotReady => "memory of the slab is not ready yet",
        })
    }
}

impl std::error::Error for AllocError {}
