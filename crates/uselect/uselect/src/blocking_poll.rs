//! How a sleeper sleeps: in poll(2), for its poll set and for the library's own descriptors.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::bits;
use crate::kernel::{Epoll, EpollEvent, Result, SignalSet};
use crate::limits::EVENTS_MAX;
use crate::region::{HANGUP_ONLY, ProcessRegion};
use crate::sleeper::Sleeper;

impl Sleeper {
    /// Calls poll(2) for the poll set, the ring, the daemon connection and `writable_epoll`.
    /// Returns true if poll(2) must be called for more descriptors, because the kernel reported
    /// send space that memory does not show. Each descriptor causes this at most once per wait.
    pub(crate) fn poll(
        &mut self,
        region: &ProcessRegion,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<bool> {
        let writable_epoll = self.writable_epoll.as_ref().map_or(-1, Epoll::raw_fd);
        let own_fds = [
            (self.ring.as_fd().as_raw_fd(), bits::IN),
            (region.registration().as_raw_fd(), HANGUP_ONLY),
            (writable_epoll, bits::IN),
        ];
        let [_, has_ended, is_writable] = self.poll_set.poll(own_fds, timeout, mask)?;
        if has_ended {
            region.mark_lost();
        }
        let contradicted_before = self.contradicted.len();
        if is_writable {
            self.apply_writable(region);
        }
        Ok(self.contradicted.len() > contradicted_before)
    }

    fn apply_writable(&mut self, region: &ProcessRegion) {
        let mut found = [EpollEvent::default(); EVENTS_MAX];
        let wait = |writable_epoll: &Epoll| {
            writable_epoll.wait(&mut found, Some(Duration::ZERO), None).ok()
        };
        let count = self.writable_epoll.as_ref().and_then(wait).unwrap_or(0);
        for event in &found[..count] {
            let fd = event.data() as i32;
            region.refresh(fd);
            let lacks_space = |index| region.events(fd as usize, index) & bits::OUT == 0;
            if region.pages.index(fd).is_some_and(lacks_space) && !self.contradicted.contains(&fd) {
                self.contradicted.push(fd);
            }
        }
    }
}
