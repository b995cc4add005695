//! Steady load for `scripts/never-down` and `scripts/back-at-once`: an origin, and clients that
//! count every failure.
//!
//! ```text
//! load origin                             prints `origin at ADDRESS`, and serves until it is killed
//! load run PROXY RATE WEBSOCKETS SECONDS  sends load to PROXY, prints the results, and ends
//! ```
//!
//! Every line of `run` is one JSON object. `t` is in seconds since 1970.
//!
//! * `{"open": n}`: all WebSockets are open.
//! * `{"failed": why, "at": t}`: a request failed.
//! * `{"dropped": why, "opened": t, "at": t}`: a WebSocket was dropped. It is opened again.
//! * `{"gap": seconds, "at": t}`: no response arrived for that time before `t`.
//! * The last line has the sums.
//!
//! A request is tried once. A connection is reused unless its last response announced the end.
#![forbid(unsafe_code)]

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Threads that send requests. Each has one persistent connection.
const CLIENTS: u64 = 16;
/// One in this number of requests uses a connection of its own.
const NEW_EACH: u64 = 8;
/// Interval between two messages of a WebSocket.
const MESSAGE_EVERY: Duration = Duration::from_secs(1);
/// Delay before a dropped WebSocket is opened again. Without a listener, connecting fails at once.
const OPEN_AGAIN: Duration = Duration::from_millis(10);
/// The shortest time without a response that is reported.
const GAP_MIN: Duration = Duration::from_millis(10);
/// Limit of every wait of a client, far above any expected duration.
const PATIENCE: Duration = Duration::from_secs(20);
/// Stack of a thread. Its largest buffer has 1 KiB.
const STACK_BYTES: usize = 64 * 1024;
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nnever down.\n";
const SWITCHING: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
/// A WebSocket message of four bytes from a client, masked with zeros (RFC 6455 section 5.2).
const CLIENT_FRAME: [u8; 6] = [0x82, 0x84, 0, 0, 0, 0];
const SERVER_FRAME: [u8; 2] = [0x82, 0x04];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["origin"] => origin(),
        ["run", proxy, rate, websockets, seconds] => {
            match (proxy.parse(), rate.parse(), websockets.parse(), seconds.parse()) {
                (Ok(proxy), Ok(rate @ 1..), Ok(websockets), Ok(seconds)) => {
                    run(proxy, rate, websockets, Duration::from_secs(seconds))
                }
                _ => Err(Error::new(ErrorKind::InvalidInput, "run PROXY RATE WEBSOCKETS SECONDS")),
            }
        }
        _ => Err(Error::new(ErrorKind::InvalidInput, "origin, or run")),
    };
    if let Err(error) = outcome {
        eprintln!("load: {error}");
        std::process::exit(1);
    }
}

fn thread<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    std::thread::Builder::new().stack_size(STACK_BYTES).spawn(body)
}

/// Serves each connection on a thread: responds to requests and echoes WebSocket messages.
fn origin() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("origin at {}", listener.local_addr()?);
    for stream in listener.incoming() {
        let stream = stream?;
        stream.set_nodelay(true)?;
        // The end of a connection, or its reset, is not an error.
        thread(move || serve(stream))?;
    }
    Ok(())
}

fn serve(mut stream: TcpStream) -> Result<()> {
    loop {
        let head = read_head(&mut stream)?;
        if !holds(&head, b"\r\nUpgrade: websocket\r\n") {
            stream.write_all(RESPONSE)?;
            continue;
        }
        stream.write_all(SWITCHING)?;
        loop {
            let mut message = [0; 10];
            stream.read_exact(&mut message)?;
            stream.write_all(&[&SERVER_FRAME[..], &message[6..]].concat())?;
        }
    }
}

/// Returns whether a header has this line, ignoring case.
fn holds(head: &[u8], line: &[u8]) -> bool {
    head.windows(line.len()).any(|part| part.eq_ignore_ascii_case(line))
}

/// Reads a header. Bytes of the body that arrive with it are returned too, so a complete response
/// also ends the loop.
fn read_head(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut part = [0; 1024];
        match stream.read(&mut part)? {
            0 if head.is_empty() => return Err(Error::other("closed before the response")),
            0 => return Err(Error::other("closed inside a header")),
            count => head.extend_from_slice(&part[..count]),
        }
        if head.ends_with(b"never down.\n") {
            break;
        }
    }
    Ok(head)
}

/// The results of the clients so far.
#[derive(Default)]
struct Sums {
    requests: AtomicU64,
    failed: AtomicU64,
    messages: AtomicU64,
    dropped: AtomicU64,
    ending: AtomicBool,
    /// Time of the last response to any client.
    answered: Mutex<Option<Instant>>,
}

impl Sums {
    // The sums are read after all threads have ended, and `ending` guards no data, so relaxed
    // ordering is enough.
    fn add(sum: &AtomicU64) {
        sum.fetch_add(1, Ordering::Relaxed);
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Records a response, or the end of the load, and reports a gap of at least [`GAP_MIN`] before
    /// it.
    fn report_gap(&self) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so that the times of all clients are in order.
        let moment = Instant::now();
        let gap = answered.replace(moment).map_or(Duration::ZERO, |before| moment - before);
        if gap >= GAP_MIN {
            println!("{{\"gap\": {:.3}, \"at\": {:.3}}}", gap.as_secs_f64(), now());
        }
    }
}

