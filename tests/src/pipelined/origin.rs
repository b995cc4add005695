//! An origin that does something wrong now and then, or always miscounts.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use millrace_sim::SeededRandom;

use super::message::{body_of, find_end};

/// Requests of a test of pipelining.
const TEST_REQUESTS: u32 = 7;
/// The time that an origin takes for a response.
const THINK_TIME: Duration = Duration::from_millis(3);
/// The longest stall of a connection.
const STALL_MS: u64 = 600;

/// How an origin behaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct OriginPlan {
    /// How it counts responses wrongly, from its first request on. Only its test can show this.
    pub(super) miscount: Option<Miscount>,
    /// One of this number of responses has a fault; 0: none.
    pub(super) fault_one_of: u64,
}

/// A way to count responses wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Miscount {
    /// Responses to requests that arrive together are in the reverse order.
    Swaps,
    /// A request that arrives together with another one gets two responses.
    SendsTwo,
    /// Responses to HEAD have bodies.
    HeadHasBody,
}

/// A fault of one response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    ClosesBefore,
    ClosesWithinHeader,
    ClosesWithinBody,
    ClosesAfter,
    AnnouncesClose,
    Delays(u64),
    Garbles,
    Interim,
    SendsMore,
    RespondsAs10,
}

/// A running origin.
pub(super) struct Origin {
    plan: OriginPlan,
    address: SocketAddr,
    seed: u64,
    /// Requests that arrived before the response to an earlier one.
    pub(super) pipelined: AtomicU64,
    /// Responses with a fault.
    pub(super) faults: AtomicU64,
    posts: Mutex<HashMap<String, u32>>,
    tested: (Mutex<u32>, Condvar),
    is_over: AtomicBool,
}

struct Request {
    method: String,
    target: String,
    closes: bool,
}

