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
mod disk;
mod fetch;
mod fetching;
mod format;
mod front;
mod identity;
mod index;
pub mod limits;
mod log;
mod message;
mod queue;
mod recover;
mod rules;
mod segments;
mod shared;
mod sim;
mod tally;
mod threads;
mod tier;
mod volume;
mod work;

pub use directory::{Directory, DirectoryError};
pub use format::Id;
pub use identity::Contents;
pub use message::{Answer, Answered, Candidate, Cursor, Fetch, Host, Miss, StoredHead};
pub use queue::{Marks, Options};
pub use rules::Subject;
pub use sim::{SimFaults, SimVolume};
pub use tally::Counters;
pub use tier::{Disks, Error};
pub use volume::{IoResult, Volume, VolumeFile};
