//! Values in the form that users write: sizes, times, addresses, blocks, origins. Each parser takes
//! the text of one value and returns the value or the problem of the text. No parser looks anything
//! up: names of hosts and users are resolved later, by the program.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_http1::path::route_form;
use millrace_http1::{FieldName, REMOVED_UNLESS_TRUSTED};

use super::{Cidr, Congestion, ListenAddress, Origin, ProcessUser, TLS_PREFIX};

/// The problem of a text, to follow the text in a message: "is not a number".
pub(super) type Problem = &'static str;

// The problems for which [`suggestions`] returns values.
const PORT_WITHOUT_ADDRESS: Problem = "is a port without an address";
const LONG_UNIT: Problem = "has a unit of more than one character";
const NOT_NORMALISED: Problem = "is not in normal form";
pub(super) const TIME_WITHOUT_KEYWORD: Problem = "has no default or override before its time";
pub(super) const KEYWORD_WITHOUT_TIME: Problem = "has no time";

/// The longest path in the address of a Unix socket, which ends with a zero byte (unix(7)).
const UNIX_PATH_BYTES_MAX: usize = 107;
/// RFC 1035 section 2.3.4: the longest host name, in bytes.
const NAME_BYTES_MAX: usize = 253;
/// RFC 1035 section 2.3.4: the longest label of a host name, in bytes.
const LABEL_BYTES_MAX: usize = 63;
/// The longest name of a congestion control algorithm: TCP_CA_NAME_MAX of linux/tcp.h, which counts
/// the zero byte at the end, minus 1.
const CONGESTION_BYTES_MAX: usize = 15;

/// Parses a whole number: decimal digits without a sign or separators.
pub(super) fn parse_number(text: &str) -> Result<u64, Problem> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("is not a whole number");
    }
    text.parse().map_err(|_| "is too large")
}

/// Checks a number against its bounds.
pub(super) fn check_bounds(number: u64, least: u64, most: u64) -> Result<u64, Problem> {
    match number {
        _ if number < least => Err("is too small"),
        _ if number > most => Err("is too large"),
        _ => Ok(number),
    }
}

/// The units that may follow a number, each with its factor, in descending order.
pub(super) type Units = &'static [(&'static str, u64)];

