//! Values of the cache options in the form that users write; see [`value`](crate::value).

use millrace_http_cache::Ttl;
use millrace_http1::FieldName;

use super::Disk;
use crate::value::{
    KEYWORD_WITHOUT_TIME, Problem, TIME_WITHOUT_KEYWORD, Units, parse_file_path, parse_number,
    parse_scaled, parse_size, parse_statuses, write_scaled, write_statuses,
};

/// The longest time of an option in seconds: ten years, far below the range of delta-seconds in
/// HTTP.
const SECONDS_MAX: u32 = 3650 * 86_400;
const UNITS: Units = &[("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];

/// The memory of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MemoryShare {
    /// In bytes.
    Bytes(u64),
    /// In percent of all memory.
    Percent(u64),
}

/// A part of a request that is in the cache key or makes the request bypass the cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FieldOrCookie {
    /// The name of a header field, in lower case.
    Field(Box<[u8]>),
    /// The name of a cookie, or a prefix of names followed by `*`.
    Cookie(Box<[u8]>),
}

/// Parses a time as seconds: a whole number with s, m, h or d; 0 needs no unit. Any other number
/// without a unit is refused, because its author may mean milliseconds, as in limits, or seconds,
/// as in HTTP.
pub(crate) fn parse_seconds(text: &str) -> Result<u32, Problem> {
    match text {
        "0" => return Ok(0),
        _ if parse_number(text).is_ok() => return Err("has no unit"),
        _ => {}
    }
    match u32::try_from(parse_scaled(text, UNITS, "is not a time")?) {
        Ok(seconds @ ..=SECONDS_MAX) => Ok(seconds),
        _ => Err("is too large"),
    }
}

/// Writes seconds in the form that [`parse_seconds`] parses.
pub(crate) fn write_seconds(seconds: u32) -> String {
    write_scaled(seconds.into(), UNITS)
}

/// Parses `origin`, `default TIME` or `override TIME`. A status or a range before it, separated by
/// a blank, restricts the rule to these statuses.
pub(super) fn parse_lifetime(text: &str) -> Result<(Option<(u16, u16)>, Ttl), Problem> {
    match text.split_once(' ') {
        Some((first, rest)) if text.starts_with(|first: char| first.is_ascii_digit()) => {
            Ok((Some(parse_statuses(first)?), parse_ttl(rest)?))
        }
        _ => parse_ttl(text).map(|ttl| (None, ttl)),
    }
}

fn parse_ttl(text: &str) -> Result<Ttl, Problem> {
    if text == "origin" {
        return Ok(Ttl::Origin);
    }
    match text.split_once(' ') {
        Some(("default", time)) => parse_seconds(time).map(Ttl::Default),
        Some(("override", time)) => parse_seconds(time).map(Ttl::Override),
        None if matches!(text, "default" | "override") => Err(KEYWORD_WITHOUT_TIME),
        _ if parse_seconds(text).is_ok() || parse_number(text).is_ok() => Err(TIME_WITHOUT_KEYWORD),
        _ => Err("does not begin with origin, default or override"),
    }
}

/// Writes a lifetime in the form that [`parse_lifetime`] parses.
pub(super) fn write_lifetime(statuses: Option<(u16, u16)>, ttl: Ttl) -> String {
    let ttl = match ttl {
        Ttl::Origin => "origin".to_owned(),
        Ttl::Default(seconds) => format!("default {}", write_seconds(seconds)),
        Ttl::Override(seconds) => format!("override {}", write_seconds(seconds)),
    };
    match statuses {
        Some(statuses) => format!("{} {ttl}", write_statuses(statuses)),
        None => ttl,
    }
}

/// Parses a size, or a percentage with `%`.
pub(super) fn parse_share(text: &str) -> Result<MemoryShare, Problem> {
    match text.strip_suffix('%') {
        None => parse_size(text).map(MemoryShare::Bytes),
        Some(percent) => {
            parse_number(percent).map(MemoryShare::Percent).map_err(|_| "is not a percentage")
        }
    }
}

