//! How a sleeper sleeps: by poll(2) of what memory does not know, and of what tells of the rest.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::bits;
use crate::kernel::{Epoll, EpollEvent, Result, SignalSet};
use crate::limits::EVENTS_MAX;
use crate::region::{HANGUP_ONLY, ProcessRegion};
use crate::sleeper::Sleeper;

impl Sleeper {
    /// poll(2) of what was collected, and of what is ours. True if it is to be asked about more, of
    /// which memory has turned out to know too little: each descriptor once a wait.
    pub(crate) fn poll(
        &mut self,
        region: &ProcessRegion,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<bool> {
        let rooms = self.writable_epoll.as_ref().map_or(-1, Epoll::raw_fd);
        let ours = [
            (self.ring.as_fd().as_raw_fd(), bits::IN),
            (region.registration().as_raw_fd(), HANGUP_ONLY),
            (rooms, bits::IN),
        ];
        let [_, has_ended, has_room] = self.poll_set.poll(ours, timeout, mask)?;
        if has_ended {
            region.mark_lost();
        }
        let doubts = self.contradicted.len();
        if has_room {
            self.apply_writable(region);
        }
        Ok(self.contradicted.len() > doubts)
    }

    fn apply_writable(&mut self, region: &ProcessRegion) {
        let mut found = [EpollEvent::default(); EVENTS_MAX];
        let wait = |rooms: &Epoll| rooms.wait(&mut found, Some(Duration::ZERO), None).ok();
        let count = self.writable_epoll.as_ref().and_then(wait).unwrap_or(0);
        for event in &found[..count] {
            let fd = event.data() as i32;
            region.refresh(fd);
            let lacks_room = |index| region.events(fd as usize, index) & bits::OUT == 0;
            if region.pages.index(fd).is_some_and(lacks_room) && !self.contradicted.contains(&fd) {
                self.contradicted.push(fd);
            }
        }
    }
}
