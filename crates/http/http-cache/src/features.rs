//! Request fields and cookies that an operator selects: as a part of the key, or to bypass the
//! cache.
//!
//! Parsers of `Cookie` disagree about quotes and commas (RFC 2965 and RFC 6265), case, percent
//! codes, and the bytes of a name. If the origin found a cookie that this module does not find, an
//! attacker could store a response for that cookie under the key of requests without it. Therefore,
//! a line that two parsers may read differently becomes part of a key as a whole, and a name
//! anywhere in it makes the request bypass the cache.

use millrace_http1::{FieldName, RequestHead};

use super::key_sink::KeySink;
use super::structured::lines_named;

/// Fields and cookies of requests.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Field names in lower case.
    pub fields: Vec<Box<[u8]>>,
    /// Cookie names, or prefixes of names followed by `*`. Case is ignored.
    pub cookies: Vec<Box<[u8]>>,
}

impl Features {
    /// Returns whether a request has any of them. Allocates nothing.
    pub fn is_any_in(&self, request: &RequestHead) -> bool {
        self.fields.iter().any(|name| lines_named(request, name).next().is_some())
            || (!self.cookies.is_empty() && has_cookie(request, &self.cookies))
    }
}

fn has_cookie(request: &RequestHead, names: &[Box<[u8]>]) -> bool {
    let is_between = |byte: &u8| matches!(byte, b';' | b',' | b' ' | b'\t' | b'"');
    let is_one = |piece: &[u8]| !piece.is_empty() && is_named(piece, names);
    request.values(FieldName::Cookie).any(|line| line.split(is_between).any(is_one))
}

/// Writes the selected cookies to the key: each pair as written, or the whole line if it is not
/// plain.
pub(super) fn put_cookies(sink: &mut impl KeySink, request: &RequestHead, names: &[Box<[u8]>]) {
    let mut put = |text: &[u8]| {
        // A field name never contains a semicolon, so a cookie cannot be taken for a field line.
        sink.put(b"\ncookie;");
        sink.put(text);
    };
    for line in request.values(FieldName::Cookie) {
        if pairs(line).all(is_plain) {
            pairs(line).filter(|pair| is_named(pair, names)).for_each(&mut put);
        } else {
            put(line);
        }
    }
}

fn pairs(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b';').map(<[u8]>::trim_ascii).filter(|pair| !pair.is_empty())
}

/// Returns whether every parser reads the same pair. A name consists of alphanumeric ASCII
/// characters, `-` and `_`. RFC 6265 section 4.1.1 allows more characters, but some languages
/// rewrite dots, brackets and percent codes.
fn is_plain(pair: &[u8]) -> bool {
    let Some(name_len) = memchr::memchr(b'=', pair) else { return false };
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_of_value = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b'\\');
    let (name, value) = pair.split_at(name_len);
    !name.is_empty() && name.iter().all(is_of_name) && value.iter().all(is_of_value)
}

/// Returns whether the name before the `=` of a pair matches one of these names.
fn is_named(pair: &[u8], names: &[Box<[u8]>]) -> bool {
    let name = &pair[..memchr::memchr(b'=', pair).unwrap_or(pair.len())];
    names.iter().any(|pattern| match &**pattern {
        [beginning @ .., b'*'] => {
            name.get(..beginning.len()).is_some_and(|start| start.eq_ignore_ascii_case(beginning))
        }
        pattern => name.eq_ignore_ascii_case(pattern),
    })
}

#[cfg(test)]
mod tests {
    use super::super::test_messages::get;
    use super::*;

    fn names(names: &[&str]) -> Vec<Box<[u8]>> {
        names.iter().map(|name| name.as_bytes().into()).collect()
    }

    fn put(fields: &str, cookies: &[&str]) -> String {
        let mut text = Vec::new();
        put_cookies(&mut text, &get(fields), &names(cookies));
        String::from_utf8(text).unwrap().replace("\ncookie;", "|")
    }

    #[test]
    fn fields_of_one_family_are_distinguished() {
        let features = Features { fields: names(&["x-forwarded-debug"]), ..Features::default() };
        assert!(features.is_any_in(&get("X-Forwarded-Debug: 1\r\n")));
        assert!(!features.is_any_in(&get("X-Forwarded-Port: 443\r\nX-Original-Foo: 1\r\n")));
    }

    #[test]
    fn selected_cookies_are_written() {
        let cookie = "Cookie: a=1; Lang=de; b=2;lang=en; langs=x\r\n";
        assert_eq!(put(cookie, &["lang"]), "|Lang=de|lang=en");
        assert_eq!(put(cookie, &["lang*", "b"]), "|Lang=de|b=2|lang=en|langs=x");
        assert_eq!(put(cookie, &["c"]), "");
        assert_eq!(put("Cookie: lang=a\r\nCookie: b=1;; lang=\r\n", &["lang"]), "|lang=a|lang=");
        assert_eq!(put("", &["lang"]), "");
    }

    #[test]
    fn an_ambiguous_line_is_written_as_a_whole() {
        for line in [
            "x=\"1; lang=de; y\"",
            "a=1,lang=de",
            "la.ng=de",
            "lang[a]=de",
            "l%61ng=de",
            "a=1; lang",
            "a=1 ; b=x y",
            "a=\\; lang=de",
            "=de",
        ] {
            assert_eq!(put(&format!("Cookie: {line}\r\n"), &["lang"]), format!("|{line}"));
        }
    }

    #[test]
    fn fields_and_cookies_that_bypass_the_cache_are_found_anywhere() {
        let features = Features {
            fields: names(&["authorization", "x-preview"]),
            cookies: names(&["session", "wordpress_*"]),
        };
        for fields in [
            "Authorization: a\r\n",
            "x-PREVIEW: \r\n",
            "Cookie: session=1\r\n",
            "Cookie: a=1; SESSION=1\r\n",
            "Cookie: a=1,session=1\r\n",
            "Cookie: a=\"1; session=1\"\r\n",
            "Cookie: session\r\n",
            "Cookie: a=1\r\nCookie: wordpress_logged_in_ab=1\r\n",
        ] {
            assert!(features.is_any_in(&get(fields)), "{fields}");
        }
        for fields in ["", "Cookie: a=session; sessions=1; wordpress=1\r\n", "Cookie:\r\n"] {
            assert!(!features.is_any_in(&get(fields)), "{fields}");
        }
        let any = Features { cookies: names(&["*"]), ..Features::default() };
        assert!(any.is_any_in(&get("Cookie: a=1\r\n")) && !any.is_any_in(&get("Cookie: ;\r\n")));
        assert!(!Features::default().is_any_in(&get("Cookie: a=1\r\n")));
    }
}
