//! The exchanges that contain a field: in a request, in a response, in both, or in a stored
//! response.

use super::message::{FieldShape, PATH, QUERY};

/// The place of the field under test, and the path of its message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FieldPlace {
    /// In a request that misses the cache. Its response varies by the field and is stored.
    Request,
    /// In a request that matches a stored response.
    RequestHit,
    /// In a request for an upgrade and in its 101 response.
    Upgrade,
    /// In the interim and the final response to a request that misses; the final one is stored.
    Response,
    /// In a stored response that matches a second request.
    Hit,
    /// In no message. The response is stored stale, for the next exchange.
    Stored,
    /// In the 304 that validates the response of [`FieldPlace::Stored`].
    Validated,
    /// In the response to a HEAD, which updates a stored response.
    Head,
    /// In the response to a request that is not safe.
    Post,
    /// In a request through a forward proxy, and in its response.
    Forward,
    /// In a request to a reverse proxy that selects routes by path and does not trust its clients.
    Routed,
}

impl FieldPlace {
    /// All places, in the order in which they are played.
    pub const ALL: [Self; 11] = [
        Self::Request,
        Self::RequestHit,
        Self::Upgrade,
        Self::Response,
        Self::Hit,
        Self::Stored,
        Self::Validated,
        Self::Head,
        Self::Post,
        Self::Forward,
        Self::Routed,
    ];

    /// Returns whether a message of this place has the field.
    pub(super) fn has_field(self) -> bool {
        self != Self::Stored
    }
}

/// A service of the proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Service {
    /// A reverse proxy that trusts its clients.
    #[default]
    Booster,
    /// A forward proxy with a user.
    ForwardProxy,
    /// A reverse proxy that selects routes by path and does not trust its clients.
    RoutedBooster,
}

/// One exchange: a request, and what the origin sends if the request reaches it.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    /// The bytes of the client.
    pub request: Vec<u8>,
    /// The responses that the origin sends, unless it validates.
    pub responses: Vec<Vec<u8>>,
    /// The origin's response to a request with `If-None-Match`, if it differs.
    pub validated: Option<Vec<u8>>,
    /// Whether the cache is cleared before the exchange.
    pub is_first: bool,
    /// The service that the request is sent to.
    pub service: Service,
}

/// A field in a shape, in messages of a size.
#[derive(Clone, Debug)]
pub(super) struct Case<'a> {
    name: &'a str,
    /// The lines of the field in a request.
    request_lines: String,
    /// The lines of the field in a response.
    response_lines: String,
    /// The suffix of the request target, if the field is [`QUERY`] or [`PATH`].
    target: String,
}

/// The address of the origin in the simulated world.
pub(super) const ORIGIN: &str = "127.0.0.1:8000";
/// The token of the one user of the forward proxy.
const TOKEN: &str = "token-of-the-build-machine-0123456789";
/// That user, in the format of a password file.
pub(super) const USER: &str =
    "build:token:b9811f5832444e38b517890ea2b80edd7716052dbfeebf73ecd6d1415b9c9ef2\n";

const FRESH: &str = "Cache-Control: max-age=600\r\nETag: \"e\"\r\n";
const STALE: &str = "Cache-Control: max-age=0\r\nETag: \"e\"\r\n";
const UPGRADE: &str = "Connection: upgrade\r\nUpgrade: a\r\n";
const LENGTH: &str = "Content-Length: 2\r\n";

impl<'a> Case<'a> {
    /// Returns a case with these numbers of bytes of the field in a request and in a response.
    pub(super) fn new(name: &'a str, shape: FieldShape, request: usize, response: usize) -> Self {
        let lines = |bytes: usize| {
            let first = begin_of(name);
            let lines = shape.lines(name, bytes - first.len());
            lines.replacen(": ", &format!(": {first}"), 1)
        };
        let target = match name {
            QUERY => query(&lines(request)),
            PATH => path(&shape.lines("q", request), request),
            _ => {
                let [request_lines, response_lines] = [lines(request), lines(response)];
                return Self { name, request_lines, response_lines, target: String::new() };
            }
        };
        Self { name, request_lines: String::new(), response_lines: String::new(), target }
    }

