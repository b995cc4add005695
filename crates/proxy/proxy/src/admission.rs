//! Access control: which clients may use a service, and which targets a forward proxy may connect
//! to. These are pure functions of addresses, which resolve no name and keep no state.
//!
//! A target is checked by the very address that goes to connect(2), never by its name, because a
//! second lookup could return a different address. An IPv6 address that embeds an IPv4 address for
//! a translator or a tunnel (mapped, NAT64, 6to4, Teredo) is checked by the embedded address as
//! well. Otherwise `64:ff9b::a9fe:a9fe` would circumvent the denial of 169.254.169.254.

mod domains;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_config::{Cidr, Service, TargetRules};

pub(crate) use domains::TargetFilter;

/// Returns whether a client may use a service. `client` is its address, after trusted PROXY headers
/// were applied. It is `None` for a client on a Unix socket, which the permissions of the socket's
/// file have admitted.
pub(crate) fn may_use(service: &Service, client: Option<IpAddr>) -> bool {
    let Some(client) = client else { return true };
    (service.clients.is_empty() || is_in(&service.clients, client))
        && !is_in(&service.denied_clients, client)
}

/// Returns whether the Forwarded, X-Forwarded-* and PROXY headers of a peer are trusted: its own
/// address is listed. A peer on a Unix socket (`None`) is trusted, because the operator decides by
/// the permissions of the socket's file which proxies can connect.
pub(crate) fn is_trusted(service: &Service, peer: Option<IpAddr>) -> bool {
    peer.is_none_or(|peer| is_in(&service.trusted, peer))
}

/// Why a target is denied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Denied {
    /// The address is not that of one host: unspecified, multicast, broadcast, or port 0. It is
    /// never allowed.
    NotAHost,
    /// The address is a listener of this process. It is never allowed, because the request would
    /// loop.
    Own,
    /// The address is in [`TargetRules::denied`].
    Listed,
    /// The address is link-local, or that of a cloud's metadata service, which has the credentials
    /// of the machine. It is allowed only by [`TargetRules::allowed`].
    Metadata,
    /// The address is loopback, private or otherwise not on the public internet.
    Private,
    /// The port is below 1024 and neither 80, 443 nor in [`TargetRules::ports`].
    Port,
}

/// Checks whether `rules` allow a connection to `target`.
///
/// `own` are the addresses at which this process listens, the admin address included. A listener on
/// a wildcard address is reached by every address of the machine, and these are not known here. So
/// at the port of such a listener, every address of its family is denied. For `[::]`, the addresses
/// of both families are denied, since it accepts IPv4 too. The exception is an address in `allowed`
/// that is not loopback, because the operator has declared it as another machine's. To deny less,
/// listen on interface addresses instead.
///
/// # Errors
/// The reason why the target is denied.
pub(crate) fn may_reach(
    rules: &TargetRules,
    own: &[SocketAddr],
    target: SocketAddr,
) -> Result<(), Denied> {
    let mut is_listed = true;
    for form in embedded_forms(target.ip()) {
        is_listed &= may_reach_form(rules, own, form, target.port())?;
    }
    if is_listed || may_reach_port(rules, target.port()) { Ok(()) } else { Err(Denied::Port) }
}

/// Checks one form of the target's address. Returns true if the operator has listed it as allowed,
/// which includes all ports.
fn may_reach_form(
    rules: &TargetRules,
    own: &[SocketAddr],
    address: IpAddr,
    port: u16,
) -> Result<bool, Denied> {
    let class = AddressClass::of(address);
    if port == 0 || class == AddressClass::NotAHost {
        return Err(Denied::NotAHost);
    }
    let allowed = is_in(&rules.allowed, address);
    if own.iter().any(|own| is_own(*own, address, port, allowed)) {
        return Err(Denied::Own);
    }
    if is_in(&rules.denied, address) {
        return Err(Denied::Listed);
    }
    match class {
        _ if allowed => Ok(true),
        AddressClass::Metadata => Err(Denied::Metadata),
        AddressClass::Private if !rules.private => Err(Denied::Private),
        AddressClass::Private | AddressClass::Public | AddressClass::NotAHost => Ok(false),
    }
}

