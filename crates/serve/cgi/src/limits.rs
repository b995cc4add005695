//! The bounds of this crate that are no limits of the configuration.

use std::time::Duration;

/// The longest start of a launcher.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The most launchers at the same time: that in use, and those of earlier configurations whose
/// programs still run.
pub(crate) const LAUNCHERS_MAX: usize = 8;

/// The most connections. A further one is closed. millrace opens no more than it has requests for
/// programs, apart from those that it has just closed.
pub(crate) const CONNECTIONS_MAX: usize = 4096;

/// The most bytes of output that wait for millrace. With more, the program has to wait.
pub(crate) const OUTPUT_BYTES_MAX: usize = 64 * 1024;

/// The most bytes that are received or read at once.
pub(crate) const READ_BYTES_MAX: usize = 32 * 1024;

/// The most segments of the path of a program below its folder.
pub(crate) const SEGMENTS_MAX: usize = 32;

/// The open files of a program. Programs that use select(2) fail with more.
pub(crate) const DESCRIPTORS_MAX: u64 = 1024;

/// The stack of the thread of a connection.
pub(crate) const STACK_BYTES: usize = 256 * 1024;

/// The tries to open a program whose folder is renamed meanwhile.
pub(crate) const OPEN_TRIES_MAX: usize = 8;
