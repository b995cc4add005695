//! The simulated engine under a relay: bytes come back as sent, nothing leaks, and runs repeat
//! exactly.

mod relay;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millrace_engine::{Address, Engine, Instant, Wake};
use millrace_sim::{
    Actor, ActorSocket, Faults, ReadResult, RunOutcome, SimEngine, SimWaker, SimWorker, World,
    WorldPlan, run,
};
use relay::{How, Relay};

struct Worker(Relay<SimEngine>);

impl SimWorker for Worker {
    fn run_turn(&mut self) -> bool {
        self.0.turn()
    }
}

/// Sends back the bytes of every connection.
struct Echo {
    listener: ActorSocket,
    open: Vec<(ActorSocket, Vec<u8>, bool)>,
}

impl Actor for Echo {
    fn step(&mut self, world: &World) -> Option<Instant> {
        while let Some((socket, _)) = world.accept(self.listener) {
            self.open.push((socket, Vec::new(), false));
        }
        self.open.retain_mut(|(socket, pending, ended)| {
            let failed = loop {
                match world.read(*socket, 1000) {
                    ReadResult::Bytes(bytes) => pending.extend(bytes),
                    ReadResult::End => {
                        *ended = true;
                        break false;
                    }
                    ReadResult::Failed(_) => break true,
                    ReadResult::Nothing => break false,
                }
            };
            let Ok(count) = world.write(*socket, pending) else {
                world.close(*socket);
                return false;
            };
            pending.drain(..count);
            let over = failed || (*ended && pending.is_empty());
            if over {
                world.close(*socket);
            }
            !over
        });
        None
    }
}

/// Sends bytes, shuts down its sending direction, and reads to the end.
struct Client {
    proxy: Address,
    socket: Option<ActorSocket>,
    bytes: Vec<u8>,
    sent: usize,
    finished: bool,
    got: Vec<u8>,
    /// Whether the connection ended in order; `None` while it is open.
    ended: Option<bool>,
}

impl Client {
    fn new(proxy: &Address, length: usize, salt: usize) -> Self {
        let bytes = (0..length).map(|at| (at * 31 + at / 251 + salt) as u8).collect();
        Self {
            proxy: proxy.clone(),
            socket: None,
            bytes,
            sent: 0,
            finished: false,
            got: Vec::new(),
            ended: None,
        }
    }

    fn end(&mut self, world: &World, socket: ActorSocket, in_order: bool) {
        world.close(socket);
        self.ended = Some(in_order);
    }
}

impl Actor for Client {
    fn step(&mut self, world: &World) -> Option<Instant> {
        if self.ended.is_none() {
            self.advance(world);
        }
        None
    }
}

impl Client {
    fn advance(&mut self, world: &World) {
        let socket = *self.socket.get_or_insert_with(|| world.connect(&self.proxy, None));
        match world.connected(socket) {
            None => return,
            Some(Err(_)) => return self.end(world, socket, false),
            Some(Ok(())) => {}
        }
        if !self.finished {
            match world.write(socket, &self.bytes[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(_) => return self.end(world, socket, false),
            }
            if self.sent == self.bytes.len() {
                world.shutdown_write(socket);
                self.finished = true;
            }
        }
        loop {
            match world.read(socket, 1000) {
                ReadResult::Bytes(bytes) => self.got.extend(bytes),
                ReadResult::End => return self.end(world, socket, true),
                ReadResult::Failed(_) => return self.end(world, socket, false),
                ReadResult::Nothing => return,
            }
        }
    }
}

/// Relays five clients to an echo server in one world, checks their bytes, and returns the hash of
/// the trace.
fn echo_through_relay(seed: u64, faults: Faults, how: How) -> u64 {
    let world = World::new(seed, faults);
    // The relay has no deadlines, and relies on the whole contract.
    world.set_plan(WorldPlan { vanish: 0, stale: 0, ..world.plan() });
    let origin = world.actor_listen(&Address::Tcp("127.0.0.1:0".parse().expect("an address")));
    let mut echo = Echo { listener: origin, open: Vec::new() };
    let budget = if seed.is_multiple_of(3) { 1000 } else { 1_000_000 };
    let mut engine = world.engine(budget);
    let listener = engine
        .adopt(world.listen(&Address::Tcp("[::1]:0".parse().expect("an address"))))
        .expect("not full");
    let proxy = engine.listener_address(&listener);
    let (waker, stopped) = (engine.waker(), Arc::new(AtomicBool::new(false)));
    let mut worker =
        Worker(Relay::new(engine, listener, world.local_address(origin), how, stopped.clone()));
    let mut clients: Vec<Client> =
        (0..5).map(|index| Client::new(&proxy, [0, 1, 700, 5000, 70_000][index], index)).collect();
    {
        let mut stopper = Stopper { stopped: stopped.clone(), waker };
        let mut actors: Vec<&mut dyn Actor> = vec![&mut echo];
        actors.extend(clients.iter_mut().map(|client| client as &mut dyn Actor));
        actors.push(&mut stopper);
        let outcome =
            run(&world, &mut [&mut worker], &mut actors, Duration::from_secs(900), &mut |_| false);
        assert_eq!(outcome, RunOutcome::Done, "seed {seed} {faults:?}:\n{}", world.trace());
    }
    drop(worker);
    let fails = |client: &Client| {
        let whole = client.got == client.bytes && client.ended == Some(true);
        let prefix = client.bytes.starts_with(&client.got);
        !(whole || (faults == Faults::Hostile && prefix && client.ended != Some(true)))
    };
    if let Some(index) = clients.iter().position(fails) {
        panic!("seed {seed} {faults:?}: client {index} got other bytes\n{}", world.trace());
    }
    assert_eq!(world.leaks(), [""; 0], "seed {seed} {faults:?}:\n{}", world.trace());
    world.trace_hash()
}

/// Stops the relay after ten minutes. The relay then accepts no connection, and ends when the last
/// pair is closed.
struct Stopper {
    stopped: Arc<AtomicBool>,
    waker: SimWaker,
}

impl Actor for Stopper {
    fn step(&mut self, world: &World) -> Option<Instant> {
        let after = Instant::from_nanoseconds(600_000_000_000);
        if world.now() < after {
            return Some(after);
        }
        if !self.stopped.swap(true, Ordering::Release) {
            self.waker.wake();
        }
        None
    }
}

#[test]
fn a_relay_in_a_benign_world_returns_every_byte() {
    for seed in 0..60 {
        for how in [How::Copy, How::Splice, How::SendThenSplice, How::Shared, How::File] {
            echo_through_relay(seed, Faults::Benign, how);
            if seed < 3 {
                echo_through_relay(seed, Faults::None, how);
            }
        }
    }
}

#[test]
fn a_relay_in_a_hostile_world_returns_prefixes_and_leaks_nothing() {
    for seed in 0..60 {
        for how in [How::Copy, How::Splice, How::SendThenSplice, How::Shared, How::File] {
            echo_through_relay(seed, Faults::Hostile, how);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in [3, 4] {
        let run = |seed| echo_through_relay(seed, Faults::Hostile, How::Splice);
        assert_eq!(run(seed), run(seed));
        assert_ne!(run(seed), run(seed + 100));
    }
}
