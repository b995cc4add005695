//! Values as people write them: sizes, times, addresses, blocks, origins. Each reader takes the
//! text of one value and gives the value, or a few words that say what is wrong with the text.
//! None of them looks anything up: what a name means is the resolver's affair, later.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_http1::path::route_form;
use millrace_http1::{Name, REMOVED_UNLESS_TRUSTED};

use super::{Cidr, Congestion, ListenAddress, Origin, ProcessUser};

/// What is wrong with a text, to be read after the text itself: "is not a number".
pub(super) type Problem = &'static str;

/// Wrongs for which [`meant`] has a suggestion.
const PORT_WITHOUT_ADDRESS: Problem = "is a port without an address";
const LONG_UNIT: Problem = "has a unit of more than one letter";
const NOT_NORMALISED: Problem = "is not in normal form";
pub(super) const TIME_WITHOUT_KEYWORD: Problem = "does not say whether it is default or override";

/// The longest path that the address of a Unix socket can hold with its closing zero (unix(7)).
const UNIX_PATH_BYTES_MAX: usize = 107;
/// RFC 1035 section 2.3.4: the longest name and the longest label of one.
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;
/// The longest name of an algorithm (linux/tcp.h: TCP_CA_NAME_MAX, its closing zero included).
const CONGESTION_BYTES_MAX: usize = 15;

/// A whole number of decimal digits, without sign or separators.
pub(super) fn number(text: &str) -> Result<u64, Problem> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("is not a whole number");
    }
    text.parse().map_err(|_| "is too large")
}

/// Checks a number against its bounds.
pub(super) fn within(number: u64, least: u64, most: u64) -> Result<u64, Problem> {
    match number {
        _ if number < least => Err("is too small"),
        _ if number > most => Err("is too large"),
        _ => Ok(number),
    }
}

/// Units behind a number, each with its factor: the largest first.
pub(super) type Units = &'static [(&'static str, u64)];

const SIZES: Units = &[("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10), ("", 1)];
const TIMES: Units = &[("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1), ("", 1)];

/// Parses a whole number followed by one of `units`.
///
/// # Errors
/// `wrong`, for any other text.
pub(super) fn scaled(text: &str, units: Units, problem: Problem) -> Result<u64, Problem> {
    let is_of_unit = |character: char| !character.is_ascii_digit();
    let (digits, unit) = text.split_at(text.find(is_of_unit).unwrap_or(text.len()));
    let (_, factor) = units.iter().find(|(known, _)| *known == unit).ok_or(problem)?;
    if digits.is_empty() {
        return Err(problem);
    }
    number(digits)?.checked_mul(*factor).ok_or("is too large")
}

/// A number with the largest unit that divides it, as [`scaled`] reads it.
pub(super) fn write_scaled(number: u64, units: Units) -> String {
    let divides = |factor| factor == 1 || (number > 0 && number.is_multiple_of(factor));
    let found = units.iter().find(|(_, factor)| divides(*factor));
    let (unit, factor) = found.expect("one of them is 1");
    format!("{}{unit}", number / factor)
}

/// Bytes: a whole number, with K, M, G or T behind it for powers of 1024.
pub(super) fn size(text: &str) -> Result<u64, Problem> {
    const NO_SIZE: Problem = "is not a size";
    scaled(&text.to_ascii_uppercase(), SIZES, NO_SIZE).map_err(|problem| match problem {
        NO_SIZE if with_one_letter_unit(text).is_some() => LONG_UNIT,
        _ => problem,
    })
}

/// A size whose unit has more than one letter, such as 1GB or 512MiB, as [`size`] reads it.
fn with_one_letter_unit(text: &str) -> Option<String> {
    let number_and_letter = ["iB", "B"].iter().find_map(|end| strip_suffix_any_case(text, end))?;
    let has_letter = number_and_letter.ends_with(|last: char| last.is_ascii_alphabetic());
    (has_letter && size(number_and_letter).is_ok()).then(|| number_and_letter.to_ascii_uppercase())
}

/// What was probably meant by a text with this wrong.
pub(super) fn suggestion(text: &str, problem: Problem) -> Option<String> {
    match problem {
        PORT_WITHOUT_ADDRESS => Some(format!("127.0.0.1:{text}")),
        LONG_UNIT => with_one_letter_unit(text),
        NOT_NORMALISED => String::from_utf8(route_form(text.as_bytes())).ok(),
        TIME_WITHOUT_KEYWORD => {
            let (statuses, time) = text.split_at(text.rfind(' ').map_or(0, |space| space + 1));
            let unit = if time.ends_with(|last: char| last.is_ascii_digit()) { "s" } else { "" };
            let written = |way| format!("{statuses}{way} {time}{unit}");
            Some(format!("{} or {}", written("default"), written("override")))
        }
        _ => None,
    }
}

/// Milliseconds: a whole number, or one with ms, s, m or h behind it.
pub(super) fn milliseconds(text: &str) -> Result<u64, Problem> {
    scaled(text, TIMES, "is not a time")
}

/// `on` or `off`. The Booleans of TOML come as these words: [`word_of`](super::options::Kind::word_of).
pub(super) fn switch(text: &str) -> Result<bool, Problem> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("is neither on nor off"),
    }
}

/// The name of a service: it stands in cache keys and labels of metrics as it is.
pub(super) fn service_name(text: &str) -> Result<String, Problem> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    match text.len() {
        0 => Err("is empty"),
        65.. => Err("is too long"),
        _ if text.bytes().all(is_plain) => Ok(text.to_owned()),
        _ => Err("has a character that no name may have"),
    }
}

/// An address to listen on: `ADDRESS:PORT`, `[ADDRESS]:PORT`, `localhost:PORT`, `unix:PATH`.
pub(super) fn listen_address(text: &str) -> Result<ListenAddress, Problem> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(ListenAddress::Unix(unix_path(path)?));
    }
    Ok(ListenAddress::Tcp(socket_address(text)?))
}

