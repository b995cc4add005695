//! Negative tests of the model: a relay that makes one mistake takes the proxy's place. The model
//! has to report each mistake under its name, and to accept a relay without mistakes.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use millrace_config::limits::Limits;
use millrace_engine::{Address, Instant};
use millrace_proxy::reason::Reason;
use millrace_sim::{Actor, ActorSocket, Faults, ReadResult, World, run};

use super::client::RandomClient;
use super::findings::Failure;
use super::model::{ExchangeModel, WaitLimits};
use super::origin::RandomOrigin;
use super::plain::{plain_request, plain_scenario};
use super::plan::{
    BodyFraming, Break, BreakKind, Difficulty, Ending, HeaderSyntax, Malformation, Method,
    OriginBehaviour, RandomScenario, ResponseFault,
};
use super::wire;
use crate::simulated::tls::ProxyAddress;

/// The action of the relay for received bytes. Short messages arrive whole.
#[derive(Clone, PartialEq, Eq, Debug)]
enum RelayAction {
    /// Forwards these bytes.
    Forward(Vec<u8>),
    /// Forwards these bytes on a new connection.
    Repeat(Vec<u8>),
    /// Ends the stream to the other side.
    End,
}

use RelayAction::{End, Forward, Repeat};

type Edit = fn(&[u8]) -> Vec<RelayAction>;

/// The relay in the proxy's place, with a connection to the first origin for each client.
struct Relay {
    listener: ActorSocket,
    origin: Address,
    /// The edits of bytes to the origin, and to the client.
    edits: [Edit; 2],
    /// It does not forward the end of a stream.
    hides_end: bool,
    pairs: Vec<Pair>,
}

/// The sockets to the client and to the origin, and which of them have ended.
struct Pair {
    sockets: [ActorSocket; 2],
    ended: [bool; 2],
}

impl Relay {
    fn new(world: &World, origin: u16, edits: [Edit; 2], hides_end: bool) -> Self {
        let address = |port: u16| Address::Tcp(([127, 0, 0, 1], port).into());
        let listener = world.actor_listen(&address(0));
        Self { listener, origin: address(origin), edits, hides_end, pairs: Vec::new() }
    }

    fn relay_bytes(&mut self, world: &World, at: usize, from: usize) {
        loop {
            let Pair { sockets, ended } = &mut self.pairs[at];
            let (own_response, other) = (sockets[from], sockets[1 - from]);
            match world.read(own_response, 64 * 1024) {
                ReadResult::Bytes(bytes) => {
                    for action in (self.edits[from])(&bytes) {
                        match action {
                            Forward(bytes) => write(world, other, &bytes),
                            Repeat(bytes) => {
                                let other = world.connect(&self.origin, None);
                                write(world, other, &bytes);
                            }
                            End => world.shutdown_write(other),
                        }
                    }
                }
                ReadResult::Nothing => return,
                ReadResult::End | ReadResult::Failed(_) if ended[from] => return,
                ReadResult::End | ReadResult::Failed(_) => {
                    ended[from] = true;
                    if !self.hides_end {
                        world.shutdown_write(other);
                    }
                    return;
                }
            }
        }
    }
}

/// Writes to a peer that may have left. All bytes fit into the buffers of a world without faults.
fn write(world: &World, to: ActorSocket, bytes: &[u8]) {
    if let Ok(count) = world.write(to, bytes) {
        assert_eq!(count, bytes.len());
    }
}

impl Actor for Relay {
    fn step(&mut self, world: &World) -> Option<Instant> {
        while let Some((client, _)) = world.accept(self.listener) {
            let origin = world.connect(&self.origin, None);
            self.pairs.push(Pair { sockets: [client, origin], ended: [false; 2] });
        }
        for at in 0..self.pairs.len() {
            self.relay_bytes(world, at, 0);
            self.relay_bytes(world, at, 1);
        }
        self.pairs.retain(|pair| {
            let over = pair.ended == [true; 2];
            if over {
                pair.sockets.iter().for_each(|socket| world.close(*socket));
            }
            !over
        });
        None
    }
}

