//! What a run has shown, whatever its story is about.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use millrace_sim::World;

/// Why a story fails: a word for its kind, by which the shrinker tells that it is still the same
/// failure, and what was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// One of a few words.
    pub kind: &'static str,
    /// For a person to read.
    pub details: String,
}

/// How often each class of behaviour was met.
pub type Coverage = BTreeMap<String, u64>;

/// The tally of one run, beneath what its actors know together; clones are the same one.
#[derive(Clone, Default)]
pub(super) struct Findings(Rc<RefCell<FindingsState>>);

#[derive(Default)]
struct FindingsState {
    failure: Option<Failure>,
    met: Coverage,
    /// Nobody needs to be served any more.
    drained: bool,
}

impl Findings {
    /// The first failure is the one that counts.
    pub(super) fn fail(&self, world: &World, kind: &'static str, details: String) {
        world.log_event(&format!("WRONG: {details}"));
        self.0.borrow_mut().failure.get_or_insert(Failure { kind, details: details });
    }

    pub(super) fn failure(&self) -> Option<Failure> {
        self.0.borrow().failure.clone()
    }

    /// Counts a class of behaviour.
    pub(super) fn cover(&self, class: impl Into<String>) {
        *self.0.borrow_mut().met.entry(class.into()).or_default() += 1;
    }

    pub(super) fn coverage(&self) -> Coverage {
        self.0.borrow().met.clone()
    }

    pub(super) fn drain(&self) {
        self.0.borrow_mut().drained = true;
    }

    pub(super) fn is_drained(&self) -> bool {
        self.0.borrow().drained
    }
}
