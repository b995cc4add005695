//! Changes to a message that an HTTP expert would try: to bytes, words, numbers, lines and chunks,
//! and between two messages.
//!
//! In place of an address, a template contains one private-use character (see `templates.rs`), so
//! no change can produce the address of another server.

use std::ops::Range;

use super::random::Random;

/// Changes `bytes` in one to four ways. `other` is another message, for splices.
pub(super) fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    // A third of the mutants stay close to valid messages, so that some are accepted and some are
    // refused.
    let mild = random.below(3) == 0;
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            return;
        }
        if mild {
            change_mildly(bytes, random);
        } else {
            change(bytes, other, random);
        }
    }
}

fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = place(bytes, random);
    match random.below(24) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.choose(&ODD)[0],
        2 => insert(bytes, at, random.choose(&ODD)),
        3 => insert(bytes, at, random.choose(&SNIPPETS)),
        4 => drop(bytes.remove(at)),
        5 => drop(bytes.drain(at..(at + 1 + random.below(12)).min(bytes.len()))),
        6 => bytes.truncate(at.max(1)),
        7 => {
            let range = at..(at + 1 + random.below(40)).min(bytes.len());
            let copy = bytes[range.clone()].to_owned();
            insert(bytes, range.end, &copy);
        }
        8 | 9 => change_number(bytes, random),
        10 => change_word(bytes, random),
        11 => change_case(bytes, random),
        12 | 13 => change_line_end(bytes, random),
        14 | 15 => change_space(bytes, random),
        16 | 17 => change_lines(bytes, random),
        18 => insert_line(bytes, random.choose(&FIELDS), random),
        19 => change_chunk(bytes, random),
        20 => {
            let line = line_at(other, place(other, random));
            let line = other[line].to_owned();
            insert_line(bytes, &line, random);
        }
        21 => weaken(bytes, random),
        _ => splice(bytes, other, random),
    }
}

/// Adds faults to all lines of a header or to one. The program rewrites these faults in responses,
/// and refuses them in requests.
fn weaken(bytes: &mut Vec<u8>, random: &mut Random) {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |end| end + 4);
    let first = line_at(bytes, 0).end.min(head);
    match random.below(4) {
        0 => {
            let bare = bytes[..head].iter().copied().filter(|byte| *byte != b'\r');
            let bare: Vec<_> = bare.collect();
            bytes.splice(..head, bare);
        }
        1 if first < head => {
            let line = line_at(bytes, first + random.below(head - first));
            let value = bytes[line.clone()].iter().position(|byte| *byte == b':').unwrap_or(0) + 1;
            let at = line.start + value + random.below(line.len() - value.min(line.len() - 1));
            insert(bytes, at, random.choose(&[&b"\r\n "[..], b"\r\n\t", b" \r\n  "]));
        }
        2 => {
            for at in (first..head).rev() {
                if bytes[at] == b':' && random.below(2) == 0 {
                    insert(bytes, at, random.choose(&[&b" "[..], b"\t"]));
                }
            }
        }
        _ => {
            let fields = [&b"Content-Length: 2\r\n"[..], b"Content-Length: 2, 2\r\n"];
            insert_line(bytes, random.choose(&fields), random);
        }
    }
}

