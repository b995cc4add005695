//! Exchanges that wait for another exchange's fetch of the same response, or for a file.

use std::time::Duration;

use millrace_engine::{Engine, Instant, Key, TokenKind};
use millrace_store::FetchLease;

use crate::core::Core;
use crate::exchange::NextStep;
use crate::files::FileWork;

/// Waits for the work of a thread, at most `response_ms`.
pub(crate) fn wait_for_file<E: Engine>(core: &mut Core<E>, key: Key, work: FileWork) -> NextStep {
    let exchange = core.exchange(key);
    exchange.file_mut().work = Some(work);
    let limit_ms = exchange.snapshot().limits().response_ms;
    begin_wait(core, key, Duration::from_millis(limit_ms));
    NextStep::Wait
}

/// Has the exchange time out after `limit`, unless its wait ends before. It does not wait yet.
pub(crate) fn begin_wait<E: Engine>(core: &mut Core<E>, key: Key, limit: Duration) {
    // An earlier attempt may have waited.
    end_wait(core, key);
    let Core { engine, exchanges, cached, .. } = core;
    let exchange = exchanges.get_mut(key).expect("the driver's exchange is in the table");
    let due = engine.now() + limit;
    exchange.caching.wait.until = Some(due);
    cached.collapsed.insert((due, key));
}

/// Ends the exchange's wait. Returns false if it did not wait.
pub(crate) fn end_wait<E: Engine>(core: &mut Core<E>, key: Key) -> bool {
    let due = core.exchange(key).caching.wait.until.take();
    due.is_some_and(|due| core.cached.collapsed.remove(&(due, key)))
}

/// Ends the exchange's wait and removes its waiter from the cache.
pub(crate) fn cancel_wait<E: Engine>(core: &mut Core<E>, key: Key) {
    let waiter = core.waiter(key, TokenKind::Exchange);
    // An exchange that waits for a file has no key.
    if end_wait(core, key)
        && let Some(requested) = core.exchange(key).caching.key
    {
        core.cache().remove_waiter(requested, waiter);
    }
}

/// Returns an exchange whose wait has passed its deadline.
pub(crate) fn overdue<E: Engine>(core: &Core<E>, now: Instant) -> Option<Key> {
    core.cached.collapsed.first().filter(|(due, _)| *due <= now).map(|(_, key)| *key)
}

/// Releases the lease and the reader of an exchange that ends or continues without the cache, and
/// ends its wait.
#[inline]
pub(crate) fn leave_cache<E: Engine>(core: &mut Core<E>, key: Key) {
    let caching = &core.exchange(key).caching;
    if caching.key.is_some() || caching.wait.until.is_some() {
        leave_cache_now(core, key);
    }
}

#[inline(never)]
fn leave_cache_now<E: Engine>(core: &mut Core<E>, key: Key) {
    cancel_wait(core, key);
    let caching = &mut core.exchange(key).caching;
    let released = caching.lease.take().map(FetchLease::release);
    let left = caching.reader.take().and_then(|reader| reader.close());
    if released.is_some() || left.is_some() {
        core.wake(released.into_iter().flatten().chain(left));
    }
}
