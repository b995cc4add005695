//! The origins that a worker knows, and its connections to them: in use, or kept for the next
//! request to the same place.
//!
//! A connection is kept only when its answer was read to the end, nothing follows it, and nothing
//! ties it to one client. While kept it has a receive outstanding: an end of stream, or bytes that
//! nobody asked for, end it before anyone can be given them.

use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use millrace_event::{Buffer, Fd, Instant, Key, Table, TimerId};

use millrace_http::Host;
use millrace_splice::limits::SPLICE_MIN;

use crate::board::{Board, CheckMark, OriginMark};
use crate::config::Origin;
use crate::input::Input;
use crate::origin::rules::RuleSets;
use crate::origin::{Change, EjectRules, Health, Rules, RulesId, Trial};
use crate::snapshot::Snapshot;

/// An origin by its index in the worker's table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OriginId(u32);

/// Where an origin is, as configured or asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// A name in lower case, with a dot at its end if no search list applies to it, and a port.
    Name(Box<[u8]>, u16),
    Address(SocketAddr),
    Unix(Arc<std::path::Path>),
}

impl From<&Origin> for Place {
    fn from(origin: &Origin) -> Self {
        match origin {
            Origin::Tcp { host, port } => match host.parse::<IpAddr>() {
                Ok(ip) => Self::Address(SocketAddr::new(ip, *port)),
                Err(_) => Self::Name(host.as_bytes().to_ascii_lowercase().into(), *port),
            },
            Origin::Unix(path) => Self::Unix(path.clone()),
        }
    }
}

/// What an origin connection does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// Kept; since when is in the pool's order.
    Idle,
    /// Serves this exchange.
    Busy(Key),
}

/// One open connection to an origin.
#[derive(Debug)]
pub(crate) struct OriginConn {
    pub(crate) fd: Fd,
    pub(crate) input: Input,
    pub(crate) origin: OriginId,
    /// Where it leads; `None`: to a Unix socket.
    pub(crate) address: Option<SocketAddr>,
    pub(crate) used_for: Use,
    /// The client connection that it is bound to, if any: no other is served on it.
    pub(crate) owner: Option<Key>,
    pub(crate) timer: TimerId,
    /// When it was last kept.
    pub(crate) idle_since: Instant,
    /// A receive is outstanding.
    pub(crate) receiving: bool,
    /// A send is outstanding.
    pub(crate) sending: bool,
    /// The origin ended its stream while something else had to happen before that could be told.
    pub(crate) ended: bool,
    /// A send failed, or a receive: how its stream ends says nothing any more, since the kernel
    /// tells an error once and then a clean end.
    pub(crate) broken: bool,
}

impl OriginConn {
    /// A connection that was just opened for `exchange`.
    pub(crate) fn new(
        fd: Fd,
        origin: OriginId,
        address: Option<SocketAddr>,
        exchange: Key,
        timer: TimerId,
    ) -> Self {
        Self {
            fd,
            input: Input::Empty,
            origin,
            address,
            used_for: Use::Busy(exchange),
            owner: None,
            timer,
            idle_since: Instant::default(),
            receiving: false,
            sending: false,
            ended: false,
            broken: false,
        }
    }
}

#[derive(Debug)]
struct Known {
    /// What tells it from every other one: the rules that open connections to it, and the place.
    name: Box<[u8]>,
    rules: RulesId,
    place: Place,
    /// Kept connections, the latest last.
    idle: Vec<Key>,
    /// Exchanges that have it picked.
    outstanding: u32,
    /// Connections that are open or being opened; the kept ones are among them.
    /// `idle.len() <= open`
    open: usize,
    /// Exchanges that wait for room here, each once, with the time since which it waits, in the
    /// order of these.
    line: VecDeque<(Key, Instant)>,
    /// The latest answer's body was copied as a whole: its head may be received together with it.
    is_small: bool,
    /// A client asked for it; else it stands in a configuration.
    asked_for: bool,
    /// A snapshot in use names it, so it is not forgotten.
    configured: bool,
    /// The snapshot in force would open connections to it: they may be kept.
    in_force: bool,
    /// Whether it is to be asked. Of those asked for by clients nothing is ever noted.
    health: Health,
    /// What all workers know of it, if a configuration ever named it.
    mark: Option<Arc<OriginMark>>,
}