const SIZES: Units = &[("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10), ("", 1)];
const TIMES: Units = &[("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1), ("", 1)];

/// Parses a whole number followed by one of `units`.
///
/// # Errors
/// Returns `problem` for any other text.
pub(super) fn parse_scaled(text: &str, units: Units, problem: Problem) -> Result<u64, Problem> {
    let is_of_unit = |character: char| !character.is_ascii_digit();
    let (digits, unit) = text.split_at(text.find(is_of_unit).unwrap_or(text.len()));
    let (_, factor) = units.iter().find(|(known, _)| *known == unit).ok_or(problem)?;
    if digits.is_empty() {
        return Err(problem);
    }
    parse_number(digits)?.checked_mul(*factor).ok_or("is too large")
}

/// Writes a number with the largest unit that divides it, in the form that [`parse_scaled`] parses.
pub(super) fn write_scaled(number: u64, units: Units) -> String {
    let divides = |factor| factor == 1 || (number > 0 && number.is_multiple_of(factor));
    let found = units.iter().find(|(_, factor)| divides(*factor));
    let (unit, factor) = found.expect("one of the factors is 1");
    format!("{}{unit}", number / factor)
}

/// Parses a size in bytes: a whole number, optionally with K, M, G or T for powers of 1024.
pub(super) fn parse_size(text: &str) -> Result<u64, Problem> {
    const NO_SIZE: Problem = "is not a size";
    parse_scaled(&text.to_ascii_uppercase(), SIZES, NO_SIZE).map_err(|problem| match problem {
        NO_SIZE if with_short_unit(text).is_some() => LONG_UNIT,
        _ => problem,
    })
}

/// Shortens the unit of a size such as 1GB or 512MiB to the one that [`parse_size`] parses: 1G,
/// 512M. Returns `None` for any other text.
fn with_short_unit(text: &str) -> Option<String> {
    let shortened = ["iB", "B"].iter().find_map(|end| strip_suffix_any_case(text, end))?;
    let has_unit = shortened.ends_with(|last: char| last.is_ascii_alphabetic());
    (has_unit && parse_size(shortened).is_ok()).then(|| shortened.to_ascii_uppercase())
}

/// Returns the values that the author of a text with this problem may have meant.
pub(super) fn suggestions(text: &str, problem: Problem) -> Vec<String> {
    match problem {
        PORT_WITHOUT_ADDRESS => vec![format!("127.0.0.1:{text}")],
        LONG_UNIT => with_short_unit(text).into_iter().collect(),
        NOT_NORMALISED => String::from_utf8(route_form(text.as_bytes())).into_iter().collect(),
        TIME_WITHOUT_KEYWORD => {
            let (statuses, time) = text.split_at(text.rfind(' ').map_or(0, |space| space + 1));
            let unit = if time.ends_with(|last: char| last.is_ascii_digit()) { "s" } else { "" };
            ["default", "override"].map(|word| format!("{statuses}{word} {time}{unit}")).into()
        }
        KEYWORD_WITHOUT_TIME => vec![format!("{} 60s", text.trim_end())],
        _ => Vec::new(),
    }
}

/// Parses a time as milliseconds: a whole number, optionally with ms, s, m or h.
pub(super) fn parse_milliseconds(text: &str) -> Result<u64, Problem> {
    parse_scaled(text, TIMES, "is not a time")
}

/// Parses `on` or `off`, the keywords that replace the Booleans of a file; see
/// [`keyword_of_bool`](super::options::ValueType::keyword_of_bool).
pub(super) fn parse_switch(text: &str) -> Result<bool, Problem> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("is neither on nor off"),
    }
}

/// Parses the name of a service, which cache keys and labels of metrics contain unchanged.
pub(super) fn parse_service_name(text: &str) -> Result<String, Problem> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    match text.len() {
        0 => Err("is empty"),
        65.. => Err("is too long"),
        _ if text.bytes().all(is_plain) => Ok(text.to_owned()),
        _ => Err("has an invalid character"),
    }
}

/// Parses an address to listen on: `ADDRESS:PORT`, `[ADDRESS]:PORT`, `localhost:PORT`, `unix:PATH`.
pub(super) fn parse_listen_address(text: &str) -> Result<ListenAddress, Problem> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(ListenAddress::Unix(parse_unix_path(path)?));
    }
    Ok(ListenAddress::Tcp(parse_socket_address(text)?))
}

/// Parses the address of a listener, which begins with `tls://` if the listener uses TLS.
pub(super) fn parse_listener(text: &str) -> Result<(ListenAddress, bool), Problem> {
    match text.strip_prefix(TLS_PREFIX) {
        Some(address) => Ok((ListenAddress::Tcp(parse_socket_address(address)?), true)),
        None => Ok((parse_listen_address(text)?, false)),
    }
}

/// Parses an address and a port. The only name is `localhost`, which is 127.0.0.1 (RFC 6761 section
/// 6.3): another name could have several addresses, or none while the machine starts.
pub(super) fn parse_socket_address(text: &str) -> Result<SocketAddr, Problem> {
    if let Some(port) = text.strip_prefix("localhost:") {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, parse_port_or_zero(port)?)));
    }
    if text.starts_with('[') && text.ends_with(']') {
        return Err("has no port");
    }
    let Some((_, port)) = text.rsplit_once(':') else {
        return Err(if parse_number(text).is_ok() { PORT_WITHOUT_ADDRESS } else { "has no port" });
    };
    parse_port_or_zero(port)?;
    text.parse().map_err(|_| "is not an address with a port")
}

