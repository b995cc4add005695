//! Load shedding that needs a worker with a chosen amount of memory.

use std::sync::Arc;
use std::time::Duration;

use millrace_config::from_arguments;
use millrace_engine::{MailboxSender, mailbox, mailbox_mesh};
use millrace_proxy::{SharedState, WorkerMessage};
use millrace_sim::{ActorSocket, Faults, RunOutcome, SimWaker, World, run};

use crate::{Message, Running, local, setup, shared_state};

/// A worker with a fixed amount of memory, and its world.
struct Fixture {
    world: World,
    worker: Running,
    shared: Arc<SharedState>,
    outbox: MailboxSender<Message, SimWaker>,
}

impl Fixture {
    fn new(memory: usize) -> Self {
        let world = World::new(1, Faults::None);
        let words = ["forward", "--listen", "127.0.0.1:2001", "--workers", "1"];
        let config = from_arguments(words.into_iter().chain(["--access-log", "off"])).unwrap();
        let shared = shared_state(1);
        let (outbox, inbox) = mailbox(4);
        let mailboxes = (inbox, mailbox_mesh(1, 4).pop().unwrap());
        let setup = setup(&world, &shared, config, 0, &[(0, local(2001))], mailboxes);
        let worker = Running::new(&world, memory, setup);
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

/// A drain waits for request headers that have begun. If memory runs short meanwhile, the worker
/// sheds one such client, which frees enough.
#[test]
fn a_draining_worker_that_is_short_of_memory_sheds() {
    let mut fixture = Fixture::new(128 * 1024);
    let clients: Vec<ActorSocket> =
        (0..4).map(|_| fixture.world.connect(&local(2001), None)).collect();
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
        fixture.world.connect(&local(2001), None);
    }
    fixture.run(Duration::from_secs(8));
    let clients: Vec<ActorSocket> =
        (0..4).map(|_| fixture.world.connect(&local(2001), None)).collect();
    for client in &clients {
        fixture.write(*client, b"GET / HTTP/1.1\r\nX-A: ");
        fixture.write(*client, &[b'a'; 29_000]);
    }
    fixture.run(Duration::from_secs(2));
    assert_eq!(fixture.shared.counters[0].connections_shed.get(), 1);
    assert_eq!(fixture.clients(), 2 + 3);
}
