//! A run of the model: transfers of one splicer, their peers, and an application that reads after
//! notices, at once or late.

use std::cell::RefCell;
use std::rc::Rc;

use millrace_splice::{
    End, Error, Handle, KeepCopy, Notice, Released, Request, Side, SpliceMode, SpliceOutcome,
    Splicer,
};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::kernel::{ModelKernel, ModelWorld};

/// The peer of a connection.
pub(crate) struct ModelPeer {
    pub(crate) connection: usize,
    pub(crate) sent: usize,
    /// Bytes left to send.
    left: usize,
    pub(crate) got: Vec<u8>,
}

impl ModelPeer {
    /// Returns the bytes of its stream at `from..to`.
    pub(crate) fn stream(&self, from: usize, to: usize) -> Vec<u8> {
        (from..to).map(|at| (self.connection * 37 + at * 7 + at / 251) as u8).collect()
    }
}

/// A request to the splicer, and its results.
pub(crate) struct ModelTransfer {
    pub(crate) mode: SpliceMode,
    pub(crate) keep_copy: Option<KeepCopy>,
    pub(crate) auto_release: bool,
    pub(crate) prefix: Vec<u8>,
    pub(crate) handle: Option<Handle>,
    /// The peers of `fd0` and of `fd1`.
    pub(crate) peers: [ModelPeer; 2],
    /// Kept payload that the application read.
    pub(crate) read: Vec<u8>,
    /// A readable notice came, and the application has not read since.
    is_read_due: bool,
    /// Bytes that the application read from the destination.
    pub(crate) requests: Vec<u8>,
    /// Bytes that the application wrote to the source.
    pub(crate) written: usize,
    pub(crate) ended: Option<(End, [u64; 2])>,
    pub(crate) released: Option<Released>,
}

pub(crate) struct ModelRun {
    pub(crate) world: Rc<RefCell<ModelWorld>>,
    pub(crate) splicer: Splicer<ModelKernel>,
    random: Pcg64Mcg,
    pipes_max: usize,
    pub(crate) transfers: Vec<ModelTransfer>,
    aborts: bool,
    /// The run moves many bytes in large steps.
    is_large: bool,
}

impl ModelRun {
    pub(crate) fn new(seed: u64) -> Self {
        let world = Rc::new(RefCell::new(ModelWorld::new(seed)));
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let pipes_max = random.next_u64() as usize % 6;
        let aborts = random.next_u64().is_multiple_of(3);
        let splicer = Splicer::new(ModelKernel(world.clone()), pipes_max);
        let is_large = seed.is_multiple_of(20) && world.borrow().is_coarse();
        let transfers = Vec::new();
        let mut model_run = Self { world, splicer, random, pipes_max, transfers, aborts, is_large };
        for _ in 0..1 + model_run.below(3) {
            model_run.splice();
        }
        model_run
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.next_u64() as usize % bound
    }

    fn one_of(&mut self, values: &[usize]) -> usize {
        values[self.below(values.len())]
    }

    /// Like [`ModelRun::one_of`], but takes the last value in a large run.
    fn step(&mut self, values: [usize; 4]) -> usize {
        if self.is_large { values[3] } else { values[self.below(4)] }
    }

    fn peer(&mut self, bytes: usize) -> ModelPeer {
        let room = self.step([1, 100, 5000, 1 << 20]);
        let mut world = self.world.borrow_mut();
        ModelPeer { connection: world.connect(room), sent: 0, left: bytes, got: Vec::new() }
    }

    /// Starts a transfer for which bytes may have arrived already.
    fn splice(&mut self) {
        let size = if self.is_large { 2 << 20 } else { self.one_of(&[0, 1, 500, 5000, 5000]) };
        let bytes = self.below(size + 1);
        let (limit, both) = (self.below(2 * bytes + 1) as u64, self.below(3) == 0);
        let limit = (self.below(2) == 0).then_some(limit);
        let mode =
            if both { SpliceMode::Bidirectional } else { SpliceMode::Unidirectional { limit } };
        let max2cache = self.step([1, 10, 1000, 300_000]);
        let keep_copy = KeepCopy { min2read: 1 + self.below(max2cache), max2cache };
        let keep_copy = (!both && self.below(2) == 0).then_some(keep_copy);
        let auto_release = self.below(2) == 0;
        let (length, requests) = (self.below(200), self.below(500));
        let peers = [self.peer(bytes), self.peer(requests)];
        let prefix = (0..length).map(|at| at as u8).collect();
        self.transfers.push(ModelTransfer {
            mode,
            keep_copy,
            auto_release,
            prefix,
            handle: None,
            peers,
            read: Vec::new(),
            is_read_due: false,
            requests: Vec::new(),
            written: 0,
            ended: None,
            released: None,
        });
        let index = self.transfers.len() - 1;
        for _ in 0..self.below(5) {
            self.deliver(index);
        }
        if self.below(4) == 0 {
            self.end(index);
        }
        self.start(index);
    }

