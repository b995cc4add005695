//! Numbers and addresses as text. Every request needs them, so numbers and IPv4 addresses are
//! formatted here digit by digit: the formatting of the standard library costs many times as much.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};

use crate::{Authority, Host};

/// Digits of the largest number, `u64::MAX`.
pub(crate) const NUMBER_BYTES: usize = 20;

/// Appends a number in decimal.
#[inline]
pub fn write_number(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0; NUMBER_BYTES];
    let start = format_number(&mut digits, number);
    out.extend_from_slice(&digits[start..]);
}

/// Formats a number in decimal at the end of `text`, which is long enough. Returns the offset of
/// the first digit.
#[inline]
pub(crate) fn format_number(text: &mut [u8], mut number: u64) -> usize {
    let mut start = text.len();
    loop {
        start -= 1;
        text[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return start;
        }
    }
}

/// Appends an address without brackets, as it is written on its own.
pub fn write_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => write_ipv4(out, ip),
        IpAddr::V6(ip) => write!(out, "{ip}").expect("writing to a Vec does not fail"),
    }
}

/// Appends an address as it is written before a port or in a `Host` field: IPv6 in brackets.
pub fn write_ip_host(out: &mut Vec<u8>, ip: IpAddr) {
    if ip.is_ipv4() {
        write_ip(out, ip);
    } else {
        out.push(b'[');
        write_ip(out, ip);
        out.push(b']');
    }
}

/// Appends a host, and the port if there is one.
pub fn write_authority(out: &mut Vec<u8>, authority: &Authority<'_>) {
    match authority.host {
        Host::Name(name) => out.extend_from_slice(name),
        Host::V4(ip) => write_ip_host(out, ip.into()),
        Host::V6(ip) => write_ip_host(out, ip.into()),
    }
    if let Some(port) = authority.port {
        write_port(out, port);
    }
}

/// Appends an authority in its normal form: the host in lower case, and the port unless it is
/// `default_port` (RFC 9110 section 4.2.3). Cache keys have the same form.
pub fn write_normalised_authority(out: &mut Vec<u8>, authority: &Authority<'_>, default_port: u16) {
    let start = out.len();
    let port = authority.port.filter(|&port| port != default_port);
    write_authority(out, &Authority { port, ..*authority });
    if let Host::Name(_) = authority.host {
        out[start..].make_ascii_lowercase();
    }
}

/// Appends a colon and a port.
pub fn write_port(out: &mut Vec<u8>, port: u16) {
    out.push(b':');
    write_number(out, port.into());
}

fn write_ipv4(out: &mut Vec<u8>, ip: Ipv4Addr) {
    // The longest address is `255.255.255.255`.
    let mut text = [0; 15];
    let mut end = 0;
    for (index, octet) in ip.octets().into_iter().enumerate() {
        if index > 0 {
            text[end] = b'.';
            end += 1;
        }
        for (divisor, least) in [(100, 100), (10, 10), (1, 0)] {
            if octet >= least {
                text[end] = b'0' + octet / divisor % 10;
                end += 1;
            }
        }
    }
    out.extend_from_slice(&text[..end]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_equals_that_of_the_standard_library() {
        let mut out = Vec::new();
        let mut wanted = Vec::new();
        for number in [0, 9, 10, 99, 100, 1234567890, u64::MAX] {
            write_number(&mut out, number);
            write!(wanted, "{number}").unwrap();
        }
        for octet in 0..=255 {
            let ip = Ipv4Addr::new(octet, 255 - octet, 0, octet / 3);
            write_ip_host(&mut out, ip.into());
            write!(wanted, "{ip}").unwrap();
        }
        for ip in ["::", "::1", "2001:db8::1:0:0:2", "::ffff:192.0.2.1"] {
            let ip: IpAddr = ip.parse().unwrap();
            write_ip(&mut out, ip);
            write_ip_host(&mut out, ip);
            write!(wanted, "{ip}[{ip}]").unwrap();
        }
        let name = Authority { host: Host::Name(b"a.test"), port: Some(8080) };
        write_authority(&mut out, &name);
        wanted.extend_from_slice(b"a.test:8080");
        assert_eq!(String::from_utf8(out), String::from_utf8(wanted));
    }

    #[test]
    fn a_normal_authority_is_in_lower_case_and_without_the_default_port() {
        for (text, expected) in [
            ("SHOP:80", "shop"),
            ("Shop.Example:8080", "shop.example:8080"),
            ("[2001:DB8::1]:80", "[2001:db8::1]"),
            ("127.0.0.1", "127.0.0.1"),
        ] {
            let mut out = b"Host: A".to_vec();
            write_normalised_authority(&mut out, &Authority::parse(text.as_bytes()).unwrap(), 80);
            assert_eq!(String::from_utf8(out).unwrap(), format!("Host: A{expected}"));
        }
    }
}
