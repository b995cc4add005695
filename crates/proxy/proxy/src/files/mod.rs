//! Files of folders in exchanges: found, kept in memory if they are short, and read for clients.

mod context;
pub(crate) mod kept_bytes;
mod load;
pub(crate) mod reader;
mod search;
mod served_file;
mod shared_file;
mod table;
#[cfg(test)]
mod test_folder;
pub(crate) mod threads;

pub(crate) use context::{FileBody, FileContext, FileWork, NamedFile, ProgramUse};
pub(crate) use kept_bytes::Loaded;
pub(crate) use load::FileLoad;
pub(crate) use search::{FileSearch, Found, ListingRequest};
pub(crate) use served_file::{FileSource, ServedFile, listing};
pub(crate) use shared_file::SharedFile;
pub use shared_file::SharedFiles;
pub(crate) use table::{FileTable, Finding};
pub use threads::FileThreads;
