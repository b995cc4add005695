//! Draws the folder of a scenario, and turns some of its requests into requests for files.

use millrace_files::SimFolderFaults;
use millrace_sim::{Faults, SeededRandom};

use super::plan::{
    ChangeKind, FileCondition, FileRequest, NameKind, PlannedChange, PlannedName, RangeRequest,
    ServedFolder,
};
use crate::simulated::random::plan::{
    Connection, Difficulty, Method, RandomScenario, Reader, Request,
};

/// Draws the folder of a scenario, from a random sequence of its own. Most have none.
pub(in super::super) fn draw(scenario: &mut RandomScenario) {
    let random = SeededRandom::new(scenario.seed ^ 0x464f_4c44_4552_5354);
    let may_fail = scenario.difficulty != Difficulty::Easy;
    let passes_on = !scenario.proxy.fastcgi;
    let mut draw = Draw { random, may_fail, passes_on };
    if scenario.proxy.forward || !draw.random.chance(400) {
        return;
    }
    let folder = draw.folder(scenario.world);
    for connection in &mut scenario.connections {
        draw.requests(connection, &folder);
    }
    scenario.folder = Some(folder);
}

/// The state of the generator.
struct Draw {
    random: SeededRandom,
    may_fail: bool,
    /// Whether requests for which the folder has no file are passed on to an origin.
    passes_on: bool,
}

impl Draw {
    fn folder(&mut self, world: Faults) -> ServedFolder {
        let count = self.random.between(2, 10) as usize;
        let names: Vec<PlannedName> = (0..count).map(|_| self.name()).collect();
        let count_of_changes = self.random.choose(&[0, 1, 3, 6]);
        let changes = (0..count_of_changes).flat_map(|_| self.changes(&names)).collect();
        let delays = [&[0][..], &[0, 1, 2, 10]][usize::from(world != Faults::None)];
        let faults = SimFolderFaults {
            waits: self.random.choose(delays),
            short: self.random.choose(delays),
            ..SimFolderFaults::default()
        };
        let is_faulty = self.random.chance(400) && self.may_fail;
        let faulty = (self.random.below(count as u64) as usize, self.faults(faults));
        ServedFolder {
            names,
            changes,
            check_s: self.random.choose(&[0, 1, 1, 20]),
            clock_unit_ns: self.random.choose(&[0, 10_000_000]),
            memory_bytes: self.random.choose(&[0, 4096, 100_000, 4 << 20]),
            faults,
            faulty: is_faulty.then_some(faulty),
        }
    }

    fn name(&mut self) -> PlannedName {
        let kind = self.random.choose(&NameKind::ALL);
        PlannedName { kind, length: self.length(kind) }
    }

    /// Returns a length of a file. It may be 0.
    fn length(&mut self, kind: NameKind) -> usize {
        let longest = match kind {
            NameKind::Binary => self.random.choose(&[100, 10_000, 100_000, 600_000]),
            // Longer ones take long to compress.
            _ => self.random.choose(&[100, 5000, 40_000]),
        };
        match self.random.chance(500) {
            true => self.random.length(longest) - 1,
            false => self.random.between(longest as u64 / 2, longest as u64) as usize,
        }
    }

    /// Returns a change. Soon after some changes in place, there is another one, which may leave
    /// size and times of the file as they are.
    fn changes(&mut self, names: &[PlannedName]) -> Vec<PlannedChange> {
        let Some(change) = self.change(names) else { return Vec::new() };
        let later = PlannedChange { at_ms: change.at_ms + self.random.between(1, 8), ..change };
        let is_repeated = matches!(change.kind, ChangeKind::Rewrite(_)) && self.random.chance(500);
        [Some(change), Some(later).filter(|_| is_repeated)].into_iter().flatten().collect()
    }

