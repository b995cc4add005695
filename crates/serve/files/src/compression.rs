//! Compression of files that have no encoded form beside them.

use iolite::CompressionLevel;

use super::codings::Coding;
use super::name_pattern::NamePattern;

/// The files that are compressed, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compression {
    /// How much time is spent.
    pub level: CompressionLevel,
    /// Patterns of media types without parameters, in any case.
    pub types: Vec<NamePattern>,
    /// Shorter files are sent as they are, in bytes.
    pub bytes_min: u64,
}

impl Default for Compression {
    fn default() -> Self {
        let types = TYPES.iter().map(|pattern| NamePattern::new(pattern.as_bytes())).collect();
        Self { level: CompressionLevel::Default, types, bytes_min: BYTES_MIN }
    }
}

/// Types that are not compressed yet, and become much shorter.
const TYPES: [&str; 13] = [
    "text/*",
    "*+json",
    "*+xml",
    "application/json",
    "application/javascript",
    "application/xml",
    "application/wasm",
    "application/vnd.ms-fontobject",
    "font/otf",
    "font/ttf",
    "image/bmp",
    "image/x-icon",
    "image/vnd.microsoft.icon",
];

/// A response of this length fits into one packet with its header anyway.
const BYTES_MIN: u64 = 1024;

impl Compression {
    /// Returns whether a file of this type and length is compressed.
    pub fn applies_to(&self, content_type: &str, bytes: u64) -> bool {
        let kind = content_type.split(';').next().unwrap_or_default().trim_ascii();
        bytes >= self.bytes_min
            && self.types.iter().any(|pattern| pattern.matches_in_any_case(kind.as_bytes()))
    }
}

impl Coding {
    /// Returns the bytes of all parts in this coding.
    pub fn compress(self, parts: &[&[u8]], level: CompressionLevel) -> Vec<u8> {
        let coding = match self {
            Self::Brotli => iolite::Coding::Brotli,
            Self::Zstd => iolite::Coding::Zstd,
            Self::Gzip => iolite::Coding::Gzip,
        };
        coding.compress(parts, level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_compressed_and_images_are_not() {
        let rules = Compression::default();
        for kind in [
            "text/html; charset=utf-8",
            "TEXT/CSS",
            "image/svg+xml",
            "application/manifest+json",
            "application/wasm",
        ] {
            assert!(rules.applies_to(kind, 1024) && !rules.applies_to(kind, 1023), "{kind}");
        }
        for kind in ["image/png", "application/gzip", "video/mp4", "application/octet-stream", ""] {
            assert!(!rules.applies_to(kind, 1 << 20), "{kind}");
        }
    }
}
