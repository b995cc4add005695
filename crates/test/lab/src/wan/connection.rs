//! The connection that a packet belongs to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One direction of a connection: the addresses and ports of a packet. Packets without ports, such
/// as those of ICMP, and fragments have the ports 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionKey {
    from: (IpAddr, u16),
    to: (IpAddr, u16),
    protocol: u8,
}

const TCP: u8 = 6;
const UDP: u8 = 17;
/// "More fragments" and the offset of a fragment (RFC 791).
const FRAGMENT: u16 = 0x3fff;
const IPV6_HEADER_BYTES: usize = 40;

impl ConnectionKey {
    /// Returns the connection of an IP packet; `None` if it is no packet.
    pub fn of(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::of_ipv4(packet),
            6 => Self::of_ipv6(packet),
            _ => None,
        }
    }

    fn of_ipv4(packet: &[u8]) -> Option<Self> {
        let header = usize::from(packet[0] & 15) * 4;
        let address = |at: usize| -> Option<IpAddr> {
            let bytes: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
            Some(Ipv4Addr::from(bytes).into())
        };
        let (from, to, protocol) = (address(12)?, address(16)?, packet[9]);
        let has_ports = word(packet, 6)? & FRAGMENT == 0;
        Some(Self::new(from, to, protocol, packet.get(header..).filter(|_| has_ports)))
    }

    fn of_ipv6(packet: &[u8]) -> Option<Self> {
        let address = |at: usize| -> Option<IpAddr> {
            let bytes: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
            Some(Ipv6Addr::from(bytes).into())
        };
        let (from, to, protocol) = (address(8)?, address(24)?, packet[6]);
        Some(Self::new(from, to, protocol, packet.get(IPV6_HEADER_BYTES..)))
    }

    fn new(from: IpAddr, to: IpAddr, protocol: u8, payload: Option<&[u8]>) -> Self {
        let payload = payload.filter(|_| matches!(protocol, TCP | UDP)).unwrap_or_default();
        let port = |at| word(payload, at).unwrap_or(0);
        Self { from: (from, port(0)), to: (to, port(2)), protocol }
    }

    /// Returns the other direction.
    pub fn reversed(self) -> Self {
        Self { from: self.to, to: self.from, ..self }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(protocol: u8, fragment: u16) -> Vec<u8> {
        let mut packet = vec![0x46, 0, 0, 0, 0, 0];
        packet.extend(fragment.to_be_bytes());
        packet.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        // An option.
        packet.extend([1; 4]);
        packet.extend([0x12, 0x34, 0, 80, 9, 9]);
        packet
    }

    fn key(from: (&str, u16), to: (&str, u16), protocol: u8) -> ConnectionKey {
        let end = |(address, port): (&str, u16)| (address.parse().unwrap(), port);
        ConnectionKey { from: end(from), to: end(to), protocol }
    }

    #[test]
    fn addresses_and_ports_are_read() {
        let expected = key(("10.0.0.1", 0x1234), ("10.0.0.2", 80), TCP);
        assert_eq!(ConnectionKey::of(&ipv4(TCP, 0x4000)), Some(expected), "may not be fragmented");
        assert_eq!(expected.reversed(), key(("10.0.0.2", 80), ("10.0.0.1", 0x1234), TCP));
        let without = |protocol| Some(key(("10.0.0.1", 0), ("10.0.0.2", 0), protocol));
        assert_eq!(ConnectionKey::of(&ipv4(UDP, 0x2000)), without(UDP), "the first fragment");
        assert_eq!(ConnectionKey::of(&ipv4(TCP, 7)), without(TCP), "a later fragment");
        assert_eq!(ConnectionKey::of(&ipv4(1, 0)), without(1), "ICMP");

        let mut packet = vec![0x60, 0, 0, 0, 0, 4, UDP, 64];
        packet.extend("fd00::1".parse::<Ipv6Addr>().unwrap().octets());
        packet.extend("fd00::2".parse::<Ipv6Addr>().unwrap().octets());
        packet.extend([0, 7, 0, 8]);
        let expected = key(("fd00::1", 7), ("fd00::2", 8), UDP);
        assert_eq!(ConnectionKey::of(&packet), Some(expected));
    }

    #[test]
    fn cut_packets_have_no_connection_or_no_ports() {
        for packet in [ipv4(TCP, 0), [&[0x60][..], &[0; 43]].concat()] {
            for length in 0..packet.len() {
                let _ = ConnectionKey::of(&packet[..length]);
            }
        }
        assert_eq!(ConnectionKey::of(&[]), None);
        assert_eq!(ConnectionKey::of(&[0x50; 60]), None);
        let cut = &ipv4(TCP, 0)[..24];
        assert_eq!(ConnectionKey::of(cut), Some(key(("10.0.0.1", 0), ("10.0.0.2", 0), TCP)));
    }
}
