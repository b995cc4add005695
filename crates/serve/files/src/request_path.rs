//! The path of a request as a path below a folder.

use std::fmt;

use millrace_http1::path::decode_escapes;

/// The decoded path of a request: segments without NUL, slash and backslash, none of them empty,
/// `.` or `..`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RequestPath {
    /// The segments, separated by `/`.
    bytes: Vec<u8>,
    /// The path ends with a slash, or is the root.
    is_folder: bool,
}

/// A path that cannot name a file: it does not begin with `/`, or a decoded segment is `.` or `..`,
/// or has a NUL, a slash or a backslash. The client is at fault (400).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadPath;

impl fmt::Display for BadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the path cannot name a file")
    }
}

impl std::error::Error for BadPath {}

impl RequestPath {
    /// Decodes the path of a request without its query, in the normal form of
    /// [`millrace_http1::path::normalise`]. Escapes are decoded exactly once, so `%252e` is a name
    /// of three characters. A `%` that begins no escape stands for itself, as in the normal form.
    /// Empty segments are skipped.
    ///
    /// # Errors
    /// [`BadPath`].
    pub fn decode(path: &[u8]) -> Result<Self, BadPath> {
        let path = path.strip_prefix(b"/").ok_or(BadPath)?;
        let mut bytes = Vec::with_capacity(path.len());
        let segments = path.split(|&byte| byte == b'/').filter(|segment| !segment.is_empty());
        for segment in segments {
            if !bytes.is_empty() {
                bytes.push(b'/');
            }
            let start = bytes.len();
            decode_escapes(segment, &mut bytes);
            let decoded = &bytes[start..];
            if matches!(decoded, b"." | b"..") || decoded.iter().any(|byte| b"\0/\\".contains(byte))
            {
                return Err(BadPath);
            }
        }
        Ok(Self { is_folder: bytes.is_empty() || path.ends_with(b"/"), bytes })
    }

    /// Returns the segments, separated by `/`; empty for the root.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns whether the path ends with a slash, or is the root.
    pub fn is_folder(&self) -> bool {
        self.is_folder
    }

    /// Returns the segments.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.split(|&byte| byte == b'/').filter(|segment| !segment.is_empty())
    }

    /// Returns the segments, each with the position at which it ends in
    /// [`RequestPath::as_bytes`].
    pub(super) fn segments_with_ends(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.segments().scan(0, |end, segment| {
            // After the first segment, a slash comes before each.
            *end += segment.len() + usize::from(*end > 0);
            Some((*end, segment))
        })
    }

    /// Returns the `Location` that redirects a request for a folder to the path with a slash:
    /// relative to the path of the request, so that it does not depend on where the folder is
    /// mounted. `query` begins with `?`, or is empty. `None` for the root, which has a slash.
    pub fn folder_location(&self, query: &[u8]) -> Option<Vec<u8>> {
        let last = self.segments().last()?;
        let mut location = Vec::new();
        super::escape::write_segment(&mut location, last);
        location.push(b'/');
        location.extend_from_slice(query);
        Some(location)
    }
}

/// Decodes any bytes as the path of a request. Called by the fuzz target, and by a test.
///
/// # Panics
/// Panics if the result could name a file outside a folder, or if the normal form of the path is
/// accepted and has another meaning.
pub fn fuzz_request_path(data: &[u8]) {
    let path = [b"/", data].concat();
    let Ok(decoded) = RequestPath::decode(&path) else { return };
    assert!(decoded.bytes.len() <= data.len());
    assert!(!decoded.bytes.iter().any(|byte| b"\0\\".contains(byte)));
    assert!(!decoded.bytes.starts_with(b"/") && !decoded.bytes.ends_with(b"/"));
    let mut parts = decoded.bytes.split(|&byte| byte == b'/');
    assert!(decoded.bytes.is_empty() || !parts.any(|part| matches!(part, b"" | b"." | b"..")));
    // An escaped path means the same.
    let mut escaped = Vec::new();
    for segment in decoded.segments() {
        escaped.push(b'/');
        super::escape::write_segment(&mut escaped, segment);
    }
    if decoded.is_folder {
        escaped.push(b'/');
    }
    assert_eq!(RequestPath::decode(&escaped).as_ref(), Ok(&decoded));
    let normal = millrace_http1::path::normalise(&path);
    assert_eq!(RequestPath::decode(&normal), Ok(decoded), "{}", path.escape_ascii());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(path: &str) -> Option<(String, bool)> {
        let decoded = RequestPath::decode(path.as_bytes()).ok()?;
        Some((String::from_utf8_lossy(&decoded.bytes).into_owned(), decoded.is_folder))
    }

    #[test]
    fn escapes_are_decoded_exactly_once() {
        for (path, name, is_folder) in [
            ("/", "", true),
            ("//", "", true),
            ("/a", "a", false),
            ("/a/", "a", true),
            ("//a//b//", "a/b", true),
            ("/a%20b/%C3%bc", "a b/ü", false),
            ("/%252e%252e/%2561", "%2e%2e/%61", false),
            ("/100%/%zz/%2", "100%/%zz/%2", false),
            ("/...", "...", false),
            ("/.a;b=c", ".a;b=c", false),
            ("/a%0ab", "a\nb", false),
        ] {
            assert_eq!(decode(path), Some((name.to_owned(), is_folder)), "{path}");
        }
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_bad() {
        for path in [
            "",
            "a",
            "*",
            "/..",
            "/../a",
            "/a/..",
            "/a/../b",
            "/.",
            "/a/./b",
            "/%2e%2e",
            "/%2E./a",
            "/.%2e/",
            "/%2e",
            "/a%2fb",
            "/..%2f..%2fetc",
            "/%2f",
            "/a%00",
            "/%00",
            "/a\0",
            "/a\\b",
            "/..\\a",
            "/..%5ca",
            "/a%5C",
            "/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        ] {
            assert_eq!(decode(path), None, "{path}");
        }
    }

    #[test]
    fn the_redirect_to_a_folder_is_relative() {
        let location = |path: &str, query: &str| {
            let path = RequestPath::decode(path.as_bytes()).unwrap();
            path.folder_location(query.as_bytes()).map(|it| String::from_utf8(it).unwrap())
        };
        assert_eq!(location("/a/b%20c", "?x=1"), Some("b%20c/?x=1".to_owned()));
        assert_eq!(location("//host.test", ""), Some("host.test/".to_owned()));
        assert_eq!(location("/javascript:x", ""), Some("javascript%3Ax/".to_owned()));
        assert_eq!(location("/", ""), None);
    }

    #[test]
    fn any_bytes_are_decoded_safely() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fuzz/corpus/request_path");
        let mut count = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            fuzz_request_path(&std::fs::read(file.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count >= 5, "the corpus is there");
        const PARTS: [&[u8]; 14] = [
            b"/", b"/", b".", b"..", b"%2e", b"%2F", b"%5c", b"\\", b"%00", b"a", b"%", b"%25",
            b"%61", b"\xff",
        ];
        let mut random = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        println!("seed {random}");
        for _ in 0..20_000 {
            let mut path = Vec::new();
            for _ in 0..8 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                path.extend_from_slice(PARTS[(random >> 33) as usize % PARTS.len()]);
            }
            fuzz_request_path(&path);
        }
    }
}
