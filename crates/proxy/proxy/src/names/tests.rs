//! Lookups against scripted name servers in the simulator, and against a real one on loopback.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use millrace_config::limits::Limits;
use millrace_dns::{Found, NameError, Sources};
use millrace_engine::{
    Address, Clock, CompletionEvent, Engine, EngineOptions, EpollEngine, Instant, TokenKind, Wake,
};
use millrace_sim::{
    Actor, ActorSocket, Faults, ReadResult, RunOutcome, SimEngine, SimWorker, World, WorldPlan, run,
};

use super::Resolver;
use messages::{OK, QNAME, answer, record, soa, wire};

#[path = "../../../../http/dns/tests/common/messages.rs"]
mod messages;

/// What a scripted server does about a question.
#[derive(Clone)]
enum Reply {
    Silence,
    /// The whole answer.
    Send(Vec<u8>),
    /// The whole answer, over TCP; over UDP that it is truncated.
    Long(Vec<u8>),
    /// The answer after this many milliseconds.
    Late(u64, Vec<u8>),
    /// So many datagrams that are no answers, then the answer.
    Strays(usize, Vec<u8>),
}

/// A question as a server sees it.
struct Asked<'a> {
    /// In lower case.
    name: &'a str,
    is_v6: bool,
    /// How often this server was asked the same before.
    before: usize,
    message: &'a [u8],
}

impl Asked<'_> {
    /// An answer with addresses of whichever family they are asked in.
    fn addresses(&self, seconds: u32, texts: &[&str]) -> Vec<u8> {
        let parsed = texts.iter().map(|text| text.parse::<IpAddr>().unwrap());
        let records: Vec<_> = parsed
            .filter(|address| address.is_ipv6() == self.is_v6)
            .map(|address| match address {
                IpAddr::V4(v4) => record(&QNAME, 1, seconds, &v4.octets()),
                IpAddr::V6(v6) => record(&QNAME, 28, seconds, &v6.octets()),
            })
            .collect();
        answer(self.message, OK, &records, &[])
    }

    fn failed(&self) -> Vec<u8> {
        answer(self.message, OK | 2, &[], &[])
    }

    fn not_found(&self) -> Vec<u8> {
        answer(self.message, OK | 3, &[], &[soa(20, 900)])
    }
}

type Script = Box<dyn FnMut(&Asked) -> Reply>;

/// A connection to a scripted server.
struct Served {
    socket: ActorSocket,
    received: Vec<u8>,
    to_send: Vec<u8>,
}

/// A name server in the simulator, over UDP and TCP.
struct Server {
    udp: ActorSocket,
    tcp: ActorSocket,
    connections: Vec<Served>,
    late: Vec<(Instant, SocketAddr, Vec<u8>)>,
    times: BTreeMap<(String, bool), usize>,
    log: Rc<RefCell<Vec<String>>>,
    script: Script,
}

impl Server {
    fn new(world: &World, address: SocketAddr, script: Script) -> Self {
        Self {
            udp: world.actor_udp_socket(address),
            tcp: world.actor_listen(&Address::Tcp(address)),
            connections: Vec::new(),
            late: Vec::new(),
            times: BTreeMap::new(),
            log: Rc::default(),
            script,
        }
    }

    fn reply(&mut self, message: &[u8], transport: &str) -> Reply {
        let question = message[12..].to_ascii_lowercase();
        let (name, rest) = question.split_at(question.len() - 4);
        let mut labels = Vec::new();
        let mut at = 0;
        while name[at] != 0 {
            let end = at + 1 + usize::from(name[at]);
            labels.push(std::str::from_utf8(&name[at + 1..end]).unwrap());
            at = end;
        }
        let (name, is_v6) = (labels.join("."), rest[1] == 28);
        let times = self.times.entry((name.clone(), is_v6)).or_default();
        let before = std::mem::replace(times, *times + 1);
        let family = if is_v6 { 6 } else { 4 };
        self.log.borrow_mut().push(format!("{name} {family} {transport}"));
        (self.script)(&Asked { name: &name, is_v6, before, message })
    }

