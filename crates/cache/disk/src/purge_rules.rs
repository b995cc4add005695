//! Purges for which removing index entries is not enough. A purge by prefix or tag cannot find its
//! entries, a purge of everything also covers queued responses, and a soft purge removes nothing.
//! Such a *rule* covers all records of its target that were written before it.
//!
//! Segments are dropped in the order of their writing. When a rule's segment is dropped, all
//! records that it covers are gone already, so the rule is dropped too. No other clean-up is
//! needed.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use millrace_http_cache::{Key, TagHash};

use super::format::{RecordPosition, ResponseId};
use super::limits::{PREFIX_RULES_MAX, TAG_RULES_MAX};

/// The responses that a purge selects.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum PurgeTarget {
    /// One response.
    Response(ResponseId),
    /// All responses of a key.
    Key(Key),
    /// All responses whose key text begins with this.
    Prefix(Box<[u8]>),
    /// All responses with a tag.
    Tag(TagHash),
    /// Everything.
    All,
}

/// The status of a response under the rules.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum RecordStatus {
    Valid,
    /// It was made stale.
    Stale,
    /// It was purged.
    Purged,
}

/// The properties of a record to which rules apply.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleSubject<'a> {
    pub(super) id: ResponseId,
    /// The position of the record.
    pub(super) at: RecordPosition,
    /// The position of its newest header.
    pub(super) header_at: RecordPosition,
    pub(super) name: &'a [u8],
    pub(super) tags: &'a [u8],
}

/// The rules of a disk.
#[derive(Debug, Default)]
pub(super) struct PurgeRules(RwLock<RuleTable>);

#[derive(Debug, Default)]
struct RuleTable {
    /// The rules other than by prefix. The key is the target, and whether the rule is soft.
    exact: HashMap<(PurgeTarget, bool), RuleReach>,
    prefixes: Vec<(Box<[u8]>, bool, RuleReach)>,
}

/// The records that a rule covers: all that were written before `at`.
#[derive(Clone, Copy, Debug, Default)]
struct RuleReach {
    at: RecordPosition,
    /// The number of purges with this target that are not written yet. While there are any, the
    /// rule covers everything written so far.
    pending: u32,
}

impl RuleReach {
    fn covers(self, at: RecordPosition) -> bool {
        self.pending > 0 || at < self.at
    }
}

impl PurgeRules {
    /// Puts a rule into effect that is not written yet.
    pub(super) fn add_pending(&self, target: &PurgeTarget, is_soft: bool) {
        self.write().reach_mut(target, is_soft).pending += 1;
    }

    /// Completes a pending purge, whether it was written or writing it failed. Once no other purge
    /// of its target is pending, the rule covers the records before `at`.
    pub(super) fn commit(&self, target: &PurgeTarget, is_soft: bool, at: RecordPosition) {
        let mut table = self.write();
        let reach = table.reach_mut(target, is_soft);
        reach.pending = reach.pending.saturating_sub(1);
        reach.at = reach.at.max(at);
        table.enforce_bounds();
    }

    /// Adds a rule that was found on the disk.
    pub(super) fn add_recovered(&self, target: &PurgeTarget, is_soft: bool, at: RecordPosition) {
        let mut table = self.write();
        let reach = table.reach_mut(target, is_soft);
        reach.at = reach.at.max(at);
        table.enforce_bounds();
    }

    /// Removes rules that cover only segments before `oldest`.
    pub(super) fn prune(&self, oldest: u32) {
        let keeps = |reach: &RuleReach| reach.pending > 0 || reach.at.segment >= oldest;
        let mut table = self.write();
        table.exact.retain(|_, reach| keeps(reach));
        table.prefixes.retain(|(_, _, reach)| keeps(reach));
    }

    /// Returns the status of a record.
    pub(super) fn status_of(&self, record: &RuleSubject<'_>) -> RecordStatus {
        let table = self.read();
        if table.exact.is_empty() && table.prefixes.is_empty() {
            return RecordStatus::Valid;
        }
        let mut status = RecordStatus::Valid;
        let mut look = |target: PurgeTarget| {
            for is_soft in [false, true] {
                let target = (target.clone(), is_soft);
                if let Some(reach) = table.exact.get(&target) {
                    status = status.max(record.status_under(*reach, is_soft));
                }
            }
        };
        look(PurgeTarget::All);
        look(PurgeTarget::Key(record.id.key));
        look(PurgeTarget::Response(record.id));
        let (tags, _) = record.tags.as_chunks::<16>();
        tags.iter().for_each(|tag| look(PurgeTarget::Tag(TagHash(u128::from_le_bytes(*tag)))));
        for (prefix, is_soft, reach) in &table.prefixes {
            if record.name.starts_with(prefix) {
                status = status.max(record.status_under(*reach, *is_soft));
            }
        }
        status
    }

