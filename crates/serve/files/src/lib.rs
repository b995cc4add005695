//! Files of folders: found below a root, checked, and described as responses.
//!
//! ```text
//!  request path ──> RequestPath::decode ──> resolve ──> FoundFile ──> file_header ──> CachedHeader
//!                                             │                  └──> FileRead: the body
//!                                             ├──> Entries ──> write_listing: HTML
//!                                             └──> a redirect, a program, missing, forbidden
//! ```
//!
//! [`resolve()`] is a pure function over [`FolderIo`], which is a real [`Folder`] or a simulated
//! [`SimFolder`]. A worker calls it with [`OpenMode::Cached`], in which no call waits for a disk.
//! If that fails with EAGAIN, a thread of a [`Pool`] calls it with [`OpenMode::Waiting`].
//!
//! **No byte from outside.** The kernel resolves each path below the descriptor of the root, so no
//! renaming and no link leads out of it. Links to granted folders are resolved below the
//! descriptors of these. **No source of a program**: files with the extensions of programs are
//! never sent.
//!
//! The crate knows no workers and no connections, and parses no requests.
#![forbid(unsafe_code)]

mod codings;
mod compression;
mod content_type;
mod escape;
mod file_header;
mod folder;
mod folder_io;
mod granted_folder;
pub mod limits;
mod listing;
mod listing_page;
mod name_pattern;
mod pool;
mod request_path;
mod resolve;
mod rules;
mod sim_folder;
mod try_file;
mod upload_file;

pub use millrace_sys::Errno;

pub use codings::{AcceptedCodings, Coding, fuzz_accept_encoding};
pub use compression::Compression;
pub use content_type::{ContentTypes, ContentTypesError};
pub use file_header::{entity_tag, file_header, listing_header};
pub use folder::{Folder, Symlinks, WithheldFolder};
pub use folder_io::{
    Entries, FileKind, FileStatus, FileTime, FolderIo, ListEntry, OpenFile, OpenMode, OpenedFile,
};
pub use granted_folder::GrantedFolder;
pub use iolite::CompressionLevel;
pub use listing::{ListOrder, SortKey, sort_entries};
pub use listing_page::write_listing;
pub use name_pattern::NamePattern;
pub use pool::{JobKind, Pool, PoolFull};
pub use request_path::{BadPath, RequestPath, fuzz_request_path};
pub use resolve::{FoundFile, FoundScript, Resolution, resolve};
pub use rules::FolderRules;
pub use sim_folder::{SimFolder, SimFolderFaults};
pub use try_file::{BadTryFile, TryFile};
pub use upload_file::{CloseFile, UploadFile, UploadFolders};