impl Origin {
    /// Starts the origin on a thread that accepts connections until the process ends.
    pub(super) fn start(plan: OriginPlan, seed: u64) -> Result<Arc<Self>, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|why| why.to_string())?;
        let address = listener.local_addr().map_err(|why| why.to_string())?;
        let origin = Arc::new(Self {
            plan,
            address,
            seed,
            pipelined: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            posts: Mutex::default(),
            tested: Default::default(),
            is_over: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&origin);
        thread::spawn(move || {
            for (number, stream) in (0..).zip(listener.incoming().flatten()) {
                // Relaxed: a connection more is harmless.
                if accepting.is_over.load(Ordering::Relaxed) {
                    return;
                }
                let origin = Arc::clone(&accepting);
                thread::spawn(move || origin.serve(stream, number));
            }
        });
        Ok(origin)
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until the program has tested the origin. A test that fails may end early.
    pub(super) fn await_test(&self) -> Result<(), String> {
        let least = if self.plan.miscount.is_some() { 1 } else { TEST_REQUESTS };
        let (count, changed) = &self.tested;
        let count = count.lock().map_err(|why| why.to_string())?;
        let waited = changed.wait_timeout_while(count, Duration::from_secs(60), |it| *it < least);
        let (_count, waited) = waited.map_err(|why| why.to_string())?;
        if waited.timed_out() { Err("the origin is not tested".to_owned()) } else { Ok(()) }
    }

    /// Ends the origin, and checks that no POST arrived twice.
    pub(super) fn check(&self) -> Result<(), String> {
        self.is_over.store(true, Ordering::Relaxed);
        // Makes the listening thread notice.
        drop(TcpStream::connect(self.address));
        let posts = self.posts.lock().map_err(|why| why.to_string())?;
        match posts.iter().find(|(_, count)| **count > 1) {
            Some((target, count)) => Err(format!("POST {target} arrived {count} times")),
            None => Ok(()),
        }
    }

    /// Serves a connection until it ends. Errors end it, too: the program may close it at any time.
    fn serve(&self, mut stream: TcpStream, number: u64) {
        let mut random = SeededRandom::new(self.seed ^ (number << 32));
        let mut received = Vec::new();
        loop {
            let mut requests: Vec<Request> = Vec::new();
            while let Some(request) = take_request(&mut received) {
                requests.push(request);
            }
            if requests.is_empty() {
                let mut part = [0; 4096];
                match stream.read(&mut part) {
                    Ok(0) | Err(_) => return,
                    Ok(count) => received.extend_from_slice(&part[..count]),
                }
                continue;
            }
            self.pipelined.fetch_add(requests.len() as u64 - 1, Ordering::Relaxed);
            if self.plan.miscount == Some(Miscount::Swaps) {
                requests.reverse();
            }
            let is_shared = requests.len() > 1;
            for request in &requests {
                self.note(request);
                if !self.respond(&mut stream, request, is_shared, &mut random) {
                    return;
                }
            }
        }
    }

    fn note(&self, request: &Request) {
        let Request { method, target, .. } = request;
        if target == "/check" {
            if let Ok(mut count) = self.tested.0.lock() {
                *count += 1;
            }
            self.tested.1.notify_all();
        } else if method == "POST"
            && let Ok(mut posts) = self.posts.lock()
        {
            *posts.entry(target.clone()).or_default() += 1;
        }
    }

    /// Sends a response. Returns whether the connection continues.
    fn respond(
        &self,
        stream: &mut TcpStream,
        request: &Request,
        is_shared: bool,
        random: &mut SeededRandom,
    ) -> bool {
        let id = request.target[1..].parse().unwrap_or(1);
        let body = body_of(id);
        let mut header =
            format!("HTTP/1.1 200 OK\r\nX-Id: {id}\r\nContent-Length: {}\r\n\r\n", body.len());
        let has_body =
            request.method != "HEAD" || self.plan.miscount == Some(Miscount::HeadHasBody);
        let body = if has_body { &body[..] } else { &[] };
        let has_fault = self.plan.fault_one_of > 0 && random.below(self.plan.fault_one_of) == 0;
        let fault = Some(draw_fault(random)).filter(|_| has_fault && request.target != "/check");
        if fault.is_some() {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        let mut bytes: Vec<u8> = Vec::new();
        // Meanwhile, further requests arrive.
        thread::sleep(THINK_TIME);
        match fault {
            Some(Fault::ClosesBefore) => return false,
            Some(Fault::AnnouncesClose) => {
                header = header.replacen("\r\n", "\r\nConnection: close\r\n", 1);
            }
            Some(Fault::RespondsAs10) => {
                header = header.replacen(
                    "HTTP/1.1 200 OK",
                    "HTTP/1.0 200 OK\r\nConnection: keep-alive",
                    1,
                );
            }
            Some(Fault::Garbles) => header = header.replacen("X-Id", "X-Id\u{1}", 1),
            Some(Fault::Interim) => {
                bytes.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
            }
            Some(Fault::Delays(ms)) => thread::sleep(Duration::from_millis(ms)),
            _ => {}
        }
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(body);
        match fault {
            Some(Fault::ClosesWithinHeader) => bytes.truncate(header.len() / 2),
            Some(Fault::ClosesWithinBody) => bytes.truncate(header.len() + body.len() / 2),
            Some(Fault::SendsMore) => bytes.extend_from_slice(b"more bytes\r\n\r\n"),
            _ => {}
        }
        if is_shared && self.plan.miscount == Some(Miscount::SendsTwo) {
            bytes.extend_from_within(..);
        }
        let closes = matches!(
            fault,
            Some(
                Fault::ClosesWithinHeader
                    | Fault::ClosesWithinBody
                    | Fault::ClosesAfter
                    | Fault::AnnouncesClose
            )
        );
        stream.write_all(&bytes).is_ok() && !closes && !request.closes
    }
}

fn draw_fault(random: &mut SeededRandom) -> Fault {
    let (short, long) = (random.between(1, 50), random.between(200, STALL_MS));
    random.choose(&[
        Fault::ClosesBefore,
        Fault::ClosesWithinHeader,
        Fault::ClosesWithinBody,
        Fault::ClosesAfter,
        Fault::AnnouncesClose,
        Fault::AnnouncesClose,
        Fault::Delays(short),
        Fault::Delays(long),
        Fault::Garbles,
        Fault::Interim,
        Fault::SendsMore,
        Fault::RespondsAs10,
    ])
}

/// Takes the first request from `received`, if it is complete.
fn take_request(received: &mut Vec<u8>) -> Option<Request> {
    let end = find_end(received)?;
    let header = String::from_utf8_lossy(&received[..end]).into_owned();
    let length = header.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let whole = end + length.unwrap_or(0);
    if received.len() < whole {
        return None;
    }
    received.drain(..whole);
    let closes = header.contains("\r\nConnection: close\r\n");
    let mut words = header.split(' ').map(str::to_owned);
    Some(Request { method: words.next()?, target: words.next()?, closes })
}
