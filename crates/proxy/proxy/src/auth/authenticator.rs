//! A worker's part of proxy authentication: its cache of credentials, and its requests to the
//! verifier.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use millrace_config::{limits::Limits, users::Users};
use millrace_engine::{Engine, Instant, Key, MailboxReceiver, Wake, mailbox};
use sha2::Sha256;

use super::credentials::Credentials;
use super::expiring_cache::{CredentialsDigest, ExpiringCache};
use super::verifier::{
    FairQueue, Verifier, VerifierFull, VerifyOutcome, VerifyRequest, VerifyResult,
};
use crate::exchange::Reason;
use crate::overload::per_client::ClientPrefix;

/// A worker's access to the verifier.
pub struct VerifierHandle<W> {
    /// The verifier, to which the worker submits its requests.
    pub verifier: Box<dyn Verifier>,
    /// The mailbox of the results. It holds up to [`VERIFY_RESULTS_MAX`] of them.
    pub results: MailboxReceiver<VerifyResult, W>,
}

impl<W: Wake> VerifierHandle<W> {
    /// Creates a handle without a verifier, for a worker whose services require no passwords. If a
    /// request has to be verified nevertheless, the client gets 503.
    pub fn unavailable() -> Self {
        struct UnavailableVerifier;
        impl Verifier for UnavailableVerifier {
            fn submit(&mut self, _: VerifyRequest) -> Result<(), VerifierFull> {
                Err(VerifierFull)
            }
        }
        Self { verifier: Box::new(UnavailableVerifier), results: mailbox(0).1 }
    }
}

/// The most requests of a worker that are outstanding at the verifier. Above it, clients get 503.
///
/// The limit is twice the length of the verifier's queue: one worker may have filled the queue, and
/// may have as many unread results. Even then, the queue rather than this limit decides which
/// request is dropped for a new one.
pub const VERIFY_RESULTS_MAX: usize = 2 * FairQueue::<()>::MAX;
/// How long wrong credentials are cached. A program that repeats them with every request costs one
/// comparison in this time.
const MISMATCH_TTL: Duration = Duration::from_secs(5);
/// The most wrong credentials in the cache. Above it, the oldest are removed.
const MISMATCHES_MAX: usize = 1024;
/// The most files of users for which a MAC key is kept. Above it, the oldest key is removed. Each
/// service has at most one file.
const MACS_MAX: usize = 256;

type UserName = Arc<[u8]>;
type AuthResult = Result<Option<UserName>, Reason>;

/// The credentials that a worker has cached, and its requests at the verifier.
pub(crate) struct Authenticator<W> {
    verifier: VerifierHandle<W>,
    /// A random secret of this worker, created when it is first needed.
    secret: Option<[u8; 32]>,
    /// The MAC that computes digests of credentials, by the identity of the file of users. A
    /// changed file has another identity, so that none of the cached credentials match.
    macs: Vec<([u8; 32], Hmac<Sha256>)>,
    /// Credentials that were right, and their users.
    matches: ExpiringCache<UserName>,
    /// Credentials that were wrong.
    mismatches: ExpiringCache<()>,
    /// The requests at the verifier in the order of their submission; at most
    /// [`VERIFY_RESULTS_MAX`].
    pending: VecDeque<PendingRequest>,
}

/// A request at the verifier.
struct PendingRequest {
    digest: CredentialsDigest,
    user: UserName,
    since: Instant,
    /// The exchanges that wait for the result; empty once they have waited too long.
    exchanges: Vec<Key>,
}

impl<W: Wake> Authenticator<W> {
    pub(crate) fn new(verifier: VerifierHandle<W>) -> Self {
        Self {
            verifier,
            secret: None,
            macs: Vec::new(),
            matches: ExpiringCache::default(),
            mismatches: ExpiringCache::default(),
            pending: VecDeque::new(),
        }
    }

    /// Sets how the mailbox of results wakes the worker.
    pub(crate) fn set_wake(&self, wake: W) {
        self.verifier.results.set_waker(wake);
    }

