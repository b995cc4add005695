//! `Asked`: what a wait asks poll(2).

use std::time::Duration;

use crate::kernel::{self, Result, SignalSet};
use crate::pollfd::PollFd;

/// Descriptors that memory does not answer for. `fds.len() == entries.len()`.
#[derive(Default)]
pub(crate) struct PollSet {
    /// With places for what is the library's behind them while poll(2) runs.
    pub(crate) fds: Vec<PollFd>,
    /// Which entry of the question each is.
    pub(crate) entries: Vec<u32>,
}

impl PollSet {
    /// Begins a question: nothing is collected.
    pub(crate) fn clear(&mut self) {
        self.fds.clear();
        self.entries.clear();
    }

    pub(crate) fn add(&mut self, fd: i32, events: u32, entry: usize) {
        self.fds.push(PollFd { fd, events: events as u16, revents: 0 });
        self.entries.push(entry as u32);
    }

    /// poll(2) of what was collected, and of descriptors of the library's, which may be -1, each with
    /// what is asked of it: whether these are ready.
    pub(crate) fn poll<const OURS: usize>(
        &mut self,
        ours: [(i32, u32); OURS],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<[bool; OURS]> {
        let count = self.fds.len();
        self.fds.extend(ours.map(|(fd, events)| PollFd { fd, events: events as u16, revents: 0 }));
        let polled = kernel::ppoll(&mut self.fds, timeout, mask);
        let is_ready = std::array::from_fn(|at| self.fds[count + at].revents != 0);
        self.fds.truncate(count);
        polled.map(|_| is_ready)
    }
}
