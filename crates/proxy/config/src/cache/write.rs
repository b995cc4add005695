//! Writes what a configuration says of the cache; see [`write`](crate::write).

use super::value::{write_feature, write_lifetime, write_seconds};
use super::{CacheRoute, CacheSend, CacheSettings, Disk};
use crate::choice;
use crate::lines::{line, list, quoted};
use crate::value::write_size;

/// The lines at the top of a file.
pub(crate) fn write_settings(out: &mut String, settings: Option<&CacheSettings>) {
    line(out, "cache-memory", quoted(&memory_written(settings)));
    let disks = settings.map_or(&[][..], |settings| &settings.disks);
    line(out, "disk", list(disks.iter().map(write_disk)));
    line(out, "disk-reads", quoted(reads_written(settings)));
    line(out, "cache-send", quoted(send_written(settings)));
}

/// What is asked of the disks, as it is given.
pub(crate) fn reads_written(settings: Option<&CacheSettings>) -> &'static str {
    choice::DISK_READS.word(settings.is_some_and(|settings| settings.rereads))
}

/// How hot bodies are sent, as it is given.
pub(crate) fn send_written(settings: Option<&CacheSettings>) -> &'static str {
    choice::CACHE_SEND.word(settings.map_or(CacheSend::Auto, |settings| settings.send))
}

/// The memory of the cache as it is given.
pub(crate) fn memory_written(settings: Option<&CacheSettings>) -> String {
    write_size(settings.map_or(0, |settings| settings.memory_bytes))
}

/// A disk as it is given.
pub(crate) fn write_disk(disk: &Disk) -> String {
    format!("{}:{}", disk.folder.display(), write_size(disk.bytes))
}

/// The lines of a forward proxy or a route.
pub(crate) fn write_route(out: &mut String, route: Option<&CacheRoute>) {
    line(out, "cache", route.is_some());
    let Some(CacheRoute { policy, key, bypass, fill_on, tells_status }) = route else { return };
    let of_statuses = policy.status_ttls.iter();
    let of_statuses = of_statuses.map(|one| write_lifetime(Some(one.statuses), one.ttl));
    let usual = std::iter::once(write_lifetime(None, policy.ttl));
    line(out, "cache-ttl", list(usual.chain(of_statuses)));
    let mut time = |key, seconds| line(out, key, quoted(&write_seconds(seconds)));
    time("cache-ttl-max", policy.ttl_s_max);
    time("cache-heuristic-max", policy.heuristic_s_max);
    time("cache-stale-if-error", policy.stale_if_error_s);
    time("cache-stale-while-revalidate", policy.stale_while_revalidate_s);
    line(out, "cache-heuristic", policy.heuristic_percent);
    line(out, "cache-set-cookie", quoted(choice::SET_COOKIE.word(policy.set_cookie)));
    line(out, "cache-heed-requests", policy.heeds_requests);
    line(out, "cache-target", names(&policy.targets).unwrap_or_else(|| quoted("off")));
    line(out, "cache-key", features(&key.fields, &key.cookies));
    let parameters = names(&key.ignored_parameters).unwrap_or_else(|| "[]".to_owned());
    line(out, "cache-ignore-query", if key.ignores_query { quoted("*") } else { parameters });
    line(out, "cache-bypass", features(&bypass.fields, &bypass.cookies));
    line(out, "cache-finish", fill_on);
    line(out, "cache-status", tells_status);
}

/// A list of names, if there are any.
fn names(names: &[Box<[u8]>]) -> Option<String> {
    let texts = names.iter().map(|name| String::from_utf8_lossy(name).into_owned());
    (!names.is_empty()).then(|| list(texts))
}

fn features(fields: &[Box<[u8]>], cookies: &[Box<[u8]>]) -> String {
    let fields = fields.iter().map(|name| write_feature("field", name));
    list(fields.chain(cookies.iter().map(|name| write_feature("cookie", name))))
}
