//! The response header of a file or a listing.

use std::hash::Hasher;

use iolite::CompressionLevel;
use millrace_http_cache::{CachedHeader, Flags, OwnResponse};
use siphasher::sip::SipHasher13;

use super::codings::Coding;
use super::folder_io::FileStatus;
use super::resolve::FoundFile;
use super::rules::FolderRules;

/// Returns the header for a file, without `Date` and without the framing. `now_ms` is the current
/// time in milliseconds since 1970. The length of the body is that of the status, unless it is
/// `compressed`.
///
/// The header is valid as long as the status of the file is the same. Its entity tag is weak if the
/// file changed just now, so a header that is made again later may have a better one.
pub fn file_header(
    found: &FoundFile,
    rules: &FolderRules,
    compressed: Option<Coding>,
    now_ms: u64,
) -> CachedHeader {
    let status = &found.opened.status;
    let level = rules.compression.as_ref().map(|rules| rules.level).unwrap_or_default();
    let mut fields: Vec<(&str, &[u8])> = vec![("Content-Type", found.content_type.as_bytes())];
    if let Some(coding) = found.coding.or(compressed) {
        fields.push(("Content-Encoding", coding.name().as_bytes()));
    }
    fields.push(("Accept-Ranges", b"bytes"));
    if let Some(cache_control) = &rules.cache_control {
        fields.push(("Cache-Control", cache_control));
    }
    // Reproducible builds of archives and system images set the time of all files to 0 or 1, so it
    // does not change with the file.
    let second = u64::try_from(status.modified.seconds).ok().filter(|second| *second > 1);
    let mut header = OwnResponse {
        fields: &fields,
        etag: Some(entity_tag(status, compressed.map(|coding| (coding, level)), now_ms).as_bytes()),
        last_modified_s: second,
        // Another client may get another form, also of a file that has none yet.
        vary: if rules.has_codings() { b"Accept-Encoding" } else { b"" },
        now_ms,
        lifetime_s: 0,
    }
    .header();
    if rules.has_codings() {
        // Forms in different codings can have the same time, and never have the same bytes.
        header.meta.flags = header.meta.flags.without(Flags::MODIFIED_IS_STRONG);
    }
    header
}

/// Returns the header for a listing as a page, without `Date` and without the framing. It has no
/// validator, because no status covers all entries.
pub fn listing_header(rules: &FolderRules, now_ms: u64) -> CachedHeader {
    let mut fields: Vec<(&str, &[u8])> = vec![
        ("Content-Type", b"text/html; charset=utf-8"),
        // A second defence if a name were not escaped.
        ("Content-Security-Policy", b"default-src 'none'; style-src 'unsafe-inline'"),
        ("X-Content-Type-Options", b"nosniff"),
    ];
    if let Some(cache_control) = &rules.cache_control {
        fields.push(("Cache-Control", cache_control));
    }
    let (etag, last_modified_s) = (None, None);
    OwnResponse { fields: &fields, etag, last_modified_s, vary: b"", now_ms, lifetime_s: 0 }
        .header()
}

