//! The disk tier: answers in files, found again after a restart, however the process ended.
//!
//! ```text
//!  store ──> queue ──> record behind the last one ──> found by `find`
//!  find ──> Candidate ──> fetch ──> queue ──> Filler: chunk by chunk, each compared first
//!  purge ──> gone at once ──> queue ──> record, synced ──> told
//! ```
//!
//! [`Disks`] is all that is needed: it is shared by all workers, none of whose calls reads or
//! writes. Work goes through a queue a disk, to threads of its own; above a mark, what can be left
//! out is given back ([`Disks::store`], [`Disks::fetch`]), and the origin is asked. What comes of
//! it is told to a [`Host`]. Answers are appended to segments, which go whole, the oldest first.
//!
//! **No wrong byte**: everything is compared with a checksum before it is given to anybody; what
//! does not fit is a miss. **Nothing comes back** that was purged, and told so; nor what was
//! replaced or forgotten, unless the machine stopped a moment after that. A crash of the process
//! loses what was in the queues and nothing else.
//!
//! It knows nothing of HTTP, workers or sockets, and reads no clock. docs/design/disk.md has the
//! format and the reasons.
#![forbid(unsafe_code)]

mod directory;
mod directory_io;
mod disk;
mod disks;
mod fetch;
mod fetch_task;
mod format;
mod identity;
mod index;
pub mod limits;
mod log;
mod message;
mod purge_rules;
mod queue;
mod record;
mod recover;
mod segments;
mod shared;
mod sim_directory;
mod stats;
mod threads;
mod writer;

pub use directory::{Directory, DirectoryError};
pub use directory_io::{DirectoryIo, FileIo, IoResult};
pub use disks::{Disks, Error};
pub use format::ResponseId;
pub use identity::DirectoryContents;
pub use message::{
    Cursor, DiskCallbacks, DiskHit, DiskReply, FetchError, FetchRequest, StoredHeader,
    StoredResponse,
};
pub use purge_rules::PurgeTarget;
pub use queue::{DiskOptions, QueueMarks};
pub use sim_directory::{SimDirectory, SimFaults};
pub use stats::DiskStats;