/// An address and a port. The one name taken is `localhost`, which is 127.0.0.1 (RFC 6761 section
/// 6.3): any other could mean several addresses, or none while the machine starts.
pub(super) fn socket_address(text: &str) -> Result<SocketAddr, Problem> {
    if let Some(port) = text.strip_prefix("localhost:") {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port_or_zero(port)?)));
    }
    if text.starts_with('[') && text.ends_with(']') {
        return Err("has no port");
    }
    let Some((_, port)) = text.rsplit_once(':') else {
        return Err(if number(text).is_ok() { PORT_WITHOUT_ADDRESS } else { "has no port" });
    };
    port_or_zero(port)?;
    text.parse().map_err(|_| "is not an address with a port")
}

fn port_or_zero(text: &str) -> Result<u16, Problem> {
    if text.is_empty() {
        return Err("has no port");
    }
    let port = number(text).map_err(|_| "has a port that is not a number")?;
    u16::try_from(port).map_err(|_| "has a port above 65535")
}

/// A block of addresses, `ADDRESS/BITS`, or one address.
pub(super) fn cidr(text: &str) -> Result<Cidr, Problem> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let network: IpAddr = address.parse().map_err(|_| "is not an address or block")?;
    if network.to_canonical() != network {
        return Err("is an IPv4-mapped address, which is written as the IPv4 one");
    }
    let bits: u8 = if network.is_ipv4() { 32 } else { 128 };
    let prefix = match prefix {
        None => bits,
        Some(prefix) => u8::try_from(number(prefix)?).unwrap_or(u8::MAX),
    };
    if prefix > bits {
        return Err("has a prefix longer than its address");
    }
    let zeros = match network {
        IpAddr::V4(address) => u32::from(address).trailing_zeros(),
        IpAddr::V6(address) => u128::from(address).trailing_zeros(),
    };
    // A block such as 10.1.2.3/8 is a slip of the pen in one of its two halves.
    if zeros < u32::from(bits - prefix) {
        return Err("has bits set below its prefix");
    }
    Ok(Cidr { network, prefix })
}

