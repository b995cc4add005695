//! Selects the congestion control of a connection by the peer's address. The engine applies the
//! selection; if the kernel refuses it, the connection keeps the algorithm that it has.
//!
//! `auto` is for systems whose default algorithm uses pacing (bbr). Between nearby machines pacing
//! gains nothing, and the timers that release the segments cost CPU time.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use millrace_engine::Address;

use millrace_config::Congestion;

/// The algorithm that `auto` sets for nearby peers: the kernel's default since Linux 2.6.19.
pub const NEARBY: &str = "cubic";

/// The congestion control of one side of a service: of its listeners, or of its connections to
/// origins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CongestionSetting {
    /// The system's algorithm; nothing is set.
    SystemDefault,
    /// This algorithm for all peers.
    Always(Arc<str>),
    /// [`NEARBY`] for nearby peers, the system's algorithm for all others.
    ByDistance { system: Arc<str> },
}

impl CongestionSetting {
    /// Creates the setting for a configured choice. `system` is the system's algorithm if `auto`
    /// may differ from it; see
    /// [`SharedState::system_congestion`](crate::SharedState::system_congestion).
    pub(crate) fn new(choice: &Congestion, system: Option<&Arc<str>>) -> Self {
        match (choice, system) {
            (Congestion::Named(name), _) => Self::Always(name.clone()),
            (Congestion::Auto, Some(system)) => Self::ByDistance { system: system.clone() },
            (Congestion::Auto, None) | (Congestion::System, _) => Self::SystemDefault,
        }
    }

    /// Returns the algorithm for a listener, which its connections inherit. For
    /// [`Self::ByDistance`] this is [`NEARBY`]: connections of distant peers change back to the
    /// system's algorithm. If the listener had the system's algorithm instead, each nearby
    /// connection would cost a system call. Moreover, bbr would already have enabled pacing by a
    /// flag of the socket, which no other algorithm clears.
    pub(crate) fn for_listener(&self) -> Option<&str> {
        match self {
            Self::SystemDefault => None,
            Self::Always(name) => Some(name),
            Self::ByDistance { .. } => Some(NEARBY),
        }
    }

    /// Returns the algorithm for an accepted connection; `None` if it keeps the inherited one.
    /// `peer` is `None` for a Unix socket.
    pub(crate) fn for_accepted(&self, peer: Option<SocketAddr>) -> Option<&str> {
        match (self, peer) {
            (Self::ByDistance { system }, Some(peer)) if !is_nearby(peer.ip()) => Some(system),
            _ => None,
        }
    }

    /// Returns the algorithm for a connection that is being opened to `address`; `None` if it keeps
    /// the system's.
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

/// Returns whether the address is loopback, private (RFC 1918, RFC 4193) or link-local. Such a peer
/// is usually at most a few hundred microseconds away, without a bottleneck for which an estimate
/// of the bandwidth would help.
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
    fn nearby_addresses_are_distinguished_from_others() {
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
    fn a_named_algorithm_is_for_every_peer_and_inherited_by_accepted_connections() {
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
    fn auto_uses_cubic_for_nearby_peers_and_the_systems_algorithm_for_distant_ones() {
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
    fn nothing_is_set_if_it_would_change_nothing() {
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
