//! Paths of request targets: their normal form, and how origins may interpret them.
//!
//! A proxy that selects a route by path must interpret the path as the origin will. Origins
//! interpret the same path differently: some decode `%2f` before they remove dot segments, some
//! merge slashes, some cut path parameters off. [`normalise`] returns the form that selects the
//! route, and [`is_ambiguous`] tests the other forms that origins may derive from the same bytes.
//!
//! A path begins with `/` and ends before the query. A raw `\` is treated like `%5c`, although no
//! accepted request has one in its path ([`crate::target`]).

use std::borrow::Cow;

use memchr::memchr;

/// Splits a request target into path and query. The query begins with the first `?`, and is empty
/// if there is none.
pub fn split_query(path_and_query: &[u8]) -> (&[u8], &[u8]) {
    path_and_query.split_at(memchr(b'?', path_and_query).unwrap_or(path_and_query.len()))
}

/// Returns whether every origin interprets the path alike: it has no escape, no backslash, no path
/// parameter, no empty segment and no segment that begins with a dot. Such a path is its own normal
/// form.
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
/// begins no escape becomes `%25`, so that decoding never creates a new escape.
pub fn normalise(path: &[u8]) -> Cow<'_, [u8]> {
    if is_plain(path) {
        return Cow::Borrowed(path);
    }
    let decoded = decode_unreserved(path);
    if is_unambiguous(path) {
        return Cow::Owned(decoded);
    }
    Cow::Owned(remove_dot_segments(&merge_slashes(&decoded)))
}

/// Returns the form in which the path of a route has to be written: the normal form, without
/// escapes that a path does not need. This form can be compared with each interpretation of a
/// request's path.
pub fn route_form(path: &[u8]) -> Vec<u8> {
    let decode = |byte: u8| byte.is_ascii_graphic() && !b"/\\%?#;".contains(&byte);
    normalise(&map_escapes(path, |byte| decode(byte).then_some(byte))).into_owned()
}

/// Returns whether every origin interprets the path as its normal form: it has no encoded slash,
/// backslash, dot or NUL, no raw backslash, no path parameter, no empty segment and no segment that
/// begins with a dot. Other escapes, such as `%20` and `%c3`, do not change where segments end.
fn is_unambiguous(path: &[u8]) -> bool {
    let mut before = 0;
    let mut bytes = path.iter();
    while let Some(&byte) = bytes.next() {
        let is_ambiguous = match (before, byte) {
            (_, b';' | b'\\') | (b'/', b'/' | b'.') => true,
            (_, b'%') => matches!(parse_escape(bytes.as_slice()), Some(0 | b'.' | b'/' | b'\\')),
            _ => false,
        };
        if is_ambiguous {
            return false;
        }
        before = byte;
    }
    true
}

/// Returns whether an origin may interpret the path as one for which `is_other` returns true, or
/// whether the path hides segments from implementations that do not decode it.
///
/// `is_other` must return false for the normal form. It must compare only the start of a path, with
/// prefixes that have no double slash. Then only the forms that keep all double slashes and the
/// forms that keep none have to be tested. A path of more than [`INTERPRETED_BYTES_MAX`] bytes is
/// ambiguous unless it has one interpretation only.
///
/// Most origins decode the escapes of all visible characters, such as `%40` for `@`, and some
/// decode twice, so that `%252f` becomes a slash. The path is therefore also tested with visible
/// characters decoded once and twice, as if it had been sent in these forms.
pub fn is_ambiguous(path: &[u8], is_other: impl Fn(&[u8]) -> bool) -> bool {
    let is_ambiguous = |path: &[u8]| {
        !is_unambiguous(path)
            && (path.len() > INTERPRETED_BYTES_MAX
                || hides_segments(path)
                || any_interpretation(path, &is_other))
    };
    let as_read_once_more =
        |path: &[u8]| has_escape(path, is_visible).then(|| decode_visible(path));
    let decoded = std::iter::successors(as_read_once_more(path), |path| as_read_once_more(path));
    is_ambiguous(path)
        || decoded.take(2).any(|path| is_other(&normalise(&path)) || is_ambiguous(&path))
}

