//! The origin's side of the worker: what came from an origin connection, when it is read, and how
//! it ends. The client's side is `client_side.rs`.

use std::time::Duration;

use millrace_event::{Buffer, Engine, Error, Instant, Key, Kind};
use millrace_http::{Framing, connection_options};

use crate::exchange::Exchange;
use crate::fill;
use crate::heads;
use crate::limits::Limits;
use crate::origin::{self, Dial, OriginConn, OriginId, Phase, Use};
use crate::reason::Reason;
use crate::stage::{deliver, fetch};
use crate::transfer::Waits;
use crate::worker::Worker;

impl<E: Engine> Worker<E> {
    /// An exchange that its caller knows to be under way.
    pub(crate) fn exchange(&mut self, key: Key) -> &mut Exchange {
        self.exchanges.get_mut(key).expect("the caller's exchange is under way")
    }

    /// The race for a connection of an exchange that is in one.
    pub(crate) fn dial(&mut self, key: Key) -> &mut Dial {
        self.exchange(key).transaction.dial.as_mut().expect("the caller's race is under way")
    }

    /// The origin connection of an exchange that has one.
    pub(crate) fn origin_of(&mut self, key: Key) -> &mut OriginConn {
        let slot = self.exchange(key).transaction.connection;
        let slot = slot.expect("the caller's exchange has a connection");
        self.origins.connections.get_mut(slot).expect("held by the exchange")
    }

    /// Asks for bytes of the exchange's origin, unless they were asked for before.
    /// Only a little while answers to earlier requests of its client come first: it has to be held.
    pub(crate) fn receive_origin(&mut self, key: Key) {
        let Self { engine, origins, exchanges, conns, .. } = self;
        let exchange = exchanges.get(key).expect("the caller's exchange is under way");
        let slot = exchange.transaction.connection;
        let slot = slot.expect("the caller's exchange has a connection");
        let id = exchange.transaction.origin.expect("picked before it was connected to");
        let head_max = origins.head_max(id);
        let connection = origins.connections.get_mut(slot).expect("held by the exchange");
        if connection.receiving {
            return;
        }
        connection.receiving = true;
        let token = slot.token(Kind::Origin);
        if exchange.transaction.phase == Phase::Answered {
            engine.expect_bytes(&connection.fd, exchange.download.expected());
        }
        if exchange.download.watches() {
            engine.watch(&connection.fd, token);
            return;
        }
        let is_first = exchange
            .conn
            .is_none_or(|conn| conns.get(conn).is_some_and(|conn| conn.first == Some(key)));
        let max = match exchange.transaction.phase {
            _ if !is_first => RECEIVE_AHEAD_MAX,
            Phase::Answered => RECEIVE_MAX,
            _ => head_max,
        };
        engine.recv(&connection.fd, max, token);
    }

    /// The origin that was watched has something.
    pub(crate) fn origin_readable(&mut self, slot: Key) {
        let Some(connection) = self.origins.connections.get_mut(slot) else { return };
        connection.receiving = false;
        let key = match connection.used_for {
            Use::Busy(key) => key,
            Use::Filling(fill) => return fill::run(self, fill),
            Use::Idle => unreachable!("a kept connection is received from"),
        };
        if self.exchange(key).download.waits() == Waits::Source {
            deliver::download(self, key, false);
        } else {
            self.receive_origin(key);
        }
    }

    pub(crate) fn origin_received(&mut self, slot: Key, result: Result<Buffer, Error>) {
        let Self { engine, origins, .. } = self;
        let Some(connection) = origins.connections.get_mut(slot) else {
            if let Ok(buffer) = result {
                engine.recycle(buffer);
            }
            return;
        };
        connection.receiving = false;
        let used_for = connection.used_for;
        let came = match result {
            Ok(buffer) if buffer.is_empty() => {
                engine.recycle(buffer);
                Came::End
            }
            Ok(buffer) => {
                connection.input.take(buffer, engine);
                Came::Bytes
            }
            Err(_) => Came::Break,
        };
        connection.broken |= came == Came::Break;
        let came = if came == Came::End && connection.broken { Came::Break } else { came };
        match used_for {
            // The end, or an answer that nobody asked for (RFC 9112 section 9.5).
            Use::Idle => self.close_origin(slot),
            Use::Busy(exchange) => self.origin_came(exchange, came),
            Use::Filling(fill) => match came {
                Came::Bytes => fill::run(self, fill),
                Came::End => fill::ended(self, fill),
                Came::Break => fill::end(self, fill, false),
            },
        }
        let Self { engine, origins, .. } = self;
        if let Some(connection) = origins.connections.get_mut(slot) {
            connection.input.settle(engine);
        }
    }

