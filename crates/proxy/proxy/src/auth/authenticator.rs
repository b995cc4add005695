//! A worker's part of proxy authentication: what it remembers, and what it has asked.

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

/// Where a worker has passwords compared: whom it asks, and the mailbox for the verdicts, which has
/// room for [`VERDICTS_MAX`] of them.
pub struct VerifierHandle<W> {
    /// Takes the worker's questions.
    pub verifier: Box<dyn Verifier>,
    /// Brings the verdicts.
    pub results: MailboxReceiver<VerifyResult, W>,
}

impl<W: Wake> VerifierHandle<W> {
    /// One at which nobody sits: for a worker whose services ask for no passwords. Should one be
    /// asked about, the client gets 503.
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

/// Questions that a worker has outstanding at most. Above it: 503. They are more than the
/// verifier's queue holds, so that in a full one the queue decides who makes room for whom, even if
/// all of it came from one worker; beyond that there are verdicts that were not read yet.
pub const VERIFY_RESULTS_MAX: usize = 2 * FairQueue::<()>::MAX;
/// How long it is known that credentials are wrong, and of how many. A program that repeats them
/// with every request costs one comparison in this time.
const MISMATCH_TTL: Duration = Duration::from_secs(5);
const MISMATCHES_MAX: usize = 1024;
/// Files of users that a key is kept for: one for each service at most.
const MACS_MAX: usize = 256;

type UserName = Arc<[u8]>;
type AuthResult = Result<Option<UserName>, Reason>;

/// What a worker remembers of credentials, and what it has asked.
pub(crate) struct Authenticator<W> {
    verifier: VerifierHandle<W>,
    /// Random, this worker's own; made when it is first needed.
    secret: Option<[u8; 32]>,
    /// By the identity of a file of users: what makes tickets of the credentials for it. So with
    /// another file nothing is known any more.
    macs: Vec<([u8; 32], Hmac<Sha256>)>,
    matches: ExpiringCache<UserName>,
    mismatches: ExpiringCache<()>,
    /// In the order in which they were asked; at most [`VERDICTS_MAX`].
    pending: VecDeque<PendingRequest>,
}

/// A question that the verifier has.
struct PendingRequest {
    digest: CredentialsDigest,
    user: UserName,
    since: Instant,
    /// The exchanges that wait for it; none once they were given up.
    exchanges: Vec<Key>,
}

impl<W: Wake> Authenticator<W> {
    pub(crate) fn new(desk: VerifierHandle<W>) -> Self {
        Self {
            verifier: desk,
            secret: None,
            macs: Vec::new(),
            matches: ExpiringCache::default(),
            mismatches: ExpiringCache::default(),
            pending: VecDeque::new(),
        }
    }

    /// Says how the mailbox of verdicts wakes the worker.
    pub(crate) fn set_wake(&self, wake: W) {
        self.verifier.results.set_waker(wake);
    }

    /// Who it is that sent `value`. `None`: the verifier was asked, or has been by somebody else,
    /// and `exchange` waits for its verdict.
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
        let ticket = self.digest(engine, users, value);
        if let Some(user) = self.matches.get(&ticket, now) {
            return Ok(Some(user.clone()));
        }
        if self.mismatches.get(&ticket, now).is_some() {
            return Err(Reason::AuthFailed);
        }
        if let Some(asked) = self.pending.iter_mut().find(|asked| asked.digest == ticket) {
            if now.since(asked.since) >= Duration::from_millis(limits.auth_ms) {
                return Err(Reason::AuthBusy);
            }
            asked.exchanges.push(exchange);
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
        let question = VerifyRequest { digest: ticket, client, hash, password, is_decoy };
        self.verifier.verifier.submit(question).map_err(|_| Reason::AuthBusy)?;
        self.pending.push_back(PendingRequest {
            digest: ticket,
            user,
            since: now,
            exchanges: vec![exchange],
        });
        Ok(None)
    }

    /// What stands for credentials. Whoever reads this worker's memory finds no password in it,
    /// and nobody outside can tell which digests it compares.
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