/// The clients and origins of a scenario.
struct RelayedActors {
    clients: Vec<RandomClient>,
    origins: Vec<RandomOrigin>,
    proxy: ProxyAddress,
}

impl Actor for RelayedActors {
    fn step(&mut self, world: &World) -> Option<Instant> {
        let changed_sockets: BTreeSet<ActorSocket> = world.take_changed_sockets();
        let clients = self.clients.iter_mut();
        let wakes: Vec<_> =
            clients.map(|client| client.step(world, &self.proxy, &changed_sockets)).collect();
        let origins = self.origins.iter_mut().map(|origin| origin.step(world, &changed_sockets));
        wakes.into_iter().chain(origins).flatten().min()
    }
}

/// Plays a scenario with a relay in place of the proxy, and returns the failure that the model
/// reports.
fn failure_with_relay(
    scenario: &RandomScenario,
    edits: [Edit; 2],
    hides_end: bool,
) -> Option<Failure> {
    let world = World::new(1, Faults::None);
    let waits = WaitLimits::new(&Limits::default(), scenario, &world.plan());
    let model = ExchangeModel::new(Rc::new(scenario.clone()), waits);
    let actors = scenario.origins.iter().enumerate();
    let actors = actors.map(|(at, origin)| RandomOrigin::new(origin, at, &model, &world, &None));
    let (origins, ports): (Vec<RandomOrigin>, Vec<u16>) = actors.unzip();
    let authorities: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let mut relay = Relay::new(&world, ports[0], edits, hides_end);
    let clients = scenario.connections.iter().enumerate();
    let clients = clients
        .map(|(at, plan)| RandomClient::new(plan, at, &authorities, &model, &world))
        .collect();
    let proxy = ProxyAddress { address: world.local_address(relay.listener), tls: None };
    let mut others = RelayedActors { clients, origins, proxy };
    let day = Duration::from_secs(24 * 3600);
    let failed = &mut |_: &World| model.failure().is_some();
    run(&world, &mut [], &mut [&mut relay, &mut others], day, failed);
    if model.failure().is_none() {
        let waits = others.clients.iter().find(|client| !client.is_over());
        let details = waits.map(|client| Failure { kind: "stuck", details: client.state() });
        return details;
    }
    model.failure()
}

fn unchanged(bytes: &[u8]) -> Vec<RelayAction> {
    vec![Forward(bytes.to_vec())]
}

/// Returns `bytes` with the first `old` in them replaced.
fn replace_first(bytes: &[u8], old: &str, new: &str) -> Vec<u8> {
    let at = bytes.windows(old.len()).position(|part| part == old.as_bytes());
    let mut bytes = bytes.to_vec();
    if let Some(at) = at {
        bytes.splice(at..at + old.len(), new.bytes());
    }
    bytes
}

fn replaced(bytes: &[u8], old: &str, new: &str) -> Vec<RelayAction> {
    vec![Forward(replace_first(bytes, old, new))]
}

/// Changes a byte in the middle of the body, if there is a body.
fn corrupted(bytes: &[u8]) -> Vec<RelayAction> {
    let mut bytes = bytes.to_vec();
    let middle = half(&bytes).len();
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 1;
    }
    vec![Forward(bytes)]
}

/// Returns the first half; a header stays complete.
fn half(bytes: &[u8]) -> Vec<u8> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
    bytes[..head + (bytes.len() - head) / 2].to_vec()
}

/// Cuts a chunk of 5,000 bytes to 1,000, and appends the last chunk.
fn truncate_chunks(bytes: &[u8]) -> Vec<RelayAction> {
    let bytes = replace_first(bytes, "1388\r\n", "3e8\r\n");
    let Some(at) = bytes.windows(5).position(|part| part == b"3e8\r\n") else {
        return unchanged(&bytes);
    };
    vec![Forward(bytes[..at + 5 + 1000].to_vec()), Forward(b"\r\n0\r\n\r\n".to_vec())]
}

