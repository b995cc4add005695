//! What is known of each descriptor of the process, by its number. A byte each, written by whoever
//! opens, adopts or closes it; a program that does such things with one number in two threads at
//! once has that race already.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// What a number stands for. A number that is not open is `Unknown`, and so is one that somebody
/// opened out of our sight: it is looked at when it is first waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    Unknown = 0,
    /// No TCP socket.
    Other = 1,
    /// A TCP socket that only the kernel knows.
    Left = 2,
    /// A TCP socket in memory.
    Tracked = 3,
    /// The same, and it listens.
    Listener = 4,
    /// An epoll descriptor that this process has made.
    Epoll = 5,
    /// One that its parent has made.
    Inherited = 6,
}

/// Numbers from here on are never tracked.
pub(crate) const DESCRIPTORS: usize = 65_536;

static KINDS: [AtomicU8; DESCRIPTORS] = [const { AtomicU8::new(0) }; DESCRIPTORS];
/// All from here on are `Unknown`.
static END: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn kind(fd: i32) -> Kind {
    let Some(place) = usize::try_from(fd).ok().and_then(|fd| KINDS.get(fd)) else {
        return Kind::Other;
    };
    match place.load(Ordering::Relaxed) {
        1 => Kind::Other,
        2 => Kind::Left,
        3 => Kind::Tracked,
        4 => Kind::Listener,
        5 => Kind::Epoll,
        6 => Kind::Inherited,
        _ => Kind::Unknown,
    }
}

/// For who has seen to it that this is no child of fork(2) that has still to begin: else see
/// [`table::set`](crate::table::set).
pub(crate) fn put(fd: i32, kind: Kind) {
    let Ok(fd) = usize::try_from(fd) else { return };
    let Some(place) = KINDS.get(fd) else { return };
    if place.load(Ordering::Relaxed) == kind as u8 {
        return;
    }
    if kind != Kind::Unknown && END.load(Ordering::Relaxed) <= fd {
        END.fetch_max(fd + 1, Ordering::Relaxed);
    }
    place.store(kind as u8, Ordering::Relaxed);
}

/// All that are not `Unknown`, of these numbers.
pub(crate) fn known(first: usize, last: usize) -> impl Iterator<Item = i32> {
    let end = END.load(Ordering::Relaxed).min(last.saturating_add(1));
    (first..end).map(|fd| fd as i32).filter(|fd| kind(*fd) != Kind::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_known_once_they_are_set_and_none_is_out_of_range() {
        assert_eq!(kind(70), Kind::Unknown);
        put(70, Kind::Tracked);
        put(75, Kind::Epoll);
        assert_eq!((kind(70), kind(75)), (Kind::Tracked, Kind::Epoll));
        assert_eq!(known(60, 80).collect::<Vec<_>>(), [70, 75]);
        assert_eq!(known(71, usize::MAX).collect::<Vec<_>>(), [75]);
        put(70, Kind::Unknown);
        put(75, Kind::Unknown);
        assert_eq!(known(60, 80).count(), 0);
        for fd in [-1, DESCRIPTORS as i32, i32::MAX] {
            put(fd, Kind::Tracked);
            assert_eq!(kind(fd), Kind::Other);
        }
    }
}
