//! The state of the peek at the ClientHello of a CONNECT tunnel, which `transfer/tunnel.rs` reads.
//!
//! ```text
//! nothing held ── first byte ──> held ── whole, another protocol, the end, handshake_ms ──> decided
//! ```

use std::time::Duration;

use millrace_engine::Instant;

/// The peek at the ClientHello of a tunnel.
#[derive(Debug, Default)]
pub(crate) struct HelloPeek {
    /// Whether the tunnel may continue. Until then, no byte of the client is sent.
    is_decided: bool,
    /// When the first byte of the client was held; `None` before.
    held_since: Option<Instant>,
    /// The name that the client asks for, in lower case and without a dot at its end.
    server_name: Option<String>,
}

impl HelloPeek {
    /// Creates the result of a peek. `continues` is false if the tunnel has to close.
    pub(crate) fn decided(continues: bool, server_name: Option<String>) -> Self {
        Self { is_decided: continues, held_since: None, server_name }
    }

    /// Notes that bytes of the client are held.
    pub(crate) fn hold(&mut self, now: Instant) {
        self.held_since.get_or_insert(now);
    }

    /// Returns whether bytes of the client are held, or will be.
    pub(crate) fn is_pending(&self) -> bool {
        !self.is_decided
    }

    /// Returns when the ClientHello has to be whole; `None` if no byte is held.
    pub(crate) fn deadline(&self, limit: Duration) -> Option<Instant> {
        self.held_since.filter(|_| self.is_pending()).map(|since| since + limit)
    }

    /// Returns the name that the client asks for.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }
}
