//! Writes the cache options of a configuration; see [`write`](crate::write).

use super::value::{write_field_or_cookie, write_lifetime, write_seconds};
use super::{CacheRoute, CacheSend, CacheSettings, Disk};
use crate::keywords;
use crate::toml_text::{basic_string, string_array, write_key};
use crate::value::write_size;

/// Writes the options at the top level of a file.
pub(crate) fn write_settings(out: &mut String, settings: Option<&CacheSettings>) {
    write_key(out, "cache-memory", basic_string(&memory_written(settings)));
    let disks = settings.map_or(&[][..], |settings| &settings.disks);
    write_key(out, "disk", string_array(disks.iter().map(write_disk)));
    write_key(out, "disk-reads", basic_string(reads_written(settings)));
    write_key(out, "cache-send", basic_string(send_written(settings)));
}

/// Returns the value of `disk-reads`.
pub(crate) fn reads_written(settings: Option<&CacheSettings>) -> &'static str {
    keywords::DISK_READS.name(settings.is_some_and(|settings| settings.always_reads_disks))
}

/// Returns the value of `cache-send`.
pub(crate) fn send_written(settings: Option<&CacheSettings>) -> &'static str {
    keywords::CACHE_SEND.name(settings.map_or(CacheSend::Auto, |settings| settings.send))
}

/// Returns the value of `cache-memory`.
pub(crate) fn memory_written(settings: Option<&CacheSettings>) -> String {
    write_size(settings.map_or(0, |settings| settings.memory_bytes))
}

/// Returns a value of `disk`.
pub(crate) fn write_disk(disk: &Disk) -> String {
    format!("{}:{}", disk.folder.display(), write_size(disk.bytes))
}

/// Writes the options of a forward proxy or a route.
pub(crate) fn write_route(out: &mut String, route: Option<&CacheRoute>) {
    write_key(out, "cache", route.is_some());
    let Some(CacheRoute { policy, key, bypass, finishes_fetch, adds_cache_status }) = route else {
        return;
    };
    let of_statuses =
        policy.status_ttls.iter().map(|one| write_lifetime(Some(one.statuses), one.ttl));
    let usual = std::iter::once(write_lifetime(None, policy.ttl));
    write_key(out, "cache-ttl", string_array(usual.chain(of_statuses)));
    let mut time = |key, seconds| write_key(out, key, basic_string(&write_seconds(seconds)));
    time("cache-ttl-max", policy.ttl_s_max);
    time("cache-heuristic-max", policy.heuristic_s_max);
    time("cache-stale-if-error", policy.stale_if_error_s);
    time("cache-stale-while-revalidate", policy.stale_while_revalidate_s);
    write_key(out, "cache-heuristic", policy.heuristic_percent);
    write_key(out, "cache-set-cookie", basic_string(keywords::SET_COOKIE.name(policy.set_cookie)));
    write_key(out, "cache-request-directives", policy.applies_request_directives);
    write_key(out, "cache-target", names(&policy.targets).unwrap_or_else(|| basic_string("off")));
    write_key(out, "cache-key", features(&key.fields, &key.cookies));
    let parameters = names(&key.ignored_parameters).unwrap_or_else(|| "[]".to_owned());
    write_key(
        out,
        "cache-ignore-query",
        if key.ignores_query { basic_string("*") } else { parameters },
    );
    write_key(out, "share-schemes", key.shares_schemes);
    write_key(out, "cache-bypass", features(&bypass.fields, &bypass.cookies));
    write_key(out, "cache-finish", finishes_fetch);
    write_key(out, "cache-status", adds_cache_status);
}

/// Returns an array of names; `None` if there are none.
fn names(names: &[Box<[u8]>]) -> Option<String> {
    let texts = names.iter().map(|name| String::from_utf8_lossy(name).into_owned());
    (!names.is_empty()).then(|| string_array(texts))
}

fn features(fields: &[Box<[u8]>], cookies: &[Box<[u8]>]) -> String {
    let fields = fields.iter().map(|name| write_field_or_cookie("field", name));
    string_array(fields.chain(cookies.iter().map(|name| write_field_or_cookie("cookie", name))))
}