/// Returns a response of the proxy's own, with this sentence.
fn own_response(reason: Reason, text: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {} No\r\nProxy-Status: millrace; error=x; details=\"{}\"\r\n\
         Content-Length: {}\r\n\r\n{text}",
        reason.status(),
        reason.word(),
        text.len()
    )
    .into_bytes()
}

fn refused(_: &[u8]) -> Vec<RelayAction> {
    vec![Forward(own_response(Reason::OriginClosed, &format!("{}\n", Reason::OriginClosed.text())))]
}

fn get() -> RandomScenario {
    plain_scenario(vec![plain_request(1, Method::Get, 0, 5000)], Ending::Closes)
}

fn post() -> RandomScenario {
    plain_scenario(vec![plain_request(1, Method::Post, 5000, 10)], Ending::Closes)
}

fn tunnel() -> RandomScenario {
    plain_scenario(vec![plain_request(1, Method::Upgrade, 5000, 5000)], Ending::Closes)
}

/// Returns the scenario with chunks in both directions.
fn chunked(mut scenario: RandomScenario) -> RandomScenario {
    for request in &mut scenario.connections[0].requests {
        request.body.chunk = (request.body.length > 0).then_some(10_000);
        request.response.framing = BodyFraming::Chunks(10_000);
    }
    scenario
}

fn two() -> RandomScenario {
    plain_scenario(
        vec![plain_request(1, Method::Get, 0, 5), plain_request(2, Method::Get, 0, 5)],
        Ending::Closes,
    )
}

fn pipelined(mut scenario: RandomScenario) -> RandomScenario {
    scenario.connections[0].pipelined = true;
    scenario
}

fn malformed(malformation: Malformation) -> RandomScenario {
    let mut scenario = two();
    scenario.connections[0].requests[0].malformation = Some(malformation);
    scenario
}

/// Returns a scenario with a connection that is idle for five seconds, and an origin with this
/// behaviour.
fn pausing(behaviour: OriginBehaviour) -> RandomScenario {
    let mut scenario = two();
    scenario.origins[0].behaviour = behaviour;
    scenario.connections[0].requests[1].pause_ms = 5000;
    scenario
}

fn until_close() -> RandomScenario {
    let mut scenario = get();
    scenario.connections[0].requests[0].response.framing = BodyFraming::UntilClose;
    scenario
}

/// Returns the scenario as a hard one, in which no connection must succeed.
fn hard(mut scenario: RandomScenario) -> RandomScenario {
    scenario.difficulty = Difficulty::Hard;
    scenario
}

#[test]
fn a_relay_without_mistakes_passes() {
    let head = plain_scenario(vec![plain_request(1, Method::Head, 0, 500)], Ending::Closes);
    let many = plain_scenario(
        vec![plain_request(1, Method::Put, 700, 9), plain_request(2, Method::Options, 0, 0)],
        Ending::Closes,
    );
    for scenario in
        [get(), post(), chunked(get()), chunked(post()), until_close(), head, many, two()]
    {
        assert_eq!(
            failure_with_relay(&scenario, [unchanged, unchanged], false),
            None,
            "{scenario}"
        );
    }
    assert_eq!(failure_with_relay(&tunnel(), [unchanged, unchanged], false), None);
}

/// Plays a scenario with a relay that makes these edits. The model has to report this kind of
/// failure.
fn check(name: &str, scenario: &RandomScenario, up: Edit, down: Edit, kind: &str) {
    let failure = failure_with_relay(scenario, [up, down], false);
    assert_eq!(failure.as_ref().map(|failure| failure.kind), Some(kind), "{name}: {failure:?}");
}

#[test]
fn a_changed_byte_is_reported() {
    check("a response", &get(), unchanged, corrupted, "wrong-bytes");
    check("chunks of a response", &chunked(get()), unchanged, corrupted, "wrong-bytes");
    check("a request", &post(), corrupted, unchanged, "wrong-bytes");
    check("chunks of a request", &chunked(post()), corrupted, unchanged, "wrong-bytes");
    check("a tunnel's response", &tunnel(), unchanged, corrupted, "wrong-bytes");
    check("a tunnel's request", &tunnel(), corrupted, unchanged, "wrong-bytes");
    let sentence: Edit = |_| vec![Forward(own_response(Reason::OriginClosed, "Something else."))];
    check("the proxy's own response", &hard(get()), unchanged, sentence, "wrong-bytes");
}

