//! Exchanges that wait for another one's fetch of the same response.

use millrace_engine::{Engine, Instant, Key, Kind};
use millrace_store::Claim;

use crate::core::Core;

/// The exchange waits for another one's fetch no longer. False if it did not.
pub(crate) fn end_wait<E: Engine>(core: &mut Core<E>, key: Key) -> bool {
    let due = core.exchange(key).caching.waits_until.take();
    due.is_some_and(|due| core.cache_waits.collapsed.remove(&(due, key)))
}

/// Has the exchange wait for another one's fetch no longer.
pub(crate) fn cancel_wait<E: Engine>(core: &mut Core<E>, key: Key) {
    let waiter = core.waiter(key, Kind::Exchange);
    if end_wait(core, key) {
        let requested = core.exchange(key).caching.key.expect("it waits for something");
        core.cache().forget(requested, waiter);
    }
}

/// An exchange that has waited long enough.
pub(crate) fn overdue<E: Engine>(core: &Core<E>, now: Instant) -> Option<Key> {
    core.cache_waits.collapsed.first().filter(|(due, _)| *due <= now).map(|(_, key)| *key)
}

/// The exchange ends, or goes on without the cache: others may fetch, and nothing waits for it.
#[inline]
pub(crate) fn leave_cache<E: Engine>(core: &mut Core<E>, key: Key) {
    if core.exchange(key).caching.key.is_some() {
        leave_cache_now(core, key);
    }
}

#[inline(never)]
fn leave_cache_now<E: Engine>(core: &mut Core<E>, key: Key) {
    cancel_wait(core, key);
    let caching = &mut core.exchange(key).caching;
    let released = caching.lease.take().map(Claim::release);
    let left = caching.reader.take().and_then(|reader| reader.close());
    if released.is_some() || left.is_some() {
        core.wake(released.into_iter().flatten().chain(left));
    }
}
