//! Runs a transfer over an engine: connects, forwards, unsplices in some cases, and closes.

use std::time::Duration;

use millrace_engine::{
    Address, Completion, CompletionEvent, Engine, Fd, Instant, Token, TokenKind,
};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::copy_reader::{CopyReader, ReadPolicy};
use super::engine_direction::EngineDirection;
use super::manual_direction::ManualDirection;
use crate::Thresholds;
use crate::direction_state::DirectionState;
use crate::pipes::Pipes;
use crate::request::{End, HalfClose, Side};

/// The time of an unsplice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UnspliceTime {
    /// After this many turns.
    Turns(usize),
    /// When a sink has taken a part of the bytes of a pipe.
    Midway,
}

/// The parameters of a transfer, derived from a seed.
#[derive(Clone)]
pub(super) struct TransferSpec {
    pub(super) seed: u64,
    pub(super) size_bits: usize,
    pub(super) is_bidirectional: bool,
    pub(super) limit: Option<u64>,
    pub(super) prefix: Vec<u8>,
    /// The bytes that each peer sends.
    pub(super) bytes: [usize; 2],
    /// Many bytes are sent to a peer that reads slowly.
    pub(super) is_slow: bool,
    /// How the application reads its copy, if there is one.
    keep: Option<ReadPolicy>,
    /// When the transfer is unspliced.
    unsplice: Option<UnspliceTime>,
    pipes_max: usize,
}

impl TransferSpec {
    /// Derives the parameters. Bodies have fewer than `2^size_bits` bytes.
    pub(super) fn new(seed: u64, size_bits: usize) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut below = |bound: usize| random.next_u64() as usize % bound;
        let is_slow = below(4) == 0;
        let size = 1 << if is_slow { size_bits - 1 } else { below(size_bits) };
        let sizes = [size, 1 << below(size_bits)];
        let is_bidirectional = below(2) == 0;
        // In a unidirectional transfer, the destination sends nothing here.
        let bytes = [below(sizes[0] + 1), below(sizes[1] + 1) * usize::from(is_bidirectional)];
        let limit = below(bytes[0] + 1) as u64;
        let limit = (!is_bidirectional && below(2) == 0).then_some(limit);
        let prefix = (0..below(2) * below(500)).map(|at| at as u8).collect();
        let pipes_max = below(4);
        let keep =
            (!is_bidirectional && below(3) > 0).then(|| ReadPolicy::new(bytes[0], &mut below));
        let most = 1 << below(8);
        let unsplice = match below(4) {
            0 => Some(UnspliceTime::Turns(below(most))),
            1 => Some(UnspliceTime::Midway),
            _ => None,
        };
        Self {
            seed,
            size_bits,
            is_bidirectional,
            limit,
            prefix,
            bytes,
            is_slow,
            keep,
            unsplice,
            pipes_max,
        }
    }

    /// Identifies the stream of the peer at a side.
    pub(super) fn salt(&self, side: usize) -> u64 {
        2 * self.seed + side as u64
    }

    fn directions(&self) -> Vec<EngineDirection> {
        let tokens = |direction: u32| [token(2 * direction), token(2 * direction + 1)];
        let close =
            if self.is_bidirectional { HalfClose::Forwarded } else { HalfClose::NotForwarded };
        let keep = self.keep.map(|policy| policy.keep);
        let forward = DirectionState::new(Side::Fd0, self.prefix.len(), self.limit, keep, close);
        let kept = self.keep.map(|policy| CopyReader::new(policy, self.salt(0)));
        let mut directions =
            vec![EngineDirection::new(forward, self.prefix.clone(), kept, self.salt(0), tokens(0))];
        if self.is_bidirectional {
            let back = DirectionState::new(Side::Fd1, 0, None, None, close);
            directions.push(EngineDirection::new(back, Vec::new(), None, self.salt(1), tokens(1)));
        }
        let stops_midway = self.unsplice == Some(UnspliceTime::Midway);
        directions.iter_mut().for_each(|direction| direction.stops_midway = stops_midway);
        directions
    }
}

fn token(slot: u32) -> Token {
    Token::new(TokenKind::Client, slot, 0)
}

/// Token slots of the two connects, behind those of two directions.
const OPENING: [u32; 2] = [4, 5];

/// A worker that drives one transfer.
pub(super) struct TransferDriver<E: Engine> {
    pub(super) engine: E,
    pipes: Pipes,
    /// `None` after the end of the transfer.
    fds: Option<[Fd; 2]>,
    /// Number of connections that are established.
    opened: usize,
    pub(super) directions: Vec<EngineDirection>,
    /// The directions after an unsplice.
    pub(super) manual: Vec<ManualDirection>,
    /// Turns until the unsplice.
    turns_left: Option<usize>,
    /// How each direction ended; `None` if it was stopped or unspliced.
    pub(super) ends: Vec<Option<End>>,
}

impl<E: Engine> TransferDriver<E> {
    /// Starts to connect to both peers.
    pub(super) fn connecting(
        mut engine: E,
        spec: &TransferSpec,
        addresses: &[Address; 2],
    ) -> Option<Self> {
        let fd0 = engine.connect(&addresses[0], token(OPENING[0])).ok()?;
        let Ok(fd1) = engine.connect(&addresses[1], token(OPENING[1])) else {
            engine.close(fd0);
            return None;
        };
        Some(Self::new(engine, spec, [fd0, fd1], 0))
    }

    /// Takes over connections to both peers.
    pub(super) fn with(engine: E, spec: &TransferSpec, fds: [Fd; 2]) -> Self {
        let mut worker = Self::new(engine, spec, fds, 2);
        worker.advance_all();
        worker
    }

