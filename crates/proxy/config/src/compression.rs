//! Which responses of a route are compressed, and how.

use millrace_files::{Compression, NamePattern};

use crate::Route;
use crate::error::ConfigError;
use crate::folder::{all_or, parse_media_pattern};
use crate::keywords::{self, Compressed};
use crate::option_row::row;
use crate::options::{Group, OptionRow, Scope, ValueType};
use crate::raw::{RawTable, bounded};
use crate::toml_text::{basic_string, string_array, write_key};
use crate::value::write_size;
use Group::Connections;
use Scope::Route as OfRoute;

impl OptionRow {
    /// The rows for the compression of responses.
    pub(crate) const COMPRESSION: &'static [Self] = &[
        row(OfRoute, Connections, "compress", ValueType::Keyword(&["files", "on", "off"]), "files")
            .summary("Compress responses for clients that accept br, zstd or gzip")
            .detail(
                "files: the files of a directory. on: also responses of origins and programs. Read \
                 the notes on BREACH in docs/threats.md first if they contain secrets. A file or a \
                 stored response is compressed once, and kept in the memory of the cache. Files \
                 longer than the limit file_memory_bytes, and all files without a cache, are sent \
                 as they are. Other responses are compressed with gzip while they pass. Responses \
                 with no-transform, a content coding or a digest, and event streams are never \
                 compressed.",
            ),
        row(
            OfRoute,
            Connections,
            "compress-type",
            ValueType::MediaPattern,
            "(text/*, *+json, *+xml, \
             application/json, application/javascript, application/xml, application/wasm, \
             application/vnd.ms-fontobject, font/otf, font/ttf, image/bmp, image/x-icon, \
             image/vnd.microsoft.icon)",
        )
        .repeatable(64)
        .not_empty()
        .summary("Compress responses of these media types")
        .detail("* stands for any characters. The values replace the default."),
        row(
            OfRoute,
            Connections,
            "compress-level",
            ValueType::Keyword(&["default", "fast", "best"]),
            "default",
        )
        .summary("How much time to spend on compression")
        .detail("fast, default, best: gzip 1, 6, 9; br 2, 5, 10; zstd has one level."),
        row(
            OfRoute,
            Connections,
            "compress-min",
            ValueType::Size { least: 0, most: 1 << 30 },
            "1K",
        )
        .summary("Send shorter responses as they are"),
    ];
}

/// Builds the compression of a route: how the files of its folder are compressed, and how the
/// responses of its origins.
pub(crate) fn build(values: &RawTable) -> Result<[Option<Compression>; 2], ConfigError> {
    let which = values.one_or_default("compress", |text| keywords::COMPRESSED.parse(text))?;
    let default = Compression::default();
    let compression = Compression {
        level: values
            .one_or_default("compress-level", |text| keywords::COMPRESSION_LEVELS.parse(text))?,
        types: all_or(values, "compress-type", parse_media_pattern, default.types)?,
        bytes_min: values.one_or_default("compress-min", |text| bounded("compress-min", text))?,
    };
    let has_folder = values.find_set(|row| row.key == "folder").is_some();
    let has_effect = has_folder || which == Compressed::On;
    let of_compression = |row: &OptionRow| row.key.starts_with("compress-");
    if let Some(location) = values.find_set(of_compression)
        && (which == Compressed::Off || !has_effect)
    {
        let name = values.name_of("compress");
        let (problem, expected) = match which {
            Compressed::Off => (format!("has no effect: {name} is off"), format!("{name} on")),
            _ => (
                format!("has no effect: the route has no folder, and {name} is files"),
                format!("{name} on"),
            ),
        };
        return Err(ConfigError::rule(location, problem, expected));
    }
    Ok(match which {
        Compressed::Off => [None, None],
        Compressed::Files => [Some(compression), None],
        Compressed::On => [Some(compression.clone()), Some(compression)],
    })
}

/// Writes the compression of a route.
pub(crate) fn write(out: &mut String, route: &Route) {
    let of_files = route.folder.as_ref().and_then(|folder| folder.rules.compression.as_ref());
    let (which, compression) = match (route.compression.as_deref(), of_files) {
        (Some(all), _) => (Compressed::On, Some(all)),
        (None, Some(of_files)) => (Compressed::Files, Some(of_files)),
        (None, None) => (Compressed::Off, None),
    };
    write_key(out, "compress", basic_string(keywords::COMPRESSED.name(which)));
    let Some(compression) = compression else { return };
    let level = keywords::COMPRESSION_LEVELS.name(compression.level);
    let text = |pattern: &NamePattern| String::from_utf8_lossy(pattern.as_bytes()).into_owned();
    write_key(out, "compress-type", string_array(compression.types.iter().map(text)));
    write_key(out, "compress-level", basic_string(level));
    write_key(out, "compress-min", basic_string(&write_size(compression.bytes_min)));
}

#[cfg(test)]
mod tests {
    use crate::{Config, from_arguments, from_toml, to_toml};

    /// Returns whether files are compressed, and whether responses of origins are.
    fn compressed(config: &Config) -> [bool; 2] {
        let [route] = config.services[0].routes() else { panic!("one route") };
        let of_files = route.folder.as_ref().is_some_and(|it| it.rules.compression.is_some());
        [of_files, route.compression.is_some()]
    }

    #[test]
    fn files_are_compressed_by_default_and_other_responses_on_request() {
        for (words, expected) in [
            ("serve a", [true, false]),
            ("serve a --compress=off", [false, false]),
            ("serve a --origin=http://b", [true, false]),
            ("serve a --origin=http://b --compress=on", [true, true]),
            ("serve a --fastcgi=unix:b --compress=on --compress-min=2K", [true, true]),
            ("boost --origin=http://b", [false, false]),
            ("boost --origin=http://b --compress=off", [false, false]),
            ("boost --origin=http://b --compress=files", [false, false]),
            ("boost --origin=http://b --compress=on --compress-level=best", [false, true]),
        ] {
            let config = from_arguments(words.split(' ')).unwrap();
            assert_eq!(compressed(&config), expected, "{words}");
            let written = to_toml(&config);
            assert_eq!(from_toml(&written).unwrap().services, config.services, "{written}");
        }
    }

    #[test]
    fn options_without_an_effect_are_refused() {
        for (words, expected) in [
            (
                "serve a --compress=off --compress-min=1",
                "--compress-min: has no effect: --compress",
            ),
            (
                "boost --origin=http://b --compress-min=1",
                "--compress-min: has no effect: the route",
            ),
            ("boost --origin=http://b --compress=yes", "--compress: \"yes\" is neither files nor"),
        ] {
            let message = from_arguments(words.split(' ')).unwrap_err().to_string();
            assert!(message.contains(expected), "{words}: {message}");
        }
    }
}