    fn answer_datagram(&mut self, world: &World, from: SocketAddr, message: &[u8]) {
        match self.reply(message, "udp") {
            Reply::Silence => {}
            Reply::Send(bytes) => world.send_to(self.udp, from, &bytes),
            Reply::Long(_) => {
                world.send_to(self.udp, from, &answer(message, OK | 0x200, &[], &[]));
            }
            Reply::Late(milliseconds, bytes) => {
                let when = world.now() + Duration::from_millis(milliseconds);
                self.late.push((when, from, bytes));
            }
            Reply::Strays(count, bytes) => {
                let mut stray = bytes.clone();
                stray[0] ^= 1;
                for _ in 0..count {
                    world.send_to(self.udp, from, &stray);
                }
                world.send_to(self.udp, from, &bytes);
            }
        }
    }

    fn serve_connections(&mut self, world: &World) {
        while let Some((socket, _)) = world.accept(self.tcp) {
            self.connections.push(Served { socket, received: Vec::new(), to_send: Vec::new() });
        }
        for mut served in std::mem::take(&mut self.connections) {
            if self.serve(world, &mut served) {
                self.connections.push(served);
            } else {
                world.close(served.socket);
            }
        }
    }

    /// False when the connection is to be closed.
    fn serve(&mut self, world: &World, served: &mut Served) -> bool {
        match world.read(served.socket, 65536) {
            ReadResult::Bytes(bytes) => served.received.extend(bytes),
            ReadResult::Nothing => {}
            ReadResult::End | ReadResult::Failed(_) => return false,
        }
        if let [high, low, rest @ ..] = &served.received[..]
            && rest.len() == usize::from(u16::from_be_bytes([*high, *low]))
        {
            let message = served.received.split_off(2);
            served.received.clear();
            if let Reply::Long(bytes) | Reply::Send(bytes) = self.reply(&message, "tcp") {
                served.to_send.extend((bytes.len() as u16).to_be_bytes());
                served.to_send.extend(bytes);
            }
        }
        while !served.to_send.is_empty() {
            match world.write(served.socket, &served.to_send) {
                Ok(0) => break,
                Ok(written) => served.to_send.drain(..written),
                Err(_) => return false,
            };
        }
        true
    }
}

impl Actor for Server {
    fn step(&mut self, world: &World) -> Option<Instant> {
        while let Some((from, message)) = world.receive_from(self.udp) {
            self.answer_datagram(world, from, &message);
        }
        self.serve_connections(world);
        let now = world.now();
        for (_, to, bytes) in self.late.extract_if(.., |(when, ..)| *when <= now) {
            world.send_to(self.udp, to, &bytes);
        }
        self.late.iter().map(|(when, ..)| *when).min()
    }
}

/// A worker that does nothing but look names up.
struct Worker {
    engine: SimEngine,
    names: Resolver<u32>,
    /// To be looked up in the next turn.
    wanted: Vec<(&'static str, u32)>,
    results: BTreeMap<u32, (Instant, Found)>,
    finished: Rc<Cell<usize>>,
}

impl SimWorker for Worker {
    fn run_turn(&mut self) -> bool {
        self.engine.submit_and_wait(self.names.next_deadline());
        while let Some(completion) = self.engine.next_completion() {
            match completion.event {
                CompletionEvent::Woken => {}
                event => self.names.handle(&mut self.engine, completion.token, event),
            }
        }
        let now = self.engine.now();
        self.names.handle_deadlines(&mut self.engine, now);
        for (name, waiter) in std::mem::take(&mut self.wanted) {
            match self.names.lookup(&mut self.engine, name.as_bytes(), waiter) {
                Poll::Pending => {}
                Poll::Ready(found) => self.finish(waiter, found),
            }
        }
        while let Some((waiter, found)) = self.names.poll_finished() {
            self.finish(waiter, found);
        }
        true
    }
}

impl Worker {
    fn finish(&mut self, waiter: u32, found: Found) {
        let before = self.results.insert(waiter, (self.engine.now(), found));
        assert!(before.is_none(), "a waiter gets one result");
        self.finished.set(self.results.len());
    }
}

const FIRST: &str = "192.0.2.53:53";
const SECOND: &str = "192.0.2.54:53";

/// A world with a worker and one or two name servers.
struct Scene {
    world: World,
    worker: Worker,
    servers: Vec<Server>,
}

impl Scene {
    fn new(seed: u64, faults: Faults, resolv: &str, scripts: Vec<Script>) -> Self {
        let world = World::new(seed, faults);
        let addresses = [FIRST, SECOND].map(|text| text.parse::<SocketAddr>().unwrap());
        let addresses = &addresses[..scripts.len()];
        let sources = Sources::parse(b"10.0.0.1 known", resolv.as_bytes(), addresses);
        let engine = world.engine(1 << 20);
        let names = Resolver::new(Arc::new(sources), &Limits::default(), engine.now());
        let servers = addresses
            .iter()
            .zip(scripts)
            .map(|(address, script)| Server::new(&world, *address, script))
            .collect();
        let worker = Worker {
            engine,
            names,
            wanted: Vec::new(),
            results: BTreeMap::new(),
            finished: Rc::default(),
        };
        Self { world, worker, servers }
    }

