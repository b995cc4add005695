//! Minimal scenarios, in which a test changes one detail.

use millrace_sim::Faults;

use super::plan::{
    Body, BodyFraming, Connection, Difficulty, Ending, HeaderSyntax, Method, NameBehaviour, Origin,
    OriginBehaviour, Proxy, RandomScenario, Reader, Request, ResponsePlan,
};
use crate::simulated::TlsPlan;

/// Returns a scenario of one connection to a reverse proxy, in a world without faults.
pub fn plain_scenario(requests: Vec<Request>, ending: Ending) -> RandomScenario {
    RandomScenario {
        seed: 1,
        world: Faults::None,
        difficulty: Difficulty::Mixed,
        proxy: Proxy {
            forward: false,
            unix: false,
            secured: false,
            accepts_unknown_names: false,
            secures_origins: false,
            fastcgi: false,
            upload_buffer: None,
            pipelining: None,
            workers: 1,
            memory_mb: None,
            descriptors: None,
            limits: Vec::new(),
        },
        folder: None,
        origins: vec![Origin {
            behaviour: OriginBehaviour::Good,
            naming: NameBehaviour::Address,
            tls: TlsPlan::default(),
        }],
        connections: vec![Connection {
            client: 0,
            begins_ms: 0,
            reader: Reader::Eager,
            pipelined: false,
            requests,
            ending,
            tls: TlsPlan::default(),
        }],
        events: Vec::new(),
        disabled_faults: Vec::new(),
    }
}

/// Returns a request with a body of `length` bytes. The body of its response has `answer` bytes.
pub fn plain_request(id: u32, method: Method, length: usize, answer: usize) -> Request {
    Request {
        id,
        method,
        origin: 0,
        old: false,
        closes: false,
        pause_ms: 0,
        body: Body { length, ..Body::default() },
        breaks: None,
        malformation: None,
        file: None,
        response: ResponsePlan {
            status: if method == Method::Upgrade { 101 } else { 200 },
            length: answer,
            framing: BodyFraming::Length,
            old: false,
            closes: false,
            interims: 0,
            delay_ms: 0,
            drip: None,
            early: false,
            trailers: false,
            syntax: HeaderSyntax::Strict,
            errors: 0,
            fault: None,
        },
    }
}
