//! What a worker notes of the health of its origins, and what it tells the other workers of that
//! and hears of them.

use millrace_config::limits::Limits;
use millrace_engine::Instant;

use crate::origin::shared_health::{SharedHealth, SharedOrigin};
use crate::origin::{HealthChange, OriginId, Origins, PickReason};

impl Origins {
    /// What all workers know of an origin, if a configuration ever named it.
    #[inline]
    pub(crate) fn shared_entry(&self, id: OriginId) -> Option<&SharedOrigin> {
        self.state(id).shared.as_deref()
    }

    /// Takes over what changed on the board, if anything did.
    pub(crate) fn refresh_health(&mut self, board: &SharedHealth) {
        if board.version() != self.health_version {
            self.reload_health(board);
        }
    }

    /// The next pick listens to the board, whatever it heard of it before.
    pub(super) fn invalidate_health(&mut self) {
        self.health_version = self.health_version.wrapping_sub(1);
    }

    #[cold]
    fn reload_health(&mut self, board: &SharedHealth) {
        self.health_version = board.version();
        for known in self.states.iter_mut().flatten() {
            if let Some(mark) = &known.shared {
                let told = mark.published();
                known.health.apply_published(told.failures, told.ejection);
            }
        }
        self.all_healthy = self.states.iter().flatten().all(|known| known.health.is_healthy())
            && !self.checks.iter().any(|check| check.is_failing());
        self.update_all_pristine();
    }

    fn update_all_pristine(&mut self) {
        self.all_pristine = self.states.iter().flatten().all(|known| known.health.is_pristine());
    }

    /// A request failed by the fault of a configured origin. Returns whether that ejected it.
    pub(crate) fn record_failure(
        &mut self,
        id: OriginId,
        trial: PickReason,
        now: Instant,
        limits: &Limits,
        board: &SharedHealth,
    ) -> bool {
        let change = self.state_mut(id).health.record_failure(trial, now, limits);
        self.all_pristine = false;
        self.publish(id, change, board) && matches!(change, Some(HealthChange::Ejected(_)))
    }

    /// A request was answered by an origin. Returns whether that readmitted it.
    pub(crate) fn record_response(
        &mut self,
        id: OriginId,
        trial: PickReason,
        board: &SharedHealth,
    ) -> bool {
        let change = self.state_mut(id).health.record_response(trial);
        self.publish(id, change, board)
    }

    /// A change is told at once, the rest by and by: see [`Origins::tell_news`].
    fn publish(
        &mut self,
        id: OriginId,
        change: Option<HealthChange>,
        board: &SharedHealth,
    ) -> bool {
        let Some(mark) = &self.state(id).shared else { return false };
        match change {
            Some(change) => {
                board.publish_change(mark, change);
                self.refresh_health(board);
            }
            None if !self.pending_reports.contains(&id) => self.pending_reports.push(id),
            None => {}
        }
        change.is_some()
    }

    /// Whether there is something to tell by and by.
    pub(crate) fn has_pending_reports(&self) -> bool {
        !self.pending_reports.is_empty()
    }

    /// Tells the other workers of failures that ejected nobody, and hears of theirs. Returns how
    /// many origins all these together ejected.
    pub(crate) fn publish_pending(
        &mut self,
        now: Instant,
        limits: &Limits,
        board: &SharedHealth,
    ) -> u64 {
        let mut ejected = 0;
        for id in std::mem::take(&mut self.pending_reports) {
            // It may have been forgotten since.
            let Some(known) = self.states[id.0 as usize].as_mut() else { continue };
            let Some(mark) = &known.shared else { continue };
            let was_well = known.health.is_healthy();
            let told = board.publish_report(mark, known.health.take_pending(), now, limits);
            known.health.apply_published(told.failures, told.ejection);
            ejected += u64::from(was_well && !known.health.is_healthy());
        }
        self.refresh_health(board);
        self.update_all_pristine();
        ejected
    }
}
