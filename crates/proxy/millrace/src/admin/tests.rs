//! Tests of what is answered to whom, over real sockets.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;

use millrace_engine::LogSink;
use millrace_proxy::Shared;

use super::*;
use crate::errands::Errands;
use crate::http::HEAD_LIMITS;

const TOKEN: &str = "Authorization: Bearer 0123456789abcdef\r\n";

fn admin(token: bool) -> (Arc<Admin>, Errands) {
    let path = std::env::temp_dir().join(format!("millrace-admin-{}-{token}", std::process::id()));
    let token = token.then(|| {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).mode(0o600).open(&path).unwrap();
        file.write_all(b"0123456789abcdef\n").unwrap();
        let token = Token::read("admin-token-file", &path).unwrap();
        std::fs::remove_file(&path).unwrap();
        token
    });
    let (desk, errands) = Errands::new(|| {});
    let shared = Shared::new(1, "test".to_owned(), None, None, |_| {}, None);
    let metrics = Metrics::new(&shared, LogSink::closed(), Arc::default());
    let guard = Guard { token, name: None };
    let hooks = Hooks { desk, reopen_log: Box::new(|| None), cache: None };
    (Arc::new(Admin::new(metrics, "a = 1\n".into(), guard, hooks)), errands)
}

/// The answer to a request over TCP, in which PORT stands for the port.
fn ask(admin: &Arc<Admin>, request: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = TcpStream::connect(address).unwrap();
    let (stream, _) = listener.accept().unwrap();
    admin.take(Connection::new(stream.into(), false).unwrap());
    client.write_all(request.replace("PORT", &address.port().to_string()).as_bytes()).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

fn ask_for(admin: &Arc<Admin>, line: &str, fields: &str) -> String {
    ask(admin, &format!("{line} HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n{fields}\r\n"))
}

#[test]
fn pages_are_told_apart_and_draining_is_not_healthy() {
    let (admin, _errands) = admin(false);
    let get = |path: &str| ask_for(&admin, &format!("GET {path}"), "");
    assert!(get("/healthz").ends_with("\r\n\r\nok\n"));
    assert!(get("/config?a").ends_with("\r\n\r\na = 1\n"));
    assert!(get("/metrics").contains(metrics::CONTENT_TYPE));
    assert!(get("/").starts_with("HTTP/1.1 404 "));
    assert!(get("/cache/stat").starts_with("HTTP/1.1 409 "), "there is none");
    assert!(get("/cache").starts_with("HTTP/1.1 403 ") && get("/cache/object").contains("token"));
    let head = ask(&admin, "HEAD /healthz HTTP/1.0\r\n\r\n");
    assert!(head.contains("Content-Length: 3\r\n") && head.ends_with("\r\n\r\n"));
    assert!(ask_for(&admin, "POST /config", "").contains("\r\nAllow: GET, HEAD\r\n"));
    assert!(ask_for(&admin, "GET /drain", "").contains("\r\nAllow: POST\r\n"));
    assert!(ask(&admin, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(HEAD_LIMITS.bytes_max));
    assert!(ask(&admin, &long).starts_with("HTTP/1.1 431 "));
    let body = ask_for(&admin, "GET /healthz", "Content-Length: 100000\r\n");
    assert!(body.starts_with("HTTP/1.1 413 "));
    admin.set_draining();
    assert!(get("/healthz").starts_with("HTTP/1.1 503 "));
}

#[test]
fn what_changes_something_needs_the_token() {
    let (without, errands) = admin(false);
    let refused = ask_for(&without, "POST /drain", TOKEN);
    assert!(refused.starts_with("HTTP/1.1 403 ") && refused.contains("give admin-token-file PATH"));
    assert!(errands.next().is_none());
    let (admin, errands) = admin(true);
    for (fields, status) in [
        ("", "401"),
        ("Authorization: Bearer 0123456789abcdeg\r\n", "401"),
        ("Authorization: Basic 0123456789abcdef\r\n", "401"),
        (&format!("{TOKEN}Origin: http://evil.example\r\n"), "403"),
        (&format!("{TOKEN}Sec-Fetch-Site: cross-site\r\n"), "403"),
    ] {
        let answer = ask_for(&admin, "POST /drain", fields);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{fields}: {answer}");
    }
    assert!(ask_for(&admin, "POST /drain", "").contains("\r\nWWW-Authenticate: Bearer "));
    let foreign = format!("POST /drain HTTP/1.1\r\nHost: evil.example:PORT\r\n{TOKEN}\r\n");
    assert!(ask(&admin, &foreign).starts_with("HTTP/1.1 421 "));
    assert!(
        ask(&admin, &foreign.replace("POST /drain", "GET /config")).starts_with("HTTP/1.1 421 ")
    );
    assert!(errands.next().is_none());
    assert!(ask_for(&admin, "POST /drain", TOKEN).starts_with("HTTP/1.1 202 "));
    assert!(matches!(errands.next(), Some(Errand::Drain)));
    assert!(ask_for(&admin, "POST /log/reopen", TOKEN).starts_with("HTTP/1.1 409 "));
    let supervisor = std::thread::spawn(move || {
        let reply = loop {
            match errands.next() {
                Some(Errand::Reload(reply)) => break reply,
                _ => std::thread::yield_now(),
            }
        };
        reply.send(Err("no file to reload".to_owned())).unwrap();
    });
    assert!(ask_for(&admin, "POST /reload", TOKEN).starts_with("HTTP/1.1 422 "));
    supervisor.join().unwrap();
    assert!(ask_for(&admin, "POST /reload", TOKEN).starts_with("HTTP/1.1 503 "));
}

fn ask_at_unix_socket(admin: &Arc<Admin>, line: &str) -> String {
    let (mut client, stream) = UnixStream::pair().unwrap();
    admin.take(Connection::new(stream.into(), true).unwrap());
    client.write_all(format!("{line} HTTP/1.1\r\nHost: anything\r\n\r\n").as_bytes()).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_same_user_needs_no_token_at_a_unix_socket() {
    let (admin, errands) = admin(false);
    let answer = ask_at_unix_socket(&admin, "POST /drain");
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    assert!(matches!(errands.next(), Some(Errand::Drain)));
}

#[test]
fn a_crowd_over_tcp_is_not_in_the_way_of_a_unix_socket() {
    let (admin, errands) = admin(false);
    let (ends, connections): (Vec<_>, Vec<_>) = (0..100)
        .map(|_| UnixStream::pair().unwrap())
        .map(|(end, other)| (end, Connection::new(other.into(), true).unwrap()))
        .unzip();
    let _places: Vec<_> = connections.iter().map(|each| admin.tcp.enter(each.socket())).collect();
    let answer = ask_at_unix_socket(&admin, "POST /drain");
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    drop((ends, errands));
}
