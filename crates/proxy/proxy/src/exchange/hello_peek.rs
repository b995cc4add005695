//! The state of the peek at the ClientHello of a CONNECT tunnel, which `transfer/tunnel.rs` reads.
//!
//! ```text
//! Waiting ── first byte ──> Holding ── whole, another protocol, the end, handshake_ms ──> Passed
//!                                                                                     └─> Refused
//! ```

use std::time::Duration;

use millrace_engine::Instant;

/// The peek at the ClientHello of a tunnel. Before `Passed`, no byte of the client is sent.
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
    /// The tunnel continues.
    Passed {
        /// The name that the client asks for, in lower case and without a dot at its end.
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
        if matches!(self, Self::Waiting) {
            *self = Self::Holding { since: now };
        }
    }

    /// Returns whether the bytes of the client have to stay in the receive buffer.
    pub(crate) fn holds(&self) -> bool {
        !matches!(self, Self::Passed { .. })
    }

    /// Returns when the ClientHello has to be whole; `None` if no byte is held.
    pub(crate) fn deadline(&self, limit: Duration) -> Option<Instant> {
        match self {
            Self::Holding { since } => Some(*since + limit),
            Self::Waiting | Self::Passed { .. } | Self::Refused { .. } => None,
        }
    }

    /// Returns the name that the client asks for.
    pub(crate) fn server_name(&self) -> Option<&str> {
        match self {
            Self::Passed { server_name } | Self::Refused { server_name } => server_name.as_deref(),
            Self::Waiting | Self::Holding { .. } => None,
        }
    }
}