/// All origins of a worker.
#[derive(Debug)]
pub(crate) struct Origins {
    pub(crate) connections: Table<OriginConn>,
    by_name: HashMap<Box<[u8]>, OriginId>,
    rules: RuleSets,
    /// Those of the snapshot in force.
    rules_in_force: Vec<RulesId>,
    known: Vec<Option<Known>>,
    free: Vec<u32>,
    /// Kept connections in the order in which they became idle. An entry is stale when its
    /// connection is gone or has been used since: `idle_since` tells.
    idle_order: VecDeque<(Key, Instant)>,
    idle_count: usize,
    /// The checks that the snapshots in use pick by.
    checks: Vec<Arc<CheckMark>>,
    /// The version of the board that was listened to last, or one that it has not now.
    version: u64,
    /// Nothing keeps any of the configured ones from being asked.
    well: bool,
    /// No configured one has failed since it last answered, as far as was looked.
    spotless: bool,
    /// Those that there is something to tell of.
    news: Vec<OriginId>,
    /// Exchanges in the lines of all.
    queued: usize,
    /// Those with a line, and perhaps some that had one.
    lines: Vec<OriginId>,
    /// Those where there was a line when room was made.
    ready: Vec<OriginId>,
    name: Vec<u8>,
}

impl Origins {
    pub(crate) fn new(connections_max: u32) -> Self {
        Self {
            connections: Table::new(connections_max),
            by_name: HashMap::new(),
            rules: RuleSets::default(),
            rules_in_force: Vec::new(),
            known: Vec::new(),
            free: Vec::new(),
            idle_order: VecDeque::new(),
            idle_count: 0,
            checks: Vec::new(),
            version: 0,
            well: true,
            spotless: true,
            news: Vec::new(),
            queued: 0,
            lines: Vec::new(),
            ready: Vec::new(),
            name: Vec::new(),
        }
    }

    /// The number of a service's rules.
    pub(crate) fn rules(&mut self, rules: Rules) -> RulesId {
        self.rules.intern(rules)
    }

    /// The origin that a service's configuration names.
    pub(crate) fn configured(
        &mut self,
        rules: RulesId,
        origin: &Origin,
        board: &Board,
    ) -> OriginId {
        self.name.clear();
        self.name.extend_from_slice(&rules.0.to_be_bytes());
        match origin {
            Origin::Tcp { host, port } => {
                self.name.extend_from_slice(&port.to_be_bytes());
                self.name.extend(host.bytes().map(|byte| byte.to_ascii_lowercase()));
            }
            Origin::Unix(path) => {
                self.name.extend_from_slice(&0u16.to_be_bytes());
                self.name.extend_from_slice(path.as_os_str().as_encoded_bytes());
            }
        }
        let id = self.named(rules, || origin.into());
        let known = self.known_mut(id);
        known.configured = true;
        known.asked_for = false;
        known.mark.get_or_insert_with(|| board.origin(origin));
        // There is more to hear than when the board was last listened to.
        self.listen_again();
        id
    }

    /// The origin at a host and port that a client of a forwarding service asked for. Names are one
    /// in any case, and with or without a dot at their end. `are_whole`: the machine's search list
    /// applies to none; always the same for the same rules.
    pub(crate) fn asked_for(
        &mut self,
        rules: RulesId,
        host: Host<'_>,
        port: u16,
        are_whole: bool,
    ) -> OriginId {
        self.name.clear();
        self.name.extend_from_slice(&rules.0.to_be_bytes());
        self.name.extend_from_slice(&port.to_be_bytes());
        let ip = match host {
            Host::Name(name) => {
                let name = name.strip_suffix(b".").unwrap_or(name);
                self.name.extend(name.iter().map(|byte| byte.to_ascii_lowercase()));
                let end = if are_whole { &b"."[..] } else { b"" };
                let place = || Place::Name([name, end].concat().to_ascii_lowercase().into(), port);
                return self.named(rules, place);
            }
            Host::V4(ip) => IpAddr::V4(ip),
            Host::V6(ip) => IpAddr::V6(ip),
        };
        write!(self.name, "{ip}").expect("a Vec takes every byte");
        self.named(rules, || Place::Address(SocketAddr::new(ip, port)))
    }

