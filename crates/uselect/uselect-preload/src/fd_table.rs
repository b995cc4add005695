//! The record of this process's descriptors.

use crate::fd_kind::{self, FdKind};
use crate::process;

/// Stores the kind of a descriptor.
pub(crate) fn set(fd: i32, kind: FdKind) {
    // A child of fork(2) must reset its state first, which would undo this.
    process::registered();
    fd_kind::store(fd, kind);
}
