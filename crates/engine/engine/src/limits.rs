//! Every bound of this crate, with what happens at it.

/// Operations run in one turn, completed or not; then the kernel is looked at again.
pub(crate) const TURN_STEPS_MAX: u32 = 1024;
/// Bytes moved in one turn, after which the kernel is looked at again, so that a few large
/// transfers do not keep new events waiting. The operation that reaches it is finished.
pub(crate) const TURN_BYTES_MAX: usize = 1024 * 1024;
/// Connections that one listener gives in one turn; the others stay in its backlog until the next.
pub(crate) const ACCEPTS_MAX: u32 = 64;
/// Events taken in one look at the kernel; the others are found by the next one.
pub(crate) const EVENTS_MAX: usize = 512;
/// Requests that a ring takes between two submissions; at the next one they are submitted early.
pub(crate) const REQUESTS_MAX: u32 = 1024;
/// Completions that a ring has room for between two turns; further ones are kept in kernel memory
/// of their own.
pub(crate) const COMPLETIONS_MAX: u32 = 4096;
/// Descriptors of one engine; above it, opening says [`Error::OutOfDescriptors`](crate::Error).
pub(crate) const DESCRIPTORS_MAX: u32 = 1 << 22;
/// Buffers kept for the next receive; further ones are freed. Over
/// epoll one is in use at most times.
pub(crate) const SPARE_BUFFERS_MAX: usize = 16;
/// Receives, and sends, that a ring is given in one turn: each has a buffer until its completion
/// was handled. At either bound the turn ends.
pub(crate) const BATCH_MAX: usize = 16;
/// Bytes of a send that are copied to be sent with the others of a turn; a longer one is sent at
/// once, out of its caller's memory. Measured: docs/design/uring.md.
pub(crate) const BATCHED_SEND_MAX: usize = 16 * 1024;
/// Bytes moved by one splice; a larger maximum is cut down to it.
pub(crate) const SPLICE_MAX: usize = 256 * 1024;
/// Bytes of access log that wait for the disk; further records are dropped and counted.
pub(crate) const LOG_PENDING_MAX: usize = 1024 * 1024;
/// Bytes of access log at which they are written without waiting longer.
pub(crate) const LOG_BATCH: usize = 64 * 1024;
/// How long records wait for a batch to fill.
pub(crate) const LOG_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
/// How long the end of the process waits for a disk, or for whoever reads a pipe.
pub(crate) const LOG_CLOSE_WAIT: std::time::Duration = std::time::Duration::from_secs(5);
/// How often it is looked whether the log is written to its end.
pub(crate) const LOG_CLOSE_POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(1);
/// Waits in a row that memory answers before what is not tracked is looked at, and how long they
/// last at most: a listener waits no longer.
pub(crate) const KERNEL_CHECK_WAITS_MAX: u32 = 8;
pub(crate) const KERNEL_CHECK_TIME_MAX: std::time::Duration = std::time::Duration::from_millis(1);
/// Bytes that an edge waits for at most, of those that are expected: a small part of what the kernel
/// takes for a connection, so that its peer is never kept from sending by it.
pub(crate) const EXPECTED_BYTES_MAX: u32 = 32 * 1024;
/// How long it waits for them at most; then it is told of what is there.
pub(crate) const EXPECTED_TIME_MAX: std::time::Duration = std::time::Duration::from_millis(5);
/// Bytes that were worth that wait: more than two segments of an Ethernet.
pub(crate) const EXPECTED_BYTES_MIN: u32 = 4096;
/// How soon some come that are in quick succession: of fewer than a few in that time there is
/// nothing to be gained.
pub(crate) const EXPECTED_GAP_MAX: std::time::Duration = std::time::Duration::from_micros(1250);