#[test]
fn a_wrong_response_is_reported() {
    check(
        "of another request",
        &get(),
        unchanged,
        |it| replaced(it, "X-Id: 1", "X-Id: 2"),
        "wrong-response",
    );
    check("another status", &get(), unchanged, |it| replaced(it, "200", "201"), "wrong-response");
    check(
        "without an id",
        &get(),
        unchanged,
        |it| replaced(it, "X-Id: 1\r\n", ""),
        "wrong-response",
    );
    let interim: Edit = |bytes| {
        let interim = wire::interim(1, 103, HeaderSyntax::Strict);
        vec![Forward(interim.clone()), Forward(interim), Forward(bytes.to_vec())]
    };
    check("interim responses", &get(), unchanged, interim, "wrong-response");
    let reason: Edit =
        |_| vec![Forward(replace_first(&own_response(Reason::OriginClosed, "no"), "502", "503"))];
    check("a reason with another status", &hard(get()), unchanged, reason, "wrong-response");
    check(
        "an ambiguous length",
        &get(),
        unchanged,
        |it| replaced(it, "h: 5", "h: +5"),
        "ambiguous",
    );
    check("a refusal of a well-behaved client", &get(), unchanged, refused, "unserved");
    check("no response", &get(), unchanged, |_| vec![End], "unserved");
    check("no response and no end", &get(), unchanged, |_| Vec::new(), "overdue");
    let idle = plain_scenario(vec![plain_request(1, Method::Get, 0, 5)], Ending::Idles);
    check("extra bytes", &idle, unchanged, |it| vec![Forward([it, b"x"].concat())], "unasked");
    let switch: Edit = |_| {
        let head = "HTTP/1.1 101 Now\r\nX-Id: 1\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
        vec![Forward(head.into())]
    };
    check("an unrequested 101", &get(), unchanged, switch, "unasked");
    let mut switches = hard(tunnel());
    switches.connections[0].requests[0].response.fault = Some(ResponseFault::UnrequestedUpgrade);
    check("a 101 to another protocol", &switches, unchanged, unchanged, "ambiguous");
}

#[test]
fn truncation_that_looks_complete_is_reported() {
    let cut: Edit = |it| vec![Forward(half(it)), End];
    // The framing shows the cut, but the scenario has no fault that explains it.
    check("a length", &get(), unchanged, cut, "unserved");
    check("until close", &until_close(), unchanged, cut, "looks-whole");
    check("a tunnel's response", &tunnel(), unchanged, cut, "looks-whole");
    let cut_up: Edit =
        |it| if it.starts_with(b"GET") { unchanged(it) } else { vec![Forward(half(it)), End] };
    check("a tunnel's request", &tunnel(), cut_up, unchanged, "looks-whole");
    check("a response's chunks", &chunked(get()), unchanged, truncate_chunks, "looks-whole");
    check("a request's chunks", &chunked(post()), truncate_chunks, unchanged, "looks-whole");
    let sentence: Edit = |_| vec![Forward(own_response(Reason::OriginClosed, "The origin"))];
    check("the proxy's own response", &hard(get()), unchanged, sentence, "looks-whole");
}

