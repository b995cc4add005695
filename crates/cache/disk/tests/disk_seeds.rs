//! Random histories of simulated disks, each determined by a seed. Responses are stored, replaced,
//! updated, purged and fetched. Processes are killed in the middle of a write, machines lose power
//! with half of the sectors written, and disks become full, fail, and flip bits. A model says what
//! may be found.
//!
//! `DISK_SEEDS=2000 DISK_FIRST=0` sets the number of seeds and the first one; a failure prints its
//! seed.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "common/callbacks.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod callbacks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use callbacks::{Fetched, RecordingCallbacks, waiter};
use iolite::Slab;
use millrace_disk::{
    DirectoryIo, DiskCallbacks, DiskOptions, DiskReply, Disks, FetchError, PurgeTarget, QueueMarks,
    ResponseId, SimDirectory, SimFaults,
};
use millrace_http_cache::{HashKey, Key, META_BYTES, TagHash};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

const DISK_BYTES: u64 = 1 << 20;
const KEYS: u64 = 12;

/// The versions of one response that may be found.
#[derive(Debug, Default)]
struct Model {
    /// The only version that may be found in this process; `None` if none may be.
    now: Option<u64>,
    /// Whether `now` is unknown, from a start until the response was fetched once.
    is_unsure: bool,
    /// After a kill, one of these versions or none may be found.
    after_kill: BTreeSet<u64>,
    /// After a power failure, one of these versions or none may be found.
    after_power: BTreeSet<u64>,
    /// All versions since the last durable purge. Any of them may be found if its replacement was
    /// lost by a flipped bit or a failing disk.
    ever: BTreeSet<u64>,
    /// Whether it was made stale durably, and neither replaced nor updated since.
    is_stale: bool,
}

struct History<'a> {
    seed: u64,
    random: Pcg64Mcg,
    slab: &'a Slab,
    callbacks: Arc<RecordingCallbacks>,
    directories: Vec<SimDirectory>,
    disks: Option<Disks>,
    models: BTreeMap<ResponseId, Model>,
    version: u64,
    token: u64,
    has_flipped: bool,
    has_faults: bool,
    seen: EventCounts,
}

/// Counts of the events in one history, or in all: a test in which nothing happens proves nothing.
#[derive(Debug, Default, Clone, Copy)]
struct EventCounts {
    hits: u64,
    hits_after_start: u64,
    cuts: u64,
    damaged: u64,
    dropped: u64,
    lost_purges: u64,
    rewritten: u64,
    /// Responses that existed before starts.
    before_start: u64,
    /// Responses that existed after starts.
    after_start: u64,
}

