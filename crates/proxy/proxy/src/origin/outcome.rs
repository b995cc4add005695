//! What a request that ended at its origin, well or not, means for the health of that origin.
//!
//! As users of other proxies expect, a failure is what prevented a response: no connection, an end
//! or a reset before the response's header, a malformed header, or none in time. The end of a
//! reused connection means nothing, nor does a response that was cut in its body. A 502, 503 or 504
//! is a response, unless the route takes these for failures too.

use millrace_engine::{Engine, Key};

use crate::core::Core;
use crate::exchange::{Exchange, Failure, Reason, RequestPlan};
use crate::origin::{OriginId, shared_health::FailureCause};

/// The exchange failed at its origin, which it has not left yet.
pub(crate) fn record_failure<E: Engine>(core: &mut Core<E>, key: Key, reason: Reason) {
    let exchange = core.exchange(key);
    let transaction = &exchange.transaction;
    let Some(id) = transaction.origin.filter(|_| matches!(exchange.plan, RequestPlan::Route(_)))
    else {
        return;
    };
    // Whether a connection came about: a failure without one is counted as a connect error.
    let is_of_response = match reason.failure() {
        Failure::NoResponse if transaction.is_reused => return,
        Failure::NoResponse | Failure::Header => true,
        // A target that is denied is not among them: routes have no such rules.
        Failure::Connect => false,
        Failure::Request | Failure::Client | Failure::Body | Failure::Proxy => return,
    };
    if is_of_response && let Some(counters) = core.origins.counters(id) {
        counters.response_errors.add(1);
    }
    record(core, key, id, FailureCause::Reason(reason));
}

fn record<E: Engine>(core: &mut Core<E>, key: Key, id: OriginId, cause: FailureCause) {
    let now = core.engine.now();
    if let Some(mark) = core.origins.shared_entry(id) {
        core.shared.health.record_failure(mark, cause, now);
    }
    let trial = std::mem::take(&mut core.exchange(key).transaction.pick_reason);
    let Core { origins, shared, counters, snapshot, .. } = core;
    if origins.record_failure(id, trial, now, snapshot.limits(), &shared.health) {
        counters.origin_ejections.add(1);
    }
}

/// The header of the final response is there.
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
    if let Some(mark) = core.origins.shared_entry(id).filter(|mark| mark.outage.is_failing()) {
        core.shared.health.record_response(mark, core.engine.now());
    }
    if core.origins.all_pristine || core.origins.state(id).health.is_pristine() {
        return;
    }
    let trial = std::mem::take(&mut core.exchange(key).transaction.pick_reason);
    let Core { origins, shared, counters, .. } = core;
    if origins.record_response(id, trial, &shared.health) {
        counters.origin_readmissions.add(1);
    }
}

/// Whether the route takes the response for a failure of the origin.
fn is_failure(exchange: &Exchange) -> bool {
    matches!(exchange.response.status(), 502..=504)
        && exchange.route_origins().is_some_and(|route| route.gateway_errors_fail)
}