fn parse_port_or_zero(text: &str) -> Result<u16, Problem> {
    if text.is_empty() {
        return Err("has no port");
    }
    let port = parse_number(text).map_err(|_| "has a port that is not a number")?;
    u16::try_from(port).map_err(|_| "has a port above 65535")
}

/// Parses an address block, `ADDRESS/BITS`, or one address.
pub(super) fn parse_cidr(text: &str) -> Result<Cidr, Problem> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let network: IpAddr = address.parse().map_err(|_| "is not an address or block")?;
    if network.to_canonical() != network {
        return Err("is an IPv4-mapped address, which has to be written as an IPv4 address");
    }
    let bits: u8 = if network.is_ipv4() { 32 } else { 128 };
    let prefix = match prefix {
        None => bits,
        Some(prefix) => u8::try_from(parse_number(prefix)?).unwrap_or(u8::MAX),
    };
    if prefix > bits {
        return Err("has a prefix longer than its address");
    }
    let zeros = match network {
        IpAddr::V4(address) => u32::from(address).trailing_zeros(),
        IpAddr::V6(address) => u128::from(address).trailing_zeros(),
    };
    // In a block such as 10.1.2.3/8, either the address or the prefix is a mistake.
    if zeros < u32::from(bits - prefix) {
        return Err("has bits set below its prefix");
    }
    Ok(Cidr { network, prefix })
}

/// Parses a port from 1 on, or `all`, which becomes 0.
pub(super) fn parse_port(text: &str) -> Result<u16, Problem> {
    if text == "all" {
        return Ok(0);
    }
    match parse_number(text).map(u16::try_from)? {
        Ok(port) if port > 0 => Ok(port),
        _ => Err("is not a port"),
    }
}

/// Parses an origin server: `http://HOST[:PORT]` or `https://HOST[:PORT]` without a path, or
/// `unix:PATH`.
pub(super) fn parse_origin(text: &str) -> Result<Origin, Problem> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Origin::Unix(Arc::from(parse_unix_path(path)?)));
    }
    let after = |scheme: &str| {
        let begin = text.get(..scheme.len())?;
        begin.eq_ignore_ascii_case(scheme).then(|| &text[scheme.len()..])
    };
    let (authority, tls) = match (after("http://"), after("https://")) {
        (Some(authority), _) => (authority, false),
        (None, Some(authority)) => (authority, true),
        (None, None) => return Err("does not begin with http://, https:// or unix:"),
    };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    if authority.contains(['/', '?', '#']) {
        return Err("has a path, but an origin has only a host and a port");
    }
    if authority.contains('@') {
        return Err("has a user name, but an origin has only a host and a port");
    }
    let (host, port) = split_authority(authority)?;
    let port = match port {
        None => default_port(tls),
        Some(port) => match parse_port_or_zero(port)? {
            0 => return Err("has port 0"),
            port => port,
        },
    };
    Ok(Origin::Tcp { host: self::parse_host(host)?, port, tls })
}

/// Parses the address of a FastCGI server.
pub(super) fn parse_fastcgi(text: &str) -> Result<Origin, Problem> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Origin::Unix(Arc::from(parse_unix_path(path)?)));
    }
    if text.contains('/') {
        return Err("has a slash, but an address has only a host and a port");
    }
    let (host, port) = split_authority(text)?;
    match parse_port_or_zero(port.ok_or("has no port")?)? {
        0 => Err("has port 0"),
        port => Ok(Origin::Tcp { host: self::parse_host(host)?, port, tls: false }),
    }
}

/// Parses the address of a program.
pub(super) fn parse_program(text: &str) -> Result<Origin, Problem> {
    let path = text.strip_prefix("unix:").ok_or("is not the path of a Unix socket")?;
    Ok(Origin::Unix(Arc::from(parse_unix_path(path)?)))
}

/// Returns the default port of http or https.
fn default_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

