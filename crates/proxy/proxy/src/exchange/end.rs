//! Every way in which an exchange ends before its response is delivered to the last byte. One table
//! decides by the failure and by how much was delivered. ARCHITECTURE.md shows the same table.

use millrace_config::RetryOn;
use millrace_engine::{Engine, Key};

use crate::cached::{ResponseSource, store_outcome, waiting};
use crate::core::{Core, ExchangeParts};
use crate::exchange::{
    Abort, Exchange, Failure, NextStep, OwnResponse, Reason, RequestPlan, Stage,
};
use crate::origin::{self, RetryLimits, Transaction, UsableConnections, h1, pipeline, release};

/// How much of the response was delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivered {
    /// Nothing: the client can still get another response.
    Nothing,
    /// Some of the response was sent, and the rest has not been received.
    Part,
    /// The whole response was received from the origin and is being sent.
    Received,
    /// The exchange has become a tunnel.
    Tunnel,
}

/// A way in which an exchange ends, or continues after a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EndAction {
    /// The request is sent once more, on another connection or to another origin.
    Retry,
    /// The client gets a stale stored response (RFC 5861 section 4).
    StaleFallback,
    /// The client gets a response from millrace that names the reason.
    Refuse,
    /// The client connection is closed in order after the last byte that was received. The framing
    /// of the response shows that it is cut.
    Close,
    /// The client connection is reset once the client has everything that was received. The reset
    /// shows that the response is cut.
    ResetWhenDelivered,
    /// The client connection is reset at once.
    Reset,
    /// The response is delivered to its end; only the rest of the request is dropped.
    Complete,
}

use EndAction::{Close, Complete, Refuse, Reset, ResetWhenDelivered, Retry, StaleFallback};

/// The actions in order of preference. The columns have the order of [`Delivered`]. The first
/// possible action is taken:
/// * `Retry` is possible if [`grant_retry`] grants it.
/// * `StaleFallback` is possible if a stored response may be served stale.
/// * `Refuse` is possible if the reason has a status.
/// * `Close` is possible if the framing that the client got shows the cut, and no send is
///   outstanding.
/// * The others are always possible.
const TABLE: [(Failure, [&[EndAction]; 4]); 8] = [
    (Failure::Request, [&[Refuse, Reset], &[Reset], &[Complete], &[Reset]]),
    (Failure::Client, [&[Reset], &[Reset], &[Reset], &[Reset]]),
    (Failure::Connect, [&[Retry, StaleFallback, Refuse], &[Reset], &[Reset], &[Reset]]),
    (Failure::NoResponse, [&[Retry, StaleFallback, Refuse], &[Reset], &[Complete], &[Reset]]),
    (Failure::Header, [&[Retry, StaleFallback, Refuse], &[Reset], &[Complete], &[Reset]]),
    (
        Failure::Body,
        [&[Refuse, Reset], &[Close, ResetWhenDelivered], &[Complete], &[ResetWhenDelivered]],
    ),
    (Failure::File, [&[Refuse, Reset], &[Reset], &[Reset], &[Reset]]),
    (Failure::Proxy, [&[StaleFallback, Refuse], &[Reset], &[Complete], &[Reset]]),
];

/// Ends an exchange that cannot continue as planned, or continues it in another way.
#[cold]
#[inline(never)]
pub(crate) fn end<E: Engine>(core: &mut Core<E>, key: Key, reason: Reason) -> NextStep {
    let exchange = core.exchange(key);
    let (failed, delivered) = (reason.failure(), Delivered::of(exchange));
    let row = TABLE.iter().find(|(row, _)| *row == failed).expect("each failure has a row");
    let actions = row.1[delivered as usize];
    let retries = actions.first() == Some(&Retry) && grant_retry(core, key, reason);
    pipeline::note_failure(core, key, reason);
    origin::outcome::record_failure(core, key, reason);
    if retries {
        let is_silent = failed == Failure::NoResponse;
        let usable = match is_silent && core.exchange(key).transaction.is_reused {
            true => UsableConnections::New,
            false => UsableConnections::Any,
        };
        return retry(core, key, usable);
    }
    if delivered == Delivered::Tunnel {
        // If the connection closed in order, the origin would take the part that it got for the
        // whole tunnel.
        origin::close::reset(core, key);
    }
    release::abandon_transaction(core, key);
    if core.exchange(key).is_refresh() {
        return NextStep::EndRefresh;
    }
    for action in actions {
        match action {
            StaleFallback if store_outcome::serve_stale(core, key) => {
                return NextStep::Advance(Stage::Deliver);
            }
            Refuse if reason.status() != 0 => return refuse(core, key, reason),
            Complete => return complete(core, key),
            Close if shows_cut(core, key) => return abort(core, key, reason, Abort::Close),
            ResetWhenDelivered => return abort(core, key, reason, Abort::ResetWhenDelivered),
            Reset => return abort(core, key, reason, Abort::Reset),
            Retry | StaleFallback | Refuse | Close => {}
        }
    }
    abort(core, key, reason, Abort::Reset)
}

