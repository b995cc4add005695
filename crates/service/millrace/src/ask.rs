//! Asks a running process at its admin address, and prints its answer.

use std::fmt::Write as _;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use millrace_proxy::config::{Asking, ListenAddress};

use crate::admin::Token;
use crate::failure::Failure;
use crate::say;

/// How long the process may say nothing. A purge walks over all that is stored.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Asks, and prints what it is told.
///
/// # Errors
/// When nobody answers, or with a refusal.
pub(crate) fn run(asking: &Asking) -> std::result::Result<(), Failure> {
    let token = asking.token_file.as_deref();
    let token = token.map(|file| Token::read("--token-file", file)).transpose()?;
    let request = request(asking, token.as_ref());
    let answer = exchange(&asking.admin, &request).and_then(|answer| read(&answer));
    let (status, body) = answer.map_err(|error| Failure::Machine(unanswered(asking, &error)))?;
    if status == 200 {
        say::output(&body)?;
        return match asking.is_change && purged_nothing(&body) {
            true => Err(Failure::NothingPurged),
            false => Ok(()),
        };
    }
    Err(Failure::Machine(body.lines().next().unwrap_or("refused without a word").to_owned()))
}

/// Whether a purge says that nothing stored matched, as text or as JSON. With disks it is not known.
fn purged_nothing(body: &str) -> bool {
    let counted = ["purged: 0", "made stale: 0"].contains(&body.trim_end());
    counted || (body.starts_with("{\"purged\":0,") && !body.contains("\"durable\""))
}

/// Why nobody answers; where nobody listens, how it comes that somebody does.
fn unanswered(asking: &Asking, error: &Error) -> String {
    let admin = &asking.admin;
    let hint = match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            format!("; it has to be started with --admin {admin}, or name its address by --admin")
        }
        _ => String::new(),
    };
    format!("cannot ask the process at {admin}: {error}{hint}")
}

fn request(asking: &Asking, token: Option<&Token>) -> String {
    let method = if asking.is_change { "POST" } else { "GET" };
    let host = match &asking.admin {
        ListenAddress::Tcp(address) => address.to_string(),
        ListenAddress::Unix(_) => "millrace".to_owned(),
    };
    let pairs = asking.query.iter().map(|(name, value)| format!("{name}={}", encoded(value)));
    let query = pairs.collect::<Vec<_>>().join("&");
    let token = token.map(Token::line).unwrap_or_default();
    format!("{method} {}?{query} HTTP/1.1\r\nHost: {host}\r\n{token}\r\n", asking.path)
}

/// RFC 3986 section 2.1: everything but letters, digits and marks that mean nothing in a query.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' => {
                out.push(char::from(byte));
            }
            _ => _ = write!(out, "%{byte:02X}"),
        }
        out
    })
}

fn exchange(admin: &ListenAddress, request: &str) -> Result<Vec<u8>> {
    match admin {
        ListenAddress::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            whole(&stream, request)
        }
        ListenAddress::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            whole(&stream, request)
        }
    }
}

/// The answer ends with its connection.
fn whole<S>(stream: &S, request: &str) -> Result<Vec<u8>>
where
    for<'a> &'a S: Read + Write,
{
    let mut stream = stream;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Status and body.
fn read(answer: &[u8]) -> Result<(u16, String)> {
    let parts = || {
        let text = std::str::from_utf8(answer).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        (length?.parse() == Ok(body.len())).then(|| (status, body.to_owned()))
    };
    parts().ok_or_else(|| Error::new(ErrorKind::InvalidData, "its answer is cut short, or none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_what_is_meant_and_an_answer_is_whole() {
        let asking = Asking {
            path: "/cache/purge",
            is_change: true,
            query: vec![("url", "http://a/?b=c&d é".to_owned()), ("soft", String::new())],
            admin: ListenAddress::Tcp("127.0.0.1:9180".parse().unwrap()),
            token_file: None,
        };
        let expected = "POST /cache/purge?url=http://a/%3Fb%3Dc%26d%20%C3%A9&soft= HTTP/1.1\r\n\
                        Host: 127.0.0.1:9180\r\n\r\n";
        assert_eq!(request(&asking, None), expected);
        let answer = |length: &str| {
            read(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nab").as_bytes())
        };
        assert_eq!(answer("2").unwrap(), (200, "ab".to_owned()));
        assert!(answer("3").is_err() && read(b"nonsense").is_err());
    }

    #[test]
    fn a_purge_of_nothing_is_told_from_others() {
        for body in ["purged: 0\n", "made stale: 0\n", "{\"purged\":0,\"soft\":true}\n"] {
            assert!(purged_nothing(body), "{body}");
        }
        let durable = "{\"purged\":0,\"soft\":false,\"durable\":true}\n";
        for body in ["purged: 10\n", "purged: 0 in memory; what\n", durable] {
            assert!(!purged_nothing(body), "{body}");
        }
    }
}