/// A port from 1, or `all`, which is given as 0.
pub(super) fn port(text: &str) -> Result<u16, Problem> {
    if text == "all" {
        return Ok(0);
    }
    match number(text).map(u16::try_from)? {
        Ok(port) if port > 0 => Ok(port),
        _ => Err("is not a port"),
    }
}

/// An origin server: `http://HOST[:PORT]` without a path, or `unix:PATH`.
pub(super) fn origin(text: &str) -> Result<Origin, Problem> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Origin::Unix(Arc::from(unix_path(path)?)));
    }
    if text.get(..8).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https://")) {
        return Err("asks for TLS to the origin, which this version does not speak");
    }
    let authority = text
        .get(..7)
        .filter(|scheme| scheme.eq_ignore_ascii_case("http://"))
        .map(|scheme| &text[scheme.len()..])
        .ok_or("does not begin with http:// or unix:")?;
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    if authority.contains(['/', '?', '#']) {
        return Err("has a path, but an origin is only a host and a port");
    }
    if authority.contains('@') {
        return Err("has a user name, but an origin is only a host and a port");
    }
    let (host, port) = split_authority(authority)?;
    let port = match port {
        None => 80,
        Some(port) => match port_or_zero(port)? {
            0 => return Err("has port 0"),
            port => port,
        },
    };
    Ok(Origin::Tcp { host: self::host(host)?, port })
}

/// The host, without brackets but still in them if it is IPv6, and the port if there is one.
fn split_authority(authority: &str) -> Result<(&str, Option<&str>), Problem> {
    if authority.starts_with('[') {
        let end = authority.find(']').ok_or("has a bracket that is not closed")?;
        return match authority[end + 1..].strip_prefix(':') {
            Some(port) => Ok((&authority[..=end], Some(port))),
            None if end + 1 == authority.len() => Ok((authority, None)),
            None => Err("has something other than a port behind its brackets"),
        };
    }
    Ok(match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    })
}

/// A name in lower case, or an address literal: IPv4, or IPv6 in brackets that are taken off.
fn host(text: &str) -> Result<String, Problem> {
    if let Some(literal) = text.strip_prefix('[') {
        let literal = literal.strip_suffix(']').unwrap_or(literal);
        let address: std::net::Ipv6Addr =
            literal.parse().map_err(|_| "has no IPv6 address in its brackets")?;
        return Ok(address.to_string());
    }
    name(text)?;
    Ok(text.to_ascii_lowercase())
}

/// A host name as [`host`] takes it, in lower case; no address.
pub(super) fn host_name(text: &str) -> Result<String, Problem> {
    match text.parse::<IpAddr>() {
        Ok(_) => Err("is an address"),
        Err(_) => name(text).map(|()| text.to_ascii_lowercase()),
    }
}

/// Checks a host name or IPv4 literal. A name whose last label is numeric is refused unless it is
/// an address of four decimal parts: resolvers disagree about 127.1 and 0x7f.1.
fn name(text: &str) -> Result<(), Problem> {
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.is_empty() {
        return Err("has no host");
    }
    let sane = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let label =
        |label: &str| (1..=LABEL_BYTES_MAX).contains(&label.len()) && label.bytes().all(sane);
    if name.len() > NAME_BYTES_MAX || !name.split('.').all(label) {
        return Err("has a host that is not a name");
    }
    let last = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
    let numeric = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    if numeric && text.parse::<Ipv4Addr>().is_err() {
        return Err("has a host that is neither a name nor an IPv4 address");
    }
    Ok(())
}

/// What a route matches hosts by: a host as above (IPv6 with or without brackets), or `*.` and a
/// name for every name below it. A dot at its end is taken off, as it is of what is asked for.
pub(super) fn host_pattern(text: &str) -> Result<String, Problem> {
    let pattern = match text.strip_prefix("*.") {
        Some(parent) => name(parent).map(|()| text.to_ascii_lowercase())?,
        None => match text.parse::<std::net::Ipv6Addr>() {
            Ok(address) => address.to_string(),
            Err(_) => host(text)?,
        },
    };
    Ok(pattern.strip_suffix('.').map(str::to_owned).unwrap_or(pattern))
}

