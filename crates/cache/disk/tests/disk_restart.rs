//! A measurement of a restart with a full disk: the time until the first response is served, and
//! the time until all responses are in the index. Writes real files: `DISK_GB=10 cargo test
//! --release -p millrace-disk --test disk_restart -- --ignored --nocapture`. `DISK_OBJECT=8192`
//! sets the length of a response and `DISK_HOME` the directory. The test passes whatever the times
//! are.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "common/callbacks.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod callbacks;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use callbacks::RecordingCallbacks;
use iolite::Slab;
use millrace_disk::{
    Directory, DirectoryIo, DiskCallbacks, DiskOptions, DiskReply, Disks, ResponseId,
};
use millrace_http_cache::{HashKey, Key};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Returns an id. The keys of all ids are distributed like hashes.
fn id(number: u64) -> ResponseId {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ResponseId { key: Key(u128::from(mixed) << 64 | u128::from(mixed.rotate_left(31))), variant: 0 }
}

struct Run {
    slab: Slab,
    callbacks: Arc<RecordingCallbacks>,
    disks: Disks,
}

fn open(home: &Path, bytes: u64) -> Run {
    let slab = Slab::on_heap(64 << 20).unwrap();
    let callbacks = RecordingCallbacks::new(&slab);
    let disk_callbacks: Arc<dyn DiskCallbacks> = callbacks.clone();
    let directory: Arc<dyn DirectoryIo> = Arc::new(Directory::open(home).unwrap());
    let (options, fresh) = (DiskOptions::default(), HashKey::new([5; 16]));
    let disks = Disks::open(vec![(directory, bytes)], &disk_callbacks, &options, fresh, 1).unwrap();
    Run { slab, callbacks, disks }
}

impl Run {
    /// Fetches a response; returns whether it was found.
    fn fetch(&self, number: u64) -> bool {
        let Some(hit) = self.disks.find(id(number).key).pop() else { return false };
        let Some(fetched) = callbacks::fetch(&self.disks, &self.slab, hit, number) else {
            return false;
        };
        while !fetched.is_over(&self.callbacks) {
            std::thread::yield_now();
        }
        fetched.check(&self.callbacks).is_ok()
    }

    fn sync(&self) {
        callbacks::sync(&self.disks, u64::MAX - 1);
        while self.callbacks.take(u64::MAX - 1) != [DiskReply::Purged { is_durable: true }] {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
#[ignore = "writes gigabytes"]
fn a_full_disk_is_served_at_once() {
    let bytes = number("DISK_GB", 10) << 30;
    let object = number("DISK_OBJECT", 8192);
    let base = std::env::var_os("DISK_HOME").map_or_else(std::env::temp_dir, Into::into);
    let home = base.join(format!("millrace-disk-restart-{}", std::process::id()));
    let count = bytes / (object + 512);
    let run = open(&home, bytes);
    let begin = Instant::now();
    for number in 0..count {
        let mut response = callbacks::response(&run.slab, id(number), number, object as usize);
        while let Err(back) = run.disks.store(response) {
            response = back;
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    run.sync();
    let counters = run.disks.stats()[0];
    println!("stored {count} in {:?}: {counters:?}", begin.elapsed());
    drop(run);
    let begin = Instant::now();
    let run = open(&home, bytes);
    let opened = begin.elapsed();
    // The newest response, and one from the middle.
    let mut served = Vec::new();
    for wanted in [count - 1, count / 2] {
        while !run.fetch(wanted) {
            std::thread::yield_now();
        }
        served.push(begin.elapsed());
    }
    while run.disks.stats()[0].is_recovering {
        std::thread::sleep(Duration::from_millis(1));
    }
    let known = begin.elapsed();
    println!("opened in {opened:?}, served in {served:?}, all known in {known:?}");
    let responses = run.disks.stats()[0].responses;
    println!("{responses} responses after, {} before", counters.responses);
    assert_eq!(responses, counters.responses);
    drop(run);
    std::fs::remove_dir_all(&home).unwrap();
}
