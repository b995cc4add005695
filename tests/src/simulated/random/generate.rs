//! Generates the random scenario of a seed. Everything is generated before the run, from a random
//! sequence that is independent of the one of the world.

use millrace_sim::{Faults, SeededRandom};

use super::plan::{
    Body, BodyFraming, Break, BreakKind, Connection, Difficulty, Ending, HeaderSyntax,
    Malformation, Method, NameBehaviour, OperatorEvent, Origin, OriginBehaviour, Proxy,
    RandomScenario, Reader, Request, ResponseFault, ResponsePlan,
};
use super::wire::{
    BAD_REQUEST_CHUNKS, BAD_REQUEST_HEADERS, BAD_RESPONSE_CHUNKS, BAD_RESPONSE_HEADERS,
    UNREQUESTED_BYTES,
};
use crate::simulated::{ForeignTicket, TlsFault, TlsPlan};

/// Approximate limit of payload bytes in a scenario. Large bodies are rare, so that many seeds can
/// be played.
const BYTES_MAX: usize = 3 << 20;
/// The longest body.
const BODY_MAX: usize = 1 << 20;

/// Returns the scenario of `seed`.
pub fn random_scenario(seed: u64) -> RandomScenario {
    let mut random = SeededRandom::new(seed ^ 0x5354_4f52_5953_4545);
    let difficulty =
        random.choose(&[Difficulty::Easy, Difficulty::Mixed, Difficulty::Hard, Difficulty::Hard]);
    let world = match difficulty {
        Difficulty::Easy => random.choose(&[Faults::None, Faults::Benign, Faults::Benign]),
        Difficulty::Mixed => random.choose(&[Faults::None, Faults::Benign, Faults::Benign]),
        Difficulty::Hard => random.choose(&[Faults::None, Faults::Benign, Faults::Hostile]),
    };
    let mut generator =
        Generator { random, difficulty, next: 0, left: BYTES_MAX, forward: false, origins: 1 };
    generator.forward = generator.random.chance(500);
    let origins: Vec<Origin> =
        (0..generator.random.between(1, 4)).map(|_| generator.origin()).collect();
    generator.origins = origins.len();
    let clients = generator.random.between(1, 12) as u8;
    // A crowd has more clients than one worker keeps: it hands some over to the others.
    let is_crowd = generator.random.chance(100);
    let many: &[u64] = if is_crowd { &[4, 8] } else { &[1, 1, 1, 2, 4] };
    let mut connections = Vec::new();
    for client in 0..if is_crowd { 12 } else { clients } {
        for _ in 0..generator.random.choose(many) {
            let mut connection = generator.connection(client);
            if is_crowd {
                connection.begins_ms = 0;
            }
            connections.push(connection);
        }
    }
    let mut scenario = RandomScenario {
        seed,
        world,
        difficulty,
        proxy: generator.proxy(is_crowd),
        folder: None,
        origins,
        connections,
        events: generator.events(),
        disabled_faults: Vec::new(),
    };
    secure(&mut scenario);
    super::programs::generate::draw(&mut scenario);
    super::files::generate::draw(&mut scenario);
    share_connections(&mut scenario);
    scenario
}

/// Draws whether requests share connections to origins, from a random sequence of its own.
fn share_connections(scenario: &mut RandomScenario) {
    let mut random = SeededRandom::new(scenario.seed ^ 0x5049_5045_4c49_4e45);
    let (depth, connections) = (random.between(2, 4), random.between(1, 3));
    if random.chance(400) && !scenario.proxy.forward && !scenario.proxy.fastcgi {
        scenario.proxy.pipelining = Some((depth, connections));
    }
}