/// Splits an authority into its host, in brackets if it is an IPv6 address, and its port.
fn split_authority(authority: &str) -> Result<(&str, Option<&str>), Problem> {
    if authority.starts_with('[') {
        let end = authority.find(']').ok_or("has a bracket that is not closed")?;
        return match authority[end + 1..].strip_prefix(':') {
            Some(port) => Ok((&authority[..=end], Some(port))),
            None if end + 1 == authority.len() => Ok((authority, None)),
            None => Err("has something other than a port after its brackets"),
        };
    }
    Ok(match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    })
}

/// Parses a host: a name, an IPv4 address, or an IPv6 address in brackets. Names become lower case,
/// and brackets are removed.
fn parse_host(text: &str) -> Result<String, Problem> {
    if let Some(literal) = text.strip_prefix('[') {
        let literal = literal.strip_suffix(']').unwrap_or(literal);
        let address: std::net::Ipv6Addr =
            literal.parse().map_err(|_| "has no IPv6 address in its brackets")?;
        return Ok(address.to_string());
    }
    check_host_name(text)?;
    Ok(text.to_ascii_lowercase())
}

/// Parses a host name as [`parse_host`] does, but no address.
pub(super) fn parse_host_name(text: &str) -> Result<String, Problem> {
    match text.parse::<IpAddr>() {
        Ok(_) => Err("is an address"),
        Err(_) => check_host_name(text).map(|()| text.to_ascii_lowercase()),
    }
}

/// Checks a host name or an IPv4 address. A name whose last label is numeric is refused unless it
/// is an address of four decimal parts, because resolvers disagree about 127.1 and 0x7f.1.
fn check_host_name(text: &str) -> Result<(), Problem> {
    let name = text.strip_suffix('.').unwrap_or(text);
    if name.is_empty() {
        return Err("has no host");
    }
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let label =
        |label: &str| (1..=LABEL_BYTES_MAX).contains(&label.len()) && label.bytes().all(is_valid);
    if name.len() > NAME_BYTES_MAX || !name.split('.').all(label) {
        return Err("has an invalid host name");
    }
    let last = name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
    let numeric = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    if numeric && text.parse::<Ipv4Addr>().is_err() {
        return Err("has a host that is neither a host name nor an IPv4 address");
    }
    Ok(())
}

/// Parses the host of a route: a host as in [`parse_host`], or `*.` and a name for all names below
/// it. Unlike there, an IPv6 address needs no brackets. A dot at the end is removed, as it is from
/// the host of a request.
pub(super) fn parse_host_pattern(text: &str) -> Result<String, Problem> {
    let pattern = match text.strip_prefix("*.") {
        Some(parent) => check_host_name(parent).map(|()| text.to_ascii_lowercase())?,
        None => match text.parse::<std::net::Ipv6Addr>() {
            Ok(address) => address.to_string(),
            Err(_) => parse_host(text)?,
        },
    };
    Ok(pattern.strip_suffix('.').map(str::to_owned).unwrap_or(pattern))
}

/// Parses a host name, or `*.` and a name for all names below it. Returns it in lower case without
/// a dot at the end. Addresses are refused: other options list them.
pub(super) fn parse_domain(text: &str) -> Result<String, Problem> {
    let (prefix, domain) = match text.strip_prefix("*.") {
        Some(parent) => ("*.", parent),
        None => ("", text),
    };
    if !domain.is_ascii() {
        return Err(
            "is not ASCII; an internationalised name has to be written as A-labels (xn--...)",
        );
    }
    check_host_name(domain)?;
    if domain.parse::<Ipv4Addr>().is_ok() {
        return Err("is an address, which only allow-target and deny-target accept");
    }
    let domain = domain.strip_suffix('.').unwrap_or(domain);
    Ok(format!("{prefix}{}", domain.to_ascii_lowercase()))
}