impl History<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }

    fn id(&mut self) -> ResponseId {
        let number = self.below(KEYS);
        let key = Key(u128::from(number) << 64 | u128::from(number * 7));
        let variant = if number < 3 { u128::from(self.below(3)) } else { 0 };
        ResponseId { key, variant }
    }

    fn start(&mut self) {
        let callbacks: Arc<dyn DiskCallbacks> = self.callbacks.clone();
        let marks = QueueMarks { skip: 20, wait: 24, skip_bytes: 1 << 20 };
        let options = DiskOptions { marks, readers: 0 };
        for _ in 0..100 {
            let directories = self.directories.iter();
            let directories = directories
                .map(|directory| (Arc::new(directory.clone()) as Arc<dyn DirectoryIo>, DISK_BYTES));
            let fresh = HashKey::new([self.seed as u8; 16]);
            match Disks::open(
                directories.collect(),
                &callbacks,
                &options,
                fresh,
                1000 + self.version,
            ) {
                Ok(disks) => return self.disks = Some(disks),
                Err(error) => assert!(self.has_faults, "{error}"),
            }
        }
        panic!("the disks cannot be opened");
    }

    fn disks(&self) -> &Disks {
        self.disks.as_ref().unwrap()
    }

    fn work(&self) {
        while self.disks().run_once() {}
    }

    /// If `DISK_TRACE` is set, prints an event.
    fn trace(&self, what: impl FnOnce() -> String) {
        if std::env::var_os("DISK_TRACE").is_some() {
            println!("{}", what());
        }
    }

    fn is_dead(&self) -> bool {
        self.directories.iter().any(SimDirectory::is_dead)
    }

    /// Completes all requested work.
    fn complete_work(&mut self) {
        self.work();
        if !self.is_dead() {
            for model in self.models.values_mut().filter(|model| !model.is_unsure) {
                model.after_kill = model.now.into_iter().collect();
            }
        }
    }

    fn store(&mut self) {
        let id = self.id();
        self.version += 1;
        let version = self.version;
        let length = match self.below(10) {
            0 => 0,
            1..=5 => self.below(3000) as usize,
            6..=8 => self.below(70_000) as usize,
            _ => self.below(140_000) as usize,
        };
        let response = callbacks::response(self.slab, id, version, length);
        let is_taken = self.disks().store(response).is_ok();
        self.trace(|| format!("store {id:?} version {version}: {is_taken}"));
        let model = self.models.entry(id).or_default();
        (model.is_unsure, model.is_stale) = (false, false);
        model.now = is_taken.then_some(version);
        if is_taken {
            model.after_kill.insert(version);
            model.after_power.insert(version);
            model.ever.insert(version);
        }
    }

    fn update(&mut self) {
        let id = self.id();
        let Some(model) = self.models.get_mut(&id) else { return };
        let Some(version) = model.now.filter(|_| !model.is_unsure) else { return };
        let Some(hit) = self.find(id) else { return };
        self.version += 1;
        let text = format!("v{version} l{} u{}", hit.body_bytes, self.version);
        let head: Arc<[u8]> = text.into_bytes().into();
        self.disks().update(id, [version as u8; META_BYTES], &head);
        // A refused update removes the response.
        let is_there = self.find(id).is_some();
        self.trace(|| format!("update {id:?} version {version}: {is_there}"));
        let model = self.models.get_mut(&id).unwrap();
        (model.now, model.is_stale) = (Some(version).filter(|_| is_there), false);
    }

    fn find(&self, id: ResponseId) -> Option<millrace_disk::DiskHit> {
        self.disks().find(id.key).into_iter().find(|hit| hit.id == id)
    }

    fn purge(&mut self) {
        let id = self.id();
        let target = match self.below(12) {
            0..=3 => PurgeTarget::Response(id),
            4..=6 => PurgeTarget::Key(id.key),
            7..=8 => PurgeTarget::Prefix(
                format!("http://g{}/", callbacks::group_of(id.key)).into_bytes().into(),
            ),
            9..=10 => PurgeTarget::Tag(TagHash(u128::from(callbacks::group_of(id.key)) + 1)),
            _ => PurgeTarget::All,
        };
        let is_about = |other: &ResponseId| match &target {
            PurgeTarget::Response(one) => other == one,
            PurgeTarget::Key(key) => other.key == *key,
            PurgeTarget::Prefix(_) | PurgeTarget::Tag(_) => {
                callbacks::group_of(other.key) == callbacks::group_of(id.key)
            }
            PurgeTarget::All => true,
        };
        if self.below(4) == 0
            && let PurgeTarget::Response(id) = target
        {
            self.disks().forget(id);
            self.trace(|| format!("forget {id:?}"));
            if let Some(model) = self.models.get_mut(&id) {
                (model.now, model.is_unsure) = (None, false);
            }
            return;
        }
        let is_soft = self.below(4) == 0;
        self.token += 1;
        self.disks().purge(&target, is_soft, waiter(self.token));
        let about: Vec<ResponseId> = self.models.keys().copied().filter(is_about).collect();
        if !is_soft {
            for id in &about {
                let model = self.models.get_mut(id).unwrap();
                (model.now, model.is_unsure) = (None, false);
            }
        }
        self.work();
        let replies = self.callbacks.take(self.token);
        let is_durable = replies == [DiskReply::Purged { is_durable: true }];
        self.trace(|| format!("purge {target:?} soft {is_soft}: {is_durable}"));
        assert!(is_durable || self.is_dead() || self.has_faults, "{replies:?}");
        for id in about {
            let model = self.models.get_mut(&id).unwrap();
            if is_soft {
                model.is_stale |= is_durable;
            } else if is_durable {
                model.after_kill.clear();
                model.after_power.clear();
                model.ever.clear();
            }
        }
    }

    fn sync(&mut self) {
        self.token += 1;
        callbacks::sync(self.disks(), self.token);
        self.complete_work();
        let replies = self.callbacks.take(self.token);
        self.trace(|| format!("sync {replies:?}"));
        // A failing disk may have failed to sync earlier records.
        if replies == [DiskReply::Purged { is_durable: true }] && !self.has_faults {
            for model in self.models.values_mut().filter(|model| !model.is_unsure) {
                model.after_power = model.now.into_iter().collect();
            }
        }
    }

    /// Fetches a response and checks the result.
    fn fetch(&mut self, id: ResponseId) {
        let Some(hit) = self.find(id) else { return };
        self.token += 1;
        let fetched = callbacks::fetch(self.disks(), self.slab, hit, self.token);
        let Some(fetched) = fetched else { return };
        if self.below(2) == 0 {
            // The disk may change before the read. The fetch may then fail, or deliver the version
            // that was just replaced.
            self.store();
        }
        self.work();
        self.check(fetched);
    }

    /// Checks the result of a fetch, and returns the version; `None` if the fetch failed.
    fn check(&mut self, fetched: Fetched) -> Option<u64> {
        let id = fetched.id;
        match fetched.check(&self.callbacks) {
            Ok((head, is_whole)) => {
                let (version, _, _) = callbacks::read_head(&head);
                let model = &self.models[&id];
                let may = |versions: &BTreeSet<u64>| versions.contains(&version);
                let is_right = match model.now {
                    _ if model.is_unsure => {
                        let kept = may(&model.after_kill) || may(&model.after_power);
                        kept || (self.has_flipped || self.has_faults) && may(&model.ever)
                    }
                    // The fetch may have begun before a newer version was stored.
                    Some(now) => version == now || now == self.version,
                    None => false,
                };
                assert!(is_right, "{id:?} version {version} of {model:?}");
                assert!(!model.is_stale || head.is_stale, "{id:?} of {model:?}");
                self.seen.hits += 1;
                self.seen.hits_after_start += u64::from(model.is_unsure);
                self.seen.cuts += u64::from(!is_whole);
                assert!(is_whole || self.has_flipped || self.has_faults || self.is_dead());
                Some(version)
            }
            Err(error) => {
                self.seen.damaged += u64::from(error == FetchError::Damaged);
                None
            }
        }
    }

    fn step(&mut self) {
        match self.below(20) {
            0..=7 => self.store(),
            8 => self.update(),
            9 => self.purge(),
            10..=13 => {
                let id = self.id();
                self.fetch(id);
            }
            14..=16 => drop(self.disks().run_once()),
            17 => self.complete_work(),
            18 => self.sync(),
            _ => self.inject_fault(),
        }
    }

    fn inject_fault(&mut self) {
        let index = self.below(self.directories.len() as u64) as usize;
        let directory = self.directories[index].clone();
        match self.below(6) {
            0 if self.seed.is_multiple_of(3) => {
                directory.flip();
                self.trace(|| "flip".into());
                self.has_flipped = true;
            }
            1 if self.seed % 4 == 1 => {
                let faults = SimFaults { short: 5, read_errors: 40, write_errors: 40 };
                directory.set_faults(faults);
                self.has_faults = true;
            }
            2 => directory.set_faults(SimFaults { short: 3, ..SimFaults::default() }),
            3 if self.seed % 5 == 2 => {
                let bytes = directory.bytes();
                directory.set_capacity(bytes + self.below(200_000));
            }
            4 => directory.set_capacity(4 * DISK_BYTES),
            5 => {
                let calls = self.below(30);
                directory.die_after(calls);
            }
            _ => {}
        }
    }

    /// Ends the process in some way, and restarts it.
    fn restart(&mut self) {
        let how = self.below(3);
        if how == 0 && !self.is_dead() {
            self.complete_work();
        }
        self.count();
        let mut responses: u64 = self.disks().stats().iter().map(|one| one.responses).sum();
        if how > 0 {
            // Nothing that follows reaches a disk.
            self.directories.iter().for_each(|directory| directory.die_after(0));
        }
        drop(self.disks.take());
        let power_is_lost = how == 2;
        self.trace(|| format!("restart {how}"));
        for directory in &self.directories {
            directory.restart(power_is_lost);
        }
        for model in self.models.values_mut() {
            if power_is_lost {
                // Versions that a kill would have left may be found after the power failure too.
                let known = std::mem::take(&mut model.after_kill);
                model.after_power.extend(known);
                model.after_kill.clone_from(&model.after_power);
            } else if how > 0 {
                model.after_power.extend(&model.after_kill);
            }
            (model.now, model.is_unsure) = (None, true);
        }
        self.start();
        self.trace(|| format!("contents {:?}", self.disks().contents()));
        self.seen.before_start += responses;
        if self.below(3) == 0 {
            self.step();
        }
        let ids: Vec<ResponseId> = self.models.keys().copied().collect();
        for id in ids {
            self.fetch(id);
        }
        self.work();
        responses = self.disks().stats().iter().map(|one| one.responses).sum();
        self.seen.after_start += responses;
        self.update_model();
    }

    /// Updates the model to what is found after a start.
    fn update_model(&mut self) {
        let ids: Vec<ResponseId> = self.models.keys().copied().collect();
        for id in ids {
            let Some(hit) = self.find(id) else { continue };
            self.token += 1;
            let fetched = callbacks::fetch(self.disks(), self.slab, hit, self.token);
            self.work();
            let Some(version) = fetched.and_then(|fetched| self.check(fetched)) else { continue };
            let model = self.models.get_mut(&id).unwrap();
            if model.is_unsure {
                (model.now, model.is_unsure) = (Some(version), false);
            }
        }
    }

    fn count(&mut self) {
        for counters in self.disks().stats() {
            self.seen.dropped += counters.dropped_segments;
            self.seen.rewritten += counters.rewritten;
            self.seen.lost_purges += counters.lost_purges;
        }
    }
}