    fn named(&mut self, rules: RulesId, place: impl FnOnce() -> Place) -> OriginId {
        if let Some(&id) = self.by_name.get(&self.name[..]) {
            return id;
        }
        let name: Box<[u8]> = self.name.as_slice().into();
        let known = Known {
            name: name.clone(),
            rules,
            place: place(),
            idle: Vec::new(),
            outstanding: 0,
            open: 0,
            line: VecDeque::new(),
            is_small: false,
            asked_for: true,
            configured: false,
            in_force: self.rules_in_force.contains(&rules),
            health: Health::default(),
            mark: None,
        };
        let index = self.free.pop().unwrap_or(self.known.len() as u32);
        let id = OriginId(index);
        if index as usize == self.known.len() {
            self.known.push(Some(known));
        } else {
            self.known[index as usize] = Some(known);
        }
        self.by_name.insert(name, id);
        id
    }

    /// `present` is the snapshot in force from now on, `earlier` are those that something under way
    /// still uses. What none of them names is forgotten once it is unused. Gives the connections
    /// that are kept and may not be any more: the caller closes them.
    pub(crate) fn follow(&mut self, present: &Snapshot, earlier: &[Rc<Snapshot>]) -> Vec<Key> {
        let living = || earlier.iter().map(|snapshot| &**snapshot).chain([present]);
        self.rules.retain(|id| living().any(|snapshot| snapshot.rules.contains(&id)));
        self.rules_in_force = present.rules.to_vec();
        for known in self.known.iter_mut().flatten() {
            known.configured = false;
            known.in_force = known.asked_for && present.rules.contains(&known.rules);
        }
        for id in living().flat_map(Snapshot::origins) {
            self.known_mut(id).configured = true;
        }
        for id in present.origins() {
            self.known_mut(id).in_force = true;
        }
        let count = self.known.len() as u32;
        for id in (0..count).map(OriginId) {
            if self.known[id.0 as usize].is_some() {
                self.forget_unused(id);
            }
        }
        self.checks = living().flat_map(Snapshot::checks).cloned().collect();
        // What was not well may be among those that nobody asks any more.
        self.listen_again();
        let outdated = self.known.iter().flatten().filter(|known| !known.in_force);
        outdated.flat_map(|known| known.idle.iter().copied()).collect()
    }

    /// Whether a connection to the origin may be kept.
    pub(crate) fn is_in_force(&self, id: OriginId) -> bool {
        self.known(id).in_force
    }

    fn known(&self, id: OriginId) -> &Known {
        self.known[id.0 as usize].as_ref().expect("an origin in use is known")
    }

    fn known_mut(&mut self, id: OriginId) -> &mut Known {
        self.known[id.0 as usize].as_mut().expect("an origin in use is known")
    }

    pub(crate) fn place(&self, id: OriginId) -> &Place {
        &self.known(id).place
    }

    pub(crate) fn outstanding(&self, id: OriginId) -> u32 {
        self.known(id).outstanding
    }

    /// The most that is received of the origin before the head of its answer is there. A body is
    /// to be in the kernel still when its plan is picked; but one that will be copied in any case
    /// comes by the same receive. So the guess is that the next body is like the last, and a wrong
    /// one costs a copy of so much, or a further receive.
    pub(crate) fn head_max(&self, id: OriginId) -> usize {
        if self.known(id).is_small { SMALL_MAX } else { HEAD_MAX }
    }

    /// Notes how long the body of an answer was.
    pub(crate) fn note_body(&mut self, id: OriginId, bytes: u64) {
        self.known_mut(id).is_small = bytes < SPLICE_MIN;
    }

    pub(crate) fn health(&self, id: OriginId) -> &Health {
        &self.known(id).health
    }

    pub(crate) fn health_mut(&mut self, id: OriginId) -> &mut Health {
        &mut self.known_mut(id).health
    }

    /// Whether nothing keeps any configured origin from being asked: no ejection, and no check
    /// that fails.
    pub(crate) fn all_are_well(&self) -> bool {
        self.well
    }

    /// Whether no answer of any origin would change anything.
    pub(crate) fn all_are_spotless(&self) -> bool {
        self.spotless
    }

    /// Takes over what changed on the board, if anything did.
    pub(crate) fn hear(&mut self, board: &Board) {
        if board.version() != self.version {
            self.listen_anew(board);
        }
    }

