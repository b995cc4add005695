//! The application's interface: splice, take notices, read copies, unsplice.

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};

use millrace_engine::{Key, Table};
use millrace_sys::{Errno, TcpState};

use crate::direction::Resources;
use crate::kernel::{Linux, Result as KernelResult, SocketEvent, SystemCalls, is_shortage};
use crate::limits::{CALLS_PER_TRIM, COPY_BYTES, SHORTAGE_PAUSE_MS, TRANSFERS_MAX};
use crate::pool::PipePool;
use crate::request::{End, Error, Handle, Notice, Released, Request, Side, SpliceOutcome};
use crate::transfer::Transfer;

/// A set of spliced connections. It has no thread: the application calls [`Splicer::forward`] when
/// [`Splicer::fd`] is readable, and then takes all notices.
///
/// The type `K` decides what a connection is. With [`Linux`], it is any type that lends a
/// descriptor, such as `Rc<TcpStream>`. A splicer keeps the connection until the transfer is
/// released. Dropping a splicer closes its pipes, with the bytes in them, and drops the
/// connections.
///
/// [`Splicer::read`] and [`Splicer::write`] refuse what a transfer does not allow. Other calls on a
/// spliced connection are not detected: the transfer misses the bytes that they read, and the bytes
/// that they write are mixed with its payload.
pub struct Splicer<K: SystemCalls> {
    resources: Resources<K>,
    transfers: Table<Transfer<K>>,
    /// The ids of the connections of all transfers.
    busy: HashSet<u64>,
    /// Transfers that can move bytes now. Each has `is_queued` set.
    queue: VecDeque<Key>,
    /// Transfers that wait for the end of a pause. Each has `is_paused` set.
    paused: Vec<Key>,
    /// A pause is running. Its transfers may have been released since it began.
    is_pause_running: bool,
    notices: VecDeque<Notice>,
    /// The application is taking notices until there are none, so new ones need no wake-up.
    is_taking_notices: bool,
    calls: u32,
    events: Vec<SocketEvent>,
}

impl<S: AsFd> Splicer<Linux<S>> {
    /// Returns a descriptor that is readable (poll(2)) when [`Splicer::forward`] has work. It may
    /// be watched edge-triggered (EPOLLET) if a call of `forward` follows each event.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.resources.kernel.fd()
    }
}

impl<K: SystemCalls> Splicer<K> {
    /// Creates a splicer without transfers, which opens up to `pipes_max` pipes of 256 KB. A
    /// direction with bytes in flight uses one pipe, or two with KeepCopy. Without a free pipe,
    /// bytes are copied.
    pub fn new(kernel: K, pipes_max: usize) -> Self {
        let (pool, scratch) = (PipePool::new(pipes_max), vec![0; COPY_BYTES].into_boxed_slice());
        Self {
            resources: Resources { kernel, pool, scratch },
            transfers: Table::new(TRANSFERS_MAX),
            busy: HashSet::new(),
            queue: VecDeque::new(),
            paused: Vec::new(),
            is_pause_running: false,
            notices: VecDeque::new(),
            is_taking_notices: false,
            calls: 0,
            events: Vec::new(),
        }
    }

    /// Splices two connections. Sends the prefix, moves up to 256 KB that have arrived in each
    /// direction, and fills the input buffer. If this makes room for more, up to 256 KB more are
    /// moved. If the transfer ends within the call, it is released.
    ///
    /// # Errors
    /// All but [`Error::Stale`], [`Error::NotPermitted`] and [`Error::WouldBlock`]. No byte has
    /// moved.
    pub fn splice(&mut self, mut request: Request<'_, K::Socket>) -> Result<SpliceOutcome, Error> {
        self.validate(&request)?;
        let input = std::mem::take(&mut request.input);
        let mut transfer = Transfer::new(request, !input.is_empty())?;
        let mut has_more = transfer.run(&mut self.resources);
        let mut count = 0;
        if !input.is_empty() {
            count = transfer.read_copy(&mut self.resources, input).unwrap_or(0);
            has_more |= count > 0 && transfer.run(&mut self.resources);
        }
        if let Some(end) = transfer.end() {
            let released = transfer.release(&mut self.resources);
            return Ok(SpliceOutcome::Ended { end, released, input: count });
        }
        let key = self.transfers.insert(transfer).expect("validate found room");
        if let Err(error) = self.watch(key) {
            let mut released = self.remove(key).release(&mut self.resources);
            let end = End::Failed(error);
            released.end = Some(end);
            return Ok(SpliceOutcome::Ended { end, released, input: count });
        }
        self.finish_run(key, has_more);
        self.wake_if_needed();
        Ok(SpliceOutcome::Started { handle: Handle(key), input: count })
    }

