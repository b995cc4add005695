//! The folder of a run, and the actor that changes its files as planned.

use std::rc::Rc;
use std::time::Duration;

use millrace_engine::Instant;
use millrace_files::SimFolder;
use millrace_sim::World;

use super::history::FolderHistory;
use super::plan::{ChangeKind, NameKind, SIDECARS, ServedFolder, sidecar_bytes, version_bytes};
use crate::simulated::folders::{AGE, SimFolders, file_time};

/// The name of the folder in the simulated file system.
pub(in super::super) const FOLDER_NAME: &str = "site";

/// The script of a folder with programs.
pub(in super::super) const SCRIPT: &str = "app.php";

/// Changes the files of a folder.
pub(in super::super) struct FolderChanger {
    plan: ServedFolder,
    folder: SimFolder,
    history: FolderHistory,
    /// When each change is due, and its index in the plan, the next one last.
    due: Vec<(Instant, usize)>,
}

impl FolderChanger {
    /// Creates the folder of a plan.
    pub(in super::super) fn new(
        plan: &ServedFolder,
        history: &FolderHistory,
        world: &World,
    ) -> Self {
        let folder = create(plan, world);
        let due = |(index, change): (usize, &super::plan::PlannedChange)| {
            (world.now() + Duration::from_millis(change.at_ms), index)
        };
        let mut due: Vec<_> = plan.changes.iter().enumerate().map(due).collect();
        due.sort_unstable();
        due.reverse();
        Self { plan: plan.clone(), folder, history: history.clone(), due }
    }

    /// Returns the folders of the world.
    pub(in super::super) fn folders(&self) -> Rc<SimFolders> {
        Rc::new(SimFolders::of(vec![(FOLDER_NAME.to_owned(), self.folder.clone())]))
    }

    /// Makes the changes that are due. Returns when the next one is.
    pub(in super::super) fn step(&mut self, world: &World) -> Option<Instant> {
        while let Some((_, index)) = self.due.pop_if(|(at, _)| *at <= world.now()) {
            let change = self.plan.changes[index];
            self.folder.set_now(file_time(world.time_of_day()));
            let path = self.plan.names[change.name].kind.file_path(change.name);
            let path = path.expect("only files change");
            world.log_event(&format!("{path}: {:?}", change.kind));
            let bytes = self.history.change(change.name, change.kind, world.now());
            match (change.kind, bytes) {
                (ChangeKind::Remove, _) | (_, None) => self.folder.remove(path.as_bytes()),
                (ChangeKind::Replace(_), Some(bytes)) => self.folder.write(path.as_bytes(), &bytes),
                (_, Some(bytes)) => {
                    self.folder.rewrite(path.as_bytes(), &bytes);
                }
            }
        }
        self.due.last().map(|(at, _)| *at)
    }
}

/// Creates the files and links of a plan.
fn create(plan: &ServedFolder, world: &World) -> SimFolder {
    let folder = SimFolder::new(world.random());
    folder.set_now(file_time(world.time_of_day() - AGE));
    folder.write(SCRIPT.as_bytes(), b"a script, which is never sent");
    for (index, name) in plan.names.iter().enumerate() {
        let kind = name.kind;
        if let Some(path) = kind.file_path(index) {
            let bytes = version_bytes(kind, index, 0, name.length);
            folder.write(path.as_bytes(), &bytes);
            for (coding, suffix) in SIDECARS.iter().filter(|_| kind == NameKind::Encoded) {
                let bytes = sidecar_bytes(coding, index, name.length);
                folder.write(format!("{path}{suffix}").as_bytes(), &bytes);
            }
        }
        if let Some((path, target)) = kind.link(index) {
            folder.link(path.as_bytes(), target.as_bytes());
        }
    }
    folder.set_clock_unit_ns(plan.clock_unit_ns);
    folder.set_faults(plan.faults);
    if let Some((index, faults)) = plan.faulty {
        folder.set_faults_of(format!("f/{index}").as_bytes(), faults);
    }
    folder
}
