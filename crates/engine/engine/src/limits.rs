//! All bounds of this crate, and what happens when each is reached.

/// The number of operations that are tried in one turn, whether or not they complete. The engine
/// then polls the kernel for new events.
pub(crate) const TURN_STEPS_MAX: u32 = 1024;
/// The number of bytes that are moved in one turn. The engine then polls the kernel for new events,
/// so that a few large transfers do not delay other connections. The operation that reaches the
/// bound still completes.
pub(crate) const TURN_BYTES_MAX: usize = 1024 * 1024;
/// Connections accepted from one listener in one turn. The others stay in the backlog until the
/// next turn.
pub(crate) const ACCEPTS_MAX: u32 = 64;
/// Events fetched from the kernel in one call. The next call returns the others.
pub(crate) const EVENTS_MAX: usize = 512;
/// Requests that a ring holds between two submissions. When it is full they are submitted early.
pub(crate) const REQUESTS_MAX: u32 = 1024;
/// Completions that a ring holds between two turns. The kernel keeps further ones in memory of its
/// own.
pub(crate) const COMPLETIONS_MAX: u32 = 4096;
/// Descriptors of one engine. Above the bound, opening returns
/// [`Error::OutOfDescriptors`](crate::Error).
pub(crate) const DESCRIPTORS_MAX: u32 = 1 << 22;
/// Buffers kept for later receives; further ones are freed. The epoll engine rarely uses more than
/// one at a time.
pub(crate) const SPARE_BUFFERS_MAX: usize = 16;
/// The most receives, and the most sends, that are submitted to a ring in one turn. Each keeps a
/// buffer until its completion is handled. When there are this many of one kind, the turn ends.
/// docs/design/engine.md compares batches of other sizes.
pub(crate) const BATCH_MAX: usize = 16;
/// The largest send, in bytes, that is copied so that it can be submitted together with the others
/// of a turn. A longer one is sent at once from the caller's memory.
pub(crate) const BATCHED_SEND_MAX: usize = 16 * 1024;
/// Bytes moved by one splice. A larger `max` is reduced to it.
pub(crate) const SPLICE_MAX: usize = 256 * 1024;
/// Bytes of access log that wait to be written. Further records are dropped and counted.
pub(crate) const LOG_PENDING_MAX: usize = 1024 * 1024;
/// Bytes of access log that are written without waiting for more.
pub(crate) const LOG_BATCH: usize = 64 * 1024;
/// Time that a record waits for more records before it is written.
pub(crate) const LOG_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
/// Time that the process waits at its end for a slow disk, or for the reader of a pipe.
pub(crate) const LOG_CLOSE_WAIT: std::time::Duration = std::time::Duration::from_secs(5);
/// Interval at which the process checks, at its end, whether the log has been written.
pub(crate) const LOG_CLOSE_POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(1);
/// With uselect: after this many successive waits that found events in memory, the untracked
/// descriptors, such as listeners, are polled.
pub(crate) const KERNEL_CHECK_WAITS_MAX: u32 = 8;
/// With uselect: the longest time for which untracked descriptors are not polled.
pub(crate) const KERNEL_CHECK_TIME_MAX: std::time::Duration = std::time::Duration::from_millis(1);
/// The largest number of expected bytes for which a connection waits. It is a small part of the
/// receive buffer, so the window stays open and the peer can send.
pub(crate) const EXPECTED_BYTES_MAX: u32 = 32 * 1024;
/// The longest time that a connection waits for expected bytes. After it, the bytes that are there
/// are reported.
pub(crate) const EXPECTED_TIME_MAX: std::time::Duration = std::time::Duration::from_millis(5);
/// If fewer bytes than this have arrived when a wait ends at its deadline, the connection counts as
/// slow. The number is above that of two Ethernet segments.
pub(crate) const EXPECTED_BYTES_MIN: u32 = 4096;
/// The time within which further bytes have to arrive for the connection to count as fast. With
/// longer gaps, too few segments arrive within [`EXPECTED_TIME_MAX`] to make a wait worthwhile.
pub(crate) const EXPECTED_GAP_MAX: std::time::Duration = std::time::Duration::from_micros(1250);
