//! A client that sends one request after the other, and checks each response.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use millrace_sim::SeededRandom;

use super::message::{body_of, find_end};
use super::tally::Tally;

/// The result of one request.
enum Received {
    Right,
    Error,
    Cut,
}

/// Sends requests with the ids from `next` on, up to `last`.
pub(super) fn run_client(
    address: &str,
    next: &AtomicU32,
    last: u32,
    seed: u64,
) -> Result<Tally, String> {
    let mut random = SeededRandom::new(seed);
    let (mut connection, mut tally) = (None, Tally::default());
    loop {
        // Each id is taken once. The number orders no other memory.
        let id = next.fetch_add(1, Ordering::Relaxed);
        if id > last {
            return Ok(tally);
        }
        let method = random.choose(&["GET", "GET", "GET", "GET", "GET", "GET", "HEAD", "POST"]);
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => connect(address)?,
        };
        match exchange(&mut stream, method, id).map_err(|why| format!("{method} {id}: {why}"))? {
            Received::Right => {
                tally.right += 1;
                connection = Some(stream);
            }
            Received::Error => tally.errors += 1,
            Received::Cut => tally.cut += 1,
        }
    }
}

fn connect(address: &str) -> Result<TcpStream, String> {
    let stream = TcpStream::connect(address).map_err(|why| why.to_string())?;
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).map_err(|why| why.to_string())?;
    Ok(stream)
}

/// Sends a request and checks its response.
fn exchange(stream: &mut TcpStream, method: &str, id: u32) -> Result<Received, String> {
    let body = if method == "POST" { id.to_string() } else { String::new() };
    let length = match method {
        "POST" => format!("Content-Length: {}\r\n", body.len()),
        _ => String::new(),
    };
    let request = format!("{method} /{id} HTTP/1.1\r\nHost: a.test\r\n{length}\r\n{body}");
    stream.write_all(request.as_bytes()).map_err(|why| why.to_string())?;
    let mut received = Vec::new();
    let header = loop {
        if let Some(end) = find_end(&received) {
            let header = String::from_utf8_lossy(&received[..end]).into_owned();
            received.drain(..end);
            if !header.starts_with("HTTP/1.1 1") {
                break header;
            }
            continue;
        }
        if read(stream, &mut received)? == 0 {
            return Err(format!("the connection ended before a response: {received:?}"));
        }
    };
    let status = header.get(9..12).unwrap_or_default().to_owned();
    if ["502", "503", "504"].contains(&&status[..]) {
        return Ok(Received::Error);
    }
    let expected = body_of(id);
    if status != "200" || !header.contains(&format!("\r\nX-Id: {id}\r\n")) {
        return Err(format!("wrong header {header:?}"));
    }
    let wanted = if method == "HEAD" { 0 } else { expected.len() };
    while received.len() < wanted {
        match read(stream, &mut received) {
            Ok(0) | Err(_) => {
                let is_part = expected.starts_with(&received);
                return if is_part { Ok(Received::Cut) } else { Err("wrong bytes".to_owned()) };
            }
            Ok(_) => {}
        }
    }
    match received == expected[..wanted] {
        true => Ok(Received::Right),
        false => Err("a wrong body".to_owned()),
    }
}

fn read(stream: &mut TcpStream, received: &mut Vec<u8>) -> Result<usize, String> {
    let mut part = [0; 16 * 1024];
    let count = stream.read(&mut part).map_err(|why| why.to_string())?;
    received.extend_from_slice(&part[..count]);
    Ok(count)
}
