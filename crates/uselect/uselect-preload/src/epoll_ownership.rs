//! Which epoll descriptors this process alone uses, and which it hands over to the kernel.

use crate::fd_kind::{self, FdKind};
use crate::instance::{self, Instance};
use crate::libc_next::preserve_errno;
use crate::{fd_table, process};

/// Records a new epoll descriptor. Returns false if children could not report that they use it.
pub(crate) fn register_epoll(epoll: i32) -> bool {
    // In a new child of fork(2), resets the state first. The flags that it inherited then count as
    // those of its parent, and the child allocates flags of its own.
    process::registered();
    instance::clear_shared_flag(epoll)
}

/// Returns whether only this process uses an epoll descriptor, so that it may have a watcher. Hands
/// it over to the kernel if another process uses it too.
#[inline]
pub(crate) fn check_exclusive(epoll: i32) -> bool {
    // A child of fork(2) must reset its state first, which makes the descriptor an inherited one.
    process::registered();
    match fd_kind::get(epoll) {
        FdKind::Epoll => {
            let is_shared = instance::is_shared(epoll);
            if is_shared {
                hand_over(epoll);
            }
            !is_shared
        }
        FdKind::InheritedEpoll => {
            hand_over(epoll);
            false
        }
        _ => false,
    }
}

/// Moves everything in an epoll instance to the kernel, permanently. Does nothing for other
/// descriptors.
#[cold]
pub(crate) fn hand_over(epoll: i32) {
    let kind = fd_kind::get(epoll);
    if kind == FdKind::InheritedEpoll {
        instance::set_shared_flag(epoll);
    }
    if kind == FdKind::Epoll || kind == FdKind::InheritedEpoll {
        preserve_errno(|| Instance::of(epoll).inspect(|instance| instance.watcher().hand_over()));
        fd_table::set(epoll, FdKind::Other);
        instance::remove(epoll);
    }
}
