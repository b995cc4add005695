//! `PollSet`: the descriptors of a wait that poll(2) is called for.

use std::time::Duration;

use crate::kernel::{self, Result, SignalSet};
use crate::pollfd::PollFd;

/// Descriptors whose readiness is not known from memory.
#[derive(Default)]
pub(crate) struct PollSet {
    /// The descriptors. While poll(2) runs, the library's own descriptors follow them.
    pub(crate) fds: Vec<PollFd>,
    /// For each element of `fds`, the index of its entry in the wait.
    pub(crate) entries: Vec<u32>,
}

impl PollSet {
    /// Removes all descriptors.
    pub(crate) fn clear(&mut self) {
        self.fds.clear();
        self.entries.clear();
    }

    pub(crate) fn add(&mut self, fd: i32, events: u32, entry: usize) {
        self.fds.push(PollFd { fd, events: events as u16, revents: 0 });
        self.entries.push(entry as u32);
    }

    /// Calls poll(2) for this set and for the library's own descriptors, each with its events.
    /// A descriptor of the library may be -1. Returns which of the library's descriptors are ready.
    pub(crate) fn poll<const OWN: usize>(
        &mut self,
        own_fds: [(i32, u32); OWN],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<[bool; OWN]> {
        let count = self.fds.len();
        self.fds.extend(own_fds.map(|(fd, events)| PollFd {
            fd,
            events: events as u16,
            revents: 0,
        }));
        let polled = kernel::ppoll(&mut self.fds, timeout, mask);
        let is_ready = std::array::from_fn(|at| self.fds[count + at].revents != 0);
        self.fds.truncate(count);
        polled.map(|_| is_ready)
    }
}
