//! The record of this process's descriptors.

use crate::fd_kind::{self, FdKind};
use crate::process;

/// Stores the kind of a descriptor.
pub(crate) fn set(fd: i32, kind: FdKind) {
    // In a new child of fork(2), resets the state first. A later reset would undo the change.
    process::registered();
    fd_kind::store(fd, kind);
}
