//! Builds the folder of a route from raw values.

use std::collections::HashSet;
use std::sync::Arc;

use millrace_files::{Compression, ContentTypes, FolderRules, NamePattern};

use super::value::{
    parse_cache_control, parse_charset, parse_extension, parse_fallback, parse_file_name,
    parse_media_type, parse_pattern, parse_try_file,
};
use super::{FolderRoute, SymlinkRule};
use crate::Service;
use crate::cache::parse_seconds;
use crate::error::ConfigError;
use crate::keywords;
use crate::options::{Scope, ValueType};
use crate::raw::RawTable;
use crate::value::{Problem, parse_file_path, parse_switch};

/// Builds the folder of a route without opening it; `None` if the route has none. `compression` is
/// that of its files.
pub(crate) fn build(
    values: &RawTable,
    compression: Option<Compression>,
) -> Result<Option<FolderRoute>, ConfigError> {
    let path = values.one("folder", parse_file_path)?;
    let symlinks = values.one_or_default("symlinks", |text| keywords::SYMLINKS.parse(text))?;
    let allowed_paths = values.all("allow-path", parse_file_path)?;
    let check_s = values.one_or_default("file-check", parse_seconds)?;
    let rules = build_rules(values, compression)?;
    let Some(path) = path else {
        return match values.find_set(|row| row.scope == Scope::Folder && row.key != "cgi") {
            None => Ok(None),
            Some(location) => {
                let problem = "has no effect: the route has no folder";
                let expected = format!("folder, {}", ValueType::Folder.expected());
                Err(ConfigError::rule(location, problem, expected))
            }
        };
    };
    if symlinks == SymlinkRule::None && !allowed_paths.is_empty() {
        let problem = format!("has no effect: {} is none", values.name_of("symlinks"));
        let expected = format!("{} inside", values.name_of("symlinks"));
        return Err(ConfigError::rule(values.location_of("allow-path"), problem, expected));
    }
    let check_ms = u64::from(check_s) * 1000;
    let is_internal = values.one_or_default("internal", parse_switch)?;
    let folder = None;
    let route = FolderRoute { path, symlinks, allowed_paths, is_internal, rules, check_ms, folder };
    Ok(Some(route))
}

/// Builds the folder of the files that responses of origins may name.
pub(crate) fn build_sendfile(values: &RawTable) -> Result<Option<FolderRoute>, ConfigError> {
    let Some(path) = values.one("sendfile-path", parse_file_path)? else { return Ok(None) };
    if !path.is_absolute() {
        let location = values.location_of("sendfile-path");
        let problem = format!("\"{}\" is a relative path", path.display());
        return Err(ConfigError::rule(location, problem, "an absolute path"));
    }
    let rules = FolderRules {
        index: Vec::new(),
        has_precompressed: false,
        compression: None,
        ..FolderRules::default()
    };
    Ok(Some(FolderRoute {
        path,
        symlinks: SymlinkRule::Inside,
        allowed_paths: Vec::new(),
        is_internal: true,
        rules,
        check_ms: 1000,
        folder: None,
    }))
}

/// Makes each folder of a configuration refuse the scripts of all its routes. Several routes, or
/// links, can lead to one directory under different names, so paths are not compared.
pub(crate) fn withhold_scripts(services: &mut [Service]) {
    let mut scripts: Vec<NamePattern> = Vec::new();
    for folder in services.iter_mut().flat_map(folders) {
        for pattern in &folder.rules.script_extensions {
            if !scripts.contains(pattern) {
                scripts.push(pattern.clone());
            }
        }
    }
    for folder in services.iter_mut().flat_map(folders) {
        let own = &folder.rules.script_extensions;
        let others: Vec<_> = scripts.iter().filter(|it| !own.contains(it)).cloned().collect();
        if !others.is_empty() {
            Arc::make_mut(folder).rules.other_script_extensions = others;
        }
    }
}

