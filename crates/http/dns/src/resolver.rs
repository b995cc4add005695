//! The lookups of a worker, and what they gave.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use millrace_engine::{Instant, Key, Table, Timers, Token, TokenKind};

use super::cache::NameCache;
use super::error::{LookupResult, NameError};
use super::lookup::{Lookup, LookupProgress, parse_token};
use super::name::DomainName;
use super::operations::{LookupContext, SocketEvent, SocketOperation};
use super::resolver_config::ResolverConfig;

/// What bounds the lookups of a worker.
#[derive(Clone, Copy, Debug)]
pub struct ResolverLimits {
    /// What a lookup takes at most, over all name servers.
    pub time: Duration,
    /// Lookups at a time, each with two sockets at most.
    pub lookups: u32,
    /// Names that are remembered.
    pub names: usize,
}

/// A worker's resolver. `W` is what its caller knows a waiting exchange by.
#[derive(Debug)]
pub struct DnsResolver<W> {
    sources: Arc<ResolverConfig>,
    cache: NameCache,
    lookups: Table<Lookup<W>>,
    /// The lookups under way; `under_way.len() == lookups.len()`.
    active: BTreeMap<DomainName, Key>,
    /// One entry a lookup, with its nearest deadline.
    timers: Timers,
    finished: VecDeque<(W, LookupResult)>,
    operations: VecDeque<(Token, SocketOperation)>,
    /// The table may have more lookups from before their bound fell.
    bounds: ResolverLimits,
}

