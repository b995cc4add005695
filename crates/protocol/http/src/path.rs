//! Paths of request targets: their normal form, and the ways in which origins read them.
//!
//! A proxy that selects by path has to select what its origin will select, although origins do not
//! agree: some decode `%2f` before they remove dot segments, some merge slashes, some cut path
//! parameters off. [`normalise`] returns the one form that is compared, and [`readings`] the forms
//! that origins may make of the same bytes.
//!
//! A path begins with `/` and ends before the query. A raw `\` is read with `%5c`: no request has one in
//! its path ([`crate::target`]).

use std::borrow::Cow;

use memchr::memchr;

/// Splits a path and query before the first `?`.
pub fn split_query(path_and_query: &[u8]) -> (&[u8], &[u8]) {
    path_and_query.split_at(memchr(b'?', path_and_query).unwrap_or(path_and_query.len()))
}

/// Whether every origin reads the path alike: it has no escape, no path parameter, no empty segment
/// and no segment that begins with a dot. Such a path is its own normal form.
pub fn is_plain(path: &[u8]) -> bool {
    let mut before = 0;
    path.iter().all(|&byte| {
        let is_plain = !matches!((before, byte), (_, b'%' | b';' | b'\\') | (b'/', b'/' | b'.'));
        before = byte;
        is_plain
    })
}

/// Returns the normal form of a path: unreserved characters decoded and other escapes in upper case
/// (RFC 3986 section 6.2.2), slashes merged, then dot segments removed (section 5.2.4). A `%` that
/// begins no escape becomes `%25`, so that decoding never forms a new escape.
pub fn normalise(path: &[u8]) -> Cow<'_, [u8]> {
    if is_plain(path) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(remove_dot_segments(&merge_slashes(&decode_unreserved(path))))
}

/// Whether the path hides something from readers that do not decode it: an encoded NUL, or a dot
/// segment with an encoded dot, wherever an origin may see the ends of a segment.
pub fn hides_segments(path: &[u8]) -> bool {
    let is_hidden_dots = |segment: &[u8]| {
        segment.contains(&b'%') && matches!(&*decode_unreserved(segment), b"." | b"..")
    };
    let segments = decode_slashes(path, [true; 2]);
    let mut segments = segments.split(|&byte| byte == b'/');
    path.windows(3).any(|escape| escape == b"%00")
        || segments.any(|segment| is_hidden_dots(before_semicolon(segment)))
}

/// The longest path whose [`readings`] are worth their work: some 10 million instructions.
pub const READ_BYTES_MAX: usize = 4096;

/// Returns every form that an origin may make of a path, each once, the normal form among them.
///
/// Unreserved characters are decoded in all of them. The forms differ in whether `%2f` is a slash;
/// whether `%5c` and `\` are; whether slashes are merged, before or after dot segments are removed;
/// whether dot segments are removed; and whether what begins with `;` is cut from each segment,
/// before or after slashes are decoded, or to the end. There are at most 80.
pub fn readings(path: &[u8]) -> Vec<Vec<u8>> {
    let decoded = decode_unreserved(path);
    let mut sources = Vec::new();
    for slashes in [[false, false], [true, false], [false, true], [true, true]] {
        let with_slashes = decode_slashes(&decoded, slashes);
        add(&mut sources, before_semicolon(&with_slashes).to_vec());
        add(&mut sources, cut_parameters(&with_slashes));
        add(&mut sources, decode_slashes(&cut_parameters(&decoded), slashes));
        add(&mut sources, with_slashes);
    }
    let mut all = Vec::new();
    for source in sources {
        let (merged, removed) = (merge_slashes(&source), remove_dot_segments(&source));
        add(&mut all, remove_dot_segments(&merged));
        add(&mut all, merge_slashes(&removed));
        for form in [source, merged, removed] {
            add(&mut all, form);
        }
    }
    all
}

fn add(forms: &mut Vec<Vec<u8>>, form: Vec<u8>) {
    if !forms.contains(&form) {
        forms.push(form);
    }
}

/// Removes `.` and `..` segments from a path, RFC 3986 section 5.2.4.
pub fn remove_dot_segments(path: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(path.len());
    let mut segments = path.get(1..).unwrap_or_default().split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            b"." if is_last => out.push(b'/'),
            b"." => {}
            b".." => {
                let parent_len = out.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                out.truncate(parent_len);
                if is_last {
                    out.push(b'/');
                }
            }
            segment => {
                out.push(b'/');
                out.extend_from_slice(segment);
            }
        }
    }
    if out.is_empty() { b"/".to_vec() } else { out }
}

fn merge_slashes(path: &[u8]) -> Vec<u8> {
    let mut merged = path.to_vec();
    merged.dedup_by(|byte, before| *byte == b'/' && *before == b'/');
    merged
}

/// Decodes the escapes of unreserved characters (RFC 3986 section 2.3) and writes all others alike.
fn decode_unreserved(path: &[u8]) -> Vec<u8> {
    map_escapes(path, |byte| {
        (byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)).then_some(byte)
    })
}

/// Decodes the escapes of `/` and of `\`, as asked for, to `/`; a raw `\` goes with the latter.
fn decode_slashes(path: &[u8], [slash, backslash]: [bool; 2]) -> Vec<u8> {
    let mut decoded = map_escapes(path, |byte| {
        (byte == b'/' && slash || byte == b'\\' && backslash).then_some(b'/')
    });
    if backslash {
        decoded.iter_mut().filter(|byte| **byte == b'\\').for_each(|byte| *byte = b'/');
    }
    decoded
}

