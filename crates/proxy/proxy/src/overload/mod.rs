//! Room: descriptors, connections and memory, and who has to go when they run short.
//!
//! A worker that is short of room closes the client connections that have stood still longest, and
//! only as many as it needs. An attacker's weapon is standing still: a head that drips, an answer
//! that nobody reads. So those who wait longest for no more than their own bytes make room for
//! those who come, long before any deadline is over; a client whose requests and answers move is
//! never the one that has stood still longest. While nobody is short, nobody is closed.

pub(crate) mod per_client;
pub(crate) mod wait_list;

use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_engine::{Engine, Instant, Key};

use crate::conn::{Conn, Standing};
use crate::exchange::Exchange;
use crate::exchange::reason::Reason;
use crate::origin::side::RECEIVE_AHEAD_MAX;
use crate::overload::wait_list::Waiter;
use crate::stage::{deliver, fetch};
use crate::transfer::Waits;
use crate::worker::Worker;

impl<E: Engine> Worker<E> {
    /// Whether an exchange may begin beside others of its connection. Those that begin alone always
    /// have room: there is one for each connection even when this many were begun ahead. What
    /// arrives for those ahead takes at most a quarter of the budget, or the ones before them could
    /// not be received any more.
    pub(crate) fn has_room_ahead(&self) -> bool {
        let budget = self.engine.budget();
        let count = self.exchanges.len() - self.refreshes;
        count < self.connections_max()
            && count < budget.max() / (8 * RECEIVE_AHEAD_MAX)
            && budget.used() < budget.max() / 2
    }

    /// Origin connections that may be opened beside all that is open. Kept ones can make room for
    /// others.
    pub(crate) fn room_for_origins(&self) -> usize {
        let open = self.clients() + self.origins.connections.len() + self.attempts.len();
        self.descriptors().saturating_sub(open)
    }

    /// Whether a further client may be accepted.
    pub(crate) fn has_room_for_clients(&self) -> bool {
        self.clients() < self.connections_max() && self.taken() < self.descriptors_for_clients()
    }

    /// The most descriptors that clients may take: the others are for origins.
    pub(crate) fn descriptors_for_clients(&self) -> usize {
        self.descriptors() * 7 / 8
    }

    /// Client connections: the admitted ones, and those that other workers have handed over.
    fn clients(&self) -> usize {
        // Relaxed: a bound of admission, on which no other memory depends.
        self.conns.len() + self.counters.handed_over.load(Ordering::Relaxed)
    }

    /// Descriptors that clients have taken. Those who are served hold an origin connection each, or
    /// soon will: they count twice. Kept origin connections make room for whoever comes.
    fn taken(&self) -> usize {
        let in_use = self.origins.connections.len() - self.origins.idle_count();
        self.clients() + in_use + self.attempts.len()
    }

    /// A client came: kept origin connections, and then those who stand still, make room for the
    /// next one. Accepting pauses where that is not enough.
    pub(crate) fn make_room_for_clients(&mut self) {
        if self.room_for_origins() == 0
            && let Some(oldest) = self.origins.oldest_idle()
        {
            self.close_origin(oldest);
        }
        if !self.has_room_for_clients() {
            // Once a turn: whoever did not stand still a moment ago does not now.
            let now = self.engine.now();
            if self.room.shed_at.replace(now) != Some(now) {
                self.shed(0);
            }
            if self.is_short(0) {
                self.pause_accepting("the limit of connections is reached");
            }
        }
    }

    /// Stops accepting until there is room again, and says so once.
    pub(crate) fn pause_accepting(&mut self, why: &str) {
        if self.accepting.pause(&mut self.engine) {
            self.counters.accept_pauses.add(1);
        }
        // Pairs with itself: whichever worker comes first says it.
        if !self.shared.said_pause.swap(true, Ordering::Relaxed) {
            (self.shared.notice)(&format!(
                "accepting pauses: {why}; connections that stand still are closed"
            ));
        }
    }

    /// Whether so much memory is held that those who hold it without moving have to let go.
    pub(crate) fn is_short_of_memory(&self) -> bool {
        let budget = self.engine.budget();
        budget.used() > budget.max() / 8 * 7
    }

    /// Whether a client that goes makes room for the request. While as many lookups are under way
    /// as may be, it is no descriptor that one more waits for.
    fn is_helped(&self, waiter: &Waiter) -> bool {
        waiter.wants_connection() || !self.names.is_full()
    }

    /// The requests in line that it does so for.
    fn helped(&self) -> impl Iterator<Item = &Waiter> {
        self.waiting.iter().filter(|waiter| self.is_helped(waiter))
    }

    /// Whether clients or requests wait for room, or memory for those who hold it to let go.
    pub(crate) fn lacks_room(&self) -> bool {
        // One that drains accepts no more than it had to.
        let keeps_clients_waiting = self.accepting.is_paused() && !self.draining;
        keeps_clients_waiting
            || self.helped().next().is_some()
            || self.is_short_of_memory()
            || self.memory_missed() != self.room.memory_missed
    }

