//! Pages about stored responses, as JSON for programs and as text (`format=text`), and purges.

use std::fmt::Write;
use std::sync::Arc;

use millrace_http_cache::Flags;
use millrace_store::{BodyEnd, Cache, Object, PurgeResult, Selector};
use serde_json::{Map, Value, json};

use super::Admin;
use super::query::Query;
use super::request::AdminRequest;
use super::response::AdminResponse;
use crate::cache_metrics::{CACHE_METRICS, CacheUnit};
use crate::{console, http};

/// The default number of responses in a list.
const LIST_OBJECTS: usize = 100;
/// The maximum number of responses in a list.
const LIST_OBJECTS_MAX: usize = millrace_config::LIST_OBJECTS_MAX as usize;
/// Limit of the responses shown for one URL.
const SHOW_OBJECTS_MAX: usize = 100;
/// The maximum size of a list in bytes. Responses beyond it are left out.
const LIST_BYTES_MAX: usize = 8 << 20;

/// Handles GET /cache.
pub(super) fn list(
    admin: &Admin,
    request: &AdminRequest<'_>,
) -> Result<AdminResponse, AdminResponse> {
    let cache = cache(admin)?;
    let query = Query::parse(request.query, &["prefix", "limit", "format"])?;
    let is_text = wants_text(&query)?;
    let which = query.get("prefix").map_or(Ok(Selector::All), parse_prefix)?;
    let max = query.get("limit").map_or(Ok(LIST_OBJECTS), parse_limit)?;
    let (objects, mut is_more) = find(cache, &which, max);
    let now_ms = now_ms();
    let mut lines = Vec::new();
    let mut bytes = 0;
    for (object, tier) in &objects {
        let summary = ObjectSummary::new(object, tier, now_ms);
        let line = if is_text { summary.line() } else { summary.json(None).to_string() };
        bytes += line.len();
        if bytes > LIST_BYTES_MAX {
            is_more = true;
            break;
        }
        lines.push(line);
    }
    Ok(match is_text {
        true => {
            if is_more {
                lines.push("... and more (use a prefix or a higher limit)".to_owned());
            }
            lines.insert(0, TABLE_HEADER.to_owned());
            AdminResponse::text((200, "OK"), &lines.join("\n"))
        }
        false => objects_response(&lines, is_more),
    })
}

/// Handles GET /cache/object.
pub(super) fn show(
    admin: &Admin,
    request: &AdminRequest<'_>,
) -> Result<AdminResponse, AdminResponse> {
    let cache = cache(admin)?;
    let query = Query::parse(request.query, &["url", "format"])?;
    let is_text = wants_text(&query)?;
    let url = query.get("url").ok_or_else(|| {
        bad_request("missing parameter url (expected: url=http[s]://HOST[:PORT]/PATH)")
    })?;
    let (objects, is_more) = find(cache, &self::parse_url(url)?, SHOW_OBJECTS_MAX);
    if objects.is_empty() {
        let line = format!("no stored response for {}", printable(url));
        return Err(AdminResponse::text((404, "Not Found"), &line));
    }
    let now_ms = now_ms();
    let all =
        objects.iter().map(|(object, tier)| (ObjectSummary::new(object, tier, now_ms), object));
    Ok(match is_text {
        true => {
            let pages: Vec<_> = all.map(|(summary, object)| summary.page(object)).collect();
            AdminResponse::text((200, "OK"), &pages.join("\n\n"))
        }
        false => {
            let pages = all.map(|(summary, object)| summary.json(Some(object)).to_string());
            objects_response(&pages.collect::<Vec<_>>(), is_more)
        }
    })
}

/// Handles GET /cache/stat.
pub(super) fn stat(
    admin: &Admin,
    request: &AdminRequest<'_>,
) -> Result<AdminResponse, AdminResponse> {
    let stat = cache(admin)?.stats();
    let query = Query::parse(request.query, &["format"])?;
    let rows = CACHE_METRICS.iter().map(|row| (row, (row.read)(&stat)));
    Ok(match wants_text(&query)? {
        true => {
            let lines: Vec<_> = rows
                .map(|(row, value)| {
                    let value = match row.unit {
                        CacheUnit::Bytes => console::format_bytes(value),
                        CacheUnit::Count => value.to_string(),
                    };
                    format!("{:<24}{value:>12}  {}", row.name, row.help)
                })
                .collect();
            AdminResponse::text((200, "OK"), &lines.join("\n"))
        }
        false => {
            let members = rows.map(|(row, value)| (row.name.to_owned(), value.into()));
            json_response(&members.collect::<Map<_, _>>().into())
        }
    })
}