    fn start(&mut self, index: usize) {
        let mut input = vec![0; self.one_of(&[0, 10, 100_000])];
        let transfer = &mut self.transfers[index];
        let request = Request {
            fd0: transfer.peers[0].connection,
            fd1: transfer.peers[1].connection,
            mode: transfer.mode,
            keep_copy: transfer.keep_copy,
            auto_release: transfer.auto_release,
            prefix: &transfer.prefix,
            input: if transfer.keep_copy.is_some() { &mut input } else { &mut [] },
        };
        match self.splicer.splice(request).expect("both are open") {
            SpliceOutcome::Started { handle, input: count } => {
                transfer.handle = Some(handle);
                transfer.read.extend(&input[..count]);
            }
            SpliceOutcome::Ended { end, released, input: count } => {
                transfer.read.extend(&input[..count]);
                assert_eq!(released.end, Some(end));
                let forwarded = [0, 1].map(|direction| released.directions[direction].forwarded);
                transfer.ended = Some((end, forwarded));
                transfer.released = Some(released);
            }
        }
    }

    /// Runs random events. [`ModelRun::finish`] completes the transfers that are left.
    pub(crate) fn run(&mut self) {
        for _ in 0..20 + self.below(200) {
            let index = self.below(self.transfers.len());
            match self.below(100) {
                0..30 => drop(self.deliver(index)),
                30..55 => drop(self.collect(index)),
                55..85 => drop(self.forward()),
                85..94 => self.act_as_application(index),
                94..96 => drop(self.end(index)),
                96 if self.aborts => self.abort(index),
                97 if self.below(4) == 0 => self.unsplice(index),
                98 => drop(self.world.borrow_mut().pass_time()),
                _ => {}
            }
        }
    }

    /// Lets peers, application and splicer finish their work.
    pub(crate) fn finish(&mut self) {
        for round in 0.. {
            assert!(round < 2_000_000, "the run does not end");
            let mut is_moved = false;
            for index in 0..self.transfers.len() {
                is_moved |= self.deliver(index) | self.collect(index);
                is_moved |= self.end(index);
                if self.transfers[index].is_read_due {
                    self.read_kept(index);
                    is_moved = true;
                }
            }
            is_moved |= self.forward();
            // Time passes only if nothing else is left to do. So a splicer that retries before the
            // end of the pause loops until the limit of rounds and fails.
            if !is_moved && !self.world.borrow_mut().pass_time() {
                return;
            }
        }
    }

    /// Both peers send, in random order.
    fn deliver(&mut self, index: usize) -> bool {
        let side = self.below(2);
        let other = self.deliver_from(index, 1 - side);
        self.deliver_from(index, side) || other
    }

    fn deliver_from(&mut self, index: usize, side: usize) -> bool {
        let max = self.step([1, 100, 2000, 600_000]);
        let peer = &mut self.transfers[index].peers[side];
        let count = peer.left.min(max);
        let mut world = self.world.borrow_mut();
        let connection = &world.connections[peer.connection];
        if count == 0 || connection.is_ended || connection.is_aborted {
            return false;
        }
        world.deliver(peer.connection, &peer.stream(peer.sent, peer.sent + count));
        peer.sent += count;
        peer.left -= count;
        true
    }

    /// Both peers receive all bytes.
    pub(crate) fn collect_all(&mut self, index: usize) {
        self.collect_up_to(index, usize::MAX);
    }

    /// Both peers receive some bytes.
    fn collect(&mut self, index: usize) -> bool {
        let max = self.step([1, 100, 2000, 1 << 20]);
        self.collect_up_to(index, max)
    }

    fn collect_up_to(&mut self, index: usize, max: usize) -> bool {
        let mut is_moved = false;
        for peer in &mut self.transfers[index].peers {
            let bytes = self.world.borrow_mut().collect(peer.connection, max);
            is_moved |= !bytes.is_empty();
            peer.got.extend(bytes);
        }
        is_moved
    }

    /// Peers that have sent everything close.
    fn end(&mut self, index: usize) -> bool {
        let mut is_moved = false;
        for peer in &self.transfers[index].peers {
            let mut world = self.world.borrow_mut();
            let connection = &world.connections[peer.connection];
            if peer.left == 0 && !connection.is_ended && !connection.is_aborted {
                world.end(peer.connection);
                is_moved = true;
            }
        }
        is_moved
    }

