//! What was purged in a way that no index can follow: by prefix, by tag, everything, and whatever
//! is only to be stale. Such a *rule* is about all records that were written before it.
//!
//! Segments go in the order they were written. So when a rule's segment goes, everything that it
//! was about has gone before, and the rule goes too: nothing is ever cleaned up.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use millrace_http_cache::{Key, TagHash};

use super::format::{Id, Position};
use super::limits::{PREFIX_RULES_MAX, TAG_RULES_MAX};

/// What is purged.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Subject {
    /// One stored answer.
    Answer(Id),
    /// All answers of a key.
    Key(Key),
    /// All answers whose key's text begins so.
    Prefix(Box<[u8]>),
    /// All answers with a tag.
    Tag(TagHash),
    /// Everything.
    All,
}

/// How an answer stands by the rules.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Standing {
    Good,
    /// It was made stale.
    Outdated,
    /// It was purged.
    Dead,
}

/// A record, as rules look at it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged<'a> {
    pub(super) id: Id,
    /// Where it was written, and where its present head was.
    pub(super) at: Position,
    pub(super) head_at: Position,
    pub(super) name: &'a [u8],
    pub(super) tags: &'a [u8],
}

/// The rules of a disk.
#[derive(Debug, Default)]
pub(super) struct Rules(RwLock<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// By subject, and whether it is soft; no prefixes.
    exact: HashMap<(Subject, bool), Mark>,
    prefixes: Vec<(Box<[u8]>, bool, Mark)>,
}

/// What a rule is about: everything that was written before.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    at: Position,
    /// Rules that are not written yet: they are about everything that is written by now.
    pending: u32,
}

impl Mark {
    fn is_about(self, at: Position) -> bool {
        self.pending > 0 || at < self.at
    }
}

impl Rules {
    /// From now on the rule counts, though it is not written yet.
    pub(super) fn announce(&self, subject: &Subject, is_soft: bool) {
        self.write().mark(subject, is_soft).pending += 1;
    }

    /// A rule that was announced was written at `at`, or could not be, and `at` is what would be
    /// written next.
    pub(super) fn settle(&self, subject: &Subject, is_soft: bool, at: Position) {
        let mut inner = self.write();
        let mark = inner.mark(subject, is_soft);
        mark.pending = mark.pending.saturating_sub(1);
        mark.at = mark.at.max(at);
        inner.keep_bounds();
    }

    /// A rule that was found on the disk.
    pub(super) fn learn(&self, subject: &Subject, is_soft: bool, at: Position) {
        let mut inner = self.write();
        let mark = inner.mark(subject, is_soft);
        mark.at = mark.at.max(at);
        inner.keep_bounds();
    }

    /// Forgets what is about segments before `oldest` alone.
    pub(super) fn prune(&self, oldest: u32) {
        let keeps = |mark: &Mark| mark.pending > 0 || mark.at.segment >= oldest;
        let mut inner = self.write();
        inner.exact.retain(|_, mark| keeps(mark));
        inner.prefixes.retain(|(_, _, mark)| keeps(mark));
    }

    /// How a record stands.
    pub(super) fn standing(&self, judged: &Judged<'_>) -> Standing {
        let inner = self.read();
        if inner.exact.is_empty() && inner.prefixes.is_empty() {
            return Standing::Good;
        }
        let mut standing = Standing::Good;
        let mut look = |subject: Subject| {
            for is_soft in [false, true] {
                let subject = (subject.clone(), is_soft);
                if let Some(mark) = inner.exact.get(&subject) {
                    standing = standing.max(judged.by(*mark, is_soft));
                }
            }
        };
        look(Subject::All);
        look(Subject::Key(judged.id.key));
        look(Subject::Answer(judged.id));
        let (tags, _) = judged.tags.as_chunks::<16>();
        tags.iter().for_each(|tag| look(Subject::Tag(TagHash(u128::from_le_bytes(*tag)))));
        for (prefix, is_soft, mark) in &inner.prefixes {
            if judged.name.starts_with(prefix) {
                standing = standing.max(judged.by(*mark, *is_soft));
            }
        }
        standing
    }

    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Judged<'_> {
    fn by(&self, mark: Mark, is_soft: bool) -> Standing {
        match is_soft {
            false if mark.is_about(self.at) => Standing::Dead,
            // A head that came later says what is fresh.
            true if mark.is_about(self.head_at) => Standing::Outdated,
            _ => Standing::Good,
        }
    }
}

