//! The folders of random scenarios: their plan, its generator, their changes during a run, and the
//! model that decides which bytes a client may get.
//!
//! Each version of a file has bytes of its own, so that a client recognises the version. A response
//! is one version as a whole, unless its file was changed in place.

pub(super) mod change;
pub(super) mod generate;
pub(super) mod history;
pub(super) mod plan;