    /// What has come from the verifier: who waited for it, and what becomes of them.
    pub(crate) fn take_results(
        &mut self,
        now: Instant,
        limits: &Limits,
    ) -> Vec<(Vec<Key>, Result<UserName, Reason>)> {
        let Self { verifier: desk, matches: right, mismatches: wrong, pending: asked, .. } = self;
        let settle = |VerifyResult { digest, outcome }: VerifyResult| {
            let place = asked.iter().position(|asked| asked.digest == digest);
            let place = place.expect("a verdict is of a question, and comes once");
            let PendingRequest { user, exchanges: waiting, .. } =
                asked.remove(place).expect("found just now");
            let result = match outcome {
                VerifyOutcome::Match => {
                    let until = now + Duration::from_millis(limits.auth_cache_ms);
                    let max = limits.auth_cache_entries as usize;
                    right.insert(digest, user.clone(), until, max);
                    Ok(user)
                }
                VerifyOutcome::Mismatch => {
                    wrong.insert(digest, (), now + MISMATCH_TTL, MISMATCHES_MAX);
                    Err(Reason::AuthFailed)
                }
                VerifyOutcome::Dropped => Err(Reason::AuthBusy),
            };
            (waiting, result)
        };
        desk.results.drain().map(settle).collect()
    }

    /// Those that have waited for `auth_ms`. What was asked stays asked: its verdict will come, and
    /// whoever tries again then finds it.
    pub(crate) fn expire_waiters(&mut self, now: Instant, limits: &Limits) -> Vec<Key> {
        let wait = Duration::from_millis(limits.auth_ms);
        let over = self.pending.iter_mut().take_while(|asked| now.since(asked.since) >= wait);
        over.flat_map(|asked| std::mem::take(&mut asked.exchanges)).collect()
    }

    /// Whether verdicts are to come.
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

    /// Whoever is asked here only listens.
    #[derive(Clone, Default)]
    struct RecordingVerifier(Arc<Mutex<Vec<VerifyRequest>>>);

    impl Verifier for RecordingVerifier {
        fn submit(&mut self, question: VerifyRequest) -> Result<(), VerifierFull> {
            self.0.lock().unwrap().push(question);
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
            let (verdicts, inbox) = mailbox(VERIFY_RESULTS_MAX);
            let asked = RecordingVerifier::default();
            let verifier = Box::new(asked.clone());
            let authenticator = Authenticator::new(VerifierHandle { verifier, results: inbox });
            let engine = World::new(1, Faults::None).engine(1 << 20);
            authenticator.set_wake(engine.waker());
            Self {
                authenticator,
                engine,
                requests: asked,
                results: verdicts,
                limits: Limits::default(),
            }
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

        /// Answers all questions; gives how many there were.
        fn verify_all(&mut self) -> usize {
            let questions = std::mem::take(&mut *self.requests.0.lock().unwrap());
            for question in &questions {
                assert!(self.results.send(question.verify()).is_ok());
            }
            questions.len()
        }

        fn read(&mut self) -> Vec<(Vec<Key>, Result<UserName, Reason>)> {
            self.authenticator.take_results(self.engine.now(), &self.limits)
        }
    }

    #[test]
    fn one_comparison_serves_all_who_sent_the_same() {
        let (mut stage, users) = (Fixture::new(), users(""));
        for exchange in 0..3 {
            assert_eq!(stage.check(&users, ALICE, exchange), Ok(None));
        }
        assert_eq!(stage.verify_all(), 1);
        let told = stage.read();
        assert_eq!(told, [(vec![key(0), key(1), key(2)], Ok(b"alice"[..].into()))]);
        assert_eq!(stage.check(&users, ALICE, 4), Ok(Some(b"alice"[..].into())));
        assert_eq!(stage.verify_all(), 0);
    }

    #[test]
    fn a_user_who_is_not_there_costs_as_much_as_a_wrong_password() {
        let (mut stage, users) = (Fixture::new(), users(""));
        for value in [WRONG, MALLORY] {
            assert_eq!(stage.check(&users, value, 0), Ok(None), "{value}");
            assert_eq!(stage.verify_all(), 1);
            assert_eq!(stage.read(), [(vec![key(0)], Err(Reason::AuthFailed))]);
            assert_eq!(stage.check(&users, value, 0), Err(Reason::AuthFailed), "known by now");
        }
        assert_eq!(stage.verify_all(), 0);
    }

