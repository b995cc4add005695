//! The origins behind one program: sockets around [`Model`].

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use super::model::Model;
use crate::strict::{self, Message};

/// The models of the current mutants, by token.
#[derive(Default)]
struct OriginsState {
    models: Mutex<HashMap<String, Entry>>,
    /// The connections to the origin that never reads bodies.
    early: Mutex<Vec<TcpStream>>,
}

struct Entry {
    model: Model,
    pages: u32,
    requests: u64,
}

/// Two origins on loopback ports of their own: one that reads bodies, and one that does not.
pub(super) struct Origins {
    /// The origin that responds by the models.
    pub(super) modelled: SocketAddr,
    /// The origin that responds to each header and reads the body as the next request.
    pub(super) early: SocketAddr,
    shared: Arc<OriginsState>,
}

impl Origins {
    /// Starts both. Their threads end with the process.
    ///
    /// # Panics
    /// Panics if no loopback port is available.
    pub(super) fn start() -> Self {
        let shared = Arc::new(OriginsState::default());
        let modelled = listen(&shared, serve);
        let early = listen(&shared, |mut stream, _, shared| {
            if let Ok(clone) = stream.try_clone() {
                lock(&shared.early).push(clone);
            }
            serve_early(&mut stream, shared);
            // The clone would keep the connection open.
            let _ = stream.shutdown(Shutdown::Both);
        });
        Self { modelled, early, shared }
    }

    /// Makes the model respond to requests of this mutant from now on.
    pub(super) fn register(&self, token: String, model: Model) {
        lock(&self.shared.models).insert(token, Entry { model, pages: 0, requests: 0 });
    }

    /// Returns how many requests of this mutant both origins have received.
    pub(super) fn requests(&self, token: &str) -> u64 {
        lock(&self.shared.models).get(token).map_or(0, |entry| entry.requests)
    }

    /// Removes the mutant.
    pub(super) fn forget(&self, token: &str) {
        lock(&self.shared.models).remove(token);
    }

    /// Ends every connection to the origin that never reads bodies, so that mutants of the class do
    /// not affect each other.
    pub(super) fn end_early(&self) {
        for stream in lock(&self.shared.early).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";

/// The delay of a slow origin. No outcome depends on it.
const SLOW: Duration = Duration::from_millis(3);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread of an origin panics")
}

fn listen(
    shared: &Arc<OriginsState>,
    serve: impl Fn(TcpStream, &str, &OriginsState) + Copy + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let address = listener.local_addr().expect("a bound socket has an address");
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.set_nodelay(true);
            let shared = Arc::clone(&shared);
            thread::spawn(move || serve(stream, &address.to_string(), &shared));
        }
    });
    address
}

fn serve(mut stream: TcpStream, own_address: &str, shared: &OriginsState) {
    let mut input = Vec::new();
    loop {
        match strict::request(&input) {
            // Another campaign looks for ambiguous requests.
            Err(_) => return,
            Ok(Some(request)) => {
                input.drain(..request.bytes);
                if stream.write_all(&respond(&request, own_address, shared)).is_err() {
                    return;
                }
            }
            Ok(None) if !read(&mut stream, &mut input) => return,
            Ok(None) => {}
        }
    }
}

fn respond(request: &Message, own_address: &str, shared: &OriginsState) -> Vec<u8> {
    let host = request.fields.iter().find(|field| field.is("host"));
    let host = host.map_or(String::new(), |field| String::from_utf8_lossy(&field.value).into());
    let token = token(&host).or_else(|| token(request.target()));
    let is_slow = |entry: &Entry| entry.model.is_slow;
    let is_slow = token.as_ref().and_then(|it| lock(&shared.models).get(it).map(is_slow));
    if is_slow == Some(true) {
        thread::sleep(SLOW);
    }
    let mut models = lock(&shared.models);
    match token.and_then(|token| models.get_mut(&token)) {
        Some(Entry { model, pages, requests }) => {
            *requests += 1;
            model.respond(request, own_address, || {
                *pages += 1;
                *pages
            })
        }
        None => b"HTTP/1.1 404 Unknown\r\nContent-Length: 0\r\n\r\n".to_vec(),
    }
}

/// Returns the first mutant token in a text: `t`, digits, `x`, digits.
fn token(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    text.match_indices('t').find_map(|(at, _)| {
        let (index, rest) = text[at + 1..].split_once('x')?;
        let attempt: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let is_number = !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit());
        (is_number && !attempt.is_empty()).then(|| format!("t{index}x{attempt}"))
    })
}

/// Responds to each header with its first line. A `100` precedes the response if the path is
/// `/100`, or if the request expects it and its path is `/form`. The bytes behind the header are
/// the next request.
fn serve_early(stream: &mut TcpStream, shared: &OriginsState) {
    let mut input = Vec::new();
    loop {
        let Some(end) = input.windows(4).position(|four| four == b"\r\n\r\n") else {
            if !read(stream, &mut input) {
                return;
            }
            continue;
        };
        let header: Vec<u8> = input.drain(..end + 4).collect();
        let header = String::from_utf8_lossy(&header);
        let line = header.split('\r').next().unwrap_or_default();
        let is_request = line.ends_with(" HTTP/1.1");
        if let Some(token) = token(&header)
            && let Some(entry) = lock(&shared.models).get_mut(&token)
        {
            entry.requests += 1;
        }
        let expects = header.contains("\r\nExpect: 100-continue\r\n") && line.contains(" /form");
        let interim = if expects || line.contains(" /100") { CONTINUE } else { "" };
        let body = if is_request { format!("early {line}\n") } else { "garbage\n".to_owned() };
        let status = if is_request { 200 } else { 400 };
        let shown = if line.starts_with("HEAD ") { "" } else { &body };
        let response = format!(
            "{interim}HTTP/1.1 {status} Early\r\nContent-Length: {}\r\nCache-Control: max-age=600\r\n\r\n{shown}",
            body.len()
        );
        if stream.write_all(response.as_bytes()).is_err() || !is_request {
            return;
        }
    }
}

/// Reads once. Returns whether more bytes came.
fn read(stream: &mut TcpStream, input: &mut Vec<u8>) -> bool {
    let mut chunk = [0; 16 * 1024];
    match stream.read(&mut chunk) {
        Ok(length) => {
            input.extend_from_slice(&chunk[..length]);
            length > 0
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_found_in_hosts_and_paths() {
        assert_eq!(token("T12X3.TEST:80").as_deref(), Some("t12x3"));
        assert_eq!(token("/t1x0/static/page").as_deref(), Some("t1x0"));
        assert_eq!(token("test.t1x.example"), None);
    }
}
