//! Threads that have too much work: a body of a file is sent later, and a file that should be
//! compressed is sent as it is.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use iolite::Slab;
use millrace_config::{FolderHandle, FolderRoute, from_arguments};
use millrace_engine::{MailboxSender, Token, mailbox, mailbox_mesh};
use millrace_files::{FileTime, Pool, SimFolder, SimFolderFaults};
use millrace_http_cache::HashKey;
use millrace_proxy::{SharedState, WorkerMessage};
use millrace_sim::{ActorSocket, Faults, ReadResult, SimWaker, World, run};
use millrace_store::{Bounds, Cache, WaiterId, Waker};

use crate::{Message, Running, local, setup};

const LONG_BYTES: usize = 600_000;
const TEXT_BYTES: usize = 100_000;

/// The exchanges that a thread has woken.
#[derive(Debug, Default)]
struct Wakes(Mutex<Vec<WaiterId>>);

impl Waker for Wakes {
    fn wake(&self, waiter: WaiterId) {
        self.0.lock().unwrap().push(waiter);
    }
}

/// A worker that serves a folder. The test does the work of the threads.
struct Fixture {
    world: World,
    worker: Running,
    folder: SimFolder,
    shared: Arc<SharedState>,
    cache: Arc<Cache>,
    wakes: Arc<Wakes>,
    outbox: MailboxSender<Message, SimWaker>,
}

impl Fixture {
    fn new(pool: Pool) -> Self {
        let (world, folder) = (World::new(1, Faults::None), SimFolder::new(1));
        let day = Duration::from_secs(86_400);
        let seconds = (world.time_of_day() - day).as_secs() as i64;
        folder.set_now(FileTime { seconds, nanoseconds: 0 });
        folder.write(b"long", &long());
        folder.write(b"a.css", &text());
        let words = ["serve", "/sim/site", "--listen", "127.0.0.1:2001", "--workers", "1"];
        // The timer of a client is as short as the shortest limit of a client, here `body_ms`.
        let limits = ["file_memory_bytes=200000", "response_ms=1000", "body_ms=1000"];
        let limits = limits.into_iter().flat_map(|limit| ["--limit", limit]);
        let words = words.into_iter().chain(["--access-log", "off"]).chain(limits);
        let mut config = from_arguments(words).unwrap();
        for route in config.services.iter_mut().flat_map(|service| service.routes_mut()) {
            let route = route.folder.as_mut().unwrap();
            let handle = Some(FolderHandle(Arc::new(folder.clone())));
            *route = Arc::new(FolderRoute { folder: handle, ..FolderRoute::clone(route) });
        }
        let bytes = 4 << 20;
        let bounds = Bounds { bytes, object_bytes: 1 << 20, variants: 4, prefaults: true };
        let slab = Slab::on_heap(bytes as usize).unwrap();
        let cache = Cache::new(slab, HashKey::new([7; 16]), bounds);
        let name = "millrace-test".to_owned();
        let shared = SharedState::new(1, name, None, Some(cache.clone()), |_| {}, None);
        let wakes = Arc::new(Wakes::default());
        shared.files.connect(pool, wakes.clone());
        let (outbox, inbox) = mailbox(4);
        let mailboxes = (inbox, mailbox_mesh(1, 4).pop().unwrap());
        let setup = setup(&world, &shared, config, 0, &[(0, local(2001))], mailboxes);
        let worker = Running::new(&world, 1 << 20, setup);
        Self { world, worker, folder, shared, cache, wakes, outbox }
    }

    fn run(&mut self, ms: u64) {
        let time = Duration::from_millis(ms);
        run(&self.world, &mut [&mut self.worker], &mut [], time, &mut |_| false);
    }

    /// Sends a request on a new connection.
    fn request(&mut self, path: &str) -> ActorSocket {
        let client = self.world.connect(&local(2001), None);
        self.run(10);
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
        assert_eq!(self.world.write(client, request.as_bytes()), Ok(request.len()));
        self.run(10);
        client
    }

    /// Does one job of the threads. Returns `false` if there is none.
    fn work(&mut self) -> bool {
        let has_worked = self.shared.files.run_once();
        for waiter in std::mem::take(&mut *self.wakes.0.lock().unwrap()) {
            let message = WorkerMessage::Wake(Token::from_bits(waiter.token));
            assert!(self.outbox.send(message).is_ok());
        }
        self.outbox.flush();
        has_worked
    }

