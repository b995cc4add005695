//! Access log records: one finished exchange as one line.
//!
//! Bytes from clients and origins are hostile here too. A value can end neither its quotes nor its
//! line, and none of its bytes reaches the reader's terminal as a control sequence. The only
//! allocation is the growth of the caller's buffer, which is reused.

mod dates;
mod userinfo;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use millrace_engine::PathEstimate;
use millrace_tls::Handshake;

use crate::transfer::stats::TransferStats;
use millrace_config::LogFormat;

pub use dates::Dates;
use userinfo::user_information;

/// Records that were not passed to the engine yet.
#[derive(Debug, Default)]
pub(crate) struct LogBuffer {
    pub(crate) records: Vec<u8>,
    pub(crate) dates: Dates,
}

/// The data of one finished exchange, or of a failed TLS handshake.
#[derive(Clone, Default, Debug)]
pub struct Record<'a> {
    /// The client's address, after trusted PROXY and Forwarded headers. `None` for a Unix socket.
    pub client: Option<IpAddr>,
    /// The user whose credentials were right, if the service requires authentication.
    pub user: Option<&'a [u8]>,
    /// When the first byte of the request arrived, since 1970.
    pub time_of_day: Duration,
    /// The received method. Empty if no request line could be read.
    pub method: &'a [u8],
    /// The received target. Empty if no request line could be read.
    pub target: &'a [u8],
    /// The request's version, such as `HTTP/1.1`. Empty if no request line could be read.
    pub version: &'a [u8],
    /// The final status sent to the client. 0 if none was sent.
    pub status: u16,
    /// Bytes of the body, or of the tunnel, forwarded from the client to the origin.
    pub bytes_from_client: u64,
    /// Bytes of the body, or of the tunnel, that the client's socket took.
    pub bytes_to_client: u64,
    /// How the bytes of both directions were moved, and with how many system calls.
    pub transfers: TransferStats,
    /// The part of `bytes_to_client` that was received into the cache for this exchange.
    pub bytes_to_cache: u64,
    /// The path of the folder, and below it that of the file or script that was the response.
    pub file: Option<[&'a [u8]; 2]>,
    /// The request's Host, if any.
    pub host: Option<&'a [u8]>,
    /// The request's Referer, if any.
    pub referer: Option<&'a [u8]>,
    /// The request's User-Agent, if any.
    pub user_agent: Option<&'a [u8]>,
    /// The time from the request's first byte to this record.
    pub duration: Duration,
    /// The origin that was tried last, if any, including one that refused or has no address.
    pub origin: Option<LoggedOrigin<'a>>,
    /// The time from the request's first byte to the header of the origin's final response, if that
    /// arrived.
    pub origin_first_byte: Option<Duration>,
    /// The kernel's estimate of the path to the client at the end of the exchange, if known.
    pub client_path: Option<PathEstimate>,
    /// TLS of the client connection; `None` on a plain one.
    pub tls: Option<LoggedTls<'a>>,
    /// The cache's part: `hit`, `stale`, `validated`, `collapsed`, `miss` or `bypass`. Empty
    /// without a cache.
    pub cache: &'static str,
    /// Why millrace responded itself or broke off:
    /// [`Reason::word`](crate::exchange::reason::Reason::word). Empty if the exchange ended
    /// normally.
    pub close_reason: &'static str,
}

/// TLS of a client connection.
#[derive(Clone, Copy, Default, Debug)]
pub struct LoggedTls<'a> {
    /// The properties that the handshake agreed on; `None` if it failed.
    pub handshake: Option<Handshake>,
    /// The name that the client asked for (SNI), if any.
    pub server_name: Option<&'a str>,
    /// The application protocol (ALPN) of the session, or the first one that the client offered if
    /// the handshake failed.
    pub alpn: Option<&'a [u8]>,
    /// The SHA-256 fingerprint of the client's verified certificate, in hexadecimal.
    pub client_certificate: Option<&'a [u8]>,
}

