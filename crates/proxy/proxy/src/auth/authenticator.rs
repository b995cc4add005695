//! A worker's part of proxy authentication: what it remembers, and what it has asked.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use millrace_config::{limits::Limits, users::Users};
use millrace_engine::{Engine, Inbox, Instant, Key, Wake, mailbox};
use sha2::Sha256;

use super::cache::{Cache, Ticket};
use super::credentials::Credentials;
use super::queue::{FairQueue, Outcome, Question, Refused, Verdict, Verifier};
use crate::exchange::Reason;
use crate::overload::per_client::Client;

/// Where a worker has passwords compared: whom it asks, and the mailbox for the verdicts, which has
/// room for [`VERDICTS_MAX`] of them.
pub struct Desk<W> {
    /// Takes the worker's questions.
    pub verifier: Box<dyn Verifier>,
    /// Brings the verdicts.
    pub verdicts: Inbox<Verdict, W>,
}

impl<W: Wake> Desk<W> {
    /// One at which nobody sits: for a worker whose services ask for no passwords. Should one be
    /// asked about, the client gets 503.
    pub fn empty() -> Self {
        struct Nobody;
        impl Verifier for Nobody {
            fn ask(&mut self, _: Question) -> Result<(), Refused> {
                Err(Refused)
            }
        }
        Self { verifier: Box::new(Nobody), verdicts: mailbox(0).1 }
    }
}

/// Questions that a worker has outstanding at most. Above it: 503. They are more than the
/// verifier's queue holds, so that in a full one the queue decides who makes room for whom, even if
/// all of it came from one worker; beyond that there are verdicts that were not read yet.
pub const VERDICTS_MAX: usize = 2 * FairQueue::<()>::MAX;
/// How long it is known that credentials are wrong, and of how many. A program that repeats them
/// with every request costs one comparison in this time.
const WRONG_FOR: Duration = Duration::from_secs(5);
const WRONG_MAX: usize = 1024;
/// Files of users that a key is kept for: one for each service at most.
const MACS_MAX: usize = 256;

type User = Arc<[u8]>;
type Judged = Result<Option<User>, Reason>;

/// What a worker remembers of credentials, and what it has asked.
pub(crate) struct Authenticator<W> {
    desk: Desk<W>,
    /// Random, this worker's own; made when it is first needed.
    secret: Option<[u8; 32]>,
    /// By the identity of a file of users: what makes tickets of the credentials for it. So with
    /// another file nothing is known any more.
    macs: Vec<([u8; 32], Hmac<Sha256>)>,
    right: Cache<User>,
    wrong: Cache<()>,
    /// In the order in which they were asked; at most [`VERDICTS_MAX`].
    asked: VecDeque<Asked>,
}

/// A question that the verifier has.
struct Asked {
    ticket: Ticket,
    user: User,
    since: Instant,
    /// The exchanges that wait for it; none once they were given up.
    waiting: Vec<Key>,
}

impl<W: Wake> Authenticator<W> {
    pub(crate) fn new(desk: Desk<W>) -> Self {
        Self {
            desk,
            secret: None,
            macs: Vec::new(),
            right: Cache::default(),
            wrong: Cache::default(),
            asked: VecDeque::new(),
        }
    }

    /// Says how the mailbox of verdicts wakes the worker.
    pub(crate) fn set_wake(&self, wake: W) {
        self.desk.verdicts.set_wake(wake);
    }