    /// Moves bytes that have arrived at a client to `received`. Returns whether the connection has
    /// ended.
    fn read(&self, client: ActorSocket, received: &mut Vec<u8>) -> bool {
        loop {
            match self.world.read(client, 1 << 20) {
                ReadResult::Bytes(bytes) => received.extend_from_slice(&bytes),
                ReadResult::Nothing => return false,
                ReadResult::End | ReadResult::Failed(_) => return true,
            }
        }
    }

    /// Requests the long file while every read has to wait for a disk. Its header is sent, but the
    /// queue has no place for the first read of the body.
    fn request_refused(&mut self) -> ActorSocket {
        self.folder.set_faults(SimFolderFaults { waits: 1, ..SimFolderFaults::default() });
        let client = self.request("/long");
        assert!(self.work(), "a thread finds the file");
        self.shared.files.drop_later(());
        self.run(300);
        client
    }
}

fn long() -> Vec<u8> {
    (0..LONG_BYTES).map(|at| (at % 251) as u8).collect()
}

fn text() -> Vec<u8> {
    b"text ".repeat(TEXT_BYTES / 5)
}

/// Returns the header and the body of a response.
fn split(response: &[u8]) -> (&str, &[u8]) {
    let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a header") + 4;
    (std::str::from_utf8(&response[..end]).unwrap(), &response[end..])
}

#[test]
fn a_body_waits_while_the_threads_have_too_much_work() {
    let mut fixture = Fixture::new(Pool::new(0, 1, 1));
    let client = fixture.request_refused();
    let mut received = Vec::new();
    assert!(!fixture.read(client, &mut received));
    let (header, body) = split(&received);
    assert!(header.starts_with("HTTP/1.1 200 ") && body.is_empty(), "{header}");
    let length = received.len() + LONG_BYTES;
    for turn in 0..200 {
        fixture.work();
        if turn % 3 == 0 {
            // Other work takes the place in the queue.
            fixture.shared.files.drop_later(());
        }
        fixture.run(110);
        assert!(!fixture.read(client, &mut received), "after {} bytes", received.len());
        if received.len() == length {
            break;
        }
    }
    assert!(split(&received).1 == long(), "{} bytes", received.len());
}

#[test]
fn a_body_does_not_wait_for_ever() {
    let mut fixture = Fixture::new(Pool::new(0, 1, 1));
    let client = fixture.request_refused();
    let mut received = Vec::new();
    fixture.run(400);
    assert!(!fixture.read(client, &mut received));
    fixture.run(2000);
    assert!(fixture.read(client, &mut received), "the wait was longer than response_ms");
    assert!(split(&received).1.is_empty());
    assert!(fixture.work() && !fixture.work(), "the queue has only the other work");
}

#[test]
fn a_file_is_sent_as_it_is_if_too_many_wait_for_compression() {
    let mut fixture = Fixture::new(Pool::new(0, 9, 0));
    let client = fixture.request("/a.css");
    fixture.run(100);
    let mut received = Vec::new();
    assert!(!fixture.read(client, &mut received));
    let (header, body) = split(&received);
    assert!(!header.contains("Content-Encoding") && body == text(), "{header}");
    assert!(!fixture.work(), "no thread was needed");
}

#[test]
fn compression_that_takes_too_long_is_skipped() {
    let mut fixture = Fixture::new(Pool::new(0, 9, 1));
    let client = fixture.request("/a.css");
    let mut received = Vec::new();
    fixture.run(500);
    assert!(!fixture.read(client, &mut received) && received.is_empty(), "it waits for a thread");
    fixture.run(1000);
    assert!(!fixture.read(client, &mut received));
    let (header, body) = split(&received);
    assert!(!header.contains("Content-Encoding") && body == text(), "{header}");
    // No exchange awaits the result.
    assert!(fixture.work() && !fixture.work());
    assert_eq!(fixture.cache.clear().objects, 0);
    // A later request begins again.
    let (client, mut received) = (fixture.request("/a.css"), Vec::new());
    assert!(fixture.work());
    fixture.run(100);
    assert!(!fixture.read(client, &mut received));
    let (header, body) = split(&received);
    assert!(header.contains("Content-Encoding: gzip"), "{header}");
    assert!(body.len() < TEXT_BYTES / 10);
}
