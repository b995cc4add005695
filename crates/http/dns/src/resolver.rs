//! The lookups of a worker, and the cache of their results.

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

/// Limits of a resolver.
#[derive(Clone, Copy, Debug)]
pub struct ResolverLimits {
    /// Maximum time of a lookup, over all name servers.
    pub time: Duration,
    /// Maximum number of concurrent lookups, each with at most two sockets.
    pub lookups: u32,
    /// Maximum number of names in the cache.
    pub names: usize,
}

/// A worker's DNS resolver. `W` identifies a waiter to the caller.
#[derive(Debug)]
pub struct DnsResolver<W> {
    sources: Arc<ResolverConfig>,
    cache: NameCache,
    lookups: Table<Lookup<W>>,
    /// The lookups in progress by name; `active.len() == lookups.len()`.
    active: BTreeMap<DomainName, Key>,
    /// One entry for each lookup, with its next deadline.
    timers: Timers,
    finished: VecDeque<(W, LookupResult)>,
    operations: VecDeque<(Token, SocketOperation)>,
    /// The current limits. The table may have more lookups than the limit if it was lowered.
    bounds: ResolverLimits,
}

impl<W: Copy + PartialEq> DnsResolver<W> {
    /// Minimum and maximum time for which a result is cached. The minimum also applies to failures,
    /// since a name with many clients would otherwise be queried for each of them (RFC 9520 section
    /// 3.2).
    const TTL_RANGE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(86400)];
    /// Maximum time for which an absence or a failure is cached.
    const NEGATIVE_TTL_MAX: Duration = Duration::from_secs(60);

    /// Creates a resolver that uses the hosts file and the name servers of `sources`.
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

    /// Changes the limits. Lookups in progress keep their deadline.
    pub fn set_bounds(&mut self, bounds: ResolverLimits) {
        self.cache.set_max(bounds.names);
        self.lookups.raise_bound(bounds.lookups);
        self.bounds = bounds;
    }

    /// Returns the number of lookups in progress, each with at most two sockets.
    pub fn active_lookups(&self) -> usize {
        self.lookups.len()
    }

    /// Returns whether the limit of concurrent lookups is reached.
    pub fn is_full(&self) -> bool {
        self.lookups.len() >= self.bounds.lookups as usize
    }

    /// Looks up `name`, in any case, with or without a final dot. It must not be an address
    /// literal. `random` returns a new, unpredictable number in each call.
    ///
    /// After [`Poll::Pending`], `waiter` is registered until it receives its result by
    /// [`DnsResolver::poll_finished`] or is [removed](DnsResolver::remove_waiter).
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
        // Names that must not be sent to name servers: RFC 6761 section 6.4, RFC 7686 section 2.
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
        let lookup = self.lookups.get_mut(key).expect("an active lookup is in the table");
        if let Some(addresses) = &lookup.early {
            return Poll::Ready(Ok(addresses.clone()));
        }
        lookup.waiters.push(waiter);
        Poll::Pending
    }

    /// Returns the next operation to be executed, with the token of its socket. The caller calls
    /// this until it returns `None`, after each call that takes `random` and after
    /// [`DnsResolver::end`].
    pub fn next_operation(&mut self) -> Option<(Token, SocketOperation)> {
        self.operations.pop_front()
    }

    /// Handles an event of the socket with this token. An event of an ended lookup is ignored. The
    /// sockets of one query have the same token one after the other, so the caller must not report
    /// an event of a closed socket.
    pub fn handle(
        &mut self,
        token: Token,
        event: SocketEvent,
        now: Instant,
        random: &mut dyn FnMut() -> u64,
    ) {
        let (key, family) = parse_token(token);
        if let Some(lookup) = self.lookups.get_mut(key) {
            let mut context = LookupContext { now, random, operations: &mut self.operations };
            lookup.handle(&mut context, family, event);
            self.advance(key, now, random);
        }
    }

    /// Returns the time by which [`DnsResolver::handle_deadlines`] has to be called; `None` if no
    /// lookup is in progress.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next_wakeup()
    }

    /// Ends attempts and lookups whose deadline has passed by `now`.
    pub fn handle_deadlines(&mut self, now: Instant, random: &mut dyn FnMut() -> u64) {
        while let Some((_, token)) = self.timers.pop_expired(now) {
            let key = Key::from(token);
            if let Some(lookup) = self.lookups.get_mut(key) {
                lookup.expire(&mut LookupContext { now, random, operations: &mut self.operations });
                self.advance(key, now, random);
            }
        }
    }

    /// Returns a waiter and its result, or `None` if there is none. The caller calls this after
    /// [`DnsResolver::handle`] and [`DnsResolver::handle_deadlines`], which may end lookups.
    pub fn poll_finished(&mut self) -> Option<(W, LookupResult)> {
        self.finished.pop_front()
    }

    /// Returns the result of this waiter, if there is one.
    pub fn take_finished(&mut self, waiter: W) -> Option<LookupResult> {
        let place = self.finished.iter().position(|(other, _)| *other == waiter)?;
        self.finished.remove(place).map(|(_, found)| found)
    }

    /// Removes a waiter, which then receives no result. Its lookup continues, because the name may
    /// be requested again. The cost grows with the number of waiters, so call it only for a waiter
    /// that may be registered.
    pub fn remove_waiter(&mut self, waiter: W) {
        for (_, lookup) in self.lookups.iter_mut() {
            lookup.waiters.retain(|other| *other != waiter);
        }
        self.finished.retain(|(other, _)| *other != waiter);
    }

    /// Ends all lookups and closes their sockets, because the worker ends. No waiter receives a
    /// result.
    pub fn end(&mut self, now: Instant) {
        for key in std::mem::take(&mut self.active).into_values() {
            if let Some(mut lookup) = self.lookups.remove(key) {
                let random = &mut || unreachable!("ending a lookup sends no query");
                let mut context = LookupContext { now, random, operations: &mut self.operations };
                lookup.end(&mut context, NameError::Overloaded);
                self.timers.remove(lookup.timer);
            }
        }
        self.finished.clear();
    }

    /// Starts a lookup. The table has a free slot.
    fn start(&mut self, name: &DomainName, now: Instant, random: &mut dyn FnMut() -> u64) -> Key {
        let key =
            self.lookups.next_key().expect("the table has at least as many slots as the limit");
        let timer = self.timers.insert(key.token(TokenKind::Name), now + self.bounds.time);
        let sources = self.sources.clone();
        let mut lookup = Lookup::new(name.clone(), key, timer, sources, now, self.bounds.time);
        lookup.start(&mut LookupContext { now, random, operations: &mut self.operations });
        self.timers.set(timer, lookup.next_deadline());
        let inserted = self.lookups.insert(lookup);
        assert!(inserted == Some(key), "the table uses the announced key");
        self.active.insert(name.clone(), key);
        key
    }

    /// Advances a lookup, and collects its results for the waiters.
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

    /// Caches a result, unless it contains no information about the name.
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
