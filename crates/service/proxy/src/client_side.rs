//! The client's side of the worker: what came from a client connection, when it is read, and how
//! it ends. The origin's side is `origin_side.rs`.

use std::time::Duration;

use millrace_event::{Buffer, Engine, Error, HowToShut, Instant, Key, Kind};

use crate::conn::{Conn, Standing};
use crate::flow;
use crate::origin;
use crate::reason::Reason;
use crate::stage::{accept, deliver, fetch, log, parse};
use crate::transfer::Waits;
use crate::worker::Worker;

impl<E: Engine> Worker<E> {
    /// A client connection that its caller knows to be open.
    pub(crate) fn conn(&mut self, key: Key) -> &mut Conn {
        self.conns.get_mut(key).expect("the caller's connection is open")
    }

    /// Asks for bytes of the client, unless they were asked for before.
    pub(crate) fn receive_client(&mut self, key: Key) {
        let Self { engine, conns, .. } = self;
        let conn = conns.get_mut(key).expect("the caller's connection is open");
        if !conn.receiving && !conn.ended {
            conn.receiving = true;
            let max = match conn.standing {
                Standing::Lingering => Buffer::SIZE,
                _ => RECEIVE_MAX,
            };
            engine.recv(&conn.fd, max, key.token(Kind::Client));
        }
    }

    /// Asks for what the client sends of a request's body or into a tunnel, unless that was asked
    /// for before: for bytes, or only for word that some are there.
    pub(crate) fn receive_upload(&mut self, key: Key, expected: u64, watches: bool) {
        let Self { engine, conns, .. } = self;
        let conn = conns.get_mut(key).expect("the caller's connection is open");
        if !conn.receiving && !conn.ended {
            conn.receiving = true;
            let token = key.token(Kind::Client);
            engine.expect_bytes(&conn.fd, expected);
            if watches {
                engine.watch(&conn.fd, token);
            } else {
                engine.recv(&conn.fd, Buffer::SIZE, token);
            }
        }
    }

    /// The client that was watched has something.
    pub(crate) fn client_readable(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.receiving = false;
        match self.uploading(key) {
            Some(exchange) => fetch::upload(self, exchange, false),
            None => self.receive_client(key),
        }
    }

    /// While an answer is under way: asks for what the client sends next, so that its end is seen
    /// and the next request is at hand. Less than two pieces are read ahead.
    pub(crate) fn watch_client(&mut self, key: Key) {
        if self.conn(key).input.bytes().len() < RECEIVE_MAX {
            self.receive_client(key);
        }
    }

    pub(crate) fn client_received(&mut self, key: Key, result: Result<Buffer, Error>) {
        let Self { engine, conns, .. } = self;
        let Some(conn) = conns.get_mut(key) else {
            if let Ok(buffer) = result {
                engine.recycle(buffer);
            }
            return;
        };
        conn.receiving = false;
        match result {
            Ok(buffer) if buffer.is_empty() && conn.broken => {
                engine.recycle(buffer);
                self.client_broke(key);
            }
            Ok(buffer) if buffer.is_empty() => {
                engine.recycle(buffer);
                conn.ended = true;
                self.client_ended(key);
            }
            Ok(buffer) => {
                conn.input.take(buffer, engine);
                self.client_bytes(key);
                let Self { engine, conns, .. } = self;
                if let Some(conn) = conns.get_mut(key) {
                    conn.input.settle(engine);
                }
            }
            Err(_) => self.client_broke(key),
        }
    }

    fn client_bytes(&mut self, key: Key) {
        match self.conn(key).standing {
            Standing::Greeting => accept::greet(self, key),
            Standing::Fresh | Standing::Idle | Standing::Head => parse::run(self, key),
            Standing::Lingering => {
                let conn = self.conn(key);
                conn.input.consume(conn.input.bytes().len());
                self.receive_client(key);
            }
            Standing::Busy => match self.uploading(key) {
                Some(exchange) => fetch::upload(self, exchange, false),
                None => parse::run(self, key),
            },
        }
    }

    fn client_ended(&mut self, key: Key) {
        match self.conn(key).standing {
            Standing::Busy => {
                // A client may end its direction once its request is whole, and wait.
                if let Some(exchange) = self.uploading(key) {
                    fetch::client_ended(self, exchange);
                }
            }
            _ => self.close_conn(key),
        }
    }

    /// The exchange that waits for bytes of this client. It can only be the first: one with a body
    /// is not begun beside others.
    fn uploading(&mut self, key: Key) -> Option<Key> {
        let first = self.conn(key).first?;
        (self.exchange(first).upload.waits() == Waits::Source).then_some(first)
    }

    fn client_broke(&mut self, key: Key) {
        match self.conn(key).first {
            Some(exchange) => deliver::abort(self, exchange, Reason::ClientClosed),
            None => self.close_conn(key),
        }
    }

