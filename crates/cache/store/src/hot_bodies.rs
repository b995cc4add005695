//! Hot bodies, and whether they are sent by copying or zero-copy.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_body::Body;

/// Bodies shorter than this are sent by copying, because a copy that goes out with the other sends
/// of a turn costs less than a zero-copy send (docs/design/iolite.md). If the length is known in
/// advance, the memory is [`MemoryKind::Copied`](iolite::MemoryKind::Copied), which is reused as
/// soon as it is free.
pub const COPIED_BYTES: u64 = 16 * 1024;

/// A body is hot while at most this many bytes of other bodies were sent after it. It is then
/// probably still in the last-level cache of the processor, which is larger than this on servers.
pub const HOT_BYTES: u64 = 8 << 20;

/// Bodies of at least this length are large: see [`HotCopies::large`].
pub const LARGE_BYTES: u64 = 256 * 1024;

/// Which hot bodies of at least [`COPIED_BYTES`] are sent by copying. All others of that length are
/// sent zero-copy, which costs the same wherever their bytes are. Copying is cheaper on some
/// processors, and more expensive on all if the bytes are not in a CPU cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HotCopies {
    /// Hot bodies below [`LARGE_BYTES`].
    pub medium: bool,
    /// Hot bodies of at least [`LARGE_BYTES`].
    pub large: bool,
}

impl HotCopies {
    /// No hot body is copied.
    pub const NONE: Self = Self { medium: false, large: false };
    /// Every hot body is copied.
    pub const ALL: Self = Self { medium: true, large: true };
}

/// Tracks which bodies of a cache are hot.
#[derive(Debug, Default)]
pub(crate) struct HotBodies {
    /// Unset: no hot body is copied.
    copies: OnceLock<HotCopies>,
    /// Bytes of all bodies of at least [`COPIED_BYTES`] that were sent since `copies` was set.
    /// Relaxed: it is ordered with no other memory.
    sent: AtomicU64,
}

impl HotBodies {
    /// Selects the hot bodies that are sent by copying; none before the first call. The first value
    /// other than [`HotCopies::NONE`] stays.
    pub(crate) fn set_copies(&self, copies: HotCopies) {
        if copies != HotCopies::NONE {
            let _ = self.copies.set(copies);
        }
    }

    /// See [`Cache::note_sent`](crate::Cache::note_sent).
    #[inline]
    pub(crate) fn note_sent(&self, body: &Body, bytes: u64) -> bool {
        bytes >= COPIED_BYTES
            && self.copies.get().is_some_and(|copies| self.record_send(body, bytes, copies))
    }

    /// Counts a body that is sent. Returns whether it is hot and hot bodies of its length are
    /// copied.
    #[inline(never)]
    fn record_send(&self, body: &Body, bytes: u64, copies: &HotCopies) -> bool {
        let before = self.sent.fetch_add(bytes, Ordering::Relaxed);
        let last = body.swap_sent_at(before + bytes);
        let is_hot = last.is_some_and(|last| before.saturating_sub(last) <= HOT_BYTES);
        let is_copied = if bytes < LARGE_BYTES { copies.medium } else { copies.large };
        is_hot && is_copied && bytes <= HOT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use iolite::Aggregate;

    use super::*;

    const MEDIUM: u64 = 64 * 1024;
    const LARGE: u64 = 1 << 20;

    fn hot_bodies(copies: HotCopies) -> HotBodies {
        let hot_bodies = HotBodies::default();
        hot_bodies.set_copies(copies);
        hot_bodies
    }

    fn body() -> Body {
        Body::whole(Aggregate::default())
    }

    #[test]
    fn a_hot_body_is_copied_if_its_length_class_is() {
        let only = |medium, large| HotCopies { medium, large };
        for (copies, medium, large) in [
            (HotCopies::NONE, false, false),
            (only(true, false), true, false),
            (only(false, true), false, true),
            (HotCopies::ALL, true, true),
        ] {
            let (hot_bodies, bodies) = (hot_bodies(copies), [body(), body()]);
            for expected in [[false; 2], [medium, large], [medium, large]] {
                let is_copied = [(&bodies[0], MEDIUM), (&bodies[1], LARGE)]
                    .map(|(body, bytes)| hot_bodies.note_sent(body, bytes));
                assert_eq!(is_copied, expected, "{copies:?}");
            }
        }
    }

    #[test]
    fn a_body_displaced_by_others_is_cold() {
        let (hot_bodies, body) = (hot_bodies(HotCopies::ALL), body());
        let send_others = |bytes| assert!(!hot_bodies.note_sent(&self::body(), bytes));
        assert!(!hot_bodies.note_sent(&body, MEDIUM));
        send_others(HOT_BYTES);
        assert!(hot_bodies.note_sent(&body, MEDIUM));
        send_others(HOT_BYTES);
        send_others(MEDIUM);
        assert!(!hot_bodies.note_sent(&body, MEDIUM));
        assert!(hot_bodies.note_sent(&body, MEDIUM));
    }

    #[test]
    fn the_shortest_and_the_longest_bodies_are_never_hot() {
        let (hot_bodies, body) = (hot_bodies(HotCopies::ALL), body());
        for bytes in [COPIED_BYTES - 1, HOT_BYTES + 1].repeat(2) {
            assert!(!hot_bodies.note_sent(&body, bytes));
        }
        assert!(hot_bodies.note_sent(&body, HOT_BYTES));
    }
}