impl<W: Copy + PartialEq> DnsResolver<W> {
    /// How long an answer is remembered at least and at most. The least also holds for failures,
    /// or a name that many ask for would be asked as often (RFC 9520 section 3.2).
    const TTL_RANGE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(86400)];
    /// How long it is remembered at most that there is nothing.
    const NEGATIVE_TTL_MAX: Duration = Duration::from_secs(60);

    /// A resolver that knows what `sources` say.
    pub fn new(sources: Arc<ResolverConfig>, bounds: ResolverLimits, now: Instant) -> Self {
        Self {
            sources,
            cache: NameCache::new(bounds.names),
            lookups: Table::new(bounds.lookups),
            active: BTreeMap::new(),
            timers: Timers::new(now),
            finished: VecDeque::new(),
            operations: VecDeque::new(),
            bounds,
        }
    }

    /// Goes on under other bounds. Lookups under way keep the time that they began with.
    pub fn set_bounds(&mut self, bounds: ResolverLimits) {
        self.cache.set_max(bounds.names);
        self.lookups.raise_bound(bounds.lookups);
        self.bounds = bounds;
    }

    /// Lookups under way: two sockets each at most.
    pub fn active_lookups(&self) -> usize {
        self.lookups.len()
    }

    /// Whether no further lookup can begin before one is over.
    pub fn is_full(&self) -> bool {
        self.lookups.len() >= self.bounds.lookups as usize
    }

    /// Looks up `name`, in any case, with or without a dot at its end; never an address literal.
    /// `random` gives a new number at each call, which nobody can foretell. Only after
    /// [`Poll::Pending`] is `waiter` remembered, until it gets its result by
    /// [`Names::poll_finished`] or is [forgotten](Names::forget).
    pub fn lookup(
        &mut self,
        name: &[u8],
        waiter: W,
        now: Instant,
        random: &mut dyn FnMut() -> u64,
    ) -> Poll<LookupResult> {
        let Some(name) = DomainName::parse(name) else {
            return Poll::Ready(Err(NameError::Invalid));
        };
        if let Some(addresses) = self.sources.local_addresses(&name) {
            return Poll::Ready(Ok(addresses));
        }
        // Nobody may be asked for these: RFC 6761 section 6.4, RFC 7686 section 2.
        if name.is_within(b"invalid") || name.is_within(b"onion") {
            return Poll::Ready(Err(NameError::NotFound));
        }
        if let Some(found) = self.cache.get(&name, now) {
            return Poll::Ready(found.clone());
        }
        let key = match self.active.get(&name) {
            Some(key) => *key,
            None if self.is_full() => return Poll::Ready(Err(NameError::Overloaded)),
            None => self.start(&name, now, random),
        };
        let lookup = self.lookups.get_mut(key).expect("a lookup under way is in the table");
        if let Some(addresses) = &lookup.early {
            return Poll::Ready(Ok(addresses.clone()));
        }
        lookup.waiters.push(waiter);
        Poll::Pending
    }

    /// The next order to be carried out; `None`: there is none. To be asked until there is none
    /// after each call that takes `random`, and after [`Names::end`].
    pub fn next_operation(&mut self) -> Option<(Token, SocketOperation)> {
        self.operations.pop_front()
    }

    /// Takes what became of the socket of `token`; an outdated one does no harm.
    pub fn handle(
        &mut self,
        token: Token,
        event: SocketEvent,
        now: Instant,
        random: &mut dyn FnMut() -> u64,
    ) {
        let (key, family) = parse_token(token);
        if let Some(lookup) = self.lookups.get_mut(key) {
            let mut desk = LookupContext { now, random, operations: &mut self.operations };
            lookup.handle(&mut desk, family, event);
            self.advance(key, now, random);
        }
    }

    /// When [`Names::handle_deadlines`] has to be called at the latest; `None`: not at all.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next_wakeup()
    }

    /// Gives up what has taken too long by `now`.
    pub fn handle_deadlines(&mut self, now: Instant, random: &mut dyn FnMut() -> u64) {
        while let Some((_, token)) = self.timers.pop_expired(now) {
            let key = Key::from(token);
            if let Some(lookup) = self.lookups.get_mut(key) {
                lookup.expire(&mut LookupContext { now, random, operations: &mut self.operations });
                self.advance(key, now, random);
            }
        }
    }

    /// One waiter and its result, until there is none left. To be asked after each call that may
    /// end a lookup: [`Names::handle`] and [`Names::handle_deadlines`].
    pub fn poll_finished(&mut self) -> Option<(W, LookupResult)> {
        self.finished.pop_front()
    }

    /// The result of this waiter, if it has one already.
    pub fn take_finished(&mut self, waiter: W) -> Option<LookupResult> {
        let place = self.finished.iter().position(|(other, _)| *other == waiter)?;
        self.finished.remove(place).map(|(_, found)| found)
    }

    /// A waiter that is gone gets no result. Its lookup goes on: its name may be asked for again.
    /// Looks at every waiter, so it is for those who may still wait only.
    pub fn remove_waiter(&mut self, waiter: W) {
        for (_, lookup) in self.lookups.iter_mut() {
            lookup.waiters.retain(|other| *other != waiter);
        }
        self.finished.retain(|(other, _)| *other != waiter);
    }

    /// Ends every lookup and closes its sockets: the worker ends. No waiter gets a result.
    pub fn end(&mut self, now: Instant) {
        for key in std::mem::take(&mut self.active).into_values() {
            if let Some(mut lookup) = self.lookups.remove(key) {
                let random = &mut || unreachable!("who ends asks nobody");
                let mut desk = LookupContext { now, random, operations: &mut self.operations };
                lookup.end(&mut desk, NameError::Overloaded);
                self.timers.remove(lookup.timer);
            }
        }
        self.finished.clear();
    }

    /// Begins a lookup; the table has room.
    fn start(&mut self, name: &DomainName, now: Instant, random: &mut dyn FnMut() -> u64) -> Key {
        let key = self.lookups.next_key().expect("the table is no smaller than the bound");
        let timer = self.timers.insert(key.token(TokenKind::Name), now + self.bounds.time);
        let sources = self.sources.clone();
        let mut lookup = Lookup::new(name.clone(), key, timer, sources, now, self.bounds.time);
        lookup.start(&mut LookupContext { now, random, operations: &mut self.operations });
        self.timers.set(timer, lookup.next_deadline());
        let inserted = self.lookups.insert(lookup);
        assert!(inserted == Some(key), "the table gives the key that it announced");
        self.active.insert(name.clone(), key);
        key
    }

    /// Lets a lookup move on, and hands out what it found.
    fn advance(&mut self, key: Key, now: Instant, random: &mut dyn FnMut() -> u64) {
        let Some(lookup) = self.lookups.get_mut(key) else { return };
        match lookup.progress(&mut LookupContext { now, random, operations: &mut self.operations })
        {
            LookupProgress::Pending => self.timers.set(lookup.timer, lookup.next_deadline()),
            LookupProgress::Early(addresses) => {
                self.timers.set(lookup.timer, lookup.next_deadline());
                let waiters = lookup.waiters.drain(..);
                self.finished.extend(waiters.map(|waiter| (waiter, Ok(addresses.clone()))));
            }
            LookupProgress::Done(found, time) => {
                let Some(lookup) = self.lookups.remove(key) else { return };
                self.timers.remove(lookup.timer);
                self.active.remove(&lookup.name);
                let waiters = lookup.waiters.into_iter();
                self.finished.extend(waiters.map(|waiter| (waiter, found.clone())));
                self.cache_result(lookup.name, found, time, now);
            }
        }
    }

    /// Puts what was found into the cache, unless it says nothing about the name.
    fn cache_result(
        &mut self,
        name: DomainName,
        found: LookupResult,
        time: Duration,
        now: Instant,
    ) {
        if found == Err(NameError::Overloaded) {
            return;
        }
        let [least, most] = match found {
            Ok(_) => Self::TTL_RANGE,
            Err(_) => [Self::TTL_RANGE[0], Self::NEGATIVE_TTL_MAX],
        };
        self.cache.insert(name, found, now + time.clamp(least, most), now);
    }
}
