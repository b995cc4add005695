//! A worker: one thread's loop, tables and pools, over whichever engine. It gives completions to
//! the object that waited for them, through `client_side.rs` and `origin_side.rs`, reads letters,
//! and drains. What it does now and then is `house.rs`, room `room.rs`.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millrace_event::{
    Completion, Engine, Event, Inbox, Instant, Key, Kind, Mail, Table, Timers, Token, Wake,
};

use millrace_cache::Cache;
use millrace_splice::limits::PIPES_MAX;
use millrace_splice::{Pipes, Thresholds};

use crate::accepting::Accepting;
use crate::auth::{self, Desk, Gate};
use crate::board::Board;
use crate::caching::Collapsed;
use crate::clients::{AllClients, Clients};
use crate::config::Config;
use crate::conn::{Conn, Standing};
use crate::counters::{Counters, Requests};
use crate::exchange::Exchange;
use crate::fill::Fill;
use crate::house::HOUSEKEEPING;
use crate::letter::Letter;
use crate::names::{Names, Sources};
use crate::origin::{self, Attempt, Bound, Origins, Waiting};
use crate::reason::Reason;
use crate::record::Dates;
use crate::refresh;
use crate::room::Room;
use crate::snapshot::Snapshot;
use crate::snapshots::Snapshots;
use crate::stage::{accept, deliver, fetch};

/// What a worker is made of, beside its engine.
pub struct Setup<E: Engine> {
    /// The first snapshot.
    pub config: Arc<Config>,
    /// This worker's number, from 0.
    pub index: usize,
    /// Listening sockets: the listener's number, and the socket.
    pub listeners: Vec<(u16, E::Detached)>,
    /// Letters from the supervisor.
    pub inbox: Inbox<Letter<E::Detached>, E::Waker>,
    /// Letters to and from the other workers.
    pub mail: Mail<Letter<E::Detached>, E::Waker>,
    /// What all workers share.
    pub shared: Arc<Shared>,
    /// Where names are looked up.
    pub names: Arc<Sources>,
    /// Where passwords are compared.
    pub desk: Desk<E::Waker>,
    /// Descriptors that this worker may open: for clients and for origins, whoever comes first, but
    /// an eighth is never for clients.
    pub descriptors: u64,
    /// From how many bytes on bodies are spliced.
    pub thresholds: Thresholds,
}

/// What all workers of a process share.
#[derive(Debug)]
pub struct Shared {
    /// One a worker.
    pub counters: Vec<Arc<Counters>>,
    /// The name of this process in Via; no other process in the network should have it.
    pub pseudonym: Arc<str>,
    /// The system's congestion control, where `auto` differs from it: it is not
    /// [`crate::congestion::NEAR`], and the kernel has that as well.
    pub system_congestion: Option<Arc<str>>,
    /// Says something once to whoever operates the process.
    pub notice: fn(&str),
    /// How the origins stand.
    pub board: Board,
    /// Requests of the services, counted by status.
    pub requests: Requests,
    /// What is stored, if anything is.
    pub cache: Option<Arc<Cache>>,
    pub(crate) all_clients: AllClients,
    /// The operator was told that accepting pauses.
    pub(crate) said_pause: AtomicBool,
}

impl Shared {
    /// For `workers` workers.
    pub fn new(
        workers: usize,
        pseudonym: String,
        system_congestion: Option<Arc<str>>,
        cache: Option<Arc<Cache>>,
        notice: fn(&str),
    ) -> Arc<Self> {
        Arc::new(Self {
            counters: (0..workers).map(|_| Arc::default()).collect(),
            pseudonym: pseudonym.into(),
            system_congestion,
            notice,
            board: Board::new(workers),
            requests: Requests::default(),
            cache,
            all_clients: AllClients::default(),
            said_pause: AtomicBool::new(false),
        })
    }
}

/// The most pipes that each of `workers` opens, which may open so many descriptors.
pub fn pipes_max(thresholds: &Thresholds, workers: u64, descriptors: u64) -> u64 {
    match *thresholds {
        Thresholds::COPY => 0,
        _ => (PIPES_MAX as u64 / workers).min(descriptors / 32),
    }
}