/// Handles POST /cache/purge.
pub(super) fn purge(
    admin: &Admin,
    request: &AdminRequest<'_>,
) -> Result<AdminResponse, AdminResponse> {
    const NAMES: &[&str] = &["url", "prefix", "tag", "group", "site", "all", "soft", "format"];
    let cache = cache(admin)?;
    let query = Query::parse(request.query, NAMES)?;
    let (is_text, is_soft) = (wants_text(&query)?, query.flag("soft")?);
    let which = parse_selection(cache, &query)?;
    let PurgeResult { count, is_durable } = cache.purge(&which, is_soft, now_ms());
    let how = if is_soft { "made stale" } else { "purged" };
    // The query is percent-encoded, so it fits on a line.
    console::log(&format!("cache: {how}: {count} ({})", printable(request.query.as_bytes())));
    if is_durable == Some(false) {
        console::log("cache: a disk could not record a purge");
    }
    let response = match is_text {
        true => {
            let disks = match is_durable {
                None => "",
                Some(true) => {
                    " in memory; matching responses on disks are not used again and not counted"
                }
                Some(false) => {
                    " in memory; a disk could not record the purge and may serve them after a restart"
                }
            };
            AdminResponse::text((200, "OK"), &format!("{how}: {count}{disks}"))
        }
        false => {
            let mut purged = json!({"purged": count, "soft": is_soft});
            if let Some(is_durable) = is_durable {
                purged["durable"] = is_durable.into();
            }
            json_response(&purged)
        }
    };
    let is_nothing = count == 0 && is_durable.is_none();
    Ok(if is_nothing { response.with_matched_zero() } else { response })
}

/// Returns the selected responses sorted by name, each with its tier (`memory` or `disk`), and
/// whether there are more. A response in both is listed as `memory`.
fn find(cache: &Cache, which: &Selector, max: usize) -> (Vec<(Arc<Object>, &'static str)>, bool) {
    let (objects, mut is_more) = cache.list(which, max);
    let mut found: Vec<_> = objects.into_iter().map(|object| (object, "memory")).collect();
    if !is_more {
        let (others, more) = cache.list_disks(which, max - found.len());
        found.extend(others.into_iter().map(|object| (object, "disk")));
        is_more = more;
    }
    found.sort_by(|one, other| one.0.name.cmp(&other.0.name));
    (found, is_more)
}

fn parse_selection(cache: &Cache, query: &Query<'_>) -> Result<Selector, AdminResponse> {
    let wrong = "invalid selection (expected: exactly one of url=URL, prefix=URL, tag=TAG, group=GROUP with site=URL, all)";
    if query.get("site").is_some() != query.get("group").is_some() {
        return Err(bad_request(
            "group without site, or site without group (expected: group=GROUP with site=URL)",
        ));
    }
    let mut found = Vec::new();
    found.extend(query.get("url").map(parse_url).transpose()?);
    found.extend(query.get("prefix").map(parse_prefix).transpose()?);
    found.extend(query.get("tag").map(|text| Selector::tag(cache.hash(), text)));
    if let (Some(site), Some(text)) = (query.get("site"), query.get("group")) {
        let group = Selector::group(cache.hash(), site, text);
        found.push(
            group.ok_or_else(|| bad_request("invalid site (expected: http[s]://HOST[:PORT])"))?,
        );
    }
    if query.flag("all")? {
        found.push(Selector::All);
    }
    match <[Selector; 1]>::try_from(found) {
        Ok([which]) => Ok(which),
        Err(_) => Err(bad_request(wrong)),
    }
}

fn parse_url(text: &[u8]) -> Result<Selector, AdminResponse> {
    let wrong =
        || format!("invalid url {} (expected: http[s]://HOST[:PORT]/PATH)", printable(text));
    Selector::url(text).ok_or_else(|| bad_request(&wrong()))
}

fn parse_prefix(text: &[u8]) -> Result<Selector, AdminResponse> {
    let wrong = || {
        let text = printable(text);
        format!("invalid prefix {text} (expected: http[s]://HOST[:PORT] and the start of a path)")
    };
    Selector::prefix(text).ok_or_else(|| bad_request(&wrong()))
}

fn parse_limit(text: &[u8]) -> Result<usize, AdminResponse> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number
        .filter(|number| (1..=LIST_OBJECTS_MAX).contains(number))
        .ok_or_else(|| bad_request(&format!("invalid limit (expected: 1 to {LIST_OBJECTS_MAX})")))
}

fn wants_text(query: &Query<'_>) -> Result<bool, AdminResponse> {
    match query.get("format") {
        None | Some(b"json") => Ok(false),
        Some(b"text") => Ok(true),
        Some(_) => Err(bad_request("unknown format (expected: json, text)")),
    }
}

fn cache(admin: &Admin) -> Result<&Arc<Cache>, AdminResponse> {
    let cache = admin.hooks.cache.as_ref();
    cache.ok_or_else(|| {
        AdminResponse::text((409, "Conflict"), "this process has no cache (no-cache)")
    })
}

fn bad_request(wrong: &str) -> AdminResponse {
    AdminResponse::text((400, "Bad Request"), wrong)
}

fn json_response(value: &Value) -> AdminResponse {
    AdminResponse::page((200, "OK"), "application/json", format!("{value}\n"))
}

