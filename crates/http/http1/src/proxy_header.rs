//! PROXY protocol headers, versions 1 and 2: a load balancer reports the client's address before
//! the first byte of HTTP. The caller decides which peers may send one.

mod writer;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use memchr::memchr;

use crate::comma_list::parse_decimal;
use crate::limits::{PROXY_V1_BYTES_MAX, PROXY_V2_BYTES_MAX};

/// The addresses in a PROXY header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProxyHeader {
    /// The client's address. `None` if the connection is the load balancer's own (command LOCAL: a
    /// health check), or if the family is unknown or Unix. The addresses of the connection itself
    /// apply then.
    pub source: Option<SocketAddr>,
    /// The address that the client connected to; present if `source` is.
    pub destination: Option<SocketAddr>,
}

/// The reason why the first bytes of a connection are not a valid PROXY header. The sender caused
/// the error. The connection has to be closed without a response, because the sender possibly does
/// not speak HTTP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyHeaderError {
    /// The input begins like neither version.
    SignatureInvalid,
    /// Version 1: no CR LF in the first 107 bytes. Version 2: more than 4096 bytes are announced.
    TooLong,
    /// Version 1: the line is not exactly `PROXY`, a family, two addresses and two ports, with one
    /// space between.
    LineInvalid,
    /// An address is not of the announced family, or not in its standard notation.
    AddressInvalid,
    /// A port is not 0 to 65535 in plain decimal.
    PortInvalid,
    /// Version 2: the command is neither LOCAL nor PROXY.
    CommandInvalid,
    /// Version 2: the family or transport does not exist, or is for datagrams.
    FamilyInvalid,
    /// Version 2: fewer bytes are announced than the addresses of the family take.
    TooShort,
}

impl fmt::Display for ProxyHeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SignatureInvalid => "the connection does not begin with a PROXY header",
            Self::TooLong => "the PROXY header is too long",
            Self::LineInvalid => "the PROXY line is malformed",
            Self::AddressInvalid => "an address in the PROXY header is malformed",
            Self::PortInvalid => "a port in the PROXY header is malformed",
            Self::CommandInvalid => "the PROXY header's command is unknown",
            Self::FamilyInvalid => "the PROXY header's family is unknown",
            Self::TooShort => "the PROXY header is too short for its addresses",
        })
    }
}

impl std::error::Error for ProxyHeaderError {}

const V1_START: &[u8] = b"PROXY ";
const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Length of the signature, the command, the family and the length field.
const V2_FIXED: usize = V2_START.len() + 4;

/// Parses a PROXY header from the first bytes of a connection. Returns its length in bytes and its
/// addresses, or `None` if more bytes are needed: call again with the same bytes and more.
///
/// A call reads at most 107 bytes of version 1 and 52 of version 2. It skips extensions and the
/// addresses of Unix sockets.
///
/// # Errors
/// Returns a [`ProxyHeaderError`] as soon as the bytes match the signature of neither version.
/// Other errors are returned when the line of version 1 is complete or too long, or when the first
/// 16 bytes of version 2 are complete.
pub fn parse_proxy_header(input: &[u8]) -> Result<Option<(usize, ProxyHeader)>, ProxyHeaderError> {
    let may_become = |start: &[u8]| input.iter().zip(start).all(|(seen, wanted)| seen == wanted);
    if may_become(V1_START) {
        if input.len() < V1_START.len() { Ok(None) } else { parse_v1(input) }
    } else if may_become(V2_START) {
        if input.len() < V2_FIXED { Ok(None) } else { parse_v2(input) }
    } else {
        Err(ProxyHeaderError::SignatureInvalid)
    }
}

