//! The lookup of one name for all who wait for it: both families at once, one candidate of the
//! search list after the other.

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

/// See the module. IPv6 is asked first, so that its answer is likely the first to come.
#[derive(Debug)]
pub(super) struct Lookup<W> {
    pub(super) name: DomainName,
    pub(super) waiters: Vec<W>,
    pub(super) timer: TimerId,
    /// What those who wait were given already, while the other family is still asked.
    pub(super) early: Option<Arc<[IpAddr]>>,
    sources: Arc<ResolverConfig>,
    /// Names still to ask for, the current one last.
    candidates: Vec<DomainName>,
    v6: QueryTask,
    v4: QueryTask,
    /// When everything is over.
    deadline: Instant,
    /// See [`Plan::wait`].
    wait: Duration,
    /// When IPv4 addresses are given without waiting for IPv6 any longer.
    early_at: Option<Instant>,
    /// The worst that the candidates before came to, and how long that may be remembered.
    error: Option<(NameError, Duration)>,
}

/// How a lookup stands.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum LookupProgress {
    /// Nothing to tell yet.
    Pending,
    /// Those who wait should have these now; the rest is only for the cache.
    Early(Arc<[IpAddr]>),
    /// It is over, with how long this may be remembered.
    Done(LookupResult, Duration),
}

impl<W> Lookup<W> {
    /// RFC 8305 section 3: how long IPv6 addresses may come later than IPv4 ones. The other way
    /// round there is no such haste: who never answers is a server that does not know AAAA.
    const RESOLUTION_DELAY: Duration = Duration::from_millis(50);
    /// Tries within the time of a lookup, at least: a packet may get lost, and another one.
    const TRIES_MIN: usize = 4;
    /// How long addresses of one family are remembered when the question for the other failed.
    const PARTIAL_MAX: Duration = Duration::from_secs(60);

    /// A lookup that has `limit` in all; its tokens and timer are those of `key`.
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

    /// Asks for the current candidate.
    pub(super) fn start(&mut self, desk: &mut LookupContext) {
        let (v6, v4, plan) = self.parts();
        v6.start(desk, plan);
        v4.start(desk, plan);
    }

    /// Takes what became of the socket that `family` is asked over.
    pub(super) fn handle(
        &mut self,
        desk: &mut LookupContext,
        family: AddressFamily,
        event: SocketEvent,
    ) {
        let (v6, v4, plan) = self.parts();
        let question = if family == AddressFamily::V6 { v6 } else { v4 };
        question.handle(desk, plan, event);
    }

    /// Gives up what has taken too long.
    pub(super) fn expire(&mut self, desk: &mut LookupContext) {
        if self.deadline <= desk.now {
            self.end(desk, NameError::TimedOut);
        }
        let (v6, v4, plan) = self.parts();
        v6.expire(desk, plan);
        v4.expire(desk, plan);
    }

    /// Ends both questions that are not over, and closes their sockets.
    pub(super) fn end(&mut self, desk: &mut LookupContext, error: NameError) {
        self.v6.end(desk, error);
        self.v4.end(desk, error);
    }

    /// When [`Lookup::expire`] or [`Lookup::progress`] has something to do, if nothing comes
    /// before.
    pub(super) fn next_deadline(&self) -> Instant {
        let early_at = self.early_at.filter(|_| self.early.is_none());
        [self.v6.deadline(), self.v4.deadline(), early_at]
            .into_iter()
            .flatten()
            .fold(self.deadline, Instant::min)
    }

    /// Moves on as far as what has come allows.
    pub(super) fn progress(&mut self, desk: &mut LookupContext) -> LookupProgress {
        let now = desk.now;
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
                    self.start(desk);
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

    /// Both families' addresses, and how long they stay; `None` when there is none.
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

    /// Notes what the current candidate came to, and goes to the next. Gives the end of the lookup
    /// when there is none, or when the name servers cannot be asked: the next candidate would find
    /// them no better, and `host` must not become `host.corp.example` because of that.
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
        let goes_on = matches!(error, NameError::NotFound | NameError::NoAddress);
        if goes_on && self.candidates.len() > 1 && now < self.deadline {
            self.candidates.pop();
            self.early_at = None;
            return None;
        }
        Some(LookupProgress::Done(Err(worst.0), worst.1))
    }

    fn parts(&mut self) -> (&mut QueryTask, &mut QueryTask, QueryOptions<'_>) {
        let plan = QueryOptions {
            name: self.candidates.last().expect("the name itself is always a candidate"),
            servers: &self.sources.servers,
            tries_max: tries_max(&self.sources, Self::TRIES_MIN),
            wait: self.wait,
        };
        (&mut self.v6, &mut self.v4, plan)
    }
}

/// The token of a lookup's question: the slots of a table of lookups, two each.
pub(super) fn token(key: Key, family: AddressFamily) -> Token {
    Token::new(
        TokenKind::Name,
        key.slot * 2 + u32::from(family == AddressFamily::V4),
        key.generation,
    )
}

/// The lookup and the question that [`token`] was made of.
pub(super) fn parse_token(token: Token) -> (Key, AddressFamily) {
    let family = if token.slot().is_multiple_of(2) { AddressFamily::V6 } else { AddressFamily::V4 };
    (Key { slot: token.slot() / 2, generation: token.generation() }, family)
}

fn tries_max(sources: &ResolverConfig, least: usize) -> usize {
    (sources.servers.len() * sources.attempts).max(least)
}

/// RFC 8305 section 4: the families alternate, IPv6 first. The order within a family is the name
/// server's; the rules of RFC 6724 need the source addresses, which only the kernel knows.
fn interleave(families: &mut [&[IpAddr]; 2]) -> Vec<IpAddr> {
    let mut all = Vec::with_capacity(families[0].len() + families[1].len());
    while families.iter().any(|rest| !rest.is_empty()) {
        for rest in families.iter_mut() {
            all.extend(rest.split_off_first());
        }
    }
    all
}

/// What two outcomes without any address mean together, and how long that may be remembered. A
/// failure is worse than an absence: the addresses may be there. That a name does not exist is
/// true for all types (RFC 8020), also when the answer for one of them was wrongly that it does.
fn combine_failures(v6: &QueryResult, v4: &QueryResult) -> (NameError, Duration) {
    let one = |outcome: &QueryResult| match outcome {
        Err(error) => (*error, None),
        Ok(Answer::NotFound(time)) => (NameError::NotFound, *time),
        Ok(Answer::NoAddress(time)) => (NameError::NoAddress, *time),
        Ok(Answer::Addresses(..)) => unreachable!("combine took them"),
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
    fn absence_and_failure_are_weighed() {
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
    fn tokens_give_back_lookup_and_family() {
        for slot in [0, 1, 255] {
            let key = Key { slot, generation: 7 };
            for family in [AddressFamily::V6, AddressFamily::V4] {
                assert_eq!(parse_token(token(key, family)), (key, family));
            }
        }
    }
}