    /// Checks that the connections can be spliced and are not part of another transfer.
    fn validate(&self, request: &Request<'_, K::Socket>) -> Result<(), Error> {
        if self.transfers.is_full() {
            return Err(Error::Full);
        }
        let numbers = [&request.fd0, &request.fd1].map(|fd| self.resources.kernel.socket_id(fd));
        if numbers[0] == numbers[1] {
            return Err(Error::Request("fd0 and fd1 are the same (expected: two connections)"));
        }
        for (side, fd) in [(Side::Fd0, &request.fd0), (Side::Fd1, &request.fd1)] {
            if self.busy.contains(&numbers[side as usize]) {
                return Err(Error::Busy(side));
            }
            match self.resources.kernel.tcp_state(fd) {
                Ok(TcpState::Established | TcpState::CloseWait) => {}
                Err(error @ (Errno::BADF | Errno::NOTSOCK)) => return Err(Error::Kernel(error)),
                Ok(TcpState::Other) | Err(_) => return Err(Error::NotConnected(side)),
            }
            if !self.resources.kernel.is_nonblocking(fd)? {
                return Err(Error::Blocking(side));
            }
        }
        Ok(())
    }

    /// Waits up to `wait_ms_max` (`None`: without limit) until a transfer can move bytes, then
    /// moves at most 256 KB for each direction of each such transfer. Does not wait if a notice or
    /// a queued transfer is left.
    ///
    /// # Errors
    /// Those of epoll_wait(2). None is expected while the descriptor of the splicer is open.
    pub fn forward(&mut self, wait_ms_max: Option<u32>) -> KernelResult<()> {
        let is_idle = self.queue.is_empty() && self.notices.is_empty();
        let mut found = std::mem::take(&mut self.events);
        let result =
            self.resources.kernel.wait(if is_idle { wait_ms_max } else { Some(0) }, &mut found);
        for change in found.drain(..) {
            self.handle_event(change);
        }
        self.events = found;
        result?;
        self.resume_paused();
        for _ in 0..self.queue.len() {
            let key = self.queue.pop_front().expect("the queue has this many keys");
            if let Some(transfer) = self.transfers.get_mut(key) {
                transfer.is_queued = false;
                let has_more = transfer.run(&mut self.resources);
                self.finish_run(key, has_more);
            }
        }
        if !self.queue.is_empty() {
            self.resources.kernel.wake();
        }
        self.is_taking_notices = true;
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(CALLS_PER_TRIM) {
            drop(self.resources.pool.trim());
        }
        Ok(())
    }

    /// Returns the oldest notice. Call this after [`Splicer::forward`] until it returns `None`.
    pub fn next_notice(&mut self) -> Option<Notice> {
        while let Some(notice) = self.notices.pop_front() {
            // The application may have read the bytes since the notice was queued.
            let is_readable = |handle: Handle| {
                self.transfers.get(handle.0).is_some_and(|transfer| transfer.is_readable())
            };
            match notice {
                Notice::Readable(handle) if !is_readable(handle) => {}
                notice => return Some(notice),
            }
        }
        self.is_taking_notices = false;
        self.wake_if_needed();
        None
    }

