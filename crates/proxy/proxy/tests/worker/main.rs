//! Tests of workers in the simulator with conditions that no scenario can set: an amount of memory,
//! the mailboxes of another worker, and a client that sends part of a request.
//!
//! The tests are one program, because each test program compiles the worker again.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod file_threads;
mod load_shedding;
mod messages;
mod records;
mod wakes;

use std::sync::Arc;
use std::time::Duration;

use millrace_config::Config;
use millrace_dns::ResolverConfig;
use millrace_engine::{Address, MailboxReceiver, PeerMailboxes};
use millrace_proxy::auth::VerifierHandle;
use millrace_proxy::{Setup, SharedState, Worker, WorkerMessage};
use millrace_sim::{SimDetached, SimEngine, SimWaker, SimWorker, World};
use millrace_splice::Thresholds;

type Message = WorkerMessage<SimDetached>;

const SECOND: Duration = Duration::from_secs(1);

/// A worker of the proxy, as the simulator runs it.
struct Running(Worker<SimEngine>);

impl Running {
    fn new(world: &World, memory: usize, setup: Setup<SimEngine>) -> Self {
        Self(Worker::new(world.engine(memory), setup).unwrap())
    }
}

impl SimWorker for Running {
    fn run_turn(&mut self) -> bool {
        self.0.run_turn()
    }
}

/// The mailboxes of a worker: from the main thread, and to and from the other workers.
type Mailboxes = (MailboxReceiver<Message, SimWaker>, PeerMailboxes<Message, SimWaker>);

/// Describes a worker that listens on the addresses, each with the number of its listener.
fn setup(
    world: &World,
    shared: &Arc<SharedState>,
    config: Config,
    index: usize,
    addresses: &[(u16, Address)],
    (inbox, mail): Mailboxes,
) -> Setup<SimEngine> {
    let listener = |(number, address): &(u16, Address)| (*number, world.listen(address));
    Setup {
        config: Arc::new(config),
        index,
        listeners: addresses.iter().map(listener).collect(),
        inbox,
        mail,
        shared: shared.clone(),
        names: Arc::new(ResolverConfig::parse(b"", b"", &[])),
        verifier: VerifierHandle::unavailable(),
        descriptors: 100,
        thresholds: Thresholds::FIXED,
    }
}

/// Creates the state that `workers` workers share, without a cache.
fn shared_state(workers: usize) -> Arc<SharedState> {
    SharedState::new(workers, "millrace-test".to_owned(), None, None, |_| {}, None)
}

fn local(port: u16) -> Address {
    Address::Tcp(([127, 0, 0, 1], port).into())
}
