//! Shrinks a failing scenario: removes items one after the other as long as the scenario still
//! fails with the same kind of failure, in the world of the same seed.

use std::time::{Duration, Instant};

use millrace_files::SimFolderFaults;
use millrace_sim::Faults;

use super::findings::Failure;
use super::plan::{
    Body, BodyFraming, Connection, DisabledFault, Ending, HeaderSyntax, NameBehaviour,
    OriginBehaviour, RandomScenario, Reader, Request, ServedFolder,
};
use super::play_random;
use crate::simulated::TlsPlan;

/// Returns a smaller scenario that fails in the same way, and its failure. Takes at most `time` and
/// one more run.
///
/// `plays` plays a scenario and returns its failure, as [`fails`] does.
pub fn shrink(
    scenario: &RandomScenario,
    failure: &Failure,
    time: Duration,
    plays: &dyn Fn(&RandomScenario) -> Option<Failure>,
) -> (RandomScenario, Failure) {
    let mut best = Best { scenario: scenario.clone(), failure: failure.clone(), plays };
    let end = Instant::now() + time;
    loop {
        let before = best.scenario.clone();
        for pass in PASSES {
            pass(&mut best, end);
        }
        if best.scenario == before || Instant::now() >= end {
            return (best.scenario, best.failure);
        }
    }
}

/// Returns the failure of a scenario, if it fails.
pub(super) fn fails(scenario: &RandomScenario) -> Option<Failure> {
    play_random(scenario, false).failure
}

struct Best<'a> {
    scenario: RandomScenario,
    failure: Failure,
    plays: &'a dyn Fn(&RandomScenario) -> Option<Failure>,
}

impl Best<'_> {
    /// Keeps the scenario that `change` makes if it differs and fails in the same way.
    fn attempt(&mut self, end: Instant, change: &dyn Fn(&mut RandomScenario)) -> bool {
        let mut scenario = self.scenario.clone();
        change(&mut scenario);
        if scenario == self.scenario || scenario.connections.is_empty() || Instant::now() >= end {
            return false;
        }
        let kind = self.failure.kind;
        match (self.plays)(&scenario) {
            Some(failure) if failure.kind == kind => {
                (self.scenario, self.failure) = (scenario, failure);
                true
            }
            _ => false,
        }
    }
}

type Pass = fn(&mut Best<'_>, Instant);

/// The passes. Those that remove the largest items come first.
const PASSES: [Pass; 7] = [connections, requests, world, proxy, folder, origins, details];

/// Removes ranges of connections, long ones first.
fn connections(best: &mut Best<'_>, end: Instant) {
    let mut size = best.scenario.connections.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < best.scenario.connections.len() {
            let until = (at + size).min(best.scenario.connections.len());
            if !best.attempt(end, &|scenario| drop(scenario.connections.drain(at..until))) {
                at += size;
            }
        }
        size /= 2;
    }
}

fn requests(best: &mut Best<'_>, end: Instant) {
    for at in 0..best.scenario.connections.len() {
        let mut number = 0;
        while number < best.scenario.connections[at].requests.len() {
            let alone = best.scenario.connections[at].requests.len() == 1;
            let drops = |scenario: &mut RandomScenario| {
                scenario.connections[at].requests.remove(number);
            };
            if alone || !best.attempt(end, &drops) {
                number += 1;
            }
        }
    }
}

fn world(best: &mut Best<'_>, end: Instant) {
    best.attempt(end, &|scenario| scenario.events.clear());
    for at in (0..best.scenario.events.len()).rev() {
        best.attempt(end, &|scenario| drop(scenario.events.remove(at)));
    }
    for faults in [Faults::None, Faults::Benign] {
        if best.scenario.world == Faults::Hostile || faults == Faults::None {
            best.attempt(end, &|scenario| scenario.world = faults);
        }
    }
    if best.scenario.world == Faults::None {
        best.attempt(end, &|scenario| scenario.disabled_faults.clear());
        return;
    }
    for fault in DisabledFault::ALL {
        if !best.scenario.disabled_faults.contains(&fault) {
            best.attempt(end, &|scenario| scenario.disabled_faults.push(fault));
        }
    }
}

fn proxy(best: &mut Best<'_>, end: Instant) {
    best.attempt(end, &|scenario| scenario.proxy.limits.clear());
    for at in (0..best.scenario.proxy.limits.len()).rev() {
        best.attempt(end, &|scenario| {
            scenario.proxy.limits.remove(at);
        });
    }
    best.attempt(end, &|scenario| scenario.proxy.workers = 1);
    best.attempt(end, &|scenario| scenario.proxy.forward = false);
    best.attempt(end, &|scenario| scenario.proxy.unix = false);
    best.attempt(end, &|scenario| scenario.proxy.secured = false);
    best.attempt(end, &|scenario| scenario.proxy.secures_origins = false);
    best.attempt(end, &|scenario| scenario.proxy.upload_buffer = None);
    best.attempt(end, &|scenario| scenario.proxy.pipelining = None);
    best.attempt(end, &|scenario| scenario.proxy.memory_mb = None);
    best.attempt(end, &|scenario| scenario.proxy.descriptors = None);
}