    /// The next pick listens to the board, whatever it heard of it before.
    fn listen_again(&mut self) {
        self.version = self.version.wrapping_sub(1);
    }

    #[cold]
    fn listen_anew(&mut self, board: &Board) {
        self.version = board.version();
        for known in self.known.iter_mut().flatten() {
            if let Some(mark) = &known.mark {
                let told = mark.read();
                known.health.hear(told.failures, told.ejection);
            }
        }
        self.well = self.known.iter().flatten().all(|known| known.health.is_well())
            && !self.checks.iter().any(|check| check.fails());
        self.look_for_spots();
    }

    fn look_for_spots(&mut self) {
        self.spotless = self.known.iter().flatten().all(|known| known.health.is_spotless());
    }

    /// A request failed by the fault of a configured origin. Gives whether that ejected it.
    pub(crate) fn note_failure(
        &mut self,
        id: OriginId,
        trial: Trial,
        now: Instant,
        rules: &EjectRules,
        board: &Board,
    ) -> bool {
        let change = self.known_mut(id).health.note_failure(trial, now, rules);
        self.spotless = false;
        self.tell(id, change, board) && matches!(change, Some(Change::Ejected(_)))
    }

    /// A request was answered by an origin. Gives whether that readmitted it.
    pub(crate) fn note_answer(&mut self, id: OriginId, trial: Trial, board: &Board) -> bool {
        let change = self.known_mut(id).health.note_answer(trial);
        self.tell(id, change, board)
    }

    /// A change is told at once, the rest by and by: see [`Origins::tell_news`].
    fn tell(&mut self, id: OriginId, change: Option<Change>, board: &Board) -> bool {
        let Some(mark) = &self.known(id).mark else { return false };
        match change {
            Some(change) => {
                board.tell_change(mark, change);
                self.hear(board);
            }
            None if !self.news.contains(&id) => self.news.push(id),
            None => {}
        }
        change.is_some()
    }

    /// Whether there is something to tell by and by.
    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Tells the other workers of failures that ejected nobody, and hears of theirs. Gives how many
    /// origins all these together ejected.
    pub(crate) fn tell_news(&mut self, now: Instant, rules: &EjectRules, board: &Board) -> u64 {
        let mut ejected = 0;
        for id in std::mem::take(&mut self.news) {
            // It may have been forgotten since.
            let Some(known) = self.known[id.0 as usize].as_mut() else { continue };
            let Some(mark) = &known.mark else { continue };
            let was_well = known.health.is_well();
            let told = board.tell_news(mark, known.health.take_news(), now, rules);
            known.health.hear(told.failures, told.ejection);
            ejected += u64::from(was_well && !known.health.is_well());
        }
        self.hear(board);
        self.look_for_spots();
        ejected
    }

    /// A connection to the origin is to be opened; [`Origins::remove`] or
    /// [`Origins::note_closed`] follows.
    pub(crate) fn note_open(&mut self, id: OriginId) {
        self.known_mut(id).open += 1;
    }

    /// A connection to the origin was not opened after all, or is closed.
    pub(crate) fn note_closed(&mut self, id: OriginId) {
        let known = self.known_mut(id);
        assert!(known.open > 0, "noted when it was to be opened");
        known.open -= 1;
        self.note_room(id);
    }

    /// Whether the origin may have a further connection, where it may have `max`.
    pub(crate) fn has_room(&self, id: OriginId, max: usize) -> bool {
        self.known(id).open < max
    }

    /// Whether a connection to the origin is kept.
    pub(crate) fn has_idle(&self, id: OriginId) -> bool {
        !self.known(id).idle.is_empty()
    }