/// One worker.
pub struct Worker<E: Engine> {
    pub(crate) engine: E,
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<Counters>,
    /// The one in force.
    pub(crate) snapshot: Rc<Snapshot>,
    pub(crate) snapshots: Snapshots,
    pub(crate) conns: Table<Conn>,
    pub(crate) exchanges: Table<Box<Exchange>>,
    pub(crate) attempts: Table<Attempt>,
    pub(crate) fills: Table<Fill>,
    /// Exchanges without a client.
    pub(crate) refreshes: usize,
    /// Fills that found no memory.
    pub(crate) starved: Vec<Key>,
    /// Those of this worker who were woken and have not gone on yet.
    pub(crate) woken_here: VecDeque<Token>,
    /// Others' that their mailbox had no room for, by worker.
    pub(crate) late_wakes: Vec<(u16, Token)>,
    pub(crate) collapsed: Collapsed,
    pub(crate) waiting: Waiting,
    pub(crate) origins: Origins,
    pub(crate) bound: Bound,
    pub(crate) names: Names<Key>,
    pub(crate) gate: Gate<E::Waker>,
    pub(crate) timers: Timers,
    pub(crate) clients: Clients,
    pub(crate) accepting: Accepting,
    pub(crate) room: Room,
    pub(crate) pipes: Pipes,
    /// What the counter of refused pipes stood at when this worker began.
    pub(crate) pipes_refused_before: u64,
    pub(crate) mail: Mail<Letter<E::Detached>, E::Waker>,
    pub(crate) inbox: Inbox<Letter<E::Detached>, E::Waker>,
    /// Somebody has put letters into a mailbox, and said so.
    woken: bool,
    /// Letters that were taken out and not read yet.
    pub(crate) letters: VecDeque<Letter<E::Detached>>,
    /// Ended exchanges, for the memory of their heads.
    #[expect(clippy::vec_box, reason = "they go back and forth between here and the table")]
    spare: Vec<Box<Exchange>>,
    /// The head being written.
    pub(crate) out: Vec<u8>,
    /// Access log records not given to the engine yet.
    pub(crate) records: Vec<u8>,
    pub(crate) dates: Dates,
    pub(crate) draining: bool,
    /// How long a client may be idle before a drain closes it.
    pub(crate) idle_grace: Duration,
    /// When housekeeping is due, if there is any.
    pub(crate) housekeeping: Option<Instant>,
    pub(crate) connections_max: usize,
    /// Descriptors for clients and origins.
    pub(crate) descriptors: usize,
    /// The same at the start, with so many listeners.
    pub(crate) descriptors_at_start: usize,
    pub(crate) listeners_at_start: usize,
}

impl<E: Engine> Worker<E> {
    /// A worker that listens from its first turn on.
    ///
    /// # Errors
    /// When the engine cannot take a listener over.
    pub fn new(engine: E, setup: Setup<E>) -> Result<Self, millrace_event::Error> {
        let workers = setup.shared.counters.len() as u64;
        let limits = &setup.config.limits;
        // A pipe takes two descriptors, which are set aside.
        let pipes_max = pipes_max(&setup.thresholds, workers, setup.descriptors);
        let descriptors = setup.descriptors - 2 * pipes_max;
        let descriptors = descriptors.clamp(2, u64::from(Token::SLOT_MAX)) as u32;
        let mut origins = Origins::new(descriptors, &setup.thresholds);
        origins.worker = setup.index;
        let names = Names::new(setup.names, limits, engine.now());
        let now = engine.now();
        let snapshot = Rc::new(Snapshot::new(setup.config, now, &mut origins, &setup.shared));
        origins.begin_counting();
        setup.mail.set_wake(&engine.waker());
        setup.inbox.set_wake(engine.waker());
        let gate = Gate::new(setup.desk);
        gate.set_wake(engine.waker());
        let pipes_refused_before = setup.shared.counters[setup.index].pipes_refused.get();
        let mut worker = Self {
            index: setup.index,
            counters: setup.shared.counters[setup.index].clone(),
            shared: setup.shared,
            snapshots: Snapshots::new(&snapshot),
            snapshot,
            // Their bounds follow the limits.
            conns: Table::new(0),
            exchanges: Table::new(0),
            attempts: Table::new(descriptors),
            fills: Table::new(descriptors),
            refreshes: 0,
            starved: Vec::new(),
            woken_here: VecDeque::new(),
            late_wakes: Vec::new(),
            collapsed: Collapsed::new(),
            waiting: Waiting::new(),
            origins,
            bound: Bound::new(),
            names,
            gate,
            timers: Timers::new(now),
            clients: Clients::default(),
            accepting: Accepting::new(),
            room: Room::default(),
            pipes: Pipes::new(pipes_max as usize, setup.thresholds),
            pipes_refused_before,
            mail: setup.mail,
            inbox: setup.inbox,
            woken: false,
            letters: VecDeque::new(),
            spare: Vec::new(),
            out: Vec::new(),
            records: Vec::new(),
            dates: Dates::new(),
            draining: false,
            idle_grace: Duration::ZERO,
            housekeeping: None,
            connections_max: 0,
            descriptors: 0,
            descriptors_at_start: descriptors as usize,
            listeners_at_start: setup.listeners.len(),
            engine,
        };
        for (number, socket) in setup.listeners {
            worker.take_listener(number, socket)?;
        }
        worker.follow_limits();
        worker.follow_snapshots();
        worker.accepting.resume(&mut worker.engine);
        // Letters may have come before there was anybody to wake.
        worker.engine.waker().wake();
        Ok(worker)
    }

