//! Records the outcome of a request for the health of its origin.
//!
//! A failure is an event that prevented a response, as in other proxies: no connection, an end of
//! stream or a reset before the response header, a malformed header, or no header in time. The end
//! of a reused connection is no failure, and neither is a response whose body was cut short. A
//! response of status 502, 503 or 504 is no failure unless the route is configured so.

use millrace_engine::{Engine, Key};

use crate::core::Core;
use crate::exchange::{Exchange, Failure, Reason, RequestPlan};
use crate::origin::{OriginId, shared_health::FailureCause};

/// Records that the exchange failed for `reason`, before it leaves its origin.
pub(crate) fn record_failure<E: Engine>(core: &mut Core<E>, key: Key, reason: Reason) {
    let exchange = core.exchange(key);
    let transaction = &exchange.transaction;
    let Some(id) = transaction.origin.filter(|_| matches!(exchange.plan, RequestPlan::Route(_)))
    else {
        return;
    };
    // A failure without a connection is counted as a connect error elsewhere.
    let is_of_response = match reason.failure() {
        Failure::NoResponse if transaction.is_reused => return,
        Failure::NoResponse | Failure::Header => true,
        // No denied target is among these failures, because routes have no target rules.
        Failure::Connect => false,
        Failure::Request | Failure::Client | Failure::Body | Failure::File | Failure::Proxy => {
            return;
        }
    };
    if is_of_response && let Some(counters) = core.origins.counters(id) {
        counters.response_errors.add(1);
    }
    record(core, key, id, FailureCause::Reason(reason));
}

fn record<E: Engine>(core: &mut Core<E>, key: Key, id: OriginId, cause: FailureCause) {
    let now = core.engine.now();
    if let Some(entry) = core.origins.shared_entry(id) {
        core.shared.health.record_failure(entry, cause, now);
    }
    let reason = std::mem::take(&mut core.exchange(key).transaction.pick_reason);
    let Core { origins, shared, counters, snapshot, .. } = core;
    if origins.record_failure(id, reason, now, snapshot.limits(), &shared.health) {
        counters.origin_ejections.add(1);
    }
}

/// Records the final response of an origin, when its header was received.
pub(crate) fn record_response<E: Engine>(core: &mut Core<E>, key: Key) {
    let exchange = core.exchange(key);
    let status = exchange.response.status();
    let Some(id) = exchange.transaction.origin else { return };
    if status >= 500 {
        if let Some(counters) = core.origins.counters(id) {
            counters.responses_5xx.add(1);
        }
        if is_failure(core.exchange(key)) {
            return record(core, key, id, FailureCause::Status(status));
        }
    }
    if let Some(entry) = core.origins.shared_entry(id).filter(|entry| entry.outage.is_failing()) {
        core.shared.health.record_response(entry, core.engine.now());
    }
    if core.origins.all_pristine || core.origins.state(id).health.is_pristine() {
        return;
    }
    let reason = std::mem::take(&mut core.exchange(key).transaction.pick_reason);
    let Core { origins, shared, counters, .. } = core;
    if origins.record_response(id, reason, &shared.health) {
        counters.origin_readmissions.add(1);
    }
}

/// Returns whether the route is configured to treat the response as a failure.
fn is_failure(exchange: &Exchange) -> bool {
    matches!(exchange.response.status(), 502..=504)
        && exchange.route_origins().is_some_and(|route| route.gateway_errors_fail)
}
