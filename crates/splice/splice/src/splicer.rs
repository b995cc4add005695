//! The paper's interface: splice, be told, read what is kept, unsplice.

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};

use millrace_engine::{Key, Table};
use millrace_sys::{Errno, TcpState};

use crate::carrier::Tools;
use crate::kernel::{Found, Kernel, Linux, Result as KernelResult, is_shortage};
use crate::limits::{COPY_BYTES, SHORTAGE_PAUSE_MS, TRANSFERS_MAX, TURNS_PER_SHED};
use crate::pool::Pool;
use crate::request::{End, Error, Handle, Notice, Outcome, Released, Request, Side};
use crate::transfer::Transfer;

/// Splices connections: holds the transfers that are under way, and moves their bytes when it is
/// asked to. It has no thread: the application calls [`Splicer::turn`] when [`Splicer::fd`] is
/// readable, and takes notices afterwards, until there are none.
///
/// Connections are whatever `K` takes for one: for [`Linux`] anything that lends a descriptor, such
/// as an `Rc<TcpStream>` or a borrowed one. A splicer keeps it until the transfer is released.
///
/// A splicer that is dropped closes its pipes with what is in them, and drops the connections.
///
/// What an application may not do during a transfer is refused by [`Splicer::read`] and
/// [`Splicer::write`]. Nobody polices calls that pass by these: bytes that such a call reads are
/// missing in the transfer, and those that it writes land in the middle of it.
pub struct Splicer<K: Kernel> {
    tools: Tools<K>,
    transfers: Table<Transfer<K>>,
    /// Connections of these transfers.
    busy: HashSet<u64>,
    /// Transfers that can go on at once; each has `is_queued`.
    queue: VecDeque<Key>,
    /// Transfers that wait for the end of a pause; each has `is_pausing`.
    pausing: Vec<Key>,
    /// A pause goes on, whether or not somebody still waits for its end.
    pauses: bool,
    notices: VecDeque<Notice>,
    /// The application takes notices until there are none: it needs not be woken for more.
    is_listening: bool,
    turns: u32,
    found: Vec<Found>,
}

impl<S: AsFd> Splicer<Linux<S>> {
    /// A descriptor that is readable (poll(2)) when a [`Splicer::turn`] has something to do. It may
    /// be waited for by edges (EPOLLET), if each is followed by a turn.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.tools.kernel.fd()
    }
}

impl<K: Kernel> Splicer<K> {
    /// A splicer without transfers, which opens up to `pipes_max` pipes of 256 KB. A direction with
    /// bytes in it holds one, with KeepCopy two; where there is none, bytes are copied.
    pub fn new(kernel: K, pipes_max: usize) -> Self {
        let (pool, scratch) = (Pool::new(pipes_max), vec![0; COPY_BYTES].into_boxed_slice());
        Self {
            tools: Tools { kernel, pool, scratch },
            transfers: Table::new(TRANSFERS_MAX),
            busy: HashSet::new(),
            queue: VecDeque::new(),
            pausing: Vec::new(),
            pauses: false,
            notices: VecDeque::new(),
            is_listening: false,
            turns: 0,
            found: Vec::new(),
        }
    }

    /// Splices two connections: sends the first bytes, moves up to 256 KB of what has come already,
    /// and fills the input buffer. A transfer that is over then is released at once.
    ///
    /// # Errors
    /// All but [`Error::Stale`], [`Error::Refused`] and [`Error::WouldBlock`]; no byte has moved.
    pub fn splice(&mut self, mut request: Request<'_, K::Socket>) -> Result<Outcome, Error> {
        self.accept(&request)?;
        let input = std::mem::take(&mut request.input);
        let mut transfer = Transfer::new(request, !input.is_empty())?;
        let mut is_paused = transfer.run(&mut self.tools);
        let mut count = 0;
        if !input.is_empty() {
            count = transfer.read_kept(&mut self.tools, input).unwrap_or(0);
            is_paused |= count > 0 && transfer.run(&mut self.tools);
        }
        if let Some(end) = transfer.end() {
            let released = transfer.release(&mut self.tools);
            return Ok(Outcome::Ended { end, released, input: count });
        }
        let key = self.transfers.insert(transfer).expect("there is room: accept looked");
        if let Err(error) = self.watch(key) {
            let mut released = self.take_out(key).release(&mut self.tools);
            let end = End::Failed(error);
            released.end = Some(end);
            return Ok(Outcome::Ended { end, released, input: count });
        }
        self.settle(key, is_paused);
        self.wake();
        Ok(Outcome::Begun { handle: Handle(key), input: count })
    }