/// Parses an authentication realm, which becomes a quoted string in a header field.
pub(super) fn parse_realm(text: &str) -> Result<String, Problem> {
    let is_valid = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
    match text.len() {
        0 => Err("is empty"),
        1..=100 if text.bytes().all(is_valid) => Ok(text.to_owned()),
        1..=100 => Err("has a character that a quoted string cannot have"),
        _ => Err("is too long"),
    }
}

/// Parses a prefix of a path. It begins with a slash, has only printable ASCII characters and
/// neither query nor fragment, and is in the normal form of the paths that it is compared with.
pub(super) fn parse_path_prefix(text: &str) -> Result<String, Problem> {
    if !text.starts_with('/') {
        return Err("does not begin with a slash");
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'?' && byte != b'#') {
        return Err("has a character that a path cannot have");
    }
    if route_form(text.as_bytes()) != text.as_bytes() {
        return Err(NOT_NORMALISED);
    }
    Ok(text.to_owned())
}

/// Parses the name of a field that a reverse proxy removes unless a trusted peer sent it. Returns
/// it in lower case.
pub(super) fn parse_pass_field(text: &str) -> Result<Box<[u8]>, Problem> {
    if !REMOVED_UNLESS_TRUSTED.contains(FieldName::from_bytes(text.as_bytes())) {
        return Err("is not a field that is removed by default");
    }
    Ok(text.to_ascii_lowercase().into_bytes().into())
}

/// Parses the target of a health check, a path with an optional query, or `off`.
pub(super) fn parse_check_path(text: &str) -> Result<Option<String>, Problem> {
    if text == "off" {
        return Ok(None);
    }
    if !text.starts_with('/') {
        return Err("does not begin with a slash");
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Err("has a character that a request target cannot have");
    }
    Ok(Some(text.to_owned()))
}

/// Parses `STATUS` or `FIRST-LAST`.
pub(super) fn parse_statuses(text: &str) -> Result<(u16, u16), Problem> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let status = |text: &str| match parse_number(text) {
        Ok(status @ 200..=599) => Ok(status as u16),
        _ => Err("is not a status or a range of statuses"),
    };
    let (first, last) = (status(first)?, status(last)?);
    if first > last { Err("is a range whose end is below its start") } else { Ok((first, last)) }
}

/// Parses the path of a file. Control characters are refused, because they would break messages and
/// logs.
pub(super) fn parse_file_path(text: &str) -> Result<PathBuf, Problem> {
    if text.is_empty() {
        return Err("is empty");
    }
    if text.chars().any(char::is_control) {
        return Err("has control characters");
    }
    Ok(PathBuf::from(text))
}

/// Parses `system`, `auto`, or the name of an algorithm. The program checks later whether the
/// kernel has it.
pub(super) fn parse_congestion(text: &str) -> Result<Congestion, Problem> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    match text {
        "system" => Ok(Congestion::System),
        "auto" => Ok(Congestion::Auto),
        _ if text.is_empty() || !text.bytes().all(is_valid) => Err("is not a name"),
        _ if text.len() > CONGESTION_BYTES_MAX => Err("is too long"),
        _ => Ok(Congestion::Named(text.into())),
    }
}

/// Parses `auto`, or a user and optionally a group, by name or number. The program checks later
/// whether they exist.
pub(super) fn parse_user(text: &str) -> Result<ProcessUser, Problem> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let name = |name: &str| !name.is_empty() && name.bytes().all(is_valid);
    let (user, group) = text.split_once(':').map_or((text, None), |(u, g)| (u, Some(g)));
    match text {
        "auto" => Ok(ProcessUser::Auto),
        _ if name(user) && group.is_none_or(name) => {
            Ok(ProcessUser::Named { user: user.to_owned(), group: group.map(str::to_owned) })
        }
        _ => Err("is not the name of a user"),
    }
}

fn parse_unix_path(text: &str) -> Result<PathBuf, Problem> {
    if text.is_empty() {
        return Err("has no path");
    }
    if text.len() > UNIX_PATH_BYTES_MAX {
        return Err("has a path of more than 107 bytes, which a Unix socket cannot have");
    }
    parse_file_path(text)
}