impl Delivered {
    fn of(exchange: &Exchange) -> Self {
        match exchange {
            Exchange { is_tunnel: true, .. } => Self::Tunnel,
            Exchange { status: 0, .. } => Self::Nothing,
            _ if exchange.download.has_received_all() => Self::Received,
            _ => Self::Part,
        }
    }
}

/// Grants one more try of the request, if that is sound and within the limits (RFC 9110 section
/// 9.2.2, RFC 9112 section 9.5).
///
/// * If no connection was opened, nothing was sent, so any request may go to another origin.
/// * If an idle connection ended without a response, the request is repeated, since such a
///   connection may end at any time. If a new connection ended without a response, the request is
///   repeated at another origin.
/// * If the response is malformed, the request is repeated if the route says so.
fn grant_retry<E: Engine>(core: &mut Core<E>, key: Key, reason: Reason) -> bool {
    let ExchangeParts { exchange, origin, .. } = core.parts(key);
    let has_ended_idle = exchange.transaction.is_reused && reason.failure() == Failure::NoResponse;
    let is_sound = match reason.failure() {
        Failure::NoResponse => {
            let unread = origin.is_some_and(|origin| !origin.wire.response_bytes().is_empty());
            let silent = exchange.transaction.interim_count == 0 && !unread;
            h1::may_repeat(exchange) && silent && (has_ended_idle || has_other_origin(exchange))
        }
        Failure::Header => {
            reason.is_malformed_response() && may_retry_on(exchange, RetryOn::Malformed)
        }
        _ => has_other_origin(exchange),
    };
    is_sound && reserve_retry(core, key, has_ended_idle)
}

/// Returns whether a response of the kind `on` may be replaced by that of another origin. It may
/// not be replaced after an interim response has reached the client, because the interim responses
/// of the next origin would follow that one.
fn may_retry_on(exchange: &Exchange, on: RetryOn) -> bool {
    let is_listed = exchange.route_origins().is_some_and(|route| route.retry_on.contains(&on));
    let is_silent = exchange.transaction.interim_count == 0;
    is_listed && is_silent && has_other_origin(exchange) && h1::may_repeat(exchange)
}

/// Retries at another origin instead of delivering the response, if the route retries on this
/// status and a retry is possible.
pub(crate) fn retry_on_status<E: Engine>(core: &mut Core<E>, key: Key) -> Option<NextStep> {
    let exchange = core.exchange(key);
    let status = RetryOn::Status(exchange.response.status());
    let retries = may_retry_on(exchange, status) && reserve_retry(core, key, false);
    retries.then(|| retry(core, key, UsableConnections::Any))
}

/// Grants one more try if limits and budget allow it. With `is_free`, the try takes nothing from
/// the budget.
fn reserve_retry<E: Engine>(core: &mut Core<E>, key: Key, is_free: bool) -> bool {
    let exchange = core.exchange(key);
    let tries_max = exchange.snapshot().limits().retries;
    if u64::from(exchange.transaction.earlier_tries) >= tries_max || exchange.upload.forwarded() > 0
    {
        return false;
    }
    // The retry after the end of an idle connection is free, because that end says nothing about
    // the origin. The retry opens a new connection, so it cannot fail in the same way.
    let granted = is_free || draw_from_budget(core, key);
    if !granted {
        core.counters.retries_refused.add(1);
    }
    granted
}

fn has_other_origin(exchange: &Exchange) -> bool {
    exchange.route_origins().is_some_and(|route| route.origins.len() > 1)
}

