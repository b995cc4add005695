//! Tests of the responses and of access, over real sockets.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;

use millrace_engine::LogSink;
use millrace_proxy::SharedState;

use super::*;
use crate::http::HEAD_LIMITS;
use crate::supervisor_requests::SupervisorRequests;

const TOKEN: &str = "Authorization: Bearer 0123456789abcdef\r\n";

fn admin(token: bool) -> (Arc<Admin>, SupervisorRequests) {
    let path = std::env::temp_dir().join(format!("millrace-admin-{}-{token}", std::process::id()));
    let token = token.then(|| {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).mode(0o600).open(&path).unwrap();
        file.write_all(b"0123456789abcdef\n").unwrap();
        let token = Token::read("admin-token-file", &path).unwrap();
        std::fs::remove_file(&path).unwrap();
        token
    });
    let (supervisor, requests) = SupervisorRequests::new(|| {});
    let shared = SharedState::new(1, "test".to_owned(), None, None, |_| {}, None);
    let metrics = Metrics::new(&shared, LogSink::without_file(), Arc::default());
    let rules = AccessRules { token, name: None };
    let hooks = Hooks {
        supervisor,
        reopen_log: Box::new(|| None),
        test_certificates: Box::new(|_| Ok(String::new())),
        cache: None,
    };
    let admin = Admin::new(metrics, rules, hooks);
    admin.set_config(&millrace_config::from_arguments(["forward", "--spin-us=7"]).unwrap());
    (Arc::new(admin), requests)
}

/// Sends a request over TCP and returns the response. PORT in the request stands for the port.
fn request(admin: &Arc<Admin>, request: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    let (stream, _) = listener.accept().unwrap();
    admin.handle_connection(Connection::new(stream.into(), false).unwrap(), false);
    client.write_all(request.replace("PORT", &address.port().to_string()).as_bytes()).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).unwrap();
    response
}

fn request_with(admin: &Arc<Admin>, line: &str, fields: &str) -> String {
    request(admin, &format!("{line} HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n{fields}\r\n"))
}

#[test]
fn each_path_has_its_response_and_draining_is_not_healthy() {
    let (admin, _requests) = admin(false);
    let get = |path: &str| request_with(&admin, &format!("GET {path}"), "");
    assert!(get("/healthz").ends_with("\r\n\r\nok\n"));
    assert!(get("/config?a").contains("\nspin-us = 7\n"));
    assert!(get("/metrics").contains(MetricsFormat::OpenMetrics.content_type()));
    for (accept, format) in [
        (
            "Accept: text/plain;version=0.0.4\r\nAccept: */*;q=0.1\r\n",
            MetricsFormat::PrometheusText,
        ),
        ("Accept: application/openmetrics-text, Text/Plain\r\n", MetricsFormat::OpenMetrics),
    ] {
        let response = request_with(&admin, "GET /metrics", accept);
        assert!(response.contains(format.content_type()), "{response}");
    }
    assert!(get("/").starts_with("HTTP/1.1 404 "));
    assert!(get("/cache/stat").starts_with("HTTP/1.1 409 "), "the process has no cache");
    assert!(get("/cache").starts_with("HTTP/1.1 403 ") && get("/cache/object").contains("token"));
    let head = request(&admin, "HEAD /healthz HTTP/1.0\r\n\r\n");
    assert!(head.contains("Content-Length: 3\r\n") && head.ends_with("\r\n\r\n"));
    assert!(request_with(&admin, "POST /config", "").contains("\r\nAllow: GET, HEAD\r\n"));
    let refused = "\r\n\r\n405 Method Not Allowed (allowed: POST)\n";
    for path in ["/drain", "/cache/purge"] {
        let response = get(path);
        assert!(response.starts_with("HTTP/1.1 405 ") && response.ends_with(refused), "{response}");
    }
    assert!(request(&admin, "malformed\r\n\r\n").starts_with("HTTP/1.1 400 "));
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(HEAD_LIMITS.bytes_max));
    assert!(request(&admin, &long).starts_with("HTTP/1.1 431 "));
    let body = request_with(&admin, "GET /healthz", "Content-Length: 100000\r\n");
    assert!(body.starts_with("HTTP/1.1 413 "));
    admin.set_draining();
    assert!(get("/healthz").starts_with("HTTP/1.1 503 "));
}

