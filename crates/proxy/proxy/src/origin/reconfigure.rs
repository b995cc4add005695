//! Which origins a worker knows follows the snapshots in use.

use std::rc::Rc;

use millrace_engine::Key;

use crate::origin::{OriginId, Origins};
use crate::snapshot::Snapshot;

impl Origins {
    /// `present` is the snapshot in force from now on, `earlier` are those that something under way
    /// still uses. What none of them names is forgotten once it is unused. Gives the connections
    /// that are kept and may not be any more: the caller closes them.
    pub(crate) fn apply_snapshots(
        &mut self,
        present: &Snapshot,
        earlier: &[Rc<Snapshot>],
    ) -> Vec<Key> {
        let living = || earlier.iter().map(|snapshot| &**snapshot).chain([present]);
        self.rules.retain(|id| living().any(|snapshot| snapshot.rules.contains(&id)));
        self.rules_in_force = present.rules.to_vec();
        for known in self.states.iter_mut().flatten() {
            known.is_configured = false;
            known.is_in_force = known.is_from_client && present.rules.contains(&known.rules);
        }
        for id in living().flat_map(Snapshot::origins) {
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
        self.checks = living().flat_map(Snapshot::checks).cloned().collect();
        // What was not well may be among those that nobody asks any more.
        self.invalidate_health();
        let outdated = self.states.iter().flatten().filter(|known| !known.is_in_force);
        outdated.flat_map(|known| known.idle.iter().copied()).collect()
    }
}
