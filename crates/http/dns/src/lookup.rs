//! The lookup of one name for all its waiters: both address families at once, and the candidates of
//! the search list one after the other.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use millrace_engine::{Instant, Key, TimerId, Token, TokenKind};

use super::error::{LookupResult, NameError};
use super::message::{AddressFamily, Answer};
use super::name::DomainName;
use super::operations::{LookupContext, SocketEvent};
use super::query_task::{QueryOptions, QueryResult, QueryTask};
use super::resolver_config::ResolverConfig;

/// The lookup of one name. The IPv6 query is sent first, so that its answer is likely to arrive
/// first.
#[derive(Debug)]
pub(super) struct Lookup<W> {
    pub(super) name: DomainName,
    pub(super) waiters: Vec<W>,
    pub(super) timer: TimerId,
    /// The addresses that the waiters received before the query for the other family ended.
    pub(super) early: Option<Arc<[IpAddr]>>,
    sources: Arc<ResolverConfig>,
    /// Names still to be queried, the current one last.
    candidates: Vec<DomainName>,
    v6: QueryTask,
    v4: QueryTask,
    /// The time at which the whole lookup ends.
    deadline: Instant,
    /// The time for one attempt, see [`QueryOptions::wait`].
    wait: Duration,
    /// The time at which IPv4 addresses are returned without waiting for IPv6.
    early_at: Option<Instant>,
    /// The most severe error of earlier candidates, and the time for which it may be cached.
    error: Option<(NameError, Duration)>,
}

/// The state of a lookup after [`Lookup::progress`].
#[derive(PartialEq, Eq, Debug)]
pub(super) enum LookupProgress {
    /// There is no result yet.
    Pending,
    /// The waiters receive these addresses now. The rest of the lookup is for the cache only.
    Early(Arc<[IpAddr]>),
    /// The lookup ended. The duration is the time for which the result may be cached.
    Done(LookupResult, Duration),
}

impl<W> Lookup<W> {
    /// RFC 8305 section 3: how long to wait for IPv6 addresses after IPv4 addresses arrived. IPv6
    /// addresses that arrive first wait for IPv4 without this limit, because every name server
    /// answers queries of type A. Some never answer those of type AAAA.
    const RESOLUTION_DELAY: Duration = Duration::from_millis(50);
    /// The minimum number of attempts within the time of a lookup. The lookup succeeds even if
    /// three packets are lost.
    const TRIES_MIN: usize = 4;
    /// How long addresses of one family are cached if the query for the other family failed.
    const PARTIAL_MAX: Duration = Duration::from_secs(60);

    /// Creates a lookup that takes at most `limit`. Its tokens and its timer belong to `key`.
    pub(super) fn new(
        name: DomainName,
        key: Key,
        timer: TimerId,
        sources: Arc<ResolverConfig>,
        now: Instant,
        limit: Duration,
    ) -> Self {
        let mut candidates = sources.candidates(&name);
        candidates.reverse();
        let tries = tries_max(&sources, Self::TRIES_MIN);
        Self {
            name,
            waiters: Vec::new(),
            timer,
            early: None,
            candidates,
            v6: QueryTask::new(AddressFamily::V6, token(key, AddressFamily::V6)),
            v4: QueryTask::new(AddressFamily::V4, token(key, AddressFamily::V4)),
            deadline: now + limit,
            wait: sources.timeout.min(limit / tries as u32),
            early_at: None,
            error: None,
            sources,
        }
    }

    /// Sends the queries for the current candidate.
    pub(super) fn start(&mut self, context: &mut LookupContext) {
        let (v6, v4, options) = self.parts();
        v6.start(context, options);
        v4.start(context, options);
    }

    /// Handles an event of the socket of one family's query.
    pub(super) fn handle(
        &mut self,
        context: &mut LookupContext,
        family: AddressFamily,
        event: SocketEvent,
    ) {
        let (v6, v4, options) = self.parts();
        let task = if family == AddressFamily::V6 { v6 } else { v4 };
        task.handle(context, options, event);
    }

