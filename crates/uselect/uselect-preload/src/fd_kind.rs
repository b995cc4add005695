//! The kind of each descriptor of the process. Each kind is a byte without a lock: the thread that
//! opens, tracks or closes a descriptor writes it. A program that does this in two threads at once
//! for the same number has a race in itself already.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// The kind of a descriptor. A number that is not open is `Unknown`. An open descriptor may be
/// `Unknown` too, for instance a copy. It is classified when the program first waits for it or
/// accepts from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum FdKind {
    Unknown = 0,
    /// Not a TCP socket.
    Other = 1,
    /// A TCP socket that is not tracked.
    Untracked = 2,
    /// A tracked TCP socket.
    Tracked = 3,
    /// A tracked TCP socket that listens.
    Listener = 4,
    /// An epoll descriptor that this process created.
    Epoll = 5,
    /// An epoll descriptor that its parent created.
    InheritedEpoll = 6,
}

/// Descriptors from this number on are never tracked.
pub(crate) const DESCRIPTORS: usize = 65_536;

static KINDS: [AtomicU8; DESCRIPTORS] = [const { AtomicU8::new(0) }; DESCRIPTORS];
/// All numbers from this one on are `Unknown`.
static END: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn get(fd: i32) -> FdKind {
    let Some(kind_byte) = usize::try_from(fd).ok().and_then(|fd| KINDS.get(fd)) else {
        return FdKind::Other;
    };
    match kind_byte.load(Ordering::Relaxed) {
        1 => FdKind::Other,
        2 => FdKind::Untracked,
        3 => FdKind::Tracked,
        4 => FdKind::Listener,
        5 => FdKind::Epoll,
        6 => FdKind::InheritedEpoll,
        _ => FdKind::Unknown,
    }
}

/// Stores the kind. The caller must have checked that this is not a child of fork(2) whose state is
/// still to be reset; otherwise use [`fd_table::set`](crate::fd_table::set).
pub(crate) fn store(fd: i32, kind: FdKind) {
    let Ok(fd) = usize::try_from(fd) else { return };
    let Some(kind_byte) = KINDS.get(fd) else { return };
    if kind_byte.load(Ordering::Relaxed) == kind as u8 {
        return;
    }
    if kind != FdKind::Unknown && END.load(Ordering::Relaxed) <= fd {
        END.fetch_max(fd + 1, Ordering::Relaxed);
    }
    kind_byte.store(kind as u8, Ordering::Relaxed);
}

/// Returns the descriptors of a range that are not `Unknown`.
pub(crate) fn known(first: usize, last: usize) -> impl Iterator<Item = i32> {
    let end = END.load(Ordering::Relaxed).min(last.saturating_add(1));
    (first..end).map(|fd| fd as i32).filter(|fd| get(*fd) != FdKind::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_stored_and_numbers_out_of_range_ignored() {
        assert_eq!(get(70), FdKind::Unknown);
        store(70, FdKind::Tracked);
        store(75, FdKind::Epoll);
        assert_eq!((get(70), get(75)), (FdKind::Tracked, FdKind::Epoll));
        assert_eq!(known(60, 80).collect::<Vec<_>>(), [70, 75]);
        assert_eq!(known(71, usize::MAX).collect::<Vec<_>>(), [75]);
        store(70, FdKind::Unknown);
        store(75, FdKind::Unknown);
        assert_eq!(known(60, 80).count(), 0);
        for fd in [-1, DESCRIPTORS as i32, i32::MAX] {
            store(fd, FdKind::Tracked);
            assert_eq!(get(fd), FdKind::Other);
        }
    }
}
