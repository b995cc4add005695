//! Lookups against scripted name servers in the simulator, and against a real one on loopback.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use millrace_config::limits::Limits;
use millrace_dns::{LookupResult, NameError, ResolverConfig};
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

/// The reaction of a scripted server to a query.
#[derive(Clone)]
enum Reply {
    Silence,
    /// Sends the whole response.
    Send(Vec<u8>),
    /// Sends the whole response over TCP, and a truncated one over UDP.
    Long(Vec<u8>),
    /// Sends the response after this many milliseconds.
    Late(u64, Vec<u8>),
    /// Sends this many datagrams with another id, then the response.
    Mismatched(usize, Vec<u8>),
}

/// A query as a server sees it.
struct Query<'a> {
    /// The name in lower case.
    name: &'a str,
    is_v6: bool,
    /// How often this server has received the same query before.
    before: usize,
    message: &'a [u8],
}

impl Query<'_> {
    /// Returns a response with those of the addresses that have the family of the query.
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

type Script = Box<dyn FnMut(&Query) -> Reply>;

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
        (self.script)(&Query { name: &name, is_v6, before, message })
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
            Reply::Mismatched(count, bytes) => {
                let mut mismatched = bytes.clone();
                mismatched[0] ^= 1;
                for _ in 0..count {
                    world.send_to(self.udp, from, &mismatched);
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

    /// Serves a connection. Returns false if it is to be closed.
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

/// A worker that only looks up names.
struct Worker {
    engine: SimEngine,
    names: Resolver<u32>,
    /// The names to look up in the next turn, and their waiters.
    wanted: Vec<(&'static str, u32)>,
    results: BTreeMap<u32, (Instant, LookupResult)>,
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
    fn finish(&mut self, waiter: u32, found: LookupResult) {
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
        let sources = ResolverConfig::parse(b"10.0.0.1 known", resolv.as_bytes(), addresses);
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

    /// Creates a world with one server and a network without faults.
    fn with(script: impl FnMut(&Query) -> Reply + 'static) -> Self {
        Self::new(1, Faults::None, "", vec![Box::new(script)])
    }

    /// Looks up names at the same time and waits for all results. Returns how long that took.
    fn look_up(&mut self, wanted: &[(&'static str, u32)]) -> Duration {
        let begin = self.world.now();
        let results = self.worker.results.len() + wanted.len();
        self.worker.wanted.extend(wanted);
        let finished = self.worker.finished.clone();
        let ended = self.run(Duration::from_secs(60), &mut |_| finished.get() == results);
        assert_eq!(ended, RunOutcome::Done, "{}", self.world.trace());
        self.world.now().since(begin)
    }

    /// Lets this much time pass.
    fn advance(&mut self, time: Duration) {
        self.run(time, &mut |_| false);
        // The clock of a world advances only to the next event, so there has to be one.
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

    fn result(&self, waiter: u32) -> &LookupResult {
        &self.worker.results[&waiter].1
    }

    /// Returns the queries that the server has received since the last call, sorted.
    fn queries(&self, server: usize) -> Vec<String> {
        let mut queries = self.servers[server].log.take();
        queries.sort();
        queries
    }

    /// Shuts the resolver down and checks that nothing is left of it.
    fn end(mut self) {
        self.worker.names.shut_down(&mut self.worker.engine);
        assert_eq!(
            (self.worker.names.active_lookups(), self.worker.names.next_deadline()),
            (0, None)
        );
        drop(self.worker);
        assert_eq!(self.world.leaks(), Vec::<String>::new());
    }
}

/// An actor with one event, at this time.
struct Alarm(Instant);

impl Actor for Alarm {
    fn step(&mut self, world: &World) -> Option<Instant> {
        (world.now() < self.0).then_some(self.0)
    }
}

fn found(texts: &[&str]) -> LookupResult {
    Ok(texts.iter().map(|text| text.parse::<IpAddr>().unwrap()).collect())
}

const BOTH: [&str; 3] = ["192.0.2.1", "192.0.2.2", "2001:db8::1"];
const BOTH_ORDERED: [&str; 3] = ["2001:db8::1", "192.0.2.1", "192.0.2.2"];

#[test]
fn lookups_of_one_name_share_their_queries_and_are_cached_for_their_ttl() {
    let mut scene = Scene::with(|query| Reply::Send(query.addresses(30, &BOTH)));
    scene.look_up(&[("www.example", 1), ("WWW.Example", 2)]);
    assert_eq!(scene.result(1), &found(&BOTH_ORDERED));
    assert_eq!(scene.result(2), scene.result(1));
    assert_eq!(scene.queries(0), ["www.example 4 udp", "www.example 6 udp"]);

    scene.advance(Duration::from_secs(14));
    scene.look_up(&[("www.example", 3)]);
    assert_eq!(scene.result(3), scene.result(1));
    assert_eq!(scene.queries(0).len(), 0, "cached");

    scene.advance(Duration::from_secs(31));
    scene.look_up(&[("www.example", 4)]);
    assert_eq!(scene.queries(0).len(), 2, "queried again after the TTL");
    scene.end();
}

#[test]
fn some_names_are_never_sent_to_a_server() {
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
    assert_eq!(scene.queries(0).len(), 0);
    scene.end();
}

#[test]
fn the_search_list_is_tried_in_order_and_absence_is_cached() {
    let script = |query: &Query| match query.name {
        "host.b.example" => Reply::Send(query.addresses(60, &["192.0.2.1"])),
        "bare" => Reply::Send(query.addresses(60, &[])),
        _ => Reply::Send(query.not_found()),
    };
    let resolv = "search a.example b.example";
    let mut scene = Scene::new(1, Faults::None, resolv, vec![Box::new(script)]);
    scene.look_up(&[("host", 1)]);
    assert_eq!(scene.result(1), &found(&["192.0.2.1"]));
    assert_eq!(
        scene.queries(0),
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
    assert_eq!(scene.queries(0).len(), 6 + 2 + 6);
    scene.look_up(&[("gone.example", 5)]);
    assert_eq!(scene.result(5), &Err(NameError::NotFound));
    assert_eq!(scene.queries(0).len(), 0, "absence is cached");
    scene.advance(Duration::from_secs(21));
    scene.look_up(&[("gone.example", 6)]);
    assert_eq!(scene.queries(0).len(), 6, "absence is not cached longer than the zone specifies");
    scene.end();
}

#[test]
fn a_lost_query_is_sent_again_and_to_the_next_server() {
    let lost = |query: &Query| match query.before {
        0 => Reply::Silence,
        _ => Reply::Send(query.addresses(60, &BOTH)),
    };
    let mut scene = Scene::with(lost);
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &found(&BOTH_ORDERED));
    assert!(took >= Duration::from_millis(1250) && took < Duration::from_millis(1300), "{took:?}");
    assert_eq!(scene.queries(0).len(), 4);
    scene.end();

    let there = |query: &Query| Reply::Send(query.addresses(60, &BOTH));
    let scripts: Vec<Script> = vec![Box::new(|_| Reply::Silence), Box::new(there)];
    let mut scene = Scene::new(1, Faults::None, "options timeout:1", scripts);
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &found(&BOTH_ORDERED));
    assert!(took >= Duration::from_secs(1) && took < Duration::from_millis(1050), "{took:?}");
    assert_eq!((scene.queries(0).len(), scene.queries(1).len()), (2, 2));
    scene.end();
}

#[test]
fn without_a_response_the_lookup_times_out() {
    let mut scene = Scene::with(|_| Reply::Silence);
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &Err(NameError::TimedOut));
    assert!(took >= Duration::from_secs(5) && took < Duration::from_millis(5050), "{took:?}");
    assert_eq!(scene.queries(0).len(), 8, "four tries per family");
    scene.end();
}

#[test]
fn a_late_response_is_accepted_until_the_lookup_ends() {
    // Each response arrives long after its try has ended, in the order of the tries.
    let mut scene = Scene::with(|query| Reply::Late(4000, query.addresses(60, &BOTH)));
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &found(&BOTH_ORDERED));
    assert!(took >= Duration::from_secs(4) && took < Duration::from_millis(4050), "{took:?}");
    assert_eq!(scene.queries(0).len(), 8, "queries were repeated in the meantime");
    scene.end();

    let mut scene = Scene::with(|query| Reply::Late(5100, query.addresses(60, &BOTH)));
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &Err(NameError::TimedOut));
    assert!(took < Duration::from_millis(5050), "{took:?}");
    scene.end();
}

#[test]
fn after_an_error_the_next_server_is_queried_at_once() {
    let failing = || -> Script { Box::new(|query| Reply::Send(query.failed())) };
    let there = |query: &Query| Reply::Send(query.addresses(60, &BOTH));
    let mut scene = Scene::new(1, Faults::None, "", vec![failing(), Box::new(there)]);
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &found(&BOTH_ORDERED));
    assert!(took < Duration::from_millis(50), "{took:?}");
    scene.end();

    let mut scene = Scene::new(1, Faults::None, "search example", vec![failing(), failing()]);
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &Err(NameError::ServerFailed));
    assert!(took < Duration::from_millis(50), "{took:?}");
    assert_eq!(
        (scene.queries(0).len(), scene.queries(1).len()),
        (2, 2),
        "once per family, without the search list"
    );
    scene.look_up(&[("www.example", 2)]);
    assert_eq!(scene.queries(0).len(), 0, "cached for a second");
    scene.advance(Duration::from_secs(1));
    scene.look_up(&[("www.example", 3)]);
    assert_eq!(scene.queries(0).len(), 2);
    scene.end();
}

#[test]
fn ipv4_does_not_wait_long_for_ipv6_but_both_are_cached() {
    let mut scene = Scene::with(|query| match query.is_v6 {
        true => Reply::Late(400, query.addresses(60, &BOTH)),
        false => Reply::Send(query.addresses(60, &BOTH)),
    });
    let took = scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &found(&["192.0.2.1", "192.0.2.2"]));
    assert!(took >= Duration::from_millis(50) && took < Duration::from_millis(80), "{took:?}");
    assert_eq!(scene.worker.names.active_lookups(), 1);
    assert_eq!(scene.look_up(&[("www.example", 2)]).as_millis(), 0);
    assert_eq!(scene.result(2), scene.result(1), "a later lookup does not wait either");
    scene.advance(Duration::from_secs(1));
    scene.look_up(&[("www.example", 3)]);
    assert_eq!(scene.result(3), &found(&BOTH_ORDERED));
    assert_eq!(scene.queries(0).len(), 2);
    scene.end();
}