    /// Exchanges in lines.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    pub(crate) fn line_length(&self, id: OriginId) -> usize {
        self.known(id).line.len()
    }

    /// Whether others wait for room at the origin, so that who comes now stands behind them.
    pub(crate) fn has_line(&self, id: OriginId) -> bool {
        self.queued > 0 && self.line_length(id) > 0
    }

    /// Puts an exchange, which has the origin picked, at the end of its line.
    pub(crate) fn enqueue(&mut self, id: OriginId, key: Key, now: Instant) {
        let line = &mut self.known_mut(id).line;
        line.push_back((key, now));
        if !self.lines.contains(&id) {
            self.lines.push(id);
        }
        self.queued += 1;
    }

    /// Takes an exchange out of the line of its origin.
    pub(crate) fn leave_line(&mut self, id: OriginId, key: Key) {
        let line = &mut self.known_mut(id).line;
        let place = line.iter().position(|entry| entry.0 == key).expect("it stands there");
        line.remove(place);
        self.queued -= 1;
        // If it was its turn, it is the turn of the next.
        self.note_room(id);
    }

    pub(crate) fn first_in_line(&self, id: OriginId) -> Option<Key> {
        self.known[id.0 as usize].as_ref()?.line.front().map(|entry| entry.0)
    }

    /// The exchanges of all lines, with the time since which each waits.
    pub(crate) fn in_lines(&mut self) -> impl Iterator<Item = (Key, Instant)> {
        let Self { known, lines, .. } = self;
        let line = |id: OriginId| known[id.0 as usize].as_ref().map(|known| &known.line);
        lines.retain(|&id| line(id).is_some_and(|line| !line.is_empty()));
        lines.iter().filter_map(move |&id| line(id)).flatten().copied()
    }

    /// An origin where room was made while it had a line.
    pub(crate) fn next_ready(&mut self) -> Option<OriginId> {
        self.ready.pop()
    }

    fn note_room(&mut self, id: OriginId) {
        if self.has_line(id) && self.ready.last() != Some(&id) {
            self.ready.push(id);
        }
    }

    /// Kept connections of all origins.
    pub(crate) fn idle_count(&self) -> usize {
        self.idle_count
    }

    /// An exchange picks the origin; [`Origins::unpick`] follows.
    pub(crate) fn note_picked(&mut self, id: OriginId) {
        self.known_mut(id).outstanding += 1;
    }

    /// The exchange is done with the origin.
    pub(crate) fn unpick(&mut self, id: OriginId) {
        let known = self.known_mut(id);
        assert!(known.outstanding > 0, "picked before");
        known.outstanding -= 1;
        self.forget_unused(id);
    }

    fn forget_unused(&mut self, id: OriginId) {
        let known = self.known(id);
        if known.outstanding == 0 && known.idle.is_empty() && !known.configured {
            let known = self.known[id.0 as usize].take().expect("looked at just now");
            self.by_name.remove(&known.name);
            self.free.push(id.0);
        }
    }

    /// Takes the connection that was kept latest for `owner` (`None`: for everybody), if any: it is
    /// the least likely to have ended.
    /// Passed over are those that `is_announced` says have ended, or brought bytes that nobody
    /// asked for, in this very turn: those bytes are no answer to what is sent now.
    pub(crate) fn take_idle(
        &mut self,
        id: OriginId,
        exchange: Key,
        owner: Option<Key>,
        is_announced: impl Fn(&Fd) -> bool,
    ) -> Option<Key> {
        let Self { known, connections, .. } = self;
        let idle = &mut known[id.0 as usize].as_mut().expect("an origin in use is known").idle;
        let is_fit = |key: &Key| {
            connections.get(*key).is_some_and(|it| it.owner == owner && !is_announced(&it.fd))
        };
        let key = idle.remove(idle.iter().rposition(is_fit)?);
        self.idle_count -= 1;
        let connection = connections.get_mut(key).expect("kept connections are open");
        connection.used_for = Use::Busy(exchange);
        Some(key)
    }

    /// Keeps a connection. Gives the client connection that it is bound to, if any. The caller
    /// enforces the limits by [`Origins::surplus`].
    pub(crate) fn keep(&mut self, key: Key, now: Instant) -> Option<Key> {
        let connection = self.connections.get_mut(key).expect("the caller holds it open");
        connection.used_for = Use::Idle;
        connection.idle_since = now;
        let (id, owner) = (connection.origin, connection.owner);
        self.known_mut(id).idle.push(key);
        self.note_room(id);
        self.idle_count += 1;
        self.idle_order.push_back((key, now));
        if self.idle_order.len() > 2 * self.idle_count + 64 {
            let Self { idle_order, connections, .. } = self;
            idle_order.retain(|entry| is_current(connections, *entry));
        }
        owner
    }

    /// A kept connection that should be closed: the oldest of an origin with more than
    /// `per_origin`, or of all while there are more than `all`.
    pub(crate) fn surplus(&mut self, id: OriginId, per_origin: usize, all: usize) -> Option<Key> {
        if self.known(id).idle.len() > per_origin {
            return self.known(id).idle.first().copied();
        }
        if self.idle_count > all { self.oldest_idle() } else { None }
    }

    /// The kept connection that has been idle longest.
    pub(crate) fn oldest_idle(&mut self) -> Option<Key> {
        while let Some(&entry) = self.idle_order.front() {
            if is_current(&self.connections, entry) {
                return Some(entry.0);
            }
            self.idle_order.pop_front();
        }
        None
    }

    /// Takes a connection out of the table, kept or not; its descriptor is the caller's to close.
    pub(crate) fn remove(&mut self, key: Key) -> Option<OriginConn> {
        let connection = self.connections.remove(key)?;
        let id = connection.origin;
        if connection.used_for == Use::Idle {
            let idle = &mut self.known_mut(id).idle;
            let position = idle.iter().rposition(|&other| other == key);
            idle.remove(position.expect("an idle connection is in its origin's list"));
            self.idle_count -= 1;
        }
        self.note_closed(id);
        if connection.used_for == Use::Idle {
            self.forget_unused(id);
        }
        Some(connection)
    }
}