/// The address of an origin.
#[derive(Clone, Copy, Debug)]
pub enum LoggedOrigin<'a> {
    /// An address of TCP.
    Tcp(SocketAddr),
    /// A name that was not resolved, and its port.
    Name(&'a [u8], u16),
    /// The bytes of a Unix socket's path.
    Unix(&'a [u8]),
}

/// Appends `record` to `out` as one line in `format`, with its line feed. `dates` caches the
/// formatted dates of the current second.
pub fn write_record(format: LogFormat, record: &Record, dates: &mut Dates, out: &mut Vec<u8>) {
    match format {
        LogFormat::Common => write_common(record, dates, out),
        LogFormat::Combined => {
            write_common(record, dates, out);
            out.push(b' ');
            write_quoted(record.referer, true, out);
            out.push(b' ');
            write_quoted(record.user_agent, false, out);
        }
        LogFormat::Json => write_json(record, dates, out),
    }
    out.push(b'\n');
}

/// Writes `client - user [day/month/year:time +0000] "method target version" status bytes`. Unknown
/// values are `-` and a Unix client is `unix:`, as in the logs of Apache httpd and nginx.
fn write_common(record: &Record, dates: &mut Dates, out: &mut Vec<u8>) {
    match record.client {
        Some(client) => print(out, format_args!("{}", client.to_canonical())),
        None => out.extend_from_slice(b"unix:"),
    }
    match record.user {
        None => out.extend_from_slice(b" - - ["),
        Some(user) => write_user(user, out),
    }
    out.extend_from_slice(dates.at(record.time_of_day).log_date());
    out.extend_from_slice(b"] \"");
    if record.method.is_empty() {
        out.push(b'-');
    } else {
        escape_log(record.method, out);
        for (part, is_url) in [(record.target, true), (record.version, false)] {
            if !part.is_empty() {
                out.push(b' ');
                escape(part, is_url, out, escape_log);
            }
        }
    }
    match record.status {
        0 => out.extend_from_slice(b"\" -"),
        status => print(out, format_args!("\" {status}")),
    }
    print(out, format_args!(" {}", record.bytes_to_client));
}

/// Writes the user as one word without quotes: log readers split this line at its spaces.
fn write_user(user: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b" - ");
    for part in user.split_inclusive(|&byte| byte == b' ') {
        match part.strip_suffix(b" ") {
            Some(part) => {
                escape_log(part, out);
                out.extend_from_slice(b"\\x20");
            }
            None => escape_log(part, out),
        }
    }
    out.extend_from_slice(b" [");
}

fn write_quoted(value: Option<&[u8]>, is_url: bool, out: &mut Vec<u8>) {
    out.push(b'"');
    match value {
        Some(value) => escape(value, is_url, out, escape_log),
        None => out.push(b'-'),
    }
    out.push(b'"');
}

/// Writes a value with `write`. If it may be a URL, `***` replaces a user name and password in it.
#[inline(always)]
fn escape(value: &[u8], is_url: bool, out: &mut Vec<u8>, write: impl Fn(&[u8], &mut Vec<u8>)) {
    let secret = if is_url { user_information(value) } else { None };
    match secret {
        None => write(value, out),
        Some(secret) => {
            write(&value[..secret.start], out);
            out.extend_from_slice(b"***");
            write(&value[secret.end..], out);
        }
    }
}

/// Escapes quotes, backslashes and all bytes that are not printable ASCII as `\xHH`, like nginx.
/// This is the only form of escape, so a value that looks like an escape is never mistaken for one.
fn escape_log(value: &[u8], out: &mut Vec<u8>) {
    for &byte in value {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f.. => {
                let [high, low] = hex(byte);
                out.extend_from_slice(&[b'\\', b'x', high, low]);
            }
            _ => out.push(byte),
        }
    }
}