#[test]
fn ipv6_waits_for_ipv4() {
    let mut scene = Scene::with(|query| match query.is_v6 {
        true => Reply::Send(query.addresses(60, &BOTH)),
        false => Reply::Late(400, query.addresses(60, &BOTH)),
    });
    scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &found(&BOTH_ORDERED));
    scene.end();
}

#[test]
fn a_long_response_is_received_over_tcp_in_any_number_of_segments() {
    for seed in 0..50 {
        let script = |query: &Query| {
            let records: Vec<_> = (0..60u8)
                .map(|last| record(&wire("www.example"), 1, 60, &[192, 0, 2, last]))
                .collect();
            Reply::Long(match query.is_v6 {
                true => query.addresses(60, &BOTH),
                false => answer(query.message, OK, &records, &[]),
            })
        };
        let faults = if seed == 0 { Faults::None } else { Faults::Benign };
        let mut scene = Scene::new(seed, faults, "", vec![Box::new(script)]);
        // A lost SYN would be retransmitted only after the lookup has stopped waiting for IPv6.
        scene.world.set_plan(WorldPlan { syn_loss: 0, ..scene.world.plan() });
        // In some of these worlds each byte takes milliseconds.
        let server = [FIRST.parse().unwrap()];
        let sources = ResolverConfig::parse(b"", b"options timeout:30", &server);
        let limits = Limits { name_ms: 120_000, ..Limits::default() };
        scene.worker.names = Resolver::new(Arc::new(sources), &limits, Instant::default());
        scene.look_up(&[("www.example", 1)]);
        let addresses = scene.result(1).clone().unwrap();
        assert_eq!((addresses.len(), addresses[0]), (17, "2001:db8::1".parse().unwrap()));
        assert!(scene.queries(0).iter().any(|line| line.ends_with("tcp")));
        scene.end();
    }
}

