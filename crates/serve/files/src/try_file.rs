//! The places at which a request is looked for.

use std::fmt;

/// A place at which a request is looked for: a path that may contain the path of the request, such
/// as `{path}`, `{path}.html` or `/index.html`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TryFile {
    /// The path of the request, followed by this text.
    Request(Vec<u8>),
    /// A path of its own: segments separated by `/`.
    Fixed(Vec<u8>),
}

/// A place that cannot be tried. The operator is at fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadTryFile(String);

impl fmt::Display for BadTryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.0;
        write!(f, "invalid path {text:?} (expected: such as {{path}}, {{path}}.html, /index.html)")
    }
}

impl std::error::Error for BadTryFile {}

impl fmt::Display for TryFile {
    /// Writes the place in the form that [`TryFile::parse`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, own) = match self {
            Self::Request(suffix) => ("{path}", suffix),
            Self::Fixed(path) => ("/", path),
        };
        write!(f, "{start}{}", String::from_utf8_lossy(own))
    }
}

impl TryFile {
    /// Parses a place: `{path}` and a suffix, or a path that begins with `/`.
    ///
    /// # Errors
    /// [`BadTryFile`], also for segments that are empty, `.` or `..`.
    pub fn parse(text: &str) -> Result<Self, BadTryFile> {
        let bad = || BadTryFile(text.to_owned());
        let (suffix, has_path) = match text.strip_prefix("{path}") {
            Some(suffix) => (suffix, true),
            None => (text.strip_prefix('/').ok_or_else(bad)?, false),
        };
        // A suffix without a slash continues the last segment of the request, which is not empty.
        let own = suffix.strip_prefix('/').filter(|_| has_path).unwrap_or(suffix);
        let mut segments = own.split('/');
        let is_bad = |segment: &str| {
            matches!(segment, "" | "." | "..") || segment.contains(['\0', '\\', '{', '}'])
        };
        let is_whole_path = has_path && suffix.is_empty();
        if !is_whole_path && segments.any(is_bad) {
            return Err(bad());
        }
        let suffix = suffix.as_bytes().to_vec();
        Ok(if has_path { Self::Request(suffix) } else { Self::Fixed(suffix) })
    }

    /// Returns the path to try for the path of a request, both without slashes at their ends.
    /// `None` if the suffix would continue the name of a folder.
    pub(super) fn path(&self, request: &[u8], is_folder: bool) -> Option<Vec<u8>> {
        match self {
            Self::Fixed(path) => Some(path.clone()),
            Self::Request(suffix) => match &suffix[..] {
                [] => Some(request.to_vec()),
                [b'/', own @ ..] if request.is_empty() => Some(own.to_vec()),
                [b'/', ..] => Some([request, suffix].concat()),
                _ if is_folder => None,
                _ => Some([request, suffix].concat()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(place: &str, request: &str, is_folder: bool) -> Option<String> {
        let parsed = TryFile::parse(place).unwrap();
        assert_eq!(parsed.to_string(), place);
        let path = parsed.path(request.as_bytes(), is_folder)?;
        Some(String::from_utf8(path).unwrap())
    }

    #[test]
    fn a_place_contains_the_path_of_the_request() {
        for (place, request, is_folder, expected) in [
            ("{path}", "a/b", false, Some("a/b")),
            ("{path}", "", true, Some("")),
            ("{path}.html", "a/b", false, Some("a/b.html")),
            ("{path}.html", "a/b", true, None),
            ("{path}.html", "", true, None),
            ("{path}/index.html", "a", true, Some("a/index.html")),
            ("{path}/index.html", "", true, Some("index.html")),
            ("/app/index.html", "a", false, Some("app/index.html")),
        ] {
            assert_eq!(path(place, request, is_folder).as_deref(), expected, "{place} {request}");
        }
    }

    #[test]
    fn other_places_are_refused() {
        for place in [
            "",
            "a",
            "/",
            "/a//b",
            "/../a",
            "/a/.",
            "{path}/",
            "{path}/..",
            "{path}/../a",
            "{path}//a",
            "{uri}",
            "/a/{path}",
            "{path}{path}",
            "/a\\b",
            "/a\0",
        ] {
            assert!(TryFile::parse(place).is_err(), "{place}");
        }
    }
}