fn folder(best: &mut Best<'_>, end: Instant) {
    let Some(folder) = &best.scenario.folder else { return };
    let (changes, names) = (folder.changes.len(), folder.names.len());
    let mut attempt = |change: &dyn Fn(&mut ServedFolder)| {
        best.attempt(end, &|scenario| scenario.folder.iter_mut().for_each(change));
    };
    attempt(&|folder| folder.faulty = None);
    attempt(&|folder| folder.faults = SimFolderFaults::default());
    for at in (0..changes).rev() {
        attempt(&|folder| {
            folder.changes.remove(at);
        });
    }
    for at in 0..names {
        attempt(&|folder| folder.names[at].length /= 2);
    }
    best.attempt(end, &|scenario| {
        scenario.folder = None;
        let requests = scenario.connections.iter_mut().flat_map(|it| &mut it.requests);
        requests.for_each(|request| request.file = None);
    });
}

fn origins(best: &mut Best<'_>, end: Instant) {
    for at in (0..best.scenario.origins.len()).rev() {
        best.attempt(end, &|scenario| scenario.origins[at].behaviour = OriginBehaviour::Good);
        best.attempt(end, &|scenario| scenario.origins[at].naming = NameBehaviour::Address);
        best.attempt(end, &|scenario| scenario.origins[at].tls = TlsPlan::default());
        best.attempt(end, &|scenario| without_origin(scenario, at));
    }
}

/// Moves the requests of an origin to the first one, and removes it.
fn without_origin(scenario: &mut RandomScenario, at: usize) {
    if scenario.origins.len() == 1 {
        return;
    }
    scenario.origins.remove(at);
    let requests = scenario.connections.iter_mut().flat_map(|it| &mut it.requests);
    for request in requests {
        request.origin = match request.origin {
            origin if origin == at => 0,
            origin => origin - usize::from(origin > at),
        };
    }
}

type OfConnection = fn(&mut Connection);
type OfRequest = fn(&mut Request);

/// Simplifies sizes, waits and behaviour.
fn details(best: &mut Best<'_>, end: Instant) {
    const CONNECTION: [OfConnection; 8] = [
        |it| it.begins_ms = 0,
        |it| it.pipelined = false,
        |it| it.reader = Reader::Eager,
        |it| it.ending = Ending::Closes,
        |it| it.tls.fault = None,
        |it| it.tls.ticket = None,
        |it| it.tls.updates_keys = false,
        |it| it.tls.old = false,
    ];
    const REQUEST: [OfRequest; 23] = [
        |it| it.breaks = None,
        |it| it.malformation = None,
        |it| it.pause_ms = 0,
        |it| it.file.iter_mut().for_each(|file| file.range = None),
        |it| it.file.iter_mut().for_each(|file| (file.accept, file.condition) = (None, None)),
        |it| it.response.errors = 0,
        |it| (it.old, it.closes) = (false, false),
        |it| it.body = Body::default(),
        |it| it.body.length = it.body.length.min(1),
        |it| it.body.length /= 2,
        |it| (it.body.expects, it.body.trailers) = (false, false),
        |it| it.body.chunk = None,
        |it| it.response.fault = None,
        |it| it.response.syntax = HeaderSyntax::Strict,
        |it| (it.response.length, it.response.drip) = (it.response.length.min(1), None),
        |it| it.response.length /= 2,
        |it| (it.response.delay_ms, it.response.drip) = (0, None),
        |it| it.response.interims = 0,
        |it| (it.response.old, it.response.closes) = (false, false),
        |it| it.response.early = false,
        |it| (it.response.framing, it.response.trailers) = (BodyFraming::Length, false),
        |it| it.response.trailers = false,
        |it| it.response.delay_ms /= 2,
    ];
    for at in 0..best.scenario.connections.len() {
        for change in CONNECTION {
            best.attempt(end, &|scenario| change(&mut scenario.connections[at]));
        }
        for number in 0..best.scenario.connections[at].requests.len() {
            for change in REQUEST {
                let change = |scenario: &mut RandomScenario| {
                    change(&mut scenario.connections[at].requests[number])
                };
                best.attempt(end, &change);
            }
        }
    }
}
