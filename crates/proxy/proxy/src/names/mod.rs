//! From names to addresses, without ever blocking the worker.
//!
//! [`Names`] knows the hosts file and asks the name servers over sockets of the worker's engine,
//! both families at once; lookups of one name are one, and what was found stays for as long as
//! the zone says. It never judges an address (that is [`admission`](crate::admission)) and never
//! connects to one: [`Race`] says in which order to.

mod cache;
mod eyeballs;
mod lookup;
mod message;
mod name;
mod question;
mod sources;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use millrace_config::limits::Limits;
use millrace_engine::{Engine, Event, Instant, Key, Kind, Table, Timers, Token};

use crate::reason::Reason;
use cache::Cache;
use lookup::{Lookup, Progress, parse_token};
use name::Name;

pub use eyeballs::{Attempt, Race};
pub use message::fuzz_answer;
pub use sources::Sources;

/// Why a name gives no addresses. In the order in which a later one outweighs an earlier one when
/// several things were tried.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NameError {
    /// It cannot be a host name. The client's fault.
    Invalid,
    /// No such name exists.
    NotFound,
    /// The name exists and has no address.
    NoAddress,
    /// The name servers failed, refused, or could not be reached. May be better soon.
    ServerFailed,
    /// No name server answered in time. May be better soon.
    TimedOut,
    /// Ours: too many lookups are under way, or no descriptor is left. Sound to retry.
    Overloaded,
}

impl NameError {
    /// What the client is told.
    pub const fn reason(self) -> Reason {
        match self {
            Self::Invalid | Self::NotFound | Self::NoAddress => Reason::NameUnknown,
            Self::ServerFailed => Reason::NameFailed,
            Self::TimedOut => Reason::NameTimedOut,
            Self::Overloaded => Reason::Overloaded,
        }
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid => "not a host name",
            Self::NotFound => "no such name",
            Self::NoAddress => "the name has no address",
            Self::ServerFailed => "the name servers failed",
            Self::TimedOut => "no name server answered in time",
            Self::Overloaded => "too many lookups are under way",
        })
    }
}

/// What came of a lookup: addresses, at least one, in the order to try them, or why there is none.
pub type Found = Result<Arc<[IpAddr]>, NameError>;

/// What [`Names::lookup`] knows at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answered {
    /// The addresses, at least one, in the order to try them.
    Ready(Arc<[IpAddr]>),
    /// The waiter gets its result by [`Names::poll_finished`].
    Pending,
    /// There is none.
    Failed(NameError),
}

/// A worker's resolver. `W` is what its caller knows a waiting exchange by.
#[derive(Debug)]
pub struct Names<W> {
    sources: Arc<Sources>,
    cache: Cache,
    lookups: Table<Lookup<W>>,
    /// The lookups under way; `under_way.len() == lookups.len()`.
    under_way: BTreeMap<Name, Key>,
    /// One entry a lookup, with its nearest deadline.
    timers: Timers,
    finished: VecDeque<(W, Found)>,
    /// `name_ms`
    limit: Duration,
    /// `name_lookups`; the table may have more from before it fell.
    lookups_max: usize,
}

