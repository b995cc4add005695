//! References to URIs in answers: `Location` and `Content-Location`, RFC 3986 section 5.

use memchr::memchr;
use millrace_http1::Authority;
use millrace_http1::path::{remove_dot_segments, split_query};

use super::key::{Scheme, Site};

/// The path and query that a reference means, if it is of the same origin as its base: `site` and a
/// path and query that begins with `/`. `None` for another origin, and for what is no reference.
/// RFC 3986 section 5.2.2.
pub(super) fn resolve(reference: &[u8], site: &Site<'_>, base: &[u8]) -> Option<Vec<u8>> {
    let end = memchr(b'#', reference).unwrap_or(reference.len());
    let reference = &reference[..end];
    let local = match scheme_of(reference) {
        Some(scheme) => of_authority(&reference[scheme.as_str().len() + 1..], scheme, site)?,
        None if has_scheme(reference) => return None,
        None => of_authority(reference, site.scheme, site)?,
    };
    let (base_path, _) = split_query(base);
    let (path, query) = split_query(local);
    let mut target = match path {
        [b'/', ..] => remove_dot_segments(path),
        [] if local.len() < reference.len() => b"/".to_vec(),
        [] if query.is_empty() => return Some(base.to_vec()),
        [] => base_path.to_vec(),
        path => {
            let folder_len = base_path.iter().rposition(|&byte| byte == b'/')? + 1;
            remove_dot_segments(&[&base_path[..folder_len], path].concat())
        }
    };
    target.extend_from_slice(query);
    Some(target)
}

/// The part after `//authority`, if that is the site's; all of a reference that has none.
fn of_authority<'a>(reference: &'a [u8], scheme: Scheme, site: &Site<'_>) -> Option<&'a [u8]> {
    let Some(rest) = reference.strip_prefix(b"//") else { return Some(reference) };
    let authority_len = rest.iter().position(|byte| b"/?".contains(byte)).unwrap_or(rest.len());
    let (authority, local) = rest.split_at(authority_len);
    let other = Site { scheme, authority: Authority::parse(authority).ok()? };
    other.is_same(site).then_some(local)
}

fn scheme_of(reference: &[u8]) -> Option<Scheme> {
    [Scheme::Http, Scheme::Https].into_iter().find(|scheme| {
        let name = scheme.as_str().as_bytes();
        reference.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
            && reference[name.len()..].starts_with(b"://")
    })
}

/// RFC 3986 section 4.2: a first segment with a colon in it is a scheme.
fn has_scheme(reference: &[u8]) -> bool {
    let end = reference.iter().position(|byte| b":/?".contains(byte));
    end.is_some_and(|end| reference[end] == b':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(reference: &str) -> Option<String> {
        let authority = Authority::parse(b"a.example:8080").unwrap();
        let site = Site { scheme: Scheme::Http, authority };
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
        ] {
            assert_eq!(resolved(reference).as_deref(), Some(expected), "{reference}");
        }
    }

    #[test]
    fn other_origins_are_not_ours() {
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
