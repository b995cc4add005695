//! Builds the cache part of a configuration from raw values.

use std::sync::Arc;

use iolite::limits::{BLOCK_BYTES, SLAB_BYTES_MAX, SLAB_BYTES_MIN};
use millrace_http_cache::{CachePolicy, Features, KeyParts, Space, StatusTtl, Ttl, UnkeyedFields};

use super::value::{self, FieldOrCookie, MemoryShare};
use super::{CacheRoute, CacheSettings, Disk};
use crate::error::ConfigError;
use crate::keywords;
use crate::options::{OptionRow, ValueType};
use crate::process_rows::MEMORY_BYTES_PER_WORKER_MIN;
use crate::raw::{RawTable, bounded};
use crate::value::{Problem, check_bounds, parse_switch, write_size};

/// Builds the settings of the cache of a process with this memory and number of workers; `None` if
/// it has no cache.
pub(crate) fn build_settings(
    process: &RawTable,
    memory_bytes: u64,
    workers: u64,
) -> Result<Option<CacheSettings>, ConfigError> {
    let is_off = process.one("no-cache", parse_switch)?.unwrap_or_default();
    let bytes = compute_cache_memory(process, memory_bytes, workers)?;
    let disks = build_disks(process)?;
    let always_reads_disks =
        process.one_or_default("disk-reads", |text| keywords::DISK_READS.parse(text))?;
    let send = process.one_or_default("cache-send", |text| keywords::CACHE_SEND.parse(text))?;
    if is_off {
        return Ok(None);
    }
    if bytes == 0 && !disks.is_empty() {
        let problem = "needs memory of the cache, which is 0";
        let (option, least) = (process.name_of("cache-memory"), write_size(SLAB_BYTES_MIN as u64));
        let expected = format!("{option} of at least {least}, or no disk");
        return Err(ConfigError::rule(process.location_of("disk"), problem, expected));
    }
    Ok((bytes > 0).then_some(CacheSettings {
        memory_bytes: bytes,
        disks,
        always_reads_disks,
        send,
    }))
}

/// Returns the memory of the cache in bytes. It leaves the buffer pools of the workers their
/// minimum: a percentage is reduced, and a size that is too large is an error.
fn compute_cache_memory(
    process: &RawTable,
    memory_bytes: u64,
    workers: u64,
) -> Result<u64, ConfigError> {
    const LEAST: u64 = SLAB_BYTES_MIN as u64;
    let most = memory_bytes - workers * MEMORY_BYTES_PER_WORKER_MIN;
    let share = process.one_or_default("cache-memory", parse_bounded_share)?;
    let (bytes, written) = match share {
        MemoryShare::Bytes(bytes) => (bytes, write_size(bytes)),
        MemoryShare::Percent(percent) => {
            let bytes = (memory_bytes * percent / 100).min(most);
            let written = format!("{percent}% of {}", write_size(memory_bytes));
            (bytes - bytes % BLOCK_BYTES as u64, written)
        }
    };
    let is_set = process.location_of("cache-memory") != process.location;
    match (share, bytes) {
        (MemoryShare::Bytes(0) | MemoryShare::Percent(0), _) => Ok(0),
        (_, LEAST..) if bytes <= most => Ok(bytes),
        // The option has its default, so too little memory for a cache is no error.
        _ if !is_set => Ok(0),
        _ => Err(ConfigError::Rule {
            location: process.location_of("cache-memory").to_owned(),
            problem: match bytes {
                ..LEAST => format!("{written} is too small for a cache"),
                _ => format!(
                    "{written} leaves less than 1M of {} a worker",
                    write_size(memory_bytes)
                ),
            },
            expected: match most {
                LEAST.. => format!("{} to {}, or 0", write_size(LEAST), write_size(most)),
                _ => format!("0, or more {}", process.name_of("memory")),
            },
        }),
    }
}