/// Applies a change that nearly always keeps a valid request valid.
fn change_mildly(bytes: &mut Vec<u8>, random: &mut Random) {
    match random.below(7) {
        0 => change_case(bytes, random),
        1 => insert_line(bytes, random.choose(&PLAIN_FIELDS), random),
        2 => {
            // White space that is not part of a value.
            let line = line_at(bytes, place(bytes, random));
            let text = &bytes[line.clone()];
            if let Some(colon) = text.iter().position(|byte| *byte == b':') {
                let end = line.start + text.trim_ascii_end().len();
                let at = if random.below(2) == 0 { line.start + colon + 1 } else { end };
                insert(bytes, at, random.choose(&[&b" "[..], b"\t", b"  \t"]));
            }
        }
        3 => {
            // A byte of a target.
            let space = bytes.iter().position(|byte| *byte == b' ').unwrap_or(0);
            let end = space + bytes[space..].iter().take_while(|byte| **byte != b'H').count();
            if let Some(end) = end.checked_sub(1).filter(|end| bytes.get(*end) == Some(&b' ')) {
                insert(bytes, end, random.choose(&[&b"a"[..], b"%20", b"/", b".", b";x=1", b"//"]));
            }
        }
        4 => {
            let methods: [&[u8]; 6] = [b"GET", b"POST", b"PUT", b"DELETE", b"PATCH", b"FOO-BAR"];
            let end = bytes.iter().position(|byte| *byte == b' ').unwrap_or(0);
            if bytes[..end].iter().all(u8::is_ascii_uppercase) {
                bytes.splice(..end, random.choose(&methods).iter().copied());
            }
        }
        5 => change_chunk_mildly(bytes, random),
        _ => {
            // The next message on the connection.
            let copy = bytes.clone();
            if copy.len() < 4096 {
                bytes.extend_from_slice(&copy);
            }
        }
    }
}

/// Returns a position. Near the beginning of a long message it is more likely.
fn place(bytes: &[u8], random: &mut Random) -> usize {
    let reach = if random.below(4) == 0 { bytes.len() } else { bytes.len().min(600) };
    random.below(reach)
}

fn insert(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    bytes.splice(at..at, new.iter().copied());
}

/// Returns the line around a position, including its end.
fn line_at(bytes: &[u8], at: usize) -> Range<usize> {
    let at = at.min(bytes.len());
    let start = bytes[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |lf| lf + 1);
    let end = bytes[at..].iter().position(|byte| *byte == b'\n');
    start..end.map_or(bytes.len(), |lf| at + lf + 1)
}

/// Returns the longest range around a position, or after it, whose bytes all fit.
fn range_at(bytes: &[u8], at: usize, fits: impl Fn(u8) -> bool) -> Option<Range<usize>> {
    let first = at + bytes.get(at..)?.iter().position(|byte| fits(*byte))?;
    let start = bytes[..first].iter().rposition(|byte| !fits(*byte)).map_or(0, |before| before + 1);
    let end = bytes[first..].iter().position(|byte| !fits(*byte));
    Some(start..end.map_or(bytes.len(), |end| first + end))
}

/// Changes a number.
fn change_number(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = place(bytes, random);
    let hex = random.below(2) == 0;
    let fits = |byte: u8| if hex { byte.is_ascii_hexdigit() } else { byte.is_ascii_digit() };
    let Some(range) = range_at(bytes, at, fits) else { return };
    let text = String::from_utf8_lossy(&bytes[range.clone()]).into_owned();
    let number = u64::from_str_radix(&text, if hex { 16 } else { 10 }).unwrap_or(5);
    let (more, less) = (number.saturating_add(1), number.saturating_sub(1));
    let new = match random.below(20) {
        0 => {
            if hex {
                format!("{more:x}")
            } else {
                more.to_string()
            }
        }
        1 => {
            if hex {
                format!("{less:x}")
            } else {
                less.to_string()
            }
        }
        2 => format!("0{text}"),
        3 => format!("0x{text}"),
        4 => format!("+{text}"),
        5 => format!("-{text}"),
        6 => format!("{text}_0"),
        7 => format!("{text}, {text}"),
        8 => format!("{text} "),
        9 => format!(" {text}"),
        10 => format!("{text}\t;"),
        11 => "18446744073709551616".to_owned(),
        12 => "9223372036854775808".to_owned(),
        13 => "10000000000000000".to_owned(),
        14 => "ffffffffffffffff".to_owned(),
        15 => "0".to_owned(),
        16 => text.to_uppercase(),
        17 => format!("{text}.0"),
        18 => format!("{text};a=\"b\""),
        _ => String::new(),
    };
    bytes.splice(range, new.into_bytes());
}

