//! Resolving URI references in responses: `Location` and `Content-Location` (RFC 3986 section 5).

use memchr::memchr;
use millrace_http1::path::{remove_dot_segments, split_query};
use millrace_http1::target::push_encoded;
use millrace_http1::{Authority, Scheme};

use super::key::UriOrigin;

/// Resolves a reference against its base (RFC 3986 section 5.2.2): the origin `site`, and a path
/// and query that begins with `/`. Returns the path and query in the form of request targets;
/// `None` if the reference is malformed or has another origin.
pub(super) fn resolve(reference: &[u8], site: &UriOrigin<'_>, base: &[u8]) -> Option<Vec<u8>> {
    let end = memchr(b'#', reference).unwrap_or(reference.len());
    let reference = &reference[..end];
    let local = match (Scheme::split_off(reference), reference.strip_prefix(b"//")) {
        (Some((scheme, rest)), _) => local_part(rest, scheme, site)?,
        (None, _) if has_scheme(reference) => return None,
        (None, Some(rest)) => local_part(rest, site.scheme, site)?,
        (None, None) => reference,
    };
    let (base_path, _) = split_query(base);
    let (path, query) = split_query(local);
    let path = match path {
        [b'/', ..] => remove_dot_segments(path),
        [] if local.len() < reference.len() => b"/".to_vec(),
        [] if query.is_empty() => return Some(base.to_vec()),
        [] => base_path.to_vec(),
        path => {
            let folder_len = base_path.iter().rposition(|&byte| byte == b'/')? + 1;
            remove_dot_segments(&[&base_path[..folder_len], path].concat())
        }
    };
    let mut target = Vec::with_capacity(path.len() + query.len());
    path.iter().chain(query).for_each(|&byte| push_encoded(&mut target, byte));
    Some(target)
}

/// Returns the part after an authority, if the authority is that of the origin.
fn local_part<'a>(rest: &'a [u8], scheme: Scheme, site: &UriOrigin<'_>) -> Option<&'a [u8]> {
    let authority_len = rest.iter().position(|byte| b"/?".contains(byte)).unwrap_or(rest.len());
    let (authority, local) = rest.split_at(authority_len);
    let other = UriOrigin { scheme, authority: Authority::parse(authority).ok()? };
    other.is_same(site).then_some(local)
}

/// Returns whether a reference has a scheme: a first segment with a colon (RFC 3986 section 4.2).
fn has_scheme(reference: &[u8]) -> bool {
    let end = reference.iter().position(|byte| b":/?".contains(byte));
    end.is_some_and(|end| reference[end] == b':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(reference: &str) -> Option<String> {
        let authority = Authority::parse(b"a.example:8080").unwrap();
        let site = UriOrigin { scheme: Scheme::Http, authority };
        let target = resolve(reference.as_bytes(), &site, b"/b/c/d;p?q")?;
        Some(String::from_utf8(target).unwrap())
    }

    #[test]
    fn references_are_resolved_rfc_3986_section_5_4() {
        for (reference, expected) in [
            ("g", "/b/c/g"),
            ("./g", "/b/c/g"),
            ("g/", "/b/c/g/"),
            ("/g", "/g"),
            ("?y", "/b/c/d;p?y"),
            ("g?y", "/b/c/g?y"),
            ("#s", "/b/c/d;p?q"),
            ("g#s", "/b/c/g"),
            (";x", "/b/c/;x"),
            ("", "/b/c/d;p?q"),
            (".", "/b/c/"),
            ("..", "/b/"),
            ("../g", "/b/g"),
            ("../..", "/"),
            ("../../../g", "/g"),
            ("/./g", "/g"),
            ("g.", "/b/c/g."),
            ("..g", "/b/c/..g"),
            ("./g/.", "/b/c/g/"),
            ("g/../h", "/b/c/h"),
            ("g?y/../x", "/b/c/g?y/../x"),
            ("http://A.example:8080/x?y", "/x?y"),
            ("HTTP://a.example:8080", "/"),
            ("http://a.example:8080?y", "/?y"),
            ("//a.example:8080/x", "/x"),
            ("/a:b", "/a:b"),
            ("./a:b", "/b/c/a:b"),
            ("../\u{fc}?\u{20ac}#\u{fc}", "/b/%C3%BC?%E2%82%AC"),
            ("//a.example:8080/%fc\u{fc}", "/%fc%C3%BC"),
            ("?\u{fc}", "/b/c/d;p?%C3%BC"),
        ] {
            assert_eq!(resolved(reference).as_deref(), Some(expected), "{reference}");
        }
    }

    #[test]
    fn other_origins_are_refused() {
        for reference in [
            "http://a.example/x",
            "https://a.example:8080/x",
            "//b.example:8080/x",
            "http://a.example:8080@evil/",
            "mailto:x",
            "http:g",
            "a:b",
        ] {
            assert_eq!(resolved(reference), None, "{reference}");
        }
    }
}
