//! One transfer with its connections, and its checks.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use millrace_splice::{
    DirectionResult, End, Error, Handle, KeepCopy, Linux, Notice, Released, Request, Side,
    SpliceMode, SpliceOutcome, Splicer,
};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::peer::{ByteStream, StressPeer};
use crate::peer_host::PeerHost;

pub(crate) type Splices = Splicer<Linux<Rc<TcpStream>>>;

/// A transfer that takes longer has stalled, even with packet loss.
const STALL_TIME: Duration = Duration::from_secs(120);

pub(crate) struct StressTransfer {
    seed: u64,
    random: Pcg64Mcg,
    /// The connections `fd0` and `fd1`.
    fds: [Rc<TcpStream>; 2],
    peers: [StressPeer; 2],
    mode: SpliceMode,
    keep_copy: Option<KeepCopy>,
    auto_release: bool,
    handle: Option<Handle>,
    is_read_due: bool,
    /// Kept payload that was read.
    read: usize,
    ended: Option<(End, [u64; 2])>,
    released: Option<Released>,
    /// Steps until the peers and the application finish their work.
    steps: usize,
    /// The peers read slowly until `steps` is 0.
    is_slow: bool,
    aborts: bool,
    unsplices: bool,
    since: Instant,
}

impl StressTransfer {
    pub(crate) fn new(seed: u64, hosts: &[PeerHost; 2], splicer: &mut Splices) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let mut below = |bound: usize| random.next_u64() as usize % bound;
        let size = 1 << below(22);
        let is_slow = below(4) == 0;
        // A slow transfer has more bytes than the buffers between the source and the reader can
        // hold.
        let bytes = if is_slow { (1 << 20) + below(1 << 20) } else { below(size + 1) };
        let back_max = 1 << below(18);
        let back = below(back_max);
        let limit = (below(2) == 0).then(|| below(bytes + 1) as u64);
        let is_both = below(3) == 0;
        let mode =
            if is_both { SpliceMode::Bidirectional } else { SpliceMode::Unidirectional { limit } };
        let cache_max = 1 << below(20);
        // A small bound would need too many rounds for a large body.
        let max2cache = 1 + bytes / 256 + below(cache_max);
        let keep_copy = KeepCopy { min2read: 1 + below(max2cache), max2cache };
        let keep_copy = (!is_both && below(2) == 0).then_some(keep_copy);
        let prefix: Vec<u8> = (0..below(3000) * below(2)).map(|at| (at * 3) as u8).collect();
        let (auto_release, aborts) = (below(2) == 0, below(4) == 0);
        let unsplices = is_slow || below(3) == 0;
        let steps = below(300);
        let streams = [ByteStream(2 * seed), ByteStream(2 * seed + 1)];
        let (peer0, fd0) = StressPeer::new(&hosts[0], streams[0], bytes, Vec::new(), streams[1]);
        let (peer1, fd1) = StressPeer::new(&hosts[1], streams[1], back, prefix.clone(), streams[0]);
        let mut transfer = Self {
            seed,
            random,
            fds: [fd0, fd1],
            peers: [peer0, peer1],
            mode,
            keep_copy,
            auto_release,
            handle: None,
            is_read_due: false,
            read: 0,
            ended: None,
            released: None,
            steps,
            is_slow,
            aborts,
            unsplices,
            since: Instant::now(),
        };
        transfer.splice(&prefix, splicer);
        transfer
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.next_u64() as usize % bound
    }

    fn splice(&mut self, prefix: &[u8], splicer: &mut Splices) {
        let piece = self.below(100_000);
        self.peers[0].send(piece);
        let mut input = vec![0; self.below(50_000)];
        let request = Request {
            fd0: self.fds[0].clone(),
            fd1: self.fds[1].clone(),
            mode: self.mode,
            keep_copy: self.keep_copy,
            auto_release: self.auto_release,
            prefix,
            input: if self.keep_copy.is_some() { &mut input } else { &mut [] },
        };
        match splicer.splice(request).expect("both are open") {
            SpliceOutcome::Started { handle, input: count } => {
                self.handle = Some(handle);
                self.compare_copy(&input[..count]);
            }
            SpliceOutcome::Ended { end, released, input: count } => {
                self.compare_copy(&input[..count]);
                self.ended =
                    Some((end, [0, 1].map(|direction| released.directions[direction].forwarded)));
                self.released = Some(released);
            }
        }
    }

    fn compare_copy(&mut self, bytes: &[u8]) {
        let wanted = self.peers[0].stream().bytes(self.read, self.read + bytes.len());
        assert!(bytes == wanted, "kept bytes from {}", self.read);
        self.read += bytes.len();
    }

    pub(crate) fn has_handle(&self, handle: Handle) -> bool {
        self.handle == Some(handle)
    }

    /// Returns whether the random steps are over and no read is due.
    pub(crate) fn is_waiting(&self) -> bool {
        self.steps == 0 && !self.is_read_due
    }

    pub(crate) fn handle_notice(&mut self, notice: Notice) {
        assert!(self.ended.is_none(), "the end is the last notice");
        match notice {
            Notice::Readable(_) => self.is_read_due = true,
            Notice::Ended { end, forwarded, .. } => self.ended = Some((end, forwarded)),
        }
    }

    /// Performs a random step; after the last step, all work that is left.
    pub(crate) fn step(&mut self, splicer: &mut Splices) {
        let _report = SeedReport(self.seed);
        assert!(self.since.elapsed() < STALL_TIME, "the transfer has stalled");
        let size = 1 << self.below(18);
        let max = 1 + self.below(size);
        let is_still = self.is_slow && self.below(16) > 0;
        let side = self.below(2);
        if self.steps == 0 {
            for peer in &mut self.peers {
                peer.send(1 << 18);
                peer.receive(1 << 18);
                if peer.has_sent_all() && !peer.is_closed {
                    peer.close();
                }
            }
            return self.read_kept(1 << 18, splicer);
        }
        self.steps -= 1;
        match self.below(40) {
            0..16 => self.peers[side].send(if self.is_slow { 1 << 18 } else { max }),
            16..32 if !is_still => self.peers[side].receive(max),
            32..38 => self.read_kept(max, splicer),
            38 if self.aborts && self.below(3) == 0 => self.peers[side].abort(),
            39 if self.unsplices && self.below(4) == 0 => self.unsplice(splicer),
            39 if self.peers[side].has_sent_all() => self.peers[side].close(),
            _ => self.try_forbidden_calls(splicer),
        }
    }

    fn read_kept(&mut self, max: usize, splicer: &mut Splices) {
        if !std::mem::take(&mut self.is_read_due) {
            return;
        }
        let mut bytes = vec![0; max];
        let handle = self.handle.expect("the notice had its handle");
        match splicer.read(handle, Side::Fd0, &mut bytes) {
            Ok(count) => self.compare_copy(&bytes[..count]),
            Err(error) => assert!(error == Error::Stale && self.released.is_some(), "{error}"),
        }
    }

    fn try_forbidden_calls(&self, splicer: &mut Splices) {
        let Some(handle) = self.handle.filter(|&handle| splicer.forwarded_bytes(handle).is_ok())
        else {
            return;
        };
        assert_eq!(splicer.write(handle, Side::Fd1, b"x"), Err(Error::NotPermitted));
        if self.keep_copy.is_none() {
            assert_eq!(splicer.read(handle, Side::Fd0, &mut [0]), Err(Error::NotPermitted));
        }
    }

    fn unsplice(&mut self, splicer: &mut Splices) {
        if let Some(released) = self.handle.and_then(|handle| splicer.unsplice(handle).ok()) {
            self.released = Some(released);
        }
    }

    /// Ends a released transfer: compares all bytes and forwards the rest. Returns whether it is
    /// done.
    pub(crate) fn finish(&mut self, splicer: &mut Splices) -> bool {
        let is_due = self.ended.is_some() && (self.auto_release || self.steps == 0);
        if is_due && self.released.is_none() && !self.auto_release {
            self.unsplice(splicer);
            let released = self.released.as_ref().expect("it was not released yet");
            assert_eq!(released.end, self.ended.map(|(end, _)| end));
        }
        if !is_due && self.released.is_none() {
            return false;
        }
        let _report = SeedReport(self.seed);
        self.check_end();
        let [forth, back] = match (self.released.take(), self.ended) {
            (Some(released), _) => released.directions,
            // The rest was dropped at the abort.
            (None, Some((End::Aborted { .. }, _))) => return true,
            (None, ended) => ended
                .expect("it ended")
                .1
                .map(|forwarded| DirectionResult { forwarded, ..DirectionResult::default() }),
        };
        self.check_kept(&forth);
        self.forward_rest(0, forth);
        self.forward_rest(1, back);
        true
    }

    fn check_end(&self) {
        let Some((end, forwarded)) = self.ended else { return };
        let [peer0, peer1] = &self.peers;
        match (end, self.mode) {
            (End::Limit, SpliceMode::Unidirectional { limit }) => {
                assert_eq!(limit, Some(forwarded[0]))
            }
            (End::Closed, SpliceMode::Unidirectional { .. }) => {
                assert!(peer0.is_closed && peer0.sent as u64 == forwarded[0]);
            }
            (End::Closed, SpliceMode::Bidirectional) => {
                assert!(peer0.is_closed && peer1.is_closed);
                assert_eq!([peer0.sent as u64, peer1.sent as u64], forwarded);
            }
            (End::Aborted { side, .. }, _) => assert!(self.peers[side as usize].is_aborted()),
            other => panic!("{other:?}"),
        }
    }

    /// Checks that the copy is the forwarded payload, or the whole payload if the destination
    /// failed.
    fn check_kept(&mut self, direction: &DirectionResult) {
        if self.keep_copy.is_none() {
            return;
        }
        self.compare_copy(&direction.kept);
        let is_gone = self.peers[1].is_aborted();
        assert!(self.read as u64 == direction.forwarded || is_gone, "{} were kept", self.read);
    }

    /// Forwards the rest of a direction: the unsent bytes, and then the bytes that are left in the
    /// connection. The other peer must get the whole stream.
    fn forward_rest(&mut self, side: usize, direction: DirectionResult) {
        if self.peers[side].is_aborted() {
            return;
        }
        self.peers[side].close();
        let mut bytes = direction.unsent;
        let rest = read_to_end(&mut &*self.fds[side]);
        let (from, to) = if side == 0 { (0, 1) } else { (1, 0) };
        let stream = self.peers[from].stream();
        let forwarded = direction.forwarded as usize;
        let kept = if self.keep_copy.is_some() && side == 0 { self.read } else { 0 };
        let unsent = bytes.len() - direction.prefix_unsent;
        let taken = (forwarded + unsent).max(kept);
        assert!(rest == stream.bytes(taken, self.peers[from].sent), "{} left", rest.len());
        assert!(bytes[direction.prefix_unsent..] == stream.bytes(forwarded, forwarded + unsent));
        // In a unidirectional transfer, the other direction forwards nothing.
        if self.peers[to].is_aborted() || (side == 1 && self.mode != SpliceMode::Bidirectional) {
            return;
        }
        bytes.extend(rest);
        let mut left = &bytes[..];
        while !self.peers[to].is_at_end {
            assert!(self.since.elapsed() < STALL_TIME, "the transfer has stalled");
            match (&*self.fds[to]).write(left) {
                Ok(count) => left = &left[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => assert!(left.is_empty(), "{error}"),
            }
            if left.is_empty() {
                // It fails if the write side was shut down before.
                let _ = self.fds[to].shutdown(Shutdown::Write);
            }
            self.peers[to].receive(1 << 18);
        }
        let wanted = self.peers[to].prefix() + self.peers[from].sent;
        assert_eq!(self.peers[to].got, wanted, "the other peer got all of it");
    }
}

/// Reads all bytes of a peer that has closed.
fn read_to_end(connection: &mut &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    connection.set_nonblocking(false).expect("it is open");
    connection.set_read_timeout(Some(STALL_TIME)).expect("it is open");
    connection.read_to_end(&mut bytes).expect("the peer has closed");
    connection.set_nonblocking(true).expect("it is open");
    bytes
}

/// Prints the seed if the test panics.
pub(crate) struct SeedReport(pub(crate) u64);

impl Drop for SeedReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}
