//! The requests and responses of random scenarios as bytes, with their faults.

use super::plan::{
    Body, BodyFraming, HeaderSyntax, Malformation, Method, Request, ResponseFault, ResponsePlan,
};
use crate::scenario::pattern;

/// Returns the payload that a client sends with request `id`.
pub(super) fn request_payload(id: u32, length: usize) -> Vec<u8> {
    pattern(length, u64::from(id) * 2)
}

/// Returns the payload of the response to request `id`.
pub(super) fn response_payload(id: u32, length: usize) -> Vec<u8> {
    pattern(length, u64::from(id) * 2 + 1)
}

/// Returns the line by which an origin identifies a tunnel: its first bytes.
pub(super) fn tunnel_line(id: u32) -> String {
    format!("Tunnel {id}\n")
}

/// The way of a request to its origin.
///
/// `forward` means that the target contains the authority of the origin, as a forward proxy needs
/// it.
pub(super) struct Route<'a> {
    pub(super) authority: &'a str,
    pub(super) forward: bool,
    /// The target at a reverse proxy.
    pub(super) target: &'a str,
    /// Further field lines.
    pub(super) fields: &'a str,
}

/// Returns a request's header, and its encoded body.
pub(super) fn request(request: &Request, route: &Route<'_>) -> (Vec<u8>, Vec<u8>) {
    let Request { id, method, body, .. } = request;
    let host = if route.forward { route.authority } else { "a.test" };
    let target = match (method, route.forward) {
        (Method::Connect, _) => route.authority.to_owned(),
        (_, true) => format!("http://{}/r/{id}", route.authority),
        (_, false) => route.target.to_owned(),
    };
    match request.malformation {
        Some(Malformation::Head(index)) => {
            let odd = BAD_REQUEST_HEADERS[index % BAD_REQUEST_HEADERS.len()];
            return (fill(odd, *id, &target, host), Vec::new());
        }
        Some(Malformation::Body(index)) => {
            let head = "POST {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\n\
                        Transfer-Encoding: chunked\r\n\r\n";
            let odd = BAD_REQUEST_CHUNKS[index % BAD_REQUEST_CHUNKS.len()];
            return (fill(head, *id, &target, host), odd.as_bytes().to_vec());
        }
        None => {}
    }
    let version = if request.old { "HTTP/1.0" } else { "HTTP/1.1" };
    let mut head =
        format!("{} {target} {version}\r\nHost: {host}\r\nX-Id: {id}\r\n", method.word());
    head += route.fields;
    if *method == Method::Upgrade {
        head += "Connection: upgrade\r\nUpgrade: websocket\r\n";
    } else if request.closes {
        head += "Connection: close\r\n";
    }
    if method.is_tunnel() {
        head += "\r\n";
        return (head.into_bytes(), Vec::new());
    }
    let carries = matches!(method, Method::Post | Method::Put) || body.length > 0;
    match body.chunk {
        Some(_) => head += "Transfer-Encoding: chunked\r\n",
        None if carries => head += &format!("Content-Length: {}\r\n", body.length),
        None => {}
    }
    if body.expects {
        head += "Expect: 100-continue\r\n";
    }
    head += "\r\n";
    (head.into_bytes(), framed(&request_payload(*id, body.length), body))
}

fn framed(payload: &[u8], body: &Body) -> Vec<u8> {
    match body.chunk {
        Some(size) => chunks(payload, size, body.trailers),
        None => payload.to_vec(),
    }
}

fn chunks(payload: &[u8], size: usize, trailers: bool) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(payload.len() + 32);
    for chunk in payload.chunks(size) {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    let trailers = if trailers { "X-Sum: 1\r\n" } else { "" };
    bytes.extend_from_slice(format!("0\r\n{trailers}\r\n").as_bytes());
    bytes
}

/// Returns the ids of the requests whose request lines occur in the bytes sent to an origin.
pub(super) fn requests_in(sent: &[u8]) -> impl Iterator<Item = u32> {
    sent.split(|byte| *byte == b'\n').filter_map(|line| {
        // The end of a body may precede the request on its first line.
        let line = line.strip_suffix(b" HTTP/1.1\r")?;
        let id = line.rsplit(|byte| *byte == b'/').next()?;
        let named = line[..line.len() - id.len()].ends_with(b" /r/");
        std::str::from_utf8(id).ok()?.parse().ok().filter(|_| named)
    })
}

/// Returns one interim response.
pub(super) fn interim(id: u32, status: u16, form: HeaderSyntax) -> Vec<u8> {
    form.write(format!("HTTP/1.1 {status} Soon\r\nX-Id: {id}\r\n\r\n"))
}