/// Draws the TLS of a scenario, from a random sequence of its own.
fn secure(scenario: &mut RandomScenario) {
    let mut random = SeededRandom::new(scenario.seed ^ 0x5345_4355_5245_4453);
    let may_fail = scenario.difficulty != Difficulty::Easy;
    scenario.proxy.secured = random.chance(300) && !scenario.proxy.unix;
    scenario.proxy.accepts_unknown_names = random.chance(500);
    scenario.proxy.secures_origins = random.chance(300) && !scenario.proxy.forward;
    for connection in &mut scenario.connections {
        let fault = tls_fault(&mut random, true);
        let is_faulty = random.chance(150) && may_fail;
        let ticket = random.choose(&[
            ForeignTicket::OtherService,
            ForeignTicket::DroppedKey,
            ForeignTicket::Forged,
        ]);
        connection.tls = TlsPlan {
            old: random.chance(200),
            updates_keys: random.chance(300),
            ticket: random.chance(100).then_some(ticket),
            fault: is_faulty.then_some(fault),
        };
    }
    for origin in &mut scenario.origins {
        let fault = tls_fault(&mut random, false);
        let is_faulty = random.chance(300) && may_fail;
        origin.tls = TlsPlan {
            old: random.chance(200),
            updates_keys: random.chance(300),
            ticket: None,
            fault: is_faulty.then_some(fault),
        };
    }
}

/// Draws a fault of the TLS of a client or an origin.
fn tls_fault(random: &mut SeededRandom, is_client: bool) -> TlsFault {
    let at = random.length(100_000) as u64 - 1;
    let in_handshake = random.length(2_000) as u64 - 1;
    random.choose(&[
        TlsFault::FlippedBit(at),
        TlsFault::FlippedBit(at),
        TlsFault::FlippedHandshake(in_handshake),
        TlsFault::KeyUpdates,
        TlsFault::UnannouncedEnd,
        TlsFault::UnannouncedEnd,
        TlsFault::UnannouncedEnd,
        TlsFault::UnknownName,
        if is_client { TlsFault::NoName } else { TlsFault::UnannouncedEnd },
    ])
}

/// The state of the generator.
struct Generator {
    random: SeededRandom,
    difficulty: Difficulty,
    /// The id of the last generated request.
    next: u32,
    /// Payload bytes that may still be generated.
    left: usize,
    forward: bool,
    origins: usize,
}

impl Generator {
    /// Returns true with this probability in thousandths, and never in an easy scenario.
    fn draws_fault(&mut self, per_thousand: u64) -> bool {
        let drawn = self.random.chance(per_thousand);
        drawn && self.difficulty != Difficulty::Easy
    }

    fn proxy(&mut self, is_crowd: bool) -> Proxy {
        let is_hard = self.difficulty == Difficulty::Hard;
        let starves = is_hard && self.random.chance(250);
        let short = is_hard && self.random.chance(250);
        let real = self.random.between(8, 60) as usize;
        let assumed = real * self.random.choose(&[1, 1, 2, 4]);
        Proxy {
            forward: self.forward,
            unix: self.random.chance(150),
            secured: false,
            accepts_unknown_names: false,
            secures_origins: false,
            fastcgi: false,
            upload_buffer: None,
            pipelining: None,
            workers: self.random.between(if is_crowd { 2 } else { 1 }, 3) as usize,
            memory_mb: starves.then_some(1),
            descriptors: short.then_some((real, assumed)),
            limits: if is_hard { self.limits() } else { Vec::new() },
        }
    }

