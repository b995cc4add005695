//! The `cache` command: sends a request to the admin address of a running process and prints the
//! response.

use std::io::{Error, ErrorKind, Result};
use std::time::{Duration, Instant};

use millrace_config::{AdminRequest, ConfigError, ListenAddress};
use millrace_http1::{HeaderWriter, Http1Header, declared_length};
use millrace_tls::{Aead, ClientOptions, ClientSettings, Clock, Provider, ServerName};

use crate::admin::{MATCHED_FIELD, Token};
use crate::http::{self, Connection};
use crate::program_error::ProgramError;
use crate::{certificates, console};

/// Time limit of the response. A purge visits all stored responses.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The longest body that is read.
const BODY_BYTES_MAX: u64 = 64 << 20;

/// Sends the request and prints the response.
///
/// # Errors
/// If the process does not respond or refuses the request.
pub(crate) fn run(command: &AdminRequest) -> std::result::Result<(), ProgramError> {
    let response = try_send(command, TIMEOUT)?;
    let response =
        response.map_err(|error| ProgramError::System(describe_error(command, &error)))?;
    let CacheResponse { status, matched_nothing, body } = response;
    if status == 200 {
        console::write_result(&body)?;
        return if matched_nothing { Err(ProgramError::NothingPurged) } else { Ok(()) };
    }
    Err(ProgramError::System(
        body.lines()
            .next()
            .unwrap_or("the process refused the request without a reason")
            .to_owned(),
    ))
}

/// The response of the process.
#[derive(PartialEq, Eq, Debug)]
struct CacheResponse {
    status: u16,
    /// Whether a purge matched no stored response ([`MATCHED_FIELD`]).
    matched_nothing: bool,
    body: String,
}

/// Describes why there is no response. If no process listens, adds how to start one.
fn describe_error(command: &AdminRequest, error: &Error) -> String {
    let admin = &command.admin;
    let hint = match is_unused(error) {
        true => {
            format!(" (start the process with --admin {admin}, or name its address by --admin)")
        }
        false => String::new(),
    };
    format!("cannot reach the process at {admin}: {error}{hint}")
}

/// Sends a request of another command. Returns the status and the body of the response; `None` if
/// no process listens at the address.
///
/// # Errors
/// If the token cannot be read, or the process does not respond within `timeout`.
pub(crate) fn send(
    command: &AdminRequest,
    timeout: Duration,
) -> std::result::Result<Option<(u16, String)>, ProgramError> {
    match try_send(command, timeout)? {
        Ok(response) => Ok(Some((response.status, response.body))),
        Err(error) if is_unused(&error) => Ok(None),
        Err(error) => Err(ProgramError::System(describe_error(command, &error))),
    }
}

/// Sends a request. Returns the response, or why there is none within `timeout`.
fn try_send(
    command: &AdminRequest,
    timeout: Duration,
) -> std::result::Result<Result<CacheResponse>, ProgramError> {
    let token = command.token_file.as_deref();
    let token = token.map(|file| Token::read("--token-file", file)).transpose()?;
    let request = request(command, token.as_ref());
    let tls = command.admin.tls.then(|| client_settings(command)).transpose()?;
    Ok(connect(command, tls).and_then(|mut connection| {
        connection.set_deadline(Instant::now() + timeout);
        exchange(connection, &request)
    }))
}

/// Returns whether a connection failed because no process listens.
fn is_unused(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

fn request(command: &AdminRequest, token: Option<&Token>) -> Vec<u8> {
    let method = if command.is_change { &b"POST"[..] } else { b"GET" };
    let host = match &command.admin.address {
        ListenAddress::Tcp(address) => address.to_string(),
        ListenAddress::Unix(_) => "millrace".to_owned(),
    };
    let pairs = command.query.iter().map(|(name, value)| format!("{name}={}", encode_value(value)));
    let query = pairs.collect::<Vec<_>>().join("&");
    let target = format!("{}?{query}", command.path);
    let mut request = Vec::new();
    let mut header = Http1Header::new(&mut request);
    header.request(method, target.as_bytes(), |value| value.extend_from_slice(host.as_bytes()));
    if let Some(token) = token {
        token.write_field(&mut header);
    }
    header.end();
    request
}

/// Percent-encodes everything except ASCII alphanumeric characters and characters without a meaning
/// in a query.
fn encode_value(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte);
    http::percent_encoded(text.as_bytes(), is_plain)
}