/// A name in lower case and without a dot at its end, or `*.` and one for every name below it.
/// Addresses are no names: they have rules of their own.
pub(super) fn domain(text: &str) -> Result<String, Problem> {
    let (prefix, domain) = match text.strip_prefix("*.") {
        Some(parent) => ("*.", parent),
        None => ("", text),
    };
    if !domain.is_ascii() {
        return Err("is not ASCII: such a name is written as its A-labels, xn--...");
    }
    name(domain)?;
    if domain.parse::<Ipv4Addr>().is_ok() {
        return Err("is an address, which allow-target and deny-target take");
    }
    let domain = domain.strip_suffix('.').unwrap_or(domain);
    Ok(format!("{prefix}{}", domain.to_ascii_lowercase()))
}

/// What a password is asked for: it stands between quotes in a field.
pub(super) fn realm(text: &str) -> Result<String, Problem> {
    let sane = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    match text.len() {
        0 => Err("is empty"),
        1..=100 if text.bytes().all(sane) => Ok(text.to_owned()),
        1..=100 => Err("holds what cannot stand between quotes"),
        _ => Err("is too long"),
    }
}

/// A prefix of a path: printable ASCII from a slash on, without query or fragment, in the normal form
/// of the paths that it is compared with.
pub(super) fn path_prefix(text: &str) -> Result<String, Problem> {
    if !text.starts_with('/') {
        return Err("does not begin with a slash");
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'?' && byte != b'#') {
        return Err("holds what a path cannot");
    }
    if route_form(text.as_bytes()) != text.as_bytes() {
        return Err(NOT_NORMALISED);
    }
    Ok(text.to_owned())
}

/// The name of a field that a booster removes unless a trusted peer sends it, in lower case.
pub(super) fn pass_field(text: &str) -> Result<Box<[u8]>, Problem> {
    if !REMOVED_UNLESS_TRUSTED.has(Name::of(text.as_bytes())) {
        return Err("is not a field that is removed");
    }
    Ok(text.to_ascii_lowercase().into_bytes().into())
}

/// What a health check asks for, a path with perhaps a query, or `off`.
pub(super) fn check_path(text: &str) -> Result<Option<String>, Problem> {
    if text == "off" {
        return Ok(None);
    }
    if !text.starts_with('/') {
        return Err("does not begin with a slash");
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Err("holds what a request target cannot");
    }
    Ok(Some(text.to_owned()))
}

/// `STATUS` or `FIRST-LAST`.
pub(super) fn statuses(text: &str) -> Result<(u16, u16), Problem> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let status = |text: &str| match number(text) {
        Ok(status @ 200..=599) => Ok(status as u16),
        _ => Err("is no status or range of statuses"),
    };
    let (first, last) = (status(first)?, status(last)?);
    if first > last { Err("is a range that ends before it begins") } else { Ok((first, last)) }
}

/// A path of a file: anything but control characters, which would break messages and logs.
pub(super) fn file_path(text: &str) -> Result<PathBuf, Problem> {
    if text.is_empty() {
        return Err("is empty");
    }
    if text.chars().any(char::is_control) {
        return Err("holds control characters");
    }
    Ok(PathBuf::from(text))
}

/// `system`, `auto`, or the name of an algorithm. Which ones there are, only a kernel knows.
pub(super) fn congestion(text: &str) -> Result<Congestion, Problem> {
    let sane = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    match text {
        "system" => Ok(Congestion::System),
        "auto" => Ok(Congestion::Auto),
        _ if text.is_empty() || !text.bytes().all(sane) => Err("is not a name"),
        _ if text.len() > CONGESTION_BYTES_MAX => Err("is longer than any name of an algorithm"),
        _ => Ok(Congestion::Named(text.into())),
    }
}

