//! The real program over user-level connection tracking, with a daemon of the test's own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../uselect/uselectd/tests/common/daemon.rs"]
mod daemon;
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use support::{Folder, Running, get};

/// How long anything may take before a test counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// The options for it, with a daemon that listens in `folder`; `None` where there can be none,
/// which is said.
fn by_uselect(folder: &Folder) -> Option<String> {
    let socket = folder.0.join("uselectd");
    daemon::start_daemon(&socket)
        .then(|| format!("--engine uselect --uselectd {}", socket.display()))
}

/// What `--log-format json` says of a request, of what comes behind `origin_first_byte_ms`.
fn logged_path(words: &str) -> String {
    let words = format!(
        "forward --listen 127.0.0.1:0 --workers 1 --access-log - --log-format json {words}"
    );
    let mut running = Running::start(&words, 1);
    assert!(get(&running.addresses[0], "/").starts_with("HTTP/1.1 400 "));
    let mut record = String::new();
    BufReader::new(running.child.stdout.take().unwrap()).read_line(&mut record).unwrap();
    record.split_once("\"client_rtt_us\":").unwrap().1.to_owned()
}

#[test]
fn the_log_has_what_memory_knows_of_the_way_to_the_client() {
    assert_eq!(logged_path("--engine epoll"), "null,\"client_cwnd\":null}\n");
    let folder = Folder::new("uselect-log");
    let Some(words) = by_uselect(&folder) else { return };
    let logged = logged_path(&words);
    let (rtt_us, window) = logged.split_once(",\"client_cwnd\":").unwrap();
    let (rtt_us, window): (u32, u32) =
        (rtt_us.parse().unwrap(), window.trim_end_matches("}\n").parse().unwrap());
    // Over loopback, of a connection that has hardly begun.
    assert!((1..1_000_000).contains(&rtt_us) && (1..1000).contains(&window), "{logged}");
}

/// Reads a head, to its last byte and no further.
fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Moves a body whose next byte is sent only when the last one has arrived.
fn trickle(mut from: TcpStream, into: &mut TcpStream) {
    let (arrived, next) = mpsc::channel();
    let sending = std::thread::spawn(move || {
        for byte in 0..TRICKLE_BYTES {
            from.write_all(&[byte]).unwrap();
            next.recv_timeout(PATIENCE).unwrap();
        }
    });
    for expected in 0..TRICKLE_BYTES {
        let mut byte = [0];
        into.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [expected]);
        arrived.send(()).unwrap();
    }
    sending.join().unwrap();
}

const TRICKLE_BYTES: u8 = 50;

#[test]
fn bodies_that_trickle_come_byte_by_byte_both_ways() {
    let folder = Folder::new("uselect-trickle");
    let Some(words) = by_uselect(&folder) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = listener.local_addr().unwrap();
    let words = format!("boost --origin http://{origin} --listen 127.0.0.1:0 --workers 1 {words}");
    let running = Running::start(&words, 1);
    let mut client = TcpStream::connect(&running.addresses[0]).unwrap();
    let length = format!("Content-Length: {TRICKLE_BYTES}\r\n");
    client.write_all(format!("POST / HTTP/1.1\r\nHost: a\r\n{length}\r\n").as_bytes()).unwrap();
    let mut asked = listener.accept().unwrap().0;
    for stream in [&client, &asked] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    assert!(read_head(&mut asked).starts_with("POST / "));
    trickle(client.try_clone().unwrap(), &mut asked);
    asked.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 204 "));
    // Into the cache, and past it.
    for fields in ["", "Cache-Control: no-store\r\n"] {
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nCache-Control: no-cache\r\n\r\n").unwrap();
        assert!(read_head(&mut asked).starts_with("GET / "));
        asked.write_all(format!("HTTP/1.1 200 OK\r\n{fields}{length}\r\n").as_bytes()).unwrap();
        assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
        trickle(asked.try_clone().unwrap(), &mut client);
    }
}

/// One answer over a connection that stays.
fn ask(client: &mut TcpStream, origin: &mut TcpStream) {
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nCache-Control: no-cache\r\n\r\n").unwrap();
    assert!(read_head(origin).starts_with("GET / "));
    origin.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    assert!(read_head(client).starts_with("HTTP/1.1 200 "));
    let mut body = [0; 2];
    client.read_exact(&mut body).unwrap();
    assert_eq!(&body, b"ok");
}

/// Within its filter of system calls, in vain or not.
#[test]
fn workers_may_look_at_memory_before_they_sleep() {
    let folder = Folder::new("uselect-spin");
    let Some(words) = by_uselect(&folder) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = listener.local_addr().unwrap();
    let words = format!(
        "boost --origin http://{origin} --listen 127.0.0.1:0 --workers 1 --spin-us 50 {words}"
    );
    let running = Running::start(&words, 1);
    let mut client = TcpStream::connect(&running.addresses[0]).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nCache-Control: no-cache\r\n\r\n").unwrap();
    let mut asked = listener.accept().unwrap().0;
    for stream in [&client, &asked] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    assert!(read_head(&mut asked).starts_with("GET / "));
    asked.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 204 "));
    for _ in 0..20 {
        // A worker that ended would reset the connection.
        std::thread::sleep(Duration::from_millis(3));
        ask(&mut client, &mut asked);
    }
}

#[test]
fn when_the_daemon_ends_that_is_said_and_all_connections_go_on() {
    let folder = Folder::new("uselect-end");
    let socket = folder.0.join("uselectd");
    let Some(mut daemon) = daemon::load_daemon(&socket) else { return };
    let (end, ended) = UnixStream::pair().unwrap();
    let serving = std::thread::spawn(move || daemon.run(Some(ended.as_fd())).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = listener.local_addr().unwrap();
    let words = format!(
        "boost --origin http://{origin} --listen 127.0.0.1:0 --workers 1 --engine uselect \
         --uselectd {} --admin 127.0.0.1:0",
        socket.display()
    );
    let mut running = Running::start(&words, 1);
    let connect = |address: &str| {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let mut old = connect(&running.addresses[0]);
    old.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut asked = listener.accept().unwrap().0;
    asked.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(read_head(&mut asked).starts_with("GET / "));
    let registered = |running: &Running| {
        let metrics = running.admin_page("/metrics");
        let line = metrics.lines().find(|line| line.starts_with("millrace_uselect_registered "));
        line.unwrap().to_owned()
    };
    assert!(registered(&running).ends_with(" 1"));
    // An answer is under way.
    drop(end);
    serving.join().unwrap();
    assert!(running.line().starts_with("millrace: uselectd has ended: engine uselect goes on by"));
    assert!(registered(&running).ends_with(" 0"));
    asked.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    assert!(read_head(&mut old).starts_with("HTTP/1.1 204 "));
    ask(&mut old, &mut asked);
    let mut new = connect(&running.addresses[0]);
    ask(&mut new, &mut asked);
    ask(&mut old, &mut asked);
    running.signal("TERM");
    let (status, rest) = running.end();
    assert!(status.success() && !rest.contains("uselectd"), "{rest}");
}
