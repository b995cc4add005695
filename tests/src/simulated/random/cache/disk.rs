//! The disk of a simulated cache. One volume serves all processes of a scenario. Each process has a
//! disk tier without threads, which performs one work item now and then.

use std::sync::Arc;
use std::time::Duration;

use millrace_disk::{DirectoryIo, DiskOptions, SimDirectory, SimFaults};
use millrace_engine::Instant;
use millrace_sim::World;
use millrace_store::Cache;

use super::super::super::reload::WorkerMailboxes;
use super::super::super::wake_list::PendingWakes;
use super::DiskPlan;

/// A disk and its tier in the current process.
pub(super) struct ActorDisk {
    plan: DiskPlan,
    volume: SimDirectory,
    /// The waiters that the disk tier wakes.
    wakes: PendingWakes,
    cache: Option<Arc<Cache>>,
    /// When the next work item is performed, if there is one.
    next: Instant,
}

/// Maximum duration of a work item in milliseconds.
const PIECE_MS_MAX: u64 = 20;
/// Limit of the work items before a kill or at the end. Without a limit the loop might not end,
/// because items that lack memory are repeated. The other items are far fewer.
const PIECES_MAX: usize = 10_000;
/// Limit of the writes that a killed process still completes.
const WRITES_MAX: u64 = 8;

impl ActorDisk {
    pub(super) fn new(plan: DiskPlan, seed: u64, world: &World) -> Self {
        let volume = SimDirectory::new(seed, plan.capacity);
        Self { plan, volume, wakes: PendingWakes::default(), cache: None, next: world.now() }
    }

    /// Attaches the disk to a new process. If the disk is unusable, the process continues without
    /// it.
    pub(super) fn begin(&mut self, cache: &Arc<Cache>, world: &World) {
        let volume: Arc<dyn DirectoryIo> = Arc::new(self.volume.clone());
        let options = DiskOptions { readers: 0, ..DiskOptions::default() };
        let now_ms = world.time_of_day().as_millis() as u64;
        let volumes = vec![(volume, self.plan.bytes)];
        self.volume.set_faults(SimFaults::default());
        let opened = cache.open_disks(volumes, &options, self.wakes.waker(), now_ms);
        self.volume.set_faults(self.plan.faults);
        match opened {
            Ok(contents) => world.log_event(&format!("the disk is opened: {contents:?}")),
            Err(error) => return world.log_event(&format!("the disk cannot be used: {error}")),
        }
        if self.plan.rereads {
            cache.always_reread_disks();
        }
        self.cache = Some(cache.clone());
    }

    /// Performs a work item if it is due, and wakes its waiters.
    pub(super) fn step(&mut self, world: &World, mailboxes: &WorkerMailboxes) -> Option<Instant> {
        let mut next_wake = None;
        if let Some(cache) = &self.cache {
            if world.now() < self.next {
                next_wake = Some(self.next);
            } else if cache.run_disk_work() {
                let pause = Duration::from_millis(1 + world.random() % PIECE_MS_MAX);
                self.next = world.now() + pause;
                next_wake = Some(self.next);
            }
        }
        let is_done = self.wakes.deliver(mailboxes);
        let again = (!is_done).then(|| world.now() + Duration::from_millis(1));
        next_wake.into_iter().chain(again).min()
    }

    /// Kills the process, possibly during a write, and possibly cuts the power of the machine.
    /// Returns whether data that was already on disk may be lost.
    pub(super) fn kill(&mut self, world: &World) -> bool {
        let Some(cache) = self.cache.take() else { return true };
        self.volume.die_after(world.random() % WRITES_MAX);
        // The remaining work items fail, which releases what they hold.
        let mut pieces = 0;
        while pieces < PIECES_MAX && !self.volume.is_dead() && cache.run_disk_work() {
            pieces += 1;
        }
        self.volume.die_after(0);
        while pieces < 2 * PIECES_MAX && cache.run_disk_work() {
            pieces += 1;
        }
        cache.close_disks();
        let loses_power = self.plan.loses_power && world.random().is_multiple_of(2);
        self.volume.restart(loses_power);
        let flips = self.plan.flips && world.random().is_multiple_of(2);
        if flips {
            self.volume.flip();
        }
        world.log_event(&format!("the disk: power lost {loses_power}, a bit flipped {flips}"));
        self.wakes.discard();
        loses_power || flips
    }

    /// Shuts the disk tier of the last process down in an orderly way.
    pub(super) fn end(&mut self) {
        let Some(cache) = self.cache.take() else { return };
        for _ in 0..PIECES_MAX {
            if !cache.run_disk_work() {
                break;
            }
        }
        cache.close_disks();
        self.wakes.discard();
    }
}