    /// One turn: waits for completions, handles each, then timers, letters and housekeeping. False
    /// once the worker has drained and has nothing left.
    pub fn turn(&mut self) -> bool {
        let (names, cache) = (self.names.next_deadline(), self.cache_deadline());
        let deadline = [self.timers.next(), names, self.housekeeping, cache];
        self.engine.turn(deadline.into_iter().flatten().min());
        while let Some(completion) = self.engine.next() {
            self.handle(completion);
        }
        let now = self.engine.now();
        while let Some((_, token)) = self.timers.expired(now) {
            match token.kind() {
                Kind::Client => self.client_deadline(token.into()),
                Kind::Origin => self.origin_deadline(token.into()),
                Kind::Dial => origin::handle_deadline(self, token.into()),
                kind => unreachable!("{kind:?} has no timer here"),
            }
        }
        self.names.handle_deadlines(&mut self.engine, now);
        self.finish_names();
        if std::mem::take(&mut self.woken) {
            self.read_letters();
        }
        if self.shared.cache.is_some() {
            self.tend_cache(now);
        }
        auth::read_verdicts(self);
        origin::serve_waiting(self);
        if self.origins.queued() > 0 {
            origin::serve_lines(self);
        }
        self.mail.flush();
        self.keep_house(now);
        let is_empty = self.conns.is_empty() && self.fills.is_empty();
        !(self.draining && is_empty && self.accepting.has_ended())
    }

    /// Objects in use: client connections, exchanges, origin connections, attempts. All are zero
    /// after a drain, idle origin connections apart.
    pub fn live(&self) -> [usize; 4] {
        [
            self.conns.len(),
            self.exchanges.len() - self.refreshes,
            self.origins.connections.len() - self.origins.idle_count(),
            self.attempts.len(),
        ]
    }

    /// Ends what a drained worker still holds, and gives its engine back.
    pub fn finish(mut self) -> E {
        // Those that have clients have ended: what is left are refreshes.
        let refreshes: Vec<Key> = self.exchanges.iter().map(|(key, _)| key).collect();
        for key in refreshes {
            refresh::end(&mut self, key);
        }
        while let Some(key) = self.origins.oldest_idle() {
            self.close_origin(key);
        }
        self.end_fills();
        // Others may wait for what ends here.
        self.mail.flush();
        self.leave_late();
        self.accepting.end(&mut self.engine);
        self.names.end(&mut self.engine);
        self.pipes.close_free(&mut self.engine);
        self.flush_records();
        self.engine
    }

    fn handle(&mut self, completion: Completion) {
        let key = Key::from(completion.token);
        match (completion.token.kind(), completion.event) {
            (_, Event::Woken) => self.woken = true,
            (Kind::Listener, Event::Accepted(accepted)) => {
                accept::handle(self, key, accepted);
            }
            (Kind::Client, Event::Received(result)) => self.client_received(key, result),
            (Kind::Client, Event::Sent(result)) => self.client_sent(key, result),
            (Kind::Client, Event::Spliced(result)) => self.client_spliced(key, result),
            (Kind::Client, Event::Readable) => self.client_readable(key),
            (Kind::Origin, Event::Received(result)) => self.origin_received(key, result),
            (Kind::Origin, Event::Sent(result)) => self.origin_sent(key, result),
            (Kind::Origin, Event::Spliced(result)) => self.origin_spliced(key, result),
            (Kind::Origin, Event::Readable) => self.origin_readable(key),
            (Kind::Dial, Event::Connected(result)) => origin::handle_connected(self, key, result),
            (Kind::Name, event) => {
                self.names.handle(&mut self.engine, completion.token, event);
                self.finish_names();
            }
            (kind, event) => unreachable!("no {kind:?} asks for what gives {event:?}"),
        }
    }

    fn finish_names(&mut self) {
        while let Some((exchange, result)) = self.names.poll_finished() {
            fetch::named(self, exchange, result);
        }
    }