#[test]
fn mismatched_datagrams_are_ignored_until_there_are_as_many_as_in_an_attack() {
    for (count, expected) in [(8, found(&BOTH_ORDERED)), (500, Err(NameError::ServerFailed))] {
        let mut scene = Scene::with(move |query| {
            let bytes = query.addresses(60, &BOTH);
            if query.before == 0 { Reply::Mismatched(count, bytes) } else { Reply::Send(bytes) }
        });
        let took = scene.look_up(&[("www.example", 1)]);
        assert_eq!(scene.result(1), &expected);
        assert!(took < Duration::from_millis(50), "{took:?}");
        scene.end();
    }
}

#[test]
fn a_removed_waiter_gets_no_result_and_a_shutdown_leaves_nothing() {
    let mut scene = Scene::with(|query| match query.before {
        0 => Reply::Silence,
        _ => Reply::Send(query.addresses(60, &BOTH)),
    });
    scene.worker.wanted = vec![("www.example", 1), ("www.example", 2)];
    scene.run(Duration::from_millis(100), &mut |_| false);
    scene.worker.names.forget(1);
    scene.run(Duration::from_secs(3), &mut |_| false);
    assert_eq!(scene.worker.results.keys().collect::<Vec<_>>(), [&2]);
    scene.worker.wanted = vec![("other.example", 3)];
    scene.run(Duration::from_millis(100), &mut |_| false);
    assert_eq!(scene.worker.names.active_lookups(), 1);
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

    let mut scene = Scene::with(|query| Reply::Send(query.addresses(60, &["192.0.2.1"])));
    scene.world.set_descriptors_max(1);
    scene.look_up(&[("www.example", 1)]);
    assert_eq!(scene.result(1), &Err(NameError::Overloaded));
    scene.world.set_descriptors_max(2);
    scene.look_up(&[("www.example", 2)]);
    assert_eq!(scene.result(2), &found(&["192.0.2.1"]), "the failure is not cached");
    scene.end();
}

