//! Planned requests: when they begin, and for which files. A plan never depends on responses.

use std::time::Duration;

/// A request of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedRequest {
    /// When it begins, since the start of the run.
    pub at: Duration,
    /// The user that makes it, from 0. Users share no connections.
    pub user: u32,
    /// The file of the set; `None` if the request is for the only object of the run.
    pub file: Option<u32>,
}

/// A source of planned requests in the order of their times.
pub trait RequestPlan {
    /// Returns the next request; `None` at the end of the run.
    fn advance(&mut self) -> Option<PlannedRequest>;

    /// Returns the time of the run, which all requests precede.
    fn time(&self) -> Duration;

    /// Returns the length of a file, or that of the only object of the run. `None`: it is unknown.
    fn object_bytes(&self, file: Option<u32>) -> Option<u64>;
}