    /// One server on a kind network.
    fn with(script: impl FnMut(&Asked) -> Reply + 'static) -> Self {
        Self::new(1, Faults::None, "", vec![Box::new(script)])
    }

    /// Looks names up at once and waits for all results. Gives how long that took.
    fn look_up(&mut self, wanted: &[(&'static str, u32)]) -> Duration {
        let begin = self.world.now();
        let results = self.worker.results.len() + wanted.len();
        self.worker.wanted.extend(wanted);
        let finished = self.worker.finished.clone();
        let ended = self.run(Duration::from_secs(60), &mut |_| finished.get() == results);
        assert_eq!(ended, RunOutcome::Done, "{}", self.world.trace());
        self.world.now().since(begin)
    }

    fn pass(&mut self, time: Duration) {
        self.run(time, &mut |_| false);
        // A world where nothing happens stands still: something has to, for its clock to move.
        let target = self.world.now() + time;
        let mut alarm = Alarm(target);
        let mut workers: [&mut dyn SimWorker; 1] = [&mut self.worker];
        run(&self.world, &mut workers, &mut [&mut alarm], time * 2, &mut |world| {
            world.now() >= target
        });
    }

    fn run(&mut self, limit: Duration, done: &mut dyn FnMut(&World) -> bool) -> RunOutcome {
        self.worker.engine.waker().wake();
        let mut actors: Vec<&mut dyn Actor> =
            self.servers.iter_mut().map(|server| server as &mut dyn Actor).collect();
        run(&self.world, &mut [&mut self.worker], &mut actors, limit, done)
    }

    fn result(&self, waiter: u32) -> &Found {
        &self.worker.results[&waiter].1
    }

    /// What the server was asked since the last call, in order of text.
    fn asked(&self, server: usize) -> Vec<String> {
        let mut asked = self.servers[server].log.take();
        asked.sort();
        asked
    }

    /// Ends the worker, and looks for what it left.
    fn end(mut self) {
        self.worker.names.shut_down(&mut self.worker.engine);
        assert_eq!((self.worker.names.under_way(), self.worker.names.next_deadline()), (0, None));
        drop(self.worker);
        assert_eq!(self.world.leaks(), Vec::<String>::new());
    }
}

/// Somebody who is there at an instant.
struct Alarm(Instant);

impl Actor for Alarm {
    fn step(&mut self, world: &World) -> Option<Instant> {
        (world.now() < self.0).then_some(self.0)
    }
}

fn found(texts: &[&str]) -> Found {
    Ok(texts.iter().map(|text| text.parse::<IpAddr>().unwrap()).collect())
}

const BOTH: [&str; 3] = ["192.0.2.1", "192.0.2.2", "2001:db8::1"];
const BOTH_ORDERED: [&str; 3] = ["2001:db8::1", "192.0.2.1", "192.0.2.2"];

#[test]
fn lookups_of_one_name_are_one_and_are_remembered_for_their_time() {
    let mut scene = Scene::with(|asked| Reply::Send(asked.addresses(30, &BOTH)));
    scene.look_up(&[("www.example", 1), ("WWW.Example", 2)]);
    assert_eq!(scene.result(1), &found(&BOTH_ORDERED));
    assert_eq!(scene.result(2), scene.result(1));
    assert_eq!(scene.asked(0), ["www.example 4 udp", "www.example 6 udp"]);

    scene.pass(Duration::from_secs(14));
    scene.look_up(&[("www.example", 3)]);
    assert_eq!(scene.result(3), scene.result(1));
    assert_eq!(scene.asked(0).len(), 0, "remembered");

    scene.pass(Duration::from_secs(31));
    scene.look_up(&[("www.example", 4)]);
    assert_eq!(scene.asked(0).len(), 2, "asked again when its time was over");
    scene.end();
}

#[test]
fn some_names_are_nobodys_business() {
    let mut scene = Scene::with(|_| Reply::Silence);
    scene.look_up(&[
        ("known", 1),
        ("a.localhost", 2),
        ("a.invalid", 3),
        ("a.onion.", 4),
        ("a..b", 5),
        ("127.1", 6),
    ]);
    assert_eq!(scene.result(1), &found(&["10.0.0.1"]));
    assert_eq!(scene.result(2), &found(&["::1", "127.0.0.1"]));
    assert_eq!(scene.result(3), &Err(NameError::NotFound));
    assert_eq!(scene.result(4), &Err(NameError::NotFound));
    assert_eq!(scene.result(5), &Err(NameError::Invalid));
    assert_eq!(scene.result(6), &Err(NameError::Invalid));
    assert_eq!(scene.asked(0).len(), 0);
    scene.end();
}

#[test]
fn the_search_list_is_gone_through_and_absence_is_remembered() {
    let script = |asked: &Asked| match asked.name {
        "host.b.example" => Reply::Send(asked.addresses(60, &["192.0.2.1"])),
        "bare" => Reply::Send(asked.addresses(60, &[])),
        _ => Reply::Send(asked.not_found()),
    };
    let resolv = "search a.example b.example";
    let mut scene = Scene::new(1, Faults::None, resolv, vec![Box::new(script)]);
    scene.look_up(&[("host", 1)]);
    assert_eq!(scene.result(1), &found(&["192.0.2.1"]));
    assert_eq!(
        scene.asked(0),
        [
            "host.a.example 4 udp",
            "host.a.example 6 udp",
            "host.b.example 4 udp",
            "host.b.example 6 udp"
        ]
    );
    scene.look_up(&[("bare", 2), ("bare.", 3), ("gone.example", 4)]);
    assert_eq!(scene.result(2), &Err(NameError::NoAddress));
    assert_eq!(scene.result(3), &Err(NameError::NoAddress));
    assert_eq!(scene.result(4), &Err(NameError::NotFound));
    assert_eq!(scene.asked(0).len(), 6 + 2 + 6);
    scene.look_up(&[("gone.example", 5)]);
    assert_eq!(scene.result(5), &Err(NameError::NotFound));
    assert_eq!(scene.asked(0).len(), 0, "absence is remembered");
    scene.pass(Duration::from_secs(21));
    scene.look_up(&[("gone.example", 6)]);
    assert_eq!(scene.asked(0).len(), 6, "as long as the zone says");
    scene.end();
}

#[test]
fn a_lost_question_is_asked_again_and_of_the_next_server() {
    let lost = |asked: &Asked| match asked.before {
        0 => Reply::Silence,
        _ => Reply::Send(asked.addresses(60, &BOTH)),
    };
    let mut scene = Scene::with(lost);
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &found(&BOTH_ORDERED));
    assert!(took >= Duration::from_millis(1250) && took < Duration::from_millis(1300), "{took:?}");
    assert_eq!(scene.asked(0).len(), 4);
    scene.end();

    let there = |asked: &Asked| Reply::Send(asked.addresses(60, &BOTH));
    let scripts: Vec<Script> = vec![Box::new(|_| Reply::Silence), Box::new(there)];
    let mut scene = Scene::new(1, Faults::None, "options timeout:1", scripts);
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &found(&BOTH_ORDERED));
    assert!(took >= Duration::from_secs(1) && took < Duration::from_millis(1050), "{took:?}");
    assert_eq!((scene.asked(0).len(), scene.asked(1).len()), (2, 2));
    scene.end();
}

#[test]
fn silence_ends_with_the_time_of_the_lookup() {
    let mut scene = Scene::with(|_| Reply::Silence);
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &Err(NameError::TimedOut));
    assert!(took >= Duration::from_secs(5) && took < Duration::from_millis(5050), "{took:?}");
    assert_eq!(scene.asked(0).len(), 8, "four tries each");
    scene.end();
}