fn is_own(own: SocketAddr, address: IpAddr, port: u16, allowed: bool) -> bool {
    if own.port() != port {
        return false;
    }
    match own.ip().to_canonical() {
        IpAddr::V4(own) if own.is_unspecified() => {
            address.is_ipv4() && (address.is_loopback() || !allowed)
        }
        IpAddr::V6(own) if own.is_unspecified() => address.is_loopback() || !allowed,
        own => own == address,
    }
}

fn may_reach_port(rules: &TargetRules, port: u16) -> bool {
    matches!(port, 80 | 443 | 1024..) || rules.ports.contains(&port) || rules.ports.contains(&0)
}

/// Returns whether one of the blocks contains the address. The common case of an empty list is
/// inlined.
#[inline]
fn is_in(blocks: &[Cidr], address: IpAddr) -> bool {
    #[inline(never)]
    fn any(blocks: &[Cidr], address: IpAddr) -> bool {
        blocks.iter().any(|block| block.contains(address))
    }
    !blocks.is_empty() && any(blocks, address)
}

/// Returns all addresses to which one address may lead. The first is the address itself; an
/// IPv4-mapped address becomes the IPv4 address that the kernel would use. The others are the
/// addresses that it embeds for a translator or a tunnel.
fn embedded_forms(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let address = address.to_canonical();
    let inner = match address {
        IpAddr::V4(_) => [None; 4],
        IpAddr::V6(address) => embedded_v4(address),
    };
    std::iter::once(address).chain(inner.into_iter().flatten().map(IpAddr::V4))
}

/// Returns the IPv4 addresses embedded in an IPv6 address that is not IPv4-mapped.
fn embedded_v4(address: Ipv6Addr) -> [Option<Ipv4Addr>; 4] {
    let octets = address.octets();
    // Composes an IPv4 address of the octets at these indices, each XORed with the mask.
    let at = |places: [usize; 4], mask: u8| {
        let [a, b, c, d] = places.map(|place| octets[place] ^ mask);
        Some(Ipv4Addr::new(a, b, c, d))
    };
    const LAST: [usize; 4] = [12, 13, 14, 15];
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => [None; 4],
        // IPv4-compatible (RFC 4291 section 2.5.5.1) and IPv4-translated (RFC 2765 section 2.1).
        [0, 0, 0, 0, 0, 0, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] => [at(LAST, 0), None, None, None],
        // NAT64's well-known prefix (RFC 6052 section 2.1).
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => [at(LAST, 0), None, None, None],
        // NAT64 prefixes of a network's own choice (RFC 8215). The length of the prefix is unknown,
        // so all four positions of RFC 6052 section 2.2 are read. A result in 0.0.0.0/8 is ignored,
        // because no translator sends there; it shows that the prefix has another length.
        [0x64, 0xff9b, 1, _, _, _, _, _] => [[6, 7, 9, 10], [7, 9, 10, 11], [9, 10, 11, 12], LAST]
            .map(|places| at(places, 0).filter(|inner| inner.octets()[0] != 0)),
        // 6to4 (RFC 3056 section 2).
        [0x2002, ..] => [at([2, 3, 4, 5], 0), None, None, None],
        // Teredo (RFC 4380 section 4): the server, and the client's inverted address.
        [0x2001, 0, ..] => [at([4, 5, 6, 7], 0), at(LAST, 0xff), None, None],
        _ => [None; 4],
    }
}

/// The class of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AddressClass {
    /// Not the address of one host: a connection is impossible or reaches an arbitrary host.
    NotAHost,
    /// Link-local, or a cloud's metadata service at another address.
    Metadata,
    /// Not globally reachable.
    Private,
    /// Everything else.
    Public,
}