fn run(proxy: SocketAddr, rate: u64, websockets: usize, length: Duration) -> Result<()> {
    let sums = Arc::new(Sums::default());
    let opened = Arc::new(Barrier::new(websockets + 1));
    let mut threads = Vec::new();
    for number in 0..websockets {
        let (sums, opened) = (Arc::clone(&sums), Arc::clone(&opened));
        threads.push(thread(move || keep_open(proxy, number, &sums, &opened))?);
    }
    opened.wait();
    println!("{{\"open\": {websockets}}}");
    for number in 0..CLIENTS {
        let sums = Arc::clone(&sums);
        let every = Duration::from_nanos(1_000_000_000 * CLIENTS / rate);
        let first = Instant::now() + every * number as u32 / CLIENTS as u32;
        threads.push(thread(move || send_requests(proxy, first, every, &sums))?);
    }
    std::thread::sleep(length);
    sums.report_gap();
    sums.ending.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("a client does not panic");
    }
    let sum = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
    println!(
        "{{\"requests\": {}, \"requests_failed\": {}, \"messages\": {}, \
         \"websockets_dropped\": {}}}",
        sum(&sums.requests),
        sum(&sums.failed),
        sum(&sums.messages),
        sum(&sums.dropped),
    );
    Ok(())
}

/// Sends requests at their scheduled times. A late request is sent at once.
fn send_requests(proxy: SocketAddr, first: Instant, every: Duration, sums: &Sums) {
    let (mut kept, mut due) = (None, first);
    for number in 1.. {
        if sums.is_ending() {
            return;
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        due += every;
        let outcome = match number % NEW_EACH {
            0 => request(&mut None, proxy, true),
            _ => request(&mut kept, proxy, false),
        };
        Sums::add(&sums.requests);
        match outcome {
            Ok(()) => sums.report_gap(),
            Err(error) => {
                Sums::add(&sums.failed);
                kept = None;
                println!("{{\"failed\": {:?}, \"at\": {:.3}}}", error.to_string(), now());
            }
        }
    }
}

fn request(kept: &mut Option<TcpStream>, proxy: SocketAddr, last: bool) -> Result<()> {
    let mut stream = match kept.take() {
        Some(stream) => stream,
        None => connect(proxy)?,
    };
    let close = if last { "Connection: close\r\n" } else { "" };
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: a\r\n{close}\r\n").as_bytes())?;
    let mut answer = read_head(&mut stream)?;
    while !answer.ends_with(b"never down.\n") {
        let mut part = [0; 64];
        match stream.read(&mut part)? {
            0 => return Err(Error::other("closed inside a body")),
            count => answer.extend_from_slice(&part[..count]),
        }
    }
    if !answer.starts_with(b"HTTP/1.1 200 ") {
        let line = String::from_utf8_lossy(&answer[..answer.len().min(40)]).into_owned();
        return Err(Error::other(line));
    }
    if !holds(&answer, b"\r\nConnection: close\r\n") {
        *kept = Some(stream);
    }
    Ok(())
}

fn connect(proxy: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&proxy, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Keeps one WebSocket open, and opens it again after a drop.
fn keep_open(proxy: SocketAddr, number: usize, sums: &Sums, opened: &Barrier) {
    let mut is_first = true;
    while !sums.is_ending() {
        let since = now();
        let outcome = open(proxy).and_then(|mut stream| {
            if std::mem::take(&mut is_first) {
                opened.wait();
            }
            echo(&mut stream, number as u32, sums)
        });
        if let Err(error) = outcome {
            Sums::add(&sums.dropped);
            let (error, now) = (error.to_string(), now());
            println!("{{\"dropped\": {error:?}, \"opened\": {since:.3}, \"at\": {now:.3}}}");
            if is_first {
                std::process::exit(1);
            }
            std::thread::sleep(OPEN_AGAIN);
        }
    }
}

fn open(proxy: SocketAddr) -> Result<TcpStream> {
    let mut stream = connect(proxy)?;
    stream.write_all(
        b"GET /echo HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
          Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    )?;
    let head = read_head(&mut stream)?;
    match head.starts_with(b"HTTP/1.1 101 ") {
        true => Ok(stream),
        false => Err(Error::other("no WebSocket")),
    }
}

/// Sends messages and compares their echoes until the load ends.
fn echo(stream: &mut TcpStream, mut message: u32, sums: &Sums) -> Result<()> {
    while !sums.is_ending() {
        let bytes = message.to_be_bytes();
        stream.write_all(&[&CLIENT_FRAME[..], &bytes].concat())?;
        let mut back = [0; 6];
        stream.read_exact(&mut back)?;
        if back[..2] != SERVER_FRAME || back[2..] != bytes {
            return Err(Error::other("a different message came back"));
        }
        Sums::add(&sums.messages);
        message = message.wrapping_add(1);
        std::thread::sleep(MESSAGE_EVERY);
    }
    let _ = stream.shutdown(Shutdown::Both);
    Ok(())
}

/// Returns the seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
