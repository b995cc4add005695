//! What opened a connection to an origin: the rules that admitted its address, and how it was set
//! up. Connections are kept by it, so that one that was opened under other rules is never given out
//! under these, and one that these would have opened outlives a change of everything else.

use std::net::SocketAddr;
use std::sync::Arc;

use millrace_config::{Service, ServiceRole, TargetRules};

use crate::congestion::CongestionSetting;

/// Everything of a service that decides whether a connection is opened, and what it is like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ConnectRules {
    /// Where a forward proxy may go, our own addresses apart; a booster goes where it is told.
    targets: Option<(TargetRules, Arc<[SocketAddr]>)>,
    congestion: CongestionSetting,
}

impl ConnectRules {
    /// Those of `service`, whose connections to origins are given `congestion`.
    pub(crate) fn of(
        service: &Service,
        own: &Arc<[SocketAddr]>,
        congestion: &CongestionSetting,
    ) -> Self {
        let targets = match &service.role {
            ServiceRole::Forward(targets) => Some((targets.clone(), own.clone())),
            ServiceRole::Boost(_) => None,
        };
        Self { targets, congestion: congestion.clone() }
    }
}

/// A set of rules by a number: two services, of one snapshot or of two, have the same exactly if
/// their rules are equal. Never used again for others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ConnectRulesId(pub(super) u32);

/// The sets of rules of all snapshots in use.
#[derive(Debug, Default)]
pub(super) struct ConnectRuleSets {
    sets: Vec<(ConnectRulesId, ConnectRules)>,
    /// Numbers given so far.
    next_id: u32,
}

impl ConnectRuleSets {
    /// The number of these rules.
    pub(super) fn intern(&mut self, rules: ConnectRules) -> ConnectRulesId {
        if let Some((id, _)) = self.sets.iter().find(|(_, known)| *known == rules) {
            return *id;
        }
        let id = ConnectRulesId(self.next_id);
        self.next_id += 1;
        self.sets.push((id, rules));
        id
    }

    /// Forgets the sets that are not `used` any more.
    pub(super) fn retain(&mut self, used: impl Fn(ConnectRulesId) -> bool) {
        self.sets.retain(|(id, _)| used(*id));
    }
}

#[cfg(test)]
mod tests {
    use millrace_config::from_arguments;

    use super::*;

    fn rules(words: &[&str], own: &[&str]) -> ConnectRules {
        let config = from_arguments(words.iter().copied()).unwrap();
        let own: Vec<SocketAddr> = own.iter().map(|text| text.parse().unwrap()).collect();
        let choice = &config.services[0].origin_congestion;
        ConnectRules::of(&config.services[0], &own.into(), &CongestionSetting::new(choice, None))
    }

    #[test]
    fn only_what_decides_about_connections_tells_rules_apart() {
        let mut sets = ConnectRuleSets::default();
        let plain = sets.intern(rules(&["forward"], &["127.0.0.1:1"]));
        assert_eq!(sets.intern(rules(&["forward", "--trust=10.0.0.0/8"], &["127.0.0.1:1"])), plain);
        for (words, own) in [
            (&["forward", "--deny-target=10.0.0.0/8"][..], "127.0.0.1:1"),
            (&["forward", "--origin-congestion=reno"], "127.0.0.1:1"),
            (&["forward"], "127.0.0.1:2"),
            (&["boost", "--origin=http://a"], "127.0.0.1:1"),
        ] {
            assert_ne!(sets.intern(rules(words, &[own])), plain, "{words:?} {own}");
        }
        let booster = sets.intern(rules(&["boost", "--origin=http://a"], &["127.0.0.1:1"]));
        let other = rules(&["boost", "--origin=http://b", "--listen=[::1]:1"], &[]);
        assert_eq!(sets.intern(other), booster, "its connections are opened in the same way");
    }

    #[test]
    fn a_number_is_not_used_again() {
        let mut sets = ConnectRuleSets::default();
        let first = sets.intern(rules(&["forward"], &[]));
        sets.retain(|_| false);
        assert_ne!(sets.intern(rules(&["forward"], &[])), first);
    }
}