impl Inner {
    fn mark(&mut self, subject: &Subject, is_soft: bool) -> &mut Mark {
        let Subject::Prefix(prefix) = subject else {
            return self.exact.entry((subject.clone(), is_soft)).or_default();
        };
        let place = self.prefixes.iter().position(|rule| rule.0 == *prefix && rule.1 == is_soft);
        let place = place.unwrap_or_else(|| {
            self.prefixes.push((prefix.clone(), is_soft, Mark::default()));
            self.prefixes.len() - 1
        });
        &mut self.prefixes[place].2
    }

    /// With too many rules, one takes the place of all that are written: everything before the last
    /// of them is dead.
    fn keep_bounds(&mut self) {
        if self.exact.len() <= TAG_RULES_MAX && self.prefixes.len() <= PREFIX_RULES_MAX {
            return;
        }
        let marks = self.exact.values().chain(self.prefixes.iter().map(|rule| &rule.2));
        let last = marks.map(|mark| mark.at).max().unwrap_or_default();
        self.exact.retain(|_, mark| mark.pending > 0);
        self.prefixes.retain(|(_, _, mark)| mark.pending > 0);
        self.mark(&Subject::All, false).at = last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(unit: u32) -> Position {
        Position { segment: 1, unit }
    }

    fn judged(written: u32, head: u32) -> Judged<'static> {
        let id = Id { key: Key(5), variant: 0 };
        Judged { id, at: at(written), head_at: at(head), name: b"http://a/b", tags: &[1; 32] }
    }

    #[test]
    fn a_rule_is_about_what_was_before() {
        let tag = TagHash(u128::from_le_bytes([1; 16]));
        for subject in [
            Subject::All,
            Subject::Key(Key(5)),
            Subject::Prefix(b"http://a/"[..].into()),
            Subject::Tag(tag),
        ] {
            let rules = Rules::default();
            assert_eq!(rules.standing(&judged(1, 1)), Standing::Good);
            rules.announce(&subject, true);
            assert_eq!(rules.standing(&judged(900, 900)), Standing::Outdated);
            rules.settle(&subject, true, at(100));
            assert_eq!(rules.standing(&judged(99, 99)), Standing::Outdated);
            assert_eq!(rules.standing(&judged(99, 101)), Standing::Good, "it was validated");
            rules.learn(&subject, false, at(50));
            assert_eq!(rules.standing(&judged(49, 101)), Standing::Dead);
            assert_eq!(rules.standing(&judged(51, 51)), Standing::Outdated);
            assert_eq!(rules.standing(&judged(101, 101)), Standing::Good);
            rules.prune(2);
            assert_eq!(rules.standing(&judged(1, 1)), Standing::Good, "there is none such");
        }
    }

    #[test]
    fn others_are_not_meant() {
        let rules = Rules::default();
        rules.learn(&Subject::Key(Key(6)), false, at(u32::MAX));
        rules.learn(&Subject::Prefix(b"http://a/c"[..].into()), false, at(u32::MAX));
        rules.learn(&Subject::Tag(TagHash(9)), false, at(u32::MAX));
        assert_eq!(rules.standing(&judged(1, 1)), Standing::Good);
    }

    #[test]
    fn two_that_are_announced_are_settled_one_by_one() {
        let rules = Rules::default();
        rules.announce(&Subject::All, false);
        rules.announce(&Subject::All, false);
        rules.settle(&Subject::All, false, at(10));
        assert_eq!(rules.standing(&judged(20, 20)), Standing::Dead);
        rules.settle(&Subject::All, false, at(15));
        assert_eq!(rules.standing(&judged(20, 20)), Standing::Good);
    }

    #[test]
    fn too_many_rules_are_one() {
        let rules = Rules::default();
        for number in 0..=PREFIX_RULES_MAX as u32 {
            let prefix = number.to_le_bytes().to_vec().into();
            rules.learn(&Subject::Prefix(prefix), false, at(number));
        }
        assert_eq!(rules.standing(&judged(5, 5)), Standing::Dead);
        assert_eq!(rules.standing(&judged(5000, 5000)), Standing::Good);
    }
}
