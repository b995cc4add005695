//! Request fields that attackers write: names, values, and unusual spellings of both.

use crate::corpus::random::Random;

/// A field line: name and value. `{T}` stands for the token of the mutant, `{O}` for the address of
/// the origin.
pub(super) type Line = (String, String);

/// Fields from which origins build links, redirects, paths or methods, or take a scheme.
const LINKS: [&str; 29] = [
    "Forwarded",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "X-Forwarded-Port",
    "X-Forwarded-Prefix",
    "X-Forwarded-Server",
    "X-Forwarded-Scheme",
    "X-Forwarded-Ssl",
    "X-Forwarded-Path",
    "X-Forwarded-Protocol",
    "X-Forwarded-Uri",
    "X-Forwarded-Context",
    "X-Host",
    "X-Original-URL",
    "X-Original-Host",
    "X-Original-Proto",
    "X-Rewrite-URL",
    "X-Rewrite-Path",
    "X-HTTP-Method",
    "X-HTTP-Method-Override",
    "X-Method-Override",
    "Front-End-Https",
    "Proxy",
    "X-Forwarded",
    "X-Forward-Host",
    "X-HTTP-Host-Override",
    "X-Scheme",
    "X-Url-Scheme",
    "X-Script-Name",
];

/// Fields that only name the client. Origins of the campaign do not reflect them.
const CLIENTS: [&str; 8] = [
    "X-Forwarded-For",
    "X-Real-Ip",
    "X-Client-IP",
    "True-Client-IP",
    "CF-Connecting-IP",
    "Client-IP",
    "Fastly-Client-IP",
    "X-Cluster-Client-IP",
];

/// Fields by which pages may vary.
pub(super) const VARIED: [&str; 11] = [
    "Cookie",
    "User-Agent",
    "X-Tenant",
    "Origin",
    "Referer",
    "Accept-Encoding",
    "Accept-Language",
    "X-Forwarded-For",
    "X-Forwarded-Proto",
    "X-Forwarded-Host",
    "Forwarded",
];

/// Returns whether the pages of a model with `reflects` contain the field. `Forwarded` is parsed
/// separately. CGI cannot distinguish `-` from other separators, so all spellings count.
pub(super) fn is_reflected(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace(['_', '.', '~'], "-");
    let begins = |prefix: &str| name.starts_with(prefix);
    let is_named = ["x-host", "x-http-method", "x-http-method-override", "x-method-override"]
        .contains(&&*name)
        || ["front-end-https", "proxy", "x-http-host-override"].contains(&&*name)
        || ["x-scheme", "x-url-scheme", "x-script-name"].contains(&&*name);
    let is_family = begins("x-forward") || begins("x-original-") || begins("x-rewrite-");
    (is_named || is_family) && name != "x-forwarded-for"
}

/// Returns whether RFC 9110 section 12.5 gives the field a meaning that does not depend on its
/// spelling.
pub(super) fn is_negotiated(name: &str) -> bool {
    name == "Accept-Encoding" || name == "Accept-Language"
}

/// Returns a field that an origin may build its response from, sometimes with an unusual spelling.
pub(super) fn link(random: &mut Random) -> Line {
    let name = if random.below(6) == 0 {
        random.choose(&CLIENTS).to_owned()
    } else {
        random.choose(&LINKS).to_owned()
    };
    let value = link_value(random, &name);
    (spelt(random, &name), value)
}