#[test]
fn every_lookup_ends_in_time_under_all_faults() {
    for seed in 0..300 {
        let script = || -> Script {
            Box::new(|query| match (query.name.len() + query.before) % 4 {
                0 => Reply::Silence,
                1 => Reply::Long(query.addresses(5, &BOTH)),
                2 => Reply::Mismatched(3, query.addresses(5, &BOTH)),
                _ => Reply::Send(query.not_found()),
            })
        };
        let resolv = "search a.example b.example\noptions ndots:2";
        let mut scene = Scene::new(seed, Faults::Hostile, resolv, vec![script(), script()]);
        // The deadline of a lookup does not cover the time in which the worker does not run.
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
            scene.advance(Duration::from_secs(7));
        }
        scene.end();
    }
}

/// Starts a name server in a thread, for one lookup of both families. It truncates the IPv6
/// response over UDP, and sends it over TCP.
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
            let query = Query { name: "", is_v6, before: 0, message };
            let reply = match is_v6 {
                true => answer(message, OK | 0x200, &[], &[]),
                false => query.addresses(60, &BOTH),
            };
            udp.send_to(&reply, from).unwrap();
        }
        let (mut connection, _) = tcp.accept().unwrap();
        let mut length = [0; 2];
        std::io::Read::read_exact(&mut connection, &mut length).unwrap();
        let message = &mut message[..usize::from(u16::from_be_bytes(length))];
        std::io::Read::read_exact(&mut connection, message).unwrap();
        let reply = Query { name: "", is_v6: true, before: 0, message }.addresses(60, &BOTH);
        let framed = [&(reply.len() as u16).to_be_bytes(), &reply[..]].concat();
        std::io::Write::write_all(&mut connection, &framed).unwrap();
    });
    (address, server)
}

/// Creates a real engine and a resolver that uses `server`. The timeouts are so long that no slow
/// machine reaches them. They only determine how long a failing test takes.
fn real(server: SocketAddr) -> (EpollEngine, Resolver<u32>) {
    let clock = Clock::new();
    let engine =
        EpollEngine::new(EngineOptions { budget_bytes: 1 << 20, log: None, clock }).unwrap();
    let limits = Limits { name_ms: 600_000, ..Limits::default() };
    let sources = Arc::new(ResolverConfig::parse(b"", b"options timeout:30", &[server]));
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
fn lookups_work_over_real_sockets() {
    let (address, server) = real_server();
    let (mut engine, mut names) = real(address);
    assert_eq!(names.lookup(&mut engine, b"www.example", 7), Poll::Pending);
    let (waiter, first) = loop {
        real_turn(&mut engine, &mut names);
        if let Some(finished) = names.poll_finished() {
            break finished;
        }
    };
    // The IPv6 response arrives over TCP, possibly after the lookup has stopped waiting for it.
    assert_eq!(waiter, 7);
    assert!(first.unwrap().contains(&"192.0.2.1".parse().unwrap()));
    while names.active_lookups() > 0 {
        real_turn(&mut engine, &mut names);
    }
    server.join().unwrap();
    let both = names.lookup(&mut engine, b"www.example", 8);
    assert_eq!(both, Poll::Ready(found(&BOTH_ORDERED)));
    assert_eq!(engine.budget().used(), 0);
}

#[test]
fn a_closed_port_counts_as_a_failed_server() {
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
    assert_eq!(names.active_lookups(), 0);
}