/// Takes one retry from the budget of the exchange's route. Returns false if the budget is used up.
fn draw_from_budget<E: Engine>(core: &mut Core<E>, key: Key) -> bool {
    let (now, workers) = (core.engine.now(), core.worker_count());
    let exchange = core.exchange(key);
    let Some(route) = exchange.route_origins() else { return true };
    let limits = exchange.snapshot().limits();
    let floor = limits.retries_per_second.div_ceil(workers);
    let share = RetryLimits { percent: limits.retry_percent, per_second_min: floor };
    route.budget.borrow_mut().grant(now, route.picks.get(), share)
}

/// Sends the request once more, on one of the `usable` connections. With `Any`, another origin is
/// picked, if there is one. Otherwise only a connection had ended, so the origin does not count as
/// failed.
fn retry<E: Engine>(core: &mut Core<E>, key: Key, usable: UsableConnections) -> NextStep {
    core.counters.retries.add(1);
    let transaction = &core.exchange(key).transaction;
    let failed_origin = transaction.origin.filter(|_| usable == UsableConnections::Any);
    let earlier_tries = transaction.earlier_tries + 1;
    begin_anew(
        core,
        key,
        Transaction { earlier_tries, failed_origin, usable, ..Default::default() },
    )
}

/// Sends the request once more, because it got no response behind others on a connection. That is
/// no failure of its own, so it takes nothing from the limits of retries.
pub(crate) fn send_displaced<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let Transaction { earlier_tries, failed_origin, .. } = core.exchange(key).transaction;
    let usable = UsableConnections::Unshared;
    begin_anew(
        core,
        key,
        Transaction { earlier_tries, failed_origin, usable, ..Default::default() },
    )
}

fn begin_anew<E: Engine>(core: &mut Core<E>, key: Key, transaction: Transaction) -> NextStep {
    let exchange = core.exchange(key);
    assert_eq!(exchange.stage, Stage::Fetch, "no byte of a response has reached the client");
    release::abandon_transaction(core, key);
    let exchange = core.exchange(key);
    exchange.upload = Default::default();
    exchange.transaction = transaction;
    NextStep::Reenter
}

fn refuse<E: Engine>(core: &mut Core<E>, key: Key, reason: Reason) -> NextStep {
    waiting::leave_cache(core, key);
    let ExchangeParts { engine, pipes, exchange, .. } = core.parts(key);
    exchange.plan = RequestPlan::Respond(OwnResponse::Refusal(reason));
    exchange.caching.source = ResponseSource::Origin;
    exchange.caching.coder = None;
    exchange.reason = Some(reason);
    // The header of the refusal announces whether the connection stays open. If it does, the bytes
    // after this request are read as the next request.
    exchange.is_persistent &= exchange.has_received_request() && !reason.closes();
    exchange.upload.abandon(engine, pipes);
    match exchange.stage {
        Stage::Deliver => NextStep::Reenter,
        _ => NextStep::Advance(Stage::Deliver),
    }
}

/// Returns whether the framing of the response shows the client that it is cut, if its connection
/// closes here.
fn shows_cut<E: Engine>(core: &mut Core<E>, key: Key) -> bool {
    let ExchangeParts { exchange, client, .. } = core.parts_with_client(key);
    exchange.download.shows_cut() && !client.wire.is_sending()
}

/// Breaks off a response. The client connection ends as `abort` says.
fn abort<E: Engine>(core: &mut Core<E>, key: Key, reason: Reason, abort: Abort) -> NextStep {
    let ExchangeParts { engine, counters, exchange, client, .. } = core.parts_with_client(key);
    counters.responses_aborted.add(1);
    if client.wire.is_sending() {
        exchange.download.note_unsent(client.wire.unsent(engine));
        counters.downloaded_bytes.add(exchange.download.take_newly_accepted());
    }
    exchange.reason.get_or_insert(reason);
    exchange.is_persistent = false;
    exchange.abort = Some(abort);
    NextStep::Advance(Stage::Log)
}