/// Returns whether the path hides something from implementations that do not decode it:
///
/// * an encoded NUL,
/// * a dot segment that has an encoded dot, or
/// * a dot segment in a path that has an encoded slash, a backslash or a path parameter.
///
/// Slashes and backslashes, encoded or not, end a segment here, and so does a semicolon.
///
/// Encoded slashes, backslashes and path parameters move the ends of segments, so the result
/// depends on the order in which an origin removes dot segments, decodes escapes and cuts
/// parameters off, and on how often it does so. For example, an origin that removes dot segments
/// both before and after decoding interprets `/a/b%2fc/../..%2fd` as `/d`. No list of orders is
/// complete, so all such paths are reported. Ordinary clients do not send them, because they remove
/// dot segments first.
fn hides_segments(path: &[u8]) -> bool {
    let segments = decode_slashes(path, [true; 2]);
    let is_mixed = path.iter().any(|byte| b";\\".contains(byte))
        || has_escape(path, |byte| b"/\\".contains(&byte));
    let is_hidden_dots = |segment: &[u8]| {
        matches!(&*decode_unreserved(segment), b"." | b"..")
            && (is_mixed || segment.contains(&b'%'))
    };
    let mut segments = segments.split(|&byte| byte == b'/');
    has_escape(path, |byte| byte == 0)
        || segments.any(|segment| is_hidden_dots(before_semicolon(segment)))
}

/// Maximum bytes of a path whose interpretations are compared. At 2,500 instructions a byte, the
/// comparison takes about 10 million instructions at most.
pub const INTERPRETED_BYTES_MAX: usize = 4096;

/// Returns whether an origin may interpret the path, which hides no segments, as one for which
/// `is_match` returns true.
///
/// Unreserved characters are decoded in all forms. A path with dot segments has no encoded slash,
/// no backslash and no parameter, because it hides no segments. Its forms differ in whether dot
/// segments are removed, whether slashes are merged, and which of the two comes first.
///
/// The forms of a path without dot segments differ in whether `%2f` is a slash, whether `%5c` and
/// `\` are slashes, whether slashes are merged, and whether parameters are cut. Parameters are cut
/// from each `;` to the end of its segment, before or after slashes are decoded, or from the first
/// `;` to the end of the path.
fn any_interpretation(path: &[u8], is_match: impl Fn(&[u8]) -> bool) -> bool {
    let decoded = decode_unreserved(path);
    let removed = remove_dot_segments(&decoded);
    let is_either = |form: &[u8]| is_match(form) || is_match(&merge_slashes(form));
    if removed != decoded {
        let normal = remove_dot_segments(&merge_slashes(&decoded));
        return is_match(&normal) || is_either(&decoded) || is_either(&removed);
    }
    const SLASHES: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];
    SLASHES.into_iter().any(|before| {
        let with_slashes = decode_slashes(&decoded, before);
        let cut = cut_parameters(&with_slashes);
        is_either(&with_slashes)
            || is_either(before_semicolon(&with_slashes))
            || SLASHES.into_iter().any(|after| is_either(&decode_slashes(&cut, after)))
    })
}

/// Removes `.` and `..` segments from a path (RFC 3986 section 5.2.4).
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

/// Decodes the escapes of unreserved characters (RFC 3986 section 2.3), and writes all others in
/// upper case.
fn decode_unreserved(path: &[u8]) -> Vec<u8> {
    map_escapes(path, |byte| {
        (byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)).then_some(byte)
    })
}

/// Decodes the escapes of all visible ASCII characters except `/` and `\`. An encoded NUL stays
/// encoded.
fn decode_visible(path: &[u8]) -> Vec<u8> {
    map_escapes(path, |byte| is_visible(byte).then_some(byte))
}

/// Returns whether a byte is a visible ASCII character other than `/` and `\`.
fn is_visible(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"/\\".contains(&byte)
}

/// Replaces escapes of `/` with `/` if `slash` is set. Replaces escapes of `\`, and raw `\`, with
/// `/` if `backslash` is set.
fn decode_slashes(path: &[u8], [slash, backslash]: [bool; 2]) -> Vec<u8> {
    let mut decoded = map_escapes(path, |byte| {
        (byte == b'/' && slash || byte == b'\\' && backslash).then_some(b'/')
    });
    if backslash {
        decoded.iter_mut().filter(|byte| **byte == b'\\').for_each(|byte| *byte = b'/');
    }
    decoded
}

