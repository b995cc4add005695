//! Stage lookup: is the answer at hand already? There is no store yet, so every request passes.

use millrace_event::{Engine, Key};

use crate::flow::{Stage, Step};
use crate::worker::Worker;

/// What a store says about a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// It is neither answered from a store nor kept in one.
    Pass,
}

pub(crate) fn run<E: Engine>(_worker: &mut Worker<E>, _key: Key) -> Step {
    match Found::Pass {
        Found::Pass => Step::Go(Stage::Fetch),
    }
}
