//! Values of the cache's options as people write them; see [`value`](crate::value) for what
//! a reader gives.

use millrace_http_cache::Ttl;
use millrace_http1::Name;

use super::Disk;
use crate::value::{
    Problem, TIME_WITHOUT_KEYWORD, Units, file_path, number, scaled, size, statuses, write_scaled,
    write_statuses,
};

/// The longest time that an option takes: ten years, far below where numbers of HTTP end.
const SECONDS_MAX: u32 = 3650 * 86_400;
const UNITS: Units = &[("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];

/// What the cache may take of a memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MemoryShare {
    /// So many bytes.
    Bytes(u64),
    /// So many percent of it.
    Percent(u64),
}

/// One thing that a request may bring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FieldOrCookie {
    /// A field, by its name in lower case.
    Field(Box<[u8]>),
    /// A cookie, by its name or the beginning of one with a `*` after it.
    Cookie(Box<[u8]>),
}

/// Seconds: a whole number with s, m, h or d behind it, which 0 does not need. Limits count in
/// milliseconds where no unit is written, and HTTP in seconds, so that no guess would be right.
pub(super) fn seconds(text: &str) -> Result<u32, Problem> {
    match text {
        "0" => return Ok(0),
        _ if number(text).is_ok() => return Err("has no unit"),
        _ => {}
    }
    match u32::try_from(scaled(text, UNITS, "is not a time")?) {
        Ok(seconds @ ..=SECONDS_MAX) => Ok(seconds),
        _ => Err("is too large"),
    }
}

/// Seconds as [`seconds`] reads them.
pub(super) fn write_seconds(seconds: u32) -> String {
    write_scaled(seconds.into(), UNITS)
}

/// `origin`, `default TIME` or `override TIME`, with a status or a range of them and a blank before
/// it where it is about those alone.
pub(super) fn lifetime(text: &str) -> Result<(Option<(u16, u16)>, Ttl), Problem> {
    match text.split_once(' ') {
        Some((first, rest)) if text.starts_with(|first: char| first.is_ascii_digit()) => {
            Ok((Some(statuses(first)?), ttl(rest)?))
        }
        _ => ttl(text).map(|ttl| (None, ttl)),
    }
}

fn ttl(text: &str) -> Result<Ttl, Problem> {
    if text == "origin" {
        return Ok(Ttl::Origin);
    }
    match text.split_once(' ') {
        Some(("default", time)) => seconds(time).map(Ttl::Default),
        Some(("override", time)) => seconds(time).map(Ttl::Override),
        _ if seconds(text).is_ok() || number(text).is_ok() => Err(TIME_WITHOUT_KEYWORD),
        _ => Err("does not begin with origin, default or override"),
    }
}

/// A lifetime as [`lifetime`] reads it.
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

/// Bytes, or a part of a hundred with `%` behind it.
pub(super) fn share(text: &str) -> Result<MemoryShare, Problem> {
    match text.strip_suffix('%') {
        None => size(text).map(MemoryShare::Bytes),
        Some(percent) => number(percent).map(MemoryShare::Percent).map_err(|_| "is not a share"),
    }
}

/// `DIR:SIZE`. The folder may have colons in its name. Its path begins at the root: where the
/// process was started is where its answers would be, and somebody else's the next time.
pub(super) fn disk(text: &str) -> Result<Disk, Problem> {
    let (folder, bytes) = text.rsplit_once(':').ok_or("has no :SIZE behind its folder")?;
    if !folder.starts_with('/') {
        return Err("has a folder that does not begin with a slash");
    }
    if folder.split('/').any(|part| part == "..") {
        return Err("has a folder with .. in it");
    }
    let bytes = size(bytes).map_err(|_| "has no :SIZE behind its folder")?;
    // One form of a path, without slashes in a row or at its end, so that two can be compared.
    let folder = file_path(folder)?.components().collect();
    Ok(Disk { folder, bytes })
}

/// A name of a field in lower case, or `off`.
pub(super) fn field_or_off(text: &str) -> Result<Option<Box<[u8]>>, Problem> {
    match text {
        "off" => Ok(None),
        "true" | "false" => Err("is neither a field's name nor off"),
        _ => field(text).map(Some),
    }
}

fn field(text: &str) -> Result<Box<[u8]>, Problem> {
    // RFC 9110 section 5.6.2.
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_of_token) {
        return Err("is no name of a field");
    }
    if Name::of(text.as_bytes()) == Name::Disguised {
        return Err("is a known field written with _, which no origin gets");
    }
    Ok(text.to_ascii_lowercase().into_bytes().into())
}

