//! KeepCopy by tee(2): what comes goes through a pipe to the client that asked, as if nobody stored
//! it, and what a second pipe refers to, which are the same pages, is read into the cache. So what
//! is stored is copied once, and what is sent is not (docs/design/bodies.md).
//!
//! That goes at the client's pace. So it lasts only while this client is the one reader, and takes
//! each pipe-full soon; from then on the body is received into the cache, whoever reads it.

use std::time::Duration;

use millrace_engine::{Engine, Instant, Key, Table};
use millrace_splice::limits::PIPE_BYTES;
use millrace_splice::{Course, Fill as Filled, Pipe, Pipes, Plan, Thresholds};

use crate::cached::fill::{DIRECT_BYTES, Fill, Outcome};
use crate::conn::Conn;
use crate::exchange::Exchange;
use crate::origin::OriginConn;
use crate::transfer::Waits;
use crate::transfer::body_progress::Rest;

/// The one who asked for a body, as long as it gets that through a pipe.
#[derive(Debug)]
pub(crate) struct Asker {
    exchange: Key,
    course: Course,
    thresholds: Thresholds,
    /// Whether the body's length is not known: then what is certain to come is a part of it.
    of_parts: bool,
    /// Since when the fill waits for it to take what came before; `None` while it does not.
    behind_since: Option<Instant>,
}

/// How the one who asked stands to what has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It has taken all of it.
    Ready,
    /// It has not; it will, or leave, and the fill is woken.
    Behind,
    /// It is served from the cache from now on, like others.
    Apart,
}

impl Asker {
    /// Who asked for a body; `None` where it is so short that it is copied twice for less. Of one
    /// whose length is not known each chunk is looked at when it comes.
    pub(crate) fn new(exchange: Key, rest: &Rest, thresholds: Thresholds) -> Option<Self> {
        let is_large = match rest {
            Rest::Nothing => false,
            Rest::Length(rest) => thresholds.tees(*rest),
            Rest::Chunked(_) | Rest::UntilClose => thresholds.tees(u64::MAX),
        };
        let of_parts = !matches!(rest, Rest::Length(_));
        let course = Course::new(true);
        let asker = Self { exchange, course, thresholds, of_parts, behind_since: None };
        is_large.then_some(asker)
    }

    /// From so many bytes on that are certain to come they are not received by the engine.
    pub(crate) fn direct_min(&self) -> u64 {
        self.thresholds.tee_min.min(DIRECT_BYTES)
    }

    fn standing(&self, fill: &Fill, exchanges: &Table<Box<Exchange>>) -> Standing {
        let Some(exchange) = exchanges.get(self.exchange) else { return Standing::Apart };
        let Some(reader) = &exchange.caching.reader else { return Standing::Apart };
        if !fill.filling.is_kept() || fill.filling.readers() != 1 || !reader.is_of_all() {
            return Standing::Apart;
        }
        let is_ready = exchange.download.waits() == Waits::Source && reader.has_all_that_came();
        if is_ready { Standing::Ready } else { Standing::Behind }
    }
}

impl Fill {
    /// Whether the client that caused the fill has kept it waiting for too long.
    pub(super) fn waits_for_slow_asker(&self, now: Instant) -> bool {
        let since = self.asker.as_ref().and_then(|asker| asker.behind_since);
        since.is_some_and(|since| now.since(since) >= PATIENCE)
    }

    /// Whether the next `rest` bytes go to who asked through a pipe.
    pub(crate) fn asker_stands(
        &mut self,
        exchanges: &Table<Box<Exchange>>,
        rest: u64,
        now: Instant,
    ) -> Standing {
        let Some(mut asker) = self.asker.take() else { return Standing::Apart };
        let standing = asker.standing(self, exchanges);
        if standing == Standing::Apart {
            return standing;
        }
        let is_small = asker.of_parts && !asker.thresholds.tees(rest);
        let is_apart =
            is_small || asker.course.plan(Some(rest), false, &asker.thresholds) == Plan::Copy;
        asker.behind_since = match standing {
            Standing::Behind if !is_apart => asker.behind_since.or(Some(now)),
            _ => None,
        };
        self.asker = Some(asker);
        if is_apart { Standing::Apart } else { standing }
    }

