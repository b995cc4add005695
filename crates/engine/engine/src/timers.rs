//! A timer wheel. Each object has one entry, with its nearest deadline.
//!
//! The wheel is a hierarchy of [`LEVELS`] wheels with 64 slots each. A tick is
//! [`Timers::TICK_NANOSECONDS`]. A slot of level 0 covers one tick, and a slot of each higher level
//! covers the whole wheel below it.
//!
//! The tick of an entry is its deadline, rounded up. Its level is the highest group of six bits in
//! which this tick differs from the current tick, and its slot is the value of that group. Entries
//! whose tick has been reached are in a list of their own. The others have later ticks, so every
//! occupied slot is ahead of the slot of the current tick at the same level.
//!
//! All slots of a level together cover the slot of the current tick at the next level. The occupied
//! slots of the next level are ahead of that slot, so they begin after all slots of this level.
//!
//! When the current tick reaches a slot, its entries are linked again, each at a lower level or as
//! due. An entry may wait in any slot that begins no later than its deadline, which is why moving a
//! deadline later writes only one field.
//!
//! The design is scheme 7 of "Hashed and Hierarchical Timing Wheels" (Varghese and Lauck, 1987). A
//! heap was rejected because most deadlines are moved many times for each time they expire.

use crate::{Instant, Token};

/// One entry of [`Timers`], valid until [`Timers::remove`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimerId(u32);

/// The deadlines of a worker's objects. An entry never expires before its deadline, and at most one
/// tick ([`Timers::TICK_NANOSECONDS`]) after it if [`Timers::pop_expired`] is called in time.
#[derive(Debug)]
pub struct Timers {
    entries: Vec<TimerEntry>,
    /// First entries of the lists, by level and slot.
    slots: [[u32; SLOTS]; LEVELS],
    /// The slots of each level that have entries, one bit each.
    occupied: [u64; LEVELS],
    /// The list of entries whose tick has been reached.
    due: u32,
    /// The list of unused entries, linked by `next`.
    free: u32,
    /// Number of used entries.
    len: u32,
    /// The tick up to which slots have been emptied: `current <= TICK_MAX`.
    current: u64,
}

#[derive(Debug)]
struct TimerEntry {
    token: Token,
    deadline: Instant,
    next: u32,
    previous: u32,
    place: TimerList,
}

/// The list that contains an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TimerList {
    /// The list of unused entries.
    Free,
    /// No list. The entry has expired and was not set since.
    Idle,
    Due,
    Slot {
        level: u8,
        slot: u8,
    },
}

const _: () = assert!(size_of::<TimerEntry>() <= 32);

const LEVELS: usize = 6;
const SLOTS: usize = 64;
const SLOT_BITS: u32 = 6;
/// The index that means no entry.
const NONE: u32 = u32::MAX;
/// The last tick, 18 years after zero. Every later deadline expires then.
const TICK_MAX: u64 = (1 << (SLOT_BITS * LEVELS as u32)) - 1;
const TICK_BITS: u32 = 23;

impl Timers {
    /// 8.4 ms, a power of two in nanoseconds. Nearly all timeouts are far longer.
    pub const TICK_NANOSECONDS: u64 = 1 << TICK_BITS;