#[test]
fn a_server_that_is_always_slow_is_heard_until_the_lookup_ends() {
    // Each answer comes long after its try has ended: that to the first is the first to come.
    let mut scene = Scene::with(|asked| Reply::Late(4000, asked.addresses(60, &BOTH)));
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &found(&BOTH_ORDERED));
    assert!(took >= Duration::from_secs(4) && took < Duration::from_millis(4050), "{took:?}");
    assert_eq!(scene.asked(0).len(), 8, "it was asked again meanwhile");
    scene.end();

    let mut scene = Scene::with(|asked| Reply::Late(5100, asked.addresses(60, &BOTH)));
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &Err(NameError::TimedOut));
    assert!(took < Duration::from_millis(5050), "{took:?}");
    scene.end();
}

#[test]
fn a_failing_server_is_left_for_the_next_at_once() {
    let failing = || -> Script { Box::new(|asked| Reply::Send(asked.failed())) };
    let there = |asked: &Asked| Reply::Send(asked.addresses(60, &BOTH));
    let mut scene = Scene::new(1, Faults::None, "", vec![failing(), Box::new(there)]);
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &found(&BOTH_ORDERED));
    assert!(took < Duration::from_millis(50), "{took:?}");
    scene.end();

    let mut scene = Scene::new(1, Faults::None, "search example", vec![failing(), failing()]);
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &Err(NameError::ServerFailed));
    assert!(took < Duration::from_millis(50), "{took:?}");
    assert_eq!((scene.asked(0).len(), scene.asked(1).len()), (2, 2), "once each, no search list");
    scene.look_up(&[("www.example", 2)]);
    assert_eq!(scene.asked(0).len(), 0, "remembered for a second");
    scene.pass(Duration::from_secs(1));
    scene.look_up(&[("www.example", 3)]);
    assert_eq!(scene.asked(0).len(), 2);
    scene.end();
}

