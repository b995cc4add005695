//! The small web server behind `millrace demo`: a page, its style and picture, and a megabyte to
//! download, on threads and blocking sockets of its own. It stands for the web server that people
//! have already; it is no part of the proxy.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const PAGE: &[u8] = include_bytes!("site/index.html");
const STYLE: &[u8] = include_bytes!("site/style.css");
const WHEEL: &[u8] = include_bytes!("site/wheel.svg");

/// What `/pattern` weighs.
pub(crate) const PATTERN_BYTES: usize = 1 << 20;
/// What is said of the style and the picture: they may be cached. The page and the pattern may not,
/// so that what is passed on can be seen, too.
const CACHED: &str = "Cache-Control: max-age=600\r\n";
/// Connections served at once; further ones are closed.
const CONNECTIONS_MAX: usize = 256;
/// The longest request head.
const HEAD_BYTES_MAX: u64 = 64 * 1024;
/// A connection without a request is closed after this: longer than the booster keeps it, so that
/// it is never this side that closes under a request.
const IDLE: Duration = Duration::from_secs(300);

/// Serves the connections of `listener` until the process ends.
///
/// # Errors
/// When no thread can be started.
pub(crate) fn start(listener: TcpListener) -> std::io::Result<()> {
    let pattern: Arc<[u8]> = (0..PATTERN_BYTES).map(|index| b'a' + (index % 26) as u8).collect();
    let connections = Arc::new(AtomicUsize::new(0));
    let accept = move || {
        for stream in listener.incoming().flatten() {
            // Pairs with the subtraction at a connection's end; only this thread adds.
            if connections.load(Ordering::Acquire) == CONNECTIONS_MAX {
                continue;
            }
            connections.fetch_add(1, Ordering::Relaxed);
            let (count, pattern) = (Arc::clone(&connections), Arc::clone(&pattern));
            let serve = move || {
                // A connection that breaks has nobody left to be told.
                let _ = serve(stream, &pattern);
                // Pairs with the load above.
                count.fetch_sub(1, Ordering::Release);
            };
            if spawn("site-connection", serve).is_err() {
                connections.fetch_sub(1, Ordering::Release);
            }
        }
    };
    spawn("site", accept)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

/// Answers requests one after the other until the other side closes.
fn serve(stream: TcpStream, pattern: &[u8]) -> std::io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_nodelay(true)?;
    let mut output = stream.try_clone()?;
    let mut input = BufReader::new(stream);
    while let Some(line) = head(&mut input)? {
        let mut words = line.split(' ');
        let method = words.next().unwrap_or_default().to_owned();
        let target = words.next();
        let (status, kind, body) = match (method.as_str(), target) {
            ("GET" | "HEAD", Some("/" | "/index.html")) => ("200 OK", "text/html", PAGE),
            ("GET" | "HEAD", Some("/style.css")) => ("200 OK", "text/css", STYLE),
            ("GET" | "HEAD", Some("/wheel.svg")) => ("200 OK", "image/svg+xml", WHEEL),
            ("GET" | "HEAD", Some("/pattern")) => ("200 OK", "text/plain", pattern),
            ("GET" | "HEAD", _) => ("404 Not Found", "text/plain", &b"no such page\n"[..]),
            _ => ("405 Method Not Allowed", "text/plain", &b"only GET and HEAD\n"[..]),
        };
        // A request body is not read here, so where the next request begins is not known.
        let is_last = status.starts_with("405");
        let end = if is_last { "Allow: GET, HEAD\r\nConnection: close\r\n" } else { "" };
        let cached = if matches!(target, Some("/style.css" | "/wheel.svg")) { CACHED } else { "" };
        let mut answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
             {cached}{end}\r\n",
            body.len()
        )
        .into_bytes();
        if method != "HEAD" {
            answer.extend_from_slice(body);
        }
        output.write_all(&answer)?;
        if is_last {
            break;
        }
    }
    Ok(())
}

/// The request line of the next head, which is read to its end; `None` at the stream's end.
fn head(input: &mut BufReader<TcpStream>) -> std::io::Result<Option<String>> {
    let mut limited = input.by_ref().take(HEAD_BYTES_MAX);
    let mut first = String::new();
    loop {
        let mut line = String::new();
        if limited.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        if line == "\r\n" {
            return Ok(Some(first));
        }
        if first.is_empty() {
            first = line;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_and_all_it_names_are_served_over_one_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        start(listener).unwrap();
        let mut input = BufReader::new(client.try_clone().unwrap());
        let mut get = |path: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
            client.write_all(request.as_bytes()).unwrap();
            let mut length = 0;
            let status = loop_head(&mut input, &mut length);
            let mut body = vec![0; length];
            input.read_exact(&mut body).unwrap();
            (status, body)
        };
        let (status, page) = get("/");
        assert!(status.contains("200"));
        let page = String::from_utf8(page).unwrap();
        for path in ["/style.css", "/wheel.svg", "/pattern"] {
            assert!(page.contains(path));
            let (status, body) = get(path);
            assert!(status.contains("200") && !body.is_empty(), "{path}");
        }
        assert_eq!(get("/pattern").1.len(), PATTERN_BYTES);
        assert!(get("/none").0.contains("404"));
    }

    /// The status line; the body's length is written into `length`.
    fn loop_head(input: &mut BufReader<TcpStream>, length: &mut usize) -> String {
        let mut status = String::new();
        input.read_line(&mut status).unwrap();
        loop {
            let mut line = String::new();
            input.read_line(&mut line).unwrap();
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                *length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                return status;
            }
        }
    }
}