    /// Reads from one connection of a unidirectional transfer: from the source the kept payload
    /// (only with KeepCopy; 0 bytes after the end), from the destination the data that it sends. An
    /// empty `bytes` reads 0 bytes.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for the source without KeepCopy, and in a bidirectional transfer;
    /// [`Error::Stale`]; [`Error::WouldBlock`]; [`Error::Kernel`]. After ENOBUFS or ENOMEM the
    /// transfer is unchanged, and the read may be repeated.
    pub fn read(&mut self, handle: Handle, side: Side, bytes: &mut [u8]) -> Result<usize, Error> {
        let key = handle.0;
        let transfer = self.transfers.get_mut(key).ok_or(Error::Stale)?;
        match side {
            _ if transfer.is_bidirectional() => Err(Error::NotPermitted),
            Side::Fd0 if !transfer.has_copy() => Err(Error::NotPermitted),
            _ if bytes.is_empty() => Ok(0),
            Side::Fd1 => {
                let result = self.resources.kernel.receive(transfer.fd(side), bytes);
                self.report_failure(key, side, result)
            }
            Side::Fd0 => {
                let count = transfer.read_copy(&mut self.resources, bytes)?;
                let has_more = transfer.run(&mut self.resources);
                self.finish_run(key, has_more);
                self.wake_if_needed();
                Ok(count)
            }
        }
    }

    /// Writes to the source of a unidirectional transfer.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] for the destination, and in a bidirectional transfer; otherwise
    /// those of [`Splicer::read`].
    pub fn write(&mut self, handle: Handle, side: Side, bytes: &[u8]) -> Result<usize, Error> {
        let transfer = self.transfers.get(handle.0).ok_or(Error::Stale)?;
        match side {
            Side::Fd0 if !transfer.is_bidirectional() => {
                let result = self.resources.kernel.send(transfer.fd(side), bytes, false);
                self.report_failure(handle.0, side, result)
            }
            _ => Err(Error::NotPermitted),
        }
    }