/// `field:NAME` or `cookie:NAME`.
pub(super) fn feature(text: &str) -> Result<FieldOrCookie, Problem> {
    match text.split_once(':') {
        Some(("field", name)) => field(name).map(FieldOrCookie::Field),
        Some(("cookie", name)) => match pattern(name, b"=;,\"\\") {
            Some(name) => Ok(FieldOrCookie::Cookie(name)),
            None => Err("has no name of a cookie"),
        },
        _ => Err("does not begin with field: or cookie:"),
    }
}

/// A feature as [`feature`] reads it.
pub(super) fn write_feature(kind: &str, name: &[u8]) -> String {
    format!("{kind}:{}", String::from_utf8_lossy(name))
}

/// A query parameter as it is sent: its name, the beginning of one with a `*` after it, or `*`.
pub(super) fn parameter(text: &str) -> Result<Box<[u8]>, Problem> {
    pattern(text, b"=&;#").ok_or("is no name of a query parameter")
}

/// Printable ASCII without those bytes, and with a `*` nowhere but at the end.
fn pattern(text: &str, without: &[u8]) -> Option<Box<[u8]>> {
    let beginning = text.strip_suffix('*').unwrap_or(text);
    let is_sane = |byte: u8| byte.is_ascii_graphic() && byte != b'*' && !without.contains(&byte);
    (!text.is_empty() && beginning.bytes().all(is_sane)).then(|| text.as_bytes().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_say_their_unit() {
        for (text, expected) in
            [("0", 0), ("0s", 0), ("90s", 90), ("2m", 120), ("1h", 3600), ("7d", 604_800)]
        {
            assert_eq!(seconds(text), Ok(expected), "{text}");
            assert_eq!(seconds(&write_seconds(expected)), Ok(expected));
        }
        assert_eq!(seconds("3650d"), Ok(SECONDS_MAX));
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
            assert_eq!(seconds(text), Err(problem), "{text}");
        }
    }

    #[test]
    fn lifetimes_say_who_decides() {
        for text in ["origin", "default 1m", "override 0s", "404 origin", "500-599 default 10s"] {
            let written = lifetime(text).map(|(statuses, ttl)| write_lifetime(statuses, ttl));
            assert_eq!(written.as_deref(), Ok(text));
        }
        assert_eq!(lifetime("60s"), Err("does not say whether it is default or override"));
        assert_eq!(lifetime("404 60s"), Err("does not say whether it is default or override"));
        assert_eq!(lifetime("default 60"), Err("has no unit"));
        assert_eq!(lifetime("99 origin"), Err("is no status or range of statuses"));
        for text in ["", "default", "default  1s", "origin 1s", "Override 1s", "60", "404"] {
            assert!(lifetime(text).is_err(), "{text}");
        }
    }

    #[test]
    fn disks_are_folders_with_sizes() {
        let disk_of = |folder: &str, bytes| Ok(Disk { folder: folder.into(), bytes });
        assert_eq!(disk("/var/cache/millrace:10G"), disk_of("/var/cache/millrace", 10 << 30));
        assert_eq!(disk("/a:b//c/./:1024"), disk_of("/a:b/c", 1024));
        for text in ["", ":", "/a", "/a:", "/a:x", "a:1G", ":1G", "/a/../b:1G", "/a\n:1G"] {
            assert!(disk(text).is_err(), "{text:?}");
        }
        assert_eq!(share("50%"), Ok(MemoryShare::Percent(50)));
        assert_eq!(share("64M"), Ok(MemoryShare::Bytes(64 << 20)));
        assert!(share("%").is_err() && share("1.5%").is_err() && share("half").is_err());
    }

    #[test]
    fn features_are_fields_and_cookies() {
        let bytes = |text: &str| text.as_bytes().into();
        assert_eq!(feature("field:X-Device"), Ok(FieldOrCookie::Field(bytes("x-device"))));
        assert_eq!(feature("cookie:Lang"), Ok(FieldOrCookie::Cookie(bytes("Lang"))));
        assert_eq!(feature("cookie:wp_*"), Ok(FieldOrCookie::Cookie(bytes("wp_*"))));
        assert_eq!(feature("cookie:*"), Ok(FieldOrCookie::Cookie(bytes("*"))));
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
            assert!(feature(text).is_err(), "{text}");
        }
        assert_eq!(field_or_off("off"), Ok(None));
        assert_eq!(field_or_off("CDN-Cache-Control"), Ok(Some(bytes("cdn-cache-control"))));
    }

    #[test]
    fn parameters_are_names_or_beginnings() {
        for text in ["fbclid", "utm_*", "*", "a%5B", "q[]"] {
            assert_eq!(parameter(text).as_deref(), Ok(text.as_bytes()));
        }
        for text in ["", "a=b", "a&b", "*a", "a*b", "a**", "a b", "\u{e9}", "a;b"] {
            assert!(parameter(text).is_err(), "{text}");
        }
    }
}