    fn origin_came(&mut self, key: Key, came: Came) {
        let exchange = self.exchange(key);
        match (exchange.transaction.phase, came) {
            (Phase::Asked, Came::Bytes) => {
                if exchange.has_unsent_body() {
                    let unread = self.origin_of(key).input.bytes().len();
                    self.exchange(key).transaction.early_bytes = unread;
                }
                fetch::answer(self, key);
            }
            (Phase::Asked, Came::End | Came::Break) => fetch::origin_ended(self, key),
            (Phase::Answered, Came::Bytes) if exchange.download.waits() == Waits::Source => {
                deliver::download(self, key, false);
            }
            // It waits for its turn; or it follows the answer, and then the connection is not kept.
            (Phase::Answered, Came::Bytes) => {}
            // It was read ahead, and is told again when what came before it was taken.
            (Phase::Answered, came)
                if exchange.download.waits() == Waits::Sink
                    && !exchange.download.source_is_done() =>
            {
                self.origin_of(key).ended |= came == Came::End;
            }
            (Phase::Answered, Came::End) => deliver::origin_ended(self, key),
            (Phase::Answered, Came::Break) => deliver::origin_broke(self, key),
            (phase, came) => unreachable!("{came:?} in {phase:?}, before there is a connection"),
        }
    }

    pub(crate) fn origin_sent(&mut self, slot: Key, result: Result<(), Error>) {
        let Some(connection) = self.origins.connections.get_mut(slot) else { return };
        connection.sending = false;
        match connection.used_for {
            Use::Busy(exchange) => fetch::upload_sent(self, exchange, result),
            // The answer came before that word.
            Use::Filling(_) => connection.broken |= result.is_err(),
            Use::Idle if result.is_err() => self.close_origin(slot),
            Use::Idle => {}
        }
    }

    pub(crate) fn origin_spliced(&mut self, slot: Key, result: Result<usize, Error>) {
        let Some(connection) = self.origins.connections.get_mut(slot) else { return };
        connection.sending = false;
        if let Use::Busy(exchange) = connection.used_for {
            fetch::upload_spliced(self, exchange, result);
        }
    }

    /// A connection's timer is due. It may have been set before the present wait began.
    pub(crate) fn origin_deadline(&mut self, slot: Key) {
        let Self { engine, exchanges, conns, origins, snapshot, snapshots, timers, fills, .. } =
            self;
        let now = engine.now();
        let connection = origins.connections.get(slot).expect("a timer ends with its connection");
        let (deadline, over) = match connection.used_for {
            Use::Idle => {
                let wait = Duration::from_millis(snapshot.limits().origin_idle_ms);
                (Some(connection.idle_since + wait), None)
            }
            Use::Busy(key) => {
                let exchange = exchanges.get(key).expect("it holds the connection");
                let (deadline, reason) = wait_for_origin(exchange, exchange.snapshot().limits());
                // Without a receive or send it is the client that is waited for; and it may be its
                // turn, while what comes is read ahead.
                let conn = exchange.conn.map(|conn| conns.get(conn).expect("it outlives it"));
                let may_go = conn.is_none_or(|conn| conn.may_go(key));
                let is_ahead = !may_go && !connection.input.is_empty();
                let waits_here = (connection.receiving && !is_ahead) || connection.sending;
                (deadline.filter(|_| waits_here), Some((key, reason)))
            }
            Use::Filling(key) => {
                let deadline = fills.get(key).expect("it holds the connection").deadline();
                if deadline.is_some_and(|deadline| deadline <= now) {
                    return fill::end(self, key, false);
                }
                (deadline, None)
            }
        };
        if deadline.is_none_or(|deadline| deadline > now) {
            let check = now + snapshots.origin_check;
            timers.set(connection.timer, deadline.map_or(check, |deadline| deadline.min(check)));
            return;
        }
        match over {
            None => self.close_origin(slot),
            Some((key, reason)) => fetch::fail(self, key, reason),
        }
    }

    /// The exchange is done with its origin, and the connection can serve others if nothing is
    /// wrong with it.
    pub(crate) fn release_origin(&mut self, key: Key) {
        let exchange = self.exchange(key);
        let Some(slot) = exchange.transaction.connection.take() else { return };
        let id = exchange.transaction.origin.take().expect("picked before it was used");
        let moved = exchange.download.moved();
        self.origins.note_body(id, moved);
        let may_be_kept = self.lets_it_live(key);
        self.let_origin_go(slot, id, may_be_kept);
    }

    /// Keeps a connection that was used for the origin and is not any more, if nothing is wrong
    /// with it.
    pub(crate) fn let_origin_go(&mut self, slot: Key, id: OriginId, may_be_kept: bool) {
        let may_be_kept = may_be_kept && self.is_clean(slot);
        if may_be_kept && !self.draining && self.origins.is_in_force(id) {
            let now = self.engine.now();
            if let Some(owner) = self.origins.keep(slot, now) {
                origin::note_kept(self, slot, owner);
            }
            let Self { engine, origins, .. } = self;
            let connection = origins.connections.get_mut(slot).expect("kept just now");
            if !connection.receiving {
                connection.receiving = true;
                let max = origins.head_max(id);
                let connection = origins.connections.get_mut(slot).expect("kept just now");
                engine.recv(&connection.fd, max, slot.token(Kind::Origin));
            }
            let limits = self.snapshot.limits();
            let per_origin = limits.origin_idle_connections as usize;
            let all = limits.origin_idle_connections_all as usize;
            if let Some(surplus) = self.origins.surplus(id, per_origin, all) {
                self.close_origin(surplus);
            }
        } else {
            self.close_origin(slot);
        }
        self.origins.unpick(id);
    }