    /// Returns the payload bytes sent to `fd1` and to `fd0` so far.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn forwarded_bytes(&self, handle: Handle) -> Result<[u64; 2], Error> {
        self.transfers.get(handle.0).map(Transfer::forwarded_bytes).ok_or(Error::Stale)
    }

    /// Releases a transfer, ended or not. Sends the bytes in flight as far as this does not wait,
    /// and returns the rest. Discards its notices that were not taken. The application may use the
    /// connections again.
    ///
    /// # Errors
    /// [`Error::Stale`].
    pub fn unsplice(&mut self, handle: Handle) -> Result<Released, Error> {
        self.transfers.get(handle.0).ok_or(Error::Stale)?;
        self.notices.retain(|notice| notice.handle() != handle);
        let transfer = self.remove(handle.0);
        Ok(transfer.release(&mut self.resources))
    }

    /// Returns the number of transfers that are not released.
    pub fn transfers(&self) -> usize {
        self.transfers.len()
    }

    /// Returns the number of open pipes, and how many of them are free.
    pub fn pipes(&self) -> (usize, usize) {
        (self.resources.pool.open(), self.resources.pool.free())
    }

    /// Converts the result of an application's receive or send. The kernel reports the error of a
    /// connection only once, so the transfer has to record it here.
    fn report_failure(
        &mut self,
        key: Key,
        side: Side,
        result: KernelResult<usize>,
    ) -> Result<usize, Error> {
        let transfer = self.transfers.get_mut(key).expect("the caller looked it up");
        if let Err(error) = result
            && error != Errno::AGAIN
            && !is_shortage(error)
            && transfer.end().is_none()
        {
            transfer.note_failed(side, error);
            enqueue(&mut self.queue, transfer, key);
            self.wake_if_needed();
        }
        Ok(result?)
    }

    /// Handles a change of a connection and queues its transfer.
    fn handle_event(&mut self, event: SocketEvent) {
        let (key, side) = parse_token(event.token);
        let Some(transfer) = self.transfers.get_mut(key).filter(|it| it.end().is_none()) else {
            return;
        };
        transfer.handle_event(&mut self.resources.kernel, side, event);
        enqueue(&mut self.queue, transfer, key);
    }

    /// Queues the paused transfers if the pause is over.
    fn resume_paused(&mut self) {
        if !self.resources.kernel.take_pause_end() {
            return;
        }
        self.is_pause_running = false;
        for key in std::mem::take(&mut self.paused) {
            if let Some(transfer) = self.transfers.get_mut(key) {
                transfer.note_pause_end();
                enqueue(&mut self.queue, transfer, key);
            }
        }
    }

    /// Handles the outcome of a run: queues notices, another turn or a pause, or releases the
    /// transfer.
    fn finish_run(&mut self, key: Key, has_more: bool) {
        let transfer = self.transfers.get_mut(key).expect("it is in the table");
        if has_more {
            enqueue(&mut self.queue, transfer, key);
        }
        if transfer.is_out_of_memory() && !transfer.is_paused {
            transfer.is_paused = true;
            if !std::mem::replace(&mut self.is_pause_running, true) {
                self.resources.kernel.start_pause(SHORTAGE_PAUSE_MS);
            }
            self.paused.push(key);
        }
        if transfer.is_readable() && !transfer.is_readable_reported {
            transfer.is_readable_reported = true;
            self.notices.push_back(Notice::Readable(Handle(key)));
        }
        let Some(end) = transfer.end().filter(|_| !transfer.is_end_reported) else { return };
        transfer.is_end_reported = true;
        let (mut forwarded, auto_release) = (transfer.forwarded_bytes(), transfer.auto_release);
        // Only the application needs later changes of these connections.
        self.unwatch(key);
        if auto_release {
            let [forth, back] = self.remove(key).release(&mut self.resources).directions;
            forwarded = [forth.forwarded, back.forwarded];
        }
        self.notices.push_back(Notice::Ended { handle: Handle(key), end, forwarded });
    }

    /// Makes [`Splicer::fd`] readable if a transfer or notice is left and the application is not
    /// taking notices.
    fn wake_if_needed(&mut self) {
        let is_left = !self.queue.is_empty() || !self.notices.is_empty();
        if is_left && !self.is_taking_notices {
            self.resources.kernel.wake();
        }
    }

    fn watch(&mut self, key: Key) -> KernelResult<()> {
        let transfer = self.transfers.get(key).expect("it was just put there");
        for side in [Side::Fd0, Side::Fd1] {
            self.busy.insert(self.resources.kernel.socket_id(transfer.fd(side)));
            self.resources.kernel.watch(transfer.fd(side), token(key, side))?;
        }
        Ok(())
    }

    fn unwatch(&mut self, key: Key) {
        let transfer = self.transfers.get(key).expect("it is in the table");
        for side in [Side::Fd0, Side::Fd1] {
            self.resources.kernel.unwatch(transfer.fd(side));
        }
    }

    /// Removes a transfer from all tables.
    fn remove(&mut self, key: Key) -> Transfer<K> {
        let transfer = self.transfers.get(key).expect("it is in the table");
        if !transfer.is_end_reported {
            self.unwatch(key);
        }
        let transfer = self.transfers.remove(key).expect("it is in the table");
        if transfer.is_paused {
            self.paused.retain(|other| *other != key);
        }
        for side in [Side::Fd0, Side::Fd1] {
            self.busy.remove(&self.resources.kernel.socket_id(transfer.fd(side)));
        }
        transfer
    }
}

/// Queues a transfer for the next turn, unless it is queued.
fn enqueue<K: SystemCalls>(queue: &mut VecDeque<Key>, transfer: &mut Transfer<K>, key: Key) {
    if !transfer.is_queued {
        transfer.is_queued = true;
        queue.push_back(key);
    }
}

/// Packs generation, slot and side into the token of a watched connection.
fn token(key: Key, side: Side) -> u64 {
    u64::from(key.generation) << 32 | u64::from(key.slot) << 1 | side as u64
}

fn parse_token(token: u64) -> (Key, Side) {
    let key = Key { slot: token as u32 >> 1, generation: (token >> 32) as u32 };
    (key, if token & 1 == 0 { Side::Fd0 } else { Side::Fd1 })
}