#[test]
fn ipv4_does_not_wait_for_ipv6_for_long_but_both_are_remembered() {
    let mut scene = Scene::with(|asked| match asked.is_v6 {
        true => Reply::Late(400, asked.addresses(60, &BOTH)),
        false => Reply::Send(asked.addresses(60, &BOTH)),
    });
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &found(&["192.0.2.1", "192.0.2.2"]));
    assert!(took >= Duration::from_millis(50) && took < Duration::from_millis(80), "{took:?}");
    assert_eq!(scene.worker.names.under_way(), 1);
    assert_eq!(scene.look_up(&[("www.example", 2)]).as_millis(), 0);
    assert_eq!(scene.result(2), scene.result(1), "who comes now does not wait either");
    scene.pass(Duration::from_secs(1));
    scene.look_up(&[("www.example", 3)]);
    assert_eq!(scene.result(3), &found(&BOTH_ORDERED));
    assert_eq!(scene.asked(0).len(), 2);
    scene.end();
}

#[test]
fn ipv6_waits_for_ipv4() {
    let mut scene = Scene::with(|asked| match asked.is_v6 {
        true => Reply::Send(asked.addresses(60, &BOTH)),
        false => Reply::Late(400, asked.addresses(60, &BOTH)),
    });
    scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &found(&BOTH_ORDERED));
    scene.end();
}

#[test]
fn a_long_answer_is_fetched_over_tcp_in_whatever_pieces() {
    for seed in 0..50 {
        let script = |asked: &Asked| {
            let records: Vec<_> = (0..60u8)
                .map(|last| record(&wire("www.example"), 1, 60, &[192, 0, 2, last]))
                .collect();
            Reply::Long(match asked.is_v6 {
                true => asked.addresses(60, &BOTH),
                false => answer(asked.message, OK, &records, &[]),
            })
        };
        let faults = if seed == 0 { Faults::None } else { Faults::Benign };
        let mut scene = Scene::new(seed, faults, "", vec![Box::new(script)]);
        // A SYN is sent again later than IPv6 is waited for.
        scene.world.set_plan(WorldPlan { syn_loss: 0, ..scene.world.plan() });
        // In some of these worlds every byte takes milliseconds.
        let server = [FIRST.parse().unwrap()];
        let sources = Sources::parse(b"", b"options timeout:30", &server);
        let limits = Limits { name_ms: 120_000, ..Limits::default() };
        scene.worker.names = Resolver::new(Arc::new(sources), &limits, Instant::default());
        scene.look_up(&[("www.example", 1)]);
        let addresses = scene.result(1).clone().unwrap();
        assert_eq!((addresses.len(), addresses[0]), (17, "2001:db8::1".parse().unwrap()));
        assert!(scene.asked(0).iter().any(|line| line.ends_with("tcp")));
        scene.end();
    }
}