    /// Whether a connection whose answer was read has nothing left of it.
    fn is_clean(&self, slot: Key) -> bool {
        let connection = self.origins.connections.get(slot).expect("held by the caller");
        connection.input.is_empty() && !connection.broken && !connection.ended
    }

    /// Whether the connection of an exchange outlives its answer. The response may not begin before
    /// the last byte of the request body was sent: an origin that never reads the body would take
    /// the rest of it for a request, and the next client on the connection would get the response.
    /// Without a body the engine may report later that the request was sent; the connection serves
    /// no other request before.
    pub(crate) fn lets_it_live(&mut self, key: Key) -> bool {
        let exchange = self.exchange(key);
        let answer = &exchange.answer;
        exchange.request_was_taken()
            && exchange.transaction.early_bytes == 0
            && exchange.transaction.framing != Framing::UntilClose
            && connection_options(answer).is_persistent(answer.version())
            && !heads::binds_connection(answer)
            && !heads::binds_connection(&exchange.request)
    }

    /// The exchange gives up whatever it has at its origin: what is under way ends unfinished.
    pub(crate) fn leave_origin(&mut self, key: Key) {
        let transaction = &mut self.exchange(key).transaction;
        if transaction.origin.is_none() && transaction.phase != Phase::Waiting {
            // It was released, or none was picked: whatever there is belongs to one that is.
            assert!(transaction.connection.is_none() && transaction.dial.is_none());
            transaction.phase = Phase::Start;
            return;
        }
        match transaction.phase {
            Phase::Naming => self.names.forget(key),
            Phase::Waiting => self.waiting.retain(|entry| entry.key != key),
            Phase::Queued => {
                let id = self.exchange(key).transaction.origin;
                self.origins.leave_line(id.expect("it waits for room there"), key);
            }
            _ => {}
        }
        origin::abandon(self, key);
        if let Some(slot) = self.exchange(key).transaction.connection.take() {
            self.close_origin(slot);
        }
        let transaction = &mut self.exchange(key).transaction;
        transaction.phase = Phase::Start;
        let trial = std::mem::take(&mut transaction.trial);
        let opens = std::mem::take(&mut transaction.opens);
        if let Some(id) = transaction.origin.take() {
            if opens {
                self.origins.note_closed(id);
            }
            origin::leave(self, id, trial);
            self.origins.unpick(id);
        }
    }

    /// Resets the exchange's origin connection, so that the origin sees that it broke.
    pub(crate) fn break_origin(&mut self, key: Key) {
        if let Some(slot) = self.exchange(key).transaction.connection.take() {
            let connection = self.remove_origin(slot);
            self.engine.reset(connection.fd);
        }
    }

    /// Closes an origin connection, kept or in use.
    pub(crate) fn close_origin(&mut self, slot: Key) {
        let connection = self.remove_origin(slot);
        self.engine.close(connection.fd);
    }

    fn remove_origin(&mut self, slot: Key) -> OriginConn {
        let mut connection = self.origins.remove(slot).expect("the caller's connection is open");
        connection.input.clear(&mut self.engine);
        self.timers.remove(connection.timer);
        connection
    }
}

/// What came from an origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Came {
    Bytes,
    /// The origin ended its stream.
    End,
    /// The connection broke.
    Break,
}

/// When an exchange has waited long enough for its origin, and what is then said; `None` while it
/// waits for its client, whose own deadlines hold.
fn wait_for_origin(exchange: &Exchange, limits: &Limits) -> (Option<Instant>, Reason) {
    let wait = Duration::from_millis;
    let (upload, download) = (&exchange.upload, &exchange.download);
    if exchange.tunnel {
        return (None, Reason::TunnelIdle);
    }
    if upload.waits() == Waits::Sink {
        let reason = match exchange.transaction.phase {
            Phase::Answered => Reason::AnswerTimedOut,
            _ => Reason::OriginTimedOut,
        };
        return (Some(upload.since() + wait(limits.first_byte_ms)), reason);
    }
    match exchange.transaction.phase {
        Phase::Asked if upload.waits() != Waits::Source || exchange.waits_for_continue() => {
            let since = exchange.transaction.since;
            (Some(since + wait(limits.first_byte_ms)), Reason::OriginTimedOut)
        }
        Phase::Answered if download.waits() == Waits::Source => {
            (Some(download.since() + wait(limits.answer_ms)), Reason::AnswerTimedOut)
        }
        _ => (None, Reason::OriginTimedOut),
    }
}

/// The most that is received of an origin at once.
const RECEIVE_MAX: usize = Buffer::SIZE;
/// The same for an answer that waits until those before it were delivered; less than twice as much
/// of it is held.
pub(crate) const RECEIVE_AHEAD_MAX: usize = 4096;
