//! Writes the folder of a route; see [`write`](crate::write).

use millrace_files::NamePattern;

use super::FolderRoute;
use super::value::{write_fallback, write_media_type};
use crate::cache::write_seconds;
use crate::keywords;
use crate::toml_text::{basic_string, string_array, write_key};

/// Writes the options of a folder.
pub(crate) fn write(out: &mut String, folder: &FolderRoute) {
    let FolderRoute { path, symlinks, allowed_paths, is_internal, rules, check_ms, folder: _ } =
        folder;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let patterns =
        |list: &[NamePattern]| string_array(list.iter().map(|pattern| text(pattern.as_bytes())));
    write_key(out, "folder", basic_string(&path.display().to_string()));
    if !rules.script_extensions.is_empty() {
        write_key(out, "extensions", patterns(&rules.script_extensions));
    }
    write_key(out, "internal", *is_internal);
    write_key(out, "index", string_array(rules.index.iter().map(|name| text(name))));
    write_key(out, "listing", rules.has_listing);
    write_key(out, "hide", patterns(&rules.hide));
    write_key(out, "try-files", string_array(rules.try_files.iter().map(ToString::to_string)));
    if let Some(path) = &rules.fallback {
        write_key(out, "fallback", basic_string(&write_fallback(path)));
    }
    write_key(out, "precompressed", rules.has_precompressed);
    write_key(out, "media-type", string_array(rules.types.overrides().map(write_media_type)));
    write_key(out, "charset", basic_string(rules.types.charset().unwrap_or("off")));
    write_key(out, "program-extensions", patterns(&rules.program_extensions));
    let cache_control = rules.cache_control.as_deref().map_or_else(|| "off".to_owned(), text);
    write_key(out, "file-cache-control", basic_string(&cache_control));
    write_key(out, "symlinks", basic_string(keywords::SYMLINKS.name(*symlinks)));
    let allowed = allowed_paths.iter().map(|path| path.display().to_string());
    write_key(out, "allow-path", string_array(allowed));
    let check_s = u32::try_from(check_ms / 1000).unwrap_or(u32::MAX);
    write_key(out, "file-check", basic_string(&write_seconds(check_s)));
}
