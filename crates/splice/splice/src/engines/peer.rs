//! The peers of a transfer, in a simulated world or on this machine.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;

use millrace_sim::{ActorSocket, ReadResult, World};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::transfer_driver::TransferSpec;

/// The peer's end of a connection. No function waits.
pub(super) trait PeerStream {
    /// Returns how many of `bytes` were sent; `None` if none can be sent any more.
    fn write(&mut self, bytes: &[u8]) -> Option<usize>;
    /// Returns received bytes.
    fn read(&mut self, max: usize) -> ReadResult;
    /// Shuts down the write side.
    fn finish(&mut self);
    /// Resets the connection. It is not used afterwards.
    fn reset(&mut self);
}

/// A connection in a simulated world.
pub(super) struct SimulatedStream(pub(super) World, pub(super) ActorSocket);

impl PeerStream for SimulatedStream {
    fn write(&mut self, bytes: &[u8]) -> Option<usize> {
        self.0.write(self.1, bytes).ok()
    }

    fn read(&mut self, max: usize) -> ReadResult {
        self.0.read(self.1, max)
    }

    fn finish(&mut self) {
        self.0.shutdown_write(self.1);
    }

    fn reset(&mut self) {
        self.0.reset(self.1);
    }
}

impl PeerStream for Option<TcpStream> {
    fn write(&mut self, bytes: &[u8]) -> Option<usize> {
        match self.as_mut().expect("it was not reset").write(bytes) {
            Ok(count) => Some(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Some(0),
            Err(_) => None,
        }
    }

    fn read(&mut self, max: usize) -> ReadResult {
        let mut bytes = vec![0; max];
        match self.as_mut().expect("it was not reset").read(&mut bytes) {
            Ok(0) => ReadResult::End,
            Ok(count) => ReadResult::Bytes(bytes[..count].to_vec()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => ReadResult::Nothing,
            Err(_) => ReadResult::Failed(millrace_engine::Error::Reset),
        }
    }

    fn finish(&mut self) {
        // It fails if the connection was reset.
        let _ = self.as_ref().expect("it was not reset").shutdown(Shutdown::Write);
    }

    fn reset(&mut self) {
        let stream = self.take().expect("it was not reset");
        millrace_sys::reset_on_close(stream.as_fd()).expect("it is a socket");
    }
}

/// Returns one byte of a peer's stream.
pub(super) fn byte(salt: u64, at: usize) -> u8 {
    (salt as usize * 37 + at * 7 + at / 251 + at / 65_521) as u8
}

/// A peer, which sends its stream in random pieces and compares the bytes that it receives.
pub(super) struct StreamPeer<S> {
    stream: S,
    salt: u64,
    random: Pcg64Mcg,
    pub(super) sent: usize,
    left: usize,
    is_finished: bool,
    /// The expected prefix, before the stream of the other peer.
    prefix: Vec<u8>,
    pub(super) got: usize,
    /// The other side closed without a failure.
    pub(super) is_at_end: bool,
    pub(super) is_broken: bool,
    /// Steps until the peer resets the connection, if it does.
    resets_after: Option<usize>,
    pub(super) has_reset: bool,
    /// The most bytes of one read.
    read_max: usize,
    one_in: usize,
}

impl<S: PeerStream> StreamPeer<S> {
    pub(super) fn new(stream: S, spec: &TransferSpec, side: usize) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(spec.seed ^ side as u64);
        let size_bits = spec.size_bits;
        // The slowest peer needs one or two thousand reads for the largest body.
        let read_max = 1 << (size_bits / 2 + random.next_u64() as usize % (size_bits / 2));
        let mut below = |bound: usize| random.next_u64() as usize % bound;
        let most = 1 << below(8);
        let resets_after = (below(4) == 0).then(|| below(most));
        let one_in = if spec.is_slow { 16 } else { 1 };
        Self {
            stream,
            salt: spec.salt(side),
            random,
            sent: 0,
            left: spec.bytes[side],
            is_finished: false,
            prefix: if side == 1 { spec.prefix.clone() } else { Vec::new() },
            got: 0,
            is_at_end: false,
            is_broken: false,
            resets_after,
            has_reset: false,
            read_max,
            one_in,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.next_u64() as usize % bound
    }

    /// Performs a step. Returns `false` when nothing is left to do.
    pub(super) fn step(&mut self) -> bool {
        if self.is_broken || (self.is_finished && self.is_at_end) {
            return false;
        }
        self.resets_after = self.resets_after.map(|after| after.saturating_sub(1));
        if self.resets_after == Some(0) {
            (self.is_broken, self.has_reset) = (true, true);
            self.stream.reset();
            return false;
        }
        if self.left > 0 {
            self.send();
        } else if !self.is_finished {
            self.is_finished = true;
            self.stream.finish();
        }
        self.receive();
        !self.is_broken
    }

    fn send(&mut self) {
        let size = 1 << self.below(18);
        let count = self.left.min(1 + self.below(size));
        let piece: Vec<u8> = (0..count).map(|at| byte(self.salt, self.sent + at)).collect();
        match self.stream.write(&piece) {
            Some(count) => {
                self.sent += count;
                self.left -= count;
            }
            // The worker closed or reset the connection. If it closed without reading everything,
            // it has sent its whole stream, so the peer continues to receive.
            None => (self.left, self.is_finished) = (0, true),
        }
    }

    fn receive(&mut self) {
        if self.is_at_end || self.below(self.one_in) > 0 {
            return;
        }
        let max = 1 + self.below(self.read_max);
        match self.stream.read(max) {
            ReadResult::Bytes(bytes) => bytes.into_iter().for_each(|byte| self.compare(byte)),
            ReadResult::End => self.is_at_end = true,
            ReadResult::Failed(_) => self.is_broken = true,
            ReadResult::Nothing => {}
        }
    }

    fn compare(&mut self, got: u8) {
        let first = self.prefix.get(self.got).copied();
        let wanted = first.unwrap_or_else(|| byte(self.salt ^ 1, self.got - self.prefix.len()));
        assert_eq!(got, wanted, "byte {}", self.got);
        self.got += 1;
    }
}
