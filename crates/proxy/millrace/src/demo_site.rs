//! The web server of `millrace demo`: a page, its style sheet and image, and a megabyte to
//! download. It uses its own threads and blocking sockets. It stands for a user's web server and is
//! not part of the proxy.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millrace_http1::{
    Framing, HeaderWriter, Http1Header, Method, connection_options, request_framing,
};

use crate::http::{Connection, Status};
use crate::program_error::ProgramError;
use crate::threads::spawn;

const PAGE: &[u8] = include_bytes!("demo_site/index.html");
const STYLE: &[u8] = include_bytes!("demo_site/style.css");
const WHEEL: &[u8] = include_bytes!("demo_site/wheel.svg");

/// The size of `/pattern`.
pub(crate) const PATTERN_BYTES: usize = 1 << 20;
/// The Cache-Control field of the style sheet and the image. The page and the pattern have none, so
/// that the demo also shows requests to the origin.
const CACHED: Option<FixedField> = Some((b"Cache-Control", b"max-age=600"));
const ALLOWED: Option<FixedField> = Some((b"Allow", b"GET, HEAD"));
/// Limit of concurrent connections. Further ones are closed.
const CONNECTIONS_MAX: usize = 256;
const OK: Status = (200, "OK");
/// Bytes of a request body that are read at most. The content does not matter.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// Time after the last request until a connection is closed. It is longer than the proxy keeps idle
/// connections, so that this side never closes one that gets a request.
const IDLE: Duration = Duration::from_secs(300);

/// The name and the value of a field.
type FixedField = (&'static [u8], &'static [u8]);

/// A status, the media type of the body, one more field, and the body.
type Response<'a> = (Status, &'static [u8], Option<FixedField>, &'a [u8]);

/// Serves the connections of `listener` until the process ends.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn start(listener: TcpListener) -> Result<(), ProgramError> {
    let pattern: Arc<[u8]> = (0..PATTERN_BYTES).map(|index| b'a' + (index % 26) as u8).collect();
    let connections = Arc::new(AtomicUsize::new(0));
    let accept = move || {
        for stream in listener.incoming().flatten() {
            // Pairs with the subtraction at the end of a connection. Only this thread adds.
            if connections.load(Ordering::Acquire) == CONNECTIONS_MAX {
                continue;
            }
            connections.fetch_add(1, Ordering::Relaxed);
            let (count, pattern) = (Arc::clone(&connections), Arc::clone(&pattern));
            let serve = move || {
                // An error means that the client is gone.
                let _ = serve(stream, &pattern);
                // Pairs with the load above.
                count.fetch_sub(1, Ordering::Release);
            };
            if spawn("site-connection", serve).is_err() {
                connections.fetch_sub(1, Ordering::Release);
            }
        }
    };
    spawn("site", accept).map(drop)
}

/// Serves the requests of a connection until the client closes it.
fn serve(stream: TcpStream, pattern: &[u8]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut connection = Connection::new(stream.into(), false)?;
    loop {
        connection.set_deadline(Instant::now() + IDLE);
        let head = connection.read_request()?;
        let is_read = matches!(head.method(), Method::Get | Method::Head);
        let ((status, reason), kind, more, body): Response<'_> = match head.target() {
            _ if !is_read => (
                (405, "Method Not Allowed"),
                b"text/plain",
                ALLOWED,
                b"405 Method Not Allowed (allowed: GET, HEAD)\n",
            ),
            b"/" | b"/index.html" => (OK, b"text/html", None, PAGE),
            b"/style.css" => (OK, b"text/css", CACHED, STYLE),
            b"/wheel.svg" => (OK, b"image/svg+xml", CACHED, WHEEL),
            b"/pattern" => (OK, b"text/plain", None, pattern),
            _ => ((404, "Not Found"), b"text/plain", None, b"404 Not Found\n"),
        };
        // A request body is not parsed, so no request can be read after it.
        let has_body = !matches!(request_framing(&head), Ok(Framing::None | Framing::Length(0)));
        let is_last = has_body || !connection_options(&head).is_persistent(head.version());
        let mut bytes = Vec::new();
        let mut header = Http1Header::new(&mut bytes);
        header.response(status, reason.as_bytes());
        header.field(b"Content-Type", kind);
        header.framing(Framing::Length(body.len() as u64), false);
        if let Some((name, value)) = more {
            header.field(name, value);
        }
        header.persistence(head.version(), !is_last);
        header.end();
        if head.method() != Method::Head {
            bytes.extend_from_slice(body);
        }
        connection.write_all(&bytes)?;
        if is_last {
            connection.finish(BODY_BYTES_MAX);
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_http1::declared_length;

    #[test]
    fn the_page_and_all_it_names_are_served_over_one_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        start(listener).unwrap();
        let deadline = Instant::now() + IDLE;
        let mut client = Connection::to_tcp(&[address], deadline).unwrap();
        let mut get = |path: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
            client.write_all(request.as_bytes()).unwrap();
            let head = client.read_response().unwrap();
            let length = declared_length(&head).unwrap().unwrap();
            (head.status(), client.read_body(length as usize).unwrap())
        };
        let (status, page) = get("/");
        assert_eq!(status, 200);
        let page = String::from_utf8(page).unwrap();
        for path in ["/style.css", "/wheel.svg", "/pattern"] {
            assert!(page.contains(path));
            let (status, body) = get(path);
            assert!(status == 200 && !body.is_empty(), "{path}");
        }
        assert_eq!(get("/pattern").1.len(), PATTERN_BYTES);
        assert_eq!(get("/none").0, 404);
    }
}