/// Drops the rest of the request and delivers the response to its end.
#[inline(never)]
pub(crate) fn complete<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    release::abandon_transaction(core, key);
    let ExchangeParts { engine, pipes, exchange, .. } = core.parts(key);
    exchange.upload.abandon(engine, pipes);
    exchange.is_persistent = false;
    if exchange.download.has_ended() { NextStep::Advance(Stage::Log) } else { NextStep::Wait }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARCHITECTURE: &str = include_str!("../../../../../ARCHITECTURE.md");
    const DELIVERED: [Delivered; 4] =
        [Delivered::Nothing, Delivered::Part, Delivered::Received, Delivered::Tunnel];

    fn word(action: EndAction) -> &'static str {
        match action {
            Retry => "retry",
            StaleFallback => "stale fallback",
            Refuse => "refuse",
            Close => "close",
            ResetWhenDelivered => "reset when delivered",
            Reset => "reset",
            Complete => "complete",
        }
    }

    fn row_of(reason: Reason) -> &'static [&'static [EndAction]; 4] {
        let mut rows = TABLE.iter().filter(|(failed, _)| *failed == reason.failure());
        let (Some((_, row)), None) = (rows.next(), rows.next()) else {
            panic!("{reason:?} does not have exactly one row");
        };
        row
    }

    /// Returns the cells of the Markdown table whose header row begins with `first`, by row, with
    /// the header row and without the separator row.
    fn table_of(text: &str, first: &str) -> Vec<Vec<String>> {
        let cells = |line: &str| -> Vec<String> {
            let line = line.trim().trim_matches('|');
            line.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
        };
        let lines = text.lines().skip_while(|line| !line.starts_with(&format!("| {first} |")));
        let rows: Vec<_> = lines.take_while(|line| line.starts_with('|')).map(cells).collect();
        let is_rule = |row: &[String]| row.iter().all(|cell| cell.chars().all(|it| it == '-'));
        assert!(rows.len() > 2 && is_rule(&rows[1]), "there is no table of {first}");
        rows.into_iter().filter(|row| !is_rule(row)).collect()
    }

    #[test]
    fn the_documented_table_equals_the_one_in_the_code() {
        let header = DELIVERED.map(|delivered| format!("{delivered:?}"));
        let mut expected = vec![[&["failed".to_owned()][..], &header[..]].concat()];
        for (failed, cells) in TABLE {
            let cells =
                cells.map(|cell| cell.iter().copied().map(word).collect::<Vec<_>>().join(", "));
            expected.push([&[format!("{failed:?}")][..], &cells[..]].concat());
        }
        // The last column is prose.
        let is_documented = |row: &Vec<String>| row.len() == 6 && !row[5].is_empty();
        let documented = table_of(ARCHITECTURE, "failed");
        assert!(documented.iter().all(is_documented), "{documented:#?}");
        let documented: Vec<_> = documented.iter().map(|row| row[..5].to_vec()).collect();
        assert_eq!(documented, expected);
    }

    #[test]
    fn the_columns_of_the_table_are_in_the_order_of_delivered() {
        for (column, delivered) in DELIVERED.into_iter().enumerate() {
            assert_eq!(delivered as usize, column);
        }
    }

    #[test]
    fn every_reason_has_a_row_and_every_row_a_reason() {
        for &reason in Reason::ALL {
            row_of(reason);
        }
        for (failed, _) in TABLE {
            assert!(Reason::ALL.iter().any(|&reason| reason.failure() == failed), "{failed:?}");
        }
    }

    #[test]
    fn the_last_action_of_each_cell_is_always_possible() {
        for &reason in Reason::ALL {
            for cell in row_of(reason) {
                let is_possible = match cell.last() {
                    Some(Reset | ResetWhenDelivered | Complete) => true,
                    Some(Refuse) => reason.status() != 0,
                    Some(Retry | StaleFallback | Close) | None => false,
                };
                assert!(is_possible, "{reason:?}: {cell:?}");
            }
        }
    }

    #[test]
    fn a_retry_is_the_first_choice_and_only_before_anything_was_delivered() {
        for (failed, cells) in TABLE {
            for (delivered, cell) in DELIVERED.into_iter().zip(cells) {
                let place = cell.iter().position(|action| *action == Retry);
                assert!(place.is_none_or(|place| place == 0), "{failed:?}");
                let retries_or_falls_back =
                    cell.iter().any(|it| matches!(it, Retry | StaleFallback));
                assert!(!retries_or_falls_back || delivered == Delivered::Nothing, "{failed:?}");
            }
        }
    }
}
