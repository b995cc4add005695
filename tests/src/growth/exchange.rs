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
}

impl Kind {
    /// All of them, in the order in which they are played.
    pub const ALL: [Self; 8] = [
        Self::Request,
        Self::RequestHit,
        Self::Upgrade,
        Self::Response,
        Self::Validated,
        Self::Hit,
        Self::Head,
        Self::Post,
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
}

/// A field in a shape, in messages of these sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    /// The field's name, or [`QUERY`].
    pub name: &'a str,
    /// How its value is built.
    pub shape: Shape,
    /// Bytes of a request header.
    pub request_bytes: usize,
    /// Bytes of a response header.
    pub response_bytes: usize,
}

const FRESH: &str = "Cache-Control: max-age=600\r\nETag: \"e\"\r\n";
const STALE: &str = "Cache-Control: max-age=0\r\nETag: \"e\"\r\n";
const UPGRADE: &str = "Connection: upgrade\r\nUpgrade: a\r\n";
const LENGTH: &str = "Content-Length: 2\r\n";

impl Case<'_> {
    /// One exchange of each of [`Kind::ALL`].
    pub(super) fn exchanges(&self) -> Vec<Exchange> {
        let big = self.request("GET", "/r", "");
        let varying = response("200 OK", &format!("{FRESH}{LENGTH}Vary: {}\r\n", self.name));
        let unchanged = response("304 Not Modified", "");
        let interim = self.response("103 Early Hints", "");
        let stale = self.response("200 OK", &format!("{STALE}{LENGTH}"));
        let get = request("GET", "/a", "");
        let other = response("200 OK", &format!("{FRESH}{LENGTH}"));
        let head = self.response("200 OK", &format!("{FRESH}{LENGTH}"));
        let head = head.strip_suffix(BODY).expect("it has a body").to_vec();
        let head_request = request("HEAD", "/a", "Cache-Control: no-cache\r\n");
        let post = request("POST", "/a", "Content-Length: 0\r\n");
        let upgrade = self.request("GET", "/u", UPGRADE);
        let switched = self.response("101 Switching Protocols", UPGRADE);
        let validated = self.response("304 Not Modified", FRESH);
        vec![
            Exchange { is_first: true, ..Exchange::new(&big, &[&varying]) },
            Exchange::new(&big, &[&varying]).validated(&unchanged),
            Exchange::new(&upgrade, &[&switched]),
            Exchange::new(&get, &[&interim, &stale]),
            Exchange::new(&get, &[&other]).validated(&validated),
            Exchange::new(&get, &[&other]).validated(&unchanged),
            Exchange::new(&head_request, &[&head]),
            Exchange::new(&post, &[&self.response("200 OK", LENGTH)]),
        ]
    }

    /// A request with the field.
    fn request(&self, method: &str, path: &str, lines: &str) -> Vec<u8> {
        if self.name == QUERY {
            return request(method, &format!("{path}?{}", self.query()), lines);
        }
        let host = if self.name == "host" { "" } else { HOST };
        self.fill(format!("{method} {path} HTTP/1.1\r\n{host}{lines}"), self.request_bytes)
    }

    /// A response with the field.
    fn response(&self, status: &str, lines: &str) -> Vec<u8> {
        if self.name == QUERY {
            return response(status, lines);
        }
        let mut bytes = self.fill(format!("HTTP/1.1 {status}\r\n{lines}"), self.response_bytes);
        bytes.extend_from_slice(body_of(status));
        bytes
    }

    fn fill(&self, mut header: String, bytes: usize) -> Vec<u8> {
        let left = bytes - header.len() - 2;
        self.shape.write(&mut header, self.name, left);
        header.push_str("\r\n");
        header.into_bytes()
    }

    /// The lines as parameters of a query. It leaves room for the rest of the longest request.
    fn query(&self) -> String {
        let mut lines = String::new();
        self.shape.write(&mut lines, "q", self.request_bytes - 72);
        lines.replace("\r\n", "+&").replace(',', "&").replace(['"', ' ', '\\', ':'], "+")
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

fn request(method: &str, target: &str, lines: &str) -> Vec<u8> {
    format!("{method} {target} HTTP/1.1\r\n{HOST}{lines}\r\n").into_bytes()
}

fn response(status: &str, lines: &str) -> Vec<u8> {
    let header = format!("HTTP/1.1 {status}\r\n{lines}\r\n");
    [header.as_bytes(), body_of(status)].concat()
}

fn body_of(status: &str) -> &'static [u8] {
    if status.starts_with("200") { BODY } else { b"" }
}