    fn new(engine: E, spec: &TransferSpec, fds: [Fd; 2], opened: usize) -> Self {
        Self {
            engine,
            pipes: Pipes::new(spec.pipes_max, Thresholds::FIXED),
            fds: Some(fds),
            opened,
            directions: spec.directions(),
            manual: Vec::new(),
            turns_left: match spec.unsplice {
                Some(UnspliceTime::Turns(turns)) => Some(turns),
                _ => None,
            },
            ends: Vec::new(),
        }
    }

    /// Handles completions, and lets the application read or unsplice. Call this after each turn of
    /// the engine.
    pub(super) fn handle(&mut self) {
        while let Some(Completion { token, event }) = self.engine.next_completion() {
            match event {
                CompletionEvent::Woken => {}
                CompletionEvent::Received(Ok(buffer)) if self.fds.is_none() => {
                    self.engine.recycle(buffer)
                }
                event if self.fds.is_some() => self.handle_event(token.slot(), event),
                _ => {}
            }
        }
        if self.fds.is_none() || self.opened < 2 || !self.manual.is_empty() {
            return;
        }
        self.turns_left = self.turns_left.map(|turns| turns.saturating_sub(1));
        if self.directions[0].maybe_read() || self.turns_left == Some(0) {
            self.advance_all();
        }
    }

    /// Returns when the application next considers a read, if a read is due.
    pub(super) fn reads_at(&self) -> Option<Instant> {
        let is_to_be_read = self.manual.is_empty() && self.directions[0].is_read_due();
        let is_waiting = self.fds.is_some() && is_to_be_read;
        is_waiting.then(|| self.engine.now() + Duration::from_millis(1))
    }

    fn handle_event(&mut self, slot: u32, event: CompletionEvent) {
        let index = slot as usize / 2;
        match event {
            CompletionEvent::Connected(Ok(())) => self.opened += 1,
            CompletionEvent::Connected(Err(_)) => return self.end(),
            event if !self.manual.is_empty() => {
                self.manual[index].handle_event(event, &mut self.engine)
            }
            event => {
                let [fd0, fd1] = self.fds.as_ref().expect("the transfer has not ended");
                let sink = if index == 0 { fd1 } else { fd0 };
                self.directions[index].handle_event(
                    &event,
                    &mut self.engine,
                    &mut self.pipes,
                    sink,
                );
            }
        }
        if self.opened == 2 {
            self.advance_all();
        }
    }

    fn advance_all(&mut self) {
        if self.manual.is_empty() {
            self.advance();
        }
        if !self.manual.is_empty() {
            self.advance_manual();
        }
    }

    fn advance(&mut self) {
        let is_stopping =
            self.turns_left == Some(0) || self.directions.iter().any(EngineDirection::is_stopping);
        if is_stopping {
            self.directions.iter_mut().for_each(EngineDirection::stop);
        }
        let [fd0, fd1] = self.fds.as_ref().expect("the transfer has not ended");
        // The kernel reports the error of a connection once. If one direction got it, the other
        // would see a normal end, so neither runs any more.
        if !is_aborted(&self.directions) {
            for (direction, fds) in self.directions.iter_mut().zip([[fd0, fd1], [fd1, fd0]]) {
                direction.advance(&mut self.engine, &mut self.pipes, fds);
            }
        }
        if is_aborted(&self.directions)
            || self.directions.iter().all(|direction| direction.state.end().is_some())
        {
            self.end();
        } else if is_stopping && !self.directions.iter().any(EngineDirection::is_sending) {
            let hand_out = |direction: &mut EngineDirection| {
                direction.unsplice(&mut self.engine, &mut self.pipes)
            };
            self.manual = self.directions.iter_mut().map(hand_out).collect();
        }
    }

    fn advance_manual(&mut self) {
        let [fd0, fd1] = self.fds.as_ref().expect("the transfer has not ended");
        for (manual_direction, fds) in self.manual.iter_mut().zip([[fd0, fd1], [fd1, fd0]]) {
            if !manual_direction.is_broken {
                manual_direction.advance(&mut self.engine, fds);
            }
        }
        let is_broken = self.manual.iter().any(|manual_direction| manual_direction.is_broken);
        if is_broken || self.manual.iter().all(|manual_direction| manual_direction.is_over) {
            self.end();
        }
    }

    /// Ends the transfer and closes all descriptors.
    pub(super) fn end(&mut self) {
        let Some(fds) = self.fds.take() else { return };
        let is_unspliced = !self.manual.is_empty();
        let end = |direction: &EngineDirection| direction.state.end().filter(|_| !is_unspliced);
        self.ends = self.directions.iter().map(end).collect();
        for direction in &mut self.directions {
            direction.release(&mut self.engine, &mut self.pipes);
        }
        self.pipes.close_free(&mut self.engine);
        assert_eq!(self.pipes.open(), 0, "no pipe is left open");
        fds.into_iter().for_each(|fd| self.engine.close(fd));
    }

    /// Returns whether every direction ended as planned, or was forwarded manually to its end.
    pub(super) fn is_whole(&self) -> bool {
        match self.manual.is_empty() {
            true => self.ends.iter().all(|end| end.is_some_and(|end| end.error().is_none())),
            false => self
                .manual
                .iter()
                .all(|manual_direction| manual_direction.is_over && !manual_direction.is_broken),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.fds.is_none()
    }
}

fn is_aborted(directions: &[EngineDirection]) -> bool {
    let mut ends = directions.iter().filter_map(|direction| direction.state.end());
    ends.any(|end| end.error().is_some())
}
