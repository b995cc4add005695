//! The threads of the proxy that open and read files, as an actor: it does their work, one job at a
//! time, with delays.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_engine::Instant;
use millrace_files::Pool;
use millrace_proxy::SharedState;
use millrace_sim::{Actor, World};

use super::folders::SimFolders;
use super::reload::WorkerMailboxes;
use super::wake_list::PendingWakes;

/// Limit of the time of a job in milliseconds.
const JOB_MS_MAX: u64 = 20;
/// The same limit for one in 16 jobs in a hostile world. It is longer than a request waits.
const JOB_HOSTILE_MS_MAX: u64 = 120_000;
/// Jobs of each kind that may wait.
const JOBS_MAX: usize = 1024;

/// The threads that open and read files.
pub(super) struct SimFileThreads {
    folders: Rc<SimFolders>,
    shared: Arc<SharedState>,
    mailboxes: WorkerMailboxes,
    wakes: PendingWakes,
    /// When the next job is done, if there is one.
    next: Instant,
    hostile: bool,
}

impl SimFileThreads {
    /// Creates the threads of a proxy whose workers do not run yet.
    pub(super) fn new(
        folders: &Rc<SimFolders>,
        shared: &Arc<SharedState>,
        mailboxes: &WorkerMailboxes,
        world: &World,
        hostile: bool,
    ) -> Self {
        let wakes = PendingWakes::default();
        shared.files.connect(Pool::new(0, JOBS_MAX, JOBS_MAX), wakes.waker());
        let (folders, shared, mailboxes) = (folders.clone(), shared.clone(), mailboxes.clone());
        Self { folders, shared, mailboxes, wakes, next: world.now(), hostile }
    }

    fn pause(&self, world: &World) -> Duration {
        let most = match self.hostile && world.random().is_multiple_of(16) {
            true => JOB_HOSTILE_MS_MAX,
            false => JOB_MS_MAX,
        };
        Duration::from_millis(1 + world.random() % most)
    }
}

impl Actor for SimFileThreads {
    fn step(&mut self, world: &World) -> Option<Instant> {
        self.folders.set_now(world);
        let mut next_wake = None;
        if world.now() < self.next {
            next_wake = Some(self.next);
        } else if self.shared.files.run_once() {
            self.next = world.now() + self.pause(world);
            next_wake = Some(self.next);
        }
        let is_done = self.wakes.deliver(&self.mailboxes);
        let again = (!is_done).then(|| world.now() + Duration::from_millis(1));
        next_wake.into_iter().chain(again).min()
    }
}
