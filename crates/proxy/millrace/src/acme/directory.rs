//! HTTP to the directory of an ACME authority, over the blocking connections of the control plane.
//!
//! A request is complete when its future is returned, so the futures of `instant_acme` never wait:
//! [`run`] needs no runtime.

use std::future::{Future, ready};
use std::io::{Error, ErrorKind, Result};
use std::net::ToSocketAddrs;
use std::pin::{Pin, pin};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, Response, Uri};
use http_body::Body;
use instant_acme::{BodyWrapper, BytesResponse, HttpClient, Problem};
use millrace_config::AcmeContent;
use millrace_http1::{Method as Http1Method, ResponseHead, response_framing};
use millrace_tls::{
    Aead, ClientOptions, ClientSettings, Clock, Provider, ServerName, TlsError, TlsErrorKind,
};
use serde_json::{Value, from_value, json};

use crate::http::Connection;
use crate::threads::{lock, spawn};

/// Time for a request, from connecting to the end of the response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes of a response.
const BODY_BYTES_MAX: usize = 1 << 20;
/// The time until the next request for renewal information, unless the authority names one (RFC
/// 9773 section 4.3.3).
const RENEWAL_INFO_SECONDS: &str = "21600";
/// The most attempts of a call whose nonce the authority rejects. `instant_acme` makes three
/// requests in each.
const NONCE_ATTEMPTS: usize = 12;
const BAD_NONCE: &str = "urn:ietf:params:acme:error:badNonce";

/// The last Retry-After of an authority.
pub(super) type RetryAfter = Arc<Mutex<Option<Duration>>>;

/// The client of a directory.
pub(super) struct DirectoryClient {
    settings: ClientSettings,
    clock: Clock,
    retry_after: RetryAfter,
}

impl DirectoryClient {
    /// Creates a client that trusts the authorities in `content`. It stores the Retry-After of each
    /// response in `retry_after`.
    pub(super) fn new(content: &AcmeContent, retry_after: RetryAfter) -> Self {
        let options = ClientOptions {
            roots: Some(content.roots.clone()),
            certificate: None,
            alpn: vec![b"http/1.1".to_vec()],
        };
        let clock = Clock::default();
        let settings = ClientSettings::new(options, &Provider::new(Aead::fastest()), &clock);
        let settings = settings.expect("authorities were found when their file was read");
        Self { settings, clock, retry_after }
    }

    fn exchange(&self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse> {
        let (head, body) = request.into_parts();
        let (uri, body) = (head.uri, content(body));
        if uri.scheme_str() != Some("https") {
            return Err(invalid("the directory names a URL without https"));
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let name = ServerName::parse(host).ok_or_else(|| invalid("the host is not a name"))?;
        let address = (host, uri.port_u16().unwrap_or(443));
        let connection = self.connect(address, name);
        let mut connection = connection.map_err(|error| unreachable(&uri, &error))?;
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let mut message = format!(
            "{} {target} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n",
            head.method
        );
        for (name, value) in &head.headers {
            let value = value.to_str().map_err(|_| invalid("a field is not text"))?;
            message.push_str(&format!("{name}: {value}\r\n"));
        }
        if head.method == Method::POST {
            message.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        message.push_str("\r\n");
        connection.write_all(&[message.as_bytes(), &body].concat())?;
        self.read_response(&mut connection, &head.method)
    }

    fn connect(&self, address: (&str, u16), name: ServerName) -> Result<Connection> {
        let deadline = Instant::now() + REQUEST_TIMEOUT;
        let (host, port) = (address.0.to_owned(), address.1);
        let look_up = move || Ok((host.as_str(), port).to_socket_addrs()?.collect::<Vec<_>>());
        let mut connection = Connection::to_tcp(&within(deadline, look_up)?, deadline)?;
        self.clock.set(millrace_sys::time_of_day());
        connection.secure(self.settings.connect(name).map_err(Error::other)?)?;
        Ok(connection)
    }

    fn read_response(&self, connection: &mut Connection, method: &Method) -> Result<BytesResponse> {
        let head = connection.read_response()?;
        let method = if *method == Method::HEAD { Http1Method::Head } else { Http1Method::Get };
        let framing = response_framing(&head, method)
            .map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
        let body = connection.read_framed_body(framing, BODY_BYTES_MAX)?;
        check_nonce_url(&body)?;
        let body = if head.status() < 400 { body } else { problem(&body, head.status()) };
        let mut response = to_response(&head)?;
        *lock(&self.retry_after) = response.headers().get("retry-after").and_then(|value| {
            let seconds = value.to_str().ok()?.trim().parse().ok()?;
            Some(Duration::from_secs(seconds))
        });
        // `instant_acme` refuses renewal information without the field.
        let default = http::HeaderValue::from_static(RENEWAL_INFO_SECONDS);
        response.headers_mut().entry("retry-after").or_insert(default);
        let (parts, ()) = response.into_parts();
        Ok(BytesResponse { parts, body: Box::new(Bytes::from(body)) })
    }
}

impl HttpClient for DirectoryClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = std::result::Result<BytesResponse, instant_acme::Error>> + Send>>
    {
        let response = self.exchange(request);
        Box::pin(ready(response.map_err(|error| instant_acme::Error::Other(Box::new(error)))))
    }
}

/// Returns the result of a future of `instant_acme` over a [`DirectoryClient`].
pub(super) fn run<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("each request is complete when its future is returned"),
    }
}