fn change_word(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = place(bytes, random);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-./_".contains(&byte);
    if let Some(range) = range_at(bytes, at, fits) {
        bytes.splice(range, random.choose(&WORDS).iter().copied());
    }
}

fn change_case(bytes: &mut [u8], random: &mut Random) {
    let line = line_at(bytes, place(bytes, random));
    // Usually only the name of a field changes. Otherwise the whole line changes.
    let colon = bytes[line.clone()].iter().position(|byte| *byte == b':');
    let name = colon.map_or(line.clone(), |colon| line.start..line.start + colon);
    let range = if random.below(4) == 0 { line } else { name };
    match random.below(3) {
        0 => bytes[range].make_ascii_uppercase(),
        1 => bytes[range].make_ascii_lowercase(),
        _ => {
            for byte in &mut bytes[range] {
                if byte.is_ascii_alphabetic() && random.below(2) == 0 {
                    *byte ^= 0x20;
                }
            }
        }
    }
}

/// Ends a line differently, joins it with the next one, or folds it.
fn change_line_end(bytes: &mut Vec<u8>, random: &mut Random) {
    const ENDS: [&[u8]; 14] = [
        b"\n",
        b"\r",
        b"\r\r\n",
        b"\n\r",
        b"\r\n ",
        b"\r\n\t",
        b"\r\n\r\n",
        b"",
        b" \r\n",
        b"\t\r\n",
        b"\r \n",
        b"\r\n\x0b",
        b"\0\r\n",
        b"\x85",
    ];
    let line = line_at(bytes, place(bytes, random));
    let text = line.start + bytes[line.clone()].trim_ascii_end().len();
    bytes.splice(text..line.end, random.choose(&ENDS).iter().copied());
}

/// Adds or replaces white space, or removes the line.
fn change_space(bytes: &mut Vec<u8>, random: &mut Random) {
    const SPACES: [&[u8]; 8] = [b" ", b"\t", b"  ", b"\x0b", b"\x0c", b"\xa0", b"\0", b"\r"];
    let line = line_at(bytes, place(bytes, random));
    let space = random.choose(&SPACES);
    let colon = bytes[line.clone()].iter().position(|byte| *byte == b':');
    let colon = line.start + colon.unwrap_or(0);
    let end = line.start + bytes[line.clone()].trim_ascii_end().len();
    match random.below(6) {
        0 => insert(bytes, line.start, space),
        1 => insert(bytes, colon, space),
        2 => insert(bytes, (colon + 1).min(line.end), space),
        3 => insert(bytes, end, space),
        4 => {
            let first = bytes[line.clone()].iter().position(|byte| *byte == b' ');
            let first = line.start + first.unwrap_or(0);
            bytes.splice(first..(first + 1).min(bytes.len()), space.iter().copied());
        }
        _ => bytes.splice(line, std::iter::empty()).for_each(drop),
    }
}

/// Repeats, removes, reorders, moves or splits lines.
fn change_lines(bytes: &mut Vec<u8>, random: &mut Random) {
    let one = line_at(bytes, place(bytes, random));
    let text = bytes[one.clone()].to_owned();
    match random.below(5) {
        0 => insert(bytes, one.end, &text),
        1 => drop(bytes.drain(one)),
        2 => {
            bytes.drain(one);
            let to = line_at(bytes, place(bytes, random)).start;
            insert(bytes, to, &text);
        }
        3 => {
            let to = line_at(bytes, place(bytes, random)).start;
            insert(bytes, to, &text);
        }
        _ => {
            let at = one.start + random.below(one.len());
            insert(bytes, at, b"\r\n");
        }
    }
}

/// Inserts a line after another one of the header.
fn insert_line(bytes: &mut Vec<u8>, line: &[u8], random: &mut Random) {
    let at = line_at(bytes, place(bytes, random)).end;
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n").map_or(at, |end| end + 2);
    insert(bytes, at.min(head), line);
}