/// Replaces each escape by the byte that `decode` returns for its value, or writes it in upper case.
fn map_escapes(path: &[u8], decode: impl Fn(u8) -> Option<u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, after @ ..] = rest {
        rest = after;
        match (*first, escape_of(after)) {
            (b'%', Some(value)) => {
                rest = &after[2..];
                match decode(value) {
                    Some(byte) => out.push(byte),
                    None => {
                        out.push(b'%');
                        out.extend(after[..2].iter().map(u8::to_ascii_uppercase));
                    }
                }
            }
            (b'%', None) => out.extend_from_slice(b"%25"),
            (byte, _) => out.push(byte),
        }
    }
    out
}

/// The value of the two hexadecimal digits that bytes begin with.
fn escape_of(bytes: &[u8]) -> Option<u8> {
    let digit = |at: usize| (*bytes.get(at)? as char).to_digit(16);
    Some((digit(0)? << 4 | digit(1)?) as u8)
}

/// The path with each segment cut where its parameters begin.
fn cut_parameters(path: &[u8]) -> Vec<u8> {
    let segments: Vec<&[u8]> = path.split(|&byte| byte == b'/').map(before_semicolon).collect();
    segments.join(&b'/')
}

fn before_semicolon(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == b';').next().unwrap_or_default()
}

/// Checks what holds of any bytes that a target may have as its path; for fuzzing.
///
/// # Panics
/// When a normal form is not stable or not among the readings, or a plain path has two readings.
pub fn fuzz_path(data: &[u8]) {
    let path = [b"/", data].concat();
    let normal = normalise(&path).into_owned();
    assert_eq!(normalise(&normal), &normal[..], "{}", path.escape_ascii());
    assert!(normal.starts_with(b"/") && !normal.windows(2).any(|pair| pair == b"//"));
    let readings = readings(&path);
    assert!(readings.contains(&normal) && readings.len() <= 80);
    assert!(readings.iter().all(|reading| reading.starts_with(b"/")));
    if is_plain(&path) {
        assert_eq!(readings, [path]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(path: &str) -> String {
        String::from_utf8(normalise(path.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn equal_paths_have_one_normal_form_rfc_3986_section_6_2_2() {
        for (path, expected) in [
            ("/", "/"),
            ("/a/b.c", "/a/b.c"),
            ("/%61ccount", "/account"),
            ("//account", "/account"),
            ("/a///b//", "/a/b/"),
            ("/static/../account", "/account"),
            ("/static/%2e%2E/account", "/account"),
            ("/static//../account", "/account"),
            ("/.well-known/%7euser", "/.well-known/~user"),
            ("/a/.", "/a/"),
            ("/../..", "/"),
            ("/a%2fb%2Fc", "/a%2Fb%2Fc"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/100%", "/100%25"),
            ("/%%32f", "/%252f"),
            ("/%zz%2", "/%25zz%252"),
            ("/a;b=c/d", "/a;b=c/d"),
        ] {
            assert_eq!(normal(path), expected, "{path}");
            assert_eq!(normal(expected), expected);
        }
    }

    #[test]
    fn hidden_segments_are_found_wherever_a_segment_may_end() {
        for path in [
            "/a%00",
            "/%2e%2e/a",
            "/a/%2E",
            "/a/.%2e/b",
            "/a/%2e%2e;x/b",
            "/a%2f%2e%2e%2fb",
            "/a%5C.%2e",
            "/a\\%2e\\b",
        ] {
            assert!(hides_segments(path.as_bytes()), "{path}");
        }
        for path in ["/a/../b", "/a%2fb", "/%2ea", "/a%2e", "/...", "/%2e%2e%2e", "/a/..;x/b"] {
            assert!(!hides_segments(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn each_reading_of_an_origin_is_returned() {
        let has = |path: &str, reading: &str| {
            readings(path.as_bytes()).contains(&reading.as_bytes().to_vec())
        };
        assert!(has("/static/..%2faccount", "/account"), "decode, then remove dot segments");
        assert!(has("/static/..%2faccount", "/static/..%2Faccount"), "as it is");
        assert!(has("/static/..%5caccount", "/account"));
        assert!(has("/a%2f..%5c..%2fb", "/a/..%5C../b"), "one of them a slash, the other not");
        assert!(has("/a//../b", "/a/b"), "dot segments removed, slashes not merged");
        assert!(has("/a/..//x//../y", "//x/y") && has("/a/..//x//../y", "/y"));
        assert!(has("/a/..//x//../y", "/x/y"), "slashes merged after dot segments are removed");
        assert!(has("/account;x.css", "/account") && has("/a;x/b;y", "/a/b"));
        assert!(has("/a;x/../b", "/a"), "cut to the end");
        assert!(has("/static/..;/account", "/account"));
        assert!(has("/a;b%2f../c", "/a/c"), "cut before slashes are decoded");
        assert!(has("/a;b%2f../c", "/c"), "and after");
        assert_eq!(readings(b"/a/b"), [b"/a/b"]);
    }

    #[test]
    fn any_bytes_have_a_stable_normal_form() {
        const PIECES: [&[u8]; 14] = [
            b"/", b"//", b".", b"..", b"%2e", b"%2F", b"%5c", b"\\", b";", b"a", b"%", b"%61",
            b"%zz", b"%%32",
        ];
        let mut random = crate::corpus::Random::seeded();
        for _ in 0..20_000 {
            let count = random.below(9);
            let path: Vec<&[u8]> = (0..count).map(|_| PIECES[random.below(PIECES.len())]).collect();
            fuzz_path(&path.concat());
        }
    }
}