/// The most that is received at once of an answer whose head may be followed by a large body.
const HEAD_MAX: usize = 4096;
/// The same where a small body is expected: a head and any body that is copied in one piece.
const SMALL_MAX: usize = HEAD_MAX + SPLICE_MIN as usize;
const _: () = assert!(SMALL_MAX <= Buffer::SIZE);

fn is_current(connections: &Table<OriginConn>, (key, since): (Key, Instant)) -> bool {
    connections.get(key).is_some_and(|connection| {
        connection.used_for == Use::Idle && connection.idle_since == since
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Check;
    use crate::config::from_arguments;
    use crate::limits::Limits;
    use crate::worker::Shared;

    #[test]
    fn a_name_is_one_origin_however_it_is_written_and_looked_up_as_its_rules_say() {
        let mut origins = Origins::new(10);
        let mut ask = |rules, name: &[u8], are_whole| {
            let id = origins.asked_for(RulesId(rules), Host::Name(name), 80, are_whole);
            let Place::Name(name, 80) = origins.place(id) else { panic!("it is a name") };
            (id, name.to_vec())
        };
        let plain = ask(0, b"Intranet", false);
        assert_eq!((&plain.1[..], ask(0, b"intranet.", false)), (&b"intranet"[..], plain.clone()));
        let whole = ask(1, b"intranet", true);
        assert_eq!((&whole.1[..], ask(1, b"INTRANET.", true)), (&b"intranet."[..], whole.clone()));
        assert_ne!(plain.0, whole.0);
    }

    #[test]
    fn an_origin_that_left_the_configuration_is_forgotten_and_holds_nobody_up() {
        let shared = Shared::new(1, "test".to_owned(), None, |_| {});
        let board = &shared.board;
        let mut origins = Origins::new(10);
        let snapshot = |origins: &mut Origins, words: [&str; 3]| {
            let config = from_arguments(words).unwrap();
            Rc::new(Snapshot::new(Arc::new(config), Instant::default(), origins, &shared))
        };
        let before = snapshot(&mut origins, ["boost", "--origin=http://a", "--check=/up"]);
        origins.follow(&before, &[]);
        let rules = EjectRules::new(&Limits::default());
        let id = before.routes[0][0].origins[0];
        for _ in 0..rules.failures_max {
            origins.note_failure(id, Trial::No, Instant::default(), &rules, board);
        }
        board.set_check(&Check::of_config(&before.config)[0], false);
        assert!(!origins.all_are_well());
        let after = snapshot(&mut origins, ["boost", "--origin=http://b", "--check=off"]);
        origins.follow(&after, std::slice::from_ref(&before));
        origins.hear(board);
        assert!(!origins.all_are_well(), "an exchange may go on under the one before");
        drop(before);
        origins.follow(&after, &[]);
        origins.hear(board);
        assert!(origins.all_are_well());
        assert_eq!(origins.by_name.len(), 1);
        let shown: Vec<_> = board.shown().into_iter().map(|shown| shown.origin).collect();
        assert_eq!(shown, ["http://b:80"]);
    }
}
