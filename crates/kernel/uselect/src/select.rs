//! uselect: select(2), answered from the bitmaps where those know (the paper's section 2, figure 2).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Errno, Error};
use crate::layout::WORDS;
use crate::pages::bits;
use crate::sleep::Wanted;
use crate::tracker::{Inner, Tracker};
use crate::wait::{Question, wait};

/// Sets of descriptors, a bit each, as `fd_set` of select(2) has them. Each is as long as it need
/// be, or empty if nothing of its kind is asked; there is no limit of 1024.
#[derive(Debug, Default)]
pub struct Sets<'a> {
    /// To be looked at for reading.
    pub read: &'a mut [u64],
    /// For writing.
    pub write: &'a mut [u64],
    /// For urgent data.
    pub except: &'a mut [u64],
}

impl Tracker {
    /// select(2): waits until one of the descriptors in `sets` is ready, `timeout` is over
    /// (`None`: never) or a signal comes; leaves in the sets those that are ready, and gives how
    /// many bits that is. System calls are made as in [`Tracker::upoll`]. After an error the sets
    /// are as they were.
    ///
    /// # Errors
    /// EBADF when one is not open and was looked at; EINTR.
    pub fn uselect(&self, sets: &mut Sets<'_>, timeout: Option<Duration>) -> Result<usize, Error> {
        wait(self.inner(), &mut Select(sets), timeout)
    }
}

struct Select<'a, 'b>(&'a mut Sets<'b>);

/// A word of each set, what the bitmaps say of it, and which of its descriptors they know.
struct Part {
    asked: [u64; 3],
    found: [u64; 3],
    known: u64,
}

impl Part {
    fn found(&self) -> [u64; 3] {
        std::array::from_fn(|kind| self.asked[kind] & self.found[kind] & self.known)
    }

    /// Descriptors that are asked about in any way.
    fn all(&self) -> u64 {
        self.asked[0] | self.asked[1] | self.asked[2]
    }
}

impl Select<'_, '_> {
    fn words(&self) -> usize {
        self.0.read.len().max(self.0.write.len()).max(self.0.except.len())
    }

    fn asked(&self, at: usize) -> [u64; 3] {
        let word = |set: &[u64]| set.get(at).copied().unwrap_or(0);
        [word(self.0.read), word(self.0.write), word(self.0.except)]
    }

    fn part(&self, inner: &Inner, at: usize) -> Part {
        let asked = self.asked(at);
        let own = &inner.pages.own;
        let bitmap =
            |bits: &[AtomicU64; WORDS]| bits.get(at).map_or(0, |word| word.load(Ordering::SeqCst));
        let found = [bitmap(&own.read), bitmap(&own.write), bitmap(&own.except)];
        // Where there is urgent data poll(2) has to be asked: its mark moves without a word.
        Part { asked, found, known: bitmap(&own.active) & !found[2] }
    }

    /// The descriptors of a word that are asked about, each with the bits of poll(2) that say so.
    fn descriptors(part: &Part, at: usize, among: u64) -> impl Iterator<Item = (i32, u16)> {
        let (asked, all) = (part.asked, part.all() & among);
        (0..64).filter(move |bit| all >> bit & 1 == 1).map(move |bit| {
            let bits = [bits::IN, bits::OUT, bits::PRI];
            let events =
                (0..3).map(|kind| if asked[kind] >> bit & 1 == 1 { bits[kind] } else { 0 });
            ((at * 64 + bit) as i32, events.sum::<u32>() as u16)
        })
    }

    /// Leaves in the sets what is ready: `known` from memory, and what was found of the others. While
    /// nothing is and the wait is not over they stay, for the same is asked again.
    fn leave(
        &mut self,
        mut known: Vec<[u64; 3]>,
        wanted: &Wanted,
        is_over: bool,
    ) -> Result<usize, Errno> {
        for (&(fd, events), &found) in wanted.others.iter().zip(&wanted.found) {
            if found & NOT_OPEN != 0 {
                return Err(Errno::BADF);
            }
            let (asked, found) = (kinds_asked(events), kinds_found(found));
            for kind in (0..3).filter(|kind| asked[*kind] && found[*kind]) {
                known[fd as usize / 64][kind] |= 1 << (fd % 64);
            }
        }
        let ready = known.iter().flatten().map(|bits| bits.count_ones() as usize).sum();
        if ready > 0 || is_over {
            for (at, found) in known.into_iter().enumerate() {
                let sets = [&mut *self.0.read, &mut *self.0.write, &mut *self.0.except];
                for (set, found) in sets.into_iter().zip(found) {
                    if let Some(word) = set.get_mut(at) {
                        *word = found;
                    }
                }
            }
        }
        Ok(ready)
    }
}

/// What select(2) makes of what poll(2) says: reading, writing, urgent data.
fn kinds_found(found: u16) -> [bool; 3] {
    let found = u32::from(found);
    let read = bits::IN | bits::HUP | bits::ERR;
    [found & read != 0, found & (bits::OUT | bits::ERR) != 0, found & bits::PRI != 0]
}

fn kinds_asked(events: u16) -> [bool; 3] {
    [bits::IN, bits::OUT, bits::PRI].map(|bit| u32::from(events) & bit != 0)
}

/// POLLNVAL.
const NOT_OPEN: u16 = 0x020;

impl Question for Select<'_, '_> {
    fn look(&self, inner: &Inner) -> (usize, bool) {
        let (mut ready, mut has_others) = (0, false);
        for at in 0..self.words() {
            let part = self.part(inner, at);
            ready += part.found().iter().map(|bits| bits.count_ones() as usize).sum::<usize>();
            has_others |= part.all() & !part.known != 0;
        }
        (ready, has_others)
    }

    fn collect(&self, inner: &Inner, wanted: &mut Wanted) {
        for at in 0..self.words() {
            let part = self.part(inner, at);
            wanted.others.extend(Self::descriptors(&part, at, !part.known));
            for (fd, events) in Self::descriptors(&part, at, part.known) {
                // Errors make both readable and writable, hang-ups readable.
                let read = if events & bits::IN as u16 != 0 { bits::HUP } else { 0 };
                wanted.tracked.push((fd, events | (read | bits::ERR) as u16));
                if events & bits::OUT as u16 != 0 && part.found[1] >> (fd % 64) & 1 == 0 {
                    wanted.full.push(fd);
                }
            }
        }
    }

    fn answer(&mut self, inner: &Inner, wanted: &Wanted, is_over: bool) -> Result<usize, Errno> {
        let known = (0..self.words()).map(|at| self.part(inner, at).found()).collect();
        self.leave(known, wanted, is_over)
    }

    fn ask_kernel(&mut self, timeout: Option<Duration>) -> Result<usize, Errno> {
        let mut wanted = Wanted::default();
        for at in 0..self.words() {
            let part = Part { asked: self.asked(at), found: [0; 3], known: 0 };
            wanted.others.extend(Self::descriptors(&part, at, u64::MAX));
        }
        wanted.poll(None, timeout)?;
        self.leave(vec![[0; 3]; self.words()], &wanted, true)
    }
}
