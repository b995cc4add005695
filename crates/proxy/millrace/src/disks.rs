//! The disks of the cache: opened once the process has given its rights up, and left to a successor.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

use millrace_config::{Config, Disk};
use millrace_disk::{Directory, DirectoryContents, DirectoryError, DirectoryIo, DiskOptions};
use millrace_engine::{EventWaker, PeerMailboxes, Token};
use millrace_http_cache::SpaceTag;
use millrace_proxy::WorkerMessage;
use millrace_store::{Cache, WaiterId, Waker};

use crate::console;
use crate::program_error::ProgramError;
use crate::threads::{self, spawn};

/// Letters to the workers from the disks' threads.
type DiskMail = PeerMailboxes<WorkerMessage<OwnedFd>, EventWaker>;

/// Wakes the workers' exchanges that wait for a disk.
#[derive(Debug, Default)]
pub(crate) struct DiskWaker(OnceLock<Mutex<DiskMail>>);

/// How often a worker whose mailbox is full is tried, and how long is waited in between. One that
/// does not turn for so long has other troubles, and its exchanges give up waiting by themselves.
const WAKE_TRIES_MAX: u32 = 2000;
const WAKE_RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// How long a start waits until what is on the disks was found. After that it is found while clients
/// are served, who ask the origin for the rest.
const RECOVERY_WAIT: Duration = Duration::from_millis(300);
/// How often it is tried to lock disks that a predecessor has still.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// The share of the cache's memory, as a divisor, that may wait for disks.
const STUCK_SHARE: u64 = 4;

impl DiskWaker {
    /// Says how the workers are reached, before the first one runs.
    pub(crate) fn connect(&self, letters: DiskMail) {
        let is_first = self.0.set(Mutex::new(letters)).is_ok();
        assert!(is_first, "workers are started once");
    }
}

impl Waker for DiskWaker {
    fn wake(&self, waiter: WaiterId) {
        let letters = self.0.get().expect("whoever waits runs");
        for _ in 0..WAKE_TRIES_MAX {
            let mut letters = threads::lock(letters);
            let message = WorkerMessage::Wake(Token::from_bits(waiter.token));
            if letters.send(usize::from(waiter.worker), message).is_ok() {
                return letters.flush();
            }
            drop(letters);
            sleep(WAKE_RETRY_INTERVAL);
        }
    }
}

/// The disks of a process: open, or wanted from the one before.
#[derive(Debug)]
pub(crate) struct Disks {
    cache: Option<Arc<Cache>>,
    /// The process ends, or leaves its disks to another. Set once; pairs with the load of whoever
    /// still tries to open them.
    is_over: Arc<AtomicBool>,
}

impl Disks {
    /// Opens the disks of a configuration, whose workers `bell` wakes. With a predecessor that has
    /// them it goes on without, until that one lets go.
    ///
    /// # Errors
    /// A folder that is not as it has to be, or that another process uses.
    pub(crate) fn open(
        config: &Config,
        cache: Option<&Arc<Cache>>,
        waker: &Arc<DiskWaker>,
        has_predecessor: bool,
    ) -> Result<Self, ProgramError> {
        let mut all = Self { cache: None, is_over: Arc::default() };
        let (Some(settings), Some(cache)) = (&config.cache, cache) else { return Ok(all) };
        if settings.disks.is_empty() {
            return Ok(all);
        }
        all.cache = Some(cache.clone());
        match lock(&settings.disks) {
            Ok(volumes) => {
                attach(cache, volumes, &settings.disks, waker);
                let (cache, spaces) = (cache.clone(), spaces(config));
                if await_contents(&cache, WAKE_RETRY_INTERVAL, Some(Instant::now() + RECOVERY_WAIT))
                {
                    report_unmatched(&cache, &spaces);
                } else {
                    spawn("disk-report", move || report_once_recovered(&cache, &spaces))?;
                }
            }
            Err((_, DirectoryError::Locked)) if has_predecessor => {
                cache.await_disks();
                let (cache, disks, waker) = (cache.clone(), settings.disks.clone(), waker.clone());
                let (is_over, spaces) = (all.is_over.clone(), spaces(config));
                spawn("disk-wait", move || {
                    wait_for_predecessor(&cache, &disks, &waker, &is_over, &spaces)
                })?;
            }
            Err((disk, error)) => return Err(ProgramError::System(describe_error(disk, error))),
        }
        Ok(all)
    }

    /// Writes what is to be written and lets go of the disks; the process goes on without. On a
    /// thread of its own, as it may take as long as the disks take.
    pub(crate) fn release(&self) {
        // Pairs with the loads in `seek`.
        self.is_over.store(true, Ordering::Release);
        let Some(cache) = self.cache.clone() else { return };
        if let Err(error) = spawn("disk-end", move || cache.close_disks()) {
            console::log(&format!("cannot leave the disks before the end: {error}"));
        }
    }