/// Parses `DIR:SIZE`. The path of the directory may have colons. It has to be absolute: a relative
/// one would depend on the directory in which the process is started.
pub(super) fn parse_disk(text: &str) -> Result<Disk, Problem> {
    let (folder, bytes) = text.rsplit_once(':').ok_or("has no :SIZE after its directory")?;
    if !folder.starts_with('/') {
        return Err("has a path that does not begin with a slash");
    }
    if folder.split('/').any(|part| part == "..") {
        return Err("has a path with ..");
    }
    let bytes = parse_size(bytes).map_err(|_| "has no :SIZE after its directory")?;
    // Removes repeated slashes and a slash at the end, so that two paths can be compared.
    let folder = parse_file_path(folder)?.components().collect();
    Ok(Disk { folder, bytes })
}

/// Parses the name of a header field into lower case, or `off`.
pub(super) fn parse_field_or_off(text: &str) -> Result<Option<Box<[u8]>>, Problem> {
    match text {
        "off" => Ok(None),
        "true" | "false" => Err("is neither the name of a field nor off"),
        _ => parse_field(text).map(Some),
    }
}

fn parse_field(text: &str) -> Result<Box<[u8]>, Problem> {
    // RFC 9110 section 5.6.2.
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_of_token) {
        return Err("is not the name of a field");
    }
    if FieldName::from_bytes(text.as_bytes()) == FieldName::Disguised {
        return Err("is a known field written with _, which is not passed to origins");
    }
    Ok(text.to_ascii_lowercase().into_bytes().into())
}

/// Parses `field:NAME` or `cookie:NAME`.
pub(super) fn parse_field_or_cookie(text: &str) -> Result<FieldOrCookie, Problem> {
    match text.split_once(':') {
        Some(("field", name)) => parse_field(name).map(FieldOrCookie::Field),
        Some(("cookie", name)) => match parse_pattern(name, b"=;,\"\\") {
            Some(name) => Ok(FieldOrCookie::Cookie(name)),
            None => Err("has an invalid cookie name"),
        },
        _ => Err("does not begin with field: or cookie:"),
    }
}

/// Writes a field or cookie in the form that [`parse_field_or_cookie`] parses.
pub(super) fn write_field_or_cookie(kind: &str, name: &[u8]) -> String {
    format!("{kind}:{}", String::from_utf8_lossy(name))
}

/// Parses the percent-encoded name of a query parameter, a prefix of names followed by `*`, or `*`.
pub(super) fn parse_parameter(text: &str) -> Result<Box<[u8]>, Problem> {
    parse_pattern(text, b"=&;#").ok_or("is not the name of a query parameter")
}

