//! A transfer over an engine: opens both connections, moves, closes.

use millrace_event::{Address, Completion, Engine, Event, Fd, Kind, Token};
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;

use super::way::Way;
use crate::Thresholds;
use crate::flow::Flow;
use crate::pipes::Pipes;
use crate::request::{Close, End, Side};

/// What a seed asks for.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) size_bits: usize,
    pub(super) is_bidirectional: bool,
    pub(super) limit: Option<u64>,
    pub(super) first: Vec<u8>,
    /// What either peer sends.
    pub(super) bytes: [usize; 2],
    pipes_max: usize,
}

impl Asked {
    /// Bodies of fewer than `2^size_bits` bytes.
    pub(super) fn new(random: &mut Pcg64Mcg, size_bits: usize) -> Self {
        let mut below = |bound: usize| random.next_u64() as usize % bound;
        let sizes = [1 << below(size_bits), 1 << below(size_bits)];
        let is_bidirectional = below(2) == 0;
        // One way, what the destination sends is nobody's here.
        let bytes = [below(sizes[0] + 1), below(sizes[1] + 1) * usize::from(is_bidirectional)];
        let limit = below(bytes[0] + 1) as u64;
        let limit = (!is_bidirectional && below(2) == 0).then_some(limit);
        let first = (0..below(2) * below(500)).map(|at| at as u8).collect();
        Self { size_bits, is_bidirectional, limit, first, bytes, pipes_max: below(3) }
    }

    fn ways(&self) -> Vec<Way> {
        let tokens = |way: u32| [token(2 * way), token(2 * way + 1)];
        let close = if self.is_bidirectional { Close::Forwarded } else { Close::NotForwarded };
        let forth = Flow::new(Side::Fd0, self.first.len(), self.limit, None, close);
        let mut ways = vec![Way::new(forth, self.first.clone(), tokens(0))];
        if self.is_bidirectional {
            let back = Flow::new(Side::Fd1, 0, None, None, close);
            ways.push(Way::new(back, Vec::new(), tokens(1)));
        }
        ways
    }
}

fn token(slot: u32) -> Token {
    Token::new(Kind::Client, slot, 0)
}

/// Slots of what opens the connections, behind those of two ways.
const OPENING: [u32; 2] = [4, 5];

/// Who moves the bytes.
pub(super) struct Worker<E: Engine> {
    pub(super) engine: E,
    pipes: Pipes,
    /// Taken when the transfer is over.
    fds: Option<[Fd; 2]>,
    opened: usize,
    ways: Vec<Way>,
    /// How each way ended, once the transfer is over; `None`: it was broken off.
    pub(super) ends: Vec<Option<End>>,
    pub(super) forwarded: Vec<u64>,
}

impl<E: Engine> Worker<E> {
    /// A worker that begins to connect to both peers.
    pub(super) fn new(mut engine: E, asked: &Asked, addresses: &[Address; 2]) -> Option<Self> {
        let fd0 = engine.connect(&addresses[0], token(OPENING[0])).ok()?;
        let Ok(fd1) = engine.connect(&addresses[1], token(OPENING[1])) else {
            engine.close(fd0);
            return None;
        };
        Some(Self {
            engine,
            pipes: Pipes::new(asked.pipes_max, Thresholds::FIXED),
            fds: Some([fd0, fd1]),
            opened: 0,
            ways: asked.ways(),
            ends: Vec::new(),
            forwarded: Vec::new(),
        })
    }

    /// Handles what came; to be called after each turn of the engine.
    pub(super) fn handle(&mut self) {
        while let Some(Completion { token, event }) = self.engine.next() {
            if self.fds.is_some() && !matches!(event, Event::Woken) {
                self.hear(token.slot(), event);
            }
        }
    }

    fn hear(&mut self, slot: u32, event: Event) {
        match event {
            Event::Connected(Ok(())) => self.opened += 1,
            Event::Connected(Err(_)) => return self.end(),
            event => {
                let [fd0, fd1] = self.fds.as_ref().expect("it is not over");
                let sink = if slot / 2 == 0 { fd1 } else { fd0 };
                let way = &mut self.ways[slot as usize / 2];
                way.hear(&event, &mut self.engine, &mut self.pipes, sink);
            }
        }
        // An error is told once: whoever asks that connection now would take it for closed.
        if self.is_aborted() {
            self.end();
        } else if self.opened == 2 {
            self.advance();
        }
    }

    fn advance(&mut self) {
        let [fd0, fd1] = self.fds.as_ref().expect("it is not over");
        for (way, fds) in self.ways.iter_mut().zip([[fd0, fd1], [fd1, fd0]]) {
            way.advance(&mut self.engine, &mut self.pipes, fds);
        }
        if self.is_aborted() || self.ways.iter().all(|way| way.flow.end().is_some()) {
            self.end();
        }
    }

    fn is_aborted(&self) -> bool {
        let mut ends = self.ways.iter().filter_map(|way| way.flow.end());
        ends.any(|end| end.error().is_some())
    }

    /// Ends the transfer where it is, and closes everything.
    pub(super) fn end(&mut self) {
        let Some(fds) = self.fds.take() else { return };
        self.ends = self.ways.iter().map(|way| way.flow.end()).collect();
        self.forwarded = self.ways.iter().map(|way| way.flow.forwarded()).collect();
        for way in &mut self.ways {
            way.release(&mut self.engine, &mut self.pipes);
        }
        self.pipes.close_free(&mut self.engine);
        assert_eq!(self.pipes.open(), 0, "no pipe is left open");
        fds.into_iter().for_each(|fd| self.engine.close(fd));
    }

    /// Whether every way came to an end that was planned.
    pub(super) fn is_whole(&self) -> bool {
        self.ends.iter().all(|end| end.is_some_and(|end| end.error().is_none()))
    }

    pub(super) fn is_over(&self) -> bool {
        self.fds.is_none()
    }
}
