//! The bugs that an engine can have on purpose.

/// A bug that [`World::plant`](crate::World::plant) gives to all engines of a world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineFault {
    /// Wake-ups reach no worker, as if mailboxes forgot to wake their receivers.
    WakeLost,
    /// The receive of a closed descriptor ends once another object has the slot, and with the token
    /// of that object, as if tables ignored generations.
    StaleToken,
    /// If one byte is left in a pipe, it is lost and reported as sent.
    PipeByteLost,
    /// The bytes that a splice left in a pipe, or that were in it when it was closed, come out of the
    /// pipe that is filled next.
    DirtyPipe,
    /// A connection that a full mailbox gives back to its worker is lost.
    HandOverLost,
    /// The descriptor of a failed attempt to connect to an origin cannot be closed.
    FailedConnectLeaks,
    /// The descriptor of an attempt to connect to an origin cannot be closed before the attempt
    /// ends.
    AbandonedConnectLeaks,
}

impl EngineFault {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::WakeLost,
        Self::StaleToken,
        Self::PipeByteLost,
        Self::DirtyPipe,
        Self::HandOverLost,
        Self::FailedConnectLeaks,
        Self::AbandonedConnectLeaks,
    ];
}