/// Writes one JSON object (RFC 8259). Durations are in milliseconds with three decimals. Unknown
/// values are null.
fn write_json(record: &Record, dates: &mut Dates, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"time\":\"");
    out.extend_from_slice(dates.at(record.time_of_day).iso_date());
    print(out, format_args!(".{:03}Z\",\"client\":", record.time_of_day.subsec_millis()));
    match record.client {
        Some(client) => print(out, format_args!("\"{}\"", client.to_canonical())),
        None => out.extend_from_slice(b"\"unix:\""),
    }
    let known = |value: &'static str| Some(value.as_bytes()).filter(|value| !value.is_empty());
    let line = |part| Some(part).filter(|_| !record.method.is_empty());
    for (name, value, is_url) in [
        (",\"user\":", record.user, false),
        (",\"method\":", line(record.method), false),
        (",\"target\":", line(record.target), true),
        (",\"version\":", line(record.version), false),
        (",\"host\":", record.host, true),
        (",\"referer\":", record.referer, true),
        (",\"user_agent\":", record.user_agent, false),
        (",\"reason\":", known(record.close_reason), false),
        (",\"cache\":", known(record.cache), false),
    ] {
        write_json_string(name, value, is_url, out);
    }
    write_json_tls(record.tls.unwrap_or_default(), out);
    match record.status {
        0 => out.extend_from_slice(b",\"status\":null"),
        status => print(out, format_args!(",\"status\":{status}")),
    }
    let (to, from) = (record.bytes_to_client, record.bytes_from_client);
    print(out, format_args!(",\"bytes_to_client\":{to},\"bytes_from_client\":{from}"));
    let TransferStats { copied, spliced, teed, calls } = record.transfers;
    let kept = record.bytes_to_cache;
    print(out, format_args!(",\"bytes_copied\":{copied},\"bytes_spliced\":{spliced}"));
    print(out, format_args!(",\"bytes_teed\":{teed},\"bytes_to_cache\":{kept},\"calls\":{calls}"));
    write_milliseconds(",\"duration_ms\":", Some(record.duration), out);
    out.extend_from_slice(b",\"origin\":");
    match record.origin {
        Some(LoggedOrigin::Tcp(address)) => print(out, format_args!("\"{address}\"")),
        Some(LoggedOrigin::Name(name, port)) => {
            out.push(b'"');
            escape_json(name, out);
            print(out, format_args!(":{port}\""));
        }
        Some(LoggedOrigin::Unix(path)) => {
            out.extend_from_slice(b"\"unix:");
            escape_json(path, out);
            out.push(b'"');
        }
        None => out.extend_from_slice(b"null"),
    }
    write_milliseconds(",\"origin_first_byte_ms\":", record.origin_first_byte, out);
    if let Some([folder, path]) = record.file {
        out.extend_from_slice(b",\"file\":\"");
        escape_json(folder, out);
        out.push(b'/');
        escape_json(path, out);
        out.push(b'"');
    }
    match record.client_path {
        Some(PathEstimate { rtt_us, window }) => {
            print(out, format_args!(",\"client_rtt_us\":{rtt_us},\"client_cwnd\":{window}}}"));
        }
        None => out.extend_from_slice(b",\"client_rtt_us\":null,\"client_cwnd\":null}"),
    }
}

fn write_json_tls(tls: LoggedTls<'_>, out: &mut Vec<u8>) {
    let handshake = tls.handshake;
    for (name, value) in [
        (",\"tls_version\":", handshake.map(|it| it.version.as_bytes())),
        (",\"cipher\":", handshake.map(|it| it.cipher.as_bytes())),
        (",\"sni\":", tls.server_name.map(str::as_bytes)),
        (",\"alpn\":", tls.alpn),
    ] {
        write_json_string(name, value, false, out);
    }
    match handshake {
        Some(handshake) => print(out, format_args!(",\"resumed\":{}", handshake.is_resumed)),
        None => out.extend_from_slice(b",\"resumed\":null"),
    }
    if tls.client_certificate.is_some() {
        write_json_string(",\"client_certificate\":", tls.client_certificate, false, out);
    }
}

/// Writes a key with its punctuation, and its value: a string, or null.
fn write_json_string(name: &str, value: Option<&[u8]>, is_url: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    match value {
        Some(value) => {
            out.push(b'"');
            escape(value, is_url, out, escape_json);
            out.push(b'"');
        }
        None => out.extend_from_slice(b"null"),
    }
}

fn write_milliseconds(name: &str, value: Option<Duration>, out: &mut Vec<u8>) {
    match value.map(|value| value.as_micros()) {
        Some(micros) => print(out, format_args!("{name}{}.{:03}", micros / 1000, micros % 1000)),
        None => print(out, format_args!("{name}null")),
    }
}