fn parse_bounded_share(text: &str) -> Result<MemoryShare, Problem> {
    let ValueType::MemoryShare { least, most, percent_max } =
        OptionRow::value_type_of("cache-memory")
    else {
        unreachable!("the row has this type")
    };
    match value::parse_share(text)? {
        MemoryShare::Bytes(0) => Ok(MemoryShare::Bytes(0)),
        MemoryShare::Bytes(bytes) => check_bounds(bytes, least, most).map(MemoryShare::Bytes),
        MemoryShare::Percent(percent) => {
            check_bounds(percent, 0, percent_max).map(MemoryShare::Percent)
        }
    }
}

/// Parses the disks. No directory may be that of another disk or inside it, because each disk has
/// files and a size of its own.
fn build_disks(process: &RawTable) -> Result<Vec<Disk>, ConfigError> {
    let ValueType::Disk { least, most } = OptionRow::value_type_of("disk") else {
        unreachable!("the row has this type")
    };
    let disks = process.all("disk", |text| {
        let disk = value::parse_disk(text)?;
        check_bounds(disk.bytes, least, most).map(|_| disk)
    })?;
    for (index, disk) in disks.iter().enumerate() {
        let is_within = |other: &&Disk| {
            disk.folder.starts_with(&other.folder) || other.folder.starts_with(&disk.folder)
        };
        if let Some(other) = disks[..index].iter().find(is_within) {
            let (one, another) = (other.folder.display(), disk.folder.display());
            let problem = format!("{one} and {another} overlap");
            let expected = "directories that do not contain each other";
            return Err(ConfigError::rule(process.location_of("disk"), problem, expected));
        }
    }
    Ok(disks)
}

/// Builds the cache rules of a forward proxy or a route; `None` if it bypasses the cache. `space`
/// is the key space of the service. `is_gateway`: the service is a reverse proxy. It removes the
/// request fields by which an untrusted client could change the response, or adds them to the cache
/// key.
pub(crate) fn build_rules(
    values: &RawTable,
    is_gateway: bool,
    space: &Space,
) -> Result<Option<Arc<CacheRoute>>, ConfigError> {
    let switch = |key| values.one_or_default(key, parse_switch);
    let keyed = fields_and_cookies(values, "cache-key")?;
    let unkeyed = match is_gateway {
        true => UnkeyedFields::of_gateway(),
        false => UnkeyedFields::of_forward_proxy(&keyed.fields),
    };
    let route = CacheRoute {
        policy: CachePolicy { unkeyed, ..build_policy(values)? },
        key: build_key_parts(values, keyed, space)?,
        bypass: fields_and_cookies(values, "cache-bypass")?,
        finishes_fetch: switch("cache-finish")?,
        adds_cache_status: switch("cache-status")?,
    };
    Ok(switch("cache")?.then(|| Arc::new(route)))
}

fn build_policy(values: &RawTable) -> Result<CachePolicy, ConfigError> {
    let seconds = |key| values.one_or_default(key, value::parse_seconds);
    let percent = |text: &str| Ok(bounded("cache-heuristic", text)? as u8);
    let set_cookie = |text: &str| keywords::SET_COOKIE.parse(text);
    let (ttl, status_ttls) = build_lifetimes(values)?;
    Ok(CachePolicy {
        targets: build_targets(values)?,
        ttl,
        status_ttls,
        ttl_s_max: seconds("cache-ttl-max")?,
        heuristic_percent: values.one_or_default("cache-heuristic", percent)?,
        heuristic_s_max: seconds("cache-heuristic-max")?,
        stale_if_error_s: seconds("cache-stale-if-error")?,
        stale_while_revalidate_s: seconds("cache-stale-while-revalidate")?,
        set_cookie: values.one_or_default("cache-set-cookie", set_cookie)?,
        applies_request_directives: values
            .one_or_default("cache-request-directives", parse_switch)?,
        unkeyed: CachePolicy::default().unkeyed,
    })
}

