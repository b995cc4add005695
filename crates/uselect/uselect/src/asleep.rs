//! How a sleeper sleeps: by poll(2) of what memory does not know, and of what tells of the rest.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::bits;
use crate::kernel::{Epoll, EpollEvent, Result, SignalSet};
use crate::limits::EVENTS_MAX;
use crate::region::{ENDED, Region};
use crate::sleep::Sleeper;

impl Sleeper {
    /// poll(2) of what was collected, and of what is ours. True if it is to be asked about more, of
    /// which memory has turned out to know too little: each descriptor once a wait.
    pub(crate) fn poll(
        &mut self,
        region: &Region,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<bool> {
        let rooms = self.rooms.as_ref().map_or(-1, Epoll::number);
        let ours = [
            (self.ring.as_fd().as_raw_fd(), bits::IN),
            (region.registration().as_raw_fd(), ENDED),
            (rooms, bits::IN),
        ];
        let [_, has_ended, has_room] = self.asked.poll(ours, timeout, mask)?;
        if has_ended {
            region.lose();
        }
        let doubts = self.doubtful.len();
        if has_room {
            self.look_at_rooms(region);
        }
        Ok(self.doubtful.len() > doubts)
    }

    fn look_at_rooms(&mut self, region: &Region) {
        let mut found = [EpollEvent::default(); EVENTS_MAX];
        let wait = |rooms: &Epoll| rooms.wait(&mut found, Some(Duration::ZERO), None).ok();
        let count = self.rooms.as_ref().and_then(wait).unwrap_or(0);
        for event in &found[..count] {
            let fd = event.data() as i32;
            region.refresh(fd);
            let lacks_room = |index| region.events(fd as usize, index) & bits::OUT == 0;
            if region.pages.index(fd).is_some_and(lacks_room) && !self.doubtful.contains(&fd) {
                self.doubtful.push(fd);
            }
        }
    }
}