/// `auto`, or a user and perhaps a group by names or numbers. Which ones there are, only a machine
/// knows.
pub(super) fn user(text: &str) -> Result<ProcessUser, Problem> {
    let sane = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let name = |name: &str| !name.is_empty() && name.bytes().all(sane);
    let (user, group) = text.split_once(':').map_or((text, None), |(u, g)| (u, Some(g)));
    match text {
        "auto" => Ok(ProcessUser::Auto),
        _ if name(user) && group.is_none_or(name) => {
            Ok(ProcessUser::Named { user: user.to_owned(), group: group.map(str::to_owned) })
        }
        _ => Err("is not a user's name"),
    }
}

fn unix_path(text: &str) -> Result<PathBuf, Problem> {
    if text.is_empty() {
        return Err("has no path");
    }
    if text.len() > UNIX_PATH_BYTES_MAX {
        return Err("has a path longer than the 107 bytes of a Unix socket's address");
    }
    file_path(text)
}

fn strip_suffix_any_case<'a>(text: &'a str, suffix: &str) -> Option<&'a str> {
    text.strip_suffix(suffix).or_else(|| text.strip_suffix(suffix.to_ascii_lowercase().as_str()))
}

/// Bytes as [`size`] reads them.
pub(super) fn write_size(bytes: u64) -> String {
    write_scaled(bytes, SIZES)
}

/// Milliseconds as [`milliseconds`] reads them.
pub(super) fn write_milliseconds(milliseconds: u64) -> String {
    write_scaled(milliseconds, TIMES)
}

/// An origin as [`origin`] reads it.
pub fn write_origin(origin: &Origin) -> String {
    match origin {
        Origin::Tcp { host, port } if host.contains(':') => format!("http://[{host}]:{port}"),
        Origin::Tcp { host, port } => format!("http://{host}:{port}"),
        Origin::Unix(path) => format!("unix:{}", Path::display(path)),
    }
}

