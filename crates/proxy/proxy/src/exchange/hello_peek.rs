//! The state of the peek at the ClientHello of a CONNECT tunnel, which `transfer/tunnel.rs` reads.
//!
//! ```text
//! Waiting ── first byte ──> Holding ── whole, another protocol, the end, handshake_ms ──> Passed
//!                                       │                                            └─> Refused
//!                                       └─ whole, its name is checked ─> AwaitingSecond ─> the same
//! ```

use std::time::Duration;

use millrace_engine::Instant;

/// The peek at the ClientHello of a tunnel. Before `Passed`, no byte of the client is sent, except
/// a first ClientHello.
#[derive(Debug, Default)]
pub(crate) enum HelloPeek {
    /// The client has sent nothing.
    #[default]
    Waiting,
    /// Bytes of the client are held.
    Holding {
        /// When the first one was held.
        since: Instant,
    },
    /// The first ClientHello was sent, and a second one may follow.
    AwaitingSecond {
        /// The name in the first one, in lower case and without a dot at its end.
        server_name: Option<String>,
        /// When the first byte behind it was held; `None` before.
        since: Option<Instant>,
    },
    /// The tunnel continues.
    Passed {
        /// The name that the client asks for, in the same form.
        server_name: Option<String>,
    },
    /// The tunnel has to close.
    Refused {
        /// The same name.
        server_name: Option<String>,
    },
}

impl HelloPeek {
    /// Notes that bytes of the client are held.
    pub(crate) fn hold(&mut self, now: Instant) {
        match self {
            Self::Waiting => *self = Self::Holding { since: now },
            Self::AwaitingSecond { since, .. } => *since = since.or(Some(now)),
            Self::Holding { .. } | Self::Passed { .. } | Self::Refused { .. } => {}
        }
    }

    /// Returns whether the bytes of the client have to stay in the receive buffer.
    pub(crate) fn holds(&self) -> bool {
        !matches!(self, Self::Passed { .. })
    }

    /// Returns whether the first ClientHello was sent, and a second one may follow.
    pub(crate) fn awaits_second(&self) -> bool {
        matches!(self, Self::AwaitingSecond { .. })
    }

    /// Returns when the ClientHello has to be whole; `None` if no byte is held.
    pub(crate) fn deadline(&self, limit: Duration) -> Option<Instant> {
        match self {
            Self::Holding { since } => Some(*since + limit),
            Self::AwaitingSecond { since, .. } => since.map(|since| since + limit),
            Self::Waiting | Self::Passed { .. } | Self::Refused { .. } => None,
        }
    }

    /// Returns the name that the client asks for.
    pub(crate) fn server_name(&self) -> Option<&str> {
        match self {
            Self::AwaitingSecond { server_name, .. }
            | Self::Passed { server_name }
            | Self::Refused { server_name } => server_name.as_deref(),
            Self::Waiting | Self::Holding { .. } => None,
        }
    }
}
