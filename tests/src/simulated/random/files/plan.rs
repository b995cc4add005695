//! A folder as plain data: its names, their changes, and the requests for them.

use millrace_files::SimFolderFaults;

use crate::scenario::pattern;

/// A folder that a reverse proxy serves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServedFolder {
    /// The names, at most 10. Requests and changes name them by index.
    pub names: Vec<PlannedName>,
    /// The changes of files.
    pub changes: Vec<PlannedChange>,
    /// `--file-check` in seconds.
    pub check_s: u64,
    /// The unit of the times of files, in nanoseconds; 0: no two changes have the same time.
    pub clock_unit_ns: u32,
    /// The longest file that the cache keeps, in bytes.
    pub memory_bytes: u64,
    /// The faults of all files. None of them is visible in a response.
    pub faults: SimFolderFaults,
    /// The index of a name with further faults.
    pub faulty: Option<(usize, SimFolderFaults)>,
}

/// A name in a folder, and what it leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedName {
    /// The kind of the file, or the reason why there is none to send.
    pub kind: NameKind,
    /// The bytes of the first version of its file.
    pub length: usize,
}

/// The place to which a name leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameKind {
    /// A text, which can be compressed.
    Text,
    /// Bytes that cannot be compressed.
    Binary,
    /// A text with encoded forms beside it.
    Encoded,
    /// A link to a text.
    Link,
    /// A folder with an index.
    Index,
    /// A folder with an index, requested without its slash.
    Unslashed,
    /// Nothing.
    Missing,
    /// A hidden file.
    Hidden,
    /// A program.
    Program,
    /// A link to a program.
    LinkedProgram,
    /// A folder whose index is a link to the folder itself.
    IndexLoop,
    /// A link that leads out of the folder.
    Outside,
    /// A link to itself.
    Loop,
}

impl NameKind {
    /// All kinds. Those of files come first, and several times.
    pub(super) const ALL: [Self; 18] = [
        Self::Text,
        Self::Text,
        Self::Text,
        Self::Binary,
        Self::Binary,
        Self::Binary,
        Self::Encoded,
        Self::Encoded,
        Self::Link,
        Self::Index,
        Self::Unslashed,
        Self::Missing,
        Self::Hidden,
        Self::Program,
        Self::LinkedProgram,
        Self::IndexLoop,
        Self::Outside,
        Self::Loop,
    ];

    /// Returns the status for a name that leads to no file.
    pub fn refusal(self) -> Option<u16> {
        match self {
            Self::Text | Self::Binary | Self::Encoded | Self::Link | Self::Index => None,
            Self::Unslashed => Some(301),
            Self::Outside | Self::Loop => Some(403),
            _ => Some(404),
        }
    }

    /// Returns the path of the file itself below the folder; `None` if there is none.
    pub(super) fn file_path(self, index: usize) -> Option<String> {
        match self {
            Self::Text => Some(format!("f/{index}.css")),
            Self::Binary => Some(format!("f/{index}.bin")),
            Self::Encoded => Some(format!("f/{index}.js")),
            Self::Link => Some(format!("t/{index}.css")),
            Self::Index | Self::Unslashed => Some(format!("f/{index}/index.html")),
            Self::Hidden => Some(format!("f/.{index}")),
            Self::Program => Some(format!("f/{index}.cgi")),
            Self::LinkedProgram => Some(format!("t/{index}.cgi")),
            Self::Missing | Self::IndexLoop | Self::Outside | Self::Loop => None,
        }
    }

    /// Returns the path of the link below the folder, and its target; `None` if there is none.
    pub(super) fn link(self, index: usize) -> Option<(String, String)> {
        match self {
            Self::Link => Some((format!("f/{index}.css"), format!("../t/{index}.css"))),
            Self::LinkedProgram => Some((format!("f/{index}.html"), format!("../t/{index}.cgi"))),
            Self::IndexLoop => Some((format!("f/{index}/index.html"), format!("../{index}"))),
            Self::Outside => Some((format!("f/{index}.txt"), "../../secret".to_owned())),
            Self::Loop => Some((format!("f/{index}.txt"), format!("{index}.txt"))),
            _ => None,
        }
    }