    fn limits(&mut self) -> Vec<(&'static str, u64)> {
        const SMALL: [(&str, &[u64]); 22] = [
            ("head_ms", &[100, 1000, 5000]),
            ("idle_ms", &[100, 1000, 5000]),
            ("body_ms", &[100, 1000, 5000]),
            ("send_ms", &[100, 1000, 5000]),
            ("connect_ms", &[10, 300, 2000]),
            ("first_byte_ms", &[10, 300, 2000]),
            ("response_ms", &[10, 300, 2000]),
            ("origin_idle_ms", &[10, 300, 2000]),
            ("tunnel_idle_ms", &[100, 1000, 5000]),
            ("linger_ms", &[0, 100, 1000]),
            ("name_ms", &[100, 1000]),
            ("drain_ms", &[0, 500, 5000]),
            ("rate_bytes_per_second", &[0, 128, 100_000]),
            ("pipelined", &[1, 2, 8]),
            ("retries", &[0, 1, 3]),
            ("connections", &[1, 3, 10]),
            ("connections_per_client", &[1, 2]),
            ("origin_idle_connections", &[0, 1, 2]),
            ("origin_idle_connections_all", &[0, 1, 2]),
            ("name_lookups", &[1, 2]),
            ("request_head_bytes", &[1024, 4096]),
            ("response_head_bytes", &[1024, 4096]),
        ];
        let often = self.random.choose(&[100, 300, 700]);
        let mut limits = Vec::new();
        for (name, values) in SMALL {
            let value = self.random.choose(values);
            if self.random.chance(often) {
                limits.push((name, value));
            }
        }
        // With the default limit of this timeout a scenario may last seven hours of virtual time.
        if !limits.iter().any(|(name, _)| *name == "tunnel_idle_ms") {
            limits.push(("tunnel_idle_ms", 20_000));
        }
        limits
    }

    fn origin(&mut self) -> Origin {
        let ms = self.random.choose(&[0, 1, 50, 1000]);
        let behaviour = self.random.choose(&[
            OriginBehaviour::Refuses,
            OriginBehaviour::ClosesAtOnce,
            OriginBehaviour::ResetsAtOnce,
            OriginBehaviour::NeverReads,
            OriginBehaviour::ClosesIdle(ms),
            OriginBehaviour::EndsIdle(ms),
            OriginBehaviour::SendsUnrequested(ms),
        ]);
        let bad = self.random.choose(&[
            NameBehaviour::Unknown,
            NameBehaviour::Fails,
            NameBehaviour::Silent,
        ]);
        let slow = NameBehaviour::Slow(self.random.choose(&[10, 200, 500, 3000]));
        let good = [
            NameBehaviour::Address,
            NameBehaviour::Address,
            NameBehaviour::Known,
            slow,
            NameBehaviour::Twice,
        ];
        let good = self.random.choose(&good);
        Origin {
            behaviour: if self.draws_fault(400) { behaviour } else { OriginBehaviour::Good },
            tls: TlsPlan::default(),
            naming: match self.draws_fault(150) {
                true => bad,
                false if self.random.chance(100) => NameBehaviour::ForgedFirst,
                false => good,
            },
        }
    }

    fn events(&mut self) -> Vec<OperatorEvent> {
        let at = self.random.choose(&[0, 5, 300, 3000]);
        let at = self.random.between(0, at);
        let mut events = Vec::new();
        if self.random.chance(300) {
            for _ in 0..self.random.between(1, 3) {
                let at = self.random.between(0, at * 2);
                events.push(OperatorEvent::Reload(at, self.reloaded()));
            }
        }
        if self.draws_fault(200) {
            events.push(OperatorEvent::Drain(at));
        }
        events
    }

    /// Returns limits after a reload. In an easy or mixed scenario they are harmless.
    fn reloaded(&mut self) -> Vec<(&'static str, u64)> {
        match self.difficulty {
            Difficulty::Hard => self.limits(),
            Difficulty::Easy | Difficulty::Mixed => vec![
                ("pipelined", self.random.between(1, 8)),
                ("origin_idle_connections", self.random.between(0, 3)),
                ("retries", self.random.between(1, 3)),
            ],
        }
    }

