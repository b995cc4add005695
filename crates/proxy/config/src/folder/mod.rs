//! The folder whose files a route serves: its place, and the rules by which its files are found and
//! described. The program opens it.

mod build;
mod rows;
mod value;
mod write;

use std::path::PathBuf;
use std::sync::Arc;

use millrace_files::{FolderIo, FolderRules};

pub(super) use build::{all_or, build, build_sendfile, withhold_scripts};
pub(super) use value::parse_media_pattern;
pub(super) use write::write;

/// A folder whose files a route serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FolderRoute {
    /// The path as configured; absolute once the program has opened the folder.
    pub path: PathBuf,
    /// Which symbolic links are followed.
    pub symlinks: SymlinkRule,
    /// Further folders into which symbolic links may lead, as configured.
    pub allowed_paths: Vec<PathBuf>,
    /// Whether requests of clients are refused: only responses of origins name its files.
    pub is_internal: bool,
    /// How files are found and described.
    pub rules: FolderRules,
    /// How long a found file is served before it is checked whether it has changed, in
    /// milliseconds.
    pub check_ms: u64,
    /// The opened folder. `None` until the program has opened it.
    pub folder: Option<FolderHandle>,
}

impl FolderRoute {
    /// Returns the folders that the program opens.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.path).chain(&self.allowed_paths)
    }
}

/// The symbolic links of a folder that are followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SymlinkRule {
    /// Those whose target lies below the folder or an allowed path.
    #[default]
    Inside,
    /// None.
    None,
}

/// An opened folder. Two handles are equal if they are the same opened folder.
#[derive(Clone, Debug)]
pub struct FolderHandle(pub Arc<dyn FolderIo>);

impl PartialEq for FolderHandle {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for FolderHandle {}