    fn read_letters(&mut self) {
        let Self { inbox, mail, letters, .. } = self;
        // First the supervisor's: what the others send may follow from them.
        letters.extend(inbox.drain());
        mail.drain(|_, letter| letters.push_back(letter));
        let mut early = Vec::new();
        while let Some(letter) = self.letters.pop_front() {
            match letter {
                Letter::Configure { config, sockets } => {
                    self.configure(config, sockets);
                    self.letters.extend(early.drain(..));
                }
                Letter::Connection { snapshot, .. } if snapshot > self.snapshot.config.number => {
                    early.push(letter);
                }
                Letter::Drain => self.drain(),
                Letter::Cede => self.cede(),
                Letter::Rearm => self.rearm(),
                Letter::Beat => self.counters.beats.add(1),
                Letter::Stop => self.stop(),
                Letter::Wake(token) => self.woken_here.push_back(token),
                Letter::Connection { socket, peer, listener, counted, .. } => {
                    drop(counted);
                    if let Ok(fd) = self.engine.adopt(socket) {
                        accept::admit(self, fd, peer, listener);
                    }
                }
            }
        }
        self.letters.extend(early);
    }

    /// Ends what is idle, takes in what the listeners still have queued, and then accepts no more;
    /// what is under way is finished.
    pub fn drain(&mut self) {
        self.draining = true;
        self.accepting.resume(&mut self.engine);
        self.housekeeping = Some(self.engine.now() + HOUSEKEEPING);
        self.close_idle();
    }

    /// As [`Worker::drain`], while a successor accepts from the same listeners.
    fn cede(&mut self) {
        self.draining = true;
        self.idle_grace = CEDED_IDLE_AT_LEAST;
        self.accepting.pause(&mut self.engine);
        self.housekeeping = Some(self.engine.now() + HOUSEKEEPING);
    }

    /// Arms the listeners anew, which looks at the queues behind them. The kernel tells only one
    /// of those who wait for a listener of a connection (EPOLLEXCLUSIVE), and that one may be gone.
    fn rearm(&mut self) {
        if !self.draining && self.accepting.pause(&mut self.engine) {
            self.accepting.resume(&mut self.engine);
        }
    }

    /// Closes the connections that no request is to be expected on.
    pub(crate) fn close_idle(&mut self) {
        let (now, grace) = (self.engine.now(), self.idle_grace);
        let is_idle = |conn: &Conn| is_idle(conn, now) && now.since(conn.since) >= grace;
        let idle = self.conns.iter().filter(|(_, conn)| is_idle(conn));
        let keys: Vec<Key> = idle.map(|(key, _)| key).collect();
        for key in keys {
            self.close_conn(key);
        }
    }

    /// Breaks off everything.
    fn stop(&mut self) {
        self.draining = true;
        self.accepting.end(&mut self.engine);
        let keys: Vec<Key> = self.conns.iter().map(|(key, _)| key).collect();
        for key in keys {
            match self.conns.get(key).map(|conn| conn.first) {
                Some(Some(exchange)) => deliver::abort(self, exchange, Reason::Draining),
                Some(None) => self.close_conn(key),
                None => {}
            }
        }
    }

    /// Takes an ended exchange back, for the memory of its heads.
    pub(crate) fn spare(&mut self, mut exchange: Box<Exchange>) {
        exchange.upload.abandon(&mut self.engine, &mut self.pipes);
        exchange.download.abandon(&mut self.engine, &mut self.pipes);
        let heads = exchange.request.bytes().len() + exchange.answer.bytes().len();
        if self.spare.len() < SPARE_MAX && heads <= SPARE_BYTES_MAX {
            exchange.reset();
            self.spare.push(exchange);
        }
    }

    /// An exchange as new.
    pub(crate) fn new_exchange(&mut self) -> Box<Exchange> {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// Descriptors that this worker may open.
    pub(crate) fn descriptors(&self) -> usize {
        self.descriptors
    }
}

/// Whether a connection waits for a request that may never come. One that has only just been
/// accepted does not: its first request is on its way.
pub(crate) fn is_idle(conn: &Conn, now: Instant) -> bool {
    conn.standing == Standing::Idle || (conn.is_idle() && now.since(conn.since) >= FRESH_AT_LEAST)
}

/// How long a worker that has ceded its listeners lets a client be idle. The next answer tells the
/// client to go; one that is closed while it sends a request has lost it.
const CEDED_IDLE_AT_LEAST: Duration = Duration::from_secs(5);
/// How long a connection without a byte counts as one whose request is on its way.
const FRESH_AT_LEAST: Duration = Duration::from_secs(1);
/// Ended exchanges kept, and the heads above which one is not.
const SPARE_MAX: usize = 256;
const SPARE_BYTES_MAX: usize = 16 * 1024;
/// Connections that an engine may have accepted before it heard that accepting pauses.
pub(crate) const ACCEPTED_AHEAD_MAX: u32 = 1024;