    /// Notes how much one receive into the cache brought, while the client waits for more.
    pub(crate) fn note_received(&mut self, count: usize) {
        if let Some(asker) = &mut self.asker {
            asker.course.received(count, &asker.thresholds);
        }
    }

    /// Moves what the socket has to who asked, which has taken all that came before, and into the
    /// cache; gives how many bytes of the body those are.
    pub(crate) fn tee<E: Engine>(
        &mut self,
        mut way: Way<'_, E>,
        now_ms: u64,
    ) -> Result<usize, Outcome> {
        let rest = self.rest.known().unwrap_or(u64::MAX).min(PIPE_BYTES as u64) as usize;
        let spare = self.filling.spare(now_ms).map_err(|_| Outcome::NoRoom)?;
        let max = spare.len().min(rest);
        let Some([mut pipe, mut aside]) = take_two(way.engine, way.pipes) else {
            self.asker = None;
            return Ok(0);
        };
        let count = match way.connection.wire.fill(way.engine, &mut pipe, max) {
            Filled::Bytes(count) => count,
            filled => {
                way.pipes.give(way.engine, pipe);
                way.pipes.give(way.engine, aside);
                return self.not_filled(filled);
            }
        };
        let copied = pipe.copy(way.engine, &mut aside, spare);
        way.pipes.give(way.engine, aside);
        let asker = self.asker.as_mut().expect("the caller has looked how it stands");
        asker.course.filled(count, max, &asker.thresholds);
        match copied {
            Ok(true) => way.send(asker.exchange, pipe),
            // Who asked is told of what came like other readers.
            Ok(false) => way.pipes.give(way.engine, pipe),
            Err(_) => {
                way.pipes.give(way.engine, pipe);
                return Err(Outcome::Cut);
            }
        }
        self.rest.skip(count as u64);
        self.bytes += count as u64;
        Ok(count)
    }

    fn not_filled(&mut self, filled: Filled) -> Result<usize, Outcome> {
        match filled {
            Filled::Nothing => Err(Outcome::Watch),
            Filled::Break(_) => Err(Outcome::Cut),
            // A receive finds out what no pipe takes.
            Filled::End | Filled::Bytes(_) => {
                self.asker = None;
                Ok(0)
            }
        }
    }
}

/// What of a worker bytes pass on their way from an origin to who asked.
pub(crate) struct Way<'a, E: Engine> {
    pub(crate) engine: &'a mut E,
    pub(crate) pipes: &'a mut Pipes,
    pub(crate) connection: &'a mut OriginConn,
    pub(crate) exchanges: &'a mut Table<Box<Exchange>>,
    pub(crate) conns: &'a mut Table<Conn>,
}

impl<E: Engine> Way<'_, E> {
    /// Sends what is in the pipe to who asked, which finds it nowhere else.
    fn send(&mut self, key: Key, pipe: Pipe) {
        let exchange = self.exchanges.get_mut(key).expect("it waits for the source");
        let conn = exchange.conn.and_then(|conn| self.conns.get_mut(conn));
        let conn = conn.expect("an exchange with a reader has a client");
        if let Some(reader) = &mut exchange.caching.reader {
            reader.skip(pipe.filled());
        }
        exchange.download.pump_pipe(self.engine, pipe, &mut conn.wire);
    }
}

fn take_two<E: Engine>(engine: &mut E, pipes: &mut Pipes) -> Option<[Pipe; 2]> {
    let pipe = pipes.take(engine)?;
    match pipes.take(engine) {
        Some(aside) => Some([pipe, aside]),
        None => {
            pipes.give(engine, pipe);
            None
        }
    }
}

/// How long a fill waits for a pipe-full to be taken, looked at each 100 ms: whoever takes less than
/// 10 Mbit/s has the body wait in the cache's memory.
const PATIENCE: Duration = Duration::from_millis(100);
