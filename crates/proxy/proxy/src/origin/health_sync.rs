//! Exchanges the health of origins between a worker and the [`SharedHealth`] of the process.

use millrace_config::limits::Limits;
use millrace_engine::Instant;

use crate::origin::shared_health::{SharedHealth, SharedOrigin};
use crate::origin::{HealthChange, OriginId, Origins, PickReason};

impl Origins {
    /// Returns the state of an origin that all workers share; `None` if no configuration ever named
    /// the origin.
    #[inline]
    pub(crate) fn shared_entry(&self, id: OriginId) -> Option<&SharedOrigin> {
        self.state(id).shared.as_deref()
    }

    /// Applies the changes of the shared health since the last call, if there are any.
    pub(crate) fn refresh_health(&mut self, shared_health: &SharedHealth) {
        if shared_health.version() != self.health_version {
            self.reload_health(shared_health);
        }
    }

    /// Makes the next pick reload the shared health, even if it has not changed.
    pub(super) fn invalidate_health(&mut self) {
        self.health_version = self.health_version.wrapping_sub(1);
    }

    #[cold]
    fn reload_health(&mut self, shared_health: &SharedHealth) {
        self.health_version = shared_health.version();
        for state in self.states.iter_mut().flatten() {
            if let Some(shared) = &state.shared {
                let published = shared.published();
                state.health.apply_published(published.failures, published.ejection);
            }
        }
        self.all_healthy = self.states.iter().flatten().all(|state| state.health.is_healthy())
            && !self.checks.iter().any(|check| check.is_failing());
        self.update_all_pristine();
    }

    fn update_all_pristine(&mut self) {
        self.all_pristine = self.states.iter().flatten().all(|state| state.health.is_pristine());
    }

    /// Records a failure that a configured origin caused. Returns whether that ejected the origin.
    pub(crate) fn record_failure(
        &mut self,
        id: OriginId,
        reason: PickReason,
        now: Instant,
        limits: &Limits,
        shared_health: &SharedHealth,
    ) -> bool {
        let change = self.state_mut(id).health.record_failure(reason, now, limits);
        self.all_pristine = false;
        self.publish(id, change, shared_health) && matches!(change, Some(HealthChange::Ejected(_)))
    }

    /// Records a response of an origin. Returns whether that readmitted the origin.
    pub(crate) fn record_response(
        &mut self,
        id: OriginId,
        reason: PickReason,
        shared_health: &SharedHealth,
    ) -> bool {
        let change = self.state_mut(id).health.record_response(reason);
        self.publish(id, change, shared_health)
    }

    /// Publishes a change at once. Without a change, schedules a report for
    /// [`Origins::publish_pending`]. Returns whether there was a change.
    fn publish(
        &mut self,
        id: OriginId,
        change: Option<HealthChange>,
        shared_health: &SharedHealth,
    ) -> bool {
        let Some(shared) = &self.state(id).shared else { return false };
        match change {
            Some(change) => {
                shared_health.publish_change(shared, change);
                self.refresh_health(shared_health);
            }
            None if !self.pending_reports.contains(&id) => self.pending_reports.push(id),
            None => {}
        }
        change.is_some()
    }

    /// Returns whether [`Origins::publish_pending`] has something to publish.
    pub(crate) fn has_pending_reports(&self) -> bool {
        !self.pending_reports.is_empty()
    }

    /// Publishes the failures that did not eject an origin by themselves, and applies the published
    /// failures of all workers. Returns the number of origins that were ejected because these
    /// failures added up.
    pub(crate) fn publish_pending(
        &mut self,
        now: Instant,
        limits: &Limits,
        shared_health: &SharedHealth,
    ) -> u64 {
        let mut ejected = 0;
        for id in std::mem::take(&mut self.pending_reports) {
            // The origin may have been removed since.
            let Some(state) = self.states[id.0 as usize].as_mut() else { continue };
            let Some(shared) = &state.shared else { continue };
            let was_healthy = state.health.is_healthy();
            let published =
                shared_health.publish_report(shared, state.health.take_pending(), now, limits);
            state.health.apply_published(published.failures, published.ejection);
            ejected += u64::from(was_healthy && !state.health.is_healthy());
        }
        self.refresh_health(shared_health);
        self.update_all_pristine();
        ejected
    }
}
