//! The versions of the files of a folder during a run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use millrace_engine::Instant;
use millrace_files::{Coding, CompressionLevel, SimFolderFaults};

use super::plan::{
    ChangeKind, NameKind, PlannedName, SIDECARS, ServedFolder, sidecar_bytes, version_bytes,
};

/// The bytes of a version.
pub(in super::super) type VersionBytes = Rc<[u8]>;

/// The versions of all names. Clones share their state.
#[derive(Clone)]
pub(in super::super) struct FolderHistory(Rc<RefCell<HistoryState>>);

struct HistoryState {
    folder: ServedFolder,
    /// How old the proxy's knowledge of a file may be.
    stale: Duration,
    names: Vec<NameHistory>,
    /// The bytes that clients received with each strong entity tag.
    tags: BTreeMap<String, (usize, VersionBytes)>,
    /// The entity tag that clients received last for each name.
    known: BTreeMap<usize, String>,
    /// Compressed versions, by name, version and coding.
    compressed: BTreeMap<(usize, usize, &'static str), VersionBytes>,
}

#[derive(Default)]
struct NameHistory {
    versions: Vec<Version>,
    /// The times of changes in place.
    in_place: Vec<Instant>,
    /// When it changed for the first time: from then on, its encoded forms are out of date.
    first_change: Option<Instant>,
}

struct Version {
    bytes: VersionBytes,
    since: Instant,
    /// When another version took its place, or it was removed.
    until: Option<Instant>,
}

/// A period, up to now, in which the proxy may have looked for a file.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Period(Instant);

impl FolderHistory {
    /// Returns the history of a folder that is created at `now`. `stale` is the longest time for
    /// which the proxy may not notice a change.
    pub(in super::super) fn new(folder: &ServedFolder, now: Instant, stale: Duration) -> Self {
        let first = |(index, name): (usize, &PlannedName)| {
            let bytes = version_bytes(name.kind, index, 0, name.length).into();
            let version = Version { bytes, since: now, until: None };
            let is_file = name.kind.refusal().is_none();
            let versions = is_file.then_some(version).into_iter().collect();
            NameHistory { versions, ..NameHistory::default() }
        };
        let names = folder.names.iter().enumerate().map(first).collect();
        Self(Rc::new(RefCell::new(HistoryState {
            folder: folder.clone(),
            stale,
            names,
            tags: BTreeMap::new(),
            known: BTreeMap::new(),
            compressed: BTreeMap::new(),
        })))
    }

    /// Records a change, and returns the bytes of the file after it; `None` if it is gone.
    pub(in super::super) fn change(
        &self,
        name: usize,
        kind: ChangeKind,
        now: Instant,
    ) -> Option<VersionBytes> {
        let state = &mut *self.0.borrow_mut();
        let history = &mut state.names[name];
        let present = history.versions.last_mut().filter(|version| version.until.is_none());
        let before = present.as_ref().map(|version| version.bytes.clone());
        if before.is_none() && !matches!(kind, ChangeKind::Replace(_)) {
            return None;
        }
        if let Some(version) = present {
            version.until = Some(now);
        }
        history.first_change.get_or_insert(now);
        let number = history.versions.len();
        let bytes = match kind {
            ChangeKind::Remove => return None,
            ChangeKind::Truncate(length) => {
                let bytes = before.expect("checked above");
                bytes[..length.min(bytes.len())].into()
            }
            ChangeKind::Replace(length) | ChangeKind::Rewrite(length) => {
                let file = state.folder.names[name].kind;
                VersionBytes::from(version_bytes(file, name, number, length))
            }
        };
        if kind.is_in_place() {
            history.in_place.push(now);
        }
        history.versions.push(Version { bytes: bytes.clone(), since: now, until: None });
        Some(bytes)
    }

    /// Returns the period in which the proxy may have looked for the file of a request, which was
    /// sent at `sent`.
    pub(in super::super) fn period(&self, sent: Instant) -> Period {
        let stale_ns = self.0.borrow().stale.as_nanos() as u64;
        Period(Instant::from_nanoseconds(sent.nanoseconds().saturating_sub(stale_ns)))
    }

    /// Returns the kind of a name.
    pub(in super::super) fn kind(&self, name: usize) -> NameKind {
        self.0.borrow().folder.names[name].kind
    }