#[test]
fn a_wrong_request_is_reported() {
    check(
        "an ambiguous length",
        &post(),
        |it| replaced(it, "h: 5", "h: +5"),
        unchanged,
        "ambiguous",
    );
    let invented: Edit = |it| replaced(it, "X-Id: 1", "X-Id: 77");
    check("a request that no client sent", &get(), invented, unchanged, "unasked");
    check("another method", &get(), |it| replaced(it, "GET", "PUT"), unchanged, "unasked");
    check("a request before the response", &pipelined(two()), unchanged, unchanged, "unasked");
    let again: Edit = |it| vec![Forward(it.to_vec()), Repeat(it.to_vec())];
    check("a POST twice", &post(), again, unchanged, "repeated");
    let often: Edit = |it| {
        let more = (0..3).map(|_| Repeat(it.to_vec()));
        [Forward(it.to_vec())].into_iter().chain(more).collect()
    };
    check("a GET too often", &get(), often, unchanged, "repeated");
    let mut forward = two();
    forward.proxy.forward = true;
    forward.origins.push(forward.origins[0]);
    forward.connections[0].requests[0].origin = 1;
    let rerouted: Edit = |it| {
        let path = it.windows(3).position(|part| part == b"/r/").expect("a target");
        vec![Forward([b"GET ", &it[path..]].concat())]
    };
    check("a request for another origin", &forward, rerouted, unchanged, "misrouted");
}

#[test]
fn forwarded_malformed_requests_are_reported_even_if_repaired() {
    let head = malformed(Malformation::Head(10));
    check("unchanged", &head, unchanged, unchanged, "ambiguous");
    check("a header", &head, |it| replaced(it, "Host :", "Host:"), unchanged, "smuggled");
    let dropped: Edit = |it| {
        let end = it.windows(4).position(|four| four == b"\r\n\r\n").expect("a header") + 4;
        vec![Forward(it[end..].to_vec())]
    };
    check(
        "the request behind a malformed header",
        &pipelined(head),
        dropped,
        unchanged,
        "smuggled",
    );
    let mut body = malformed(Malformation::Body(5));
    body.connections[0].requests[0].method = Method::Post;
    check("a chunk", &body, |it| replaced(it, "5\nhello", "5\r\nhello"), unchanged, "smuggled");
}

#[test]
fn use_of_an_ended_connection_is_reported() {
    let failure =
        failure_with_relay(&get(), [unchanged, unchanged], true).expect("a connection without end");
    assert_eq!(failure.kind, "overdue", "{}", failure.details);
    let mut malformed = hard(two());
    malformed.connections[0].requests[0].response.fault = Some(ResponseFault::Head(0));
    let failure =
        failure_with_relay(&malformed, [unchanged, refused], false).expect("a malformed response");
    assert_eq!(failure.kind, "stale-connection", "{}", failure.details);
    // The second request follows a response that was complete long before its upload ended.
    let mut early = plain_scenario(
        vec![plain_request(1, Method::Post, 500, 5), plain_request(2, Method::Get, 0, 5)],
        Ending::Closes,
    );
    early.connections[0].requests[0].response.early = true;
    let pause = Break { at: 400, how: BreakKind::Pause(5000) };
    early.connections[0].requests[0].breaks = Some(pause);
    let failure =
        failure_with_relay(&hard(early), [unchanged, unchanged], false).expect("an early response");
    assert_eq!(failure.kind, "stale-connection", "{}", failure.details);
    for (behaviour, hides_end) in
        [(OriginBehaviour::EndsIdle(10), true), (OriginBehaviour::SendsUnrequested(10), false)]
    {
        let strays: Edit = |bytes| match bytes.starts_with(b"HTTP/1.1 200") {
            true => unchanged(bytes),
            false => Vec::new(),
        };
        let failure = failure_with_relay(&hard(pausing(behaviour)), [unchanged, strays], hides_end);
        let failure = failure.expect("a connection that has ended");
        assert_eq!(failure.kind, "stale-connection", "{behaviour:?}: {}", failure.details);
    }
}

#[test]
fn requests_to_origins_that_left_count() {
    let world = World::new(1, Faults::None);
    let scenario = Rc::new(post());
    let waits = WaitLimits::new(&Limits::default(), &scenario, &world.plan());
    let model = ExchangeModel::new(scenario, waits);
    let line = b"POST /r/1 HTTP/1.1\r\n".to_vec();
    model.check_sent(&world, &[[b"x".to_vec(), line.clone()].concat(), b"POST /r/1 HT".to_vec()]);
    assert_eq!(model.failure(), None);
    model.check_sent(&world, &[line.clone(), line]);
    assert_eq!(model.failure().map(|failure| failure.kind), Some("repeated"));
}