    fn connection(&mut self, client: u8) -> Connection {
        let begins_ms = self.random.choose(&[0, 0, 1, 20, 2000]);
        let begins_ms = self.random.between(0, begins_ms);
        let pipelined = self.random.chance(350);
        let count = self.random.choose(&[1, 1, 2, 3, 6]);
        let mut requests = Vec::new();
        for left in (0..count).rev() {
            requests.push(self.request(left == 0, pipelined));
        }
        let bytes = self.random.choose(&[512, 4096, 60_000]);
        let every = self.random.between(1, 100);
        let stall = self.random.choose(&[50, 1500, 20_000, 10_000_000]);
        let longest = requests.iter().map(|request| request.response.length).max().unwrap_or(0);
        // A client that takes longer to read its socket buffer than the idle limit would be closed.
        let bytes = if longest as u64 / bytes as u64 * every > 15_000 { 60_000 } else { bytes };
        let reader = match self.random.below(10) {
            0 | 1 => Reader::Slow(bytes, every),
            2 if self.draws_fault(1000) => Reader::Stalls(self.random.length(100_000) - 1, stall),
            _ => Reader::Eager,
        };
        // After CONNECT and Upgrade the stream belongs to the tunnel.
        let tunnel = requests.last().is_some_and(|last| last.method.is_tunnel());
        let ending = self.random.choose(&[
            Ending::Closes,
            Ending::Closes,
            if tunnel { Ending::Closes } else { Ending::Finishes },
            Ending::Idles,
        ]);
        let tls = TlsPlan::default();
        Connection { client, begins_ms, reader, pipelined, requests, ending, tls }
    }

    fn request(&mut self, last: bool, pipelined: bool) -> Request {
        self.next += 1;
        let method = match self.random.below(20) {
            0..=8 => Method::Get,
            9 | 10 => Method::Head,
            11..=13 => Method::Post,
            14 | 15 => Method::Put,
            16 => Method::Options,
            17 | 18 if last => Method::Upgrade,
            19 if last && self.forward => Method::Connect,
            _ => Method::Post,
        };
        let old = last && matches!(method, Method::Get | Method::Head) && self.random.chance(100);
        let odd_head =
            Malformation::Head(self.random.below(BAD_REQUEST_HEADERS.len() as u64) as usize);
        let odd_body =
            Malformation::Body(self.random.below(BAD_REQUEST_CHUNKS.len() as u64) as usize);
        let malformation = match self.random.below(50) {
            0 | 1 if self.draws_fault(1000) && !method.is_tunnel() => Some(odd_head),
            2 if self.draws_fault(1000) && method == Method::Post => Some(odd_body),
            _ => None,
        };
        let pause = self.random.choose(&[0, 0, 0, 5, 2000]);
        Request {
            id: self.next,
            method,
            origin: self.random.below(self.origins as u64) as usize,
            old,
            closes: last && self.random.chance(150),
            pause_ms: if pipelined { 0 } else { self.random.between(0, pause) },
            body: self.body(method, old),
            breaks: self.breaks(60),
            malformation,
            file: None,
            response: self.response(method),
        }
    }

    fn body(&mut self, method: Method, old: bool) -> Body {
        let carries = match method {
            Method::Post | Method::Put => self.random.chance(900),
            Method::Connect | Method::Upgrade => true,
            // Allowed, and rare: RFC 9110 section 9.3.1.
            Method::Get | Method::Options => self.random.chance(30),
            Method::Head => false,
        };
        if !carries || old {
            return Body::default();
        }
        let chunked = !method.is_tunnel() && self.random.chance(400);
        let size = self.random.length(70_000);
        Body {
            length: self.length(),
            chunk: chunked.then_some(size.max(16)),
            trailers: chunked && self.random.chance(200),
            expects: matches!(method, Method::Post | Method::Put) && self.random.chance(150),
        }
    }

    /// Returns the length of a body, from the bytes left for the scenario.
    fn length(&mut self) -> usize {
        let max = self.random.choose(&[1, 5000, 100_000, BODY_MAX]);
        let length = (self.random.length(max) - 1).min(self.left);
        self.left -= length;
        length
    }