/// Returns the entity tag of a file: its size, and a hash of its inode and times, in hexadecimal,
/// and the coding if it is compressed. The time of the last change counts besides that of the last
/// modification, which a writer can set back. The level and the version of this program count for
/// compressed bytes, because others may give other bytes.
///
/// RFC 9110 section 8.8.1: the tag is weak while another change could get the same time, because
/// the kernel takes times from its tick.
pub fn entity_tag(
    status: &FileStatus,
    compressed: Option<(Coding, CompressionLevel)>,
    now_ms: u64,
) -> String {
    let mut hasher = SipHasher13::new();
    hasher.write_u64(status.inode);
    for time in [status.modified, status.changed] {
        hasher.write_i64(time.seconds);
        hasher.write_u32(time.nanoseconds);
    }
    if let Some((_, level)) = compressed {
        hasher.write_u8(level as u8);
        hasher.write(env!("CARGO_PKG_VERSION").as_bytes());
    }
    let weak = if status.is_unchanged_for(0, now_ms) { "" } else { "W/" };
    let coding = compressed.map_or("", |(coding, _)| coding.suffix()).replace('.', "-");
    format!("{weak}\"{:x}-{:x}{coding}\"", status.bytes, hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::super::codings::{AcceptedCodings, Coding};
    use super::super::folder_io::{FileKind, FileTime, OpenMode};
    use super::super::request_path::RequestPath;
    use super::super::resolve::{Resolution, resolve};
    use super::super::sim_folder::SimFolder;
    use super::*;

    const NOW_MS: u64 = 1_795_256_160_000;

    fn status() -> FileStatus {
        let time = FileTime { seconds: 1_795_256_000, nanoseconds: 1 };
        FileStatus {
            kind: FileKind::Regular,
            device: 1,
            inode: 2,
            bytes: 255,
            modified: time,
            changed: time,
        }
    }

    #[test]
    fn the_tag_changes_with_the_file() {
        let tag = entity_tag(&status(), None, NOW_MS);
        assert!(tag.starts_with("\"ff-") && tag.ends_with('"') && tag.len() <= 22, "{tag}");
        assert_eq!(tag, entity_tag(&FileStatus { device: 9, ..status() }, None, NOW_MS));
        let later = FileTime { nanoseconds: 2, ..status().modified };
        let compressed = |level| entity_tag(&status(), Some((Coding::Brotli, level)), NOW_MS);
        let coded = compressed(CompressionLevel::Default);
        assert_ne!(coded, compressed(CompressionLevel::Best), "other bytes");
        assert!(
            coded.starts_with("\"ff-") && coded.ends_with("-br\"") && coded.len() <= 25,
            "{coded}"
        );
        assert_ne!(coded, tag[..tag.len() - 1].to_owned() + "-br\"", "the hash has the level");
        for other in [
            FileStatus { bytes: 256, ..status() },
            FileStatus { inode: 3, ..status() },
            FileStatus { modified: later, ..status() },
            FileStatus { changed: later, ..status() },
        ] {
            assert_ne!(tag, entity_tag(&other, None, NOW_MS));
        }
    }

    #[test]
    fn the_tag_of_a_file_that_changed_just_now_is_weak_rfc_9110_section_8_8_1() {
        let is_weak = |seconds, nanoseconds| {
            let changed = FileTime { seconds, nanoseconds };
            entity_tag(&FileStatus { changed, ..status() }, None, NOW_MS).starts_with("W/")
        };
        let now_s = (NOW_MS / 1000) as i64;
        assert!(is_weak(now_s, 1) && is_weak(now_s - 1, 980_000_000) && is_weak(now_s + 9, 1));
        assert!(!is_weak(now_s - 1, 979_000_000) && is_weak(now_s - 2, 0));
        assert!(!is_weak(now_s - 3, 0) && !is_weak(-1, 5) && is_weak(i64::MAX, 0));
    }

    fn header(rules: &FolderRules, accept: &str) -> CachedHeader {
        let folder = SimFolder::new(1);
        folder.set_now(status().changed);
        folder.write(b"a.css", b"a { }");
        folder.write(b"a.css.gz", b"gzip");
        let path = RequestPath::decode(b"/a.css").unwrap();
        let accepted = AcceptedCodings::parse(std::iter::once(accept.as_bytes()));
        match resolve(&folder, rules, &path, accepted, OpenMode::Cached).unwrap() {
            Resolution::File(found) => {
                assert_eq!(found.coding == Some(Coding::Gzip), accept == "gzip");
                file_header(&found, rules, None, NOW_MS)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_header_has_the_fields_of_the_file() {
        let rules =
            FolderRules { cache_control: Some(b"max-age=60".to_vec()), ..FolderRules::default() };
        let text = |header: &CachedHeader| String::from_utf8(header.head.clone()).unwrap();
        let plain = header(&rules, "");
        let start = "HTTP/1.1 200 OK\r\nContent-Type: text/css; charset=utf-8\r\n\
                     Accept-Ranges: bytes\r\nCache-Control: max-age=60\r\n\
                     Last-Modified: Sat, 21 Nov 2026 10:13:20 GMT\r\n\
                     Vary: Accept-Encoding\r\nETag: \"5-";
        assert!(text(&plain).starts_with(start), "{}", text(&plain));
        assert!(plain.meta.has_strong_validator() && plain.meta.flags.contains(Flags::VARIES));
        let coded = header(&rules, "gzip");
        assert!(text(&coded).contains("\r\nContent-Encoding: gzip\r\n"));
        assert!(text(&coded).contains("Content-Type: text/css;"));
        assert_ne!(coded.etag_bytes(), plain.etag_bytes());
        let rules = FolderRules { has_precompressed: false, ..FolderRules::default() };
        assert!(text(&header(&rules, "")).contains("Vary"), "it may be compressed");
        let rules = FolderRules { compression: None, ..rules };
        assert!(!text(&header(&rules, "")).contains("Vary"));
        let listing = text(&listing_header(&rules, NOW_MS));
        assert!(listing.contains("Content-Security-Policy: default-src 'none'"));
        assert!(!listing.contains("ETag"));
    }
}
