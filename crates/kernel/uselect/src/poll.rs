//! upoll: poll(2), answered from memory where that knows.

use std::time::Duration;

use crate::error::{Errno, Error};
use crate::kernel;
use crate::pages::bits;
use crate::sleep::Wanted;
use crate::tracker::{Inner, Tracker};
use crate::wait::{Question, wait};

/// A descriptor of a wait: `struct pollfd` of poll(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct PollFd {
    /// Negative: to be passed over.
    pub fd: i32,
    /// What to look for, as poll(2) names it. Errors and hang-ups are always told.
    pub events: u16,
    /// What was found.
    pub revents: u16,
}

impl Tracker {
    /// poll(2): waits until one of `fds` is ready, `timeout` is over (`None`: never) or a signal
    /// comes; gives how many have `revents`. No system call is made while a tracked one is ready,
    /// but each [`crate::PASSES_MAX`] times, or [`crate::OTHERS_UNSEEN_MAX`] after the last time, if
    /// others are among them; none either when nothing is ready, all are tracked and the timeout is
    /// zero.
    ///
    /// # Errors
    /// Those of poll(2), EINTR among them.
    pub fn upoll(&self, fds: &mut [PollFd], timeout: Option<Duration>) -> Result<usize, Error> {
        wait(self.inner(), &mut Poll(fds), timeout)
    }
}

struct Poll<'a>(&'a mut [PollFd]);

/// What memory says of a descriptor, or `None` if poll(2) has to be asked: it is not tracked, or it
/// has urgent data, whose mark moves without a word (Linux 6.18).
fn known(inner: &Inner, entry: &PollFd) -> Option<u16> {
    let index = inner.pages.index(entry.fd)?;
    let mut word = inner.pages.word(index);
    if word & bits::ERR != 0 {
        // Perhaps somebody has taken the error in a way that nothing tells of.
        kernel::borrow(entry.fd).into_iter().for_each(kernel::touch);
        word = inner.pages.word(index);
    }
    let asked = u32::from(entry.events) | bits::ERR | bits::HUP;
    (word & bits::PRI == 0).then_some((word & asked) as u16)
}

impl Question for Poll<'_> {
    fn look(&self, inner: &Inner) -> (usize, bool) {
        let (mut ready, mut has_others) = (0, false);
        for entry in self.0.iter().filter(|entry| entry.fd >= 0) {
            match known(inner, entry) {
                Some(found) => ready += usize::from(found != 0),
                None => has_others = true,
            }
        }
        (ready, has_others)
    }

    fn collect(&self, inner: &Inner, wanted: &mut Wanted) {
        for entry in self.0.iter().filter(|entry| entry.fd >= 0) {
            let Some(found) = known(inner, entry) else {
                wanted.others.push((entry.fd, entry.events));
                continue;
            };
            let always = (bits::ERR | bits::HUP) as u16;
            wanted.tracked.push((entry.fd, entry.events | always));
            if entry.events & !found & bits::OUT as u16 != 0 {
                wanted.full.push(entry.fd);
            }
        }
    }

    fn answer(&mut self, inner: &Inner, wanted: &Wanted, _is_over: bool) -> Result<usize, Errno> {
        let (mut ready, mut found) = (0, wanted.others.iter().zip(&wanted.found).peekable());
        for entry in self.0.iter_mut() {
            // Which are among the others may have changed since they were collected.
            let other =
                found.next_if(|((fd, events), _)| (*fd, *events) == (entry.fd, entry.events));
            entry.revents = match (entry.fd >= 0, other) {
                (false, _) => 0,
                (true, Some((_, found))) => *found,
                (true, None) => known(inner, entry).unwrap_or(0),
            };
            ready += usize::from(entry.revents != 0);
        }
        Ok(ready)
    }

    fn ask_kernel(&mut self, timeout: Option<Duration>) -> Result<usize, Errno> {
        let mut wanted = Wanted::default();
        let asked = self.0.iter().filter(|entry| entry.fd >= 0);
        wanted.others.extend(asked.map(|entry| (entry.fd, entry.events)));
        wanted.poll(None, timeout)?;
        let mut found = wanted.found.iter();
        for entry in self.0.iter_mut() {
            let found = if entry.fd >= 0 { found.next() } else { None };
            entry.revents = found.copied().unwrap_or(0);
        }
        Ok(self.0.iter().filter(|entry| entry.revents != 0).count())
    }
}