/// Escapes the inside of a JSON string (RFC 8259 section 7). Quotes, backslashes and controls,
/// including U+007F to U+009F, become `\uXXXX`. Each byte XX that is not part of valid UTF-8
/// becomes `\u00XX`, its character in ISO 8859-1.
fn escape_json(value: &[u8], out: &mut Vec<u8>) {
    let unit = |number: u8, out: &mut Vec<u8>| {
        let [high, low] = hex(number);
        out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
    };
    for chunk in value.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' | '\\' | '\0'..='\x1f' | '\x7f'..='\u{9f}' => unit(character as u8, out),
                _ => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        for &byte in chunk.invalid() {
            unit(byte, out);
        }
    }
}

fn hex(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}

fn print(out: &mut Vec<u8>, text: std::fmt::Arguments) {
    out.write_fmt(text).expect("a Vec takes every byte");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::reason::Reason;

    /// 2026-11-21 10:16:00.123456 UTC.
    const THEN: Duration = Duration::from_micros(1_795_256_160_123_456);

    fn record<'a>() -> Record<'a> {
        Record {
            client: Some("203.0.113.7".parse().unwrap()),
            user: None,
            time_of_day: THEN,
            method: b"GET",
            target: b"/a?b=c",
            version: b"HTTP/1.1",
            status: 200,
            file: None,
            bytes_from_client: 0,
            bytes_to_client: 5120,
            transfers: TransferStats { copied: 120, spliced: 5000, teed: 4000, calls: 7 },
            bytes_to_cache: 5120,
            host: Some(b"example.org"),
            referer: Some(b"http://example.org/"),
            user_agent: Some(b"curl/8.0"),
            duration: Duration::from_micros(12_345),
            origin: Some(LoggedOrigin::Tcp("127.0.0.1:8000".parse().unwrap())),
            origin_first_byte: Some(Duration::from_micros(1_002)),
            client_path: Some(PathEstimate { rtt_us: 93, window: 10 }),
            tls: None,
            cache: "miss",
            close_reason: "",
        }
    }

    fn line(format: LogFormat, record: &Record) -> String {
        let mut out = b"before\n".to_vec();
        write_record(format, record, &mut Dates::default(), &mut out);
        String::from_utf8(out).unwrap().strip_prefix("before\n").unwrap().to_owned()
    }

    #[test]
    fn each_format_is_written_as_documented() {
        let common =
            r#"203.0.113.7 - - [21/Nov/2026:10:16:00 +0000] "GET /a?b=c HTTP/1.1" 200 5120"#;
        assert_eq!(line(LogFormat::Common, &record()), format!("{common}\n"));
        assert_eq!(
            line(LogFormat::Combined, &record()),
            format!("{common} \"http://example.org/\" \"curl/8.0\"\n")
        );
        assert_eq!(
            line(LogFormat::Json, &record()),
            concat!(
                r#"{"time":"2026-11-21T10:16:00.123Z","client":"203.0.113.7","user":null,"method":"GET","#,
                r#""target":"/a?b=c","version":"HTTP/1.1","host":"example.org","#,
                r#""referer":"http://example.org/","user_agent":"curl/8.0","reason":null,"cache":"miss","tls_version":null,"cipher":null,"sni":null,"alpn":null,"resumed":null,"#,
                r#""status":200,"bytes_to_client":5120,"bytes_from_client":0,"#,
                r#""bytes_copied":120,"bytes_spliced":5000,"bytes_teed":4000,"bytes_to_cache":5120,"#,
                r#""calls":7,"duration_ms":12.345,"origin":"127.0.0.1:8000","origin_first_byte_ms":1.002,"#,
                r#""client_rtt_us":93,"client_cwnd":10}"#,
                "\n"
            )
        );
    }

    #[test]
    fn the_documentation_has_every_key_in_order() {
        let tls = LoggedTls { client_certificate: Some(b"ab01"), ..LoggedTls::default() };
        let file = Some([&b"/srv"[..], b"c.css"]);
        let json = line(LogFormat::Json, &Record { tls: Some(tls), file, ..record() });
        assert!(json.contains("\"file\":\"/srv/c.css\",\"client_rtt_us\""), "{json}");
        assert!(json.contains("\"client_certificate\":\"ab01\",\"status\""), "{json}");
        let written = json.split("\":").map(|part| part.rsplit('"').next().unwrap());
        let written: Vec<&str> = written.take(json.matches("\":").count()).collect();
        let documented = include_str!("../../../../../../docs/access-log.md").lines();
        let documented = documented.filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        assert_eq!(written, documented.map(|(key, _)| key).collect::<Vec<_>>());
    }

    #[test]
    fn the_documentation_has_every_word_of_reason() {
        let documented = include_str!("../../../../../../docs/access-log.md");
        let table = documented.lines().skip_while(|line| !line.starts_with("| status |")).skip(2);
        let mut documented: Vec<&str> =
            table.flat_map(|line| line.split('`').skip(1).step_by(2)).collect();
        let mut words: Vec<&str> = Reason::ALL.iter().map(|reason| reason.word()).collect();
        documented.sort_unstable();
        words.sort_unstable();
        assert_eq!(documented, words);
    }

    #[test]
    fn unknown_values_are_marked() {
        let nothing = Record {
            client: None,
            method: b"",
            target: b"",
            version: b"",
            status: 0,
            bytes_to_client: 0,
            transfers: TransferStats::default(),
            bytes_to_cache: 0,
            host: None,
            referer: None,
            user_agent: None,
            origin: None,
            origin_first_byte: None,
            client_path: None,
            cache: "",
            close_reason: "malformed-head",
            ..record()
        };
        assert_eq!(
            line(LogFormat::Combined, &nothing),
            "unix: - - [21/Nov/2026:10:16:00 +0000] \"-\" - 0 \"-\" \"-\"\n"
        );
        assert_eq!(
            line(LogFormat::Json, &nothing),
            concat!(
                r#"{"time":"2026-11-21T10:16:00.123Z","client":"unix:","user":null,"method":null,"#,
                r#""target":null,"version":null,"host":null,"referer":null,"user_agent":null,"#,
                r#""reason":"malformed-head","cache":null,"tls_version":null,"cipher":null,"sni":null,"alpn":null,"resumed":null,"status":null,"bytes_to_client":0,"#,
                r#""bytes_from_client":0,"bytes_copied":0,"bytes_spliced":0,"bytes_teed":0,"#,
                r#""bytes_to_cache":0,"calls":0,"duration_ms":12.345,"origin":null,"#,
                r#""origin_first_byte_ms":null,"client_rtt_us":null,"client_cwnd":null}"#,
                "\n"
            )
        );
    }

    #[test]
    fn mapped_addresses_are_canonical_and_origin_paths_are_escaped() {
        let odd = Record {
            client: Some("::ffff:192.0.2.1".parse().unwrap()),
            origin: Some(LoggedOrigin::Unix(b"/run/a\"b\xff")),
            ..record()
        };
        assert!(line(LogFormat::Common, &odd).starts_with("192.0.2.1 - - ["));
        assert!(line(LogFormat::Json, &odd).contains(r#""origin":"unix:/run/a\u0022b\u00FF","#));
    }

    /// Every byte, alone and next to bytes with which it could form UTF-8.
    fn hostile_values() -> impl Iterator<Item = Vec<u8>> {
        let pairs = (0..=255u8).flat_map(|byte| {
            [vec![byte], vec![b'a', byte, b'"'], vec![0xc2, byte], vec![byte, 0x80]]
        });
        pairs.chain([
            b"\" 200 1\n1.2.3.4 - - [x] \"GET / HTTP/1.1".to_vec(),
            b"\x1b]0;title\x07\x1b[2J".to_vec(),
            "caf\u{e9} \u{1f980} \u{2028}\u{85}".as_bytes().to_vec(),
            b"\xf0\x9f\xa6".to_vec(),
            b"\xed\xa0\x80\xff".to_vec(),
        ])
    }

    #[test]
    fn a_user_is_one_word_and_passwords_in_urls_are_omitted() {
        let user = Record { user: Some(b"b \"b\\\xe9"), ..record() };
        let common = line(LogFormat::Common, &user);
        assert!(common.starts_with(r"203.0.113.7 - b\x20\x22b\x5C\xE9 [21/Nov"), "{common}");
        assert!(line(LogFormat::Json, &user).contains(r#","user":"b \u0022b\u005C\u00E9","#));
        let urls = Record {
            target: b"http://me:secret@a.test/?q=@",
            host: Some(b"me:secret@a.test"),
            referer: Some(b"http://me:secret@b.test/"),
            ..record()
        };
        for format in [LogFormat::Common, LogFormat::Combined, LogFormat::Json] {
            let line = line(format, &urls);
            assert!(line.contains("http://***@a.test/?q=@") && !line.contains("secret"), "{line}");
            assert!(!line.contains("me:"), "{line}");
        }
    }

    #[test]
    fn no_value_breaks_out_of_a_log_line() {
        for value in hostile_values() {
            let hostile = Record {
                method: &value,
                target: &value,
                version: &value,
                referer: Some(&value),
                user_agent: Some(&value),
                user: Some(&value),
                ..record()
            };
            let text = line(LogFormat::Combined, &hostile);
            let body = text.strip_suffix('\n').unwrap();
            assert!(body.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{body:?}");
            assert_eq!(body.matches('"').count(), 6, "{body:?}");
            // Undoing the escapes returns the value, so no two values have the same text.
            let quoted = body.split('"').nth(5).unwrap();
            assert_eq!(undo_log(quoted.as_bytes()), value, "{quoted:?}");
        }
    }

    fn undo_log(mut text: &[u8]) -> Vec<u8> {
        let mut value = Vec::new();
        while let [byte, rest @ ..] = text {
            if let [b'\\', b'x', high, low, rest @ ..] = text {
                let digits = [*high, *low];
                let digits = std::str::from_utf8(&digits).unwrap();
                value.push(u8::from_str_radix(digits, 16).unwrap());
                text = rest;
            } else {
                assert_ne!(*byte, b'\\');
                value.push(*byte);
                text = rest;
            }
        }
        value
    }

    #[test]
    fn every_value_is_written_as_valid_json() {
        for value in hostile_values() {
            let hostile = Record {
                method: &value,
                target: &value,
                version: &value,
                host: Some(&value),
                referer: Some(&value),
                user_agent: Some(&value),
                user: Some(&value),
                origin: Some(LoggedOrigin::Unix(&value)),
                ..record()
            };
            let text = line(LogFormat::Json, &hostile);
            let body = text.strip_suffix('\n').unwrap();
            assert_eq!(skip_object(body), Some(""), "{body}");
            assert!(!body.contains(char::is_control), "{body:?}");
        }
        let mixed = Record { host: Some(b"\xc3\xa9\xe9\"\\\n\x7f"), ..record() };
        assert!(
            line(LogFormat::Json, &mixed)
                .contains("\"host\":\"\u{e9}\\u00E9\\u0022\\u005C\\u000A\\u007F\",")
        );
    }

    /// Reads one flat JSON object by the grammar of RFC 8259 and returns the text after it.
    fn skip_object(text: &str) -> Option<&str> {
        let mut text = text.strip_prefix('{')?;
        loop {
            text = skip_string(text)?.strip_prefix(':')?;
            text = match text.strip_prefix("null") {
                Some(rest) => rest,
                None if text.starts_with('"') => skip_string(text)?,
                None => {
                    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
                    (rest.len() < text.len()).then_some(rest)?
                }
            };
            match text.split_at_checked(1)? {
                (",", rest) => text = rest,
                ("}", rest) => return Some(rest),
                _ => return None,
            }
        }
    }

    fn skip_string(text: &str) -> Option<&str> {
        let mut characters = text.strip_prefix('"')?.chars();
        loop {
            match characters.next()? {
                '"' => return Some(characters.as_str()),
                '\\' => {
                    if characters.next()? != 'u' {
                        return None;
                    }
                    for _ in 0..4 {
                        characters.next().filter(char::is_ascii_hexdigit)?;
                    }
                }
                '\0'..='\x1f' => return None,
                _ => {}
            }
        }
    }
}