/// Returns the folders of a service whose files can be sent.
fn folders(service: &mut Service) -> impl Iterator<Item = &mut Arc<FolderRoute>> {
    let routes = service.routes_mut().iter_mut();
    routes.flat_map(|route| route.folder.iter_mut().chain(&mut route.sendfile))
}

fn build_rules(
    values: &RawTable,
    compression: Option<Compression>,
) -> Result<FolderRules, ConfigError> {
    let default = FolderRules::default();
    let scripts = vec![RawTable::default_of("extensions", parse_extension)?];
    let mut scripts = all_or(values, "extensions", parse_extension, scripts)?;
    if values.find_set(|row| row.key == "fastcgi").is_none() {
        // Without an interpreter, there are programs, but no scripts.
        scripts.clear();
    }
    Ok(FolderRules {
        index: all_or(values, "index", parse_file_name, default.index)?,
        has_listing: values.one_or_default("listing", parse_switch)?,
        hide: values.all("hide", parse_pattern)?,
        try_files: values.all("try-files", parse_try_file)?,
        fallback: values.one("fallback", parse_fallback)?,
        has_precompressed: values.one_or_default("precompressed", parse_switch)?,
        compression,
        types: build_types(values)?,
        program_extensions: all_or(
            values,
            "program-extensions",
            parse_extension,
            default.program_extensions,
        )?,
        script_extensions: scripts,
        other_script_extensions: Vec::new(),
        cache_control: values.one_or_default("file-cache-control", parse_cache_control)?,
    })
}

/// Returns all values of a key; `default` if it is not set.
pub(crate) fn all_or<T>(
    values: &RawTable,
    key: &str,
    parse: fn(&str) -> Result<T, Problem>,
    default: Vec<T>,
) -> Result<Vec<T>, ConfigError> {
    let all = values.all(key, parse)?;
    let is_set = !all.is_empty() || values.is_empty_list(key);
    Ok(if is_set { all } else { default })
}