fn link_value(random: &mut Random, name: &str) -> String {
    let choices: &[&str] = match name {
        "Forwarded" => &[
            "host=evil.example;proto=https",
            "for=192.0.2.1;host=evil.example",
            "for=192.0.2.1",
            "for=192.0.2.1, proto=https",
            "proto=https;by=\"a;b\";for=_x",
            "for=\"1;proto=https\";host=e",
            "for=\"1;proto=https",
            "PROTO=https",
            ";;host=evil.example",
            "",
        ],
        "X-Forwarded-Proto"
        | "X-Forwarded-Scheme"
        | "X-Forwarded-Protocol"
        | "X-Original-Proto" => &["https", "http", "HTTPS", "https, http", "http,https", "", "wss"],
        "X-Forwarded-Ssl" | "Front-End-Https" => &["on", "off", "1", ""],
        "X-Forwarded-Port" => &["443", "80", "8443", "1", ""],
        "X-HTTP-Method" | "X-HTTP-Method-Override" | "X-Method-Override" => {
            &["POST", "DELETE", "HEAD", "GET", ""]
        }
        "X-Forwarded-For" | "X-Real-Ip" | "X-Client-IP" | "True-Client-IP" | "CF-Connecting-IP" => {
            &["192.0.2.1", "127.0.0.2", "192.0.2.1, 10.0.0.1", "", "x"]
        }
        "X-Forwarded-Path"
        | "X-Forwarded-Prefix"
        | "X-Original-URL"
        | "X-Rewrite-URL"
        | "X-Rewrite-Path"
        | "X-Forwarded-Uri"
        | "X-Forwarded-Context" => {
            &["/admin", "/evil", "/", "//evil.example", "", "/static/../account"]
        }
        _ => &["evil.example", "evil.example:80", "evil.example, {T}.test", "{T}.test", ""],
    };
    random.choose(choices).to_owned()
}

/// Returns fields that a victim sends, and fields that trusted peers add on its behalf.
pub(super) fn innocent_link(random: &mut Random) -> Vec<Line> {
    let line = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    match random.below(9) {
        0 | 1 => Vec::new(),
        6 => vec![line("X-Forwarded-Proto", "https"), line("X-Forwarded-Port", "443")],
        7 => vec![line("X-Forwarded-Ssl", "on"), line("X-Forwarded-Scheme", "https")],
        8 => vec![line("X-Original-Host", "{T}.test"), line("Front-End-Https", "on")],
        2 => vec![line("X-Forwarded-Proto", "https")],
        3 => vec![line("X-Forwarded-For", "198.51.100.7"), line("X-Forwarded-Proto", "https")],
        4 => vec![line("X-Forwarded-Host", "{T}.test"), line("X-Forwarded-Proto", "http")],
        _ => vec![line("Forwarded", "for=198.51.100.7;proto=https")],
    }
}

/// Returns lines close to those of a victim, sometimes in another order.
pub(super) fn near_lines(random: &mut Random, lines: &[Line]) -> Vec<Line> {
    let mut changed = Vec::new();
    for (name, value) in lines {
        let value = match random.below(3) {
            0 => near(random, Some(value)),
            _ => Some(value.clone()),
        };
        for line in value.map_or_else(Vec::new, |value| in_lines(random, name, &value)) {
            let at = random.below(changed.len() + 1);
            changed.insert(at, line);
        }
    }
    changed
}

/// Returns a victim's value of a field that a page varies by. In a quarter of the cases the field
/// has no value.
pub(super) fn innocent_value(random: &mut Random, name: &str) -> Option<String> {
    let choices: &[&str] = match name {
        "Cookie" => &["lang=en", "lang=de; theme=dark", "a=\"x, y\""],
        "User-Agent" => &["Agent/1.0 (X11, Linux)", "curl/8"],
        "X-Tenant" => &["red", "red, blue", "Red", ""],
        "Origin" => &["https://a.example", "null"],
        "Referer" => &["https://a.example/?a,b", "https://a.example/"],
        "Accept-Encoding" => &["gzip", "gzip, br", "br;q=0.5, gzip;q=0.8", "identity"],
        "Accept-Language" => &["en", "de, en;q=0.5", "fr-CH, fr;q=0.9, en;q=0.8", "de"],
        "X-Forwarded-For" => &["198.51.100.7"],
        "X-Forwarded-Proto" => &["https"],
        "X-Forwarded-Host" => &["{T}.test"],
        _ => &["for=198.51.100.7;proto=https"],
    };
    (random.below(4) > 0).then(|| random.choose(choices).to_owned())
}

