//! Rotates the keys of session tickets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_proxy::SharedState;

use crate::console;
use crate::program_error::ProgramError;
use crate::takeover::Takeover;

/// How long a key seals new tickets. It opens tickets twice as long, since there are three keys.
const KEY_LIFE: Duration = Duration::from_secs(12 * 3600);

/// When the keys are rotated next.
pub(super) struct TicketRotation {
    due: Instant,
}

impl TicketRotation {
    /// Sets the first keys: those of the running process in a takeover, so that clients resume
    /// their sessions, and otherwise a random one.
    ///
    /// # Errors
    /// If there is no randomness.
    pub(super) fn start(
        shared: &Arc<SharedState>,
        takeover: Option<&Takeover>,
    ) -> Result<Self, ProgramError> {
        let keys = takeover.map(|takeover| &takeover.ticket_keys).filter(|keys| !keys.is_empty());
        match keys {
            Some(keys) => shared.ticket_keys.replace(keys.clone()),
            None => shared
                .ticket_keys
                .rotate(&shared.tls_provider)
                .map_err(|error| ProgramError::System(format!("cannot create keys: {error}")))?,
        }
        Ok(Self { due: Instant::now() + KEY_LIFE })
    }

    /// Returns the time until the next rotation.
    pub(super) fn time_left(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Rotates the keys if it is time.
    pub(super) fn rotate_if_due(&mut self, shared: &Arc<SharedState>) {
        if !self.time_left().is_zero() {
            return;
        }
        self.due = Instant::now() + KEY_LIFE;
        if let Err(error) = shared.ticket_keys.rotate(&shared.tls_provider) {
            console::log(&format!("cannot rotate the keys of session tickets: {error}"));
        }
    }
}
