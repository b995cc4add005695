//! The exchanges that a field is played in: in a request, in a response, in both, in what is stored.

use super::message::{QUERY, Shape};

/// Where the field under test is, and the path that the message takes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// In a request for something new, whose response varies by the field and is stored.
    Request,
    /// In a request that a stored response fits.
    RequestHit,
    /// In a request for an upgrade and in its response 101.
    Upgrade,
    /// In the interim and the final response to a request for something new; it is stored.
    Response,
    /// In the 304 that validates a stored response with the field.
    Validated,
    /// In a stored response.
    Hit,
    /// In the response to a HEAD, which updates a stored response.
    Head,
    /// In the response to a request that is not safe.
    Post,
    /// In a request through a forward proxy, and in its response.
    Forward,
}

impl Kind {
    /// All of them, in the order in which they are played.
    pub const ALL: [Self; 9] = [
        Self::Request,
        Self::RequestHit,
        Self::Upgrade,
        Self::Response,
        Self::Validated,
        Self::Hit,
        Self::Head,
        Self::Post,
        Self::Forward,
    ];
}

/// One exchange: a request, and what the origin sends if the request reaches it.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    /// What the client sends.
    pub request: Vec<u8>,
    /// The responses that the origin sends, unless it validates.
    pub responses: Vec<Vec<u8>>,
    /// What the origin sends to a request with `If-None-Match`, if not the same.
    pub validated: Option<Vec<u8>>,
    /// Whether the cache is cleared before.
    pub is_first: bool,
    /// Whether the request is sent to the forward proxy, not to the booster.
    pub is_forwarded: bool,
}

/// A field in a shape, in messages of a size.
#[derive(Clone, Debug)]
pub(super) struct Case<'a> {
    name: &'a str,
    /// The lines of the field in a request.
    request_lines: String,
    /// The lines of the field in a response.
    response_lines: String,
    /// The field as a query with its `?`, if it is [`QUERY`].
    query: String,
}

/// Where the origin listens, in the simulated world.
pub(super) const ORIGIN: &str = "127.0.0.1:8000";
/// The token of the one user of the forward proxy.
const TOKEN: &str = "token-of-the-build-machine-0123456789";
/// That user, as in a file of users.
pub(super) const USER: &str =
    "build:token:b9811f5832444e38b517890ea2b80edd7716052dbfeebf73ecd6d1415b9c9ef2\n";

const FRESH: &str = "Cache-Control: max-age=600\r\nETag: \"e\"\r\n";
const STALE: &str = "Cache-Control: max-age=0\r\nETag: \"e\"\r\n";
const UPGRADE: &str = "Connection: upgrade\r\nUpgrade: a\r\n";
const LENGTH: &str = "Content-Length: 2\r\n";

impl<'a> Case<'a> {
    /// A case with so many bytes of the field in a request and in a response.
    pub(super) fn new(name: &'a str, shape: Shape, request: usize, response: usize) -> Self {
        if name == QUERY {
            // The lines as parameters of a query.
            let lines = shape.lines("q", request).replace("\r\n", "+&").replace(',', "&");
            let parameters = lines.replace(['"', ' ', '\\', ':'], "+");
            let (request_lines, response_lines) = Default::default();
            return Self { name, request_lines, response_lines, query: format!("?{parameters}") };
        }
        Self {
            name,
            request_lines: shape.lines(name, request),
            response_lines: shape.lines(name, response),
            query: String::new(),
        }
    }

    /// One exchange of each of [`Kind::ALL`].
    pub(super) fn exchanges(&self) -> Vec<Exchange> {
        let host = if self.name == "host" { "" } else { HOST };
        let get = self.request("GET /r", host);
        let varying = response("200 OK", &format!("{FRESH}{LENGTH}Vary: {}\r\n", self.name));
        let unchanged = response("304 Not Modified", "");
        let upgrade = self.request("GET /u", &format!("{host}{UPGRADE}"));
        let switched = self.response("101 Switching Protocols", UPGRADE);
        let plain = request("GET /a HTTP/1.1", HOST);
        let interim = self.response("103 Early Hints", "");
        let stale = self.response("200 OK", &format!("{STALE}{LENGTH}"));
        let fresh = self.response("200 OK", &format!("{FRESH}{LENGTH}"));
        let other = response("200 OK", &format!("{FRESH}{LENGTH}"));
        let validated = self.response("304 Not Modified", FRESH);
        let head = request("HEAD /a HTTP/1.1", &format!("{HOST}Cache-Control: no-cache\r\n"));
        let header = fresh.strip_suffix(BODY).expect("it has a body");
        let post = request("POST /a HTTP/1.1", &format!("{HOST}Content-Length: 0\r\n"));
        let posted = self.response("200 OK", LENGTH);
        let host = if self.name == "host" { "" } else { "Host: 127.0.0.1:8000\r\n" };
        let credentials = format!("{host}Proxy-Authorization: Bearer {TOKEN}\r\n");
        let forwarded = self.request(&format!("GET http://{ORIGIN}/f"), &credentials);
        vec![
            Exchange { is_first: true, ..Exchange::new(&get, &[&varying]) },
            Exchange::new(&get, &[&varying]).validated(&unchanged),
            Exchange::new(&upgrade, &[&switched]),
            Exchange::new(&plain, &[&interim, &stale]),
            Exchange::new(&plain, &[&other]).validated(&validated),
            Exchange::new(&plain, &[&other]).validated(&unchanged),
            Exchange::new(&head, &[header]),
            Exchange::new(&post, &[&posted]),
            Exchange { is_forwarded: true, ..Exchange::new(&forwarded, &[&fresh]) },
        ]
    }

    /// A request with the field.
    fn request(&self, start: &str, lines: &str) -> Vec<u8> {
        let Self { request_lines, query, .. } = self;
        request(&format!("{start}{query} HTTP/1.1"), &format!("{lines}{request_lines}"))
    }

    /// A response with the field.
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