/// Repeats a call while the authority rejects its nonce. A rejected request has no effect (RFC 8555
/// section 6.5).
pub(super) fn retry<T>(
    mut call: impl FnMut() -> std::result::Result<T, instant_acme::Error>,
) -> std::result::Result<T, instant_acme::Error> {
    let mut attempts = 1;
    loop {
        match call() {
            Err(instant_acme::Error::Api(problem))
                if problem.r#type.as_deref() == Some(BAD_NONCE) && attempts < NONCE_ATTEMPTS =>
            {
                attempts += 1;
            }
            result => return result,
        }
    }
}

/// Returns the content of a request.
fn content(mut body: BodyWrapper<Bytes>) -> Bytes {
    match Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        _ => Bytes::new(),
    }
}

/// Refuses a directory whose URL for nonces is malformed, since `instant_acme` panics on it.
/// Accepts every other body.
fn check_nonce_url(body: &[u8]) -> Result<()> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    match body["newNonce"].as_str().map(str::parse::<http::Uri>) {
        Some(Err(_)) => Err(invalid("the directory names a malformed URL")),
        _ => Ok(()),
    }
}

/// Returns the body of an error response as a problem document with the status of the response.
/// `instant_acme` reports only the document, in which the status is optional and advisory (RFC 9457
/// section 3.1.2).
fn problem(body: &[u8], status: u16) -> Vec<u8> {
    // A problem is also read from an array, and with unknown members that are no `Value`.
    let document = serde_json::from_slice(body).ok().filter(|document: &Value| {
        document.is_object() && from_value::<Problem>(document.clone()).is_ok()
    });
    let mut document = document
        .unwrap_or_else(|| json!({"detail": format!("HTTP status {status} without a problem")}));
    document["status"] = status.into();
    document.to_string().into_bytes()
}

fn to_response(head: &ResponseHead) -> Result<Response<()>> {
    let mut response = Response::builder().status(head.status());
    for field in head.fields() {
        response = response.header(head.name_of(field), head.value_of(field));
    }
    response.body(()).map_err(|error| Error::new(ErrorKind::InvalidData, error))
}

/// Returns the result of a name lookup. It runs on a thread of its own, because the system's
/// resolver knows no deadline.
///
/// # Errors
/// Those of the lookup; [`ErrorKind::TimedOut`] after the deadline.
fn within<T: Send + 'static>(
    deadline: Instant,
    look_up: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, result) = channel();
    // The receiver may be gone when the lookup ends.
    let thread = spawn("acme-lookup", move || _ = sender.send(look_up()));
    thread.map_err(|error| Error::other(error.to_string()))?;
    let result = result.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    result.map_err(|_| Error::new(ErrorKind::TimedOut, "the name lookup takes too long"))?
}

/// Returns the error of a connection that could not be opened.
fn unreachable(uri: &Uri, error: &Error) -> Error {
    let tls = error.get_ref().and_then(|error| error.downcast_ref::<TlsError>());
    let detail = match tls.map(|error| error.kind) {
        Some(TlsErrorKind::UnknownIssuer) => {
            "no trusted authority has issued its certificate (expected: --acme-ca FILE for a private \
             authority)"
                .to_owned()
        }
        _ => error.to_string(),
    };
    Error::new(error.kind(), format!("cannot reach {uri}: {detail}"))
}

fn invalid(problem: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lookup_has_a_deadline() {
        let (_sender, never) = channel::<()>();
        let blocked = move || never.recv().map_err(Error::other);
        assert_eq!(within(Instant::now(), blocked).unwrap_err().kind(), ErrorKind::TimedOut);
        let later = Instant::now() + REQUEST_TIMEOUT;
        assert_eq!(within(later, || Ok(1)).unwrap(), 1);
        let failed = within::<()>(later, || Err(ErrorKind::NotFound.into()));
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn an_error_has_the_status_of_its_response() {
        let deep = format!(r#"{{"a": {}{}}}"#, "[".repeat(200), "]".repeat(200));
        let missing = |status| format!("HTTP status {status} without a problem");
        for (body, status, detail) in [
            (r#"{"detail": "a"}"#, 404, "a".to_owned()),
            (r#"{"status": 500, "detail": "a"}"#, 403, "a".to_owned()),
            (r#"{"status": "404", "detail": "a"}"#, 403, missing(403)),
            (r#"["a"]"#, 404, missing(404)),
            // Each of these is a problem, but no JSON object.
            (r#"["a", "b", 404]"#, 404, missing(404)),
            (r#"{"a": 1e999}"#, 404, missing(404)),
            (&deep, 404, missing(404)),
            ("<html>", 503, missing(503)),
        ] {
            let found: Problem = serde_json::from_slice(&problem(body.as_bytes(), status)).unwrap();
            assert_eq!((found.status, found.detail), (Some(status), Some(detail)), "{body}");
        }
    }

    #[test]
    fn a_malformed_url_for_nonces_is_refused() {
        for body in [r#"{"newNonce": "https://a/b"}"#, r#"{"a": "b c"}"#, "[1]", "PEM", ""] {
            assert!(check_nonce_url(body.as_bytes()).is_ok(), "{body}");
        }
        for url in ["", "https://a/b c", "https://a/<b>", "https://"] {
            let body = format!(r#"{{"newNonce": "{url}"}}"#);
            assert!(check_nonce_url(body.as_bytes()).is_err(), "{url}");
        }
    }
}
