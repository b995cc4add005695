//! The media type of a file, from its name.

use std::collections::BTreeMap;
use std::fmt;

/// The media types of files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ContentTypes {
    /// Types by extension, in lower case and without the dot. They replace those of the table.
    overrides: BTreeMap<String, String>,
    /// The charset that is added to text.
    charset: Option<String>,
    /// The type of files with an unknown extension.
    default: String,
}

/// A media type or a charset that cannot be the value of a field. The operator is at fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ContentTypesError(String);

impl fmt::Display for ContentTypesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.0;
        write!(f, "invalid media type or charset {text:?} (expected: such as text/plain, utf-8)")
    }
}

impl std::error::Error for ContentTypesError {}

impl Default for ContentTypes {
    /// Text is UTF-8, as nearly all files are today. The type of an unknown extension is
    /// `application/octet-stream`, with which browsers do not guess (RFC 9110 section 8.3).
    fn default() -> Self {
        Self {
            overrides: BTreeMap::new(),
            charset: Some("utf-8".to_owned()),
            default: "application/octet-stream".to_owned(),
        }
    }
}

impl ContentTypes {
    /// Creates a table. The types in `overrides` are by extension, without the dot; they and
    /// `default` are used as they are, without a charset.
    ///
    /// # Errors
    /// [`ContentTypesError`].
    pub fn new(
        overrides: impl IntoIterator<Item = (String, String)>,
        charset: Option<String>,
        default: String,
    ) -> Result<Self, ContentTypesError> {
        let overrides: BTreeMap<String, String> = overrides
            .into_iter()
            .map(|(extension, kind)| (extension.to_ascii_lowercase(), kind))
            .collect();
        let is_type = |kind: &str| {
            let parts = kind.split_once('/');
            parts.is_some_and(|(first, rest)| !first.is_empty() && !rest.is_empty())
                && kind.bytes().all(|byte| (b' '..0x7f).contains(&byte))
        };
        let is_charset = |charset: &str| {
            !charset.is_empty() && charset.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if let Some(kind) = overrides.values().chain([&default]).find(|kind| !is_type(kind)) {
            return Err(ContentTypesError(kind.clone()));
        }
        match charset {
            Some(charset) if !is_charset(&charset) => Err(ContentTypesError(charset)),
            charset => Ok(Self { overrides, charset, default }),
        }
    }

    /// Returns the types that replace those of the table, by extensions in lower case without the
    /// dot.
    pub fn overrides(&self) -> impl Iterator<Item = (&str, &str)> {
        self.overrides.iter().map(|(extension, kind)| (extension.as_str(), kind.as_str()))
    }

    /// Returns the charset that is added to text.
    pub fn charset(&self) -> Option<&str> {
        self.charset.as_deref()
    }

    /// Returns the value of `Content-Type` for a file, from the extension of its name.
    pub fn of(&self, name: &[u8]) -> String {
        let Some(extension) = extension(name) else { return self.default.clone() };
        if let Some(kind) = self.overrides.get(&extension) {
            return kind.clone();
        }
        let corrected = CORRECTIONS.iter().find(|(known, _)| *known == extension);
        let kind = match corrected {
            Some((_, kind)) => Some(*kind),
            None => mime_guess::from_ext(&extension).first_raw(),
        };
        match (kind, &self.charset) {
            (None, _) => self.default.clone(),
            (Some(kind), Some(charset)) if kind.starts_with("text/") => {
                format!("{kind}; charset={charset}")
            }
            (Some(kind), _) => kind.to_owned(),
        }
    }
}

/// Types that `mime_guess` lacks, or has in an old form (RFC 8081, RFC 8216, RFC 9239).
const CORRECTIONS: [(&str, &str); 12] = [
    ("mjs", "text/javascript"),
    ("cjs", "text/javascript"),
    ("woff", "font/woff"),
    ("otf", "font/otf"),
    ("m4a", "audio/mp4"),
    ("m3u8", "application/vnd.apple.mpegurl"),
    // A part of HLS; few sites serve sources of TypeScript.
    ("ts", "video/mp2t"),
    ("mts", "video/mp2t"),
    ("zst", "application/zstd"),
    // The file declares its charset.
    ("xml", "application/xml"),
    ("xsl", "application/xml"),
    ("wgsl", "text/wgsl"),
];

/// Returns the extension of a name in lower case, without the dot. `.profile` has none.
fn extension(name: &[u8]) -> Option<String> {
    let at = name.iter().rposition(|&byte| byte == b'.').filter(|at| *at > 0)?;
    let extension = std::str::from_utf8(&name[at + 1..]).ok()?;
    (!extension.is_empty()).then(|| extension.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_decides_the_type() {
        let types = ContentTypes::default();
        for (name, kind) in [
            ("index.html", "text/html; charset=utf-8"),
            ("INDEX.HTM", "text/html; charset=utf-8"),
            ("a.min.js", "text/javascript; charset=utf-8"),
            ("a.mjs", "text/javascript; charset=utf-8"),
            ("a.css", "text/css; charset=utf-8"),
            ("a.txt", "text/plain; charset=utf-8"),
            ("a.md", "text/markdown; charset=utf-8"),
            ("a.csv", "text/csv; charset=utf-8"),
            ("a.json", "application/json"),
            ("a.webmanifest", "application/manifest+json"),
            ("a.wasm", "application/wasm"),
            ("a.svg", "image/svg+xml"),
            ("a.png", "image/png"),
            ("a.jpeg", "image/jpeg"),
            ("a.webp", "image/webp"),
            ("a.avif", "image/avif"),
            ("a.ico", "image/x-icon"),
            ("a.woff2", "font/woff2"),
            ("a.pdf", "application/pdf"),
            ("a.mp4", "video/mp4"),
            ("a.ts", "video/mp2t"),
            ("a.m3u8", "application/vnd.apple.mpegurl"),
            ("a.xml", "application/xml"),
            ("a.ttf", "font/ttf"),
            ("a.tar.gz", "application/gzip"),
            ("a.zst", "application/zstd"),
            ("README", "application/octet-stream"),
            (".profile", "application/octet-stream"),
            ("a.", "application/octet-stream"),
            ("a.unknown-extension", "application/octet-stream"),
        ] {
            assert_eq!(types.of(name.as_bytes()), kind, "{name}");
        }
        assert_eq!(types.of(b"a.\xff"), "application/octet-stream");
    }

    #[test]
    fn the_operator_overrides_types() {
        let overrides = [("JS".to_owned(), "text/x-own".to_owned())];
        let types = ContentTypes::new(overrides, None, "text/plain".to_owned()).unwrap();
        assert_eq!(types.of(b"a.js"), "text/x-own");
        assert_eq!(types.of(b"a.html"), "text/html");
        assert_eq!(types.of(b"README"), "text/plain");
        assert_eq!(types.overrides().collect::<Vec<_>>(), [("js", "text/x-own")]);
        assert_eq!((types.charset(), ContentTypes::default().charset()), (None, Some("utf-8")));
        let new = |kind: &str, charset: &str| {
            let overrides = [("a".to_owned(), kind.to_owned())];
            ContentTypes::new(overrides, Some(charset.to_owned()), "a/b".to_owned()).map(drop)
        };
        assert_eq!(new("a/b; c=d", "utf-8"), Ok(()));
        for (kind, charset) in [
            ("text", "utf-8"),
            ("/", "utf-8"),
            ("a/b\r\nX: y", "utf-8"),
            ("a/b", "a b"),
            ("a/b", ""),
        ] {
            assert!(new(kind, charset).is_err(), "{kind} {charset}");
        }
    }
}
