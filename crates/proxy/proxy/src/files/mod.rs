//! Files of folders in exchanges: found, kept in memory if they are short, and read for clients.

mod context;
mod load;
pub(crate) mod reader;
mod served_file;
mod table;
#[cfg(test)]
mod test_folder;
mod threads;

pub(crate) use context::{FileContext, FileWork};
pub(crate) use load::{FileLoad, Loaded};
pub(crate) use served_file::{ServedFile, listing};
pub(crate) use table::{FileTable, Finding};
pub use threads::FileThreads;
