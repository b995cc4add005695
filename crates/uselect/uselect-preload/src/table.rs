//! What is noted of each descriptor of this process.

use crate::kinds::{self, Kind};
use crate::process;

/// Notes what a number stands for.
pub(crate) fn set(fd: i32, kind: Kind) {
    // What a child of fork(2) does first would undo it.
    process::made();
    kinds::put(fd, kind);
}