/// Returns the ranges of the digits in lines that look like chunk sizes.
fn chunk_lines(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut lines = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let line = line_at(bytes, at);
        let digits = bytes[line.clone()].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        if digits > 0 && !bytes[line.clone()].contains(&b':') {
            lines.push(line.start..line.start + digits);
        }
        at = line.end.max(at + 1);
    }
    lines
}

fn change_chunk(bytes: &mut Vec<u8>, random: &mut Random) {
    const AFTER: [&[u8]; 16] = [
        b";",
        b";a",
        b";a=b",
        b";a=\"b",
        b"; a",
        b" ;a",
        b";a\n",
        b";a\rX",
        b"\n",
        b"\r",
        b" ",
        b"\0",
        b"h",
        b"\r\n\r\n",
        b";\x80",
        b";a=\"\r\n0\r\n\r\n\"",
    ];
    const BEFORE: [&[u8]; 10] =
        [b"0x", b"0", b"+", b"-", b" ", b"\t", b"\r\n", b"\n", b"0000000000000000", b"1\r\nZ\r\n"];
    let lines = chunk_lines(bytes);
    if lines.is_empty() {
        return change_number(bytes, random);
    }
    let digits = lines[random.below(lines.len())].clone();
    match random.below(3) {
        0 => insert(bytes, digits.start, random.choose(&BEFORE)),
        1 => insert(bytes, digits.end, random.choose(&AFTER)),
        _ => {
            let size = random.choose(&[&b"0"[..], b"1", b"a", b"FF", b"7fffffffffffffff", b"g"]);
            bytes.splice(digits, size.iter().copied());
        }
    }
}

/// Adds an extension or a chunk to a chunked message.
fn change_chunk_mildly(bytes: &mut Vec<u8>, random: &mut Random) {
    let body = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let framed = bytes.to_ascii_lowercase().windows(7).any(|seven| seven == b"chunked");
    let (Some(body), true) = (body, framed) else { return };
    let mut lines = chunk_lines(bytes);
    lines.retain(|digits| digits.start > body);
    let Some(digits) = lines.first() else { return };
    match random.below(2) {
        0 => insert(bytes, digits.end, random.choose(&[&b";a"[..], b";a=b", b";a=\"b;\\\"c\""])),
        _ => insert(bytes, digits.start, random.choose(&[&b"1\r\n0\r\n"[..], b"3\r\n\r\n\0\r\n"])),
    }
}

