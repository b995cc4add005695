//! The disk tier: responses in files. A restarted process finds them again, however the previous
//! one ended.
//!
//! ```text
//!  store ──> queue ──> record appended to the log ──> found by `find`
//!  find ──> DiskHit ──> fetch ──> queue ──> Filler: chunk by chunk, each verified first
//!  purge ──> no longer delivered ──> queue ──> record, synced ──> reply
//! ```
//!
//! [`Disks`] is the interface, which all workers share. After [`Disks::open`], the calls of workers
//! read and write no files: each disk has a queue, and threads that do the queued work. If the
//! queue is too long, the disk is overloaded: it refuses optional work ([`Disks::store`],
//! [`Disks::fetch`]), and the origin is used instead. Results go to [`DiskCallbacks`]. Responses
//! are appended to segments, which are dropped as a whole, oldest first.
//!
//! **No wrong byte**: everything is verified by a checksum before it is handed out; damaged data is
//! a miss. **No resurrection**: a response does not come back once its purge was confirmed as
//! durable. A replaced or removed one may come back if the process fails before the change is
//! written, if the machine fails before the next sync, or if the newer record is damaged before its
//! segment is closed. A crash of the process loses what was in the queues and nothing else.
//!
//! The crate knows nothing about HTTP, workers or sockets. It reads the clock only to limit waits.
//! docs/design/disk.md has the format and the reasons.
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