    pub(crate) fn client_sent(&mut self, key: Key, result: Result<(), Error>) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.sending = false;
        if let Some(exchange) = conn.first {
            deliver::download_sent(self, exchange, result);
        }
    }

    pub(crate) fn client_spliced(&mut self, key: Key, result: Result<usize, Error>) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.sending = false;
        if let Some(exchange) = conn.first {
            deliver::download_spliced(self, exchange, result);
        }
    }

    /// A connection's timer is due. It may have been set before the present wait began.
    pub(crate) fn client_deadline(&mut self, key: Key) {
        let Self { engine, conns, snapshot, snapshots, .. } = self;
        let (now, check) = (engine.now(), snapshots.client_check);
        let conn = conns.get(key).expect("a timer ends with its connection");
        let (timer, standing, first) = (conn.timer, conn.standing, conn.first);
        match conn.deadline(snapshot.limits()) {
            Some(deadline) if deadline <= now => {
                if matches!(standing, Standing::Fresh | Standing::Head) {
                    parse::time_out(self, key);
                    if self.conns.get(key).is_some() {
                        self.timers.set(timer, now + check);
                    }
                } else {
                    self.close_conn(key);
                }
            }
            Some(deadline) => self.timers.set(timer, deadline.min(now + check)),
            None => {
                self.timers.set(timer, now + check);
                let exchange = first.expect("only a busy connection has no deadline");
                self.check_client_pace(exchange, key, now);
            }
        }
    }

    /// Ends an exchange that has waited too long for its client.
    fn check_client_pace(&mut self, exchange_key: Key, conn_key: Key, now: Instant) {
        let Self { engine, exchanges, conns, snapshots, timers, .. } = self;
        let exchange = exchanges.get_mut(exchange_key).expect("its connection is busy with it");
        let conn = conns.get(conn_key).expect("looked at just now");
        let limits = exchange.snapshot().limits();
        let rate = limits.rate_bytes_per_second;
        let [tunnel_idle, body, send, answer] =
            [limits.tunnel_idle_ms, limits.body_ms, limits.send_ms, limits.answer_ms]
                .map(Duration::from_millis);
        if exchange.tunnel {
            let since = exchange.upload.since().max(exchange.download.since());
            let deadline = since + tunnel_idle;
            if deadline <= now {
                deliver::abort(self, exchange_key, Reason::TunnelIdle);
            } else {
                timers.set(conn.timer, deadline.min(now + snapshots.client_check));
            }
            return;
        }
        let unsent = engine.unsent(&conn.fd) + exchange.download.in_pipe();
        let mut next = now + snapshots.client_check;
        if exchange.upload.waits() == Waits::Source && !exchange.waits_for_continue() {
            if !exchange.upload.keeps_pace(now, body, rate, 0) {
                return fetch::fail(self, exchange_key, Reason::BodyTimedOut);
            }
            next = next.min(exchange.upload.deadline(body));
        }
        if exchange.download.waits() == Waits::Sink {
            if !exchange.download.keeps_pace(now, send, rate, unsent) {
                return deliver::abort(self, exchange_key, Reason::ClientTimedOut);
            }
            next = next.min(exchange.download.deadline(send));
        } else if conn.sending {
            // An interim answer is on its way.
            let deadline = exchange.transaction.since + send;
            if deadline <= now {
                return deliver::abort(self, exchange_key, Reason::ClientTimedOut);
            }
            next = next.min(deadline);
        }
        if exchange.download.waits() == Waits::Source
            && let Some(kept) = &mut exchange.caching.kept
        {
            let deadline = kept.stands_since(now) + answer;
            if deadline <= now {
                return deliver::look_again(self, exchange_key);
            }
            next = next.min(deadline);
        }
        self.timers.set(conn.timer, next);
    }

    /// An exchange has ended well: on to the one after it, or to the next request, which may be
    /// there already.
    pub(crate) fn resume_conn(&mut self, key: Key) {
        let now = self.engine.now();
        match self.conn(key).first {
            Some(next) => flow::resume(self, next),
            None => self.conn(key).stand(Standing::Idle, now),
        }
        if self.conns.get(key).is_some() {
            parse::run(self, key);
        }
        let Self { engine, conns, .. } = self;
        if let Some(conn) = conns.get_mut(key) {
            conn.input.settle(engine);
        }
    }

    /// Ends the exchanges that were begun ahead, on a connection that can deliver nothing more.
    fn drop_exchanges(&mut self, key: Key) {
        while let Some(exchange) = self.conn(key).first {
            log::end(self, exchange, Reason::ClientClosed);
        }
    }

    /// Nothing more is said, but the client may still be sending: it is read until it ends, so that
    /// no reset overtakes the answer.
    pub(crate) fn linger_conn(&mut self, key: Key) {
        self.drop_exchanges(key);
        let now = self.engine.now();
        let linger = Duration::from_millis(self.snapshot.limits().linger_ms);
        if self.conn(key).ended || linger.is_zero() {
            self.close_conn(key);
            return;
        }
        let Self { engine, conns, timers, .. } = self;
        let conn = conns.get_mut(key).expect("the caller's connection is open");
        conn.stand(Standing::Lingering, now);
        conn.input.clear(engine);
        engine.shutdown(&conn.fd, HowToShut::Write);
        timers.set(conn.timer, now + linger);
        self.receive_client(key);
    }

    /// Closes a connection that serves no exchange.
    pub(crate) fn close_conn(&mut self, key: Key) {
        let conn = self.remove_conn(key);
        self.engine.close(conn.fd);
    }

    /// Closes a connection that serves no exchange so that its client sees that it broke.
    pub(crate) fn reset_conn(&mut self, key: Key) {
        let conn = self.remove_conn(key);
        self.engine.reset(conn.fd);
    }

    fn remove_conn(&mut self, key: Key) -> Conn {
        self.drop_exchanges(key);
        origin::client_left(self, key);
        let mut conn = self.conns.remove(key).expect("the caller's connection is open");
        conn.input.clear(&mut self.engine);
        self.timers.remove(conn.timer);
        self.snapshots.note_left(conn.listener);
        self.clients.leave(conn.counted_as);
        conn
    }
}

/// The most that is received of a client at once.
const RECEIVE_MAX: usize = 16 * 1024;