fn strip_suffix_any_case<'a>(text: &'a str, suffix: &str) -> Option<&'a str> {
    text.strip_suffix(suffix).or_else(|| text.strip_suffix(suffix.to_ascii_lowercase().as_str()))
}

/// Writes a size in the form that [`parse_size`] parses.
pub(super) fn write_size(bytes: u64) -> String {
    write_scaled(bytes, SIZES)
}

/// Writes milliseconds in the form that [`parse_milliseconds`] parses.
pub(super) fn write_milliseconds(milliseconds: u64) -> String {
    write_scaled(milliseconds, TIMES)
}

/// Writes an origin in the form of the option `origins`.
pub fn write_origin(origin: &Origin) -> String {
    match origin {
        Origin::Tcp { host, port, tls } => {
            let scheme = if *tls { "https" } else { "http" };
            match host.contains(':') {
                true => format!("{scheme}://[{host}]:{port}"),
                false => format!("{scheme}://{host}:{port}"),
            }
        }
        Origin::Unix(path) => format!("unix:{}", Path::display(path)),
    }
}

/// Writes the address of a FastCGI server in the form that [`parse_fastcgi`] parses.
pub(super) fn write_fastcgi(origin: &Origin) -> String {
    let text = write_origin(origin);
    text.strip_prefix("http://").map(str::to_owned).unwrap_or(text)
}