fn play(seed: u64, slab: &Slab) -> EventCounts {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let count = 1 + random.next_u64() % 2;
    let directories =
        (0..count).map(|index| SimDirectory::new(seed * 10 + index, 4 * DISK_BYTES)).collect();
    let mut history = History {
        seed,
        random,
        slab,
        callbacks: RecordingCallbacks::new(slab),
        directories,
        disks: None,
        models: BTreeMap::new(),
        version: 0,
        token: 0,
        has_flipped: false,
        has_faults: false,
        seen: EventCounts::default(),
    };
    history.start();
    for _ in 0..4 {
        let mut steps = history.below(150);
        while steps > 0 && !history.is_dead() {
            history.step();
            steps -= 1;
        }
        history.restart();
    }
    history.count();
    history.seen
}

#[test]
fn no_byte_is_wrong_and_no_purged_response_comes_back() {
    let number = |name: &str, default| {
        std::env::var(name).map_or(default, |text| text.parse::<u64>().expect("a number"))
    };
    let (seeds, first) = (number("DISK_SEEDS", 300), number("DISK_FIRST", 0));
    let slab = Slab::on_heap(32 << 20).unwrap();
    let mut all = EventCounts::default();
    for seed in first..first + seeds {
        let result = std::panic::catch_unwind(|| play(seed, &slab));
        let seen = result.unwrap_or_else(|_| panic!("DISK_FIRST={seed} DISK_SEEDS=1"));
        all.hits += seen.hits;
        all.hits_after_start += seen.hits_after_start;
        all.cuts += seen.cuts;
        all.damaged += seen.damaged;
        all.dropped += seen.dropped;
        all.rewritten += seen.rewritten;
        all.lost_purges += seen.lost_purges;
        all.before_start += seen.before_start;
        all.after_start += seen.after_start;
    }
    println!("{all:?}");
    if seeds >= 100 {
        assert!(all.hits > 10 * seeds && all.hits_after_start > seeds, "{all:?}");
        assert!(all.damaged > 0 && all.dropped > 0 && all.rewritten > 0, "{all:?}");
    }
}
