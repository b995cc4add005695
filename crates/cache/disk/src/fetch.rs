//! Reading an answer: its front first, then its body, of which nothing is given to anybody before
//! it was compared with its checksum.

use std::ops::Range;

use millrace_body::{Filler, Waiter};

use super::fetching::{Fetching, Opened};
use super::format::{Id, Position};
use super::limits::{CHUNK_BYTES, ROOM_TRIES_MAX, ROOM_TRIES_READ_MAX, TURN_BYTES};
use super::message::{Answered, Miss};
use super::rules::Standing;
use super::shared::{Fronts, Shared};

/// What one step came to.
enum Step {
    On,
    Over,
    NoRoom,
}

/// Finds an answer that is known, reads its front, and asks the rules.
pub(super) fn open(shared: &Shared, id: Id, at: Position) -> Result<Opened, Miss> {
    let now = shared.index.shard(id.key).known(id).filter(|now| now.at == at);
    let known = now.ok_or(Miss::Gone)?;
    let segment = shared.segments.get(at.segment).ok_or(Miss::Gone)?;
    let Fronts { front, update, standing } = shared.read_known(&segment, &known)?;
    if standing == Standing::Dead {
        return Err(Miss::Gone);
    }
    let head = front.head(update.as_ref(), standing == Standing::Outdated);
    let body_at = at.offset() + u64::from(known.front_bytes);
    Ok(Opened { segment, front, body_at, head })
}

impl Fetching {
    fn filler(&mut self) -> &mut Filler {
        self.filler.as_mut().expect("it is there until it ends, which takes the whole")
    }

    /// Reads on for a while, and if it is not over then, waits for another turn in the queue. Gives
    /// whether it does so for want of memory: better not at once.
    pub(super) fn turn(mut self, shared: &Shared) -> bool {
        if self.opened.is_none() {
            match open(shared, self.id, self.at) {
                Ok(opened) => self.opened = Some(opened),
                Err(miss) => return self.miss(shared, miss),
            }
        }
        let mut budget = TURN_BYTES;
        loop {
            // It was not what it has to be, or memory let it go and nobody reads it.
            if self.has_answered && !self.filler().is_wanted() {
                return false;
            }
            let given = self.given;
            match self.step(shared) {
                Ok(Step::On) => self.tries = 0,
                Ok(Step::Over) => return self.finish(shared),
                Ok(Step::NoRoom) if self.tries < self.tries_max() => {
                    self.tries += 1;
                    shared.queue.read(self);
                    return true;
                }
                Ok(Step::NoRoom) => return self.miss(shared, Miss::NoRoom),
                Err(miss) => return self.miss(shared, miss),
            }
            if self.given > 0 {
                self.answer(shared);
            }
            budget = budget.saturating_sub((self.given - given) as usize);
            if budget == 0 {
                shared.queue.read(self);
                return false;
            }
        }
    }

    /// How often memory is asked for before it is given up: far more often where somebody reads what
    /// would be cut.
    fn tries_max(&mut self) -> u32 {
        if self.filler().readers() > 0 { ROOM_TRIES_READ_MAX } else { ROOM_TRIES_MAX }
    }

    /// Gives the next bytes: those of one chunk at most.
    fn step(&mut self, shared: &Shared) -> Result<Step, Miss> {
        let opened = self.opened.as_ref().expect("a turn begins with that");
        let filler = self.filler.as_mut().expect("it is there until it ends");
        let body_bytes = opened.front.fixed.body_bytes;
        if self.given == body_bytes {
            return Ok(Step::Over);
        }
        if self.left.is_empty() {
            // Chunks are given as a whole: one begins here.
            let chunk = self.given..body_bytes.min(self.given + CHUNK_BYTES as u64);
            if let Some(count) = read_directly(shared, opened, filler, chunk.clone())? {
                self.given += count;
                return Ok(Step::On);
            }
            self.left.resize((chunk.end - chunk.start) as usize, 0);
            read_chunk(shared, opened, chunk.start, &mut self.left)?;
        }
        let count = match filler.spare() {
            Ok(spare) => {
                let count = spare.len().min(self.left.len());
                spare[..count].copy_from_slice(&self.left[..count]);
                count
            }
            Err(refusal) => {
                // Who has the head already waits for what others give back, though nothing is left
                // to be taken out.
                return match shared.host.make_room(refusal) || self.has_answered {
                    true => Ok(Step::NoRoom),
                    false => Err(Miss::NoRoom),
                };
            }
        };
        self.left.drain(..count);
        wake(shared, filler.advance(count));
        self.given += count as u64;
        Ok(Step::On)
    }