/// Returns the complete final response to `request`.
pub(super) fn response(request: &Request) -> Vec<u8> {
    let Request { id, method, response: plan, .. } = request;
    match plan.fault {
        Some(ResponseFault::Head(index)) => {
            return fill(BAD_RESPONSE_HEADERS[index % BAD_RESPONSE_HEADERS.len()], *id, "", "");
        }
        Some(ResponseFault::Chunks(index)) => {
            let head =
                format!("HTTP/1.1 200 Fine\r\nX-Id: {id}\r\nTransfer-Encoding: chunked\r\n\r\n");
            let mut bytes = plan.syntax.write(head);
            for chunk in response_payload(*id, plan.length).chunks(1000) {
                bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(
                BAD_RESPONSE_CHUNKS[index % BAD_RESPONSE_CHUNKS.len()].as_bytes(),
            );
            return bytes;
        }
        Some(ResponseFault::UnrequestedUpgrade) => {
            let switch = "HTTP/1.1 101 Now\r\nX-Id: {id}\r\nConnection: upgrade\r\n\
                          Upgrade: other\r\n\r\nbytes of that";
            return fill(switch, *id, "", "");
        }
        _ => {}
    }
    let payload = response_payload(*id, plan.length);
    if *method == Method::Upgrade && plan.status == 101 {
        let head = "HTTP/1.1 101 Now\r\nX-Id: {id}\r\nConnection: upgrade\r\n\
                    Upgrade: websocket\r\n\r\n";
        return fill(head, *id, "", "");
    }
    plain(*id, *method, plan, &payload)
}

fn plain(id: u32, method: Method, plan: &ResponsePlan, payload: &[u8]) -> Vec<u8> {
    let version = if plan.old { "HTTP/1.0" } else { "HTTP/1.1" };
    let mut head = format!("{version} {} Fine\r\nX-Id: {id}\r\n", plan.status);
    if plan.closes || plan.framing == BodyFraming::UntilClose {
        head += "Connection: close\r\n";
    } else if plan.old {
        head += "Connection: keep-alive\r\n";
    }
    if has_no_body(plan.status) {
        head += "\r\n";
        return plan.syntax.write(head);
    }
    match plan.framing {
        BodyFraming::Length => head += &format!("Content-Length: {}\r\n", payload.len()),
        BodyFraming::Chunks(_) => head += "Transfer-Encoding: chunked\r\n",
        BodyFraming::UntilClose => {}
    }
    head += "\r\n";
    let mut bytes = plan.syntax.write(head);
    if method != Method::Head {
        match plan.framing {
            BodyFraming::Chunks(size) => bytes.extend(chunks(payload, size, plan.trailers)),
            _ => bytes.extend_from_slice(payload),
        }
    }
    bytes
}

/// Returns whether a response with this status has no body (RFC 9112 section 6.3).
pub(super) fn has_no_body(status: u16) -> bool {
    status < 200 || status == 204 || status == 304
}

fn fill(text: &str, id: u32, target: &str, host: &str) -> Vec<u8> {
    let text = text
        .replace("{id}", &id.to_string())
        .replace("{t}", target)
        .replace("{h}", host)
        .replace("{long}", &"a".repeat(70_000));
    text.into_bytes()
}

/// Unrequested bytes that may follow a response. None is a complete response, because the proxy
/// could not distinguish that from the response to the next request.
pub(super) const UNREQUESTED_BYTES: [&str; 3] = [
    "unrequested bytes",
    "\r\n\r\n\r\n",
    "HTTP/1.1 2000 No\r\nX-Id: 0\r\nContent-Length: 5\r\n\r\nwrong",
];

/// Request headers that must be refused before an origin sees anything.
pub(super) const BAD_REQUEST_HEADERS: [&str; 30] = [
    "GET {t} HTTP/1.1\r\nX-Id: {id}\r\n\r\n",
    "GET {t} HTTP/1.1\r\nHost: {h}\r\nHost: {h}\r\nX-Id: {id}\r\n\r\n",
    "GET {t} HTTP/1.1\r\nHost: {h}\r\nHost: b.test\r\nX-Id: {id}\r\n\r\n",
    "GET {t} HTTP/1.1\r\nHost: a b\r\nX-Id: {id}\r\n\r\n",
    "GET  {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\n\r\n",
    "GET\t{t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\n\r\n",
    "G@T {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\n\r\n",
    "GET {t} HTTP/2.0\r\nHost: {h}\r\nX-Id: {id}\r\n\r\n",
    "GET {t} http/1.1\r\nHost: {h}\r\nX-Id: {id}\r\n\r\n",
    "GET {t} HTTP/1.1\r\n Host: {h}\r\nX-Id: {id}\r\n\r\n",
    "GET {t} HTTP/1.1\r\nHost : {h}\r\nX-Id: {id}\r\n\r\n",
    "GET {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nX\r\n\r\n",
    "GET {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\n: x\r\n\r\n",
    "GET {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nX: a\0b\r\n\r\n",
    "GET {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nX: a\rb\r\n\r\n",
    "GET {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nX\x01: a\r\n\r\n",
    "GET {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nX: {long}\r\n\r\n",
    "GET {t}{long} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\n\r\n",
    "POST {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nContent-Length: +5\r\n\r\nhello",
    "POST {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nContent-Length: -5\r\n\r\nhello",
    "POST {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nContent-Length: 0x5\r\n\r\nhello",
    "POST {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nContent-Length: 5, 6\r\n\r\nhello",
    "POST {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n\
     hello",
    "POST {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nContent-Length: \
     99999999999999999999\r\n\r\nhello",
    "POST {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nContent-Length: 5\r\n\
     Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nTransfer-Encoding: gzip\r\n\r\nhello",
    "POST {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nTransfer-Encoding: chunked, identity\r\n\r\n\
     0\r\n\r\n",
    "POST {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nTransfer-Encoding: chunked\r\n\
     Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST {t} HTTP/1.0\r\nHost: {h}\r\nX-Id: {id}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST {t} HTTP/1.1\r\nHost: {h}\r\nX-Id: {id}\r\nTransfer-Encoding: \x0bchunked\r\n\r\n\
     0\r\n\r\n",
];

/// Bodies of which an origin must never see the whole.
pub(super) const BAD_REQUEST_CHUNKS: [&str; 12] = [
    "0x5\r\nhello\r\n0\r\n\r\n",
    "+5\r\nhello\r\n0\r\n\r\n",
    "-5\r\nhello\r\n0\r\n\r\n",
    "5_0\r\nhello\r\n0\r\n\r\n",
    "\r\nhello\r\n0\r\n\r\n",
    "5\nhello\r\n0\r\n\r\n",
    "5\rhello\r\n0\r\n\r\n",
    "5\r\nhelloXX0\r\n\r\n",
    "5\r\nhello\n0\r\n\r\n",
    "11111111111111111\r\nhello\r\n0\r\n\r\n",
    "5\r\nhello\r\n0\r\n folded\r\n\r\n",
    "5\r\nhello\r\n0\r\nX\0: 1\r\n\r\n",
];

/// Response headers that must not reach a client.
pub(super) const BAD_RESPONSE_HEADERS: [&str; 21] = [
    "HTTP/1.1 200 Fine\r\nX-Id: {id}\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nwrong",
    "HTTP/1.1 200 Fine\r\nX-Id: {id}\r\nContent-Length: 5, 6\r\n\r\nwrong",
    "HTTP/1.1 200 Fine\r\nX-Id: {id}\r\nContent-Length: +5\r\n\r\nwrong",
    "HTTP/1.1 200 Fine\r\nX-Id: {id}\r\nContent-Length: 0x5\r\n\r\nwrong",
    "HTTP/1.1 200 Fine\r\nX-Id: {id}\r\nContent-Length: 99999999999999999999\r\n\r\nwrong",
    "HTTP/1.1 200 Fine\r\nX-Id: {id}\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n\
     0\r\n\r\n",
    "HTTP/1.1 99 Low\r\nX-Id: {id}\r\nContent-Length: 5\r\n\r\nwrong",
    "HTTP/1.1 1000 High\r\nX-Id: {id}\r\nContent-Length: 5\r\n\r\nwrong",
    "HTTP/1.1 2x0 Odd\r\nX-Id: {id}\r\nContent-Length: 5\r\n\r\nwrong",
    "HTTP/2.0 200 Fine\r\nX-Id: {id}\r\nContent-Length: 5\r\n\r\nwrong",
    "ICY 200 Fine\r\nX-Id: {id}\r\nContent-Length: 5\r\n\r\nwrong",
    "HTTP/1.1 200 Fi\0ne\r\nX-Id: {id}\r\nContent-Length: 5\r\n\r\nwrong",
    "HTTP/1.1 200 Fine\r\nX-Id: {id}\r\nContent-Length : 5\r\n\r\nwrong",
    "HTTP/1.1 200 Fine\r\nX-Id: {id}\r\nX: a\0b\r\nContent-Length: 5\r\n\r\nwrong",
    "HTTP/1.1 200 Fine\r\nX-Id: {id}\r\nX: a\rb\r\nContent-Length: 5\r\n\r\nwrong",
    "HTTP/1.1 200 Fine\r\nX-Id: {id}\r\nno colon\r\nContent-Length: 5\r\n\r\nwrong",
    "HTTP/1.1 200 Fine\r\nX-Id: {id}\r\nX: {long}\r\nContent-Length: 5\r\n\r\nwrong",
    "wrong\r\n\r\n",
    "HTTP/1.1 200 Fine\r\nX-Id: {id}\nContent-Length: 5\r\n\r\nwrong",
    "HTTP/1.1 200 Fine\nX-Id: {id}\nContent-Length: 5\n\r\nwrong",
    "HTTP/1.1 200 Fine\r\nX-Id: {id}\r\nContent-Length:\r\n 5\r\n\r\nwrong",
];

/// Invalid endings of a chunked response, after valid chunks.
pub(super) const BAD_RESPONSE_CHUNKS: [&str; 8] = [
    "0x5\r\nwrong\r\n0\r\n\r\n",
    "-5\r\nwrong\r\n0\r\n\r\n",
    "zz\r\nwrong\r\n0\r\n\r\n",
    "\r\nwrong\r\n0\r\n\r\n",
    "11111111111111111\r\nwrong\r\n0\r\n\r\n",
    "5\rwrong\r\n0\r\n\r\n",
    "0\r\n folded\r\n\r\n",
    "0\r\nX\0: 1\r\n\r\n",
];

/// Returns the payload in chunks of `size` bytes, with the last chunk.
pub(super) fn chunked(payload: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for chunk in payload.chunks(size) {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}