/// Returns a value close to that of a victim, or `None` for a missing line.
pub(super) fn near(random: &mut Random, value: Option<&str>) -> Option<String> {
    let Some(value) = value else {
        return match random.below(3) {
            0 => Some(String::new()),
            1 => Some(",".to_owned()),
            _ => None,
        };
    };
    let mut value = value.to_owned();
    for _ in 0..=random.below(2) {
        let at = random.below(value.len() + 1);
        match random.below(11) {
            0 => value.push(','),
            1 => value.insert_str(0, ", "),
            2 => {
                value.insert_str(at, random.choose(&[",", ", ", " ,", ",,", ";", " ", "\t", "\""]))
            }
            3 => value = value.replace(", ", random.choose(&[",", " , ", ",, ", "; ", ",\t"])),
            4 => value = value.replace("; ", random.choose(&[";", ", ", " ; "])),
            5 => value = value.to_ascii_uppercase(),
            6 => value.clear(),
            7 => return None,
            8 => {
                value = value.split([',', ';']).rev().map(str::trim).collect::<Vec<_>>().join(", ")
            }
            9 => value.push_str(random.choose(&[";q=1", ";q=0", "; q=0.001", "=", "x"])),
            _ => value = format!("{value}, {value}"),
        }
    }
    Some(value)
}

/// Returns the lines of a field with a value: one line, or several that proxies join with commas.
pub(super) fn in_lines(random: &mut Random, name: &str, value: &str) -> Vec<Line> {
    match (random.below(5), value.split_once(',')) {
        (0, Some((one, other))) => {
            let other = other.trim_start().to_owned();
            vec![(name.to_owned(), one.to_owned()), (spelt(random, name), other)]
        }
        (1, _) => vec![(name.to_owned(), value.to_owned()), (name.to_owned(), String::new())],
        _ => vec![(spelt(random, name), value.to_owned())],
    }
}

/// Returns a name as written, in another case, or with other characters in place of hyphens.
fn spelt(random: &mut Random, name: &str) -> String {
    match random.below(14) {
        0 => name.to_ascii_lowercase(),
        1 => name.to_ascii_uppercase(),
        2 => name.replace('-', "_"),
        3 => name.replacen('-', "_", 1),
        4 => name.replace('-', "."),
        5 => name.replacen('-', "~", 1),
        _ => name.to_owned(),
    }
}

/// Returns a field by which a client controls caches and proxies.
pub(super) fn control(random: &mut Random, used: &[Line]) -> Line {
    let (name, choices): (&str, &[&str]) = match random.below(9) {
        0 | 1 => {
            ("Cache-Control", &["no-cache", "max-age=0", "no-store", "max-stale", "min-fresh=1"])
        }
        2 => ("Pragma", &["no-cache"]),
        3 => ("If-None-Match", &["\"other\"", "*", "W/\"a\""]),
        4 => ("If-Modified-Since", &["Thu, 01 Jan 2026 00:00:00 GMT", "x"]),
        5 => ("Range", &["bytes=0-3", "bytes=-1", "bytes=9999-", "bytes=0-0,2-2"]),
        6 => ("TE", &["trailers"]),
        7 => ("Max-Forwards", &["0", "5"]),
        // Fields that `Connection` names end at the next hop, RFC 9110 section 7.6.1.
        _ => {
            let own = if used.is_empty() { None } else { Some(&used[random.below(used.len())].0) };
            let name = own.map_or("X-Forwarded-Host", |name| name);
            let other = random.choose(&["X-Forwarded-Proto", "X-Forwarded-Host", "Forwarded"]);
            let named = if random.below(3) == 0 { other } else { name };
            return ("Connection".to_owned(), named.to_owned());
        }
    };
    (name.to_owned(), random.choose(choices).to_owned())
}
