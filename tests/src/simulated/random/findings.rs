//! The findings of a run: its failure and its coverage.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use millrace_sim::World;

/// The failure of a scenario. The shrinker keeps scenarios that fail with the same kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// A short name.
    pub kind: &'static str,
    /// A description for readers.
    pub details: String,
}

/// How often each class of behaviour occurred.
pub type Coverage = BTreeMap<String, u64>;

/// The findings of one run, which all actors share. Clones share their state.
#[derive(Clone, Default)]
pub(super) struct Findings(Rc<RefCell<FindingsState>>);

#[derive(Default)]
struct FindingsState {
    failure: Option<Failure>,
    coverage: Coverage,
    /// Whether the proxy drains, so that it may refuse requests.
    drained: bool,
}

impl Findings {
    /// Records a failure. Only the first one counts.
    pub(super) fn fail(&self, world: &World, kind: &'static str, details: String) {
        world.log_event(&format!("WRONG: {details}"));
        self.0.borrow_mut().failure.get_or_insert(Failure { kind, details });
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        self.0.borrow().failure.clone()
    }

    /// Counts an occurrence of a class of behaviour.
    pub(super) fn cover(&self, class: impl Into<String>) {
        *self.0.borrow_mut().coverage.entry(class.into()).or_default() += 1;
    }

    pub(super) fn coverage(&self) -> Coverage {
        self.0.borrow().coverage.clone()
    }

    pub(super) fn drain(&self) {
        self.0.borrow_mut().drained = true;
    }

    pub(super) fn is_drained(&self) -> bool {
        self.0.borrow().drained
    }
}