/// Replaces each escape with the byte that `decode` returns for its value, or writes it in upper
/// case if `decode` returns `None`.
fn map_escapes(path: &[u8], decode: impl Fn(u8) -> Option<u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, after @ ..] = rest {
        rest = after;
        match (*first, parse_escape(after)) {
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

/// Returns whether the path has an escape whose value `is_match` accepts.
fn has_escape(path: &[u8], is_match: impl Fn(u8) -> bool) -> bool {
    let escapes = path.windows(3).filter(|window| window[0] == b'%');
    escapes.filter_map(|escape| parse_escape(&escape[1..])).any(is_match)
}

/// Parses the two hexadecimal digits at the start of the bytes.
pub fn parse_escape(bytes: &[u8]) -> Option<u8> {
    let digit = |at: usize| (*bytes.get(at)? as char).to_digit(16);
    Some((digit(0)? << 4 | digit(1)?) as u8)
}

/// Appends bytes with their escapes decoded. A `%` that begins no escape stands for itself.
pub fn decode_escapes(bytes: &[u8], out: &mut Vec<u8>) {
    let mut rest = bytes;
    while let [first, after @ ..] = rest {
        match (first, parse_escape(after)) {
            (b'%', Some(value)) => {
                out.push(value);
                rest = &after[2..];
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
}

/// Cuts the parameters off each segment of a path.
fn cut_parameters(path: &[u8]) -> Vec<u8> {
    let segments: Vec<&[u8]> = path.split(|&byte| byte == b'/').map(before_semicolon).collect();
    segments.join(&b'/')
}

fn before_semicolon(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == b';').next().unwrap_or_default()
}

/// Fuzzes the functions of this module with a path of `/` and any bytes.
///
/// # Panics
/// Panics if a normal form is not stable or not among the interpretations, or if an unambiguous
/// path has two interpretations.
pub fn fuzz_path(data: &[u8]) {
    let path = [b"/", data].concat();
    let normal = normalise(&path).into_owned();
    assert_eq!(normalise(&normal), &normal[..], "{}", path.escape_ascii());
    assert!(normal.starts_with(b"/") && !normal.windows(2).any(|pair| pair == b"//"));
    assert!(hides_segments(&path) || any_interpretation(&path, |reading| reading == normal));
    assert!(!any_interpretation(&path, |reading| !reading.starts_with(b"/")));
    if is_unambiguous(&path) {
        assert!(!hides_segments(&path) && !any_interpretation(&path, |reading| reading != normal));
    }
    if is_plain(&path) {
        assert!(is_unambiguous(&path) && normal == path);
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
            "/static/a%2fb/../..%2faccount",
            "/static/a%5cb/../..%5caccount",
            "/static/a\\b/../account",
            "/a/..;x/b",
            "/a;x/../b",
            "/a/./b%2Fc",
            "/a%2f.",
        ] {
            assert!(hides_segments(path.as_bytes()), "{path}");
        }
        for path in ["/a/../b", "/a%2fb", "/%2ea", "/a%2e", "/...", "/%2e%2e%2e", "/a//../b;"] {
            let is_mixed = path.contains(';');
            assert_eq!(hides_segments(path.as_bytes()), is_mixed, "{path}");
        }
    }

    #[test]
    fn each_interpretation_of_an_origin_is_compared() {
        let has = |path: &str, reading: &str| {
            any_interpretation(path.as_bytes(), |form| form == reading.as_bytes())
        };
        assert!(has("/a%2fb", "/a/b") && has("/a%2fb", "/a%2Fb"), "decoded or not");
        assert!(has("/a%5cb\\c", "/a/b/c"));
        assert!(has("/a%2fb%5cc%2fd", "/a/b%5Cc/d"), "one of them a slash, the other not");
        assert!(has("/a%2f/b", "/a//b") && has("/a%2f/b", "/a/b"), "slashes merged or not");
        assert!(has("/a//../b", "/a/b"), "dot segments removed, slashes not merged");
        assert!(has("/a/..//x//../y", "//x/y") && has("/a/..//x//../y", "/y"));
        assert!(has("/a/..//x//../y", "/x/y"), "slashes merged after dot segments are removed");
        assert!(has("/account;x.css", "/account") && has("/a;x/b;y", "/a/b"));
        assert!(has("/a;x/b", "/a"), "cut to the end");
        assert!(has("/a;b%2fc/d", "/a/d"), "cut before slashes are decoded");
        assert!(has("/a;b%2fc/d", "/a/c/d"), "cut after slashes are decoded");
    }

    #[test]
    fn every_escape_may_be_decoded_once_or_twice() {
        for (path, other) in [
            ("/%40me", "/@me"),
            ("/%2540me", "/@me"),
            ("/%2561ccount", "/account"),
            ("/static/..%252faccount", "/account"),
            ("/static/..%3bx/account", "/account"),
            ("/account%3bx", "/account"),
            ("/static/%252e%252e/account", "/account"),
        ] {
            let is_other = |form: &[u8]| form.starts_with(other.as_bytes());
            assert!(is_ambiguous(path.as_bytes(), is_other), "{path}");
        }
        for path in ["/go/http%3a%2f%2fa%3fb%26c", "/100%25", "/a%2525b", "/@me%21/(b)"] {
            let normal = normal(path);
            let prefix = &normal.as_bytes()[..3];
            assert!(!is_ambiguous(path.as_bytes(), |form| !form.starts_with(prefix)), "{path}");
        }
        assert_eq!(route_form(b"/%40me%3a%2f%25%c3%A9"), b"/@me:%2F%25%C3%A9");
    }

    #[test]
    fn a_path_without_ambiguous_characters_has_one_interpretation() {
        let long = format!("/{}", "%20".repeat(2 * INTERPRETED_BYTES_MAX));
        for path in ["/", "/caf%c3%a9", "/a.b/%41%7e", "/a%20b", "/100%", &long] {
            let normal = normal(path);
            assert!(!is_ambiguous(path.as_bytes(), |form| form != normal.as_bytes()), "{path}");
        }
        let long = format!("/{};", "a".repeat(INTERPRETED_BYTES_MAX));
        assert!(is_ambiguous(long.as_bytes(), |_| false), "too long to be compared");
    }

    /// Parts from which origins may derive different paths.
    const PIECES: [&[u8]; 18] = [
        b"/", b"/", b"//", b".", b"..", b"/..", b"%2e", b"%2F", b"%2f", b"%5c", b"\\", b";", b"a",
        b"b", b"%", b"%61", b"%zz", b"%%32",
    ];

    fn random_path(random: &mut crate::corpus::Random, count: usize) -> Vec<u8> {
        let pieces: Vec<&[u8]> = (0..count).map(|_| PIECES[random.below(PIECES.len())]).collect();
        pieces.concat()
    }

    type OriginTransform = fn(&[u8]) -> Vec<u8>;

    /// The transformations that origins apply, in any order and any number of times.
    const TRANSFORMS: [OriginTransform; 6] = [
        |path| decode_slashes(path, [true, false]),
        |path| decode_slashes(path, [false, true]),
        |path| before_semicolon(path).to_vec(),
        cut_parameters,
        merge_slashes,
        remove_dot_segments,
    ];

    #[test]
    fn no_order_of_transforms_turns_an_unambiguous_path_into_another_route() {
        const ROUTES: [&[u8]; 4] = [b"/a/b", b"/a/", b"/b", b"/"];
        let select = |path: &[u8]| ROUTES.iter().position(|route| path.starts_with(route));
        let mut random = crate::corpus::Random::from_clock();
        let (mut accepted, mut forms_max) = (0, 0);
        for _ in 0..30_000 {
            let count = 1 + random.below(9);
            let path = [b"/", &random_path(&mut random, count)[..]].concat();
            let selected = select(&normalise(&path));
            if is_ambiguous(&path, |form| select(form) != selected) {
                continue;
            }
            accepted += 1;
            let mut forms = vec![decode_unreserved(&path)];
            let mut at = 0;
            while at < forms.len() {
                for step in TRANSFORMS {
                    let form = step(&forms[at]);
                    // Every origin decodes unreserved characters.
                    let form = decode_unreserved(&form);
                    if !forms.contains(&form) {
                        assert_eq!(
                            select(&form),
                            selected,
                            "{} read as {}",
                            path.escape_ascii(),
                            form.escape_ascii()
                        );
                        forms.push(form);
                    }
                }
                at += 1;
            }
            forms_max = forms_max.max(forms.len());
        }
        assert!(accepted > 3_000 && forms_max > 10, "{accepted} {forms_max}");
    }

    #[test]
    fn any_bytes_have_a_stable_normal_form() {
        let mut random = crate::corpus::Random::from_clock();
        for _ in 0..20_000 {
            let count = random.below(9);
            fuzz_path(&random_path(&mut random, count));
        }
    }
}
