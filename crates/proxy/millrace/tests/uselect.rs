//! The real program with engine uselect and a daemon of the test.

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

/// Time after which a test counts as hung.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the options for a daemon that listens in `folder`; `None`, with a message, if this
/// machine cannot run a daemon.
fn uselect_options(folder: &Folder) -> Option<String> {
    let socket = folder.0.join("uselectd");
    daemon::start_daemon(&socket)
        .then(|| format!("--engine uselect --uselectd {}", socket.display()))
}

/// Starts millrace and sends a request that it refuses. Returns the end of its JSON log record: the
/// value of `client_rtt_us`, and `client_cwnd`.
fn logged_tcp_metrics(arguments: &str) -> String {
    let arguments = format!(
        "forward --listen 127.0.0.1:0 --workers 1 --access-log - --log-format json {arguments}"
    );
    let mut running = Running::start(&arguments, 1);
    assert!(get(&running.addresses[0], "/").starts_with("HTTP/1.1 400 "));
    let mut record = String::new();
    BufReader::new(running.child.stdout.take().unwrap()).read_line(&mut record).unwrap();
    record.split_once("\"client_rtt_us\":").unwrap().1.to_owned()
}

#[test]
fn the_log_has_the_tcp_metrics_of_the_client() {
    assert_eq!(logged_tcp_metrics("--engine epoll"), "null,\"client_cwnd\":null}\n");
    let folder = Folder::new("uselect-log");
    let Some(arguments) = uselect_options(&folder) else { return };
    let logged = logged_tcp_metrics(&arguments);
    let (rtt_us, window) = logged.split_once(",\"client_cwnd\":").unwrap();
    let (rtt_us, window): (u32, u32) =
        (rtt_us.parse().unwrap(), window.trim_end_matches("}\n").parse().unwrap());
    // Plausible values for a new loopback connection.
    assert!((1..1_000_000).contains(&rtt_us) && (1..1000).contains(&window), "{logged}");
}

/// Reads exactly a header.
fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Forwards a body. Each byte is sent only after the previous one has arrived.
fn trickle(mut from: TcpStream, into: &mut TcpStream) {
    let (arrived, next) = mpsc::channel();
    let sending = std::thread::spawn(move || {
        for byte in 0..TRICKLE_BYTES {
            from.write_all(&[byte]).unwrap();
            next.recv_timeout(TIMEOUT).unwrap();
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
fn trickling_bodies_are_forwarded_byte_by_byte_in_both_directions() {
    let folder = Folder::new("uselect-trickle");
    let Some(arguments) = uselect_options(&folder) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = listener.local_addr().unwrap();
    let arguments =
        format!("boost --origin http://{origin} --listen 127.0.0.1:0 --workers 1 {arguments}");
    let running = Running::start(&arguments, 1);
    let mut client = TcpStream::connect(&running.addresses[0]).unwrap();
    let length = format!("Content-Length: {TRICKLE_BYTES}\r\n");
    client.write_all(format!("POST / HTTP/1.1\r\nHost: a\r\n{length}\r\n").as_bytes()).unwrap();
    let mut origin_side = listener.accept().unwrap().0;
    for stream in [&client, &origin_side] {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    }
    assert!(read_head(&mut origin_side).starts_with("POST / "));
    trickle(client.try_clone().unwrap(), &mut origin_side);
    origin_side.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 204 "));
    // With the cache, and without it.
    for fields in ["", "Cache-Control: no-store\r\n"] {
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nCache-Control: no-cache\r\n\r\n").unwrap();
        assert!(read_head(&mut origin_side).starts_with("GET / "));
        origin_side
            .write_all(format!("HTTP/1.1 200 OK\r\n{fields}{length}\r\n").as_bytes())
            .unwrap();
        assert!(read_head(&mut client).starts_with("HTTP/1.1 200 "));
        trickle(origin_side.try_clone().unwrap(), &mut client);
    }
}

/// Sends one request and response over a persistent connection.
fn exchange(client: &mut TcpStream, origin: &mut TcpStream) {
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nCache-Control: no-cache\r\n\r\n").unwrap();
    assert!(read_head(origin).starts_with("GET / "));
    origin.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    assert!(read_head(client).starts_with("HTTP/1.1 200 "));
    let mut body = [0; 2];
    client.read_exact(&mut body).unwrap();
    assert_eq!(&body, b"ok");
}

/// The system call filter must not kill a spinning worker.
#[test]
fn workers_may_spin_before_they_sleep() {
    let folder = Folder::new("uselect-spin");
    let Some(arguments) = uselect_options(&folder) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = listener.local_addr().unwrap();
    let arguments = format!(
        "boost --origin http://{origin} --listen 127.0.0.1:0 --workers 1 --spin-us 50 {arguments}"
    );
    let running = Running::start(&arguments, 1);
    let mut client = TcpStream::connect(&running.addresses[0]).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nCache-Control: no-cache\r\n\r\n").unwrap();
    let mut origin_side = listener.accept().unwrap().0;
    for stream in [&client, &origin_side] {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    }
    assert!(read_head(&mut origin_side).starts_with("GET / "));
    origin_side.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 204 "));
    for _ in 0..20 {
        // A worker that ended would have reset the connection.
        std::thread::sleep(Duration::from_millis(3));
        exchange(&mut client, &mut origin_side);
    }
}

#[test]
fn the_end_of_the_daemon_is_logged_and_connections_continue() {
    let folder = Folder::new("uselect-end");
    let socket = folder.0.join("uselectd");
    let Some(mut daemon) = daemon::load_daemon(&socket) else { return };
    let (end, ended) = UnixStream::pair().unwrap();
    let serving = std::thread::spawn(move || daemon.run(Some(ended.as_fd())).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = listener.local_addr().unwrap();
    let arguments = format!(
        "boost --origin http://{origin} --listen 127.0.0.1:0 --workers 1 --engine uselect \
         --uselectd {} --admin 127.0.0.1:0",
        socket.display()
    );
    let mut running = Running::start(&arguments, 1);
    let connect = |address: &str| {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    };
    let mut old = connect(&running.addresses[0]);
    old.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut origin_side = listener.accept().unwrap().0;
    origin_side.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert!(read_head(&mut origin_side).starts_with("GET / "));
    let registered = |running: &Running| {
        let metrics = running.admin_page("/metrics");
        let line = metrics.lines().find(|line| line.starts_with("millrace_uselect_registered "));
        line.unwrap().to_owned()
    };
    assert!(registered(&running).ends_with(" 1"));
    // A response is in progress.
    drop(end);
    serving.join().unwrap();
    assert!(
        running.line().starts_with("millrace: uselectd has ended: engine uselect continues with")
    );
    assert!(registered(&running).ends_with(" 0"));
    origin_side.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    assert!(read_head(&mut old).starts_with("HTTP/1.1 204 "));
    exchange(&mut old, &mut origin_side);
    let mut new = connect(&running.addresses[0]);
    exchange(&mut new, &mut origin_side);
    exchange(&mut old, &mut origin_side);
    running.signal("TERM");
    let (status, rest) = running.end();
    assert!(status.success() && !rest.contains("uselectd"), "{rest}");
}