/// Writes a range of statuses in the form that [`parse_statuses`] parses.
pub(super) fn write_statuses((first, last): (u16, u16)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Writes a port in the form that [`parse_port`] parses.
pub(super) fn write_port(port: u16) -> String {
    if port == 0 { "all".to_owned() } else { port.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_paths_and_statuses_are_parsed() {
        assert_eq!(parse_check_path("/health?full=1"), Ok(Some("/health?full=1".to_owned())));
        assert_eq!(parse_check_path("off"), Ok(None));
        assert!(parse_check_path("false").is_err());
        assert!(parse_check_path("health").is_err() && parse_check_path("/a b").is_err());
        assert!(parse_check_path("/a\r\nX: y").is_err() && parse_check_path("/a#b").is_err());
        assert_eq!(
            (parse_statuses("204"), parse_statuses("200-299")),
            (Ok((204, 204)), Ok((200, 299)))
        );
        for text in ["", "-", "200-", "-299", "100", "600", "299-200", "2xx", "200-250-299"] {
            assert!(parse_statuses(text).is_err(), "{text}");
        }
        assert_eq!([(204, 204), (200, 399)].map(write_statuses), ["204", "200-399"]);
    }

    #[test]
    fn sizes_and_times_take_suffixes() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("256M"), Ok(256 << 20));
        assert_eq!(parse_size("3g"), Ok(3 << 30));
        for text in ["", "M", "-1", "1.5G", "1XB", "1B", "B", "iB", " 1", "+1"] {
            assert_eq!(parse_size(text), Err("is not a size"), "{text}");
        }
        for (text, short) in [("1GB", "1G"), ("512MiB", "512M"), ("3kb", "3K")] {
            assert_eq!(parse_size(text), Err(LONG_UNIT), "{text}");
            assert_eq!(suggestions(text, LONG_UNIT), [short]);
        }
        for (text, meaning) in [
            ("60", ["default 60s", "override 60s"]),
            ("404 1m", ["404 default 1m", "404 override 1m"]),
        ] {
            assert_eq!(suggestions(text, TIME_WITHOUT_KEYWORD), meaning);
        }
        assert_eq!(parse_size("18446744073709551615K"), Err("is too large"));
        assert_eq!(parse_milliseconds("500"), Ok(500));
        assert_eq!(parse_milliseconds("500ms"), Ok(500));
        assert_eq!(parse_milliseconds("30s"), Ok(30_000));
        assert_eq!(parse_milliseconds("2m"), Ok(120_000));
        assert_eq!(parse_milliseconds("1h"), Ok(3_600_000));
        assert_eq!(parse_milliseconds("1 s"), Err("is not a time"));
    }

    #[test]
    fn a_written_value_is_parsed_as_the_same_value() {
        for bytes in [0, 1, 1023, 1024, 256 << 20, (1 << 40) + 1, u64::MAX] {
            assert_eq!(parse_size(&write_size(bytes)), Ok(bytes));
            assert_eq!(parse_milliseconds(&write_milliseconds(bytes)), Ok(bytes));
        }
        for text in ["http://[::1]:80", "http://a.b:81", "http://1.2.3.4:65535", "unix:/a,b"] {
            assert_eq!(write_origin(&parse_origin(text).unwrap()), text);
        }
    }

    #[test]
    fn listen_addresses() {
        let tcp = |text: &str| Ok(ListenAddress::Tcp(text.parse().unwrap()));
        assert_eq!(parse_listen_address("127.0.0.1:0"), tcp("127.0.0.1:0"));
        assert_eq!(parse_listen_address("[::1]:8080"), tcp("[::1]:8080"));
        assert_eq!(parse_listen_address("localhost:80"), tcp("127.0.0.1:80"));
        assert_eq!(parse_listen_address("unix:/run/a"), Ok(ListenAddress::Unix("/run/a".into())));
        assert_eq!(parse_listen_address("127.0.0.1"), Err("has no port"));
        assert_eq!(parse_listen_address("127.0.0.1:"), Err("has no port"));
        assert_eq!(parse_listen_address("3128"), Err(PORT_WITHOUT_ADDRESS));
        assert_eq!(parse_listen_address("127.0.0.1:80a"), Err("has a port that is not a number"));
        assert_eq!(parse_listen_address("127.0.0.1:65536"), Err("has a port above 65535"));
        assert_eq!(parse_listen_address("example.org:80"), Err("is not an address with a port"));
        assert_eq!(parse_listen_address("unix:"), Err("has no path"));
        assert!(parse_listen_address(&format!("unix:/{}", "a".repeat(107))).is_err());
        assert!(parse_listen_address("unix:/a\0b").is_err());
    }

    #[test]
    fn congestion_is_one_of_two_keywords_or_a_name() {
        assert_eq!(parse_congestion("system"), Ok(Congestion::System));
        assert_eq!(parse_congestion("auto"), Ok(Congestion::Auto));
        assert_eq!(parse_congestion("bbr").unwrap().name(), Some("bbr"));
        assert_eq!(parse_congestion("tcp_dctcp-2").unwrap().to_string(), "tcp_dctcp-2");
        for text in ["", "a b", "reno\0", "cubic,reno", "abcdefghijklmnop"] {
            assert!(parse_congestion(text).is_err(), "{text}");
        }
    }

    #[test]
    fn users_have_an_optional_group() {
        let named = |user: &str, group: Option<&str>| {
            Ok(ProcessUser::Named { user: user.to_owned(), group: group.map(str::to_owned) })
        };
        assert_eq!(parse_user("auto"), Ok(ProcessUser::Auto));
        assert_eq!(parse_user("www-data"), named("www-data", None));
        assert_eq!(parse_user("33:web.1"), named("33", Some("web.1")));
        for text in ["", ":", "a:", ":a", "a b", "a:b:c", "root\n", "é"] {
            assert!(parse_user(text).is_err(), "{text}");
        }
    }

    #[test]
    fn blocks_are_exact() {
        let block = |text: &str, prefix| Ok(Cidr { network: text.parse().unwrap(), prefix });
        assert_eq!(parse_cidr("10.0.0.0/8"), block("10.0.0.0", 8));
        assert_eq!(parse_cidr("10.1.2.3"), block("10.1.2.3", 32));
        assert_eq!(parse_cidr("0.0.0.0/0"), block("0.0.0.0", 0));
        assert_eq!(parse_cidr("::/0"), block("::", 0));
        assert_eq!(parse_cidr("fe80::/10"), block("fe80::", 10));
        assert!(parse_cidr("10.0.0.1/8").is_err());
        assert!(parse_cidr("10.0.0.0/33").is_err());
        assert!(parse_cidr("10.0.0.0/400").is_err());
        assert!(parse_cidr("::ffff:10.0.0.0/104").is_err());
        assert!(parse_cidr("10.0.0.0/").is_err());
    }

    #[test]
    fn origins() {
        let tcp = |host: &str, port| Ok(Origin::Tcp { host: host.into(), port, tls: false });
        assert_eq!(parse_origin("http://Web.Example:8081/"), tcp("web.example", 8081));
        assert_eq!(parse_origin("HTTP://[::1]"), tcp("::1", 80));
        assert_eq!(parse_origin("http://127.0.0.1:8081"), tcp("127.0.0.1", 8081));
        let tls = |host: &str, port| Ok(Origin::Tcp { host: host.into(), port, tls: true });
        assert_eq!(parse_origin("https://A"), tls("a", 443));
        assert_eq!(parse_origin("https://[::1]:80"), tls("::1", 80));
        for text in [
            "https://",
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
            assert!(parse_origin(text).is_err(), "{text}");
        }
    }

    #[test]
    fn patterns_and_prefixes() {
        assert_eq!(parse_host_pattern("*.Example.org").as_deref(), Ok("*.example.org"));
        assert_eq!(parse_host_pattern("*.example.org.").as_deref(), Ok("*.example.org"));
        assert_eq!(parse_host_pattern("Example.org.").as_deref(), Ok("example.org"));
        assert_eq!(parse_host_pattern("[::1]").as_deref(), Ok("::1"));
        assert_eq!(parse_host_pattern("::1").as_deref(), Ok("::1"));
        assert!(parse_host_pattern("*").is_err());
        assert!(parse_host_pattern("a:80").is_err());
        assert!(parse_path_prefix("/a").is_ok());
        assert!(parse_path_prefix("a").is_err());
        assert!(parse_path_prefix("/a?b").is_err());
        for text in ["/a/../b", "//a", "/a/.", "/%61", "/a%2f", "/a%"] {
            assert_eq!(parse_path_prefix(text), Err(NOT_NORMALISED), "{text}");
        }
        assert_eq!(suggestions("/a%2fb", NOT_NORMALISED), ["/a%2Fb"]);
        assert_eq!(suggestions("/%40me", NOT_NORMALISED), ["/@me"]);
        assert!(parse_path_prefix("/a%2F").is_ok());
    }

    #[test]
    fn only_fields_that_are_removed_can_be_passed() {
        for text in ["X-Real-IP", "x-forwarded-scheme", "X-Original-URL", "CF-Connecting-IP"] {
            assert_eq!(parse_pass_field(text), Ok(text.to_ascii_lowercase().into_bytes().into()));
        }
        for text in ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "Proxy", "Cookie", ""] {
            assert!(parse_pass_field(text).is_err(), "{text}");
        }
    }

    #[test]
    fn domains_are_normalised_names() {
        assert_eq!(parse_domain("Example.ORG.").as_deref(), Ok("example.org"));
        assert_eq!(parse_domain("*.Example.org").as_deref(), Ok("*.example.org"));
        assert_eq!(parse_domain("xn--bcher-kva.example").as_deref(), Ok("xn--bcher-kva.example"));
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
            assert!(parse_domain(text).is_err(), "{text}");
        }
        assert_eq!(parse_realm("Our proxy (staff)").as_deref(), Ok("Our proxy (staff)"));
        for text in ["", "a\"b", "a\\b", "a\nb", "\u{e9}", &"x".repeat(101)] {
            assert!(parse_realm(text).is_err(), "{text}");
        }
    }
}
