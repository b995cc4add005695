//! The responses of the origins. A response is a function of only the request that reached the
//! origin, unless the model counts.

use super::fields::{is_negotiated, is_reflected};
use super::path_reading::PathReading;
use crate::strict::{Field, Message};

/// The responses that carry a cookie for the client that caused them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CookieOn {
    /// Every full response to GET.
    Get,
    /// Every response to HEAD.
    Head,
    /// Every 304.
    NotModified,
}

/// The behaviour of the origin for one mutant. The default responds to every GET with a page that
/// caches may store for ten minutes.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// How the origin reads paths.
    pub reading: PathReading,
    /// `/account` is a personal page that depends on the cookie, and pages have no Cache-Control.
    pub accounts: bool,
    /// With `accounts`: even personal pages have `max-age`.
    pub is_careless: bool,
    /// Pages contain Host, the body of the request, and every field that [`is_reflected`] names.
    pub reflects: bool,
    /// Requests are redirected unless their X-Forwarded-Proto is https.
    pub forces_https: bool,
    /// Pages vary by these request fields, and contain them.
    pub vary: Vec<String>,
    /// Pages have an entity tag, and conditions are evaluated.
    pub validates: bool,
    /// A field for one client alone, and the response that carries it.
    pub cookie: Option<(CookieOn, &'static str)>,
    /// The status, with `max-age`, of the response to a request with `X-Bad` or with more than
    /// 4,000 bytes of fields.
    pub error: Option<u16>,
    /// Pages belong to a group (RFC 9875), which every unsafe request invalidates.
    pub groups: bool,
    /// A response to a request with Cookie or Authorization is `private`.
    pub private_to_credentials: bool,
    /// Responses to HEAD have fields that responses to GET do not have.
    pub head_differs: bool,
    /// The origin responds slowly, so that other requests for the same page arrive meanwhile.
    pub is_slow: bool,
    /// Pages contain the number of requests for the page at this origin.
    pub counts: bool,
}

impl Model {
    /// Returns the response to a request. `own_address` is the origin's own address, which
    /// responses do not contain, and `count` counts the pages of this mutant.
    pub(super) fn respond(
        &self,
        request: &Message,
        own_address: &str,
        count: impl FnOnce() -> u32,
    ) -> Vec<u8> {
        let mut response = Response::new(200);
        let is_head = request.method() == "HEAD";
        if !is_head && request.method() != "GET" {
            response.field("Cache-Control", "no-store");
            if self.groups {
                response.field("Cache-Group-Invalidation", "\"g\"");
            }
            response.body = "done\n".to_owned();
            return response.bytes(is_head);
        }
        if let Some(status) = self.error.filter(|_| is_bad(request)) {
            response.status = status;
            response.field("Cache-Control", "max-age=600");
            response.body = "bad request\n".to_owned();
            return response.bytes(is_head);
        }
        if self.forces_https && first(request, "x-forwarded-proto") != Some(b"https") {
            response.status = 301;
            response.field("Cache-Control", "max-age=600");
            let host =
                text(first(request, "host").unwrap_or_default()).replace(own_address, "origin");
            response.field("Location", &format!("https://{host}{}", request.target()));
            return response.bytes(is_head);
        }
        response.body = self.page(request, own_address);
        // The tag does not include the count, so that a page that counts can be validated.
        let tag = format!("\"{:016x}\"", hash(response.body.as_bytes()));
        if self.counts {
            response.body.push_str(&format!("page number {}\n", count()));
        }
        self.fields(request, &mut response);
        if is_head && self.head_differs {
            response.field("Link", "<https://mallory.example/>; rel=canonical");
            response.field("X-Frame-Options", "ALLOWALL");
        }
        if self.validates {
            response.field("ETag", &tag);
            if values(request, "if-none-match").any(|value| text(value).contains(&tag)) {
                response.status = 304;
            }
        }
        if let Some((on, name)) = self.cookie {
            let sent_on = match (response.status, is_head) {
                (304, _) => CookieOn::NotModified,
                (_, true) => CookieOn::Head,
                _ => CookieOn::Get,
            };
            if on == sent_on {
                let client = text(first(request, "user-agent").unwrap_or_default());
                response.field(name, &format!("sid={}", client.replace(' ', "-")));
            }
        }
        response.bytes(is_head)
    }

