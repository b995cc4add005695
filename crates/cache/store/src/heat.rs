//! Which bodies are hot, and how those are sent.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_body::Body;

use crate::{COPIED_BYTES, Cache};

/// A body is hot when at most so many bytes of bodies were sent since it was sent last. The last
/// cache of a server's processor is larger, and so still has it.
pub const HOT_BYTES: u64 = 8 << 20;

/// From this length on a body is large: see [`HotCopies::large`].
pub const LARGE_BYTES: u64 = 256 * 1024;

/// Which hot bodies of [`COPIED_BYTES`] and more are sent by copy. All others of that length are
/// sent by reference, which costs the same wherever they are. A copy is cheaper on some processors,
/// and dearer on all once it has to read from memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HotCopies {
    /// Those below [`LARGE_BYTES`].
    pub medium: bool,
    /// Those from [`LARGE_BYTES`] on.
    pub large: bool,
}

impl HotCopies {
    /// No hot body.
    pub const NONE: Self = Self { medium: false, large: false };
    /// Each hot body.
    pub const ALL: Self = Self { medium: true, large: true };
}

/// What a cache knows of the heat of its bodies.
#[derive(Debug, Default)]
pub(crate) struct Heat {
    /// Unset: none.
    copies: OnceLock<HotCopies>,
    /// Bytes of bodies that were sent. It is counted in where that decides something, in no order
    /// with anything else.
    sent: AtomicU64,
}

impl Cache {
    /// Makes these hot bodies be sent by copy, before which none are. Later calls change nothing.
    pub fn copy_hot(&self, copies: HotCopies) {
        if copies != HotCopies::NONE {
            let _ = self.heat.copies.set(copies);
        }
    }

    /// Whether a body of so many bytes, all of which is about to be sent, is to be sent by copy
    /// though it could be sent by reference.
    #[inline]
    pub fn is_hot_copy(&self, body: &Body, bytes: u64) -> bool {
        bytes >= COPIED_BYTES
            && self.heat.copies.get().is_some_and(|copies| self.is_hot(body, bytes, copies))
    }

    #[inline(never)]
    fn is_hot(&self, body: &Body, bytes: u64, copies: &HotCopies) -> bool {
        let before = self.heat.sent.fetch_add(bytes, Ordering::Relaxed);
        let last = body.note_sent(before + bytes);
        let is_hot = last.is_some_and(|last| before.saturating_sub(last) <= HOT_BYTES);
        let is_copied = if bytes < LARGE_BYTES { copies.medium } else { copies.large };
        is_hot && is_copied && bytes <= HOT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use iolite::{Aggregate, Slab};
    use millrace_http_cache::HashKey;

    use super::*;
    use crate::Bounds;

    const MEDIUM: u64 = 64 * 1024;
    const LARGE: u64 = 1 << 20;

    fn cache(copies: HotCopies) -> Arc<Cache> {
        let bounds = Bounds { bytes: 8 << 20, object_bytes: 1 << 20, variants: 4, tends: true };
        let slab = Slab::on_heap(8 << 20).unwrap();
        let cache = Cache::new(slab, HashKey::new([7; 16]), bounds);
        cache.copy_hot(copies);
        cache
    }

    fn body() -> Body {
        Body::whole(Aggregate::default())
    }

    #[test]
    fn a_body_is_copied_while_it_is_hot_and_its_class_is() {
        let only = |medium, large| HotCopies { medium, large };
        for (copies, medium, large) in [
            (HotCopies::NONE, false, false),
            (only(true, false), true, false),
            (only(false, true), false, true),
            (HotCopies::ALL, true, true),
        ] {
            let (cache, bodies) = (cache(copies), [body(), body()]);
            for expected in [[false; 2], [medium, large], [medium, large]] {
                let is_copied = [(&bodies[0], MEDIUM), (&bodies[1], LARGE)]
                    .map(|(body, bytes)| cache.is_hot_copy(body, bytes));
                assert_eq!(is_copied, expected, "{copies:?}");
            }
        }
    }

    #[test]
    fn what_others_have_displaced_is_cold() {
        let (cache, body) = (cache(HotCopies::ALL), body());
        let send_others = |bytes| assert!(!cache.is_hot_copy(&self::body(), bytes));
        assert!(!cache.is_hot_copy(&body, MEDIUM));
        send_others(HOT_BYTES);
        assert!(cache.is_hot_copy(&body, MEDIUM));
        send_others(HOT_BYTES);
        send_others(MEDIUM);
        assert!(!cache.is_hot_copy(&body, MEDIUM));
        assert!(cache.is_hot_copy(&body, MEDIUM));
    }

    #[test]
    fn the_shortest_and_the_longest_bodies_are_none_of_them() {
        let (cache, body) = (cache(HotCopies::ALL), body());
        for bytes in [COPIED_BYTES - 1, HOT_BYTES + 1].repeat(2) {
            assert!(!cache.is_hot_copy(&body, bytes));
        }
        assert!(cache.is_hot_copy(&body, HOT_BYTES));
    }
}