fn build_types(values: &RawTable) -> Result<ContentTypes, ConfigError> {
    let overrides = values.all("media-type", parse_media_type)?;
    let charset = values.one_or_default("charset", parse_charset)?;
    let mut seen = HashSet::new();
    for (extension, _) in &overrides {
        if !seen.insert(extension) {
            let problem = format!("has two types for .{extension}");
            let expected = "one type for each extension";
            return Err(ConfigError::rule(values.location_of("media-type"), problem, expected));
        }
    }
    // The type of a name without an extension.
    let unknown = ContentTypes::default().of(b"");
    let types = ContentTypes::new(overrides, charset, unknown);
    Ok(types.expect("each type and the charset were checked"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use millrace_files::CompressionLevel;

    use crate::{Config, FolderRoute, SymlinkRule, from_arguments, from_toml, to_toml};

    const FULL: &str = r#"
[[serve]]
listen = ["127.0.0.1:1", "tls://[::1]:2"]
certificate = "a"
key = "b"
redirect-https = true
hsts = "1d"
cache-ttl = "default 1m"
folder = "/srv/www"
index = ["index.html", "index.htm"]
listing = true
hide = ["*.key", "private"]
try-files = ["{path}", "{path}.html", "/no.html"]
fallback = "/app/index.html"
precompressed = false
compress-type = ["text/*", "application/x-a"]
compress-level = "best"
compress-min = "2K"
media-type = [".GLB=model/gltf-binary", ".txt=text/plain; charset=iso-8859-1"]
charset = "iso-8859-1"
program-extensions = [".php*", ".x"]
file-cache-control = "public, max-age=60"
allow-path = ["/srv/shared", "/data"]
file-check = "10s"
origins = "https://a"
origin-ca = "c"
balance = "least-outstanding"

[[serve.route]]
host = "b.example"
folder = "/srv/b"
symlinks = "none"
compress = false
charset = false
index = []
program-extensions = []

[[serve.route]]
path = "/api/"
origins = "http://b"
check = "/up"
"#;

    fn folder(config: &Config, route: usize) -> Option<&FolderRoute> {
        config.services[0].routes()[route].folder.as_deref()
    }

    #[test]
    fn a_file_with_every_option_is_written_and_read_again() {
        let config = from_toml(FULL).unwrap();
        let [first, api, last] = config.services[0].routes() else { panic!("three routes") };
        assert_eq!((last.host.as_deref(), last.path.as_str()), (None, "/"));
        assert_eq!((last.origins.len(), api.origins.len(), first.origins.len()), (1, 1, 0));
        let own = last.folder.as_deref().unwrap();
        let ttl = |route: &crate::Route| route.cache.as_ref().unwrap().policy.ttl;
        assert_eq!([ttl(first), ttl(api)], [ttl(last); 2], "routes inherit the cache options");
        assert_eq!((own.path.as_path(), own.check_ms), (Path::new("/srv/www"), 10_000));
        assert_eq!((own.symlinks, own.allowed_paths.len()), (SymlinkRule::Inside, 2));
        let rules = &own.rules;
        assert!(rules.has_listing && !rules.has_precompressed && rules.hides(b"a.key"));
        assert_eq!((rules.index.len(), rules.try_files.len()), (2, 3));
        assert_eq!(rules.fallback.as_deref(), Some(&b"app/index.html"[..]));
        let compression = rules.compression.as_ref().unwrap();
        assert_eq!((compression.level, compression.bytes_min), (CompressionLevel::Best, 2048));
        assert!(compression.applies_to("application/x-a", 2048));
        assert_eq!(rules.types.of(b"a.glb"), "model/gltf-binary");
        assert_eq!(rules.types.of(b"a.css"), "text/css; charset=iso-8859-1");
        assert!(rules.is_program(b"a.x") && !rules.is_program(b"a.cgi"));
        assert_eq!(rules.cache_control.as_deref(), Some(&b"public, max-age=60"[..]));
        assert!(folder(&config, 1).is_none());
        let other = folder(&config, 0).unwrap();
        assert_eq!((other.symlinks, other.check_ms), (SymlinkRule::None, 1000));
        assert_eq!(other.rules.compression, None);
        assert!(other.rules.index.is_empty() && !other.rules.is_program(b"a.php"));
        assert_eq!(other.rules.types.of(b"a.css"), "text/css");
        let written = to_toml(&config);
        assert_eq!(from_toml(&written), Ok(config), "{written}");
        assert!(!written.contains("[[boost") && written.matches("[[serve.route]]").count() == 3);
    }

    #[test]
    fn a_command_line_a_file_and_a_route_of_boost_have_the_same_folder() {
        let words = "serve /srv/www --workers=2 --listing --hide=*.key --media-type=.a=b/c";
        let line = from_arguments(words.split(' ')).unwrap();
        let options = "folder = '/srv/www'\nlisting = true\nhide = '*.key'\nmedia-type = '.a=b/c'";
        let file = from_toml(&format!("workers = 2\n[[serve]]\n{options}")).unwrap();
        assert_eq!(line, file);
        assert_eq!(line.listeners[0].address.to_string(), "127.0.0.1:8080");
        let words = "serve --listing /srv/www --workers=2 --hide=*.key --media-type=.a=b/c";
        assert_eq!(from_arguments(words.split(' ')), Ok(line.clone()));
        let words = "serve --listing on /srv/www --workers=2 --hide=*.key --media-type=.a=b/c";
        assert_eq!(from_arguments(words.split(' ')), Ok(line.clone()));
        let boost = from_toml(&format!("[[boost]]\n[[boost.route]]\n{options}")).unwrap();
        assert_eq!(folder(&boost, 0), folder(&file, 0));
        let default = from_arguments(["serve", "."]).unwrap();
        assert_eq!(folder(&default, 0).unwrap().rules, Default::default());
        assert_eq!(from_toml(&to_toml(&boost)), Ok(boost));
    }

    #[test]
    fn programs_have_a_route_of_their_own() {
        let words = "serve /srv/www --cgi /srv/cgi --workers=2 --cgi-user=web:33";
        let line = from_arguments(words.split(' ')).unwrap();
        let file = "workers = 2\ncgi-user = 'web:33'\n[[serve]]\nfolder = '/srv/www'\n\
                    [[serve.route]]\npath = '/cgi-bin/'\ncgi = '/srv/cgi'";
        assert_eq!(from_toml(file), Ok(line.clone()));
        let [programs, files] = line.services[0].routes() else { panic!("two routes") };
        assert_eq!(programs.cgi.as_ref().unwrap().folder, Path::new("/srv/cgi"));
        assert_eq!((programs.path.as_str(), programs.origins.len()), ("/cgi-bin/", 1));
        assert!(programs.folder.is_none() && files.cgi.is_none());
        assert_eq!(line.cgi_user.to_string(), "web:33");
        let boost =
            from_toml("[[boost]]\n[[boost.route]]\ncgi = 'a'\nupload-buffer = '2M'").unwrap();
        for config in [line, boost] {
            let written = to_toml(&config);
            assert_eq!(from_toml(&written), Ok(config), "{written}");
        }
        for (text, expected) in [
            (
                "[[serve]]\ncgi = 'a'\nfolder = 'b'",
                ":2: cgi: cannot be combined with folder, origins or fastcgi",
            ),
            (
                "[[serve]]\ncgi = 'a'\nlisting = true",
                ":3: listing: has no effect: the route has no folder",
            ),
            (
                "[[serve]]\ncgi = 'a'\npath = '/a'",
                ":3: path: /a does not end with /, and the route has a folder",
            ),
            (
                "[[serve]]\ncgi = 'a'\nbalance = 'round-robin'",
                ":3: balance: has no effect with cgi",
            ),
        ] {
            let message = from_toml(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{text:?}: {message}");
        }
    }

    #[test]
    fn scripts_of_a_route_are_withheld_by_all_others() {
        let text = "
            [[serve]]
            folder = '/srv/www'
            fastcgi = 'unix:/php'
            extensions = ['.tpl', '.php']
            [[serve.route]]
            path = '/all/'
            folder = '/srv'
            program-extensions = []
            [[boost]]
            listen = '127.0.0.1:2'
            [[boost.route]]
            path = '/a/'
            origins = 'http://a'
            sendfile-path = '/srv/www'
            [[boost.route]]
            path = '/b/'
            folder = '/srv/b'
            fastcgi = 'unix:/php'
        ";
        let config = from_toml(text).unwrap();
        let mut seen = 0;
        for route in config.services.iter().flat_map(|service| service.routes()) {
            for folder in route.folder.iter().chain(&route.sendfile) {
                seen += 1;
                for name in ["a.tpl", "a.TPL~", "a.php"] {
                    assert!(folder.rules.is_program(name.as_bytes()), "{name} {folder:?}");
                }
                let is_run = folder.path == Path::new("/srv/www") && route.sendfile.is_none();
                assert_eq!(folder.rules.is_script(b"a.tpl"), is_run, "{folder:?}");
            }
        }
        assert_eq!(seen, 4);
        let written = to_toml(&config);
        assert_eq!(from_toml(&written), Ok(config), "{written}");
        let without = text.replace("fastcgi = 'unix:/php'", "").replace("extensions = ['.t", "#");
        let plain = from_toml(&without).unwrap();
        let mut routes = plain.services.iter().flat_map(|service| service.routes());
        assert!(routes.all(|it| it.folder.iter().all(|it| !it.rules.is_program(b"a.tpl"))));
    }

    #[test]
    fn options_that_cannot_work_are_refused() {
        for (text, expected) in [
            (
                "[[serve]]",
                ":1: [[serve]]: has no folder (expected: folder, or at least one [[serve.",
            ),
            ("[[serve]]\nlisting = true", ":2: listing: has no effect: the route has no folder"),
            ("[[serve]]\nindex = []", ":1: [[serve]]: index: has no effect: the route has no"),
            ("[[serve]]\nbalance = 'round-robin'", ":1: [[serve]]: origins is missing, and there"),
            (
                "[[boost]]\n[[boost.route]]\norigins = 'http://a'\nfallback = '/a'",
                ":4: fallback: has no effect: the route has no folder (expected: folder, the path",
            ),
            (
                "[[serve]]\nfolder = 'a'\nbalance = 'round-robin'",
                ":3: balance: has no effect: the route has no origins (expected: origins http://",
            ),
            (
                "[[serve]]\nfolder = 'a'\norigin-verify = false",
                ":3: origin-verify: has no effect: no origin of the route begins with https://",
            ),
            (
                "[[serve]]\nfolder = 'a'\npath = '/a'",
                ":3: path: /a does not end with /, and the route has a folder (expected: /a/)",
            ),
            (
                "[[serve]]\nfolder = 'a'\nsymlinks = 'none'\nallow-path = 'b'",
                ":4: allow-path: has no effect: symlinks is none (expected: symlinks inside)",
            ),
            (
                "[[serve]]\nfolder = 'a'\nmedia-type = ['.a=b/c', '.A=b/d']",
                ":3: media-type: has two types for .a (expected: one type for each extension)",
            ),
            (
                "[[serve]]\nfolder = 'a'\ncompress = false\ncompress-min = 1",
                ":4: compress-min: has no effect: compress is off (expected: compress on)",
            ),
            (
                "[[serve]]\nfolder = 'a'\nindex = '..'",
                ":3: index: \"..\" is not the name of a file",
            ),
            (
                "[[boost]]\nfolder = 'a'",
                "not belong in [[boost]] (expected: in [[boost.route]], [[",
            ),
            ("[[serve]]\nfolders = 'a'", "unknown key \"folders\"; did you mean \"folder\"?"),
        ] {
            let message = from_toml(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{text:?}: {message}");
        }
        for (words, expected) in [
            ("serve", "serve: the folder is missing (expected: millrace serve DIR)"),
            ("serve a b", "serve: unknown argument \"b\""),
            ("serve --folder a", "unknown option \"--folder\" (expected: millrace serve DIR)"),
            (
                "serve a --check=/",
                "--check: has no effect: the route has no origins (expected: --or",
            ),
            ("boost --origin=http://a --listing", "boost: --listing is an option of serve only"),
        ] {
            let message = from_arguments(words.split(' ')).unwrap_err().to_string();
            assert!(message.contains(expected), "{words}: {message}");
        }
        let routes = "[[serve.route]]\nfolder = 'b'\n".repeat(256);
        let message = from_toml(&format!("[[serve]]\nfolder = 'a'\n{routes}")).unwrap_err();
        assert!(message.to_string().contains("has 257 routes (expected: up to 256, with its own)"));
        let message = from_arguments(["serve", ""]).unwrap_err().to_string();
        assert_eq!(message, "DIR: \"\" is empty (expected: the path of a directory)");
    }

    #[test]
    fn the_defaults_of_patterns_are_those_of_the_rules() {
        let rules = millrace_files::FolderRules::default();
        for (key, patterns) in [
            ("program-extensions", &rules.program_extensions),
            ("compress-type", &rules.compression.as_ref().unwrap().types),
        ] {
            let row = crate::options::OptionRow::of_key(key).unwrap();
            let text = patterns.iter().map(|it| String::from_utf8_lossy(it.as_bytes()));
            assert_eq!(row.default_text(), text.collect::<Vec<_>>().join(", "));
        }
    }
}