    fn page(&self, request: &Message, own_address: &str) -> String {
        let page = self.reading.page(request.target());
        let mut body = format!("{page}\n");
        let is_personal = page == "/account" || page.starts_with("/account/");
        if self.accounts && is_personal {
            body.push_str(&format!("account of {}\n", lines(request, "cookie")));
        }
        if self.reflects {
            let host = request.fields.iter().filter(|field| field.is("host"));
            let named = request.fields.iter().filter(|field| is_reflected(&field.name));
            let mut reflected: Vec<String> = host.chain(named).map(reflection).collect();
            if let Some(rest) = forwarded(request) {
                reflected.push(format!("forwarded: {rest}"));
            }
            if !request.body.is_empty() {
                reflected.push(format!("a body: {}", text(&request.body)));
            }
            reflected.sort();
            body.push_str(&reflected.join("\n").replace(own_address, "origin"));
            body.push('\n');
        }
        for name in &self.vary {
            let value = match &**name {
                name if is_negotiated(name) => preferred(request, name),
                "Forwarded" => members(request, name),
                name => lines(request, name),
            };
            body.push_str(&format!("varies by {name}: {value}\n"));
        }
        body
    }

    fn fields(&self, request: &Message, response: &mut Response) {
        let is_personal = ["cookie", "authorization"].iter().any(|it| first(request, it).is_some());
        let is_private = self.private_to_credentials && is_personal;
        match (is_private, self.accounts && !self.is_careless) {
            (true, _) => response.field("Cache-Control", "private"),
            (false, true) => {}
            (false, false) => response.field("Cache-Control", "max-age=600"),
        }
        if !self.vary.is_empty() {
            response.field("Vary", &self.vary.join(", "));
        }
        if self.vary.iter().any(|name| name == "Accept-Language") {
            response.field("Content-Language", &preferred(request, "Accept-Language"));
        }
        if self.groups {
            response.field("Cache-Groups", "\"g\"");
        }
    }
}

struct Response {
    status: u16,
    fields: String,
    body: String,
}

impl Response {
    fn new(status: u16) -> Self {
        Self { status, fields: String::new(), body: String::new() }
    }

    fn field(&mut self, name: &str, value: &str) {
        self.fields.push_str(&format!("{name}: {value}\r\n"));
    }

    fn bytes(&self, is_head: bool) -> Vec<u8> {
        let Self { status, fields, body } = self;
        let length = match status {
            304 => String::new(),
            _ => format!("Content-Length: {}\r\n", body.len()),
        };
        let head = format!("HTTP/1.1 {status} Modelled\r\n{length}{fields}\r\n");
        if is_head || *status == 304 { head.into_bytes() } else { (head + body).into_bytes() }
    }
}

fn is_bad(request: &Message) -> bool {
    let bytes: usize = request.fields.iter().map(|it| it.name.len() + it.value.len()).sum();
    bytes > 4_000 || first(request, "x-bad").is_some()
}

fn values<'a>(request: &'a Message, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    request.fields.iter().filter(move |field| field.is(name)).map(|field| &field.value[..])
}

fn first<'a>(request: &'a Message, name: &'a str) -> Option<&'a [u8]> {
    values(request, name).next()
}

fn text(value: &[u8]) -> String {
    value.iter().map(|byte| char::from(*byte)).collect()
}

fn reflection(field: &Field) -> String {
    format!("{}: {}", field.name.to_ascii_lowercase(), text(&field.value))
}

/// Returns the values of a field, each in brackets. The lines of the unknown field X-Tenant are
/// joined, as in RFC 9110 section 5.3. An empty field differs from a missing one.
fn lines(request: &Message, name: &str) -> String {
    let lines: Vec<String> = values(request, name).map(text).collect();
    match (name, lines.is_empty()) {
        (_, true) => String::new(),
        ("X-Tenant", false) => format!("[{}]", lines.join(", ")),
        _ => lines.iter().map(|line| format!("[{line}]")).collect(),
    }
}

/// Returns the members of a field that an RFC defines as a list.
fn members(request: &Message, name: &str) -> String {
    let list = values(request, name).map(text).collect::<Vec<_>>().join(",");
    let Some(members) = split(&list, ',') else { return lines(request, name) };
    let members = members.into_iter().map(str::trim).filter(|member| !member.is_empty());
    members.map(|member| format!("[{member}]")).collect()
}

