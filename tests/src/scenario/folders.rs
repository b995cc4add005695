//! Folders whose files the proxy serves.

use super::Piece;

/// A folder of a scenario.
#[derive(Clone, Debug)]
pub struct FolderPlan {
    /// The name in placeholders and steps.
    pub name: String,
    /// The files and links, in the order of the scenario.
    pub entries: Vec<FolderEntry>,
}

/// A name in a folder.
#[derive(Clone, Debug)]
pub struct FolderEntry {
    /// The path below the folder.
    pub path: String,
    /// The kind of the entry.
    pub kind: EntryKind,
}

/// The kind of an entry of a folder.
#[derive(Clone, Debug)]
pub enum EntryKind {
    /// A regular file with these bytes.
    File(Vec<Piece>),
    /// A symbolic link to this target.
    Link(String),
}

/// A change of a file during a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileChange {
    /// The name of the folder.
    pub folder: String,
    /// The path below it.
    pub path: String,
    /// The new bytes.
    pub bytes: Vec<u8>,
    /// Whether the bytes of the existing file change; otherwise a new file replaces it, as by
    /// rename(2).
    pub is_in_place: bool,
}
