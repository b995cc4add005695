//! Targets and authorities that every parser reads in the same way.

use super::{Ambiguity, ambiguous};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Checks the target of a request at an origin.
pub(super) fn check(method: &str, target: &str) -> Result<(), Ambiguity> {
    if method == "CONNECT" {
        return ambiguous("a CONNECT at an origin");
    }
    if target == "*" {
        return if method == "OPTIONS" { Ok(()) } else { ambiguous("an asterisk outside OPTIONS") };
    }
    if !target.starts_with('/') {
        return ambiguous("a target that is not in origin-form");
    }
    // In addition to RFC 3986, this allows the characters that browsers send unescaped and that
    // have no special meaning for any parser. A fragment, quotes, angle brackets and, in a path, a
    // backslash (which some read as a slash) are ambiguous.
    let query = target.find('?').unwrap_or(target.len());
    let odd = target.bytes().enumerate().find(|(at, byte)| match byte {
        b'\\' => *at < query,
        b'!'..=b'~' => b"#\"<>".contains(byte),
        _ => true,
    });
    match odd.map(|(_, byte)| byte) {
        Some(byte) => ambiguous(&format!("the byte 0x{byte:02x} in a target")),
        None => Ok(()),
    }
}

/// Checks the value of Host: a name, an IPv4 address in its only accepted form or an IPv6 address
/// in brackets, and optionally a port from 1 to 65535 without leading zeros.
pub(super) fn check_authority(authority: &str) -> Result<(), Ambiguity> {
    let (host, port) = match authority.rfind(':') {
        Some(colon) if !authority.ends_with(']') => {
            (&authority[..colon], Some(&authority[colon + 1..]))
        }
        _ => (authority, None),
    };
    if let Some(port) = port {
        let number = port.parse::<u16>().unwrap_or(0);
        if number == 0 || number.to_string() != port {
            return ambiguous("a port with more than one reading");
        }
    }
    if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return match inner.parse::<Ipv6Addr>() {
            Ok(_) => Ok(()),
            Err(_) => ambiguous("brackets around something other than an IPv6 address"),
        };
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if host.is_empty() || !host.bytes().all(plain) {
        return ambiguous("a host that is neither a plain name nor an address");
    }
    // Some resolvers read a name whose last label is a number as an address.
    let last = host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let hexadecimal = last.strip_prefix("0x").or(last.strip_prefix("0X"));
    let numeric = match hexadecimal {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => last.bytes().all(|byte| byte.is_ascii_digit()),
    };
    if numeric && host.parse::<Ipv4Addr>().is_err() {
        return ambiguous("a numeric host with more than one reading");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        for target in ["/", "//x", "/a?b\\c", "/a?b=/c?d", "/%zz", "/[a]|{b}^`", "/a;b=c:@d"] {
            assert_eq!(check("GET", target), Ok(()), "{target}");
        }
        for target in ["", "*", "a", "http://a/", "/a#b", "/a\\b", "/a\"b", "/<", "/a b", "?a"] {
            assert!(check("GET", target).is_err(), "{target}");
        }
        assert_eq!(check("OPTIONS", "*"), Ok(()));
        assert!(check("CONNECT", "a:443").is_err());
        assert!(check("CONNECT", "/").is_err());
    }

    #[test]
    fn authorities() {
        for authority in [
            "a",
            "A-b.c_d",
            "1.2.3.a",
            "0xg",
            "a.test.",
            "a:80",
            "127.0.0.1:8000",
            "[::1]",
            "[::1]:1",
        ] {
            assert_eq!(check_authority(authority), Ok(()), "{authority}");
        }
        for authority in [
            "",
            ":80",
            "a:",
            "a:0",
            "a:080",
            "a:65536",
            "a:+80",
            "a b",
            "a,b",
            "u@a",
            "a/b",
            "a?b",
            "127.1",
            "0x7f.1",
            "017700000001",
            "1.2.3.04",
            "2130706433",
            "[::1",
            "::1]",
            "[a]",
            "[::1%eth0]",
            "[v1.x]",
            "a%41",
            "a\t",
            "a:80:80",
            "[::1]x",
        ] {
            assert!(check_authority(authority).is_err(), "{authority}");
        }
    }
}