    /// Tells who asked, once.
    fn answer(&mut self, shared: &Shared) {
        if let Some(opened) = &mut self.opened
            && !self.has_answered
        {
            self.has_answered = true;
            shared.tally.count(|counters| counters.fetched += 1);
            shared.index.shard(self.id.key).ask(self.id);
            let head = opened.head.clone();
            shared.host.answered(self.asker, Answered::Fetched(head));
        }
    }

    fn finish(mut self, shared: &Shared) -> bool {
        if let Some(filler) = self.filler.take() {
            wake(shared, filler.finish());
        }
        self.answer(shared);
        false
    }

    /// It fails: who asked is told, or if that was done already, the body is cut.
    fn miss(mut self, shared: &Shared, miss: Miss) -> bool {
        let (id, at) = (self.id, self.at);
        match miss {
            Miss::Damaged => shared.give_up(id, at),
            Miss::Gone => {
                shared.tally.count(|counters| counters.gone += 1);
                // A rule is about it, or its segment went. If it was opened, only this one fetch
                // is over.
                if self.opened.is_none() {
                    shared.index.shard(id.key).remove_at(id, at);
                }
            }
            Miss::NoRoom => {}
        }
        if let Some(filler) = self.filler.take() {
            wake(shared, filler.cut());
        }
        self.tell_end(shared, miss);
        false
    }

    /// The disk ends: the origin is left to be asked.
    pub(super) fn leave(mut self, shared: &Shared) {
        if let Some(filler) = self.filler.take() {
            wake(shared, filler.cut());
        }
        self.tell_end(shared, Miss::Gone);
    }

    fn tell_end(&self, shared: &Shared, miss: Miss) {
        let answered = match self.has_answered {
            true => Answered::Cut(self.id),
            false => Answered::NotFetched(miss),
        };
        shared.host.answered(self.asker, answered);
    }
}

/// Reads a chunk into the memory that it will be sent from, if there is enough in one piece, and
/// gives its length.
fn read_directly(
    shared: &Shared,
    opened: &Opened,
    filler: &mut Filler,
    chunk: Range<u64>,
) -> Result<Option<u64>, Miss> {
    let count = (chunk.end - chunk.start) as usize;
    let Ok(spare) = filler.spare() else { return Ok(None) };
    let Some(spare) = spare.get_mut(..count) else { return Ok(None) };
    read_chunk(shared, opened, chunk.start, spare)?;
    wake(shared, filler.advance(count));
    Ok(Some(count as u64))
}

/// Reads the chunk that begins at a place of the body.
fn read_chunk(shared: &Shared, opened: &Opened, start: u64, bytes: &mut [u8]) -> Result<(), Miss> {
    let chunk = (start / CHUNK_BYTES as u64) as usize;
    let at = opened.body_at + start;
    let is_sound = |bytes: &[u8]| opened.front.sum(chunk) == Some(crc32c::crc32c(bytes));
    shared.read(&opened.segment, at, bytes, |bytes| is_sound(bytes).then_some(()))
}

fn wake(shared: &Shared, waiters: Vec<Waiter>) {
    waiters.into_iter().for_each(|waiter| shared.host.wake(waiter));
}