    /// Whether the connections can be spliced, and no other transfer has one of them.
    fn accept(&self, request: &Request<'_, K::Socket>) -> Result<(), Error> {
        if self.transfers.is_full() {
            return Err(Error::Full);
        }
        let numbers = [&request.fd0, &request.fd1].map(|fd| self.tools.kernel.number(fd));
        if numbers[0] == numbers[1] {
            return Err(Error::Request("two connections are spliced, not one with itself"));
        }
        for (side, fd) in [(Side::Fd0, &request.fd0), (Side::Fd1, &request.fd1)] {
            if self.busy.contains(&numbers[side as usize]) {
                return Err(Error::Busy(side));
            }
            match self.tools.kernel.state(fd) {
                Ok(TcpState::Established | TcpState::CloseWait) => {}
                Err(error @ (Errno::BADF | Errno::NOTSOCK)) => return Err(Error::Kernel(error)),
                Ok(TcpState::Other) | Err(_) => return Err(Error::NotConnected(side)),
            }
            if !self.tools.kernel.is_nonblocking(fd)? {
                return Err(Error::Blocking(side));
            }
        }
        Ok(())
    }

    /// Moves bytes: waits up to `wait_ms_max` (`None`: for ever) for something to move, unless
    /// there is something already, then gives each transfer that can go on one turn of at most
    /// 256 KB a direction.
    ///
    /// # Errors
    /// Those of epoll_wait(2) that say that a descriptor was closed against the rules.
    pub fn turn(&mut self, wait_ms_max: Option<u32>) -> KernelResult<()> {
        let is_idle = self.queue.is_empty() && self.notices.is_empty();
        let mut found = std::mem::take(&mut self.found);
        let result =
            self.tools.kernel.wait(if is_idle { wait_ms_max } else { Some(0) }, &mut found);
        for change in found.drain(..) {
            self.note(change);
        }
        self.found = found;
        result?;
        self.end_pause();
        for _ in 0..self.queue.len() {
            let key = self.queue.pop_front().expect("so many are queued");
            if let Some(transfer) = self.transfers.get_mut(key) {
                transfer.is_queued = false;
                let is_paused = transfer.run(&mut self.tools);
                self.settle(key, is_paused);
            }
        }
        if !self.queue.is_empty() {
            self.tools.kernel.wake();
        }
        self.is_listening = true;
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_SHED) {
            drop(self.tools.pool.shed());
        }
        Ok(())
    }

    /// What happened, oldest first. After a turn to be called until there is none.
    pub fn next_notice(&mut self) -> Option<Notice> {
        while let Some(notice) = self.notices.pop_front() {
            // What was to be read may have been meanwhile.
            let is_readable = |handle: Handle| {
                self.transfers.get(handle.0).is_some_and(|transfer| transfer.is_readable())
            };
            match notice {
                Notice::Readable(handle) if !is_readable(handle) => {}
                notice => return Some(notice),
            }
        }
        self.is_listening = false;
        self.wake();
        None
    }

    /// Reads: with KeepCopy what is kept of the source, and 0 bytes once that was all; of the
    /// destination of a unidirectional transfer what its peer sends. Into no room at all it reads 0
    /// bytes, whatever there is.
    ///
    /// # Errors
    /// [`Error::Refused`] for any other connection of a transfer; [`Error::Stale`],
    /// [`Error::WouldBlock`], [`Error::Kernel`]; with ENOBUFS or ENOMEM the latter changes nothing,
    /// and is sound to try again.
    pub fn read(&mut self, handle: Handle, side: Side, bytes: &mut [u8]) -> Result<usize, Error> {
        let key = handle.0;
        let transfer = self.transfers.get_mut(key).ok_or(Error::Stale)?;
        match side {
            _ if transfer.is_bidirectional() => Err(Error::Refused),
            Side::Fd0 if !transfer.is_kept() => Err(Error::Refused),
            _ if bytes.is_empty() => Ok(0),
            Side::Fd1 => {
                let result = self.tools.kernel.receive(transfer.fd(side), bytes);
                self.tell_transfer(key, side, result)
            }
            Side::Fd0 => {
                let count = transfer.read_kept(&mut self.tools, bytes)?;
                let is_paused = transfer.run(&mut self.tools);
                self.settle(key, is_paused);
                self.wake();
                Ok(count)
            }
        }
    }

    /// Writes to the source of a unidirectional transfer.
    ///
    /// # Errors
    /// As [`Splicer::read`].
    pub fn write(&mut self, handle: Handle, side: Side, bytes: &[u8]) -> Result<usize, Error> {
        let transfer = self.transfers.get(handle.0).ok_or(Error::Stale)?;
        match side {
            Side::Fd0 if !transfer.is_bidirectional() => {
                let result = self.tools.kernel.send(transfer.fd(side), bytes, false);
                self.tell_transfer(handle.0, side, result)
            }
            _ => Err(Error::Refused),
        }
    }

    /// Payload in bytes that went to `fd1`, and to `fd0`, so far.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn forwarded(&self, handle: Handle) -> Result<[u64; 2], Error> {
        self.transfers.get(handle.0).map(Transfer::forwarded).ok_or(Error::Stale)
    }

    /// Releases a transfer, which may have ended or not. What is on its way is written on as far as
    /// that does not wait, and else given back; notices of it that were not taken are withdrawn.
    /// The connections are the application's again.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn unsplice(&mut self, handle: Handle) -> Result<Released, Error> {
        self.transfers.get(handle.0).ok_or(Error::Stale)?;
        self.notices.retain(|notice| notice.handle() != handle);
        let transfer = self.take_out(handle.0);
        Ok(transfer.release(&mut self.tools))
    }

    /// Transfers that are not released.
    pub fn transfers(&self) -> usize {
        self.transfers.len()
    }

    /// Pipes that are open, and how many of them no transfer holds.
    pub fn pipes(&self) -> (usize, usize) {
        (self.tools.pool.open(), self.tools.pool.free())
    }

    /// A connection's error is told once: here it was the application who asked, and the transfer
    /// has to know.
    fn tell_transfer(
        &mut self,
        key: Key,
        side: Side,
        result: KernelResult<usize>,
    ) -> Result<usize, Error> {
        let transfer = self.transfers.get_mut(key).expect("it was just asked");
        if let Err(error) = result
            && error != Errno::AGAIN
            && !is_shortage(error)
            && transfer.end().is_none()
        {
            transfer.failed(side, error);
            enqueue(&mut self.queue, transfer, key);
            self.wake();
        }
        Ok(result?)
    }

    /// Queues the transfer of a connection that changed.
    fn note(&mut self, found: Found) {
        let (key, side) = key_and_side(found.token);
        let Some(transfer) = self.transfers.get_mut(key).filter(|it| it.end().is_none()) else {
            return;
        };
        transfer.found(&mut self.tools.kernel, side, found);
        enqueue(&mut self.queue, transfer, key);
    }

    /// Queues those that paused, if the pause is over.
    fn end_pause(&mut self) {
        if !self.tools.kernel.has_paused() {
            return;
        }
        self.pauses = false;
        for key in std::mem::take(&mut self.pausing) {
            if let Some(transfer) = self.transfers.get_mut(key) {
                transfer.has_paused();
                enqueue(&mut self.queue, transfer, key);
            }
        }
    }

    /// What follows a move of bytes: notices, another turn, a pause, or the release.
    fn settle(&mut self, key: Key, is_paused: bool) {
        let transfer = self.transfers.get_mut(key).expect("it is in the table");
        if is_paused {
            enqueue(&mut self.queue, transfer, key);
        }
        if transfer.is_short() && !transfer.is_pausing {
            transfer.is_pausing = true;
            if !std::mem::replace(&mut self.pauses, true) {
                self.tools.kernel.pause(SHORTAGE_PAUSE_MS);
            }
            self.pausing.push(key);
        }
        if transfer.is_readable() && !transfer.is_told_to_read {
            transfer.is_told_to_read = true;
            self.notices.push_back(Notice::Readable(Handle(key)));
        }
        let Some(end) = transfer.end().filter(|_| !transfer.is_told_of_end) else { return };
        transfer.is_told_of_end = true;
        let (mut forwarded, auto_release) = (transfer.forwarded(), transfer.auto_release);
        // What changes from now on is for the application alone.
        self.unwatch(key);
        if auto_release {
            let [forth, back] = self.take_out(key).release(&mut self.tools).directions;
            forwarded = [forth.forwarded, back.forwarded];
        }
        self.notices.push_back(Notice::Ended { handle: Handle(key), end, forwarded });
    }

    /// Makes [`Splicer::fd`] readable if there is something to do or to be told, and the application
    /// would not come to it in any case.
    fn wake(&mut self) {
        let is_left = !self.queue.is_empty() || !self.notices.is_empty();
        if is_left && !self.is_listening {
            self.tools.kernel.wake();
        }
    }

    fn watch(&mut self, key: Key) -> KernelResult<()> {
        let transfer = self.transfers.get(key).expect("it was just put there");
        for side in [Side::Fd0, Side::Fd1] {
            self.busy.insert(self.tools.kernel.number(transfer.fd(side)));
            self.tools.kernel.watch(transfer.fd(side), token(key, side))?;
        }
        Ok(())
    }

    fn unwatch(&mut self, key: Key) {
        let transfer = self.transfers.get(key).expect("it is in the table");
        for side in [Side::Fd0, Side::Fd1] {
            self.tools.kernel.unwatch(transfer.fd(side));
        }
    }

    /// Takes a transfer out of all tables.
    fn take_out(&mut self, key: Key) -> Transfer<K> {
        let transfer = self.transfers.get(key).expect("it is in the table");
        if !transfer.is_told_of_end {
            self.unwatch(key);
        }
        let transfer = self.transfers.remove(key).expect("it is in the table");
        if transfer.is_pausing {
            self.pausing.retain(|other| *other != key);
        }
        for side in [Side::Fd0, Side::Fd1] {
            self.busy.remove(&self.tools.kernel.number(transfer.fd(side)));
        }
        transfer
    }
}

/// Queues a transfer for the next turn, once.
fn enqueue<K: Kernel>(queue: &mut VecDeque<Key>, transfer: &mut Transfer<K>, key: Key) {
    if !transfer.is_queued {
        transfer.is_queued = true;
        queue.push_back(key);
    }
}

/// The number that a connection is watched under: generation, slot, side.
fn token(key: Key, side: Side) -> u64 {
    u64::from(key.generation) << 32 | u64::from(key.slot) << 1 | side as u64
}

fn key_and_side(token: u64) -> (Key, Side) {
    let key = Key { slot: token as u32 >> 1, generation: (token >> 32) as u32 };
    (key, if token & 1 == 0 { Side::Fd0 } else { Side::Fd1 })
}