    /// Returns where a message pauses or, unless the scenario is easy, breaks off.
    fn breaks(&mut self, per_thousand: u64) -> Option<Break> {
        let at = self.random.length(200_000) - 1;
        let pause = BreakKind::Pause(self.random.choose(&[1, 100, 1500]));
        let how = self.random.choose(&[
            BreakKind::Finish,
            BreakKind::Close,
            BreakKind::Reset,
            BreakKind::Stop,
            pause,
        ]);
        let broken = self.draws_fault(per_thousand);
        let paused = self.random.chance(50);
        match (broken, paused) {
            (true, _) => Some(Break { at, how }),
            (false, true) => Some(Break { at, how: pause }),
            _ => None,
        }
    }

    fn response(&mut self, method: Method) -> ResponsePlan {
        let size = self.random.length(70_000).max(16);
        let frame = match self.random.below(10) {
            0..=5 => BodyFraming::Length,
            6..=8 => BodyFraming::Chunks(size),
            _ => BodyFraming::UntilClose,
        };
        let status = match (method, self.random.below(20)) {
            (Method::Upgrade, 0..=16) => 101,
            (_, 0) => 204,
            (Method::Get | Method::Head, 1) => 304,
            (_, 2) => 404,
            // 500, because the proxy itself never sends it.
            (_, 3) => 500,
            _ => 200,
        };
        let delay = self.random.choose(&[0, 0, 0, 10, 1000, 4000]);
        let step = self.random.choose(&[1, 100, 5000]);
        let every = self.random.between(1, 20);
        let length = self.length();
        // A drip of many steps takes minutes and many events.
        let drip = (self.random.chance(100) && length / step < 300).then_some((step, every));
        let wrong = if self.draws_fault(180) { Some(self.response_fault(frame)) } else { None };
        let wrong = wrong.filter(|wrong| match wrong {
            ResponseFault::Chunks(_) => method != Method::Head,
            ResponseFault::ExtraBytes(_) => !method.is_tunnel(),
            _ => true,
        });
        let status = if matches!(wrong, Some(ResponseFault::Chunks(_))) { 200 } else { status };
        ResponsePlan {
            status,
            length,
            framing: frame,
            old: frame != BodyFraming::UntilClose
                && !matches!(frame, BodyFraming::Chunks(_))
                && status != 101
                && self.random.chance(60),
            closes: self.random.chance(100),
            interims: if self.random.chance(100) { self.random.between(1, 4) as u32 } else { 0 },
            delay_ms: self.random.between(0, delay),
            drip,
            early: self.draws_fault(80),
            trailers: matches!(frame, BodyFraming::Chunks(_)) && self.random.chance(200),
            syntax: HeaderSyntax::of(size + length + self.next as usize),
            errors: 0,
            fault: wrong,
        }
    }

    fn response_fault(&mut self, frame: BodyFraming) -> ResponseFault {
        let at = match self.random.chance(300) {
            true => self.random.between(0, 60) as usize,
            false => self.random.length(200_000) - 1,
        };
        let how = self.random.choose(&[
            BreakKind::Finish,
            BreakKind::Close,
            BreakKind::Reset,
            BreakKind::Stop,
        ]);
        match self.random.below(10) {
            0..=3 => ResponseFault::Breaks(Break { at, how }),
            4 | 5 if frame != BodyFraming::UntilClose => {
                ResponseFault::ExtraBytes(self.random.below(UNREQUESTED_BYTES.len() as u64) as usize)
            }
            6 => ResponseFault::Head(self.random.below(BAD_RESPONSE_HEADERS.len() as u64) as usize),
            7 => {
                ResponseFault::Chunks(self.random.below(BAD_RESPONSE_CHUNKS.len() as u64) as usize)
            }
            8 => ResponseFault::InterimFlood,
            _ => ResponseFault::UnrequestedUpgrade,
        }
    }
}