/// Returns a page of objects with one object per line, so that people and line-based tools can read
/// it.
fn objects_response(objects: &[String], is_more: bool) -> AdminResponse {
    let end = if objects.is_empty() { "" } else { "\n" };
    let page = format!("{{\"objects\":[{end}{}{end}],\"more\":{is_more}}}\n", objects.join(",\n"));
    AdminResponse::page((200, "OK"), "application/json", page)
}

/// Returns the time of day in milliseconds since 1970, which the caching rules use.
fn now_ms() -> u64 {
    u64::try_from(millrace_sys::time_of_day().as_millis()).unwrap_or(u64::MAX)
}

/// The summary of a stored response.
struct ObjectSummary {
    url: String,
    /// Further parts of its cache key.
    parts: Vec<String>,
    status: u16,
    /// `None`: the response is still being received and its length is unknown.
    bytes: Option<u64>,
    /// Whether the whole body has been received.
    is_complete: bool,
    age_s: u32,
    ttl_s: i64,
    state: &'static str,
    tier: &'static str,
}

const TABLE_HEADER: &str = "status     bytes  state            ttl  tier    URL";

impl ObjectSummary {
    fn new(object: &Object, tier: &'static str, now_ms: u64) -> Self {
        let mut parts = object.name.split(|byte| *byte == b'\n').map(printable);
        let meta = object.meta();
        let state = match meta.is_fresh(now_ms) {
            // Invalidated, or marked no-cache by the origin.
            _ if meta.flags.contains(Flags::NO_CACHE) => "validate",
            true => "fresh",
            false => "stale",
        };
        Self {
            url: parts.next().unwrap_or_default(),
            parts: parts.collect(),
            status: meta.status,
            bytes: object.length(),
            is_complete: object.body.end() == Some(BodyEnd::Whole),
            age_s: meta.age_s(now_ms),
            ttl_s: meta.ttl_s(now_ms),
            state,
            tier,
        }
    }

    fn size(&self) -> String {
        self.bytes.map_or_else(|| "?".to_owned(), console::format_bytes)
    }

    fn line(&self) -> String {
        let Self { status, state, tier, url, parts, .. } = self;
        let (size, ttl) = (self.size(), format!("{} s", self.ttl_s));
        let parts: String = parts.iter().map(|part| format!("  {part}")).collect();
        format!("{status:<6} {size:>9}  {state:<8} {ttl:>10}  {tier:<6}  {url}{parts}")
    }

    fn page(&self, object: &Object) -> String {
        let mut page = self.url.clone();
        for part in &self.parts {
            let _ = write!(page, "\n  key: {part}");
        }
        let arriving = if self.is_complete { "" } else { ", incomplete" };
        let Self { state, age_s, ttl_s, tier, .. } = self;
        let _ = write!(page, "\n  {state}: {age_s} s old, fresh for {ttl_s} s; in {tier}");
        let _ = write!(page, "\n  body: {}{arriving}", self.size());
        if let Some(extent) = object.meta().stored_range {
            let _ = write!(page, ", partial: bytes {} to {}", extent.first, extent.last);
        }
        let _ = write!(page, "\n  tags: {}", object.tags.len());
        for line in header_lines(object) {
            let _ = write!(page, "\n  {line}");
        }
        page
    }

    /// Returns the summary as a JSON object. If `object` is given, adds its header and its number
    /// of tags.
    fn json(&self, object: Option<&Object>) -> Value {
        let mut value = json!({
            "url": self.url,
            "key": self.parts,
            "status": self.status,
            "bytes": self.bytes,
            "complete": self.is_complete,
            "age_s": self.age_s,
            "ttl_s": self.ttl_s,
            "state": self.state,
            "tier": self.tier,
        });
        if let Some(object) = object {
            value["tags"] = object.tags.len().into();
            value["headers"] = header_lines(object).collect();
        }
        value
    }
}

/// Returns the lines of a stored header, without control characters: a terminal could interpret
/// them.
fn header_lines(object: &Object) -> impl Iterator<Item = String> {
    let lines = object.header().split(|byte| *byte == b'\n');
    let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let clean = |line: &[u8]| {
        let text = String::from_utf8_lossy(line).into_owned();
        text.replace(char::is_control, "?")
    };
    lines.filter(|line| !line.is_empty()).map(clean)
}

/// Percent-encodes everything except printable ASCII.
fn printable(bytes: &[u8]) -> String {
    http::percent_encoded(bytes, |byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_escaped() {
        assert_eq!(printable(b"http://a/\x1b[2J \xff~"), "http://a/%1B[2J%20%FF~");
        let bodies = [&[][..], &["1".to_owned(), "2".to_owned()]];
        let bodies = bodies.map(|objects| objects_response(objects, false).body);
        let expected =
            ["{\"objects\":[],\"more\":false}\n", "{\"objects\":[\n1,\n2\n],\"more\":false}\n"];
        assert_eq!(bodies, expected);
    }
}
