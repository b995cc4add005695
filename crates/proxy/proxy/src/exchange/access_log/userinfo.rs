//! User names and passwords in URLs. Requests with them are refused (RFC 9110 section 4.2.4), but
//! refused requests are logged too, and so are Referer fields.

use std::ops::Range;

/// Returns the range of the user information in a target, a URL or a host, if any: the part before
/// the last `@` of the authority. The value is parsed leniently, since user information in a
/// malformed value must not be logged either.
pub(super) fn user_information(value: &[u8]) -> Option<Range<usize>> {
    let is_slash = |byte: &u8| matches!(byte, b'/' | b'\\');
    // Nearly every value ends here: a path, or a value without `@`.
    if value.first().is_none_or(is_slash) || !value.contains(&b'@') {
        return None;
    }
    // The authority begins after the scheme and its slashes, or at the beginning if there is no
    // scheme.
    let colon = value.iter().position(|&byte| byte == b':');
    let rest = colon.map(|colon| &value[colon + 1..]);
    let start = rest.filter(|rest| rest.first().is_some_and(is_slash)).map_or(0, |rest| {
        let slashes = rest.iter().take_while(|byte| is_slash(byte)).count();
        value.len() - rest.len() + slashes
    });
    let mut end = None;
    for (at, byte) in value[start..].iter().enumerate() {
        match byte {
            b'/' | b'\\' | b'?' | b'#' => break,
            b'@' => end = Some(start + at),
            _ => {}
        }
    }
    end.map(|end| start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_information_is_found_in_every_form() {
        for (value, wanted) in [
            ("http://user:secret@host/path", Some("user:secret")),
            ("HTTP://secret@host", Some("secret")),
            ("http://a:b@c:secret@host:80/@x", Some("a:b@c:secret")),
            ("http:///user:secret@host/", Some("user:secret")),
            ("http:\\\\user:secret@host\\x", Some("user:secret")),
            ("http:user:secret@host/", Some("http:user:secret")),
            ("user:secret@host:443", Some("user:secret")),
            ("http://@host/", Some("")),
            ("http://host/user@example.org", None),
            ("http://host?mail=a@b", None),
            ("/path/user@example.org", None),
            ("http://host/", None),
            ("*", None),
            ("", None),
            ("host:443", None),
        ] {
            let found = user_information(value.as_bytes());
            assert_eq!(found.map(|range| &value[range]), wanted, "{value}");
        }
    }
}