    /// Who it is that sent `value`. `None`: the verifier was asked, or has been by somebody else,
    /// and `exchange` waits for its verdict.
    pub(super) fn judge<E: Engine<Waker = W>>(
        &mut self,
        engine: &mut E,
        limits: &Limits,
        users: &Users,
        value: &[u8],
        client: Option<IpAddr>,
        exchange: Key,
    ) -> Judged {
        let now = engine.now();
        let ticket = self.ticket(engine, users, value);
        if let Some(user) = self.right.get(&ticket, now) {
            return Ok(Some(user.clone()));
        }
        if self.wrong.get(&ticket, now).is_some() {
            return Err(Reason::AuthFailed);
        }
        if let Some(asked) = self.asked.iter_mut().find(|asked| asked.ticket == ticket) {
            if now.since(asked.since) >= Duration::from_millis(limits.auth_ms) {
                return Err(Reason::AuthBusy);
            }
            asked.waiting.push(exchange);
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
        if self.asked.len() == VERDICTS_MAX {
            return Err(Reason::AuthBusy);
        }
        let client = client.map(|address| Client::of(address, limits.client_ipv6_prefix));
        let question = Question { ticket, client, hash, password, is_decoy };
        self.desk.verifier.ask(question).map_err(|_| Reason::AuthBusy)?;
        self.asked.push_back(Asked { ticket, user, since: now, waiting: vec![exchange] });
        Ok(None)
    }

    /// What stands for credentials. Whoever reads this worker's memory finds no password in it,
    /// and nobody outside can tell which digests it compares.
    fn ticket<E: Engine>(&mut self, engine: &mut E, users: &Users, value: &[u8]) -> Ticket {
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
    pub(crate) fn read_verdicts(
        &mut self,
        now: Instant,
        limits: &Limits,
    ) -> Vec<(Vec<Key>, Result<User, Reason>)> {
        let Self { desk, right, wrong, asked, .. } = self;
        let settle = |Verdict { ticket, outcome }: Verdict| {
            let place = asked.iter().position(|asked| asked.ticket == ticket);
            let place = place.expect("a verdict is of a question, and comes once");
            let Asked { user, waiting, .. } = asked.remove(place).expect("found just now");
            let result = match outcome {
                Outcome::Right => {
                    let until = now + Duration::from_millis(limits.auth_cache_ms);
                    let max = limits.auth_cache_entries as usize;
                    right.insert(ticket, user.clone(), until, max);
                    Ok(user)
                }
                Outcome::Wrong => {
                    wrong.insert(ticket, (), now + WRONG_FOR, WRONG_MAX);
                    Err(Reason::AuthFailed)
                }
                Outcome::Dropped => Err(Reason::AuthBusy),
            };
            (waiting, result)
        };
        desk.verdicts.drain().map(settle).collect()
    }

    /// Those that have waited for `auth_ms`. What was asked stays asked: its verdict will come, and
    /// whoever tries again then finds it.
    pub(crate) fn give_up(&mut self, now: Instant, limits: &Limits) -> Vec<Key> {
        let wait = Duration::from_millis(limits.auth_ms);
        let over = self.asked.iter_mut().take_while(|asked| now.since(asked.since) >= wait);
        over.flat_map(|asked| std::mem::take(&mut asked.waiting)).collect()
    }

    /// Whether verdicts are to come.
    #[inline]
    pub(crate) fn has_asked(&self) -> bool {
        !self.asked.is_empty()
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
    use crate::auth::Refused;
    use millrace_engine::{Outbox, mailbox};
    use millrace_sim::{Faults, Sim, SimWaker, World};
    use std::sync::Mutex;

    /// Whoever is asked here only listens.
    #[derive(Clone, Default)]
    struct Ear(Arc<Mutex<Vec<Question>>>);

    impl Verifier for Ear {
        fn ask(&mut self, question: Question) -> Result<(), Refused> {
            self.0.lock().unwrap().push(question);
            Ok(())
        }
    }

    struct Stage {
        authenticator: Authenticator<SimWaker>,
        engine: Sim,
        asked: Ear,
        verdicts: Outbox<Verdict, SimWaker>,
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

    impl Stage {
        fn new() -> Self {
            let (verdicts, inbox) = mailbox(VERDICTS_MAX);
            let asked = Ear::default();
            let verifier = Box::new(asked.clone());
            let authenticator = Authenticator::new(Desk { verifier, verdicts: inbox });
            let engine = World::new(1, Faults::None).engine(1 << 20);
            authenticator.set_wake(engine.waker());
            Self { authenticator, engine, asked, verdicts, limits: Limits::default() }
        }

        fn judge(&mut self, users: &Users, value: &str, exchange: u32) -> Judged {
            self.judge_of(None, users, value, exchange)
        }

        fn judge_of(
            &mut self,
            client: Option<IpAddr>,
            users: &Users,
            value: &str,
            exchange: u32,
        ) -> Judged {
            let Self { authenticator, engine, limits, .. } = self;
            authenticator.judge(engine, limits, users, value.as_bytes(), client, key(exchange))
        }

        /// Answers all questions; gives how many there were.
        fn answer(&mut self) -> usize {
            let questions = std::mem::take(&mut *self.asked.0.lock().unwrap());
            for question in &questions {
                assert!(self.verdicts.send(question.answer()).is_ok());
            }
            questions.len()
        }

        fn read(&mut self) -> Vec<(Vec<Key>, Result<User, Reason>)> {
            self.authenticator.read_verdicts(self.engine.now(), &self.limits)
        }
    }

    #[test]
    fn one_comparison_serves_all_who_sent_the_same() {
        let (mut stage, users) = (Stage::new(), users(""));
        for exchange in 0..3 {
            assert_eq!(stage.judge(&users, ALICE, exchange), Ok(None));
        }
        assert_eq!(stage.answer(), 1);
        let told = stage.read();
        assert_eq!(told, [(vec![key(0), key(1), key(2)], Ok(b"alice"[..].into()))]);
        assert_eq!(stage.judge(&users, ALICE, 4), Ok(Some(b"alice"[..].into())));
        assert_eq!(stage.answer(), 0);
    }

    #[test]
    fn a_user_who_is_not_there_costs_as_much_as_a_wrong_password() {
        let (mut stage, users) = (Stage::new(), users(""));
        for value in [WRONG, MALLORY] {
            assert_eq!(stage.judge(&users, value, 0), Ok(None), "{value}");
            assert_eq!(stage.answer(), 1);
            assert_eq!(stage.read(), [(vec![key(0)], Err(Reason::AuthFailed))]);
            assert_eq!(stage.judge(&users, value, 0), Err(Reason::AuthFailed), "known by now");
        }
        assert_eq!(stage.answer(), 0);
    }

    #[test]
    fn another_file_knows_nobody_of_the_one_before() {
        let (mut stage, before) = (Stage::new(), users(""));
        assert_eq!(stage.judge(&before, ALICE, 0), Ok(None));
        stage.answer();
        stage.read();
        assert_eq!(stage.judge(&users("# changed"), ALICE, 0), Ok(None));
        assert_eq!(
            stage.judge(&users(""), ALICE, 0),
            Ok(Some(b"alice"[..].into())),
            "the same text"
        );
    }

    #[test]
    fn who_waited_too_long_is_let_go_and_the_verdict_still_counts() {
        let (mut stage, users) = (Stage::new(), users(""));
        stage.limits.auth_ms = 100;
        assert_eq!(stage.judge(&users, ALICE, 0), Ok(None));
        assert!(stage.authenticator.has_asked());
        let now = stage.engine.now();
        let soon = now + Duration::from_millis(99);
        let late = now + Duration::from_millis(100);
        assert_eq!(stage.authenticator.give_up(soon, &stage.limits), []);
        assert_eq!(stage.authenticator.give_up(late, &stage.limits), [key(0)]);
        assert_eq!(stage.authenticator.give_up(late, &stage.limits), [], "once");
        stage.answer();
        assert_eq!(stage.read(), [(vec![], Ok(b"alice"[..].into()))]);
        assert!(!stage.authenticator.has_asked());
        assert_eq!(stage.judge(&users, ALICE, 1), Ok(Some(b"alice"[..].into())));
    }

    /// Never gets to an answer.
    struct Slow {
        queue: FairQueue<Question>,
        verdicts: Outbox<Verdict, SimWaker>,
    }

    impl Verifier for Slow {
        fn ask(&mut self, question: Question) -> Result<(), Refused> {
            let displaced = self.queue.push(question.client(), question).map_err(|_| Refused)?;
            let dropped = displaced.map(|question| question.verdict(Outcome::Dropped));
            assert!(dropped.is_none_or(|verdict| self.verdicts.send(verdict).is_ok()));
            Ok(())
        }
    }

    #[test]
    fn guessers_at_one_worker_make_room_for_who_comes() {
        let (mut stage, users) = (Stage::new(), users(""));
        let (verdicts, inbox) = mailbox(VERDICTS_MAX);
        let verifier = Box::new(Slow { queue: FairQueue::default(), verdicts });
        stage.authenticator = Authenticator::new(Desk { verifier, verdicts: inbox });
        stage.authenticator.set_wake(stage.engine.waker());
        let guess = |count: u32| ALICE.replace(' ', &" ".repeat(count as usize + 2));
        let each = FairQueue::<Question>::PER_CLIENT_MAX as u32;
        for count in 0..FairQueue::<Question>::MAX as u32 {
            let client = Some(IpAddr::from((0x0a00_0000 + count / each).to_be_bytes()));
            assert_eq!(stage.judge_of(client, &users, &guess(count), count), Ok(None));
        }
        let newcomer = Some(IpAddr::from([192, 0, 2, 1]));
        assert_eq!(stage.judge_of(newcomer, &users, ALICE, 1000), Ok(None));
        let told = stage.read();
        assert!(matches!(told[..], [(_, Err(Reason::AuthBusy))]), "the latest of one guesser");
    }

    #[test]
    fn what_was_dropped_is_asked_again_and_questions_are_bounded() {
        let (mut stage, users) = (Stage::new(), users(""));
        assert_eq!(stage.judge(&users, ALICE, 0), Ok(None));
        let question = stage.asked.0.lock().unwrap().pop().unwrap();
        assert!(stage.verdicts.send(question.verdict(Outcome::Dropped)).is_ok());
        assert_eq!(stage.read(), [(vec![key(0)], Err(Reason::AuthBusy))]);
        assert_eq!(stage.judge(&users, ALICE, 0), Ok(None));
        // More blanks, other tickets.
        let value = |count: usize| ALICE.replace(' ', &" ".repeat(count));
        for count in 2..=VERDICTS_MAX {
            assert_eq!(stage.judge(&users, &value(count), 0), Ok(None));
        }
        let more = stage.judge(&users, &value(VERDICTS_MAX + 1), 0);
        assert_eq!(more, Err(Reason::AuthBusy));
    }
}
