//! Text for URLs and for HTML.

use millrace_http1::target::push_escape;

/// Appends bytes as a segment of a URL: all but unreserved characters are percent-encoded (RFC 3986
/// section 2.3). The result has no `:`, so a relative reference that begins with it has no scheme.
pub(super) fn write_segment(out: &mut Vec<u8>, segment: &[u8]) {
    for &byte in segment {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            push_escape(out, byte);
        }
    }
}

/// Appends bytes as text of HTML, also inside a quoted attribute. Bytes that are not UTF-8 and
/// control characters become replacement characters.
pub(super) fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    for character in String::from_utf8_lossy(text).chars() {
        match character {
            '&' => out.extend_from_slice(b"&amp;"),
            '<' => out.extend_from_slice(b"&lt;"),
            '>' => out.extend_from_slice(b"&gt;"),
            '"' => out.extend_from_slice(b"&quot;"),
            '\'' => out.extend_from_slice(b"&#39;"),
            character if character.is_control() => out.extend_from_slice("\u{fffd}".as_bytes()),
            character => {
                out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_ends_its_context() {
        let mut out = Vec::new();
        write_segment(&mut out, "a:b/ü?#%\"<~".as_bytes());
        assert_eq!(out, b"a%3Ab%2F%C3%BC%3F%23%25%22%3C~");
        out.clear();
        write_text(&mut out, b"<a href='\"'>&\n\xffb");
        let expected = "&lt;a href=&#39;&quot;&#39;&gt;&amp;\u{fffd}\u{fffd}b";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