    /// The same at the end of the process, which waits.
    pub(crate) fn close(&self) {
        self.is_over.store(true, Ordering::Release);
        self.cache.iter().for_each(|cache| cache.close_disks());
    }
}

/// Waits for the disks that a predecessor has.
fn wait_for_predecessor(
    cache: &Arc<Cache>,
    disks: &[Disk],
    waker: &Arc<DiskWaker>,
    is_over: &AtomicBool,
    spaces: &[SpaceTag],
) {
    while !is_over.load(Ordering::Acquire) {
        match lock(disks) {
            Ok(volumes) => {
                attach(cache, volumes, disks, waker);
                return report_once_recovered(cache, spaces);
            }
            Err((_, DirectoryError::Locked)) => sleep(LOCK_RETRY_INTERVAL),
            Err((disk, error)) => {
                console::log(&format!(
                    "{}; the cache goes on without",
                    describe_error(disk, error)
                ));
                return cache.close_disks();
            }
        }
    }
}

/// Reports stored responses that match no service of the configuration, whose spaces these are.
fn report_unmatched(cache: &Cache, spaces: &[SpaceTag]) {
    let what = match cache.recovered_outside(spaces) {
        0 => return,
        1 => "up to 1 stored response on disk matches no service".to_owned(),
        count => format!("up to {count} stored responses on disk match no service"),
    };
    console::log(&format!(
        "{what}: its name or its target rules have changed (they stay unused until the disk needs \
         their room)"
    ));
}

fn report_once_recovered(cache: &Cache, spaces: &[SpaceTag]) {
    await_contents(cache, RECOVERY_WAIT, None);
    report_unmatched(cache, spaces);
}

fn spaces(config: &Config) -> Vec<SpaceTag> {
    config.services.iter().map(|service| service.name.space().tag()).collect()
}

/// Waits until the contents of all disks are known or the deadline is over, and returns whether
/// they are known. Polls at the given interval.
fn await_contents(cache: &Cache, pause: Duration, deadline: Option<Instant>) -> bool {
    while cache.disk_stats().iter().any(|disk| disk.is_recovering) {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return false;
        }
        sleep(pause);
    }
    true
}

type Volumes = Vec<(Arc<dyn DirectoryIo>, u64)>;

/// Locks all of them, or none.
fn lock(disks: &[Disk]) -> Result<Volumes, (&Disk, DirectoryError)> {
    let mut volumes: Volumes = Vec::new();
    for disk in disks {
        let directory = Directory::open(&disk.folder).map_err(|error| (disk, error))?;
        volumes.push((Arc::new(directory), disk.bytes));
    }
    Ok(volumes)
}

fn describe_error(disk: &Disk, error: DirectoryError) -> String {
    let folder = disk.folder.display();
    match error {
        DirectoryError::Kernel("mkdir", error) => {
            format!("--disk {folder}: cannot be created: {error}")
        }
        error => format!("--disk {folder}: {error}"),
    }
}

/// What waits to be written keeps its memory: disks that are stuck may keep a quarter of what the
/// cache has, all of them together.
fn options(bytes: u64, disks: usize) -> DiskOptions {
    let mut options = DiskOptions::default();
    let most = bytes / STUCK_SHARE / disks.max(1) as u64;
    options.marks.skip_bytes = options.marks.skip_bytes.min(most);
    options
}

/// A disk that fails is no reason not to serve.
fn attach(cache: &Arc<Cache>, volumes: Volumes, disks: &[Disk], waker: &Arc<DiskWaker>) {
    let now_ms = u64::try_from(millrace_sys::time_of_day().as_millis()).unwrap_or(u64::MAX);
    let options = options(cache.bytes_max(), disks.len());
    let opened = cache.open_disks(volumes, &options, waker.clone(), now_ms);
    let contents = match opened {
        Ok(contents) => contents,
        Err(error) => {
            cache.close_disks();
            let folders: Vec<_> = disks.iter().map(|it| it.folder.display().to_string()).collect();
            let folders = folders.join(", ");
            return console::log(&format!("the cache goes on without disks ({folders}): {error}"));
        }
    };
    for (disk, contents) in disks.iter().zip(contents) {
        let folder = disk.folder.display();
        let what = match contents {
            DirectoryContents::Kept => continue,
            DirectoryContents::New => "begins empty: it is new, or was not left as it has to be",
            DirectoryContents::OtherKey => "belonged to another cache: what was on it is dropped",
            DirectoryContents::MissedRuns => "was away for a while: what was on it is dropped",
        };
        console::log(&format!("disk {folder} {what}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_that_are_stuck_keep_a_part_of_the_memory() {
        let skip_bytes = |bytes, disks| options(bytes, disks).marks.skip_bytes;
        assert_eq!(skip_bytes(32 << 20, 1), 8 << 20);
        assert_eq!(skip_bytes(128 << 20, 2), 16 << 20);
        assert_eq!(skip_bytes(64 << 30, 2), DiskOptions::default().marks.skip_bytes);
    }
}
