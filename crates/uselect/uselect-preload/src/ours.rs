//! Which epoll descriptors are this process's own, and which it leaves to the kernel.

use crate::instance::{self, Instance};
use crate::kinds::{self, Kind};
use crate::real::aside;
use crate::{process, table};

/// The process has made an epoll descriptor. False if children could not say that they use it.
pub(crate) fn begin(epoll: i32) -> bool {
    // What a child of fork(2) does first would take the pages for its parent's.
    process::made();
    instance::share(epoll)
}

/// Whether an epoll descriptor is one of which memory may know something. One that another process
/// uses as well is left to the kernel here.
#[inline]
pub(crate) fn is_ours(epoll: i32) -> bool {
    // What a child of fork(2) does first makes it an inherited one.
    process::made();
    match kinds::kind(epoll) {
        Kind::Epoll => {
            let is_shared = instance::is_shared(epoll);
            if is_shared {
                hand_over(epoll);
            }
            !is_shared
        }
        Kind::Inherited => {
            hand_over(epoll);
            false
        }
        _ => false,
    }
}

/// Leaves all that is in an epoll instance to the kernel, for good. Nothing happens if it is none.
#[cold]
pub(crate) fn hand_over(epoll: i32) {
    let kind = kinds::kind(epoll);
    if kind == Kind::Inherited {
        instance::tell_parent(epoll);
    }
    if kind == Kind::Epoll || kind == Kind::Inherited {
        aside(|| Instance::of(epoll).inspect(|instance| instance.watcher().hand_over()));
        table::set(epoll, Kind::Other);
        instance::end(epoll);
    }
}