    /// Creates a wheel without entries, at the time `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            entries: Vec::new(),
            slots: [[NONE; SLOTS]; LEVELS],
            occupied: [0; LEVELS],
            due: NONE,
            free: NONE,
            len: 0,
            current: tick_before(now),
        }
    }

    /// Returns the number of entries, set or expired.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an entry for the object that `token` names.
    pub fn insert(&mut self, token: Token, deadline: Instant) -> TimerId {
        let entry =
            TimerEntry { token, deadline, next: NONE, previous: NONE, place: TimerList::Idle };
        let index = if self.free == NONE {
            self.entries.push(entry);
            self.entries.len() as u32 - 1
        } else {
            let index = self.free;
            self.free = self.entries[index as usize].next;
            self.entries[index as usize] = entry;
            index
        };
        self.len += 1;
        self.link(index);
        TimerId(index)
    }

    /// Moves the deadline, or sets it again after it has expired.
    pub fn set(&mut self, id: TimerId, deadline: Instant) {
        let tick = tick_after(deadline);
        let current = self.current;
        let entry = self.entry_mut(id);
        entry.deadline = deadline;
        if let TimerList::Slot { level, slot } = entry.place
            && tick >= slot_tick(current, level.into(), slot.into())
        {
            return;
        }
        self.unlink(id.0);
        self.link(id.0);
    }

    /// Moves the deadline to `deadline` if that is earlier, or if the entry has expired and was not
    /// set since.
    pub fn bring_forward(&mut self, id: TimerId, deadline: Instant) {
        let entry = self.entry_mut(id);
        if entry.place == TimerList::Idle || entry.deadline > deadline {
            self.set(id, deadline);
        }
    }

    /// Removes an entry.
    pub fn remove(&mut self, id: TimerId) {
        self.entry_mut(id);
        self.unlink(id.0);
        let free = self.free;
        let entry = &mut self.entries[id.0 as usize];
        entry.place = TimerList::Free;
        entry.next = free;
        self.free = id.0;
        self.len -= 1;
    }

    /// Returns an entry whose deadline has passed. The entry stays valid, and can be set again.
    pub fn pop_expired(&mut self, now: Instant) -> Option<(TimerId, Token)> {
        self.advance(tick_before(now));
        while self.due != NONE {
            let index = self.due;
            self.unlink(index);
            let entry = &self.entries[index as usize];
            // At the last tick nothing can wait any longer.
            if entry.deadline <= now || self.current == TICK_MAX {
                return Some((TimerId(index), entry.token));
            }
            self.link(index);
        }
        None
    }

    /// Returns the time by which [`Timers::pop_expired`] has to be called next. The time is at most
    /// one tick after the nearest deadline. It may be earlier than any deadline, since that call
    /// also moves entries to lower levels. Returns `None` if no entry is set.
    pub fn next_wakeup(&self) -> Option<Instant> {
        let tick = if self.due == NONE { self.first_occupied()?.2 } else { self.current };
        Some(Instant::from_nanoseconds(tick << TICK_BITS))
    }

    fn entry_mut(&mut self, id: TimerId) -> &mut TimerEntry {
        let entry = &mut self.entries[id.0 as usize];
        assert!(entry.place != TimerList::Free, "a removed timer is not used again");
        entry
    }

    /// Returns the first occupied slot: its level, its index, and the tick at which it begins.
    fn first_occupied(&self) -> Option<(usize, usize, u64)> {
        let level = self.occupied.iter().position(|&slots| slots != 0)?;
        let slot = self.occupied[level].trailing_zeros() as usize;
        Some((level, slot, slot_tick(self.current, level, slot)))
    }

    /// Advances the current tick to `tick`, and empties every slot that begins by then.
    fn advance(&mut self, tick: u64) {
        while let Some((level, slot, begins)) =
            self.first_occupied().filter(|first| first.2 <= tick)
        {
            debug_assert!(begins > self.current);
            self.current = begins;
            let mut index = std::mem::replace(&mut self.slots[level][slot], NONE);
            self.occupied[level] &= !(1 << slot);
            while index != NONE {
                let next = self.entries[index as usize].next;
                self.entries[index as usize].place = TimerList::Idle;
                self.link(index);
                index = next;
            }
        }
        self.current = self.current.max(tick);
    }

    /// Links an entry, which must be in no list, into the list that its deadline belongs to.
    fn link(&mut self, index: u32) {
        debug_assert!(self.entries[index as usize].place == TimerList::Idle);
        let tick = tick_after(self.entries[index as usize].deadline);
        let (head, place) = if tick <= self.current {
            (&mut self.due, TimerList::Due)
        } else {
            let level = (tick ^ self.current).ilog2() / SLOT_BITS;
            let slot = (tick >> (level * SLOT_BITS)) as usize % SLOTS;
            self.occupied[level as usize] |= 1 << slot;
            let place = TimerList::Slot { level: level as u8, slot: slot as u8 };
            (&mut self.slots[level as usize][slot], place)
        };
        let next = std::mem::replace(head, index);
        if next != NONE {
            self.entries[next as usize].previous = index;
        }
        let entry = &mut self.entries[index as usize];
        (entry.next, entry.previous, entry.place) = (next, NONE, place);
    }

    /// Removes an entry from its list, if it is in one.
    fn unlink(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        let (next, previous) = (entry.next, entry.previous);
        let place = std::mem::replace(&mut entry.place, TimerList::Idle);
        let head = match place {
            TimerList::Free | TimerList::Idle => return,
            TimerList::Due => &mut self.due,
            TimerList::Slot { level, slot } => &mut self.slots[level as usize][slot as usize],
        };
        if previous == NONE {
            *head = next;
            if let TimerList::Slot { level, slot } = place
                && next == NONE
            {
                self.occupied[level as usize] &= !(1 << slot);
            }
        } else {
            self.entries[previous as usize].next = next;
        }
        if next != NONE {
            self.entries[next as usize].previous = previous;
        }
    }
}

/// Returns the last tick that is not after `now`.
fn tick_before(now: Instant) -> u64 {
    (now.nanoseconds() >> TICK_BITS).min(TICK_MAX)
}

/// Returns the first tick that is not before `deadline`.
fn tick_after(deadline: Instant) -> u64 {
    deadline.nanoseconds().div_ceil(Timers::TICK_NANOSECONDS).min(TICK_MAX)
}

