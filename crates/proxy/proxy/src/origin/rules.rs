//! Connect rules: the settings of a service that decide whether a connection to an origin is opened
//! and how. The pool keeps the connections of different rules apart. A connection is used only
//! under rules equal to those under which it was opened, so it survives a reload that keeps the
//! rules.

use std::net::SocketAddr;
use std::sync::Arc;

use millrace_config::{OriginProtocol, OriginTls, Service, ServiceRole, TargetRules};
use millrace_tls::ClientSettings;

use crate::congestion::CongestionSetting;

/// The settings of a service that decide whether a connection is opened and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ConnectRules {
    /// The target rules of a forward proxy, and the addresses of this process, which are never
    /// connected to; `None` for a reverse proxy.
    targets: Option<(TargetRules, Arc<[SocketAddr]>)>,
    congestion: CongestionSetting,
    /// The TLS settings; `None` for plain connections.
    tls: Option<Arc<OriginTls>>,
    protocol: OriginProtocol,
}

impl ConnectRules {
    /// Returns the rules of `service`. `congestion` is the setting for its connections to origins.
    pub(crate) fn of(
        service: &Service,
        own: &Arc<[SocketAddr]>,
        congestion: &CongestionSetting,
    ) -> Self {
        let targets = match &service.role {
            ServiceRole::Forward(targets) => Some((targets.clone(), own.clone())),
            ServiceRole::Boost(_) => None,
        };
        let (congestion, protocol) = (congestion.clone(), OriginProtocol::Http);
        Self { targets, congestion, tls: None, protocol }
    }

    /// Returns these rules for another protocol.
    pub(crate) fn with_protocol(self, protocol: OriginProtocol) -> Self {
        Self { protocol, ..self }
    }

    /// Returns these rules for connections with TLS.
    pub(crate) fn with_tls(self, tls: Arc<OriginTls>) -> Self {
        Self { tls: Some(tls), ..self }
    }
}

/// Identifies a set of rules. Two services, even of different snapshots, have the same id if and
/// only if their rules are equal. An id is never reused for other rules.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct ConnectRulesId(pub(super) u32);

/// The sets of rules of all snapshots in use.
#[derive(Debug, Default)]
pub(super) struct ConnectRuleSets {
    sets: Vec<RuleSet>,
    /// The next id to assign.
    next_id: u32,
}

#[derive(Debug)]
struct RuleSet {
    id: ConnectRulesId,
    rules: ConnectRules,
    /// The settings derived from `rules.tls`, with the sessions that can be resumed.
    client_settings: Option<ClientSettings>,
}

impl ConnectRuleSets {
    /// Returns the id of these rules, and assigns one if they are new. `settings` creates the TLS
    /// settings.
    pub(super) fn intern(
        &mut self,
        rules: ConnectRules,
        settings: impl FnOnce(&OriginTls) -> ClientSettings,
    ) -> ConnectRulesId {
        if let Some(set) = self.sets.iter().find(|set| set.rules == rules) {
            return set.id;
        }
        let id = ConnectRulesId(self.next_id);
        self.next_id += 1;
        let client_settings = rules.tls.as_deref().map(settings);
        self.sets.push(RuleSet { id, rules, client_settings });
        id
    }

    /// Returns the name that certificates have to be valid for, if the rules replace the host of
    /// the origin; `None` if they do not, or if connections are plain.
    pub(super) fn server_name(&self, id: ConnectRulesId) -> Option<&str> {
        self.find(id)?.rules.tls.as_ref()?.name.as_deref()
    }

    /// Returns the TLS settings of rules; `None` for plain connections.
    pub(super) fn client_settings(&self, id: ConnectRulesId) -> Option<&ClientSettings> {
        self.find(id)?.client_settings.as_ref()
    }

    fn find(&self, id: ConnectRulesId) -> Option<&RuleSet> {
        self.sets.iter().find(|set| set.id == id)
    }

    /// Removes the sets for which `is_used` returns false.
    pub(super) fn retain(&mut self, is_used: impl Fn(ConnectRulesId) -> bool) {
        self.sets.retain(|set| is_used(set.id));
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
    fn only_settings_of_origin_connections_make_rules_differ() {
        let mut sets = ConnectRuleSets::default();
        let mut intern = |rules| sets.intern(rules, |_| unreachable!("no rules have TLS"));
        let plain = intern(rules(&["forward"], &["127.0.0.1:1"]));
        assert_eq!(intern(rules(&["forward", "--trust=10.0.0.0/8"], &["127.0.0.1:1"])), plain);
        for (words, own) in [
            (&["forward", "--deny-target=10.0.0.0/8"][..], "127.0.0.1:1"),
            (&["forward", "--origin-congestion=reno"], "127.0.0.1:1"),
            (&["forward"], "127.0.0.1:2"),
            (&["boost", "--origin=http://a"], "127.0.0.1:1"),
        ] {
            assert_ne!(intern(rules(words, &[own])), plain, "{words:?} {own}");
        }
        let reverse = intern(rules(&["boost", "--origin=http://a"], &["127.0.0.1:1"]));
        let other = rules(&["boost", "--origin=http://b", "--listen=[::1]:1"], &[]);
        assert_eq!(intern(other), reverse, "connections are opened in the same way");
    }

    #[test]
    fn an_id_is_not_reused() {
        let mut sets = ConnectRuleSets::default();
        let settings = |_: &OriginTls| unreachable!("no rules have TLS");
        let first = sets.intern(rules(&["forward"], &[]), settings);
        sets.retain(|_| false);
        assert_ne!(sets.intern(rules(&["forward"], &[]), settings), first);
    }
}