    /// Times that a body found no memory in the cache, in any worker.
    fn memory_missed(&self) -> u64 {
        self.shared.cache.as_ref().map_or(0, |cache| cache.memory_missed())
    }

    /// Sees to it now and then that those who wait for room get some.
    pub(crate) fn look_for_room(&mut self) {
        if self.lacks_room() {
            self.room.forgiven.lessen();
            self.shed(self.helped().count());
            self.room.missed.requests = 0;
            let memory_missed = self.memory_missed();
            if std::mem::replace(&mut self.room.memory_missed, memory_missed) != memory_missed {
                self.shed_reader();
            }
        } else {
            self.room.forgiven.recover();
        }
        if self.accepting.is_paused() && !self.draining && self.has_room_for_clients() {
            self.accepting.resume(&mut self.engine);
        }
    }

    /// Makes room for those who found none in this turn. For a request that goes on waiting in line
    /// it is [`Worker::look_for_room`] that has others go: to close one for it in each turn would
    /// close everybody where that does not help, as when the kernel has no memory.
    pub(crate) fn make_up_for_missed(&mut self) {
        let Missed { descriptors, requests } = std::mem::take(&mut self.room.missed);
        if !descriptors && requests == 0 {
            return;
        }
        // Some may have found room since.
        let requests = requests.min(self.helped().count());
        // As many go for clients as where it is we who count none.
        let clients = if descriptors { self.conns.len() / 64 + 1 } else { 0 };
        self.shed(requests.max(clients));
    }

    /// Closes the client connections that have stood still longest: `least`, for those whom the
    /// kernel has no room for, and until a 64th of the room is free again beyond the mark at which
    /// it was missed. To close more at once would keep everybody else waiting for it. An eighth of
    /// the kept origin connections goes first. For memory alone only those go who hold some.
    fn shed(&mut self, least: usize) {
        let (still, mut leaving) = self.who_stands_still();
        let closed = if least > 0 || self.is_short(leaving) { self.close_kept() } else { 0 };
        // Who is leaving and which kept ones were closed makes room as well.
        let least = least.saturating_sub(closed + leaving);
        for (index, (_, key)) in still.into_iter().enumerate() {
            if index >= least && !self.is_short(leaving) {
                if !self.is_short_of_memory() {
                    break;
                }
                if !self.holds_memory(key) {
                    continue;
                }
            }
            self.counters.connections_shed.add(1);
            self.give_up_client(key);
            // One that is told why goes a moment later.
            leaving += usize::from(self.conns.get(key).is_some());
        }
    }

    /// A body has found no memory in the cache. Of the clients that read what is not stored any more
    /// the one that has stood still longest goes: one at a time, as it may have had most of it.
    fn shed_reader(&mut self) {
        let (still, _) = self.who_stands_still();
        if let Some((_, key)) = still.into_iter().find(|(_, key)| self.keeps_cache_memory(*key)) {
            self.counters.connections_shed.add(1);
            self.give_up_client(key);
        }
    }

    /// Whether a client, of whose requests several may be under way, keeps memory of the cache from
    /// being used for others.
    fn keeps_cache_memory(&self, key: Key) -> bool {
        let (Some(cache), Some(conn)) = (&self.shared.cache, self.conns.get(key)) else {
            return false;
        };
        let exchange = |key: Key| self.exchanges.get(key);
        let first = conn.first.and_then(exchange);
        let mut all = std::iter::successors(first, |it| it.next.and_then(exchange));
        all.any(|exchange| exchange.caching.reads_gone(cache))
    }

    /// The clients that have stood still for longer than is forgiven, in the order in which they
    /// have to go; and how many are about to leave by themselves: they have got their last answer,
    /// as one has that was told to go, and are given a moment to read it. After that they are the
    /// first to go, as they lose nothing.
    fn who_stands_still(&self) -> (Vec<(Order, Key)>, usize) {
        let now = self.engine.now();
        let (mut still, mut leaving) = (Vec::new(), 0);
        for (key, conn) in self.conns.iter() {
            let first = conn.first.and_then(|first| self.exchanges.get(first)).map(Box::as_ref);
            let unsent = self.engine.unsent(&conn.fd);
            let Some(stood) = stands_still(conn, first, unsent, now) else { continue };
            let is_over = conn.standing == Standing::Lingering;
            if stood >= self.room.forgiven.0 {
                still.push(((is_over, stood), key));
            } else {
                leaving += usize::from(is_over);
            }
        }
        still.sort_unstable_by_key(|(order, _)| std::cmp::Reverse(*order));
        (still, leaving)
    }

    /// Closes an eighth of the kept origin connections. Gives how many that were.
    fn close_kept(&mut self) -> usize {
        let mut closed = 0;
        for _ in 0..self.origins.idle_count().div_ceil(8) {
            let Some(key) = self.origins.oldest_idle() else { break };
            self.close_origin(key);
            closed += 1;
        }
        closed
    }

