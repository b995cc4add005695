//! Tables of objects addressed by index and generation. The tokens of a worker name entries of such
//! tables.

use crate::{Token, TokenKind};

/// The position of an object in its [`Table`], and a generation that distinguishes it from other
/// objects at the same position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// The index. It is reused after the object is removed.
    pub slot: u32,
    /// The generation. It differs for 2^32 successive objects in one slot.
    pub generation: u32,
}

impl Key {
    /// Returns the token that names the object to an engine.
    ///
    /// # Panics
    /// Panics if the slot is above [`Token::SLOT_MAX`], which no table allows.
    pub const fn token(self, kind: TokenKind) -> Token {
        Token::new(kind, self.slot, self.generation)
    }
}

impl From<Token> for Key {
    fn from(token: Token) -> Self {
        Self { slot: token.slot(), generation: token.generation() }
    }
}

/// A bounded table of objects with stable indices. It allocates memory as it first fills, and keeps
/// it. The slot that was freed last is reused first, since its memory is probably still in the
/// CPU's cache.
#[derive(Debug)]
pub struct Table<T> {
    slots: Vec<TableSlot<T>>,
    /// The first slot of the list of free slots, or [`NONE`].
    free: u32,
    /// `len <= slots.len() <= bound`.
    len: u32,
    bound: u32,
}

#[derive(Debug)]
struct TableSlot<T> {
    /// The generation of the object in the slot or, if it is free, of the next one.
    generation: u32,
    content: SlotContent<T>,
}

#[derive(Debug)]
enum SlotContent<T> {
    Free { next: u32 },
    Used(T),
}

const NONE: u32 = u32::MAX;

impl<T> Table<T> {
    /// Creates an empty table for up to `bound` objects.
    ///
    /// # Panics
    /// Panics if a token cannot name that many objects.
    pub const fn new(bound: u32) -> Self {
        assert!(bound <= Token::SLOT_MAX + 1);
        Self { slots: Vec::new(), free: NONE, len: 0, bound }
    }

    /// Raises the bound to at least `bound`. The bound never falls, since keys up to it may be in
    /// use.
    ///
    /// # Panics
    /// Panics if a token cannot name that many objects.
    pub fn raise_bound(&mut self, bound: u32) {
        assert!(bound <= Token::SLOT_MAX + 1);
        self.bound = self.bound.max(bound);
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the next [`Table::insert`] would return `None`.
    pub fn is_full(&self) -> bool {
        self.len >= self.bound
    }

    /// Adds an object. Returns `None` and drops the object if the table is full. Check
    /// [`Table::is_full`] first if the object must not just be dropped.
    #[inline(always)]
    pub fn insert(&mut self, object: T) -> Option<Key> {
        if self.is_full() {
            return None;
        }
        if self.free == NONE {
            self.free = self.slots.len() as u32;
            self.slots.push(TableSlot { generation: 1, content: SlotContent::Free { next: NONE } });
        }
        let slot = self.free;
        let place = &mut self.slots[slot as usize];
        let SlotContent::Free { next } = place.content else {
            unreachable!("a listed slot is free")
        };
        self.free = next;
        place.content = SlotContent::Used(object);
        self.len += 1;
        Some(Key { slot, generation: place.generation })
    }

    /// Returns the key that the next [`Table::insert`] will return; `None` if the table is full. It
    /// is for objects that have to name themselves to the engine or a timer while they are created.
    pub fn next_key(&self) -> Option<Key> {
        if self.is_full() {
            return None;
        }
        match self.slots.get(self.free as usize) {
            Some(place) => Some(Key { slot: self.free, generation: place.generation }),
            None => Some(Key { slot: self.slots.len() as u32, generation: 1 }),
        }
    }

    /// Removes and returns an object; `None` if it is no longer there.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        let place = &mut self.slots[key.slot as usize];
        let SlotContent::Used(object) =
            std::mem::replace(&mut place.content, SlotContent::Free { next: self.free })
        else {
            unreachable!("`get` found the object");
        };
        place.generation = place.generation.wrapping_add(1);
        self.free = key.slot;
        self.len -= 1;
        Some(object)
    }

    /// Returns the object, if it is still there.
    pub fn get(&self, key: Key) -> Option<&T> {
        let place = self.slots.get(key.slot as usize)?;
        match &place.content {
            SlotContent::Used(object) if place.generation == key.generation => Some(object),
            _ => None,
        }
    }

    /// Returns the object, if it is still there.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.slots.get_mut(key.slot as usize)?;
        match &mut place.content {
            SlotContent::Used(object) if place.generation == key.generation => Some(object),
            _ => None,
        }
    }

    /// Returns the key of the object at `slot`. It is for visiting a few slots at a time, from 0 to
    /// [`Table::slots`], while the table changes.
    pub fn key_at(&self, slot: u32) -> Option<Key> {
        let place = self.slots.get(slot as usize)?;
        let used = matches!(place.content, SlotContent::Used(_));
        used.then_some(Key { slot, generation: place.generation })
    }

    /// Returns the number of slots that were ever used. Every [`Key::slot`] is below it.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Iterates over all objects, in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots.iter().zip(0..).filter_map(|(place, slot)| match &place.content {
            SlotContent::Used(object) => Some((Key { slot, generation: place.generation }, object)),
            SlotContent::Free { .. } => None,
        })
    }

    /// Returns the keys of the objects that match `is_meant`. The table can then be changed while
    /// the keys are visited.
    pub fn keys_where(&self, is_meant: impl Fn(&T) -> bool) -> Vec<Key> {
        self.iter().filter(|(_, object)| is_meant(object)).map(|(key, _)| key).collect()
    }

    /// Iterates over all objects, in the order of their slots.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        self.slots.iter_mut().zip(0..).filter_map(|(place, slot)| match &mut place.content {
            SlotContent::Used(object) => Some((Key { slot, generation: place.generation }, object)),
            SlotContent::Free { .. } => None,
        })
    }
}

/// An empty table with the bound 0, until the bound is raised.
impl<T> Default for Table<T> {
    fn default() -> Self {
        Self::new(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_one_object_only() {
        let mut table = Table::new(2);
        let first = table.insert("first").unwrap();
        let second = table.insert("second").unwrap();
        assert!(table.is_full() && table.insert("third").is_none());
        assert_eq!(table.remove(first), Some("first"));
        assert_eq!((table.remove(first), table.get(first), table.len()), (None, None, 1));
        let third = table.insert("third").unwrap();
        assert_eq!((third.slot, third == first), (first.slot, false));
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(third), Some(&mut "third"));
        let all: Vec<_> = table.iter().map(|(key, object)| (key, *object)).collect();
        assert_eq!(all, [(third, "third"), (second, "second")]);
        let token = third.token(TokenKind::Client);
        assert_eq!(Key::from(token), third);
    }

    #[test]
    fn a_table_is_walked_by_slot_while_it_changes() {
        let mut table = Table::new(100);
        let keys: Vec<_> = (0..100).map(|number| table.insert(number).unwrap()).collect();
        for key in keys.iter().step_by(3) {
            table.remove(*key);
        }
        for slot in 0..table.slots() {
            if let Some(key) = table.key_at(slot) {
                assert_eq!(table.remove(key), Some(slot));
            }
        }
        assert!(table.is_empty() && table.iter().next().is_none());
        assert_eq!(table.slots(), 100);
    }
}