/// Parses printable ASCII characters, except `excluded`, with an optional `*` at the end.
fn parse_pattern(text: &str, excluded: &[u8]) -> Option<Box<[u8]>> {
    let beginning = text.strip_suffix('*').unwrap_or(text);
    let is_valid = |byte: u8| byte.is_ascii_graphic() && byte != b'*' && !excluded.contains(&byte);
    (!text.is_empty() && beginning.bytes().all(is_valid)).then(|| text.as_bytes().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_need_a_unit() {
        for (text, expected) in
            [("0", 0), ("0s", 0), ("90s", 90), ("2m", 120), ("1h", 3600), ("7d", 604_800)]
        {
            assert_eq!(parse_seconds(text), Ok(expected), "{text}");
            assert_eq!(parse_seconds(&write_seconds(expected)), Ok(expected));
        }
        assert_eq!(parse_seconds("3650d"), Ok(SECONDS_MAX));
        assert_eq!(write_seconds(SECONDS_MAX), "3650d");
        for (text, problem) in [
            ("60", "has no unit"),
            ("", "is not a time"),
            ("s", "is not a time"),
            ("-1s", "is not a time"),
            ("1 h", "is not a time"),
            ("5ms", "is not a time"),
            ("3651d", "is too large"),
            ("18446744073709551615d", "is too large"),
            ("99999999999999999999s", "is too large"),
        ] {
            assert_eq!(parse_seconds(text), Err(problem), "{text}");
        }
    }

    #[test]
    fn lifetimes_have_a_keyword() {
        for text in ["origin", "default 1m", "override 0s", "404 origin", "500-599 default 10s"] {
            let written = parse_lifetime(text).map(|(statuses, ttl)| write_lifetime(statuses, ttl));
            assert_eq!(written.as_deref(), Ok(text));
        }
        assert_eq!(parse_lifetime("60s"), Err(TIME_WITHOUT_KEYWORD));
        assert_eq!(parse_lifetime("404 60s"), Err(TIME_WITHOUT_KEYWORD));
        assert_eq!(parse_lifetime("default 60"), Err("has no unit"));
        assert_eq!(parse_lifetime("override"), Err(KEYWORD_WITHOUT_TIME));
        assert_eq!(parse_lifetime("404 default"), Err(KEYWORD_WITHOUT_TIME));
        assert_eq!(parse_lifetime("99 origin"), Err("is not a status or a range of statuses"));
        for text in ["", "default", "default  1s", "origin 1s", "Override 1s", "60", "404"] {
            assert!(parse_lifetime(text).is_err(), "{text}");
        }
    }

    #[test]
    fn disks_are_directories_with_sizes() {
        let disk_of = |folder: &str, bytes| Ok(Disk { folder: folder.into(), bytes });
        assert_eq!(parse_disk("/var/cache/millrace:10G"), disk_of("/var/cache/millrace", 10 << 30));
        assert_eq!(parse_disk("/a:b//c/./:1024"), disk_of("/a:b/c", 1024));
        for text in ["", ":", "/a", "/a:", "/a:x", "a:1G", ":1G", "/a/../b:1G", "/a\n:1G"] {
            assert!(parse_disk(text).is_err(), "{text:?}");
        }
        assert_eq!(parse_share("50%"), Ok(MemoryShare::Percent(50)));
        assert_eq!(parse_share("64M"), Ok(MemoryShare::Bytes(64 << 20)));
        assert!(
            parse_share("%").is_err()
                && parse_share("1.5%").is_err()
                && parse_share("half").is_err()
        );
    }

    #[test]
    fn fields_and_cookies_are_parsed() {
        let bytes = |text: &str| text.as_bytes().into();
        assert_eq!(
            parse_field_or_cookie("field:X-Device"),
            Ok(FieldOrCookie::Field(bytes("x-device")))
        );
        assert_eq!(parse_field_or_cookie("cookie:Lang"), Ok(FieldOrCookie::Cookie(bytes("Lang"))));
        assert_eq!(parse_field_or_cookie("cookie:wp_*"), Ok(FieldOrCookie::Cookie(bytes("wp_*"))));
        assert_eq!(parse_field_or_cookie("cookie:*"), Ok(FieldOrCookie::Cookie(bytes("*"))));
        for text in [
            "",
            "X-Device",
            "field:",
            "cookie:",
            "field:a b",
            "field:a:b",
            "field:\u{e9}",
            "field:x_forwarded_host",
            "cookie:a=b",
            "cookie:*a",
            "cookie:a b",
            "header:a",
        ] {
            assert!(parse_field_or_cookie(text).is_err(), "{text}");
        }
        assert_eq!(parse_field_or_off("off"), Ok(None));
        assert_eq!(parse_field_or_off("CDN-Cache-Control"), Ok(Some(bytes("cdn-cache-control"))));
    }

    #[test]
    fn parameters_are_names_or_prefixes() {
        for text in ["fbclid", "utm_*", "*", "a%5B", "q[]"] {
            assert_eq!(parse_parameter(text).as_deref(), Ok(text.as_bytes()));
        }
        for text in ["", "a=b", "a&b", "*a", "a*b", "a**", "a b", "\u{e9}", "a;b"] {
            assert!(parse_parameter(text).is_err(), "{text}");
        }
    }
}
