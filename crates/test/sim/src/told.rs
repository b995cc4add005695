//! What is told of a world; [`tale`](crate::tale) has who tells it.

use std::collections::BTreeMap;

use millrace_engine::Instant;

/// Lines and the names that stand in them.
#[derive(Debug, Default)]
pub(crate) struct Tale {
    pub(crate) told: bool,
    pub(crate) lines: Vec<Line>,
    /// By connection and side.
    pub(crate) names: BTreeMap<(usize, usize), Box<str>>,
}

/// What somebody did, once or several times in a row.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) at: Instant,
    pub(crate) did: String,
    pub(crate) times: usize,
    /// Bytes sent, and how they begin.
    pub(crate) count: usize,
    pub(crate) begin: Vec<u8>,
}