fn build_lifetimes(values: &RawTable) -> Result<(Ttl, Vec<StatusTtl>), ConfigError> {
    let (mut default, mut status_ttls) = (None, Vec::new());
    for (statuses, ttl) in values.all("cache-ttl", value::parse_lifetime)? {
        if let Some(statuses) = statuses {
            status_ttls.push(StatusTtl { statuses, ttl });
        } else if default.replace(ttl).is_some() {
            let problem = "has two lifetimes without a status";
            let expected = "one lifetime without a status, and others with one";
            return Err(ConfigError::rule(values.location_of("cache-ttl"), problem, expected));
        }
    }
    let (_, ttl) = RawTable::default_of("cache-ttl", value::parse_lifetime)?;
    Ok((default.unwrap_or(ttl), status_ttls))
}

fn build_targets(values: &RawTable) -> Result<Vec<Box<[u8]>>, ConfigError> {
    let mut names = values.all("cache-target", value::parse_field_or_off)?;
    if names.is_empty() && !values.is_empty_list("cache-target") {
        names.push(RawTable::default_of("cache-target", value::parse_field_or_off)?);
    }
    if names.len() > 1 && names.contains(&None) {
        let (problem, expected) = ("off is combined with names", "names of fields, or off alone");
        return Err(ConfigError::rule(values.location_of("cache-target"), problem, expected));
    }
    let mut targets = Vec::new();
    names.into_iter().flatten().for_each(|name| add_name(&mut targets, name));
    Ok(targets)
}

fn build_key_parts(
    values: &RawTable,
    keyed: Features,
    space: &Space,
) -> Result<KeyParts, ConfigError> {
    let mut parameters = Vec::new();
    values
        .all("cache-ignore-query", value::parse_parameter)?
        .into_iter()
        .for_each(|name| add_name(&mut parameters, name));
    let ignores_query = parameters.iter().any(|name| **name == *b"*");
    if ignores_query {
        parameters.clear();
    }
    Ok(KeyParts {
        ignored_parameters: parameters,
        ignores_query,
        fields: keyed.fields,
        cookies: keyed.cookies,
        shares_schemes: values.one_or_default("share-schemes", parse_switch)?,
        space: space.clone(),
    })
}

fn fields_and_cookies(values: &RawTable, key: &str) -> Result<Features, ConfigError> {
    let mut features = Features::default();
    for feature in values.all(key, value::parse_field_or_cookie)? {
        match feature {
            FieldOrCookie::Field(name) => add_name(&mut features.fields, name),
            FieldOrCookie::Cookie(name) => add_name(&mut features.cookies, name),
        }
    }
    Ok(features)
}

/// Adds a name unless it is in the list.
fn add_name(names: &mut Vec<Box<[u8]>>, name: Box<[u8]>) {
    if !names.contains(&name) {
        names.push(name);
    }
}