#[test]
fn changes_need_the_token() {
    let (without, requests) = admin(false);
    let refused = request_with(&without, "POST /drain", TOKEN);
    assert!(refused.starts_with("HTTP/1.1 403 ") && refused.contains("admin-token-file PATH"));
    assert!(requests.next().is_none());
    let (admin, requests) = admin(true);
    for (fields, status) in [
        ("", "401"),
        ("Authorization: Bearer 0123456789abcdeg\r\n", "401"),
        ("Authorization: Basic 0123456789abcdef\r\n", "401"),
        (&format!("{TOKEN}Origin: http://evil.example\r\n"), "403"),
        (&format!("{TOKEN}Sec-Fetch-Site: cross-site\r\n"), "403"),
    ] {
        let response = request_with(&admin, "POST /drain", fields);
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{fields}: {response}");
    }
    assert!(request_with(&admin, "POST /drain", "").contains("\r\nWWW-Authenticate: Bearer "));
    let foreign = format!("POST /drain HTTP/1.1\r\nHost: evil.example:PORT\r\n{TOKEN}\r\n");
    assert!(request(&admin, &foreign).starts_with("HTTP/1.1 421 "));
    assert!(
        request(&admin, &foreign.replace("POST /drain", "GET /config"))
            .starts_with("HTTP/1.1 421 ")
    );
    assert!(requests.next().is_none());
    assert!(request_with(&admin, "POST /drain", TOKEN).starts_with("HTTP/1.1 202 "));
    assert!(matches!(requests.next(), Some(SupervisorRequest::Drain)));
    assert!(request_with(&admin, "POST /log/reopen", TOKEN).starts_with("HTTP/1.1 409 "));
    let supervisor = std::thread::spawn(move || {
        let reply = loop {
            match requests.next() {
                Some(SupervisorRequest::Reload(reply)) => break reply,
                _ => std::thread::yield_now(),
            }
        };
        reply.send(Err("no file to reload".to_owned())).unwrap();
    });
    assert!(request_with(&admin, "POST /reload", TOKEN).starts_with("HTTP/1.1 422 "));
    supervisor.join().unwrap();
    assert!(request_with(&admin, "POST /reload", TOKEN).starts_with("HTTP/1.1 503 "));
}

fn request_over_unix_socket(admin: &Arc<Admin>, line: &str) -> String {
    let (mut client, stream) = UnixStream::pair().unwrap();
    admin.handle_connection(Connection::new(stream.into(), true).unwrap(), false);
    client.write_all(format!("{line} HTTP/1.1\r\nHost: anything\r\n\r\n").as_bytes()).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).unwrap();
    response
}

#[test]
fn the_same_user_needs_no_token_at_a_unix_socket() {
    let (admin, requests) = admin(false);
    let response = request_over_unix_socket(&admin, "POST /drain");
    assert!(response.starts_with("HTTP/1.1 202 "), "{response}");
    assert!(matches!(requests.next(), Some(SupervisorRequest::Drain)));
}

#[test]
fn many_tcp_connections_do_not_block_a_unix_socket() {
    let (admin, requests) = admin(false);
    let (ends, connections): (Vec<_>, Vec<_>) = (0..100)
        .map(|_| UnixStream::pair().unwrap())
        .map(|(end, other)| (end, Connection::new(other.into(), true).unwrap()))
        .unzip();
    let _places: Vec<_> = connections.iter().map(|each| admin.tcp.acquire(each.socket())).collect();
    let response = request_over_unix_socket(&admin, "POST /drain");
    assert!(response.starts_with("HTTP/1.1 202 "), "{response}");
    drop((ends, requests));
}