/// Statuses as [`statuses`] reads them.
pub(super) fn write_statuses((first, last): (u16, u16)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// A port as [`port`] reads it.
pub(super) fn write_port(port: u16) -> String {
    if port == 0 { "all".to_owned() } else { port.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_ask_for_targets_and_expect_ranges() {
        assert_eq!(check_path("/health?full=1"), Ok(Some("/health?full=1".to_owned())));
        assert_eq!(check_path("off"), Ok(None));
        assert!(check_path("false").is_err());
        assert!(check_path("health").is_err() && check_path("/a b").is_err());
        assert!(check_path("/a\r\nX: y").is_err() && check_path("/a#b").is_err());
        assert_eq!((statuses("204"), statuses("200-299")), (Ok((204, 204)), Ok((200, 299))));
        for text in ["", "-", "200-", "-299", "100", "600", "299-200", "2xx", "200-250-299"] {
            assert!(statuses(text).is_err(), "{text}");
        }
        assert_eq!([(204, 204), (200, 399)].map(write_statuses), ["204", "200-399"]);
    }

    #[test]
    fn sizes_and_times_take_suffixes() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("256M"), Ok(256 << 20));
        assert_eq!(size("3g"), Ok(3 << 30));
        for text in ["", "M", "-1", "1.5G", "1XB", "1B", "B", "iB", " 1", "+1"] {
            assert_eq!(size(text), Err("is not a size"), "{text}");
        }
        for (text, short) in [("1GB", "1G"), ("512MiB", "512M"), ("3kb", "3K")] {
            assert_eq!(size(text), Err(LONG_UNIT), "{text}");
            assert_eq!(suggestion(text, LONG_UNIT).as_deref(), Some(short));
        }
        for (text, meaning) in
            [("60", "default 60s or override 60s"), ("404 1m", "404 default 1m or 404 override 1m")]
        {
            assert_eq!(suggestion(text, TIME_WITHOUT_KEYWORD).as_deref(), Some(meaning));
        }
        assert_eq!(size("18446744073709551615K"), Err("is too large"));
        assert_eq!(milliseconds("500"), Ok(500));
        assert_eq!(milliseconds("500ms"), Ok(500));
        assert_eq!(milliseconds("30s"), Ok(30_000));
        assert_eq!(milliseconds("2m"), Ok(120_000));
        assert_eq!(milliseconds("1h"), Ok(3_600_000));
        assert_eq!(milliseconds("1 s"), Err("is not a time"));
    }

    #[test]
    fn what_is_written_is_read_again() {
        for bytes in [0, 1, 1023, 1024, 256 << 20, (1 << 40) + 1, u64::MAX] {
            assert_eq!(size(&write_size(bytes)), Ok(bytes));
            assert_eq!(milliseconds(&write_milliseconds(bytes)), Ok(bytes));
        }
        for text in ["http://[::1]:80", "http://a.b:81", "http://1.2.3.4:65535", "unix:/a,b"] {
            assert_eq!(write_origin(&origin(text).unwrap()), text);
        }
    }

    #[test]
    fn listen_addresses() {
        let tcp = |text: &str| Ok(ListenAddress::Tcp(text.parse().unwrap()));
        assert_eq!(listen_address("127.0.0.1:0"), tcp("127.0.0.1:0"));
        assert_eq!(listen_address("[::1]:8080"), tcp("[::1]:8080"));
        assert_eq!(listen_address("localhost:80"), tcp("127.0.0.1:80"));
        assert_eq!(listen_address("unix:/run/a"), Ok(ListenAddress::Unix("/run/a".into())));
        assert_eq!(listen_address("127.0.0.1"), Err("has no port"));
        assert_eq!(listen_address("127.0.0.1:"), Err("has no port"));
        assert_eq!(listen_address("3128"), Err(PORT_WITHOUT_ADDRESS));
        assert_eq!(listen_address("127.0.0.1:80a"), Err("has a port that is not a number"));
        assert_eq!(listen_address("127.0.0.1:65536"), Err("has a port above 65535"));
        assert_eq!(listen_address("example.org:80"), Err("is not an address with a port"));
        assert_eq!(listen_address("unix:"), Err("has no path"));
        assert!(listen_address(&format!("unix:/{}", "a".repeat(107))).is_err());
        assert!(listen_address("unix:/a\0b").is_err());
    }

    #[test]
    fn congestion_is_one_of_two_words_or_a_name() {
        assert_eq!(congestion("system"), Ok(Congestion::System));
        assert_eq!(congestion("auto"), Ok(Congestion::Auto));
        assert_eq!(congestion("bbr").unwrap().name(), Some("bbr"));
        assert_eq!(congestion("tcp_dctcp-2").unwrap().to_string(), "tcp_dctcp-2");
        for text in ["", "a b", "reno\0", "cubic,reno", "abcdefghijklmnop"] {
            assert!(congestion(text).is_err(), "{text}");
        }
    }

    #[test]
    fn users_come_with_or_without_a_group() {
        let named = |user: &str, group: Option<&str>| {
            Ok(ProcessUser::Named { user: user.to_owned(), group: group.map(str::to_owned) })
        };
        assert_eq!(user("auto"), Ok(ProcessUser::Auto));
        assert_eq!(user("www-data"), named("www-data", None));
        assert_eq!(user("33:web.1"), named("33", Some("web.1")));
        for text in ["", ":", "a:", ":a", "a b", "a:b:c", "root\n", "é"] {
            assert!(user(text).is_err(), "{text}");
        }
    }

    #[test]
    fn blocks_are_exact() {
        let block = |text: &str, prefix| Ok(Cidr { network: text.parse().unwrap(), prefix });
        assert_eq!(cidr("10.0.0.0/8"), block("10.0.0.0", 8));
        assert_eq!(cidr("10.1.2.3"), block("10.1.2.3", 32));
        assert_eq!(cidr("0.0.0.0/0"), block("0.0.0.0", 0));
        assert_eq!(cidr("::/0"), block("::", 0));
        assert_eq!(cidr("fe80::/10"), block("fe80::", 10));
        assert!(cidr("10.0.0.1/8").is_err());
        assert!(cidr("10.0.0.0/33").is_err());
        assert!(cidr("10.0.0.0/400").is_err());
        assert!(cidr("::ffff:10.0.0.0/104").is_err());
        assert!(cidr("10.0.0.0/").is_err());
    }

    #[test]
    fn origins() {
        let tcp = |host: &str, port| Ok(Origin::Tcp { host: host.into(), port });
        assert_eq!(origin("http://Web.Example:8081/"), tcp("web.example", 8081));
        assert_eq!(origin("HTTP://[::1]"), tcp("::1", 80));
        assert_eq!(origin("http://127.0.0.1:8081"), tcp("127.0.0.1", 8081));
        for text in [
            "https://a",
            "ftp://a",
            "a:80",
            "http://",
            "http://a:0",
            "http://a:x",
            "http://a:",
            "http://a/b",
            "http://u@a",
            "http://[::1",
            "http://[::1]x",
            "http://[fe80::1%1]:80",
            "http://127.1",
            "http://0x7f.1",
            "http://017700000001",
            "http://a..b",
            "http://a b",
            "unix:",
            "http://a:99999",
            "http://é",
        ] {
            assert!(origin(text).is_err(), "{text}");
        }
    }

    #[test]
    fn patterns_and_prefixes() {
        assert_eq!(host_pattern("*.Example.org").as_deref(), Ok("*.example.org"));
        assert_eq!(host_pattern("*.example.org.").as_deref(), Ok("*.example.org"));
        assert_eq!(host_pattern("Example.org.").as_deref(), Ok("example.org"));
        assert_eq!(host_pattern("[::1]").as_deref(), Ok("::1"));
        assert_eq!(host_pattern("::1").as_deref(), Ok("::1"));
        assert!(host_pattern("*").is_err());
        assert!(host_pattern("a:80").is_err());
        assert!(path_prefix("/a").is_ok());
        assert!(path_prefix("a").is_err());
        assert!(path_prefix("/a?b").is_err());
        for text in ["/a/../b", "//a", "/a/.", "/%61", "/a%2f", "/a%"] {
            assert_eq!(path_prefix(text), Err(NOT_NORMALISED), "{text}");
        }
        assert_eq!(suggestion("/a%2fb", NOT_NORMALISED).as_deref(), Some("/a%2Fb"));
        assert_eq!(suggestion("/%40me", NOT_NORMALISED).as_deref(), Some("/@me"));
        assert!(path_prefix("/a%2F").is_ok());
    }

    #[test]
    fn fields_that_may_be_passed_are_those_that_are_removed() {
        for text in ["X-Real-IP", "x-forwarded-scheme", "X-Original-URL", "CF-Connecting-IP"] {
            assert_eq!(pass_field(text), Ok(text.to_ascii_lowercase().into_bytes().into()));
        }
        for text in ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "Proxy", "Cookie", ""] {
            assert!(pass_field(text).is_err(), "{text}");
        }
    }

    #[test]
    fn domains_are_names_in_one_form() {
        assert_eq!(domain("Example.ORG.").as_deref(), Ok("example.org"));
        assert_eq!(domain("*.Example.org").as_deref(), Ok("*.example.org"));
        assert_eq!(domain("xn--bcher-kva.example").as_deref(), Ok("xn--bcher-kva.example"));
        for text in [
            "",
            "*",
            "*.",
            ".a",
            "a..b",
            "*.*.a",
            "b\u{fc}cher.example",
            "10.0.0.1",
            "[::1]",
            "a:80",
            "1.2",
        ] {
            assert!(domain(text).is_err(), "{text}");
        }
        assert_eq!(realm("Our proxy (staff)").as_deref(), Ok("Our proxy (staff)"));
        for text in ["", "a\"b", "a\\b", "a\nb", "\u{e9}", &"x".repeat(101)] {
            assert!(realm(text).is_err(), "{text}");
        }
    }
}