    /// Returns the path of a request for the name.
    pub(in super::super) fn target(self, index: usize) -> String {
        match self {
            Self::Index | Self::IndexLoop => format!("/f/{index}/"),
            Self::Unslashed => format!("/f/{index}"),
            Self::Missing => format!("/f/{index}.none"),
            _ => {
                let path = self.link(index).map(|(path, _)| path).or(self.file_path(index));
                format!("/{}", path.expect("the kinds without a file have a link"))
            }
        }
    }
}

/// The codings in which encoded files lie beside [`NameKind::Encoded`], and their suffixes.
pub(super) const SIDECARS: [(&str, &str); 2] = [("gzip", ".gz"), ("br", ".br")];

/// Returns the bytes of a version of a file, from 0.
pub(super) fn version_bytes(
    kind: NameKind,
    index: usize,
    version: usize,
    length: usize,
) -> Vec<u8> {
    if kind == NameKind::Binary {
        return pattern(length, (index * 1000 + version) as u64);
    }
    let mut bytes = Vec::with_capacity(length + 64);
    let mut line = 0;
    while bytes.len() < length {
        let text = format!("line {line} of version {version} of file {index}\n");
        bytes.extend_from_slice(text.as_bytes());
        line += 1;
    }
    bytes.truncate(length);
    bytes
}

/// Returns the bytes of the encoded form of a file. The proxy never looks into them.
pub(super) fn sidecar_bytes(coding: &str, index: usize, length: usize) -> Vec<u8> {
    pattern(length / 3 + 1, (index * 1000 + 500 + coding.len()) as u64)
}

/// A change of a file at a time of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedChange {
    /// The index of the name.
    pub name: usize,
    /// When it happens, in milliseconds from the beginning.
    pub at_ms: u64,
    /// The kind of the change.
    pub kind: ChangeKind,
}

/// How a file changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// A new version of this many bytes takes its place, as by rename(2).
    Replace(usize),
    /// A new version of this many bytes is written in place.
    Rewrite(usize),
    /// It is cut in place; its first bytes remain.
    Truncate(usize),
    /// Its name is removed.
    Remove,
}

impl ChangeKind {
    /// Returns whether the change is visible through an open descriptor.
    pub fn is_in_place(self) -> bool {
        matches!(self, Self::Rewrite(_) | Self::Truncate(_))
    }
}

/// A GET or HEAD for a name in the folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileRequest {
    /// The index of the name.
    pub name: usize,
    /// The range that it requests.
    pub range: Option<RangeRequest>,
    /// Accept-Encoding.
    pub accept: Option<&'static str>,
    /// Its condition.
    pub condition: Option<FileCondition>,
}

/// A range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeRequest {
    /// From the first to the last byte.
    Span(u64, u64),
    /// From a byte to the end.
    From(u64),
    /// This many bytes at the end.
    Last(u64),
    /// The bytes up to the first number, and from the second one to the end.
    Two(u64, u64),
}

impl RangeRequest {
    /// Returns the value of the field `Range`.
    pub(in super::super) fn value(self) -> String {
        match self {
            Self::Span(first, last) => format!("bytes={first}-{last}"),
            Self::From(first) => format!("bytes={first}-"),
            Self::Last(count) => format!("bytes=-{count}"),
            Self::Two(last, first) => format!("bytes=0-{last},{first}-"),
        }
    }

    /// Returns the first and the last byte of a single range of a body of `length` bytes; `None` if
    /// it has none of them.
    pub(in super::super) fn bounds(self, length: u64) -> Option<(u64, u64)> {
        let end = length.checked_sub(1)?;
        let (first, last) = match self {
            Self::Span(first, last) => (first, last.min(end)),
            Self::From(first) => (first, end),
            Self::Last(0) => return None,
            Self::Last(count) => (length.saturating_sub(count), end),
            Self::Two(..) => return None,
        };
        (first <= end).then_some((first, last))
    }
}

/// A condition of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileCondition {
    /// If-None-Match with the entity tag that clients received last for the name.
    KnownTag,
    /// If-None-Match with an unknown entity tag.
    UnknownTag,
    /// If-Range with the entity tag that clients received last for the name.
    RangeOfKnownTag,
}