    fn change(&mut self, names: &[PlannedName]) -> Option<PlannedChange> {
        let name = self.random.below(names.len() as u64) as usize;
        let kind = names[name].kind;
        let length = self.length(kind);
        let change = self.random.choose(&[
            ChangeKind::Replace(length),
            ChangeKind::Replace(length),
            ChangeKind::Rewrite(length),
            ChangeKind::Truncate(length / 2),
            ChangeKind::Remove,
        ]);
        let is_harmless = matches!(change, ChangeKind::Replace(_));
        let is_allowed = !(change == ChangeKind::Remove && self.passes_on);
        let change = match is_harmless || (self.may_fail && is_allowed) {
            true => change,
            false => ChangeKind::Replace(length),
        };
        let latest = self.random.choose(&[5, 300, 3000]);
        let at_ms = self.random.between(0, latest);
        kind.refusal().is_none().then_some(PlannedChange { name, at_ms, kind: change })
    }

    /// Returns the faults of one name. Those that make its request one for an origin are left out
    /// if there are origins.
    fn faults(&mut self, common: SimFolderFaults) -> SimFolderFaults {
        let often = [0, 0, 1, 3];
        let [io_errors, no_descriptors, denials, missing] =
            [(); 4].map(|()| self.random.choose(&often));
        let of_folder = |one_in: u32| if self.passes_on { 0 } else { one_in };
        let (denials, missing) = (of_folder(denials), of_folder(missing));
        SimFolderFaults { io_errors, no_descriptors, denials, missing, ..common }
    }

    /// Turns some requests of a connection into requests for files.
    fn requests(&mut self, connection: &mut Connection, folder: &ServedFolder) {
        for request in &mut connection.requests {
            if is_plain_read(request) && self.random.chance(600) {
                request.file = Some(self.request(folder));
            }
        }
        let of = |name: usize| {
            let changed = folder.changes.iter().filter(|change| change.name == name);
            let lengths = changed.map(|change| match change.kind {
                ChangeKind::Replace(length) | ChangeKind::Rewrite(length) => length,
                ChangeKind::Truncate(_) | ChangeKind::Remove => 0,
            });
            lengths.max().unwrap_or_default().max(folder.names[name].length)
        };
        let files = connection.requests.iter().filter_map(|request| request.file);
        let longest = files.map(|file| of(file.name)).max().unwrap_or_default();
        if let Reader::Slow(bytes, every) = &mut connection.reader
            && longest as u64 / *bytes as u64 * *every > 15_000
        {
            // As for the responses of origins.
            *bytes = 60_000;
        }
    }

    fn request(&mut self, folder: &ServedFolder) -> FileRequest {
        let name = self.random.below(folder.names.len() as u64) as usize;
        let PlannedName { kind, length } = folder.names[name];
        let range = self.range(length as u64);
        let has_range = self.random.chance(300);
        let accept =
            self.random.choose(&["gzip", "br", "zstd", "gzip, br", "identity", "gzip;q=0.5, br"]);
        let has_accept = self.random.chance(400);
        let condition = self.random.choose(&[
            FileCondition::KnownTag,
            FileCondition::UnknownTag,
            FileCondition::RangeOfKnownTag,
        ]);
        let has_condition = self.random.chance(300);
        // An origin would get these fields, and its cache apply them.
        let is_passed_on = self.passes_on && kind.refusal().is_some();
        FileRequest {
            name,
            range: Some(range).filter(|_| has_range && !is_passed_on),
            accept: Some(accept).filter(|_| has_accept && !is_passed_on),
            condition: Some(condition).filter(|_| has_condition && !is_passed_on),
        }
    }

    fn range(&mut self, length: u64) -> RangeRequest {
        let first = self.random.between(0, length + 10);
        let last = self.random.between(first, length + 20);
        self.random.choose(&[
            RangeRequest::Span(first, last),
            RangeRequest::From(first),
            RangeRequest::Last(last),
            RangeRequest::Two(first / 3, first / 2 + 10),
        ])
    }
}

/// Returns whether a request is a well-formed GET or HEAD without a body.
fn is_plain_read(request: &Request) -> bool {
    matches!(request.method, Method::Get | Method::Head)
        && request.malformation.is_none()
        && request.body.length == 0
        && request.body.chunk.is_none()
}