    #[test]
    fn another_file_knows_nobody_of_the_one_before() {
        let (mut stage, before) = (Fixture::new(), users(""));
        assert_eq!(stage.check(&before, ALICE, 0), Ok(None));
        stage.verify_all();
        stage.read();
        assert_eq!(stage.check(&users("# changed"), ALICE, 0), Ok(None));
        assert_eq!(
            stage.check(&users(""), ALICE, 0),
            Ok(Some(b"alice"[..].into())),
            "the same text"
        );
    }

    #[test]
    fn who_waited_too_long_is_let_go_and_the_verdict_still_counts() {
        let (mut stage, users) = (Fixture::new(), users(""));
        stage.limits.auth_ms = 100;
        assert_eq!(stage.check(&users, ALICE, 0), Ok(None));
        assert!(stage.authenticator.has_pending());
        let now = stage.engine.now();
        let soon = now + Duration::from_millis(99);
        let late = now + Duration::from_millis(100);
        assert_eq!(stage.authenticator.expire_waiters(soon, &stage.limits), []);
        assert_eq!(stage.authenticator.expire_waiters(late, &stage.limits), [key(0)]);
        assert_eq!(stage.authenticator.expire_waiters(late, &stage.limits), [], "once");
        stage.verify_all();
        assert_eq!(stage.read(), [(vec![], Ok(b"alice"[..].into()))]);
        assert!(!stage.authenticator.has_pending());
        assert_eq!(stage.check(&users, ALICE, 1), Ok(Some(b"alice"[..].into())));
    }

    /// Never gets to an answer.
    struct StalledVerifier {
        queue: FairQueue<VerifyRequest>,
        results: MailboxSender<VerifyResult, SimWaker>,
    }

    impl Verifier for StalledVerifier {
        fn submit(&mut self, question: VerifyRequest) -> Result<(), VerifierFull> {
            let displaced =
                self.queue.push(question.client(), question).map_err(|_| VerifierFull)?;
            let dropped = displaced.map(|question| question.result(VerifyOutcome::Dropped));
            assert!(dropped.is_none_or(|verdict| self.results.send(verdict).is_ok()));
            Ok(())
        }
    }

    #[test]
    fn guessers_at_one_worker_make_room_for_who_comes() {
        let (mut stage, users) = (Fixture::new(), users(""));
        let (verdicts, inbox) = mailbox(VERIFY_RESULTS_MAX);
        let verifier = Box::new(StalledVerifier { queue: FairQueue::default(), results: verdicts });
        stage.authenticator = Authenticator::new(VerifierHandle { verifier, results: inbox });
        stage.authenticator.set_wake(stage.engine.waker());
        let guess = |count: u32| ALICE.replace(' ', &" ".repeat(count as usize + 2));
        let each = FairQueue::<VerifyRequest>::PER_CLIENT_MAX as u32;
        for count in 0..FairQueue::<VerifyRequest>::MAX as u32 {
            let client = Some(IpAddr::from((0x0a00_0000 + count / each).to_be_bytes()));
            assert_eq!(stage.check_from(client, &users, &guess(count), count), Ok(None));
        }
        let newcomer = Some(IpAddr::from([192, 0, 2, 1]));
        assert_eq!(stage.check_from(newcomer, &users, ALICE, 1000), Ok(None));
        let told = stage.read();
        assert!(matches!(told[..], [(_, Err(Reason::AuthBusy))]), "the latest of one guesser");
    }

    #[test]
    fn what_was_dropped_is_asked_again_and_questions_are_bounded() {
        let (mut stage, users) = (Fixture::new(), users(""));
        assert_eq!(stage.check(&users, ALICE, 0), Ok(None));
        let question = stage.requests.0.lock().unwrap().pop().unwrap();
        assert!(stage.results.send(question.result(VerifyOutcome::Dropped)).is_ok());
        assert_eq!(stage.read(), [(vec![key(0)], Err(Reason::AuthBusy))]);
        assert_eq!(stage.check(&users, ALICE, 0), Ok(None));
        // More blanks, other tickets.
        let value = |count: usize| ALICE.replace(' ', &" ".repeat(count));
        for count in 2..=VERIFY_RESULTS_MAX {
            assert_eq!(stage.check(&users, &value(count), 0), Ok(None));
        }
        let more = stage.check(&users, &value(VERIFY_RESULTS_MAX + 1), 0);
        assert_eq!(more, Err(Reason::AuthBusy));
    }
}
