//! Rotates the keys of session tickets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_proxy::SharedState;

use crate::console;
use crate::program_error::ProgramError;
use crate::takeover::{Takeover, TicketOffer};

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
        let offer = takeover.and_then(|takeover| takeover.tickets.as_ref());
        if let Some(offer) = offer {
            return Ok(Self::resume(shared, offer));
        }
        let created = shared.ticket_keys.rotate(&shared.tls_provider);
        created.map_err(|error| ProgramError::System(format!("cannot create keys: {error}")))?;
        Ok(Self { due: Instant::now() + KEY_LIFE })
    }

    /// Continues the rotation of the process that has offered its keys.
    fn resume(shared: &SharedState, offer: &TicketOffer) -> Self {
        shared.ticket_keys.replace(offer.keys.clone());
        Self { due: Instant::now() + offer.rotates_in.min(KEY_LIFE) }
    }

    /// Returns what a successor needs to continue the rotation.
    pub(super) fn offer(&self, shared: &SharedState) -> TicketOffer {
        TicketOffer { keys: shared.ticket_keys.keys(), rotates_in: self.time_left() }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_takeover_does_not_postpone_the_rotation() {
        let shared = SharedState::new(1, "name".to_owned(), None, None, |_| {}, None);
        let mut first = TicketRotation::start(&shared, None).unwrap();
        first.due = Instant::now() + Duration::from_secs(5);
        let offer = first.offer(&shared);
        let offer = TicketOffer::from_bytes(&offer.to_bytes()).unwrap();
        let successor = SharedState::new(1, "name".to_owned(), None, None, |_| {}, None);
        let second = TicketRotation::resume(&successor, &offer);
        assert!(successor.ticket_keys.keys() == shared.ticket_keys.keys());
        assert!(second.time_left() <= Duration::from_secs(5));
        assert!(TicketOffer::from_bytes(&offer.to_bytes()[..8]).is_none(), "no keys");
    }
}
