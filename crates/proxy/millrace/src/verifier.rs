//! The password verifier: one thread that checks the passwords of proxy users for all workers.
//! Password hashes are slow on purpose. On a worker, each check would delay all connections of the
//! worker.
//!
//! One thread is enough, because it and the workers remember correct passwords. It also limits the
//! cost of clients that guess passwords to one processor. [`FairQueue`] shares the thread
//! between clients.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use millrace_engine::{Clock, EventWaker, MailboxSender, mailbox};
use millrace_proxy::auth::{
    FairQueue, PasswordCache, VERIFY_RESULTS_MAX, Verifier, VerifierFull, VerifierHandle,
    VerifyOutcome, VerifyRequest, VerifyResult,
};

use crate::program_error::ProgramError;
use crate::threads::{lock, spawn};

/// A handle to the thread, which runs until the process ends.
#[derive(Clone)]
pub(crate) struct VerifierThread(Arc<VerifierShared>);

#[derive(Default)]
struct VerifierShared {
    state: Mutex<VerifierState>,
    /// Notified when the queue gets an entry.
    not_empty: Condvar,
}

#[derive(Default)]
struct VerifierState {
    /// Requests, each with the index of its worker's outbox.
    queue: FairQueue<(usize, VerifyRequest)>,
    /// The outboxes for results, one for each worker that was created.
    outboxes: Vec<MailboxSender<VerifyResult, EventWaker>>,
}

impl VerifierThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start() -> Result<Self, ProgramError> {
        let shared = Arc::new(VerifierShared::default());
        let verifier = Self(shared.clone());
        spawn("verifier", move || shared.run()).map(|_| verifier)
    }

    /// Adds a worker. Returns its handle.
    pub(crate) fn add_worker(&self) -> VerifierHandle<EventWaker> {
        let (outbox, results) = mailbox(VERIFY_RESULTS_MAX);
        let mut state = lock(&self.0.state);
        state.outboxes.push(outbox);
        let number = state.outboxes.len() - 1;
        VerifierHandle {
            verifier: Box::new(WorkerVerifier { shared: self.0.clone(), number }),
            results,
        }
    }
}

/// The sending end of a worker.
struct WorkerVerifier {
    shared: Arc<VerifierShared>,
    number: usize,
}

impl Verifier for WorkerVerifier {
    fn submit(&mut self, request: VerifyRequest) -> Result<(), VerifierFull> {
        let mut state = lock(&self.shared.state);
        let client = request.client();
        let displaced =
            state.queue.push(client, (self.number, request)).map_err(|_| VerifierFull)?;
        if let Some((number, request)) = displaced {
            state.send_result(number, request.result(VerifyOutcome::Dropped));
        }
        self.shared.not_empty.notify_one();
        Ok(())
    }
}

impl VerifierShared {
    /// Runs the thread. It holds no lock while it checks a password.
    fn run(&self) {
        let mut secret = [0; 32];
        millrace_sys::fill_random(&mut secret);
        let (mut passwords, clock) = (PasswordCache::new(secret), Clock::new());
        loop {
            let mut state = lock(&self.state);
            while state.queue.is_empty() {
                state = self.not_empty.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let next = state.queue.pop();
            drop(state);
            if let Some((number, request)) = next {
                let result = passwords.verify(&request, clock.now());
                lock(&self.state).send_result(number, result);
            }
        }
    }
}

impl VerifierState {
    fn send_result(&mut self, number: usize, result: VerifyResult) {
        let outbox = &mut self.outboxes[number];
        // A worker that has ended no longer reads its mailbox and sends no requests, so the results
        // of its last requests fit.
        assert!(outbox.send(result).is_ok(), "the mailbox holds the results of all open requests");
        outbox.flush();
    }
}