    /// Returns one exchange for each of [`FieldPlace::ALL`].
    pub(super) fn exchanges(&self) -> Vec<Exchange> {
        let host = if self.name == "host" { "" } else { HOST };
        let get = self.request("GET /r", host);
        let varying = response("200 OK", &format!("{FRESH}{LENGTH}Vary: {}\r\n", self.name));
        let unchanged = response("304 Not Modified", "");
        let upgrade = self.request("GET /u", &format!("{host}{UPGRADE}"));
        let switched = self.response("101 Switching Protocols", UPGRADE);
        let plain = request("GET /a HTTP/1.1", HOST);
        let interim = self.response("103 Early Hints", "");
        let stale = response("200 OK", &format!("{STALE}{LENGTH}"));
        let validating = request("GET /v HTTP/1.1", HOST);
        let fresh = self.response("200 OK", &format!("{FRESH}{LENGTH}"));
        let other = response("200 OK", &format!("{FRESH}{LENGTH}"));
        let validated = self.response("304 Not Modified", FRESH);
        let head = request("HEAD /a HTTP/1.1", &format!("{HOST}Cache-Control: no-cache\r\n"));
        let header = fresh.strip_suffix(BODY).expect("it has a body");
        let post = request("POST /a HTTP/1.1", &format!("{HOST}Content-Length: 0\r\n"));
        let posted = self.response("200 OK", LENGTH);
        let routed = self.request("GET /s", host);
        let host = if self.name == "host" { "" } else { "Host: 127.0.0.1:8000\r\n" };
        let credentials = match self.name {
            "proxy-authorization" => String::new(),
            _ => format!("Proxy-Authorization: Bearer {TOKEN}\r\n"),
        };
        let forwarded =
            self.request(&format!("GET http://{ORIGIN}/f"), &format!("{host}{credentials}"));
        vec![
            Exchange { is_first: true, ..Exchange::new(&get, &[&varying]) },
            Exchange::new(&get, &[&varying]).validated(&unchanged),
            Exchange::new(&upgrade, &[&switched]),
            Exchange::new(&plain, &[&interim, &fresh]),
            Exchange::new(&plain, &[&other]).validated(&unchanged),
            Exchange::new(&validating, &[&stale]),
            Exchange::new(&validating, &[&other]).validated(&validated),
            Exchange::new(&head, &[header]),
            Exchange::new(&post, &[&posted]),
            Exchange { service: Service::ForwardProxy, ..Exchange::new(&forwarded, &[&fresh]) },
            Exchange { service: Service::RoutedBooster, ..Exchange::new(&routed, &[&varying]) },
        ]
    }

    /// Returns a request with the field.
    fn request(&self, start: &str, lines: &str) -> Vec<u8> {
        let Self { request_lines, target, .. } = self;
        request(&format!("{start}{target} HTTP/1.1"), &format!("{lines}{request_lines}"))
    }

    /// Returns a response with the field.
    fn response(&self, status: &str, lines: &str) -> Vec<u8> {
        response(status, &format!("{lines}{}", self.response_lines))
    }
}

impl Exchange {
    fn new(request: &[u8], responses: &[&[u8]]) -> Self {
        let responses = responses.iter().map(|response| response.to_vec()).collect();
        Self { request: request.to_vec(), responses, ..Self::default() }
    }

    fn validated(self, response: &[u8]) -> Self {
        Self { validated: Some(response.to_vec()), ..self }
    }
}

/// Returns the beginning of a field's value. Without it, the proxy would reject the value before it
/// has parsed all of it.
fn begin_of(name: &str) -> &'static str {
    match name {
        "age" => "0,",
        "proxy-authorization" => "Bearer ",
        "x-of-cache-target" => "max-age=600,",
        _ => "",
    }
}

/// Converts field lines to the parameters of a query.
fn query(lines: &str) -> String {
    let parameters =
        lines.replace("\r\n", "+&").replace(',', "&").replace(['"', ' ', '\\', ':'], "+");
    format!("?{parameters}")
}

/// Returns the first `bytes` bytes of a path whose segments are the members of lists. Blanks,
/// quotes and backslashes become characters that origins read differently.
fn path(lines: &str, bytes: usize) -> String {
    // The proxy refuses a path with dot segments and an encoded slash before it compares the
    // readings of the path.
    let blank = if lines.contains("..") { "//%40" } else { "/%2f;%40" };
    let mut path = String::from("/");
    for character in lines.chars() {
        match character {
            ',' => path.push('/'),
            '"' => path.push_str("%61"),
            '\\' => path.push_str("%5c"),
            ' ' => path.push_str(blank),
            '\r' | '\n' => {}
            other => path.push(other),
        }
    }
    path.truncate(bytes);
    // Remove an escape that the truncation has cut.
    let len = path.rfind('%').filter(|at| at + 3 > path.len()).unwrap_or(path.len());
    path.truncate(len);
    path
}

const HOST: &str = "Host: a.example\r\n";
const BODY: &[u8] = b"ok";

fn request(start: &str, lines: &str) -> Vec<u8> {
    format!("{start}\r\n{lines}\r\n").into_bytes()
}

fn response(status: &str, lines: &str) -> Vec<u8> {
    let header = format!("HTTP/1.1 {status}\r\n{lines}\r\n");
    [header.as_bytes(), body_of(status)].concat()
}

fn body_of(status: &str) -> &'static [u8] {
    if status.starts_with("200") { BODY } else { b"" }
}