const _: () = assert!(SLAB_BYTES_MIN.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(SLAB_BYTES_MAX >= 1 << 44, "a slab may be as large as the largest memory");

#[cfg(test)]
mod tests {
    use millrace_http_cache::SetCookie;

    use super::*;
    use crate::{Config, ServiceRole, from_arguments, from_toml, fuzz_configuration, to_toml};

    const FULL: &str = r#"
memory = "1G"
workers = 2
cache-memory = "256M"
disk = ["/var/cache/a:10G", "/var/cache/b:1G"]
[limits]
object_bytes = "64M"
uncacheable_ms = "10s"
[[forward]]
cache-heuristic = 0
cache-key = "field:X-Device"
[[boost]]
cache-ttl = "default 1m"
cache-key = ["cookie:Lang", "field:X-Device", "field:x-device"]
[[boost.route]]
path = "/static/"
origins = "http://a"
cache-ttl = ["404-410 default 10s", "override 1h", "302 override 1m"]
cache-ttl-max = "7d"
cache-heuristic-max = "2h"
cache-stale-if-error = "1d"
cache-stale-while-revalidate = "30s"
cache-set-cookie = "shared"
cache-request-directives = false
cache-target = ["Millrace-Cache-Control", "CDN-Cache-Control"]
cache-ignore-query = ["utm_*", "fbclid", "utm_*"]
share-schemes = true
cache-bypass = ["cookie:session*", "field:Authorization"]
cache-finish = "off"
cache-status = "off"
[[boost.route]]
origins = "http://a"
cache-key = []
cache-target = "off"
cache-ignore-query = ["a", "*"]
[[boost.route]]
origins = "http://a"
cache = false
"#;

    fn names(names: &[&str]) -> Vec<Box<[u8]>> {
        names.iter().map(|name| name.as_bytes().into()).collect()
    }

    /// Returns the cache rules of each forward proxy and each route, in order.
    fn routes(config: &Config) -> Vec<Option<Arc<CacheRoute>>> {
        let of_service = |service: &crate::Service| match &service.role {
            ServiceRole::Forward(_) => vec![service.cache.clone()],
            ServiceRole::Boost(routes) => routes.iter().map(|route| route.cache.clone()).collect(),
        };
        config.services.iter().flat_map(of_service).collect()
    }

    fn words(text: &str) -> Result<Config, ConfigError> {
        from_arguments(text.split_whitespace())
    }

    #[test]
    fn a_file_sets_cache_rules() {
        let config = from_toml(FULL).unwrap();
        let cache = config.cache.as_ref().unwrap();
        assert_eq!((cache.memory_bytes, cache.disks.len()), (256 << 20, 2));
        assert_eq!((cache.disks[0].bytes, config.pool_bytes()), (10 << 30, 768 << 20));
        assert_eq!(cache.object_bytes_max(&config.limits), 32 << 20, "an eighth of the memory");
        let all = routes(&config);
        let [Some(forward), Some(first), Some(second), None] = &*all else { panic!("{all:?}") };
        assert_eq!((forward.policy.heuristic_percent, first.policy.heuristic_percent), (0, 10));
        let expected = CachePolicy {
            targets: names(&["millrace-cache-control", "cdn-cache-control"]),
            ttl: Ttl::Override(3600),
            status_ttls: vec![
                StatusTtl { statuses: (404, 410), ttl: Ttl::Default(10) },
                StatusTtl { statuses: (302, 302), ttl: Ttl::Override(60) },
            ],
            ttl_s_max: 604_800,
            heuristic_s_max: 7200,
            stale_if_error_s: 86_400,
            stale_while_revalidate_s: 30,
            set_cookie: SetCookie::Shared,
            applies_request_directives: false,
            ..CachePolicy::default()
        };
        assert_eq!(first.policy, expected);
        let parts = KeyParts {
            ignored_parameters: names(&["utm_*", "fbclid"]),
            ignores_query: false,
            fields: names(&["x-device"]),
            cookies: names(&["Lang"]),
            shares_schemes: true,
            space: Space::named("boost"),
        };
        assert_eq!(first.key, parts);
        assert_eq!(first.bypass.fields, names(&["authorization"]));
        assert_eq!(first.bypass.cookies, names(&["session*"]));
        assert!(
            !first.finishes_fetch
                && !first.adds_cache_status
                && second.finishes_fetch
                && second.adds_cache_status
        );
        assert_eq!((second.policy.ttl, second.policy.targets.len()), (Ttl::Default(60), 0));
        assert_eq!((&second.key.fields, &second.key.cookies), (&Vec::new(), &Vec::new()));
        assert!(second.key.ignores_query && second.key.ignored_parameters.is_empty());
        fuzz_configuration(FULL.as_bytes());
    }

    #[test]
    fn the_defaults_are_those_of_the_rules() {
        for line in ["forward", "boost --origin http://a"] {
            let config = words(line).unwrap();
            let all = routes(&config);
            let [Some(route)] = &*all else { panic!("{all:?}") };
            let policy = CachePolicy {
                unkeyed: route.policy.unkeyed.clone(),
                ttl_s_max: 3650 * 86_400,
                ..CachePolicy::default()
            };
            assert_eq!(route.policy, policy);
            let key = KeyParts { space: route.key.space.clone(), ..KeyParts::default() };
            assert_eq!((&route.key, &route.bypass), (&key, &Features::default()));
            assert!(route.finishes_fetch && route.adds_cache_status);
            assert_eq!(config.cache.unwrap().memory_bytes, 128 << 20);
        }
    }

    #[test]
    fn fields_of_untrusted_clients_are_in_the_key_or_bypass_the_cache() {
        let of = |line: &str| routes(&words(line).unwrap())[0].clone().unwrap();
        assert_eq!(of("forward").policy.unkeyed, UnkeyedFields::of_forward_proxy(&[]));
        let keyed = of("forward --cache-key field:X-Forwarded-Host");
        let fields = names(&["x-forwarded-host"]);
        assert_eq!(keyed.policy.unkeyed, UnkeyedFields::of_forward_proxy(&fields));
        for trust in ["", "--trust 10.0.0.1"] {
            let boost = of(&format!("boost --origin http://a {trust}"));
            assert_eq!(boost.policy.unkeyed, UnkeyedFields::of_gateway());
        }
    }

    #[test]
    fn services_have_separate_key_spaces() {
        let file = "
            forward = [{ listen = '[::1]:0' }, { listen = ['[::1]:0', 'unix:/a'] }]
            [[boost]]
            route = [{ path = '/a', origins = 'http://a' }, { origins = 'http://b' }]
            [[boost]]
            listen = ['unix:/b', '127.0.0.1:0']
            route = { origins = 'http://a' }
        ";
        let all = routes(&from_toml(file).unwrap());
        let of = |it: &Option<Arc<CacheRoute>>| it.as_ref().unwrap().key.space.clone();
        let spaces: Vec<_> = all.iter().map(of).collect();
        assert_ne!(spaces[0], spaces[1]);
        let expected = ["127.0.0.1:8080", "127.0.0.1:8080", "unix:/b"];
        assert_eq!(spaces[2..], expected.map(Space::named));
    }

    #[test]
    fn target_rules_are_part_of_the_key_space() {
        let space = |options: &str| {
            let config = words(&format!("forward --workers 1 {options}")).unwrap();
            routes(&config)[0].clone().unwrap().key.space.clone()
        };
        let all = [
            "",
            "--allow-private off",
            "--allow-target 10.0.0.0/8",
            "--deny-target 10.0.0.0/8",
            "--allow-port 81",
            "--deny-port 81",
        ];
        for (index, options) in all.iter().enumerate() {
            assert_eq!(space(options), space(options));
            assert!(all[..index].iter().all(|other| space(other) != space(options)), "{options}");
        }
        assert_eq!(
            space(""),
            space("--deny-domain a.example"),
            "domain rules apply before the cache lookup"
        );
    }

    #[test]
    fn routes_inherit_cache_rules() {
        let line = "boost --origin http://a --workers 1 --cache-ttl-max 1h --cache-bypass cookie:s";
        let file = "workers = 1\n[boost.route]\norigins = 'http://a'\ncache-ttl-max = '1h'\n\
                    cache-bypass = 'cookie:s'";
        assert_eq!(words(line), from_toml(file));
        let wrong = "[[boost]]\ncache-ttl = '1h'\n[[boost.route]]\norigins = 'http://a'\n\
                     cache-ttl = 'origin'";
        let message = from_toml(wrong).unwrap_err().to_string();
        assert!(
            message.starts_with("configuration:2: cache-ttl: \"1h\" has no default or override"),
            "{message}"
        );
    }

    #[test]
    fn without_a_cache_no_route_has_one() {
        for line in [
            "forward --no-cache --disk /a:1G",
            "forward --cache-memory 0",
            "forward --cache-memory 0%",
            "forward --memory 5M --workers 1",
            "boost --origin http://a --no-cache --cache-ttl origin",
        ] {
            let config = words(line).unwrap();
            assert_eq!((&config.cache, routes(&config)), (&None, vec![None]), "{line}");
            assert_eq!(config.pool_bytes(), config.memory_bytes);
            fuzz_configuration(to_toml(&config).as_bytes());
        }
    }

    #[test]
    fn the_cache_leaves_the_pools_what_they_need() {
        let memory = |line: &str| {
            let config = words(&format!("forward --workers 4 {line}"));
            config.unwrap().cache.map(|cache| cache.memory_bytes >> 20)
        };
        assert_eq!(memory("--memory 64M --cache-memory 90%"), Some(56), "whole blocks");
        assert_eq!(memory("--memory 10M --cache-memory 90%"), Some(6));
        assert_eq!(memory("--memory 9M --cache-memory 5M"), Some(5));
        assert_eq!(memory("--memory 9M"), Some(4));
        assert_eq!(memory("--memory 7M"), None);
        assert_eq!(memory("--memory 16T --cache-memory 15T"), Some(15 << 20));
    }

    #[test]
    fn errors_name_the_option_and_what_is_expected() {
        for (line, parts) in [
            ("--cache-memory 1M", ["\"1M\" is too small", "4M to 16T in bytes"]),
            ("--cache-memory 91%", ["\"91%\" is too large", "1% to 90%"]),
            ("--cache-memory half", ["\"half\" is not a size", "0 for none"]),
            ("--cache-memory 255M", ["255M leaves less than 1M of 256M a worker", "4M to 252M"]),
            ("--cache-memory 1%", ["1% of 256M is too small", "4M to 252M, or 0"]),
            (
                "--cache-memory 0 --disk /a:1G",
                ["--disk: needs memory of the cache", "--cache-memory of"],
            ),
            ("--memory 7M --cache-memory 50%", ["50% of 7M is too small", "0, or more --memory"]),
            (
                "--memory 7M --disk /a:1G",
                ["--disk: needs memory of the cache", "at least 4M, or no disk"],
            ),
            ("--disk /a", ["--disk: \"/a\" has no :SIZE", "DIRECTORY:SIZE"]),
            ("--disk a:1G", ["does not begin with a slash", "16M"]),
            ("--disk /a:1M", ["\"/a:1M\" is too small", "16M to 1024T"]),
            ("--disk /a:1G --disk /b:1G --disk /a/:2G", ["/a and /a overlap", "directories"]),
            ("--disk /a/b:1G --disk /a:1G", ["/a/b and /a overlap", "directories"]),
            ("--cache perhaps", ["--cache: \"perhaps\"", "on, off"]),
            ("--cache-ttl 60s", ["has no default or override", "default TIME"]),
            ("--cache-ttl soon", ["does not begin with origin, default or override", "default"]),
            ("--cache-ttl=origin --cache-ttl=origin", ["two lifetimes without", "others with one"]),
            ("--cache-ttl-max 60", ["\"60\" has no unit", "s, m, h or d"]),
            ("--cache-heuristic 101", ["\"101\" is too large", "0 to 100"]),
            ("--cache-set-cookie all", ["--cache-set-cookie: \"all\"", "explicit, shared, never"]),
            ("--cache-target a:b", ["is not the name of a field", "off"]),
            ("--cache-target a --cache-target off", ["off is combined with names", "off alone"]),
            ("--cache-key X-Device", ["does not begin with field:", "cookie:PREFIX*"]),
            ("--cache-key field:x_forwarded_host", ["written with _", "field:NAME"]),
            ("--cache-ignore-query a*b", ["is not the name of a query parameter", "PREFIX*"]),
            ("--cache-bypass cookie:a;b", ["has an invalid cookie name", "cookie:NAME"]),
            (
                "--limit variants=0",
                ["--limit variants: \"0\" is too small", "1 to 65536 responses"],
            ),
        ] {
            let message = words(&format!("forward --workers 4 {line}")).unwrap_err().to_string();
            for part in parts {
                assert!(message.contains(part), "{line}: {message}");
            }
        }
        let file = "[[boost]]\n[[boost.route]]\norigins = 'http://a'\ncache-key = [\n'x']";
        let message = from_toml(file).unwrap_err().to_string();
        assert!(message.starts_with("configuration:5: cache-key: \"x\" does not"), "{message}");
        let message = from_toml("cache-ttl = 'origin'\n[[forward]]").unwrap_err().to_string();
        assert!(message.contains("cache-ttl: does not belong at the top"), "{message}");
    }
}