    fn read(&self) -> RwLockReadGuard<'_, RuleTable> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, RuleTable> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RuleSubject<'_> {
    fn status_under(&self, reach: RuleReach, is_soft: bool) -> RecordStatus {
        match is_soft {
            false if reach.covers(self.at) => RecordStatus::Purged,
            // A newer header is not covered by an older soft purge.
            true if reach.covers(self.header_at) => RecordStatus::Stale,
            _ => RecordStatus::Valid,
        }
    }
}

impl RuleTable {
    fn reach_mut(&mut self, target: &PurgeTarget, is_soft: bool) -> &mut RuleReach {
        let PurgeTarget::Prefix(prefix) = target else {
            return self.exact.entry((target.clone(), is_soft)).or_default();
        };
        let place = self.prefixes.iter().position(|rule| rule.0 == *prefix && rule.1 == is_soft);
        let place = place.unwrap_or_else(|| {
            self.prefixes.push((prefix.clone(), is_soft, RuleReach::default()));
            self.prefixes.len() - 1
        });
        &mut self.prefixes[place].2
    }

    /// If there are too many rules, replaces all that are on the disk already by one that purges
    /// everything before the newest of them.
    fn enforce_bounds(&mut self) {
        if self.exact.len() <= TAG_RULES_MAX && self.prefixes.len() <= PREFIX_RULES_MAX {
            return;
        }
        let marks = self.exact.values().chain(self.prefixes.iter().map(|rule| &rule.2));
        let last = marks.map(|reach| reach.at).max().unwrap_or_default();
        self.exact.retain(|_, reach| reach.pending > 0);
        self.prefixes.retain(|(_, _, reach)| reach.pending > 0);
        self.reach_mut(&PurgeTarget::All, false).at = last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(unit: u32) -> RecordPosition {
        RecordPosition { segment: 1, unit }
    }

    fn record(written: u32, head: u32) -> RuleSubject<'static> {
        let id = ResponseId { key: Key(5), variant: 0 };
        RuleSubject {
            id,
            at: at(written),
            header_at: at(head),
            name: b"http://a/b",
            tags: &[1; 32],
        }
    }

    #[test]
    fn a_rule_covers_older_records() {
        let tag = TagHash(u128::from_le_bytes([1; 16]));
        for target in [
            PurgeTarget::All,
            PurgeTarget::Key(Key(5)),
            PurgeTarget::Prefix(b"http://a/"[..].into()),
            PurgeTarget::Tag(tag),
        ] {
            let rules = PurgeRules::default();
            assert_eq!(rules.status_of(&record(1, 1)), RecordStatus::Valid);
            rules.add_pending(&target, true);
            assert_eq!(rules.status_of(&record(900, 900)), RecordStatus::Stale);
            rules.commit(&target, true, at(100));
            assert_eq!(rules.status_of(&record(99, 99)), RecordStatus::Stale);
            assert_eq!(rules.status_of(&record(99, 101)), RecordStatus::Valid, "it was validated");
            rules.add_recovered(&target, false, at(50));
            assert_eq!(rules.status_of(&record(49, 101)), RecordStatus::Purged);
            assert_eq!(rules.status_of(&record(51, 51)), RecordStatus::Stale);
            assert_eq!(rules.status_of(&record(101, 101)), RecordStatus::Valid);
            rules.prune(2);
            assert_eq!(rules.status_of(&record(1, 1)), RecordStatus::Valid, "the rule was pruned");
        }
    }

    #[test]
    fn a_rule_does_not_cover_other_responses() {
        let rules = PurgeRules::default();
        rules.add_recovered(&PurgeTarget::Key(Key(6)), false, at(u32::MAX));
        rules.add_recovered(&PurgeTarget::Prefix(b"http://a/c"[..].into()), false, at(u32::MAX));
        rules.add_recovered(&PurgeTarget::Tag(TagHash(9)), false, at(u32::MAX));
        assert_eq!(rules.status_of(&record(1, 1)), RecordStatus::Valid);
    }

    #[test]
    fn two_pending_rules_are_completed_one_by_one() {
        let rules = PurgeRules::default();
        rules.add_pending(&PurgeTarget::All, false);
        rules.add_pending(&PurgeTarget::All, false);
        rules.commit(&PurgeTarget::All, false, at(10));
        assert_eq!(rules.status_of(&record(20, 20)), RecordStatus::Purged);
        rules.commit(&PurgeTarget::All, false, at(15));
        assert_eq!(rules.status_of(&record(20, 20)), RecordStatus::Valid);
    }

    #[test]
    fn too_many_rules_become_one() {
        let rules = PurgeRules::default();
        for number in 0..=PREFIX_RULES_MAX as u32 {
            let prefix = number.to_le_bytes().to_vec().into();
            rules.add_recovered(&PurgeTarget::Prefix(prefix), false, at(number));
        }
        assert_eq!(rules.status_of(&record(5, 5)), RecordStatus::Purged);
        assert_eq!(rules.status_of(&record(5000, 5000)), RecordStatus::Valid);
    }
}