    /// Ends the attempts whose time is over, and the lookup if its deadline has passed.
    pub(super) fn expire(&mut self, context: &mut LookupContext) {
        if self.deadline <= context.now {
            self.end(context, NameError::TimedOut);
        }
        let (v6, v4, options) = self.parts();
        v6.expire(context, options);
        v4.expire(context, options);
    }

    /// Ends both queries with `error` unless they have ended, and closes their sockets.
    pub(super) fn end(&mut self, context: &mut LookupContext, error: NameError) {
        self.v6.end(context, error);
        self.v4.end(context, error);
    }

    /// Returns the time at which [`Lookup::expire`] or [`Lookup::progress`] has to be called, if no
    /// event occurs before.
    pub(super) fn next_deadline(&self) -> Instant {
        let early_at = self.early_at.filter(|_| self.early.is_none());
        [self.v6.deadline(), self.v4.deadline(), early_at]
            .into_iter()
            .flatten()
            .fold(self.deadline, Instant::min)
    }

    /// Advances the lookup as far as the results of its queries allow.
    pub(super) fn progress(&mut self, context: &mut LookupContext) -> LookupProgress {
        let now = context.now;
        loop {
            match (self.v6.outcome(), self.v4.outcome()) {
                (Some(v6), Some(v4)) => {
                    if let Some((addresses, time)) = Self::combine(v6, v4) {
                        return LookupProgress::Done(Ok(addresses), time);
                    }
                    let (error, time) = combine_failures(v6, v4);
                    if let Some(over) = self.fail_candidate(error, time, now) {
                        return over;
                    }
                    self.start(context);
                }
                (None, Some(Ok(Answer::Addresses(addresses, _)))) if self.early.is_none() => {
                    let addresses: Arc<[IpAddr]> = addresses.as_slice().into();
                    let early_at =
                        *self.early_at.get_or_insert_with(|| now + Self::RESOLUTION_DELAY);
                    if now < early_at {
                        return LookupProgress::Pending;
                    }
                    self.early = Some(addresses.clone());
                    return LookupProgress::Early(addresses);
                }
                _ => return LookupProgress::Pending,
            }
        }
    }

    /// Returns the addresses of both families and the time for which they may be cached; `None` if
    /// there is none.
    fn combine(v6: &QueryResult, v4: &QueryResult) -> Option<(Arc<[IpAddr]>, Duration)> {
        let mut time = Duration::MAX;
        let mut addresses = [v6, v4].map(|outcome| match outcome {
            Ok(Answer::Addresses(addresses, life)) => {
                time = time.min(*life);
                addresses.as_slice()
            }
            Ok(Answer::NoAddress(_) | Answer::NotFound(_)) => &[],
            Err(_) => {
                time = time.min(Self::PARTIAL_MAX);
                &[]
            }
        });
        let all = interleave(&mut addresses);
        (!all.is_empty()).then(|| (all.into(), time))
    }

    /// Records the error of the current candidate and selects the next candidate. Returns the
    /// result of the lookup if there is no further candidate. A failure of the name servers also
    /// ends the lookup: otherwise `a.b.corp.example` would be used for `a.b` only because the query
    /// for `a.b` failed.
    fn fail_candidate(
        &mut self,
        error: NameError,
        time: Duration,
        now: Instant,
    ) -> Option<LookupProgress> {
        let worst = match self.error {
            Some((before, shorter)) => (before.max(error), shorter.min(time)),
            None => (error, time),
        };
        self.error = Some(worst);
        let is_absent = matches!(error, NameError::NotFound | NameError::NoAddress);
        if is_absent && self.candidates.len() > 1 && now < self.deadline {
            self.candidates.pop();
            self.early_at = None;
            return None;
        }
        Some(LookupProgress::Done(Err(worst.0), worst.1))
    }

    fn parts(&mut self) -> (&mut QueryTask, &mut QueryTask, QueryOptions<'_>) {
        let options = QueryOptions {
            name: self.candidates.last().expect("the name itself is always a candidate"),
            servers: &self.sources.servers,
            tries_max: tries_max(&self.sources, Self::TRIES_MIN),
            wait: self.wait,
        };
        (&mut self.v6, &mut self.v4, options)
    }
}

