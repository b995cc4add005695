//! Connections in transit between workers: one that arrives before the configuration with its
//! listener, and one whose receiver ends before it admits the connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_config::{Config, ListenAddress, from_arguments};
use millrace_engine::{
    CompletionEvent, Engine, Fd, MailboxSender, PeerMailboxes, Token, TokenKind, mailbox,
    mailbox_mesh,
};
use millrace_proxy::{HandoverGuard, SharedState, Worker, WorkerMessage};
use millrace_sim::{ActorSocket, Faults, ReadResult, SimEngine, SimWaker, SimWorker, World, run};

use crate::{Message, Running, SECOND, local, setup, shared_state};

/// The other worker, reduced to accepting the connection that the fixture hands over.
struct Donor {
    engine: SimEngine,
    accepted: Option<Fd>,
}

impl SimWorker for Donor {
    fn run_turn(&mut self) -> bool {
        self.engine.submit_and_wait(None);
        while let Some(completion) = self.engine.next_completion() {
            if let CompletionEvent::Accepted(Ok((fd, _))) = completion.event {
                self.accepted = Some(fd);
            }
        }
        self.accepted.is_none()
    }
}

/// A worker, a client whose connection the other worker has accepted, and the worker's mailboxes.
struct Fixture {
    world: World,
    donor: Donor,
    receiver: Running,
    shared: Arc<SharedState>,
    config: Config,
    outbox: MailboxSender<Message, SimWaker>,
    /// The other worker's end of the mailbox, which has to outlive its messages.
    _mail: PeerMailboxes<Message, SimWaker>,
    client: ActorSocket,
}

impl Fixture {
    /// Creates the worker. The connection was accepted by a listener that only the second
    /// configuration has, and the message with it has been sent.
    fn new() -> Self {
        let world = World::new(1, Faults::None);
        let mut engine = world.engine(1 << 20);
        let listener = engine.adopt(world.listen(&local(0))).unwrap();
        engine.accept(&listener, Token::new(TokenKind::Listener, 0, 0));
        let client = world.connect(&engine.listener_address(&listener), None);
        let mut donor = Donor { engine, accepted: None };
        run(&world, &mut [&mut donor], &mut [], SECOND, &mut |_| false);

        let words = ["forward", "--listen", "127.0.0.1:2001", "--workers", "2"];
        let config = from_arguments(words).unwrap();
        let shared = shared_state(2);
        let (outbox, inbox) = mailbox(4);
        let mut mails = mailbox_mesh(2, 4);
        let (mut mail, own) = (mails.pop().unwrap(), mails.pop().unwrap());
        let addresses = [(0, local(2001))];
        let setup = setup(&world, &shared, config.clone(), 0, &addresses, (inbox, own));
        let receiver = Running::new(&world, 1 << 20, setup);
        let socket = donor.engine.detach(donor.accepted.take().unwrap());
        let counted = HandoverGuard::new(&shared.counters[0]);
        let message =
            WorkerMessage::Connection { socket, peer: None, listener: 1, snapshot: 2, counted };
        assert!(mail.send(0, message).is_ok());
        mail.flush();
        Self { world, donor, receiver, shared, config, outbox, _mail: mail, client }
    }

    fn second(&self) -> Config {
        let mut config = Config { number: 2, ..self.config.clone() };
        let mut listener = config.listeners[0].clone();
        listener.number = 1;
        listener.address = ListenAddress::Tcp("127.0.0.1:2002".parse().unwrap());
        config.listeners.push(listener);
        config
    }

    fn run(&mut self) {
        let Self { world, donor, receiver, .. } = self;
        run(world, &mut [donor, receiver], &mut [], SECOND, &mut |_| false);
    }

    /// Checks that the client is served. It gets a refusal, since its request is not one for a
    /// proxy.
    fn expect_response(&mut self) {
        self.world.write(self.client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        self.run();
        let ReadResult::Bytes(response) = self.world.read(self.client, 4096) else {
            panic!("no response")
        };
        assert!(response.starts_with(b"HTTP/1.1 400 "));
    }
}

#[test]
fn a_connection_waits_for_the_configuration_that_has_its_listener() {
    let mut fixture = Fixture::new();
    fixture.run();
    assert_eq!(fixture.receiver.0.live_objects()[0], 0, "its listener is not configured yet");
    assert_eq!(
        fixture.shared.counters[0].handed_over.load(Ordering::Relaxed),
        1,
        "it holds a descriptor"
    );
    let sockets = vec![(1, fixture.world.listen(&local(2002)))];
    let message = WorkerMessage::Configure { config: Arc::new(fixture.second()), sockets };
    assert!(fixture.outbox.send(message).is_ok());
    fixture.outbox.flush();
    fixture.run();
    assert_eq!(fixture.receiver.0.live_objects()[0], 1);
    assert_eq!(fixture.shared.counters[0].handed_over.load(Ordering::Relaxed), 0, "it is admitted");
    fixture.expect_response();
}

#[test]
fn a_replacement_worker_handles_the_unread_messages() {
    for was_taken_out in [true, false] {
        let mut fixture = Fixture::new();
        if was_taken_out {
            fixture.run();
        }
        let config = fixture.second();
        let Fixture { world, receiver, shared, .. } = fixture;
        let salvage = receiver.0.into_salvage();
        assert_eq!(salvage.messages.len(), usize::from(was_taken_out));
        let addresses = [(0, local(2001)), (1, local(2002))];
        let mailboxes = (salvage.inbox, salvage.mail);
        let setup = setup(&world, &shared, config, 0, &addresses, mailboxes);
        let mut successor = Worker::new(world.engine(1 << 20), setup).unwrap();
        successor.adopt_messages(salvage.messages);
        successor.run_turn();
        let counters = &shared.counters[0];
        assert_eq!((successor.live_objects()[0], counters.worker_restarts.get()), (1, 1));
        assert_eq!(shared.counters[0].handed_over.load(Ordering::Relaxed), 0);
    }
}
