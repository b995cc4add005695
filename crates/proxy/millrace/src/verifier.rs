//! The verifier: one thread that compares the passwords of proxy users for all workers. Their hashes
//! are slow on purpose; on a worker, each would hold up every connection that it has.
//!
//! One thread is enough, and a bound: it and the workers remember what was right, and somebody who guesses
//! takes no more than one processor. [`FairQueue`] shares it out between clients.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use millrace_engine::{Clock, EventWaker, MailboxSender, mailbox};
use millrace_proxy::auth::{
    FairQueue, PasswordCache, VERIFY_RESULTS_MAX, Verifier, VerifierFull, VerifierHandle,
    VerifyOutcome, VerifyRequest, VerifyResult,
};

use crate::program_error::ProgramError;
use crate::threads::{lock, spawn};

/// A handle to the thread; it ends with the process.
#[derive(Clone)]
pub(crate) struct VerifierThread(Arc<VerifierShared>);

#[derive(Default)]
struct VerifierShared {
    state: Mutex<VerifierState>,
    /// Notified when something was put into an empty queue.
    asked: Condvar,
}

#[derive(Default)]
struct VerifierState {
    /// Questions, each with the number of the desk that it came from.
    queue: FairQueue<(usize, VerifyRequest)>,
    /// By the number of their desks.
    outboxes: Vec<MailboxSender<VerifyResult, EventWaker>>,
}

impl VerifierThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there can be no thread.
    pub(crate) fn start() -> Result<Self, ProgramError> {
        let shared = Arc::new(VerifierShared::default());
        let verifier = Self(shared.clone());
        spawn("verifier", move || shared.run()).map(|_| verifier)
    }

    /// A desk for a further worker.
    pub(crate) fn desk(&self) -> VerifierHandle<EventWaker> {
        let (outbox, verdicts) = mailbox(VERIFY_RESULTS_MAX);
        let mut state = lock(&self.0.state);
        state.outboxes.push(outbox);
        let number = state.outboxes.len() - 1;
        VerifierHandle {
            verifier: Box::new(WorkerVerifier { shared: self.0.clone(), number }),
            results: verdicts,
        }
    }
}

/// A worker's way to the thread.
struct WorkerVerifier {
    shared: Arc<VerifierShared>,
    number: usize,
}

impl Verifier for WorkerVerifier {
    fn submit(&mut self, question: VerifyRequest) -> Result<(), VerifierFull> {
        let mut state = lock(&self.shared.state);
        let client = question.client();
        let displaced =
            state.queue.push(client, (self.number, question)).map_err(|_| VerifierFull)?;
        if let Some((number, question)) = displaced {
            state.send_verdict(number, question.result(VerifyOutcome::Dropped));
        }
        self.shared.asked.notify_one();
        Ok(())
    }
}

impl VerifierShared {
    /// The life of the thread. Nothing is locked while it compares.
    fn run(&self) {
        let mut secret = [0; 32];
        millrace_sys::fill_random(&mut secret);
        let (mut memory, clock) = (PasswordCache::new(secret), Clock::new());
        loop {
            let mut state = lock(&self.state);
            while state.queue.is_empty() {
                state = self.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let next = state.queue.pop();
            drop(state);
            if let Some((number, question)) = next {
                let verdict = memory.verify(&question, clock.now());
                lock(&self.state).send_verdict(number, verdict);
            }
        }
    }
}

impl VerifierState {
    fn send_verdict(&mut self, number: usize, verdict: VerifyResult) {
        let outbox = &mut self.outboxes[number];
        // A worker that has ended reads its mailbox no more; it asks nothing either, so what is
        // left of its questions fits.
        assert!(outbox.send(verdict).is_ok(), "a worker has no more questions than its box holds");
        outbox.flush();
    }
}