/// Parses version 1, a line of text.
fn parse_v1(input: &[u8]) -> Result<Option<(usize, ProxyHeader)>, ProxyHeaderError> {
    let seen = &input[..input.len().min(PROXY_V1_BYTES_MAX)];
    let Some(line_feed) = memchr(b'\n', seen) else {
        let is_too_long = input.len() >= PROXY_V1_BYTES_MAX;
        return if is_too_long { Err(ProxyHeaderError::TooLong) } else { Ok(None) };
    };
    let line = &input[V1_START.len()..line_feed];
    let line = line.strip_suffix(b"\r").ok_or(ProxyHeaderError::LineInvalid)?;
    if memchr(b'\r', line).is_some() {
        return Err(ProxyHeaderError::LineInvalid);
    }
    let header = if line == b"UNKNOWN" || line.starts_with(b"UNKNOWN ") {
        // The specification requires that the rest of the line be ignored.
        ProxyHeader::default()
    } else {
        parse_v1_addresses(line)?
    };
    Ok(Some((line_feed + 1, header)))
}

fn parse_v1_addresses(line: &[u8]) -> Result<ProxyHeader, ProxyHeaderError> {
    let line = std::str::from_utf8(line).map_err(|_| ProxyHeaderError::LineInvalid)?;
    let mut parts = line.split(' ');
    let mut part = || parts.next().ok_or(ProxyHeaderError::LineInvalid);
    let family = match part()? {
        "TCP4" => parse_v1_address::<Ipv4Addr>,
        "TCP6" => parse_v1_address::<Ipv6Addr>,
        _ => return Err(ProxyHeaderError::LineInvalid),
    };
    let (source, destination) = (family(part()?)?, family(part()?)?);
    let (source_port, destination_port) = (parse_port(part()?)?, parse_port(part()?)?);
    if parts.next().is_some() {
        return Err(ProxyHeaderError::LineInvalid);
    }
    Ok(ProxyHeader {
        source: Some(SocketAddr::new(source, source_port)),
        destination: Some(SocketAddr::new(destination, destination_port)),
    })
}

fn parse_v1_address<A: FromStr + Into<IpAddr>>(text: &str) -> Result<IpAddr, ProxyHeaderError> {
    text.parse().map(A::into).map_err(|_| ProxyHeaderError::AddressInvalid)
}

fn parse_port(text: &str) -> Result<u16, ProxyHeaderError> {
    let is_plain = text == "0" || !text.starts_with('0');
    let value = parse_decimal(text.as_bytes()).filter(|_| is_plain);
    value.and_then(|value| u16::try_from(value).ok()).ok_or(ProxyHeaderError::PortInvalid)
}

/// Parses version 2, the binary form. `input` has at least [`V2_FIXED`] bytes.
fn parse_v2(input: &[u8]) -> Result<Option<(usize, ProxyHeader)>, ProxyHeaderError> {
    let fixed = &input[V2_START.len()..];
    let (command, family) = (fixed[0], fixed[1]);
    let len = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    if len > PROXY_V2_BYTES_MAX {
        return Err(ProxyHeaderError::TooLong);
    }
    let is_local = match command {
        0x20 => true,
        0x21 => false,
        _ => return Err(ProxyHeaderError::CommandInvalid),
    };
    let addresses_len = match family {
        0x00 => 0,
        0x11 => 12,
        0x21 => 36,
        0x31 => 216,
        // The specification permits ignoring the family of a LOCAL connection.
        _ if is_local => 0,
        _ => return Err(ProxyHeaderError::FamilyInvalid),
    };
    if len < addresses_len && !is_local {
        return Err(ProxyHeaderError::TooShort);
    }
    let Some(body) = input.get(V2_FIXED..V2_FIXED + len) else { return Ok(None) };
    let header = match family {
        _ if is_local => ProxyHeader::default(),
        0x11 => parse_v2_addresses::<4>(body),
        0x21 => parse_v2_addresses::<16>(body),
        _ => ProxyHeader::default(),
    };
    Ok(Some((V2_FIXED + len, header)))
}

/// Parses two addresses of `N` bytes and two ports. `body` is long enough.
fn parse_v2_addresses<const N: usize>(body: &[u8]) -> ProxyHeader
where
    IpAddr: From<[u8; N]>,
{
    let address = |at: usize, port_at: usize| {
        let bytes: [u8; N] = body[at..at + N].try_into().expect("the range has N bytes");
        let port = u16::from_be_bytes([body[port_at], body[port_at + 1]]);
        Some(SocketAddr::new(bytes.into(), port))
    };
    ProxyHeader { source: address(0, 2 * N), destination: address(N, 2 * N + 2) }
}