    /// Returns the user with the credentials `value`, or `None` if `exchange` has to wait for the
    /// verifier. Exchanges with the same credentials share one request.
    ///
    /// # Errors
    /// The reason to refuse the request.
    pub(super) fn check<E: Engine<Waker = W>>(
        &mut self,
        engine: &mut E,
        limits: &Limits,
        users: &Users,
        value: &[u8],
        client: Option<IpAddr>,
        exchange: Key,
    ) -> AuthResult {
        let now = engine.now();
        let digest = self.digest(engine, users, value);
        if let Some(user) = self.matches.get(&digest, now) {
            return Ok(Some(user.clone()));
        }
        if self.mismatches.get(&digest, now).is_some() {
            return Err(Reason::AuthFailed);
        }
        if let Some(entry) = self.pending.iter_mut().find(|entry| entry.digest == digest) {
            if now.since(entry.since) >= Duration::from_millis(limits.auth_ms) {
                return Err(Reason::AuthBusy);
            }
            entry.exchanges.push(exchange);
            return Ok(None);
        }
        let (name, password) = match Credentials::parse(value).ok_or(Reason::AuthFailed)? {
            Credentials::Bearer(token) => {
                return users.owner(&token).cloned().map(Some).ok_or(Reason::AuthFailed);
            }
            Credentials::Basic { name, password } => (name, password),
        };
        if let Some(owner) = users.owner(&password).filter(|owner| ***owner == *name) {
            return Ok(Some(owner.clone()));
        }
        let (user, hash, is_decoy) = match users.find(&name) {
            Some(user) => (user.name.clone(), user.hash.clone(), false),
            None => (name.into(), users.decoy().ok_or(Reason::AuthFailed)?.clone(), true),
        };
        if self.pending.len() == VERIFY_RESULTS_MAX {
            return Err(Reason::AuthBusy);
        }
        let client = client.map(|address| ClientPrefix::of(address, limits.client_ipv6_prefix));
        let request = VerifyRequest { digest, client, hash, password, is_decoy };
        self.verifier.verifier.submit(request).map_err(|_| Reason::AuthBusy)?;
        self.pending.push_back(PendingRequest {
            digest,
            user,
            since: now,
            exchanges: vec![exchange],
        });
        Ok(None)
    }

    /// Returns a digest of the credentials. Only digests are stored, so that a dump of the worker's
    /// memory shows no password. The key is secret, so that the duration of a comparison reveals
    /// nothing to a client.
    fn digest<E: Engine>(
        &mut self,
        engine: &mut E,
        users: &Users,
        value: &[u8],
    ) -> CredentialsDigest {
        let identity = users.identity();
        let found = self.macs.iter().position(|(known, _)| known == identity);
        let index = found.unwrap_or_else(|| {
            let secret = self.secret.get_or_insert_with(|| random(engine));
            let mac = Hmac::new_from_slice(&[*secret, *identity].concat());
            if self.macs.len() == MACS_MAX {
                self.macs.remove(0);
            }
            self.macs.push((*identity, mac.expect("a key may have any length")));
            self.macs.len() - 1
        });
        let mut mac = self.macs[index].1.clone();
        mac.update(value);
        mac.finalize().into_bytes().into()
    }

    /// Takes the results that have arrived. Each comes with the exchanges that waited for it, and
    /// the user or the reason to refuse them.
    pub(crate) fn take_results(
        &mut self,
        now: Instant,
        limits: &Limits,
    ) -> Vec<(Vec<Key>, Result<UserName, Reason>)> {
        let Self { verifier, matches, mismatches, pending, .. } = self;
        let apply = |VerifyResult { digest, outcome }: VerifyResult| {
            let position = pending.iter().position(|entry| entry.digest == digest);
            let position = position.expect("each request has one result");
            let PendingRequest { user, exchanges, .. } =
                pending.remove(position).expect("it was found just now");
            let result = match outcome {
                VerifyOutcome::Match => {
                    let until = now + Duration::from_millis(limits.auth_cache_ms);
                    let max = limits.auth_cache_entries as usize;
                    matches.insert(digest, user.clone(), until, max);
                    Ok(user)
                }
                VerifyOutcome::Mismatch => {
                    mismatches.insert(digest, (), now + MISMATCH_TTL, MISMATCHES_MAX);
                    Err(Reason::AuthFailed)
                }
                VerifyOutcome::Dropped => Err(Reason::AuthBusy),
            };
            (exchanges, result)
        };
        verifier.results.drain().map(apply).collect()
    }

    /// Returns the exchanges that have waited for `auth_ms`. Their requests stay at the verifier;
    /// the results will be cached for clients that try again.
    pub(crate) fn expire_waiters(&mut self, now: Instant, limits: &Limits) -> Vec<Key> {
        let wait = Duration::from_millis(limits.auth_ms);
        let over = self.pending.iter_mut().take_while(|entry| now.since(entry.since) >= wait);
        over.flat_map(|entry| std::mem::take(&mut entry.exchanges)).collect()
    }

