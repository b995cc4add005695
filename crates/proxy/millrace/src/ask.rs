//! Asks a running process at its admin address, and prints its answer.

use std::fmt::Write as _;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use millrace_config::{Asking, ListenAddress};

use crate::admin::{NOTHING_MATCHED, Token};
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
    let answer = answer.map_err(|error| Failure::Machine(unanswered(asking, &error)))?;
    let Answered { status, matched_nothing, body } = answer;
    if status == 200 {
        say::output(&body)?;
        return if matched_nothing { Err(Failure::NothingPurged) } else { Ok(()) };
    }
    Err(Failure::Machine(body.lines().next().unwrap_or("refused without a word").to_owned()))
}

/// The response of the process.
#[derive(PartialEq, Eq, Debug)]
struct Answered {
    status: u16,
    /// Whether no stored response matched a purge ([`NOTHING_MATCHED`]).
    matched_nothing: bool,
    body: String,
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

/// Parses a response.
fn read(answer: &[u8]) -> Result<Answered> {
    let parts = || {
        let text = std::str::from_utf8(answer).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let matched_nothing = head.lines().any(|line| line == NOTHING_MATCHED);
        let body = body.to_owned();
        (length?.parse() == Ok(body.len())).then_some(Answered { status, matched_nothing, body })
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
        let (status, matched_nothing, body) = (200, false, "ab".to_owned());
        assert_eq!(answer("2").unwrap(), Answered { status, matched_nothing, body });
        let nothing = format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{NOTHING_MATCHED}\r\n\r\n");
        assert!(read(nothing.as_bytes()).unwrap().matched_nothing);
        assert!(answer("3").is_err() && read(b"nonsense").is_err());
    }
}