    /// Returns the faults that only the calls for a name have.
    pub(in super::super) fn faults_of(&self, name: usize) -> SimFolderFaults {
        let faulty = self.0.borrow().folder.faulty.filter(|(faulty, _)| *faulty == name);
        faulty.map(|(_, faults)| faults).unwrap_or_default()
    }

    /// Returns whether the file of a name was absent at any time of a period.
    pub(in super::super) fn was_absent(&self, name: usize, Period(since): Period) -> bool {
        let state = self.0.borrow();
        let versions = &state.names[name].versions;
        versions.iter().enumerate().any(|(at, version)| {
            let next = versions.get(at + 1).map(|next| next.since);
            version.until.is_some_and(|until| match next {
                None => true,
                Some(next) => until < next && since <= next,
            })
        })
    }

    /// Returns whether the file of a name was changed in place in a period, or less than a second
    /// before it.
    pub(in super::super) fn changed_in_place(&self, name: usize, Period(since): Period) -> bool {
        let second = Duration::from_secs(1);
        self.0.borrow().names[name].in_place.iter().any(|at| *at + second >= since)
    }

    /// Returns whether `bytes` may be a part of the file at this offset, whose bytes were changed
    /// in place: each byte is that of a version.
    pub(in super::super) fn may_be_mixed(&self, name: usize, offset: usize, bytes: &[u8]) -> bool {
        let state = self.0.borrow();
        let versions = &state.names[name].versions;
        bytes.iter().enumerate().all(|(at, byte)| {
            versions.iter().any(|version| version.bytes.get(offset + at) == Some(byte))
        })
    }

    /// Returns the versions that the proxy may have found in a period, in a coding; an empty coding
    /// means the files as they are.
    pub(in super::super) fn versions(
        &self,
        name: usize,
        coding: &str,
        Period(since): Period,
    ) -> Vec<VersionBytes> {
        let state = &mut *self.0.borrow_mut();
        let PlannedName { kind, length } = state.folder.names[name];
        let history = &state.names[name];
        let found = history.versions.iter().enumerate();
        let found = found.filter(|(_, version)| version.until.is_none_or(|until| until >= since));
        let found = found.map(|(number, version)| (number, version.bytes.clone()));
        if coding.is_empty() {
            return found.map(|(_, bytes)| bytes).collect();
        }
        let Some(known) = coding_of(coding) else { return Vec::new() };
        let mut versions = Vec::new();
        for (number, bytes) in found {
            let key = (name, number, known.name());
            let compress = || known.compress(&[&bytes], CompressionLevel::Default).into();
            versions.push(state.compressed.entry(key).or_insert_with(compress).clone());
        }
        let is_current = history.first_change.is_none_or(|change| change >= since);
        let has_sidecar = SIDECARS.iter().any(|(sidecar, _)| *sidecar == coding);
        if kind == NameKind::Encoded && is_current && has_sidecar {
            versions.push(sidecar_bytes(coding, name, length).into());
        }
        versions
    }

    /// Records that a client received these bytes with an entity tag. Returns `false` if it was the
    /// tag of other bytes.
    pub(in super::super) fn learn_tag(&self, name: usize, tag: &str, bytes: &VersionBytes) -> bool {
        let state = &mut *self.0.borrow_mut();
        state.known.insert(name, tag.to_owned());
        if tag.starts_with("W/") {
            return true;
        }
        let known = state.tags.entry(tag.to_owned()).or_insert_with(|| (name, bytes.clone()));
        *known == (name, bytes.clone())
    }

    /// Returns the entity tag that clients received last for a name.
    pub(in super::super) fn known_tag(&self, name: usize) -> Option<String> {
        self.0.borrow().known.get(&name).cloned()
    }

    /// Returns the bytes that belong to a strong entity tag.
    pub(in super::super) fn bytes_of_tag(&self, tag: &str) -> Option<VersionBytes> {
        self.0.borrow().tags.get(tag).map(|(_, bytes)| bytes.clone())
    }
}

fn coding_of(name: &str) -> Option<Coding> {
    [Coding::Brotli, Coding::Zstd, Coding::Gzip].into_iter().find(|coding| coding.name() == name)
}
