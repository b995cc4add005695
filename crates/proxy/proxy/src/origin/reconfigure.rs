//! Updates a worker's origins when the snapshots in use change.

use std::rc::Rc;

use millrace_engine::Key;

use crate::origin::{OriginId, Origins};
use crate::snapshot::Snapshot;

impl Origins {
    /// Updates the origins for `present`, the snapshot in force from now on, and for `earlier`, the
    /// other snapshots that are still in use. Origins that no snapshot names are removed once they
    /// are unused. Returns the idle connections that the snapshot in force does not allow; the
    /// caller closes them.
    pub(crate) fn apply_snapshots(
        &mut self,
        present: &Snapshot,
        earlier: &[Rc<Snapshot>],
    ) -> Vec<Key> {
        let in_use = || earlier.iter().map(|snapshot| &**snapshot).chain([present]);
        self.rules.retain(|id| in_use().any(|snapshot| snapshot.uses_rules(id)));
        self.rules_in_force = present.all_rules().collect();
        for state in self.states.iter_mut().flatten() {
            state.is_configured = false;
            state.is_in_force = state.is_from_client && present.uses_rules(state.rules);
        }
        for id in in_use().flat_map(Snapshot::origins) {
            self.state_mut(id).is_configured = true;
        }
        for id in present.origins() {
            self.state_mut(id).is_in_force = true;
        }
        let count = self.states.len() as u32;
        for id in (0..count).map(OriginId) {
            if self.states[id.0 as usize].is_some() {
                self.forget_unused(id);
            }
        }
        self.checks = in_use().flat_map(Snapshot::checks).cloned().collect();
        // An unhealthy origin may have left the configuration: the flags have to be recomputed.
        self.invalidate_health();
        let outdated = self.states.iter().flatten().filter(|state| !state.is_in_force);
        outdated.flat_map(|state| state.idle.iter().copied()).collect()
    }
}
