//! Load shedding that needs a worker with a chosen amount of memory.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::Duration;

use millrace_config::from_arguments;
use millrace_dns::ResolverConfig;
use millrace_engine::{Address, MailboxSender, mailbox, mailbox_mesh};
use millrace_proxy::{Setup, SharedState, Worker, WorkerMessage};
use millrace_sim::{
    ActorSocket, Faults, RunOutcome, SimDetached, SimEngine, SimWaker, SimWorker, World, run,
};
use millrace_splice::Thresholds;

struct Running(Worker<SimEngine>);

impl SimWorker for Running {
    fn run_turn(&mut self) -> bool {
        self.0.run_turn()
    }
}

/// A worker with a fixed amount of memory, and its world.
struct Fixture {
    world: World,
    worker: Running,
    shared: Arc<SharedState>,
    outbox: MailboxSender<WorkerMessage<SimDetached>, SimWaker>,
}

impl Fixture {
    fn new(memory: usize) -> Self {
        let world = World::new(1, Faults::None);
        let words = ["forward", "--listen", PROXY, "--workers", "1", "--access-log", "off"];
        let shared = SharedState::new(1, "millrace-test".to_owned(), None, None, |_| {}, None);
        let (outbox, inbox) = mailbox(4);
        let setup = Setup {
            config: Arc::new(from_arguments(words).unwrap()),
            index: 0,
            listeners: vec![(0, world.listen(&proxy()))],
            inbox,
            mail: mailbox_mesh(1, 4).pop().unwrap(),
            shared: shared.clone(),
            names: Arc::new(ResolverConfig::parse(b"", b"", &[])),
            verifier: millrace_proxy::auth::VerifierHandle::unavailable(),
            descriptors: 100,
            thresholds: Thresholds::FIXED,
        };
        let worker = Running(Worker::new(world.engine(memory), setup).unwrap());
        Self { world, worker, shared, outbox }
    }

    fn run(&mut self, time: Duration) -> RunOutcome {
        run(&self.world, &mut [&mut self.worker], &mut [], time, &mut |_| false)
    }

    fn write(&mut self, client: ActorSocket, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            bytes = &bytes[self.world.write(client, bytes).unwrap()..];
            self.run(Duration::from_millis(1));
        }
    }

    fn clients(&self) -> usize {
        self.worker.0.live_objects()[0]
    }
}

fn proxy() -> Address {
    Address::Tcp(PROXY.parse().unwrap())
}

const PROXY: &str = "127.0.0.1:2001";

/// A drain waits for request headers that have begun. If memory runs short meanwhile, the worker
/// sheds one such client, which frees enough.
#[test]
fn a_draining_worker_that_is_short_of_memory_sheds() {
    let mut fixture = Fixture::new(128 * 1024);
    let clients: Vec<ActorSocket> = (0..4).map(|_| fixture.world.connect(&proxy(), None)).collect();
    for client in &clients {
        fixture.write(*client, b"GET / HTTP/1.1\r\nX-A: ");
    }
    assert!(fixture.outbox.send(WorkerMessage::Drain).is_ok());
    fixture.outbox.flush();
    fixture.run(Duration::from_secs(2));
    assert_eq!(fixture.clients(), 4, "a drain waits for a header that has begun");
    let listeners = &fixture.shared.counters[0].listeners;
    assert_eq!(listeners.get(), 0, "the listeners are closed");
    for client in &clients {
        fixture.write(*client, &[b'a'; 29_000]);
    }
    fixture.run(Duration::from_secs(2));
    assert_eq!(fixture.clients(), 3);
    assert_eq!(fixture.shared.counters[0].connections_shed.get(), 1);
}

/// The worker holds nothing for a client that has sent nothing. If memory is short, that client
/// stays, however long it has been stalled, and a client with held bytes is shed.
#[test]
fn a_client_without_held_memory_is_not_shed_for_memory() {
    let mut fixture = Fixture::new(128 * 1024);
    for _ in 0..2 {
        fixture.world.connect(&proxy(), None);
    }
    fixture.run(Duration::from_secs(8));
    let clients: Vec<ActorSocket> = (0..4).map(|_| fixture.world.connect(&proxy(), None)).collect();
    for client in &clients {
        fixture.write(*client, b"GET / HTTP/1.1\r\nX-A: ");
        fixture.write(*client, &[b'a'; 29_000]);
    }
    fixture.run(Duration::from_secs(2));
    assert_eq!(fixture.shared.counters[0].connections_shed.get(), 1);
    assert_eq!(fixture.clients(), 2 + 3);
}
