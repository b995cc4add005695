//! Statistics of an engine, for tests.

/// Counters since the engine was created.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EngineStats {
    /// Receives that were tried: calls of recv(2), and requests to a ring.
    pub receives: u64,
    /// Sends that were tried: calls of send(2) and sendmsg(2), and requests to a ring.
    pub sends: u64,
    /// Calls that found no bytes, no connection, or no room to send (EAGAIN).
    pub would_block: u64,
    /// Sends of which the kernel took only a part at once.
    pub short_sends: u64,
    /// Receives that were ready and had to wait for the budget.
    pub parked_receives: u64,
    /// Events of descriptors that were closed before the event was handled.
    pub stale_events: u64,
    /// Bytes copied from memory to the kernel.
    pub bytes_sent: u64,
    /// Bytes sent by reference.
    pub bytes_zero_copy: u64,
    /// Bytes spliced. Each byte is counted on its way into a pipe and on its way out.
    pub bytes_spliced: u64,
}
