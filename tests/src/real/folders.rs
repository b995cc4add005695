//! Folders of files below the folder of a run.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::scenario::{EntryKind, FileChange, Placeholders, Scenario};

/// The folders of one run.
pub(super) struct Folders(PathBuf);

impl Folders {
    /// Creates the folders of a scenario in `folder`, and sets their placeholders.
    pub(super) fn create(
        scenario: &Scenario,
        folder: &Path,
        names: &mut Placeholders,
    ) -> io::Result<Self> {
        for plan in &scenario.folders {
            let folder = folder.join(&plan.name);
            std::fs::create_dir(&folder)?;
            for entry in &plan.entries {
                let path = folder.join(&entry.path);
                path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                match &entry.kind {
                    EntryKind::File(pieces) => std::fs::write(path, names.bytes(pieces))?,
                    EntryKind::Link(target) => symlink(names.fill(target), path)?,
                }
            }
            names.set(&plan.name, &folder.display().to_string());
        }
        Ok(Self(folder.to_owned()))
    }

    /// Changes a file.
    pub(super) fn change(&self, change: &FileChange) -> Result<(), String> {
        let changed = match change.is_in_place {
            true => self.rewrite(change),
            false => self.replace(change),
        };
        changed.map_err(|error| format!("{}/{}: {error}", change.folder, change.path))
    }

    fn replace(&self, change: &FileChange) -> io::Result<()> {
        let new = self.0.join("new");
        std::fs::write(&new, &change.bytes)?;
        std::fs::rename(new, self.path(change))
    }

    fn rewrite(&self, change: &FileChange) -> io::Result<()> {
        let mut file: File = OpenOptions::new().write(true).open(self.path(change))?;
        file.write_all(&change.bytes)?;
        file.set_len(change.bytes.len() as u64)
    }

    fn path(&self, change: &FileChange) -> PathBuf {
        self.0.join(&change.folder).join(&change.path)
    }
}
