//! The threads of the disks: for each disk one that writes, and some that read.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::disk::Disk;
use super::log::Log;
use super::queue::NextJob;
use super::shared::DiskShared;

/// The time without a job after which the writer syncs written data.
const SYNC_IDLE: Duration = Duration::from_secs(5);
/// The pause of a reading thread after a fetch that lacks memory.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// The running threads. They end when the queue of their disk is closed; dropping this waits for
/// them.
#[derive(Debug)]
pub(super) struct Threads(Vec<JoinHandle<()>>);

impl Threads {
    pub(super) fn start(disks: &[Disk], readers: usize) -> io::Result<Self> {
        let mut threads = Self(Vec::new());
        for disk in disks {
            let log = disk.log.clone();
            let started = spawn(format!("disk-{}", disk.shared.disk), move || write(&log));
            threads.add(started, disks)?;
            for _ in 0..readers {
                let shared = disk.shared.clone();
                let started = spawn(format!("disk-{}-read", shared.disk), move || read(&shared));
                threads.add(started, disks)?;
            }
        }
        Ok(threads)
    }

    fn add(&mut self, started: io::Result<JoinHandle<()>>, disks: &[Disk]) -> io::Result<()> {
        match started {
            Ok(thread) => self.0.push(thread),
            Err(error) => {
                disks.iter().for_each(Disk::abandon_fetches);
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        for thread in self.0.drain(..) {
            // A panic was reported by the thread itself; the others are joined nevertheless.
            let _ = thread.join();
        }
    }
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name).spawn(work)
}

fn write(log: &Mutex<Log>) {
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    while !log.is_drained() {
        if !log.run_once(Some(SYNC_IDLE)) {
            log.sync_when_idle();
        }
    }
}

fn read(shared: &Arc<DiskShared>) {
    loop {
        let task = match shared.queue.pop_fetch(true) {
            NextJob::Job(task) => task,
            NextJob::Empty => continue,
            NextJob::Closed => return,
        };
        if task.run_turn(shared) {
            std::thread::sleep(MEMORY_PAUSE);
        }
    }
}