/// Appends or inserts another message, or replaces the end of the message by the end of the other
/// one. The cuts are at lines or anywhere.
fn splice(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let (mut at, mut from) = (place(bytes, random), place(other, random));
    if random.below(3) > 0 {
        (at, from) = (line_at(bytes, at).end, line_at(other, from).start);
    }
    match random.below(3) {
        0 => bytes.extend_from_slice(other),
        1 => insert(bytes, at, other),
        _ => {
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
    }
}

const ODD: [&[u8]; 24] = [
    b"\r", b"\n", b"\0", b" ", b"\t", b":", b",", b";", b"0", b"\"", b"\\", b"/", b"?", b"#", b"%",
    b"@", b"[", b"\x0b", b"\x0c", b"\x7f", b"\x80", b"\xa0", b"\xff", b"\x1b",
];

const SNIPPETS: [&[u8]; 14] = [
    b"\r\n",
    b"\r\n\r\n",
    b"chunked",
    b"\r\n ",
    b"\r\nTransfer-Encoding: chunked",
    b"\r\nContent-Length: 5",
    b"\r\nConnection: close",
    b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
    b"0\r\n\r\n",
    b"\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b" HTTP/1.1\r\nX: ",
    b"\xef\xbc\x9a",
    b"%0d%0a",
];

const WORDS: [&[u8]; 42] = [
    b"GET",
    b"HEAD",
    b"POST",
    b"PUT",
    b"DELETE",
    b"OPTIONS",
    b"TRACE",
    b"PRI",
    b"get",
    b"G-T",
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"HTTP/0.9",
    b"HTTP/1.10",
    b"HTTP/2.0",
    b"http/1.1",
    b"HTTP/1.2",
    b"chunked",
    b"identity",
    b"gzip",
    b"xchunked",
    b"chunked,",
    b"close",
    b"keep-alive",
    b"Upgrade",
    b"h2c",
    b"websocket",
    b"Host",
    b"Content-Length",
    b"Transfer-Encoding",
    b"Connection",
    b"TE",
    b"Expect",
    b"100-continue",
    b"Trailer",
    b"*",
    b"/",
    b"100",
    b"101",
    b"204",
    b"304",
    b"999",
];

const FIELDS: [&[u8]; 40] = [
    b"Content-Length: 0\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 05\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length: 5, 5\r\n",
    b"Content-Length:\r\n",
    b"Content-Length : 5\r\n",
    b"Content_Length: 5\r\n",
    b"Content-Length\r\n",
    b"\tContent-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding:chunked\r\n",
    b"Transfer-Encoding: CHUNKED\r\n",
    b"Transfer-Encoding:\tchunked\r\n",
    b"Transfer-Encoding: \x0bchunked\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Transfer-Encoding: , chunked\r\n",
    b"Transfer-Encoding:\r\n chunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Transfer_Encoding: chunked\r\n",
    b"X: y\nTransfer-Encoding: chunked\r\n",
    b"X: y\rTransfer-Encoding: chunked\r\n",
    b"Host: a\r\n",
    b"Host:\r\n",
    b"Connection: close\r\n",
    b"Connection: content-length\r\n",
    b"Connection: transfer-encoding, host\r\n",
    b"Connection: upgrade\r\n",
    b"Upgrade: h2c\r\n",
    b"Upgrade: websocket\r\n",
    b"Expect: 100-continue\r\n",
    b"Expect: x\r\n",
    b"TE: trailers\r\n",
    b"Trailer: Content-Length\r\n",
    b"Max-Forwards: 0\r\n",
    b"Keep-Alive: timeout=1\r\n",
    b"Proxy-Connection: keep-alive\r\n",
    b": x\r\n",
];

const PLAIN_FIELDS: [&[u8]; 10] = [
    b"X-Plain: 1\r\n",
    b"x-empty:\r\n",
    b"Accept: */*;q=0.1, text/html\r\n",
    b"Cookie: a=b; c=\"d\"\r\n",
    b"X-High: \xe4\xf6\xfc\r\n",
    b"X-Tab: a\tb\r\n",
    b"!#$%&'*+-.^_`|~: token\r\n",
    b"Connection: keep-alive\r\n",
    b"User-Agent: a (b; c)\r\n",
    b"Range: bytes=0-1\r\n",
];

#[cfg(test)]
mod tests {
    use super::super::literal::Role;
    use super::super::valid;
    use super::*;

    const CHUNKED: &[u8] = b"POST /a HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n\
                             3\r\nabc\r\n0\r\n\r\n";

    #[test]
    fn every_change_works_on_every_message() {
        let messages: [&[u8]; 6] = [b"", b"\n", b"G", b"\r\n\r\n", b"0\r\n", CHUNKED];
        for seed in 0..20_000 {
            let mut random = Random::new(seed);
            let mut bytes = random.choose(&messages).to_owned();
            let other = random.choose(&messages[1..]);
            mutate(&mut bytes, other, &mut random);
        }
    }

    #[test]
    fn some_mutants_are_valid_and_some_are_not() {
        let mut sound = 0;
        for seed in 0..2_000 {
            let mut bytes = CHUNKED.to_owned();
            mutate(&mut bytes, CHUNKED, &mut Random::new(seed));
            sound += usize::from(valid::read(&bytes, Role::Boost).all);
        }
        assert!((200..1_800).contains(&sound), "{sound} of 2,000");
    }
}