#[test]
fn strays_are_passed_over_until_somebody_seems_to_be_guessing() {
    for (strays, expected) in [(8, found(&BOTH_ORDERED)), (500, Err(NameError::ServerFailed))] {
        let mut scene = Scene::with(move |asked| {
            let bytes = asked.addresses(60, &BOTH);
            if asked.before == 0 { Reply::Strays(strays, bytes) } else { Reply::Send(bytes) }
        });
        let took = scene.look_up(&[("www.example", 1)]);
        assert_eq!(scene.result(1), &expected);
        assert!(took < Duration::from_millis(50), "{took:?}");
        scene.end();
    }
}

#[test]
fn who_is_forgotten_gets_nothing_and_what_ends_leaves_nothing() {
    let mut scene = Scene::with(|asked| match asked.before {
        0 => Reply::Silence,
        _ => Reply::Send(asked.addresses(60, &BOTH)),
    });
    scene.worker.wanted = vec![("www.example", 1), ("www.example", 2)];
    scene.run(Duration::from_millis(100), &mut |_| false);
    scene.worker.names.forget(1);
    scene.run(Duration::from_secs(3), &mut |_| false);
    assert_eq!(scene.worker.results.keys().collect::<Vec<_>>(), [&2]);
    scene.worker.wanted = vec![("other.example", 3)];
    scene.run(Duration::from_millis(100), &mut |_| false);
    assert_eq!(scene.worker.names.under_way(), 1);
    scene.end();
}

#[test]
fn lookups_and_descriptors_are_bounded() {
    let mut scene = Scene::with(|_| Reply::Silence);
    let many: Vec<(&'static str, u32)> = (0..=Limits::default().name_lookups as u32)
        .map(|number| (&*format!("host{number}.example").leak(), number))
        .collect();
    scene.look_up(&many);
    let last = many.last().unwrap().1;
    assert_eq!(scene.result(last), &Err(NameError::Overloaded));
    assert!((0..last).all(|waiter| scene.result(waiter) == &Err(NameError::TimedOut)));
    scene.end();

    let mut scene = Scene::with(|asked| Reply::Send(asked.addresses(60, &["192.0.2.1"])));
    scene.world.set_descriptors_max(1);
    scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &Err(NameError::Overloaded));
    scene.world.set_descriptors_max(2);
    scene.look_up(&[("www.example", 2)]);
    assert_eq!(scene.result(2), &found(&["192.0.2.1"]), "that is not remembered");
    scene.end();
}

#[test]
fn every_lookup_ends_in_time_whatever_happens() {
    for seed in 0..300 {
        let script = || -> Script {
            Box::new(|asked| match (asked.name.len() + asked.before) % 4 {
                0 => Reply::Silence,
                1 => Reply::Long(asked.addresses(5, &BOTH)),
                2 => Reply::Strays(3, asked.addresses(5, &BOTH)),
                _ => Reply::Send(asked.not_found()),
            })
        };
        let resolv = "search a.example b.example\noptions ndots:2";
        let mut scene = Scene::new(seed, Faults::Hostile, resolv, vec![script(), script()]);
        // A worker does not answer for the time in which it does not run.
        scene.world.set_plan(WorldPlan {
            slow_turns: 0,
            wake_ns: 0,
            clock_jumps: 0,
            ..scene.world.plan()
        });
        let late = Duration::from_millis(50 + scene.world.plan().jitter_ns * 4 / 1_000_000);
        for round in 0..3 {
            let wanted = ["a.b.example", "www", "x.y", "long-name.example", "www"];
            let wanted: Vec<_> = wanted.into_iter().zip(round * 10..).collect();
            let took = scene.look_up(&wanted);
            assert!(took <= Duration::from_secs(5) + late, "seed {seed}: {took:?}");
            for (_, waiter) in wanted {
                if let Ok(addresses) = scene.result(waiter) {
                    let all = found(&BOTH).unwrap();
                    assert!(!addresses.is_empty(), "seed {seed}");
                    assert!(addresses.iter().all(|address| all.contains(address)), "seed {seed}");
                }
            }
            scene.pass(Duration::from_secs(7));
        }
        scene.end();
    }
}