fn connect(
    command: &AdminRequest,
    tls: Option<(ClientSettings, ServerName)>,
) -> Result<Connection> {
    let deadline = Instant::now() + TIMEOUT;
    let mut connection = match &command.admin.address {
        ListenAddress::Tcp(address) => Connection::to_tcp(&[*address], deadline)?,
        ListenAddress::Unix(path) => Connection::to_unix(path, deadline)?,
    };
    if let Some((settings, name)) = tls {
        connection.secure(settings.connect(name).map_err(Error::other)?)?;
    }
    Ok(connection)
}

/// Returns the TLS settings, and the name that the certificate must be valid for.
fn client_settings(
    command: &AdminRequest,
) -> std::result::Result<(ClientSettings, ServerName), ProgramError> {
    let name = match (&command.server_name, &command.admin.address) {
        (Some(name), _) => name.clone(),
        (None, ListenAddress::Tcp(address)) => address.ip().to_string(),
        (None, ListenAddress::Unix(_)) => unreachable!("a Unix socket has no TLS"),
    };
    let Some(server_name) = ServerName::parse(&name) else {
        let problem = format!("\"{name}\" is no name of a certificate");
        return Err(ConfigError::rule("--server-name", problem, "a DNS name, an address").into());
    };
    let clock = Clock::default();
    clock.set(millrace_sys::time_of_day());
    let options = ClientOptions {
        roots: Some(certificates::read_roots("--ca", command.ca_file.as_deref(), "--admin")?),
        certificate: None,
        alpn: vec![b"http/1.1".to_vec()],
    };
    let settings = ClientSettings::new(options, &Provider::new(Aead::fastest()), &clock);
    let settings = settings.map_err(|error| ProgramError::System(error.to_string()))?;
    Ok((settings, server_name))
}

/// Sends a request and reads the response. Every admin server sends a Content-Length.
fn exchange(mut connection: Connection, request: &[u8]) -> Result<CacheResponse> {
    connection.write_all(request)?;
    let head = connection.read_response()?;
    let malformed = |wrong: &str| Error::new(ErrorKind::InvalidData, wrong);
    let body = match declared_length(&head) {
        Ok(Some(length)) if length <= BODY_BYTES_MAX => connection.read_body(length as usize)?,
        _ => return Err(malformed("the response has no valid Content-Length")),
    };
    Ok(CacheResponse {
        status: head.status(),
        matched_nothing: http::values(&head, MATCHED_FIELD).any(|value| value == b"0"),
        body: String::from_utf8(body).map_err(|_| malformed("the response is not UTF-8"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_config::AdminAddress;
    use std::io::Write;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    #[test]
    fn requests_are_encoded_and_responses_are_complete() {
        let command = AdminRequest {
            path: "/cache/purge",
            is_change: true,
            query: vec![("url", "http://a/?b=c&d é".to_owned()), ("soft", String::new())],
            admin: AdminAddress {
                address: ListenAddress::Tcp("127.0.0.1:9180".parse().unwrap()),
                tls: false,
            },
            ca_file: None,
            server_name: None,
            token_file: None,
        };
        let expected = "POST /cache/purge?url=http://a/%3Fb%3Dc%26d%20%C3%A9&soft= HTTP/1.1\r\n\
                        Host: 127.0.0.1:9180\r\n\r\n";
        assert_eq!(request(&command, None), expected.as_bytes());
        let response = |text: &str| {
            let (mut server, client) = UnixStream::pair().unwrap();
            server.write_all(text.as_bytes()).unwrap();
            server.shutdown(Shutdown::Write).unwrap();
            let mut connection = Connection::new(client.into(), true).unwrap();
            connection.set_deadline(Instant::now() + TIMEOUT);
            exchange(connection, b"")
        };
        let sized = |length: &str| {
            response(&format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nab"))
        };
        let (status, matched_nothing, body) = (200, false, "ab".to_owned());
        assert_eq!(sized("2").unwrap(), CacheResponse { status, matched_nothing, body });
        let nothing = format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{MATCHED_FIELD}: 0\r\n\r\n");
        assert!(response(&nothing).unwrap().matched_nothing);
        assert!(sized("3").is_err() && sized("-").is_err());
        assert!(response("nonsense").is_err());
    }
}
