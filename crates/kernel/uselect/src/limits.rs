//! Bounds of the library, with what happens when they are reached.

use std::time::Duration;

/// Waits in a row that are answered from memory although there are descriptors that are not
/// tracked; the next one looks at those too (the paper's MaxPass).
pub const PASSES_MAX: u32 = 64;
/// Nor is it longer than this that those are not looked at, while waits are asked for at all.
pub const OTHERS_UNSEEN_MAX: Duration = Duration::from_millis(10);
/// Waits in a row that are answered from memory without a look whether the daemon that keeps it is
/// still there; who sleeps is told.
pub const WAITS_UNSEEN_MAX: u32 = 256;
/// A sleep for room to send is cut in pieces of this length, after each of which the sockets
/// themselves are looked at: the programs look at those that packets came for, at 128 a batch, and
/// by TCP_NOTSENT_LOWAT a timer that sends makes room, too.
pub const ROOM_UNSEEN_MAX: Duration = Duration::from_millis(200);
