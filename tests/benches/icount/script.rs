//! The fixed scripts: the bytes that clients send and expect, and the responses of the origin.

/// A kind of request that is repeated.
pub(crate) struct Script {
    /// The row's name in the baseline.
    pub(crate) name: &'static str,
    /// The program's arguments.
    pub(crate) command: &'static [&'static str],
    /// The bytes that a client sends for one exchange. `ORIGIN` stands for the address of the
    /// origin, and [`NUMBER`] for a number that is unique to the exchange.
    pub(crate) request: String,
    /// The origin's response to one request, header and body.
    pub(crate) response: Vec<u8>,
    /// The body that the client has to receive, without chunk framing.
    pub(crate) body: Vec<u8>,
    /// Number of concurrent clients. With several, a turn of the worker handles a completion of
    /// each, as under load. With one, each completion has a turn of its own.
    pub(crate) clients: usize,
    /// Number of requests that a client sends at once.
    pub(crate) pipelined: u32,
    /// Whether each client connection serves only one exchange.
    pub(crate) closes: bool,
    /// Whether the exchange is a tunnel: `request` opens it, [`PING`] goes through it, and
    /// `response` comes back.
    pub(crate) tunnel: bool,
    /// Exchanges of the short and of the long run. They are multiples of the requests that all
    /// clients send at once, so that both runs end alike. When the short run ends, every table and
    /// buffer has its final size.
    pub(crate) exchanges: [u32; 2],
}

/// The placeholder for a number, with the same number of digits.
pub(crate) const NUMBER: &str = "00000000";

/// The first bytes that a client sends through its tunnel.
pub(crate) const PING: &[u8] = b"ping";

impl Script {
    fn new(name: &'static str, command: &'static [&'static str], head: &str, size: usize) -> Self {
        let body = pattern(size);
        Self {
            name,
            command,
            request: format!("{head}\r\n\r\n"),
            response: [format!("{RESPONSE}Content-Length: {size}\r\n\r\n").as_bytes(), &body]
                .concat(),
            body,
            clients: 32,
            pipelined: 1,
            closes: false,
            tunnel: false,
            exchanges: [384, 512],
        }
    }
}

/// Every script, in the order of the baseline.
pub(crate) fn all() -> Vec<Script> {
    let close = format!("{ABSOLUTE}\r\nConnection: close");
    vec![
        Script::new("boost-1k", BOOST, GET, 1024),
        Script {
            clients: 1,
            exchanges: [96, 128],
            ..Script::new("boost-1k-alone", BOOST, GET, 1024)
        },
        Script::new("boost-8k", BOOST, GET, 8 * 1024),
        Script {
            clients: 8,
            exchanges: [96, 128],
            ..Script::new("boost-64k", BOOST, GET, 64 * 1024)
        },
        Script::new("boost-1k-browser", BOOST, BROWSER, 1024),
        Script::new("boost-1k-logged", LOGGED, BROWSER, 1024),
        chunked(Script::new("boost-8k-chunked", BOOST, GET, 8 * 1024)),
        post(Script::new("boost-post-4k", BOOST, POST, 1024)),
        Script { clients: 4, pipelined: 16, ..Script::new("boost-1k-pipelined", BOOST, GET, 1024) },
        Script::new("forward-8k", FORWARD, ABSOLUTE, 8 * 1024),
        Script { closes: true, ..Script::new("forward-8k-close", FORWARD, &close, 8 * 1024) },
        tunnel(Script::new("connect-64k", FORWARD, CONNECT, 64 * 1024)),
        cached(Script::new("hit-1k", CACHED, GET, 1024)),
        cached(Script::new("hit-8k", CACHED, GET, 8 * 1024)),
        cached(Script::new("hit-1k-browser", CACHED, BROWSER, 1024)),
        Script::new("uncacheable-1k", CACHED, GET, 1024),
        // Long enough that the cache is full before the short run ends.
        Script {
            exchanges: [1536, 2048],
            ..cached(Script::new("fill-8k", CACHED, GET_ANOTHER, 8 * 1024))
        },
    ]
}

/// Returns the script with a response in four chunks. One receive turns them into one chunk for the
/// client.
fn chunked(mut script: Script) -> Script {
    let mut response = format!("{RESPONSE}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    for chunk in script.body.chunks(script.body.len().div_ceil(4)) {
        response.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        response.extend_from_slice(chunk);
        response.extend_from_slice(b"\r\n");
    }
    response.extend_from_slice(b"0\r\n\r\n");
    script.response = response;
    script
}

/// Returns the script with a response that may be stored. The first exchange stores it, and all
/// exchanges that are counted read it from the cache, unless each has a URL of its own.
fn cached(mut script: Script) -> Script {
    let response = String::from_utf8(script.response).expect("letters");
    script.response = response.replace("no-store", "max-age=31536000").into_bytes();
    script
}

fn post(mut script: Script) -> Script {
    let body = String::from_utf8(pattern(4096)).expect("letters");
    script.request.push_str(&body);
    script
}

fn tunnel(mut script: Script) -> Script {
    script.response.clone_from(&script.body);
    Script { tunnel: true, closes: true, clients: 8, exchanges: [96, 128], ..script }
}

/// Returns bytes that depend on their position, so that a shift shows.
fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|at| b'a' + (at % 23) as u8).collect()
}