/// Fuzzes the PROXY header parser with any bytes. It checks that each shorter input needs more
/// bytes or has the same result, that no more bytes are used than there are, and that a parsed
/// header, written in either version, is parsed to the same addresses.
///
/// # Panics
/// Panics if one of these properties is violated.
pub fn fuzz_proxy_header(data: &[u8]) {
    let whole = parse_proxy_header(data);
    for end in 0..data.len().min(512) {
        let piece = parse_proxy_header(&data[..end]);
        assert!(piece == Ok(None) || piece == whole, "{end} bytes: {piece:?}, all: {whole:?}");
    }
    let Ok(Some((used, header))) = whole else { return };
    assert!(used <= data.len());
    assert_eq!(header.source.is_some(), header.destination.is_some());
    for write in [ProxyHeader::write_v1, ProxyHeader::write_v2] {
        let mut written = Vec::new();
        write(&header, &mut written);
        let Ok(Some((used, again))) = parse_proxy_header(&written) else {
            panic!("{header:?} was written as {:?}", written.escape_ascii().to_string());
        };
        assert_eq!(used, written.len());
        // An IPv4-mapped address may have become the IPv4 address, or the reverse.
        let plain = |address: Option<SocketAddr>| {
            address.map(|it| SocketAddr::new(it.ip().to_canonical(), it.port()))
        };
        assert_eq!(plain(again.source), plain(header.source));
        assert_eq!(plain(again.destination), plain(header.destination));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;

    fn version_2(command: u8, family: u8, len: u16, body: &[u8]) -> Vec<u8> {
        [V2_START, &[command, family], &len.to_be_bytes(), body].concat()
    }

    fn addresses(source: &str, destination: &str) -> ProxyHeader {
        let address = |text: &str| Some(text.parse().unwrap());
        ProxyHeader { source: address(source), destination: address(destination) }
    }

    fn parse(bytes: &[u8]) -> Result<Option<(usize, ProxyHeader)>, ProxyHeaderError> {
        fuzz_proxy_header(bytes);
        parse_proxy_header(bytes)
    }

    #[test]
    fn version_1_names_both_ends() {
        let line = b"PROXY TCP4 1.2.3.4 5.6.7.8 80 65535\r\n";
        let expected = addresses("1.2.3.4:80", "5.6.7.8:65535");
        assert_eq!(parse(&[&line[..], b"GET /"].concat()), Ok(Some((line.len(), expected))));
        let line = b"PROXY TCP6 ::1 2001:db8::2 0 443\r\n";
        let expected = addresses("[::1]:0", "[2001:db8::2]:443");
        assert_eq!(parse(line), Ok(Some((line.len(), expected))));
        for line in [&b"PROXY UNKNOWN\r\n"[..], b"PROXY UNKNOWN any thing 1 2\r\n"] {
            assert_eq!(parse(line), Ok(Some((line.len(), ProxyHeader::default()))));
        }
    }

    #[test]
    fn version_1_is_canonical() {
        use ProxyHeaderError::*;
        for (line, error) in [
            ("PROXY TCP4 1.2.3.4 5.6.7.8 80 81\n", LineInvalid),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 80\r\n", LineInvalid),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 80 81 \r\n", LineInvalid),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 80 81\r\r\n", LineInvalid),
            ("PROXY  TCP4 1.2.3.4 5.6.7.8 80 81\r\n", LineInvalid),
            ("PROXY TCP4  1.2.3.4 5.6.7.8 80 81\r\n", AddressInvalid),
            ("PROXY TCP5 1.2.3.4 5.6.7.8 80 81\r\n", LineInvalid),
            ("PROXY tcp4 1.2.3.4 5.6.7.8 80 81\r\n", LineInvalid),
            ("PROXY UNKNOWNX\r\n", LineInvalid),
            ("PROXY \r\n", LineInvalid),
            ("PROXY TCP4 ::1 ::1 80 81\r\n", AddressInvalid),
            ("PROXY TCP6 1.2.3.4 5.6.7.8 80 81\r\n", AddressInvalid),
            ("PROXY TCP4 01.2.3.4 5.6.7.8 80 81\r\n", AddressInvalid),
            ("PROXY TCP4 127.1 5.6.7.8 80 81\r\n", AddressInvalid),
            ("PROXY TCP6 ::1%lo ::1 80 81\r\n", AddressInvalid),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 080 81\r\n", PortInvalid),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 +80 81\r\n", PortInvalid),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 80 65536\r\n", PortInvalid),
            ("PROXY TCP4 1.2.3.4 5.6.7.8 80 \r\n", PortInvalid),
            ("GET / HTTP/1.1\r\n", SignatureInvalid),
            ("PROXYTCP4", SignatureInvalid),
            ("proxy TCP4", SignatureInvalid),
            (" PROXY", SignatureInvalid),
        ] {
            assert_eq!(parse(line.as_bytes()), Err(error), "{line:?}");
        }
    }

    #[test]
    fn version_1_ends_within_107_bytes() {
        let line = |len: usize| format!("PROXY UNKNOWN {}\r\n", "x".repeat(len - 16));
        assert_eq!(parse(line(107).as_bytes()), Ok(Some((107, ProxyHeader::default()))));
        assert_eq!(parse(line(108).as_bytes()), Err(ProxyHeaderError::TooLong));
        assert_eq!(parse(&line(200).as_bytes()[..107]), Err(ProxyHeaderError::TooLong));
        assert_eq!(parse(&line(200).as_bytes()[..106]), Ok(None));
    }

    #[test]
    fn version_2_names_both_ends_and_skips_what_follows() {
        let v4 = [1, 2, 3, 4, 5, 6, 7, 8, 0, 80, 1, 187, 4, 0, 1, 9];
        let bytes = version_2(0x21, 0x11, 16, &v4);
        let expected = addresses("1.2.3.4:80", "5.6.7.8:443");
        assert_eq!(parse(&[&bytes[..], b"GET"].concat()), Ok(Some((32, expected))));
        let mut v6 = [0; 36];
        (v6[15], v6[31], v6[33], v6[35]) = (1, 2, 80, 81);
        let expected = addresses("[::1]:80", "[::2]:81");
        assert_eq!(parse(&version_2(0x21, 0x21, 36, &v6)), Ok(Some((52, expected))));
        let unix = version_2(0x21, 0x31, 216, &[b'/'; 216]);
        assert_eq!(parse(&unix), Ok(Some((232, ProxyHeader::default()))));
        for (command, family, len) in
            [(0x20, 0x00, 0), (0x20, 0x11, 12), (0x20, 0xff, 3), (0x21, 0, 2)]
        {
            let bytes = version_2(command, family, len, &[7; 12][..len.into()]);
            assert_eq!(parse(&bytes), Ok(Some((bytes.len(), ProxyHeader::default()))));
        }
    }

    #[test]
    fn version_2_is_strict() {
        use ProxyHeaderError::*;
        for (command, family, len, error) in [
            (0x22, 0x11, 12, CommandInvalid),
            (0x11, 0x11, 12, CommandInvalid),
            (0x00, 0x11, 12, CommandInvalid),
            (0x21, 0x12, 12, FamilyInvalid),
            (0x21, 0x10, 12, FamilyInvalid),
            (0x21, 0x41, 12, FamilyInvalid),
            (0x21, 0x11, 11, TooShort),
            (0x21, 0x21, 35, TooShort),
            (0x21, 0x31, 215, TooShort),
            (0x21, 0x11, 4097, TooLong),
            (0x20, 0x00, 65535, TooLong),
        ] {
            let bytes = version_2(command, family, len, &[]);
            assert_eq!(parse(&bytes), Err(error), "{command:x} {family:x} {len}");
        }
        assert_eq!(parse(b"\r\n\r\n\0\r\nQUIT\r"), Err(SignatureInvalid));
        assert_eq!(parse(b"\r\n\r\nGET"), Err(SignatureInvalid));
        assert_eq!(parse(&version_2(0x21, 0x11, 4096, &[0; 4095])), Ok(None));
    }

    #[test]
    fn the_corpus_keeps_the_invariants() {
        corpus::run("proxy_header", 40, corpus::mutate_bytes, fuzz_proxy_header);
    }
}