impl<W: Copy + PartialEq> Names<W> {
    /// How long an answer is remembered at least and at most. The least also holds for failures,
    /// or a name that many ask for would be asked as often (RFC 9520 section 3.2).
    const REMEMBERED: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(86400)];
    /// How long it is remembered at most that there is nothing.
    const ABSENCE_REMEMBERED_MAX: Duration = Duration::from_secs(60);

    /// A resolver that knows what `sources` say. Of the limits, `name_ms`, `names` and
    /// `name_lookups` count.
    pub fn new(sources: Arc<Sources>, limits: &Limits, now: Instant) -> Self {
        Self {
            sources,
            cache: Cache::new(limits.names as usize),
            lookups: Table::new(limits.name_lookups as u32),
            under_way: BTreeMap::new(),
            timers: Timers::new(now),
            finished: VecDeque::new(),
            limit: Duration::from_millis(limits.name_ms),
            lookups_max: limits.name_lookups as usize,
        }
    }

    /// Goes on under other limits. Lookups under way keep the time that they began with.
    pub fn set_limits(&mut self, limits: &Limits) {
        self.cache.set_max(limits.names as usize);
        self.lookups.raise_bound(limits.name_lookups as u32);
        self.limit = Duration::from_millis(limits.name_ms);
        self.lookups_max = limits.name_lookups as usize;
    }

    /// Lookups under way: two sockets each at most.
    pub fn under_way(&self) -> usize {
        self.lookups.len()
    }

    /// Whether no further lookup can begin before one is over.
    pub fn is_full(&self) -> bool {
        self.lookups.len() >= self.lookups_max
    }

    /// Looks up `name`, in any case, with or without a dot at its end; never an address literal.
    /// Only after [`Answered::Pending`] is `waiter` remembered, until its result is polled or it
    /// is [forgotten](Names::forget).
    pub fn lookup<E: Engine>(&mut self, engine: &mut E, name: &[u8], waiter: W) -> Answered {
        let Some(name) = Name::parse(name) else { return Answered::Failed(NameError::Invalid) };
        if let Some(addresses) = self.sources.known(&name) {
            return Answered::Ready(addresses);
        }
        // Nobody may be asked for these: RFC 6761 section 6.4, RFC 7686 section 2.
        if name.is_within(b"invalid") || name.is_within(b"onion") {
            return Answered::Failed(NameError::NotFound);
        }
        let now = engine.now();
        if let Some(found) = self.cache.get(&name, now) {
            return Answered::from(found.clone());
        }
        let found = match self.under_way.get(&name) {
            Some(key) => self.lookups.get(*key).and_then(|lookup| lookup.early.clone()).map(Ok),
            None => self.start(engine, &name, now),
        };
        if let Some(found) = found {
            return Answered::from(found);
        }
        let key = self.under_way.get(&name).expect("a lookup without a result is under way");
        let lookup = self.lookups.get_mut(*key).expect("a lookup under way is in the table");
        lookup.waiters.push(waiter);
        Answered::Pending
    }

    /// Takes a completion whose token is of [`Kind::Name`]; an outdated one does no harm.
    pub fn handle<E: Engine>(&mut self, engine: &mut E, token: Token, event: Event) {
        let (key, family) = parse_token(token);
        let now = engine.now();
        match self.lookups.get_mut(key) {
            Some(lookup) => {
                lookup.handle(engine, family, now, event);
                self.settle(engine, key, now);
            }
            None => {
                if let Event::Received(Ok(buffer)) = event {
                    engine.recycle(buffer);
                }
            }
        }
    }

    /// When [`Names::handle_deadlines`] has to be called at the latest; `None`: not at all.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Gives up what has taken too long by `now`.
    pub fn handle_deadlines<E: Engine>(&mut self, engine: &mut E, now: Instant) {
        while let Some((_, token)) = self.timers.expired(now) {
            let key = Key::from(token);
            if let Some(lookup) = self.lookups.get_mut(key) {
                lookup.expire(engine, now);
                self.settle(engine, key, now);
            }
        }
    }

    /// One waiter and its result, until there is none left. To be asked after each call that may
    /// end a lookup: [`Names::handle`] and [`Names::handle_deadlines`].
    pub fn poll_finished(&mut self) -> Option<(W, Found)> {
        self.finished.pop_front()
    }

    /// A waiter that is gone gets no result. Its lookup goes on: its name may be asked for again.
    /// Looks at every waiter, so it is for those who may still wait only.
    pub fn forget(&mut self, waiter: W) {
        for (_, lookup) in self.lookups.iter_mut() {
            lookup.waiters.retain(|other| *other != waiter);
        }
        self.finished.retain(|(other, _)| *other != waiter);
    }

    /// Ends every lookup and closes its sockets: the worker ends. No waiter gets a result.
    pub fn end<E: Engine>(&mut self, engine: &mut E) {
        for key in std::mem::take(&mut self.under_way).into_values() {
            if let Some(mut lookup) = self.lookups.remove(key) {
                lookup.end(engine, NameError::Overloaded);
                self.timers.remove(lookup.timer);
            }
        }
        self.finished.clear();
    }

    /// Begins a lookup. Gives what was found if that is known at once.
    fn start<E: Engine>(&mut self, engine: &mut E, name: &Name, now: Instant) -> Option<Found> {
        if self.is_full() {
            return Some(Err(NameError::Overloaded));
        }
        let key = self.lookups.next_key().expect("the table is no smaller than the limit");
        let timer = self.timers.insert(key.token(Kind::Name), now + self.limit);
        let sources = self.sources.clone();
        let mut lookup = Lookup::new(name.clone(), key, timer, sources, now, self.limit);
        lookup.ask(engine, now);
        let inserted = self.lookups.insert(lookup);
        assert!(inserted == Some(key), "the table gives the key that it announced");
        self.under_way.insert(name.clone(), key);
        self.settle(engine, key, now)
    }

    /// Lets a lookup move on, and hands out what it found. Gives the result if that ended it.
    fn settle<E: Engine>(&mut self, engine: &mut E, key: Key, now: Instant) -> Option<Found> {
        let lookup = self.lookups.get_mut(key)?;
        match lookup.progress(engine, now) {
            Progress::Pending => {
                self.timers.set(lookup.timer, lookup.next_deadline());
                None
            }
            Progress::Early(addresses) => {
                self.timers.set(lookup.timer, lookup.next_deadline());
                let waiters = lookup.waiters.drain(..);
                self.finished.extend(waiters.map(|waiter| (waiter, Ok(addresses.clone()))));
                None
            }
            Progress::Done(found, time) => {
                let lookup = self.lookups.remove(key)?;
                self.timers.remove(lookup.timer);
                self.under_way.remove(&lookup.name);
                let waiters = lookup.waiters.into_iter();
                self.finished.extend(waiters.map(|waiter| (waiter, found.clone())));
                self.remember(lookup.name, found.clone(), time, now);
                Some(found)
            }
        }
    }

    /// Puts what was found into the cache, unless it says nothing about the name.
    fn remember(&mut self, name: Name, found: Found, time: Duration, now: Instant) {
        if found == Err(NameError::Overloaded) {
            return;
        }
        let [least, most] = match found {
            Ok(_) => Self::REMEMBERED,
            Err(_) => [Self::REMEMBERED[0], Self::ABSENCE_REMEMBERED_MAX],
        };
        self.cache.insert(name, found, now + time.clamp(least, most), now);
    }
}

impl From<Found> for Answered {
    fn from(found: Found) -> Self {
        match found {
            Ok(addresses) => Self::Ready(addresses),
            Err(error) => Self::Failed(error),
        }
    }
}