    /// Whether less room is left than [`Worker::shed`] makes, when so many `leaving` have gone.
    fn is_short(&self, leaving: usize) -> bool {
        self.clients() - leaving >= self.connections_max() - self.connections_max() / 64
            || self.taken() - leaving >= self.descriptors() * 55 / 64
    }

    /// Whether any of the budget is charged for a client.
    fn holds_memory(&self, key: Key) -> bool {
        self.conns.get(key).is_some_and(|conn| conn.first.is_some() || !conn.input.is_empty())
    }

    /// Ends a connection whose client has stood still.
    fn give_up_client(&mut self, key: Key) {
        let Some(first) = self.conn(key).first else {
            return self.close_conn(key);
        };
        let exchange = self.exchange(first);
        if exchange.upload.waits() == Waits::Source && !exchange.tunnel {
            fetch::fail(self, first, Reason::BodyTimedOut);
        } else {
            deliver::abort(self, first, Reason::Shed);
        }
    }
}

/// How long a connection has stood still for what it is, if that is its client's doing.
fn stands_still(
    conn: &Conn,
    first: Option<&Exchange>,
    unsent: usize,
    now: Instant,
) -> Option<Duration> {
    let (stood, patience) = match (conn.standing, first) {
        (Standing::Busy, Some(exchange)) if exchange.tunnel => {
            let since = exchange.upload.since().max(exchange.download.since());
            (now.since(since), PATIENCE_TUNNEL)
        }
        (Standing::Busy, Some(exchange)) => {
            (keeps_waiting(exchange, unsent, now)?, PATIENCE_SERVED)
        }
        (Standing::Busy, None) => return None,
        (Standing::Fresh, _) => (now.since(conn.since), PATIENCE_SERVED),
        (Standing::Idle, _) => (now.since(conn.since), PATIENCE_IDLE),
        _ => (now.since(conn.since), 1),
    };
    Some(stood / patience)
}

/// How long a client has kept its exchange waiting; `None` while that waits for its origin.
fn keeps_waiting(exchange: &Exchange, unsent: usize, now: Instant) -> Option<Duration> {
    let (upload, download) = (&exchange.upload, &exchange.download);
    if download.waits() == Waits::Sink {
        return download.stands_still(now, PACE, unsent + download.in_pipe());
    }
    let uploads = upload.waits() == Waits::Source && !exchange.waits_for_continue();
    uploads.then(|| upload.stands_still(now, PACE, 0)).flatten()
}

/// Who goes first is the greatest: whether it has got its last answer, and how long it has stood
/// still for what it is.
type Order = (bool, Duration);

/// How a worker stands with room.
#[derive(Default, Debug)]
pub(crate) struct Room {
    pub(crate) forgiven: Forgiven,
    pub(crate) missed: Missed,
    /// When a client that came last made others go.
    shed_at: Option<Instant>,
    /// What [`Worker::memory_missed`] was when room was last looked for.
    memory_missed: u64,
}

/// Who found no room in a turn.
#[derive(Default, Debug)]
pub(crate) struct Missed {
    /// The kernel had no descriptor for a client, though we may count some.
    pub(crate) descriptors: bool,
    /// Requests that began to wait, or whose lookup found no descriptor.
    pub(crate) requests: usize,
}

/// How long a client may stand still though room is short. A shortage that passes harms nobody
/// whose request is on its way, however slow its network is; in one that lasts, as under a flood,
/// ever less is forgiven, and it is the order that counts.
#[derive(Debug)]
pub(crate) struct Forgiven(Duration);

/// What is forgiven while room was not short for long: two round trips around the world. Of those
/// who are being served, never less than the second within which a lost packet is there again, if
/// that one is not lost (RFC 6298): it may be the network that keeps us waiting.
const MOST: Duration = Duration::from_millis(250);
const LEAST: Duration = Duration::from_micros(1_000_000 / PATIENCE_SERVED as u64);

impl Default for Forgiven {
    fn default() -> Self {
        Self(MOST)
    }
}

impl Forgiven {
    /// Room is still short. Asked every 20 ms while it is.
    fn lessen(&mut self) {
        self.0 = (self.0 / 2).max(LEAST);
    }

    /// It is not. Asked every 100 ms.
    fn recover(&mut self) {
        self.0 = (self.0 * 2).min(MOST);
    }

    /// Whether there is nothing to recover.
    pub(crate) fn is_whole(&self) -> bool {
        self.0 == MOST
    }
}

/// How much longer than a head that does not end may stand still: who has only just come, or is
/// being served; who was served and may ask again, and loses nothing if it has to connect anew; a
/// tunnel, silent most of the time.
const PATIENCE_SERVED: u32 = 16;
const PATIENCE_IDLE: u32 = 2;
const PATIENCE_TUNNEL: u32 = 240;
/// A client that takes or sends so many bytes a second does not stand still.
const PACE: u64 = 1024;
