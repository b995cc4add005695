//! The disks of the cache: opened after the process has dropped its privileges, and released to a
//! successor.

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

/// Messages from the disk threads to the workers.
type DiskMail = PeerMailboxes<WorkerMessage<OwnedFd>, EventWaker>;

/// Wakes exchanges that wait for a disk.
#[derive(Debug, Default)]
pub(crate) struct DiskWaker(OnceLock<Mutex<DiskMail>>);

/// Attempts to wake a worker whose mailbox is full, two seconds in all. If a worker hangs longer,
/// its exchanges stop waiting by a timeout.
const WAKE_TRIES_MAX: u32 = 2000;
/// Interval between attempts to wake a worker.
const WAKE_RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// Time that a start waits for the recovery of the disks. After that the recovery continues while
/// clients are served from the origin.
const RECOVERY_WAIT: Duration = Duration::from_millis(300);
/// Interval between attempts to lock disks that the predecessor still uses.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Writes that wait for stuck disks may occupy the cache's memory divided by this.
const STUCK_MEMORY_DIVISOR: u64 = 4;

impl DiskWaker {
    /// Connects the workers, before the first one runs.
    pub(crate) fn connect(&self, mail: DiskMail) {
        let is_first = self.0.set(Mutex::new(mail)).is_ok();
        assert!(is_first, "workers are started once");
    }
}

impl Waker for DiskWaker {
    fn wake(&self, waiter: WaiterId) {
        let mail = self.0.get().expect("workers start after the mail is connected");
        for _ in 0..WAKE_TRIES_MAX {
            let mut mail = threads::lock(mail);
            let message = WorkerMessage::Wake(Token::from_bits(waiter.token));
            if mail.send(usize::from(waiter.worker), message).is_ok() {
                return mail.flush();
            }
            drop(mail);
            sleep(WAKE_RETRY_INTERVAL);
        }
    }
}

/// The disks of a process. They may still be in use by the predecessor.
#[derive(Debug)]
pub(crate) struct Disks {
    cache: Option<Arc<Cache>>,
    /// Set once, when the process ends or releases its disks. Pairs with the loads in
    /// `wait_for_predecessor`.
    is_closing: Arc<AtomicBool>,
}

impl Disks {
    /// Opens the configured disks, which use `waker` to wake the workers. If a predecessor still
    /// uses the disks, the cache works without them until they are released.
    ///
    /// # Errors
    /// If a folder is not usable or another process uses it.
    pub(crate) fn open(
        config: &Config,
        cache: Option<&Arc<Cache>>,
        waker: &Arc<DiskWaker>,
        has_predecessor: bool,
    ) -> Result<Self, ProgramError> {
        let mut all = Self { cache: None, is_closing: Arc::default() };
        let (Some(settings), Some(cache)) = (&config.cache, cache) else { return Ok(all) };
        if settings.disks.is_empty() {
            return Ok(all);
        }
        all.cache = Some(cache.clone());
        match lock(&settings.disks) {
            Ok(volumes) => {
                attach(cache, volumes, &settings.disks, waker);
                let (cache, spaces) = (cache.clone(), configured_spaces(config));
                if wait_for_recovery(
                    &cache,
                    WAKE_RETRY_INTERVAL,
                    Some(Instant::now() + RECOVERY_WAIT),
                ) {
                    report_unmatched(&cache, &spaces);
                } else {
                    spawn("disk-report", move || report_once_recovered(&cache, &spaces))?;
                }
            }
            Err((_, DirectoryError::Locked)) if has_predecessor => {
                cache.await_disks();
                let (cache, disks, waker) = (cache.clone(), settings.disks.clone(), waker.clone());
                let (is_over, spaces) = (all.is_closing.clone(), configured_spaces(config));
                spawn("disk-wait", move || {
                    wait_for_predecessor(&cache, &disks, &waker, &is_over, &spaces)
                })?;
            }
            Err((disk, error)) => return Err(ProgramError::System(describe_error(disk, error))),
        }
        Ok(all)
    }