impl AddressClass {
    /// Returns the class of a canonical address.
    fn of(address: IpAddr) -> Self {
        // The last row of each family contains all its addresses.
        CLASSES
            .iter()
            .find(|(block, _)| block.contains(address))
            .map_or(Self::Private, |(_, class)| *class)
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Cidr {
    Cidr { network: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix }
}

const fn v6(first: [u16; 4], last: u16, prefix: u8) -> Cidr {
    let [a, b, c, d] = first;
    Cidr { network: IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, last)), prefix }
}

/// The classes of address blocks. The first block that contains an address gives the class, so a
/// narrow block comes before a wide one. The sources are IANA's registries of special-purpose
/// addresses (RFC 6890, RFC 8190), of multicast addresses and of the IPv6 address space, and the
/// manuals of the clouds for their metadata services.
const CLASSES: &[(Cidr, AddressClass)] = &[
    (v4(0, 0, 0, 0, 32), AddressClass::NotAHost), // RFC 1122 section 3.2.1.3: unspecified
    (v4(255, 255, 255, 255, 32), AddressClass::NotAHost), // RFC 8190: limited broadcast
    (v4(224, 0, 0, 0, 4), AddressClass::NotAHost), // RFC 5771: multicast
    (v4(169, 254, 0, 0, 16), AddressClass::Metadata), // RFC 3927: link-local
    (v4(100, 100, 100, 200, 32), AddressClass::Metadata), // Alibaba Cloud
    (v4(168, 63, 129, 16, 32), AddressClass::Metadata), // Azure; a public address, used inside
    (v4(192, 0, 0, 192, 32), AddressClass::Metadata), // Oracle Cloud
    (v4(0, 0, 0, 0, 8), AddressClass::Private),   // RFC 791: this network
    (v4(10, 0, 0, 0, 8), AddressClass::Private),  // RFC 1918
    (v4(100, 64, 0, 0, 10), AddressClass::Private), // RFC 6598: shared with a provider's NAT
    (v4(127, 0, 0, 0, 8), AddressClass::Private), // RFC 1122: loopback
    (v4(172, 16, 0, 0, 12), AddressClass::Private), // RFC 1918
    (v4(192, 0, 0, 9, 32), AddressClass::Public), // RFC 7723: port control, anycast
    (v4(192, 0, 0, 10, 32), AddressClass::Public), // RFC 8155: TURN, anycast
    (v4(192, 0, 0, 0, 24), AddressClass::Private), // RFC 6890: IETF protocol assignments
    (v4(192, 0, 2, 0, 24), AddressClass::Private), // RFC 5737: documentation
    (v4(192, 88, 99, 0, 24), AddressClass::Private), // RFC 7526: 6to4 relays, deprecated
    (v4(192, 168, 0, 0, 16), AddressClass::Private), // RFC 1918
    (v4(198, 18, 0, 0, 15), AddressClass::Private), // RFC 2544: benchmarking
    (v4(198, 51, 100, 0, 24), AddressClass::Private), // RFC 5737: documentation
    (v4(203, 0, 113, 0, 24), AddressClass::Private), // RFC 5737: documentation
    (v4(240, 0, 0, 0, 4), AddressClass::Private), // RFC 1112: reserved
    (v4(0, 0, 0, 0, 0), AddressClass::Public),
    (v6([0; 4], 0, 128), AddressClass::NotAHost), // RFC 4291: unspecified
    (v6([0xff00, 0, 0, 0], 0, 8), AddressClass::NotAHost), // RFC 4291: multicast
    (v6([0xfe80, 0, 0, 0], 0, 10), AddressClass::Metadata), // RFC 4291: link-local
    (v6([0xfd00, 0xec2, 0, 0], 0, 32), AddressClass::Metadata), // Amazon: EC2, EKS Pod Identity
    (v6([0xfd00, 0x42, 0, 0], 0x42, 128), AddressClass::Metadata), // Scaleway
    (v6([0xfd20, 0xce, 0, 0], 0x254, 128), AddressClass::Metadata), // Google Cloud
    (v6([0x64, 0xff9b, 0, 0], 0, 96), AddressClass::Public), // RFC 6052: the embedded address decides
    (v6([0x2001, 1, 0, 0], 1, 128), AddressClass::Public),   // RFC 7723: port control, anycast
    (v6([0x2001, 1, 0, 0], 2, 128), AddressClass::Public),   // RFC 8155: TURN, anycast
    (v6([0x2001, 1, 0, 0], 3, 128), AddressClass::Public), // RFC 9665: service registration, anycast
    (v6([0x2001, 3, 0, 0], 0, 32), AddressClass::Public),  // RFC 7450: multicast tunnels
    (v6([0x2001, 4, 0x112, 0], 0, 48), AddressClass::Public), // RFC 7535: AS112
    (v6([0x2001, 0x20, 0, 0], 0, 28), AddressClass::Public), // RFC 7343: ORCHIDv2
    (v6([0x2001, 0x30, 0, 0], 0, 28), AddressClass::Public), // RFC 9374: drone identifiers
    (v6([0x2001, 0, 0, 0], 0, 23), AddressClass::Private), // RFC 2928: IETF assignments, Teredo too
    (v6([0x2001, 0xdb8, 0, 0], 0, 32), AddressClass::Private), // RFC 3849: documentation
    (v6([0x2002, 0, 0, 0], 0, 16), AddressClass::Private), // RFC 3056: 6to4
    (v6([0x3fff, 0, 0, 0], 0, 20), AddressClass::Private), // RFC 9637: documentation
    (v6([0x2000, 0, 0, 0], 0, 3), AddressClass::Public),   // RFC 4291 section 2.4: global unicast
    // Loopback, local-use NAT64 (RFC 8215), discard (RFC 6666, RFC 9780), segment identifiers
    // (RFC 9602), unique local (RFC 4193), site-local (RFC 3879), and unassigned addresses.
    (v6([0; 4], 0, 0), AddressClass::Private),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn block(text: &str) -> Cidr {
        let (network, prefix) = text.split_once('/').unwrap();
        Cidr { network: network.parse().unwrap(), prefix: prefix.parse().unwrap() }
    }

    fn reach(rules: &TargetRules, own: &[&str], target: &str) -> Result<(), Denied> {
        let own: Vec<SocketAddr> = own.iter().map(|own| own.parse().unwrap()).collect();
        may_reach(rules, &own, target.parse().unwrap())
    }

    /// Checks `address` with a port that all rules allow.
    fn reach_host(rules: &TargetRules, address: &str) -> Result<(), Denied> {
        may_reach(rules, &[], SocketAddr::new(address.parse().unwrap(), 80))
    }

    fn public_only() -> TargetRules {
        TargetRules::default()
    }

    fn private_too() -> TargetRules {
        TargetRules { private: true, ..TargetRules::default() }
    }

    fn open_service() -> Service {
        let config = millrace_config::from_arguments(["boost", "--origin", "http://a"]);
        config.unwrap().services.remove(0)
    }

    #[test]
    fn clients_are_admitted_by_list_or_without_one() {
        let mut service = open_service();
        assert!(may_use(&service, Some("203.0.113.9".parse().unwrap())));
        service.clients = vec![block("10.0.0.0/8"), block("2001:db8::/32")];
        for (client, admitted) in [
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("9.255.255.255", false),
            ("::ffff:10.1.2.3", true),
            ("::ffff:11.1.2.3", false),
            ("2001:db8::1", true),
            ("2001:db9::1", false),
            ("::1", false),
        ] {
            assert_eq!(may_use(&service, Some(client.parse().unwrap())), admitted, "{client}");
        }
        service.denied_clients = vec![block("10.1.0.0/16"), block("11.0.0.0/8")];
        for (client, admitted) in [
            ("10.2.0.1", true),
            ("10.1.2.3", false),
            ("::ffff:10.1.2.3", false),
            ("11.0.0.1", false),
        ] {
            assert_eq!(may_use(&service, Some(client.parse().unwrap())), admitted, "{client}");
        }
        assert!(
            may_use(&service, None),
            "the permissions of the socket's file admit a Unix client"
        );
    }

    #[test]
    fn only_listed_peers_are_trusted() {
        let mut service = open_service();
        let trusted =
            |service: &Service, peer: &str| is_trusted(service, Some(peer.parse().unwrap()));
        assert!(!trusted(&service, "127.0.0.1"), "an empty list trusts no peer");
        service.trusted = vec![block("127.0.0.0/8")];
        assert!(trusted(&service, "127.0.0.1") && trusted(&service, "::ffff:127.9.9.9"));
        assert!(!trusted(&service, "::1") && !trusted(&service, "128.0.0.1"));
        assert!(is_trusted(&service, None));
    }

    #[test]
    fn blocks_have_no_bits_below_their_prefix_and_no_row_is_shadowed_by_a_wider_one() {
        for (index, (cidr, _)) in CLASSES.iter().enumerate() {
            let bits = if cidr.network.is_ipv4() { 32 } else { 128 };
            assert!(cidr.prefix <= bits);
            let number = match cidr.network {
                IpAddr::V4(network) => u128::from(u32::from(network)) << 96,
                IpAddr::V6(network) => u128::from(network),
            };
            assert_eq!(number.checked_shl(u32::from(cidr.prefix)).unwrap_or(0), 0, "{cidr:?}");
            for (wider, _) in &CLASSES[..index] {
                assert!(
                    wider.prefix > cidr.prefix || !wider.contains(cidr.network),
                    "{cidr:?} is shadowed by {wider:?}"
                );
            }
        }
    }

    #[test]
    fn each_special_block_is_denied_at_both_of_its_ends_and_not_beyond() {
        for (before, first, last, after) in [
            ("9.255.255.255", "10.0.0.0", "10.255.255.255", "11.0.0.0"),
            ("100.63.255.255", "100.64.0.0", "100.127.255.255", "100.128.0.0"),
            ("126.255.255.255", "127.0.0.0", "127.255.255.255", "128.0.0.0"),
            ("172.15.255.255", "172.16.0.0", "172.31.255.255", "172.32.0.0"),
            ("191.255.255.255", "192.0.0.0", "192.0.0.8", "192.0.0.9"),
            ("192.0.0.10", "192.0.0.11", "192.0.0.255", "192.0.1.0"),
            ("192.0.1.255", "192.0.2.0", "192.0.2.255", "192.0.3.0"),
            ("192.88.98.255", "192.88.99.0", "192.88.99.255", "192.88.100.0"),
            ("192.167.255.255", "192.168.0.0", "192.168.255.255", "192.169.0.0"),
            ("198.17.255.255", "198.18.0.0", "198.19.255.255", "198.20.0.0"),
            ("198.51.99.255", "198.51.100.0", "198.51.100.255", "198.51.101.0"),
            ("203.0.112.255", "203.0.113.0", "203.0.113.255", "203.0.114.0"),
            ("2000:ffff::", "2001::", "2001:0:ffff::", "2001:1::1"),
            ("2001:1::3", "2001:1::4", "2001:2:ffff:ffff::", "2001:3::"),
            ("2001:3:ffff::", "2001:4::", "2001:4:111::", "2001:4:112::"),
            ("2001:4:112::1", "2001:4:113::", "2001:1f:ffff::", "2001:20::"),
            ("2001:3f:ffff::", "2001:40::", "2001:1ff:ffff::", "2001:200::"),
            ("2001:db7:ffff::", "2001:db8::", "2001:db8:ffff::", "2001:db9::"),
            ("2001:ffff::", "2002:808:808::", "2002:ffff:808::", "2003::"),
            ("3ffe:ffff::", "3fff::", "3fff:fff:ffff::", "3fff:1000::"),
        ] {
            assert_eq!(reach_host(&public_only(), before), Ok(()), "{before}");
            assert!(reach_host(&public_only(), first).is_err(), "{first}");
            assert!(reach_host(&public_only(), last).is_err(), "{last}");
            assert_eq!(reach_host(&public_only(), after), Ok(()), "{after}");
        }
        for special in [
            "0.0.0.1",
            "0.255.255.255",
            "240.0.0.1",
            "255.255.255.254",
            "::1",
            "::2",
            "100::1",
            "100:0:0:1::1",
            "1fff:ffff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fdff::1",
            "fec0::1",
            "64:ff9b:1::808:808",
            "64:ff9a::1",
            "64:ff9b:2::1",
        ] {
            assert_eq!(reach_host(&public_only(), special), Err(Denied::Private), "{special}");
            assert_eq!(reach_host(&private_too(), special), Ok(()), "{special}");
        }
    }

    #[test]
    fn addresses_of_no_single_host_are_always_denied() {
        let everything = TargetRules {
            private: true,
            allowed: vec![block("0.0.0.0/0"), block("::/0")],
            ports: vec![0],
            ..TargetRules::default()
        };
        for address in [
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "239.255.255.255",
            "::",
            "ff02::1",
            "ff0e::1",
            "::ffff:0.0.0.0",
            "::ffff:224.0.0.1",
            "64:ff9b::",
            "64:ff9b::e000:1",
            "2002:e000:1::1",
            "::224.0.0.1",
            "::ffff:0:255.255.255.255",
        ] {
            assert_eq!(reach_host(&everything, address), Err(Denied::NotAHost), "{address}");
        }
        assert_eq!(reach(&everything, &[], "93.184.216.34:0"), Err(Denied::NotAHost));
    }

    #[test]
    fn metadata_services_have_to_be_allowed_explicitly() {
        for address in [
            "169.254.169.254",
            "169.254.0.1",
            "169.254.255.255",
            "fe80::1",
            "febf::1",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::",
            "fd00:ec2::23",
            "fd00:ec2::254",
            "fd00:ec2:ffff:ffff:ffff:ffff:ffff:ffff",
            "fd00:42::42",
            "fd20:ce::254",
        ] {
            assert_eq!(reach_host(&public_only(), address), Err(Denied::Metadata), "{address}");
            assert_eq!(reach_host(&private_too(), address), Err(Denied::Metadata), "{address}");
            let named = Cidr {
                network: address.parse().unwrap(),
                prefix: if address.contains(':') { 128 } else { 32 },
            };
            let rules = TargetRules { allowed: vec![named], ..TargetRules::default() };
            assert_eq!(reach_host(&rules, address), Ok(()), "{address}");
        }
    }

    #[test]
    fn embedded_addresses_are_checked_too() {
        for address in [
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "::ffff:0:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "64:ff9b:1:a9fe:a9:fe00::",
            "64:ff9b:1:12a9:fe:a9fe::",
            "64:ff9b:1:1234:a9:fea9:fe00:0",
            "64:ff9b:1:1234:5678:9abc:169.254.169.254",
            "2002:a9fe:a9fe::1",
            "2001:0:808:808::5601:5601",
            "2001:0:a9fe:a9fe::f7f7:f7f7",
        ] {
            assert_eq!(reach_host(&private_too(), address), Err(Denied::Metadata), "{address}");
        }
        for address in ["64:ff9b::8.8.8.8", "::ffff:8.8.8.8"] {
            assert_eq!(reach_host(&public_only(), address), Ok(()), "{address}");
        }
        for address in ["64:ff9b::10.0.0.1", "::ffff:10.0.0.1", "::ffff:127.0.0.1"] {
            assert_eq!(reach_host(&public_only(), address), Err(Denied::Private), "{address}");
            assert_eq!(reach_host(&private_too(), address), Ok(()), "{address}");
        }
        // An allowed translator prefix does not allow the addresses embedded in it.
        let rules = TargetRules { allowed: vec![block("64:ff9b::/96")], ..private_too() };
        assert_eq!(reach_host(&rules, "64:ff9b::a9fe:a9fe"), Err(Denied::Metadata));
        let rules = TargetRules { denied: vec![block("8.8.8.0/24")], ..private_too() };
        for address in ["8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::"] {
            assert_eq!(reach_host(&rules, address), Err(Denied::Listed), "{address}");
        }
    }

    #[test]
    fn denied_lists_take_precedence_over_allowed_ones() {
        let rules = TargetRules {
            private: false,
            allowed: vec![block("10.1.0.0/16")],
            denied: vec![block("10.1.1.0/24"), block("1.1.1.1/32")],
            ..TargetRules::default()
        };
        assert_eq!(reach(&rules, &[], "10.1.0.1:22"), Ok(()), "an allowed block opens its ports");
        assert_eq!(reach(&rules, &[], "10.2.0.1:80"), Err(Denied::Private));
        assert_eq!(reach(&rules, &[], "10.1.1.1:80"), Err(Denied::Listed));
        assert_eq!(reach(&rules, &[], "1.1.1.1:80"), Err(Denied::Listed));
    }

    #[test]
    fn allowed_ports_are_http_unprivileged_or_listed() {
        for (port, open) in [
            (1, false),
            (22, false),
            (25, false),
            (79, false),
            (80, true),
            (81, false),
            (442, false),
            (443, true),
            (444, false),
            (1023, false),
            (1024, true),
            (65535, true),
        ] {
            let target = SocketAddr::new("8.8.8.8".parse().unwrap(), port);
            let check = |ports: &[u16]| {
                may_reach(&TargetRules { ports: ports.to_vec(), ..public_only() }, &[], target)
            };
            assert_eq!(check(&[]), if open { Ok(()) } else { Err(Denied::Port) }, "{port}");
            assert_eq!(check(&[7, port]), Ok(()), "{port}");
            assert_eq!(check(&[0]), Ok(()), "{port}");
        }
    }

    #[test]
    fn own_addresses_are_denied_in_every_form() {
        let rules = TargetRules { allowed: vec![block("127.0.0.0/8")], ..private_too() };
        let own = ["127.0.0.1:3128", "[::1]:9090"];
        for (target, outcome) in [
            ("127.0.0.1:3128", Err(Denied::Own)),
            ("[::ffff:127.0.0.1]:3128", Err(Denied::Own)),
            ("[64:ff9b::127.0.0.1]:3128", Err(Denied::Own)),
            ("[::1]:9090", Err(Denied::Own)),
            ("127.0.0.1:9090", Ok(())),
            ("127.0.0.2:3128", Ok(())),
            ("[::1]:3128", Ok(())),
        ] {
            assert_eq!(reach(&rules, &own, target), outcome, "{target}");
        }
    }

    #[test]
    fn a_wildcard_listener_is_every_address_of_its_family() {
        let rules = TargetRules {
            allowed: vec![block("127.0.0.0/8"), block("10.9.0.0/16")],
            ..private_too()
        };
        for (own, target, outcome) in [
            ("0.0.0.0:3128", "127.0.0.1:3128", Err(Denied::Own)),
            ("0.0.0.0:3128", "127.9.9.9:3128", Err(Denied::Own)),
            ("0.0.0.0:3128", "8.8.8.8:3128", Err(Denied::Own)),
            ("0.0.0.0:3128", "10.9.0.1:3128", Ok(())),
            ("0.0.0.0:3128", "[::1]:3128", Ok(())),
            ("0.0.0.0:3128", "8.8.8.8:3129", Ok(())),
            ("[::]:3128", "8.8.8.8:3128", Err(Denied::Own)),
            ("[::]:3128", "[::1]:3128", Err(Denied::Own)),
            ("[::]:3128", "127.0.0.1:3128", Err(Denied::Own)),
            ("[::]:3128", "[2a00::1]:3128", Err(Denied::Own)),
            ("[::]:3128", "[2a00::1]:3129", Ok(())),
        ] {
            assert_eq!(reach(&rules, &[own], target), outcome, "{own} {target}");
        }
    }
}
