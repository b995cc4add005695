//! Writing PROXY protocol headers to a server behind this proxy.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use super::{ProxyHeader, V2_START};

impl ProxyHeader {
    /// Appends the header in version 1, a line of at most 107 bytes. Unless both addresses are
    /// present, the family is UNKNOWN.
    pub fn write_v1(&self, out: &mut Vec<u8>) {
        let Some((source, destination)) = self.same_family_addresses() else {
            return out.extend_from_slice(b"PROXY UNKNOWN\r\n");
        };
        let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
        let (source_ip, destination_ip) = (PlainIp(source.ip()), PlainIp(destination.ip()));
        let (source_port, destination_port) = (source.port(), destination.port());
        write!(
            out,
            "PROXY {family} {source_ip} {destination_ip} {source_port} {destination_port}\r\n"
        )
        .expect("writing to a Vec does not fail");
    }

    /// Appends the header in version 2, 16 to 52 bytes. Unless both addresses are present, the
    /// command is LOCAL.
    pub fn write_v2(&self, out: &mut Vec<u8>) {
        const LOCAL: u8 = 0x20;
        const PROXY: u8 = 0x21;
        const TCP4: u8 = 0x11;
        const TCP6: u8 = 0x21;
        out.extend_from_slice(V2_START);
        let Some((source, destination)) = self.same_family_addresses() else {
            return out.extend_from_slice(&[LOCAL, 0, 0, 0]);
        };
        let (family, length) = if source.is_ipv4() { (TCP4, 12) } else { (TCP6, 36) };
        out.extend_from_slice(&[PROXY, family, 0, length]);
        for address in [source, destination] {
            match address.ip() {
                IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
                IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
            }
        }
        for address in [source, destination] {
            out.extend_from_slice(&address.port().to_be_bytes());
        }
    }

    /// Returns both addresses in one family. If each is an IPv4 or IPv4-mapped address, the result
    /// is two IPv4 addresses. Otherwise it is two IPv6 addresses, and an IPv4 address becomes an
    /// IPv4-mapped one.
    fn same_family_addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        let (source, destination) = (self.source?, self.destination?);
        let plain = [source, destination].map(|it| it.ip().to_canonical());
        let ips = match plain {
            [IpAddr::V4(_), IpAddr::V4(_)] => plain,
            _ => plain.map(|ip| match ip {
                IpAddr::V4(ip) => IpAddr::V6(ip.to_ipv6_mapped()),
                ip => ip,
            }),
        };
        let [from, to] = ips;
        Some((SocketAddr::new(from, source.port()), SocketAddr::new(to, destination.port())))
    }
}

/// An address that is formatted in groups of hexadecimal digits only, even if it is IPv4-mapped:
/// the specification of version 1 does not define the notation `::ffff:1.2.3.4`.
struct PlainIp(IpAddr);

impl std::fmt::Display for PlainIp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => {
                let [.., a, b] = ip.segments();
                write!(f, "::ffff:{a:x}:{b:x}")
            }
            ip => write!(f, "{ip}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_proxy_header;

    fn header(source: &str, destination: &str) -> ProxyHeader {
        let address = |text: &str| Some(text.parse().unwrap());
        ProxyHeader { source: address(source), destination: address(destination) }
    }

    /// Writes the header in both versions, and checks that each is parsed to `read`.
    fn written(header: &ProxyHeader, read: &ProxyHeader) -> [Vec<u8>; 2] {
        let mut both = [Vec::new(), Vec::new()];
        header.write_v1(&mut both[0]);
        header.write_v2(&mut both[1]);
        for bytes in &both {
            assert_eq!(parse_proxy_header(bytes), Ok(Some((bytes.len(), *read))));
        }
        both
    }

    #[test]
    fn headers_are_written_as_the_specification_shows() {
        let v4 = header("255.255.255.255:65535", "192.168.0.11:443");
        let [line, binary] = written(&v4, &v4);
        assert_eq!(line, b"PROXY TCP4 255.255.255.255 192.168.0.11 65535 443\r\n");
        assert_eq!(binary[..16], *b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c");
        assert_eq!(binary[16..], *b"\xff\xff\xff\xff\xc0\xa8\0\x0b\xff\xff\x01\xbb");
        let v6 = header("[2001:db8::7]:1", "[::1]:8080");
        let [line, binary] = written(&v6, &v6);
        assert_eq!(line, b"PROXY TCP6 2001:db8::7 ::1 1 8080\r\n");
        assert_eq!((binary.len(), &binary[12..16]), (52, &b"\x21\x21\0\x24"[..]));
        let nothing = ProxyHeader::default();
        for header in [nothing, ProxyHeader { source: v4.source, ..nothing }] {
            let [line, binary] = written(&header, &nothing);
            assert_eq!(line, b"PROXY UNKNOWN\r\n");
            assert_eq!(binary, b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0");
        }
    }

    #[test]
    fn two_families_become_one() {
        let mapped = header("[::ffff:1.2.3.4]:5", "[::ffff:6.7.8.9]:10");
        written(&mapped, &header("1.2.3.4:5", "6.7.8.9:10"));
        let mixed = header("1.2.3.4:5", "[2001:db8::1]:10");
        let [line, _] = written(&mixed, &header("[::ffff:1.2.3.4]:5", "[2001:db8::1]:10"));
        assert_eq!(line, b"PROXY TCP6 ::ffff:102:304 2001:db8::1 5 10\r\n");
    }
}
