//! What an engine did, for tests.

/// Counts since the engine began. Each only grows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EngineStats {
    /// Calls of recv(2).
    pub receives: u64,
    /// Calls of send(2) and sendmsg(2).
    pub sends: u64,
    /// Calls that move bytes or accept, and found nothing to do (EAGAIN).
    pub would_block: u64,
    /// Sends that the kernel did not take whole at once.
    pub short_sends: u64,
    /// Receives that were ready and had to wait for the budget.
    pub parked_receives: u64,
    /// Events for descriptors that were closed before the event was looked at.
    pub stale_events: u64,
    /// Bytes sent from memory.
    pub bytes_sent: u64,
    /// Bytes sent by reference.
    pub bytes_zero_copy: u64,
    /// Bytes spliced, counted once on their way into a pipe and once on their way out.
    pub bytes_spliced: u64,
}