    /// Returns whether results are outstanding.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }
}

fn random<E: Engine>(engine: &mut E) -> [u8; 32] {
    let mut secret = [0; 32];
    for part in secret.chunks_exact_mut(8) {
        part.copy_from_slice(&engine.random().to_ne_bytes());
    }
    secret
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::VerifierFull;
    use millrace_engine::{MailboxSender, mailbox};
    use millrace_sim::{Faults, SimEngine, SimWaker, World};
    use std::sync::Mutex;

    /// A verifier that only records its requests.
    #[derive(Clone, Default)]
    struct RecordingVerifier(Arc<Mutex<Vec<VerifyRequest>>>);

    impl Verifier for RecordingVerifier {
        fn submit(&mut self, request: VerifyRequest) -> Result<(), VerifierFull> {
            self.0.lock().unwrap().push(request);
            Ok(())
        }
    }

    struct Fixture {
        authenticator: Authenticator<SimWaker>,
        engine: SimEngine,
        requests: RecordingVerifier,
        results: MailboxSender<VerifyResult, SimWaker>,
        limits: Limits,
    }

    const ALICE: &str = "Basic YWxpY2U6c2VjcmV0";
    const WRONG: &str = "Basic YWxpY2U6d3Jvbmc=";
    const MALLORY: &str = "Basic bWFsbG9yeTpzZWNyZXQ=";

    fn users(more: &str) -> Users {
        let hash = "$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";
        Users::parse("users", &format!("alice:{hash}\n{more}")).unwrap()
    }

    fn key(slot: u32) -> Key {
        Key { slot, generation: 1 }
    }

    impl Fixture {
        fn new() -> Self {
            let (results, inbox) = mailbox(VERIFY_RESULTS_MAX);
            let requests = RecordingVerifier::default();
            let verifier = Box::new(requests.clone());
            let authenticator = Authenticator::new(VerifierHandle { verifier, results: inbox });
            let engine = World::new(1, Faults::None).engine(1 << 20);
            authenticator.set_wake(engine.waker());
            Self { authenticator, engine, requests, results, limits: Limits::default() }
        }

        fn check(&mut self, users: &Users, value: &str, exchange: u32) -> AuthResult {
            self.check_from(None, users, value, exchange)
        }

        fn check_from(
            &mut self,
            client: Option<IpAddr>,
            users: &Users,
            value: &str,
            exchange: u32,
        ) -> AuthResult {
            let Self { authenticator, engine, limits, .. } = self;
            authenticator.check(engine, limits, users, value.as_bytes(), client, key(exchange))
        }

        /// Verifies all requests. Returns their number.
        fn verify_all(&mut self) -> usize {
            let requests = std::mem::take(&mut *self.requests.0.lock().unwrap());
            for request in &requests {
                assert!(self.results.send(request.verify()).is_ok());
            }
            requests.len()
        }

        fn read(&mut self) -> Vec<(Vec<Key>, Result<UserName, Reason>)> {
            self.authenticator.take_results(self.engine.now(), &self.limits)
        }
    }

    #[test]
    fn one_comparison_serves_all_exchanges_with_the_same_credentials() {
        let (mut fixture, users) = (Fixture::new(), users(""));
        for exchange in 0..3 {
            assert_eq!(fixture.check(&users, ALICE, exchange), Ok(None));
        }
        assert_eq!(fixture.verify_all(), 1);
        let results = fixture.read();
        assert_eq!(results, [(vec![key(0), key(1), key(2)], Ok(b"alice"[..].into()))]);
        assert_eq!(fixture.check(&users, ALICE, 4), Ok(Some(b"alice"[..].into())));
        assert_eq!(fixture.verify_all(), 0);
    }

    #[test]
    fn an_unknown_user_costs_as_much_as_a_wrong_password() {
        let (mut fixture, users) = (Fixture::new(), users(""));
        for value in [WRONG, MALLORY] {
            assert_eq!(fixture.check(&users, value, 0), Ok(None), "{value}");
            assert_eq!(fixture.verify_all(), 1);
            assert_eq!(fixture.read(), [(vec![key(0)], Err(Reason::AuthFailed))]);
            assert_eq!(fixture.check(&users, value, 0), Err(Reason::AuthFailed), "cached");
        }
        assert_eq!(fixture.verify_all(), 0);
    }

    #[test]
    fn a_changed_file_of_users_invalidates_the_cache() {
        let (mut fixture, before) = (Fixture::new(), users(""));
        assert_eq!(fixture.check(&before, ALICE, 0), Ok(None));
        fixture.verify_all();
        fixture.read();
        assert_eq!(fixture.check(&users("# changed"), ALICE, 0), Ok(None));
        assert_eq!(
            fixture.check(&users(""), ALICE, 0),
            Ok(Some(b"alice"[..].into())),
            "the same text"
        );
    }

    #[test]
    fn exchanges_expire_and_a_late_result_is_cached() {
        let (mut fixture, users) = (Fixture::new(), users(""));
        fixture.limits.auth_ms = 100;
        assert_eq!(fixture.check(&users, ALICE, 0), Ok(None));
        assert!(fixture.authenticator.has_pending());
        let now = fixture.engine.now();
        let soon = now + Duration::from_millis(99);
        let late = now + Duration::from_millis(100);
        assert_eq!(fixture.authenticator.expire_waiters(soon, &fixture.limits), []);
        assert_eq!(fixture.authenticator.expire_waiters(late, &fixture.limits), [key(0)]);
        assert_eq!(fixture.authenticator.expire_waiters(late, &fixture.limits), [], "once");
        fixture.verify_all();
        assert_eq!(fixture.read(), [(vec![], Ok(b"alice"[..].into()))]);
        assert!(!fixture.authenticator.has_pending());
        assert_eq!(fixture.check(&users, ALICE, 1), Ok(Some(b"alice"[..].into())));
    }

    /// A verifier that never verifies a request.
    struct StalledVerifier {
        queue: FairQueue<VerifyRequest>,
        results: MailboxSender<VerifyResult, SimWaker>,
    }

    impl Verifier for StalledVerifier {
        fn submit(&mut self, request: VerifyRequest) -> Result<(), VerifierFull> {
            let displaced = self.queue.push(request.client(), request).map_err(|_| VerifierFull)?;
            let dropped = displaced.map(|request| request.result(VerifyOutcome::Dropped));
            assert!(dropped.is_none_or(|result| self.results.send(result).is_ok()));
            Ok(())
        }
    }

    #[test]
    fn requests_of_guessing_clients_are_dropped_for_a_new_client() {
        let (mut fixture, users) = (Fixture::new(), users(""));
        let (results, inbox) = mailbox(VERIFY_RESULTS_MAX);
        let verifier = Box::new(StalledVerifier { queue: FairQueue::default(), results });
        fixture.authenticator = Authenticator::new(VerifierHandle { verifier, results: inbox });
        fixture.authenticator.set_wake(fixture.engine.waker());
        let guess = |count: u32| ALICE.replace(' ', &" ".repeat(count as usize + 2));
        let each = FairQueue::<VerifyRequest>::PER_CLIENT_MAX as u32;
        for count in 0..FairQueue::<VerifyRequest>::MAX as u32 {
            let client = Some(IpAddr::from((0x0a00_0000 + count / each).to_be_bytes()));
            assert_eq!(fixture.check_from(client, &users, &guess(count), count), Ok(None));
        }
        let newcomer = Some(IpAddr::from([192, 0, 2, 1]));
        assert_eq!(fixture.check_from(newcomer, &users, ALICE, 1000), Ok(None));
        let results = fixture.read();
        assert!(
            matches!(results[..], [(_, Err(Reason::AuthBusy))]),
            "the latest request of a guessing client"
        );
    }

    #[test]
    fn a_dropped_request_is_submitted_again_and_requests_are_bounded() {
        let (mut fixture, users) = (Fixture::new(), users(""));
        assert_eq!(fixture.check(&users, ALICE, 0), Ok(None));
        let request = fixture.requests.0.lock().unwrap().pop().unwrap();
        assert!(fixture.results.send(request.result(VerifyOutcome::Dropped)).is_ok());
        assert_eq!(fixture.read(), [(vec![key(0)], Err(Reason::AuthBusy))]);
        assert_eq!(fixture.check(&users, ALICE, 0), Ok(None));
        // More spaces make other digests.
        let value = |count: usize| ALICE.replace(' ', &" ".repeat(count));
        for count in 2..=VERIFY_RESULTS_MAX {
            assert_eq!(fixture.check(&users, &value(count), 0), Ok(None));
        }
        let more = fixture.check(&users, &value(VERIFY_RESULTS_MAX + 1), 0);
        assert_eq!(more, Err(Reason::AuthBusy));
    }
}
