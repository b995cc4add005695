//! A worker that ends while a mailbox is full. Waiters of another worker are woken nevertheless,
//! long before their own deadline.

use std::sync::Arc;
use std::time::Duration;

use iolite::Slab;
use millrace_config::from_arguments;
use millrace_engine::{Instant, MailboxSender, mailbox, mailbox_mesh};
use millrace_http_cache::HashKey;
use millrace_proxy::{Setup, SharedState, WorkerMessage};
use millrace_sim::{
    Actor, ActorSocket, Faults, ReadResult, SimEngine, SimWaker, SimWorker, World, run,
};
use millrace_store::{Bounds, Cache};

use crate::{Mailboxes, Message, Running, SECOND, local};

/// Stands in for a worker that has ended or is stopped.
struct Gone;

impl SimWorker for Gone {
    fn run_turn(&mut self) -> bool {
        false
    }
}

/// An origin that reads requests, and responds to them once `responds` is set.
struct Origin {
    listener: ActorSocket,
    pending: Vec<ActorSocket>,
    open: Vec<ActorSocket>,
    responds: bool,
}

impl Actor for Origin {
    fn step(&mut self, world: &World) -> Option<Instant> {
        while let Some((socket, _)) = world.accept(self.listener) {
            self.open.push(socket);
        }
        let Self { open, pending, .. } = self;
        open.retain(|&socket| match world.read(socket, 4096) {
            ReadResult::Bytes(_) => {
                pending.push(socket);
                true
            }
            ReadResult::Nothing => true,
            ReadResult::End | ReadResult::Failed(_) => {
                pending.retain(|other| *other != socket);
                world.close(socket);
                false
            }
        });
        let pending = if self.responds { std::mem::take(&mut self.pending) } else { Vec::new() };
        for socket in pending {
            let response =
                b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nCache-Control: max-age=60\r\n\r\nok";
            assert_eq!(world.write(socket, response), Ok(response.len()));
        }
        None
    }
}

/// Two workers, with mailboxes for one message between them. A client of the first worker caused a
/// request to the origin, and two clients of the second wait for its response.
struct Fixture {
    world: World,
    first: Running,
    second: Running,
    origin: Origin,
    shared: Arc<SharedState>,
    outbox: MailboxSender<Message, SimWaker>,
    /// The second worker's mailbox, kept open.
    _outbox: MailboxSender<Message, SimWaker>,
    waiting: [ActorSocket; 2],
}

impl Fixture {
    fn new() -> Self {
        let world = World::new(1, Faults::None);
        let origin = Origin {
            listener: world.actor_listen(&local(4000)),
            pending: Vec::new(),
            open: Vec::new(),
            responds: false,
        };
        let mibs = 4 << 20;
        let bounds = Bounds { bytes: mibs, object_bytes: 1 << 20, variants: 4, prefaults: true };
        let slab = Slab::on_heap(mibs as usize).unwrap();
        let cache = Cache::new(slab, HashKey::new([7; 16]), bounds);
        let shared =
            SharedState::new(2, "millrace-test".to_owned(), None, Some(cache), |_| {}, None);
        let mut mails = mailbox_mesh(2, 1).into_iter();
        let mut worker = |index| {
            let (outbox, inbox) = mailbox(4);
            let setup = setup(&world, &shared, index, (inbox, mails.next().unwrap()));
            (Running::new(&world, 1 << 20, setup), outbox)
        };
        let ((first, outbox), (second, _outbox)) = (worker(0), worker(1));
        let waiting = [local(2002), local(2002)].map(|proxy| world.connect(&proxy, None));
        let mut fixture = Self { world, first, second, origin, shared, outbox, _outbox, waiting };
        let leader = fixture.world.connect(&local(2001), None);
        fixture.send_request(leader);
        for client in waiting {
            fixture.send_request(client);
        }
        fixture.run(SECOND);
        assert_eq!(
            fixture.origin.open.len(),
            1,
            "only the first client's request reaches the origin"
        );
        fixture
    }

    fn send_request(&mut self, client: ActorSocket) {
        self.run(Duration::from_millis(10));
        let request = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(self.world.write(client, request), Ok(request.len()));
    }

    fn run(&mut self, time: Duration) {
        let Self { world, first, second, origin, .. } = self;
        run(world, &mut [first, second], &mut [origin], time, &mut |_| false);
    }

    /// Stops the first worker in one turn. It has to wake both clients of the second worker, but
    /// the mailbox has room for one message.
    fn stop_first(&mut self) {
        assert!(self.outbox.send(WorkerMessage::Stop).is_ok());
        self.outbox.flush();
        assert!(!self.first.run_turn(), "it has ended");
    }
}

/// Returns what a client has received.
fn received(world: &World, client: ActorSocket) -> Vec<u8> {
    match world.read(client, 4096) {
        ReadResult::Bytes(bytes) => bytes.to_vec(),
        _ => Vec::new(),
    }
}

/// Describes the worker with this index: a reverse proxy with one of two addresses.
fn setup(
    world: &World,
    shared: &Arc<SharedState>,
    index: u16,
    mailboxes: Mailboxes,
) -> Setup<SimEngine> {
    let words = ["boost", "--origin", "http://127.0.0.1:4000", "--workers", "2"];
    let listeners = ["--listen", "127.0.0.1:2001", "--listen", "127.0.0.1:2002"];
    let config = from_arguments(words.into_iter().chain(listeners)).unwrap();
    let addresses = [(index, local(2001 + index))];
    crate::setup(world, shared, config, index.into(), &addresses, mailboxes)
}

/// One of the waiting exchanges fetches the response now. The other is woken and waits for that
/// fetch.
#[test]
fn a_worker_that_ends_retries_wakes_to_a_full_mailbox() {
    let mut fixture = Fixture::new();
    fixture.stop_first();
    let Fixture { world, first, mut second, mut origin, waiting, .. } = fixture;
    // The mailbox has room for the second message now.
    let milli = Duration::from_millis(1);
    run(&world, &mut [&mut Gone, &mut second], &mut [&mut origin], milli, &mut |_| false);
    let _engine = first.0.finish();
    origin.responds = true;
    run(&world, &mut [&mut Gone, &mut second], &mut [&mut origin], SECOND, &mut |_| false);
    for client in waiting {
        assert!(received(&world, client).ends_with(b"ok"));
    }
}

#[test]
fn a_replacement_worker_retries_wakes_to_a_full_mailbox() {
    let mut fixture = Fixture::new();
    fixture.stop_first();
    let Fixture { world, first, mut second, mut origin, shared, waiting, .. } = fixture;
    let salvage = first.0.into_salvage();
    let setup = setup(&world, &shared, 0, (salvage.inbox, salvage.mail));
    let mut third = Running::new(&world, 1 << 20, setup);
    third.0.adopt_messages(salvage.messages);
    origin.responds = true;
    let mut workers: [&mut dyn SimWorker; 3] = [&mut Gone, &mut second, &mut third];
    run(&world, &mut workers, &mut [&mut origin], SECOND, &mut |_| false);
    for client in waiting {
        assert!(received(&world, client).ends_with(b"ok"));
    }
}