/// Returns the tick at which an occupied slot begins. The bits above its level are those of the
/// current tick.
fn slot_tick(current: u64, level: usize, slot: usize) -> u64 {
    let bits = level as u32 * SLOT_BITS;
    (current >> (bits + SLOT_BITS) << SLOT_BITS | slot as u64) << bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenKind;
    use std::collections::BTreeMap;

    const TICK: u64 = Timers::TICK_NANOSECONDS;

    fn at(nanoseconds: u64) -> Instant {
        Instant::from_nanoseconds(nanoseconds)
    }

    fn token(slot: u32) -> Token {
        Token::new(TokenKind::Client, slot, 1)
    }

    #[test]
    fn a_deadline_moved_later_expires_once_and_late() {
        let mut timers = Timers::new(at(5));
        let id = timers.insert(token(1), at(10 * TICK));
        timers.set(id, at(100 * TICK));
        assert!(timers.next_wakeup().unwrap() <= at(10 * TICK));
        assert_eq!(timers.pop_expired(at(99 * TICK)), None);
        assert_eq!(timers.next_wakeup(), Some(at(100 * TICK)));
        assert_eq!(timers.pop_expired(at(100 * TICK)), Some((id, token(1))));
        assert_eq!((timers.pop_expired(at(1 << 50)), timers.next_wakeup()), (None, None));
        timers.set(id, at(3));
        assert_eq!(timers.pop_expired(at(1 << 50)), Some((id, token(1))));
        timers.remove(id);
        assert!(timers.is_empty());
    }

    #[test]
    fn a_deadline_is_brought_forward_and_never_put_off() {
        let mut timers = Timers::new(at(0));
        let id = timers.insert(token(1), at(10 * TICK));
        timers.bring_forward(id, at(20 * TICK));
        timers.bring_forward(id, at(5 * TICK));
        assert_eq!(timers.pop_expired(at(5 * TICK)), Some((id, token(1))));
        timers.bring_forward(id, at(7 * TICK));
        assert_eq!(timers.pop_expired(at(7 * TICK)), Some((id, token(1))));
    }

    #[test]
    fn a_deadline_in_the_past_is_due_at_once_and_the_end_of_time_never() {
        let mut timers = Timers::new(at(1000 * TICK));
        let past = timers.insert(token(1), at(0));
        let never = timers.insert(token(2), at(u64::MAX));
        assert!(timers.next_wakeup().unwrap() <= at(1000 * TICK));
        assert_eq!(timers.pop_expired(at(1000 * TICK)), Some((past, token(1))));
        assert_eq!(timers.pop_expired(at(TICK_MAX * TICK - 1)), None);
        assert_eq!(timers.pop_expired(at(u64::MAX - 1)), Some((never, token(2))));
    }

    #[test]
    #[should_panic = "a removed timer is not used again"]
    fn a_removed_timer_is_not_set() {
        let mut timers = Timers::new(at(0));
        let id = timers.insert(token(1), at(5));
        timers.remove(id);
        timers.set(id, at(6));
    }

    /// Compares random operations with a model that keeps every deadline.
    #[test]
    fn the_wheel_agrees_with_a_sorted_map() {
        let seed = crate::random::test_seed();
        let mut random = crate::random::SplitMix(seed);
        for _ in 0..64 {
            compare_with_model(&mut random);
        }
    }

    fn compare_with_model(random: &mut crate::random::SplitMix) {
        let mut now = random.below(1 << 40);
        let mut timers = Timers::new(at(now));
        let mut model: BTreeMap<u32, (TimerId, Option<u64>)> = BTreeMap::new();
        for step in 0..500 {
            let deadline = now.saturating_sub(50 * TICK) + random.scaled(20..48);
            let chosen = model.keys().nth(random.below(model.len() as u64 + 1) as usize).copied();
            match (random.below(5), chosen) {
                (0 | 1, _) => {
                    model.insert(step, (timers.insert(token(step), at(deadline)), Some(deadline)));
                }
                (2, Some(slot)) => {
                    let entry = model.get_mut(&slot).unwrap();
                    timers.set(entry.0, at(deadline));
                    entry.1 = Some(deadline);
                }
                (3, Some(slot)) => timers.remove(model.remove(&slot).unwrap().0),
                (4, _) => {
                    now += random.scaled(10..42);
                    expire(&mut timers, &mut model, now);
                }
                _ => {}
            }
            assert_eq!(timers.len(), model.len());
            let nearest = model.values().filter_map(|entry| entry.1).min();
            match (timers.next_wakeup(), nearest) {
                (Some(next), Some(nearest)) => {
                    assert!(next.nanoseconds() < nearest.max(now) + TICK);
                }
                (next, nearest) => assert_eq!(next.is_some(), nearest.is_some()),
            }
        }
    }

    fn expire(timers: &mut Timers, model: &mut BTreeMap<u32, (TimerId, Option<u64>)>, now: u64) {
        while let Some((id, token)) = timers.pop_expired(at(now)) {
            let entry = model.get_mut(&token.slot()).unwrap();
            assert_eq!(entry.0, id);
            assert!(
                entry.1.take().unwrap() <= now,
                "an entry expires once and not before its deadline"
            );
        }
        for (_, deadline) in model.values() {
            assert!(
                deadline.is_none_or(|deadline| deadline + TICK > now),
                "an entry expires within one tick"
            );
        }
    }
}