/// A name server in a thread: truncates over UDP, answers over TCP, one lookup of both families.
fn real_server() -> (SocketAddr, std::thread::JoinHandle<()>) {
    let (udp, tcp) = loop {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()) {
            break (udp, tcp);
        }
    };
    let address = udp.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let mut message = [0; 512];
        for _ in 0..2 {
            let (length, from) = udp.recv_from(&mut message).unwrap();
            let message = &message[..length];
            let is_v6 = message[length - 3] == 28;
            let asked = Asked { name: "", is_v6, before: 0, message };
            let reply = match is_v6 {
                true => answer(message, OK | 0x200, &[], &[]),
                false => asked.addresses(60, &BOTH),
            };
            udp.send_to(&reply, from).unwrap();
        }
        let (mut connection, _) = tcp.accept().unwrap();
        let mut length = [0; 2];
        std::io::Read::read_exact(&mut connection, &mut length).unwrap();
        let message = &mut message[..usize::from(u16::from_be_bytes(length))];
        std::io::Read::read_exact(&mut connection, message).unwrap();
        let reply = Asked { name: "", is_v6: true, before: 0, message }.addresses(60, &BOTH);
        let framed = [&(reply.len() as u16).to_be_bytes(), &reply[..]].concat();
        std::io::Write::write_all(&mut connection, &framed).unwrap();
    });
    (address, server)
}

/// A real engine, and a resolver that asks `server`. Time decides nothing here but how long a
/// failure takes: far longer than any machine is slow.
fn real(server: SocketAddr) -> (EpollEngine, Resolver<u32>) {
    let clock = Clock::new();
    let engine =
        EpollEngine::new(EngineOptions { budget_bytes: 1 << 20, log: None, clock }).unwrap();
    let limits = Limits { name_ms: 600_000, ..Limits::default() };
    let sources = Arc::new(Sources::parse(b"", b"options timeout:30", &[server]));
    let names = Resolver::new(sources, &limits, engine.now());
    (engine, names)
}

fn real_turn(engine: &mut EpollEngine, names: &mut Resolver<u32>) {
    engine.submit_and_wait(names.next_deadline());
    while let Some(completion) = engine.next_completion() {
        assert_eq!(completion.token.kind(), TokenKind::Name);
        names.handle(engine, completion.token, completion.event);
    }
    let now = engine.now();
    names.handle_deadlines(engine, now);
}

#[test]
fn a_real_server_is_asked_over_real_sockets() {
    let (address, server) = real_server();
    let (mut engine, mut names) = real(address);
    assert_eq!(names.lookup(&mut engine, b"www.example", 7), Poll::Pending);
    let (waiter, first) = loop {
        real_turn(&mut engine, &mut names);
        if let Some(finished) = names.poll_finished() {
            break finished;
        }
    };
    // IPv6 comes over TCP, and may come after IPv4 has waited long enough.
    assert_eq!(waiter, 7);
    assert!(first.unwrap().contains(&"192.0.2.1".parse().unwrap()));
    while names.under_way() > 0 {
        real_turn(&mut engine, &mut names);
    }
    server.join().unwrap();
    let both = names.lookup(&mut engine, b"www.example", 8);
    assert_eq!(both, Poll::Ready(found(&BOTH_ORDERED)));
    assert_eq!(engine.budget().used(), 0);
}

#[test]
fn a_port_where_nobody_listens_is_a_server_that_failed() {
    let address = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (mut engine, mut names) = real(address);
    assert_eq!(names.lookup(&mut engine, b"www.example", 7), Poll::Pending);
    let finished = loop {
        real_turn(&mut engine, &mut names);
        if let Some(finished) = names.poll_finished() {
            break finished;
        }
    };
    assert_eq!(finished, (7, Err(NameError::ServerFailed)));
    assert_eq!(names.under_way(), 0);
}
