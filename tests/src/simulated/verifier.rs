//! The password verifier of the simulated world. Each request takes virtual time, more in a hostile
//! world. Requests are processed in the order of the real verifier's queue.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_config::Config;
use millrace_config::users::{USERS_BYTES_MAX, Users};
use millrace_engine::{Instant, MailboxSender, mailbox};
use millrace_proxy::auth::{
    FairQueue, VERIFY_RESULTS_MAX, Verifier, VerifierFull, VerifierHandle, VerifyOutcome,
    VerifyRequest, VerifyResult,
};
use millrace_sim::{Actor, SimWaker, World};

/// Limit of the time of a comparison in milliseconds.
const TIME_MS_MAX: u64 = 300;
/// The same limit for one in eight comparisons in a hostile world. It is longer than a request
/// waits.
const TIME_HOSTILE_MS_MAX: u64 = 20_000;

/// The verifier, as an actor.
#[derive(Default)]
pub(super) struct SimVerifier {
    shared: Arc<Mutex<VerifierState>>,
    hostile: bool,
    /// When the current comparison ends, its worker and its request.
    busy: Option<(Instant, usize, VerifyRequest)>,
}

#[derive(Default)]
struct VerifierState {
    queue: FairQueue<(usize, VerifyRequest)>,
    outboxes: Vec<MailboxSender<VerifyResult, SimWaker>>,
}

impl SimVerifier {
    pub(super) fn new(hostile: bool) -> Self {
        Self { hostile, ..Self::default() }
    }

    /// Returns a handle for another worker.
    pub(super) fn new_handle(&self) -> VerifierHandle<SimWaker> {
        let (outbox, results) = mailbox(VERIFY_RESULTS_MAX);
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.outboxes.push(outbox);
        let number = shared.outboxes.len() - 1;
        VerifierHandle {
            verifier: Box::new(SimVerifierClient { shared: self.shared.clone(), number }),
            results,
        }
    }

    fn time(&self, world: &World) -> Duration {
        let most = match self.hostile && world.random().is_multiple_of(8) {
            true => TIME_HOSTILE_MS_MAX,
            false => TIME_MS_MAX,
        };
        Duration::from_millis(1 + world.random() % most)
    }
}

struct SimVerifierClient {
    shared: Arc<Mutex<VerifierState>>,
    number: usize,
}

impl Verifier for SimVerifierClient {
    fn submit(&mut self, request: VerifyRequest) -> Result<(), VerifierFull> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let client = request.client();
        let displaced =
            shared.queue.push(client, (self.number, request)).map_err(|_| VerifierFull)?;
        if let Some((number, request)) = displaced {
            shared.send_result(number, request.result(VerifyOutcome::Dropped));
        }
        Ok(())
    }
}

impl VerifierState {
    fn send_result(&mut self, number: usize, result: VerifyResult) {
        let outbox = &mut self.outboxes[number];
        assert!(
            outbox.send(result).is_ok(),
            "a mailbox has room for the results of all pending requests"
        );
        outbox.flush();
    }
}

impl Actor for SimVerifier {
    fn step(&mut self, world: &World) -> Option<Instant> {
        loop {
            if let Some((until, number, request)) = self.busy.take() {
                if world.now() < until {
                    self.busy = Some((until, number, request));
                    return Some(until);
                }
                world.trace_note("verifier", "sends a result");
                let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
                shared.send_result(number, request.verify());
            }
            let next = self.shared.lock().unwrap_or_else(PoisonError::into_inner).queue.pop();
            let (number, request) = next?;
            self.busy = Some((world.now() + self.time(world), number, request));
        }
    }
}

/// Reads the password files that `config` names, as the program does.
pub(super) fn load_users(config: &mut Config) -> Result<(), String> {
    for auth in config.services.iter_mut().filter_map(|service| service.auth.as_mut()) {
        let text = std::fs::read_to_string(&auth.path).map_err(|wrong| wrong.to_string())?;
        assert!(text.len() <= USERS_BYTES_MAX);
        let users = Users::parse("users", &text).map_err(|wrong| wrong.to_string())?;
        auth.users = Some(Arc::new(users));
    }
    Ok(())
}

/// Returns the path of the scenarios' password file: `{users}` in their commands.
pub fn users_file() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/users");
    path.display().to_string()
}
