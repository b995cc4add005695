//! Which congestion control a connection is given. Pure decisions over addresses; the engine sets
//! what they say, and a kernel that refuses it leaves the connection as it was.
//!
//! `auto` is for systems that default to an algorithm which paces (bbr): between machines close by
//! nothing is won by that, and the timers that release its segments cost CPU.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use millrace_engine::Address;

use millrace_config::Congestion;

/// What `auto` sets for peers close by: the kernel's own default since Linux 2.6.19.
pub const NEARBY: &str = "cubic";

/// What one side of a service, its listeners or its connections to origins, is given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CongestionSetting {
    /// Nothing: the system's algorithm is as wanted.
    SystemDefault,
    /// This algorithm.
    Always(Arc<str>),
    /// [`NEAR`] for peers close by, the system's algorithm for all others.
    ByDistance { system: Arc<str> },
}

impl CongestionSetting {
    /// `system` is the system's algorithm where `auto` makes a difference: it is not [`NEAR`], and
    /// the kernel has that as well.
    pub(crate) fn new(choice: &Congestion, system: Option<&Arc<str>>) -> Self {
        match (choice, system) {
            (Congestion::Named(name), _) => Self::Always(name.clone()),
            (Congestion::Auto, Some(system)) => Self::ByDistance { system: system.clone() },
            (Congestion::Auto, None) | (Congestion::System, _) => Self::SystemDefault,
        }
    }

    /// What a listener is given; its connections inherit it. By peer that is [`NEAR`], and those
    /// that come from far away change back. The other way round would cost the near ones a system
    /// call each, after bbr has begun on them and has asked for pacing by a flag of the socket that
    /// no other algorithm takes back.
    pub(crate) fn for_listener(&self) -> Option<&str> {
        match self {
            Self::SystemDefault => None,
            Self::Always(name) => Some(name),
            Self::ByDistance { .. } => Some(NEARBY),
        }
    }

    /// What a connection from `peer` (`None`: a Unix socket) is given beyond what it inherited.
    pub(crate) fn for_accepted(&self, peer: Option<SocketAddr>) -> Option<&str> {
        match (self, peer) {
            (Self::ByDistance { system }, Some(peer)) if !is_nearby(peer.ip()) => Some(system),
            _ => None,
        }
    }

    /// What a connection that is being opened to `address` is given.
    pub(crate) fn for_origin(&self, address: &Address) -> Option<&str> {
        match (self, address) {
            (Self::Always(name), Address::Tcp(_)) => Some(name),
            (Self::ByDistance { .. }, Address::Tcp(address)) if is_nearby(address.ip()) => {
                Some(NEARBY)
            }
            _ => None,
        }
    }
}

/// Loopback, private (RFC 1918, RFC 4193) and link-local addresses: as a rule a few hundred
/// microseconds away, without a bottleneck that an estimate of bandwidth would help with.
fn is_nearby(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_private() || v4.is_link_local(),
        IpAddr::V6(v6) => {
            v6 == Ipv6Addr::LOCALHOST || v6.is_unique_local() || v6.is_unicast_link_local()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().unwrap(), 80)
    }

    #[test]
    fn near_addresses_are_told_from_others() {
        for (near, far) in [
            ("127.0.0.1", "128.0.0.1"),
            ("10.255.0.1", "11.0.0.1"),
            ("172.31.0.1", "172.32.0.1"),
            ("192.168.1.1", "192.169.1.1"),
            ("169.254.1.1", "169.253.1.1"),
            ("::1", "::2"),
            ("fd12::1", "fe00::1"),
            ("fe80::1", "fec0::1"),
            ("::ffff:10.0.0.1", "::ffff:11.0.0.1"),
        ] {
            assert!(is_nearby(near.parse().unwrap()), "{near}");
            assert!(!is_nearby(far.parse().unwrap()), "{far}");
        }
    }

    #[test]
    fn a_name_is_for_every_peer_and_inherited_once() {
        let bbr: Arc<str> = "bbr".into();
        let named = CongestionSetting::new(&Congestion::Named("reno".into()), Some(&bbr));
        assert_eq!(named.for_listener(), Some("reno"));
        assert_eq!(named.for_accepted(Some(tcp("192.0.2.1"))), None);
        for address in ["127.0.0.1", "192.0.2.1"] {
            assert_eq!(named.for_origin(&Address::Tcp(tcp(address))), Some("reno"));
        }
        assert_eq!(named.for_origin(&Address::Unix(std::path::Path::new("/a").into())), None);
    }

    #[test]
    fn auto_costs_near_peers_nothing_and_gives_far_ones_the_systems() {
        let bbr: Arc<str> = "bbr".into();
        let auto = CongestionSetting::new(&Congestion::Auto, Some(&bbr));
        assert_eq!(auto.for_listener(), Some(NEARBY));
        assert_eq!(auto.for_accepted(Some(tcp("127.0.0.1"))), None);
        assert_eq!(auto.for_accepted(None), None);
        assert_eq!(auto.for_accepted(Some(tcp("192.0.2.1"))), Some("bbr"));
        assert_eq!(auto.for_origin(&Address::Tcp(tcp("::1"))), Some(NEARBY));
        assert_eq!(auto.for_origin(&Address::Tcp(tcp("192.0.2.1"))), None);
    }

    #[test]
    fn nothing_is_set_where_it_would_change_nothing() {
        let bbr: Arc<str> = "bbr".into();
        assert_eq!(
            CongestionSetting::new(&Congestion::Auto, None),
            CongestionSetting::SystemDefault
        );
        assert_eq!(
            CongestionSetting::new(&Congestion::System, Some(&bbr)),
            CongestionSetting::SystemDefault
        );
        assert_eq!(CongestionSetting::SystemDefault.for_listener(), None);
        assert_eq!(CongestionSetting::SystemDefault.for_accepted(Some(tcp("192.0.2.1"))), None);
        assert_eq!(
            CongestionSetting::SystemDefault.for_origin(&Address::Tcp(tcp("127.0.0.1"))),
            None
        );
    }
}