const BOOST: &[&str] = &["boost", "--origin", "http://ORIGIN", "--no-cache"];
const LOGGED: &[&str] =
    &["boost", "--origin", "http://ORIGIN", "--no-cache", "--access-log", "access.log"];
const CACHED: &[&str] = &["boost", "--origin", "http://ORIGIN", "--cache-memory", "8M"];
const FORWARD: &[&str] = &["forward", "--no-cache"];

const GET: &str = "GET /n/1k HTTP/1.1\r\nHost: www.example.test\r\nAccept: */*";
const GET_ANOTHER: &str = "GET /n/00000000 HTTP/1.1\r\nHost: www.example.test\r\nAccept: */*";
const POST: &str = "POST /form HTTP/1.1\r\nHost: www.example.test\r\nAccept: */*\r\n\
    Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 4096";
const ABSOLUTE: &str = "GET http://ORIGIN/n/8k HTTP/1.1\r\nHost: ORIGIN\r\nAccept: */*";
const CONNECT: &str = "CONNECT ORIGIN HTTP/1.1\r\nHost: ORIGIN";

/// A request header as browsers send it, of about 700 bytes.
const BROWSER: &str = "GET /assets/app.4f1c9be2.js?v=20260401 HTTP/1.1\r\n\
    Host: www.example.test\r\n\
    Connection: keep-alive\r\n\
    sec-ch-ua: \"Chromium\";v=\"140\", \"Not=A?Brand\";v=\"24\"\r\n\
    sec-ch-ua-mobile: ?0\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) \
    Chrome/140.0.0.0 Safari/537.36\r\n\
    sec-ch-ua-platform: \"Linux\"\r\n\
    Accept: */*\r\n\
    Sec-Fetch-Site: same-origin\r\n\
    Sec-Fetch-Mode: no-cors\r\n\
    Sec-Fetch-Dest: script\r\n\
    Referer: http://www.example.test/articles/2026/03/the-cost-of-a-request\r\n\
    Accept-Encoding: gzip, deflate, br, zstd\r\n\
    Accept-Language: en-GB,en;q=0.9,de;q=0.8\r\n\
    Cookie: session=8f14e45fceea167a5a36dedd4bea2543; theme=dark; consent=yes";

/// The origin's response header up to its framing, as a small server sends it.
const RESPONSE: &str = "HTTP/1.1 200 OK\r\nServer: origin/1.0\r\n\
    Date: Wed, 01 Apr 2026 12:00:00 GMT\r\nContent-Type: application/octet-stream\r\n\
    Last-Modified: Tue, 31 Mar 2026 08:15:00 GMT\r\nETag: \"69cb8a14-400\"\r\n\
    Cache-Control: no-store\r\n";