/// Returns the token of one query of a lookup. Each slot of the lookup table has two tokens.
pub(super) fn token(key: Key, family: AddressFamily) -> Token {
    Token::new(
        TokenKind::Name,
        key.slot * 2 + u32::from(family == AddressFamily::V4),
        key.generation,
    )
}

/// Returns the lookup and the family that [`token`] encoded.
pub(super) fn parse_token(token: Token) -> (Key, AddressFamily) {
    let family = if token.slot().is_multiple_of(2) { AddressFamily::V6 } else { AddressFamily::V4 };
    (Key { slot: token.slot() / 2, generation: token.generation() }, family)
}

fn tries_max(sources: &ResolverConfig, least: usize) -> usize {
    (sources.servers.len() * sources.attempts).max(least)
}

/// Alternates the families, IPv6 first (RFC 8305 section 4). Within a family, the order of the name
/// server is kept: the rules of RFC 6724 need source addresses, which only the kernel knows.
fn interleave(families: &mut [&[IpAddr]; 2]) -> Vec<IpAddr> {
    let mut all = Vec::with_capacity(families[0].len() + families[1].len());
    while families.iter().any(|rest| !rest.is_empty()) {
        for rest in families.iter_mut() {
            all.extend(rest.split_off_first());
        }
    }
    all
}

/// Combines two query results without addresses. Returns the error, and the time for which it may
/// be cached.
///
/// A failure takes precedence over an absence, because the addresses may exist. NXDOMAIN is valid
/// for all types (RFC 8020), even if the answer for the other type states that the name exists.
fn combine_failures(v6: &QueryResult, v4: &QueryResult) -> (NameError, Duration) {
    let one = |outcome: &QueryResult| match outcome {
        Err(error) => (*error, None),
        Ok(Answer::NotFound(time)) => (NameError::NotFound, *time),
        Ok(Answer::NoAddress(time)) => (NameError::NoAddress, *time),
        Ok(Answer::Addresses(..)) => unreachable!("results with addresses are combined before"),
    };
    let ((v6, v6_time), (v4, v4_time)) = (one(v6), one(v4));
    let error = match (v6, v4) {
        (NameError::NotFound, NameError::NoAddress)
        | (NameError::NoAddress, NameError::NotFound) => NameError::NotFound,
        _ => v6.max(v4),
    };
    (error, v6_time.unwrap_or_default().min(v4_time.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_alternate_from_ipv6() {
        let addresses = |texts: &[&str]| -> Vec<IpAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let v6 = addresses(&["2001:db8::1", "2001:db8::2", "2001:db8::3"]);
        let v4 = addresses(&["192.0.2.1"]);
        let expected = addresses(&["2001:db8::1", "192.0.2.1", "2001:db8::2", "2001:db8::3"]);
        assert_eq!(interleave(&mut [&v6, &v4]), expected);
        assert_eq!(interleave(&mut [&[], &v4]), v4);
        assert!(interleave(&mut [&[], &[]]).is_empty());
    }

    #[test]
    fn a_failure_takes_precedence_over_an_absence() {
        let [short, long] = [3, 30].map(|seconds| Some(Duration::from_secs(seconds)));
        for (v6, v4, error, seconds) in [
            (Ok(Answer::NoAddress(short)), Ok(Answer::NoAddress(long)), NameError::NoAddress, 3),
            (Ok(Answer::NoAddress(long)), Ok(Answer::NotFound(long)), NameError::NotFound, 30),
            (Ok(Answer::NotFound(None)), Ok(Answer::NotFound(long)), NameError::NotFound, 0),
            (Ok(Answer::NoAddress(long)), Err(NameError::TimedOut), NameError::TimedOut, 0),
            (Err(NameError::ServerFailed), Ok(Answer::NotFound(long)), NameError::ServerFailed, 0),
        ] {
            assert_eq!(combine_failures(&v6, &v4), (error, Duration::from_secs(seconds)));
        }
    }

    #[test]
    fn tokens_encode_lookup_and_family() {
        for slot in [0, 1, 255] {
            let key = Key { slot, generation: 7 };
            for family in [AddressFamily::V6, AddressFamily::V4] {
                assert_eq!(parse_token(token(key, family)), (key, family));
            }
        }
    }
}