    /// Writes pending responses and releases the disks on a thread of its own, because a disk may
    /// be slow. The process continues without disks.
    pub(crate) fn release(&self) {
        // Pairs with the loads in `wait_for_predecessor`.
        self.is_closing.store(true, Ordering::Release);
        let Some(cache) = self.cache.clone() else { return };
        if let Err(error) = spawn("disk-end", move || cache.close_disks()) {
            console::log(&format!("cannot release the disks before the end: {error}"));
        }
    }

    /// Writes pending responses and releases the disks. Blocks until that is done.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        self.cache.iter().for_each(|cache| cache.close_disks());
    }
}

/// Waits until the predecessor has released the disks, then attaches them.
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
                    "{}; the cache continues without disks",
                    describe_error(disk, error)
                ));
                return cache.close_disks();
            }
        }
    }
}

/// Logs the number of stored responses that belong to none of `spaces`, the cache spaces of the
/// configured services.
fn report_unmatched(cache: &Cache, spaces: &[SpaceTag]) {
    let count_text = match cache.recovered_outside(spaces) {
        0 => return,
        1 => "up to 1 stored response on disk matches no service".to_owned(),
        count => format!("up to {count} stored responses on disk match no service"),
    };
    console::log(&format!(
        "{count_text}: the name or the target rules of a service have changed (unused responses \
         stay on disk until it needs their space)"
    ));
}

fn report_once_recovered(cache: &Cache, spaces: &[SpaceTag]) {
    wait_for_recovery(cache, RECOVERY_WAIT, None);
    report_unmatched(cache, spaces);
}

fn configured_spaces(config: &Config) -> Vec<SpaceTag> {
    config.services.iter().map(|service| service.name.space().tag()).collect()
}

/// Waits until the contents of all disks are known or the deadline has passed. Returns whether they
/// are known. Checks at the interval `pause`.
fn wait_for_recovery(cache: &Cache, pause: Duration, deadline: Option<Instant>) -> bool {
    while cache.disk_stats().iter().any(|disk| disk.is_recovering) {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return false;
        }
        sleep(pause);
    }
    true
}

type Volumes = Vec<(Arc<dyn DirectoryIo>, u64)>;

/// Locks all disks, or none.
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

/// Returns the options of the disks. Responses that wait to be written keep their memory: together,
/// stuck disks may keep a quarter of the cache's memory.
fn disk_options(bytes: u64, disks: usize) -> DiskOptions {
    let mut options = DiskOptions::default();
    let most = bytes / STUCK_MEMORY_DIVISOR / disks.max(1) as u64;
    options.marks.skip_bytes = options.marks.skip_bytes.min(most);
    options
}

/// Attaches the disks to the cache. If a disk fails, the cache works without disks.
fn attach(cache: &Arc<Cache>, volumes: Volumes, disks: &[Disk], waker: &Arc<DiskWaker>) {
    let now_ms = u64::try_from(millrace_sys::time_of_day().as_millis()).unwrap_or(u64::MAX);
    let options = disk_options(cache.bytes_max(), disks.len());
    let opened = cache.open_disks(volumes, &options, waker.clone(), now_ms);
    let contents = match opened {
        Ok(contents) => contents,
        Err(error) => {
            cache.close_disks();
            let folders: Vec<_> = disks.iter().map(|it| it.folder.display().to_string()).collect();
            let folders = folders.join(", ");
            return console::log(&format!(
                "the cache continues without disks ({folders}): {error}"
            ));
        }
    };
    for (disk, contents) in disks.iter().zip(contents) {
        let folder = disk.folder.display();
        let what = match contents {
            DirectoryContents::Kept => continue,
            DirectoryContents::New => "starts empty: it is new or was not closed correctly",
            DirectoryContents::OtherKey => "belonged to another cache: its responses were dropped",
            DirectoryContents::MissedRuns => "was missing for a while: its responses were dropped",
        };
        console::log(&format!("disk {folder} {what}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stuck_disks_keep_a_part_of_the_memory() {
        let skip_bytes = |bytes, disks| disk_options(bytes, disks).marks.skip_bytes;
        assert_eq!(skip_bytes(32 << 20, 1), 8 << 20);
        assert_eq!(skip_bytes(128 << 20, 2), 16 << 20);
        assert_eq!(skip_bytes(64 << 30, 2), DiskOptions::default().marks.skip_bytes);
    }
}