/// Returns the member of a content negotiation field that the client prefers among those that this
/// origin offers. RFC 9110 section 12.5: the order of members has no meaning.
fn preferred(request: &Message, name: &str) -> String {
    let offered: &[&str] = match name {
        "Accept-Encoding" => &["br", "gzip"],
        _ => &["de", "en", "fr"],
    };
    let default = if name == "Accept-Encoding" { "identity" } else { "en" };
    let list = values(request, name).map(text).collect::<Vec<_>>().join(",").to_lowercase();
    let weight = |offered: &str| {
        let members = list.split(',').map(str::trim).filter_map(|member| {
            let (value, parameters) = member.split_once(';').unwrap_or((member, ""));
            let weight = parameters.trim().strip_prefix("q=").unwrap_or("1").parse::<f32>();
            (value.trim() == offered).then(|| weight.unwrap_or(0.0))
        });
        members.fold(0.0, f32::max)
    };
    let mut best = (default, 0.0);
    for offer in offered {
        if weight(offer) > best.1 {
            best = (offer, weight(offer));
        }
    }
    best.0.to_owned()
}

/// Returns `Forwarded` without the parts that only name the client and the proxies (RFC 7239), or
/// the whole field if a quoted string does not end.
fn forwarded(request: &Message) -> Option<String> {
    let list = values(request, "forwarded").map(text).collect::<Vec<_>>().join(", ");
    if list.is_empty() {
        return None;
    }
    let Some(members) = split(&list, ',') else { return Some(list) };
    let names_client = |pair: &str| {
        let name = pair.split('=').next().unwrap_or_default().trim();
        name.is_empty() || name.eq_ignore_ascii_case("for") || name.eq_ignore_ascii_case("by")
    };
    let kept = members.into_iter().map(|member| {
        let pairs = split(member, ';').unwrap_or_default();
        let pairs = pairs.into_iter().map(str::trim).filter(|pair| !names_client(pair));
        pairs.collect::<Vec<_>>().join(";")
    });
    let kept: Vec<String> = kept.filter(|member| !member.is_empty()).collect();
    (!kept.is_empty()).then(|| kept.join(", "))
}

/// Splits outside of quoted strings. Returns `None` if one does not end.
fn split(list: &str, at: char) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (index, character) in list.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if character == at && !quoted => {
                parts.push(&list[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    (!quoted).then_some(parts)
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strict;

    fn response(model: &Model, fields: &str) -> String {
        let request = format!("GET /a HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n");
        let request = strict::request(request.as_bytes()).expect("sound").expect("whole");
        let bytes = model.respond(&request, "127.0.0.1:1", || 1);
        String::from_utf8(bytes).expect("ASCII")
    }

    #[test]
    fn a_page_reflects_link_fields_and_not_client_fields() {
        let model = Model { reflects: true, ..Model::default() };
        let fields = "X-Forwarded-For: 1\r\nX-Real-Ip: 1\r\nX-Original-Host: a\r\n\
                      Forwarded: for=\"1;host=a\";proto=http, by=2;For=3\r\n";
        let page = response(&model, fields);
        assert!(page.ends_with("\nforwarded: proto=http\nhost: a.test\nx-original-host: a\n"));
        let page = response(&model, "Forwarded: for=\"1;host=a\r\n");
        assert!(page.contains("\nforwarded: for=\"1;host=a\n"), "{page}");
    }

    #[test]
    fn a_true_condition_gets_304() {
        let model = Model { validates: true, ..Model::default() };
        let page = response(&model, "");
        let tag = page.split("ETag: ").nth(1).and_then(|rest| rest.split('\r').next());
        let condition = format!("If-None-Match: {}\r\n", tag.expect("an entity tag"));
        assert!(response(&model, &condition).starts_with("HTTP/1.1 304 "));
        assert!(response(&model, "If-None-Match: \"other\"\r\n").starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn negotiation_prefers_by_weight() {
        let model = Model { vary: vec!["Accept-Encoding".to_owned()], ..Model::default() };
        for (value, choice) in [
            ("gzip", "gzip"),
            ("br;q=0.1, gzip", "gzip"),
            ("gzip, br", "br"),
            ("gzip;q=0", "identity"),
        ] {
            let page = response(&model, &format!("Accept-Encoding: {value}\r\n"));
            assert!(page.ends_with(&format!("varies by Accept-Encoding: {choice}\n")), "{page}");
        }
    }
}
