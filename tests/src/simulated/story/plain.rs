//! The plainest of stories, for tests that change one thing in them.

use millrace_sim::Faults;

use super::plan::{
    Answer, Body, Conduct, Connection, Ending, Form, Frame, Method, Naming, Origin, Proxy, Reader,
    Request, Story, Temper,
};

/// A story of one connection in the kindest world, before a booster.
pub fn plain(requests: Vec<Request>, ending: Ending) -> Story {
    Story {
        seed: 1,
        world: Faults::None,
        temper: Temper::Mixed,
        proxy: Proxy {
            forward: false,
            unix: false,
            workers: 1,
            memory_mb: None,
            descriptors: None,
            limits: Vec::new(),
        },
        origins: vec![Origin { conduct: Conduct::Good, naming: Naming::Address }],
        connections: vec![Connection {
            client: 0,
            begins_ms: 0,
            reader: Reader::Eager,
            pipelined: false,
            requests,
            ending,
        }],
        events: Vec::new(),
        calm: Vec::new(),
    }
}

/// A request with a body of `length` bytes, answered with one of `answer` bytes.
pub fn request(id: u32, method: Method, length: usize, answer: usize) -> Request {
    Request {
        id,
        method,
        origin: 0,
        old: false,
        closes: false,
        pause_ms: 0,
        body: Body { length, ..Body::default() },
        breaks: None,
        oddity: None,
        answer: Answer {
            status: if method == Method::Upgrade { 101 } else { 200 },
            length: answer,
            frame: Frame::Length,
            old: false,
            closes: false,
            interims: 0,
            delay_ms: 0,
            drip: None,
            early: false,
            trailers: false,
            form: Form::Strict,
            wrong: None,
        },
    }
}