    fn abort(&mut self, index: usize) {
        let side = self.below(2);
        let connection = self.transfers[index].peers[side].connection;
        if !self.world.borrow().connections[connection].is_aborted {
            self.world.borrow_mut().abort(connection);
        }
    }

    fn unsplice(&mut self, index: usize) {
        let transfer = &mut self.transfers[index];
        let Some(handle) = transfer.handle else { return };
        match self.splicer.unsplice(handle) {
            Ok(released) => transfer.released = Some(released),
            Err(Error::Stale) => assert!(transfer.released.is_some() || transfer.auto_release),
            Err(error) => panic!("{error}"),
        }
    }

    /// Reads if a notice came. Otherwise tries calls that are allowed and calls that are not.
    fn act_as_application(&mut self, index: usize) {
        if self.transfers[index].is_read_due {
            return self.read_kept(index);
        }
        let mut bytes = vec![0; self.one_of(&[1, 100])];
        let transfer = &mut self.transfers[index];
        let Some(handle) = transfer.handle else { return };
        if transfer.mode != SpliceMode::Bidirectional
            && self.splicer.forwarded_bytes(handle).is_ok()
        {
            let of_source =
                if transfer.keep_copy.is_some() { Ok(0) } else { Err(Error::NotPermitted) };
            assert_eq!(self.splicer.read(handle, Side::Fd0, &mut []), of_source);
            assert_eq!(self.splicer.read(handle, Side::Fd1, &mut []), Ok(0));
        }
        let [source, destination] = [Side::Fd0, Side::Fd1];
        let refused = Err(Error::NotPermitted);
        match transfer.mode {
            _ if self.splicer.forwarded_bytes(handle).is_err() => {}
            SpliceMode::Bidirectional => {
                assert_eq!(self.splicer.read(handle, source, &mut bytes), refused);
                assert_eq!(self.splicer.write(handle, source, &bytes), refused);
                assert_eq!(self.splicer.read(handle, destination, &mut bytes), refused);
            }
            SpliceMode::Unidirectional { .. } => {
                assert_eq!(self.splicer.write(handle, destination, &bytes), refused);
                if transfer.keep_copy.is_none() {
                    assert_eq!(self.splicer.read(handle, source, &mut bytes), refused);
                }
                if let Ok(count) = self.splicer.read(handle, destination, &mut bytes) {
                    transfer.requests.extend(&bytes[..count]);
                }
                transfer.written += self.splicer.write(handle, source, b"x").unwrap_or(0);
            }
        }
    }

    /// Reads kept payload after a notice.
    fn read_kept(&mut self, index: usize) {
        let mut bytes = vec![0; self.step([1, 100, 1000, 400_000])];
        let transfer = &mut self.transfers[index];
        let handle = transfer.handle.expect("the notice had its handle");
        transfer.is_read_due = false;
        match self.splicer.read(handle, Side::Fd0, &mut bytes) {
            Ok(count) => {
                assert!(count > 0, "a notice means that there are bytes");
                transfer.read.extend(&bytes[..count]);
            }
            Err(Error::Stale) => assert!(transfer.released.is_some()),
            Err(error) => panic!("{error}"),
        }
    }

    /// Does what a loop around poll(2) does.
    fn forward(&mut self) -> bool {
        if !self.world.borrow().is_readable() {
            return false;
        }
        self.splicer.forward(Some(0)).expect("no descriptor is closed");
        while let Some(notice) = self.splicer.next_notice() {
            let index = self.handle_notice(notice);
            if self.transfers[index].is_read_due && self.below(2) == 0 {
                self.read_kept(index);
            }
        }
        assert!(self.splicer.pipes().0 <= self.pipes_max);
        for transfer in &self.transfers {
            self.check_bounds(transfer);
        }
        true
    }

    /// Records a notice and returns the index of its transfer.
    fn handle_notice(&mut self, notice: Notice) -> usize {
        let name = Some(notice.handle());
        let index =
            self.transfers.iter().position(|it| it.handle == name).expect("the handle is known");
        let transfer = &mut self.transfers[index];
        assert!(
            transfer.released.is_none() && transfer.ended.is_none(),
            "the end is the last notice"
        );
        match notice {
            Notice::Readable(_) => {
                assert!(
                    transfer.keep_copy.is_some() && !transfer.is_read_due,
                    "a notice is sent once"
                );
                transfer.is_read_due = true;
            }
            Notice::Ended { end, forwarded, .. } => {
                assert!(!transfer.is_read_due, "the end comes after the last read");
                transfer.ended = Some((end, forwarded));
            }
        }
        index
    }
}
