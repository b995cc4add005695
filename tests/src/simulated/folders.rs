//! The folders of a simulated world, with the faults of their files.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millrace_config::{Config, FolderHandle, FolderRoute};
use millrace_files::{FileTime, SimFolder, SimFolderFaults};
use millrace_sim::{Faults, SeededRandom, World};

use crate::scenario::{EntryKind, FileChange, Placeholders, Scenario, Tolerance};

/// The age of the files of a new world: they count as left alone.
pub(super) const AGE: Duration = Duration::from_secs(86_400);

/// The unit of the times of files: the tick of a slow kernel.
const CLOCK_UNIT_NS: u32 = 10_000_000;

/// The folders of a world.
pub(super) struct SimFolders {
    /// The folders by name.
    folders: Vec<(String, SimFolder)>,
    /// The faults of their files.
    faults: SimFolderFaults,
}

impl SimFolders {
    /// Creates the folders of a scenario, with faults that the seed decides, and sets their
    /// placeholders.
    pub(super) fn new(
        scenario: &Scenario,
        world: &World,
        seed: u64,
        faults: Faults,
        names: &mut Placeholders,
    ) -> Self {
        // Independent of the draws of the world.
        let mut random = SeededRandom::new(seed ^ 0x464f_4c44_4552_5300);
        let faults = draw_faults(&mut random, faults);
        let mut folders = Vec::new();
        for plan in &scenario.folders {
            let folder = SimFolder::new(random.next_u64());
            folder.set_clock_unit_ns(CLOCK_UNIT_NS);
            folder.set_now(file_time(world.time_of_day() - AGE));
            for entry in &plan.entries {
                match &entry.kind {
                    EntryKind::File(pieces) => {
                        folder.write(entry.path.as_bytes(), &names.bytes(pieces));
                    }
                    EntryKind::Link(target) => {
                        folder.link(entry.path.as_bytes(), names.fill(target).as_bytes());
                    }
                }
            }
            folder.set_faults(faults);
            folders.push((plan.name.clone(), folder));
            names.set(&plan.name, &path_of(&plan.name));
        }
        Self { folders, faults }
    }

    /// Creates a world's folders of existing ones, each with its name.
    pub(super) fn of(folders: Vec<(String, SimFolder)>) -> Self {
        Self { folders, faults: SimFolderFaults::default() }
    }

    /// Returns the faults that these folders may cause at clients in a hostile world.
    pub(super) fn tolerance(&self) -> Tolerance {
        match self.faults {
            _ if self.folders.is_empty() => Tolerance::Hostile,
            SimFolderFaults { replaced: 0, resized: 0, .. } => Tolerance::HostileFiles,
            SimFolderFaults { resized: 0, .. } => Tolerance::ReplacedFiles,
            _ => Tolerance::ChangedFiles,
        }
    }

    /// Sets the folders of a configuration, which the program would open.
    pub(super) fn set_content(&self, config: &mut Config) {
        for route in config.services.iter_mut().flat_map(|service| service.routes_mut()) {
            let Some(set) = &mut route.folder else { continue };
            let is_set = |(name, _): &&(String, SimFolder)| set.path == Path::new(&path_of(name));
            if let Some((_, folder)) = self.folders.iter().find(is_set) {
                let handle = Some(FolderHandle(Arc::new(folder.clone())));
                *set = Arc::new(FolderRoute { folder: handle, ..FolderRoute::clone(set) });
            }
        }
    }

    /// Changes a file.
    pub(super) fn change(&self, world: &World, change: &FileChange) -> Result<(), String> {
        self.set_now(world);
        let FileChange { folder: name, path, bytes, is_in_place } = change;
        let found = self.folders.iter().find(|(known, _)| known == name);
        let (_, folder) = found.ok_or_else(|| format!("no folder is called {name}"))?;
        world.trace_note("file", &format!("{name}/{path} changes"));
        if !is_in_place {
            folder.write(path.as_bytes(), bytes);
        } else if !folder.rewrite(path.as_bytes(), bytes) {
            return Err(format!("{name} has no file {path}"));
        }
        Ok(())
    }

    /// Sets the time of the next change.
    pub(super) fn set_now(&self, world: &World) {
        for (_, folder) in &self.folders {
            folder.set_now(file_time(world.time_of_day()));
        }
    }
}

/// Draws the faults of files. A job may always have to wait for a disk, and a read may be short.
fn draw_faults(random: &mut SeededRandom, faults: Faults) -> SimFolderFaults {
    let mut draw = |choices: &[u32]| random.choose(choices);
    let benign = SimFolderFaults {
        waits: draw(&[0, 1, 2, 10]),
        short: draw(&[0, 2, 10]),
        ..SimFolderFaults::default()
    };
    match faults {
        Faults::None => SimFolderFaults::default(),
        Faults::Benign => benign,
        Faults::Hostile => SimFolderFaults {
            io_errors: draw(&[0, 0, 10, 50]),
            denials: draw(&[0, 0, 10, 50]),
            no_descriptors: draw(&[0, 0, 10, 50]),
            missing: 0,
            replaced: draw(&[0, 0, 5, 50]),
            resized: draw(&[0, 0, 5, 50]),
            ..benign
        },
    }
}

/// Returns the path of a folder in the simulated file system.
pub(super) fn path_of(name: &str) -> String {
    format!("/sim/{name}")
}

pub(super) fn file_time(since_1970: Duration) -> FileTime {
    FileTime { seconds: since_1970.as_secs() as i64, nanoseconds: since_1970.subsec_nanos() }
}
