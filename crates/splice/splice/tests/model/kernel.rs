//! A model of the kernel: connections with simulated peers, small pipes, and short counts, all from
//! one seed.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use millrace_splice::{Errno, Result, SocketEvent, SystemCalls, TcpState};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A connection with its receive and send queues.
#[derive(Default)]
pub(crate) struct ModelConnection {
    pub(crate) incoming: VecDeque<u8>,
    /// The peer has closed, behind the incoming bytes.
    pub(crate) is_ended: bool,
    pub(crate) is_aborted: bool,
    /// Urgent data precedes the incoming bytes: a receive gets these bytes, a splice gets none.
    is_urgent: bool,
    /// The pending error, reported once behind the incoming bytes.
    error: Option<Errno>,
    pub(crate) outgoing: VecDeque<u8>,
    /// The size of the send queue; `outgoing.len() <= room`.
    pub(crate) room: usize,
    pub(crate) is_shut: bool,
    watched: Option<u64>,
    is_changed: bool,
    /// A call found no room, so new room is an event.
    is_full: bool,
}

impl ModelConnection {
    fn found(&self, token: u64) -> SocketEvent {
        SocketEvent {
            token,
            readable: !self.incoming.is_empty() || self.is_ended || self.is_aborted,
            urgent: self.is_urgent,
            writable: self.outgoing.len() < self.room || self.is_shut || self.is_aborted,
            failed: self.error.is_some(),
            hung_up: self.is_aborted || (self.is_ended && self.is_shut),
        }
    }

    /// Returns how many bytes can be received: 0 at the end.
    fn readable(&mut self) -> Result<usize> {
        match (self.incoming.len(), self.error.take_if(|_| self.incoming.is_empty())) {
            (0, Some(error)) => Err(error),
            (0, None) if !self.is_ended && !self.is_aborted => Err(Errno::AGAIN),
            (count, _) => Ok(count),
        }
    }

    /// Removes received bytes and the urgent data before them.
    fn take_off(&mut self, count: usize) {
        self.incoming.drain(..count);
        self.is_urgent = false;
    }

    /// Returns how many bytes can be sent.
    fn writable(&mut self) -> Result<usize> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.is_aborted || self.is_shut {
            return Err(Errno::PIPE);
        }
        match self.room.saturating_sub(self.outgoing.len()) {
            0 => {
                self.is_full = true;
                Err(Errno::AGAIN)
            }
            room => Ok(room),
        }
    }
}

/// The buffers of a pipe. As in Linux, two writes never share a buffer.
#[derive(Default)]
struct PipeBuffers(VecDeque<VecDeque<u8>>);

impl PipeBuffers {
    fn len(&self) -> usize {
        self.0.iter().map(VecDeque::len).sum()
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count);
        while bytes.len() < count {
            let place = self.0.front_mut().expect("the pipe has the bytes");
            let taken = place.len().min(count - bytes.len());
            bytes.extend(place.drain(..taken));
            if place.is_empty() {
                self.0.pop_front();
            }
        }
        bytes
    }
}

/// The whole model.
pub(crate) struct ModelWorld {
    pub(crate) connections: Vec<ModelConnection>,
    pipes: BTreeMap<usize, PipeBuffers>,
    pipes_opened: usize,
    random: Pcg64Mcg,
    is_woken: bool,
    pause: PauseState,
    /// Buffers of a pipe.
    buffers: usize,
    /// The most bytes of a buffer.
    buffer_bytes: usize,
    /// One in this many calls returns a short count; 0: none.
    short_one_in: u64,
    /// One in this many requests for a pipe fails; 0: none.
    no_pipe_one_in: u64,
    /// One in this many calls finds no memory; 0: none.
    no_memory_one_in: u64,
}

/// The pause of [`SystemCalls::start_pause`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum PauseState {
    /// No pause, or its end was returned.
    None,
    Running,
    /// The pause is over, and no wait has found this yet.
    Over,
    Found,
}

impl ModelWorld {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Pcg64Mcg::seed_from_u64(seed ^ 0x5917_ce00);
        let mut any = |values: &[u64]| values[(random.next_u64() % values.len() as u64) as usize];
        let (buffers, buffer_bytes) = (any(&[1, 2, 16, 64]) as usize, any(&[1, 100, 1448, 32_768]));
        let (short_one_in, no_pipe_one_in) = (any(&[0, 2, 10]), any(&[0, 0, 1, 3]));
        let no_memory_one_in = any(&[0, 0, 2, 20]);
        Self {
            connections: Vec::new(),
            pipes: BTreeMap::new(),
            pipes_opened: 0,
            random,
            is_woken: false,
            pause: PauseState::None,
            buffers,
            buffer_bytes: buffer_bytes as usize,
            short_one_in,
            no_pipe_one_in,
            no_memory_one_in,
        }
    }

    /// Draws whether the current call finds no memory, and fails if so.
    fn draw_memory_shortage(&mut self) -> Result<()> {
        match (self.chance(self.no_memory_one_in), self.chance(2)) {
            (false, _) => Ok(()),
            (true, true) => Err(Errno::NOBUFS),
            (true, false) => Err(Errno::NOMEM),
        }
    }

    /// Ends the pause, if one is running. Returns whether one was.
    pub(crate) fn pass_time(&mut self) -> bool {
        let was_running = self.pause == PauseState::Running;
        if was_running {
            self.pause = PauseState::Over;
        }
        was_running
    }

    /// Returns whether few steps can move many bytes.
    pub(crate) fn is_coarse(&self) -> bool {
        self.buffers * self.buffer_bytes > 10_000
    }

    /// Returns true in one of `one_in` cases; never for 0.
    fn chance(&mut self, one_in: u64) -> bool {
        one_in != 0 && self.random.next_u64().is_multiple_of(one_in)
    }

    /// Returns `count`, or at random a smaller number, at least 1.
    fn draw_count(&mut self, count: usize) -> usize {
        if count > 1 && self.chance(self.short_one_in) {
            1 + self.random.next_u64() as usize % count
        } else {
            count
        }
    }

    /// Adds a connection with a send queue of `room` bytes. Returns its index.
    pub(crate) fn connect(&mut self, room: usize) -> usize {
        self.connections.push(ModelConnection { room, ..ModelConnection::default() });
        self.connections.len() - 1
    }

    /// The peer sends bytes.
    pub(crate) fn deliver(&mut self, connection: usize, bytes: &[u8]) {
        let is_urgent = self.chance(16);
        let connection = &mut self.connections[connection];
        connection.is_urgent |= is_urgent && connection.incoming.is_empty();
        connection.incoming.extend(bytes);
        connection.is_changed = true;
    }

    /// The peer receives up to `max` bytes.
    pub(crate) fn collect(&mut self, connection: usize, max: usize) -> Vec<u8> {
        let connection = &mut self.connections[connection];
        let count = max.min(connection.outgoing.len());
        connection.is_changed |= count > 0 && std::mem::take(&mut connection.is_full);
        connection.outgoing.drain(..count).collect()
    }

    /// The peer closes its write side.
    pub(crate) fn end(&mut self, connection: usize) {
        let connection = &mut self.connections[connection];
        connection.is_ended = true;
        connection.is_changed = true;
    }

    /// The peer aborts.
    pub(crate) fn abort(&mut self, connection: usize) {
        let connection = &mut self.connections[connection];
        connection.is_aborted = true;
        connection.error = Some(Errno::CONNRESET);
        connection.outgoing.clear();
        connection.is_changed = true;
    }

    /// Returns whether poll(2) would report the descriptor of the splicer.
    pub(crate) fn is_readable(&self) -> bool {
        let is_found = |it: &ModelConnection| it.is_changed && it.watched.is_some();
        self.is_woken || self.pause == PauseState::Over || self.connections.iter().any(is_found)
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.connections.iter().any(|connection| connection.watched.is_some())
    }

    /// Returns the number of open pipes and of the bytes in them.
    pub(crate) fn pipes(&self) -> (usize, usize) {
        (self.pipes.len(), self.pipes.values().map(PipeBuffers::len).sum())
    }

    fn buffers(&mut self, pipe: &ModelPipe) -> &mut PipeBuffers {
        self.pipes.get_mut(&pipe.number).expect("it is open")
    }

    fn free_buffers(&mut self, pipe: &ModelPipe) -> usize {
        self.buffers - self.buffers(pipe).0.len()
    }

    /// Puts bytes into as many buffers as they need, and returns how many bytes fitted.
    fn put(&mut self, pipe: &ModelPipe, bytes: impl Iterator<Item = u8>) -> usize {
        let mut bytes = bytes.peekable();
        let mut count = 0;
        while bytes.peek().is_some() && self.free_buffers(pipe) > 0 {
            let length = self.draw_count(self.buffer_bytes);
            let place: VecDeque<u8> = bytes.by_ref().take(length).collect();
            count += place.len();
            self.buffers(pipe).0.push_back(place);
        }
        count
    }
}

/// The model as the kernel of a splicer.
#[derive(Clone)]
pub(crate) struct ModelKernel(pub(crate) Rc<RefCell<ModelWorld>>);

/// A pipe of the model. Dropping it closes it.
pub(crate) struct ModelPipe {
    number: usize,
    world: Rc<RefCell<ModelWorld>>,
}

impl Drop for ModelPipe {
    fn drop(&mut self) {
        self.world.borrow_mut().pipes.remove(&self.number);
    }
}

impl SystemCalls for ModelKernel {
    type Socket = usize;
    type Pipe = ModelPipe;

    fn pipe(&mut self) -> Result<ModelPipe> {
        let mut world = self.0.borrow_mut();
        let no_pipe_one_in = world.no_pipe_one_in;
        if world.chance(no_pipe_one_in) {
            return Err(Errno::MFILE);
        }
        world.pipes_opened += 1;
        let number = world.pipes_opened;
        world.pipes.insert(number, PipeBuffers::default());
        Ok(ModelPipe { number, world: self.0.clone() })
    }

    fn splice_in(&mut self, from: &usize, into: &ModelPipe, max: usize) -> Result<usize> {
        let mut world = self.0.borrow_mut();
        world.draw_memory_shortage()?;
        let count = world.connections[*from].readable()?.min(max);
        // At urgent data, a splice reports an end if the stream ends behind it, and otherwise
        // EAGAIN.
        if world.connections[*from].is_urgent {
            let is_ended = world.connections[*from].is_ended;
            return if is_ended { Ok(0) } else { Err(Errno::AGAIN) };
        }
        let count = world.draw_count(count);
        let bytes: Vec<u8> =
            world.connections[*from].incoming.iter().take(count).copied().collect();
        let count = world.put(into, bytes.into_iter());
        world.connections[*from].incoming.drain(..count);
        Ok(count)
    }

    fn splice_out(&mut self, from: &ModelPipe, into: &usize, max: usize) -> Result<usize> {
        let mut world = self.0.borrow_mut();
        world.draw_memory_shortage()?;
        let count = world.connections[*into].writable()?.min(max).min(world.buffers(from).len());
        let count = world.draw_count(count);
        let bytes = world.buffers(from).take(count);
        world.connections[*into].outgoing.extend(bytes);
        Ok(count)
    }

    fn tee(&mut self, from: &ModelPipe, into: &ModelPipe, max: usize) -> Result<usize> {
        let mut world = self.0.borrow_mut();
        world.draw_memory_shortage()?;
        if world.free_buffers(into) == 0 || world.buffers(from).len() == 0 {
            return Err(Errno::AGAIN);
        }
        let bytes: Vec<u8> = world.buffers(from).0.iter().flatten().take(max).copied().collect();
        Ok(world.put(into, bytes.into_iter()))
    }

    fn splice_between(&mut self, from: &ModelPipe, into: &ModelPipe, max: usize) -> Result<usize> {
        let count = self.tee(from, into, max)?;
        self.0.borrow_mut().buffers(from).take(count);
        Ok(count)
    }

    fn read_pipe(&mut self, from: &ModelPipe, bytes: &mut [u8]) -> Result<usize> {
        let mut world = self.0.borrow_mut();
        let count = match world.buffers(from).len().min(bytes.len()) {
            0 => return Err(Errno::AGAIN),
            count => world.draw_count(count),
        };
        bytes[..count].copy_from_slice(&world.buffers(from).take(count));
        Ok(count)
    }

    fn receive(&mut self, from: &usize, bytes: &mut [u8]) -> Result<usize> {
        let count = self.peek(from, bytes)?;
        self.0.borrow_mut().connections[*from].take_off(count);
        Ok(count)
    }

    fn peek(&mut self, from: &usize, bytes: &mut [u8]) -> Result<usize> {
        let mut world = self.0.borrow_mut();
        world.draw_memory_shortage()?;
        let count = world.connections[*from].readable()?.min(bytes.len());
        let count = world.draw_count(count);
        let incoming = world.connections[*from].incoming.iter();
        bytes.iter_mut().zip(incoming.take(count)).for_each(|(place, byte)| *place = *byte);
        Ok(count)
    }

    fn discard(&mut self, from: &usize, room: &mut [u8]) -> Result<usize> {
        let mut world = self.0.borrow_mut();
        let count = world.connections[*from].readable()?.min(room.len());
        let count = world.draw_count(count);
        world.connections[*from].take_off(count);
        Ok(count)
    }

    fn send(&mut self, into: &usize, bytes: &[u8], _more: bool) -> Result<usize> {
        let mut world = self.0.borrow_mut();
        world.draw_memory_shortage()?;
        let count = world.connections[*into].writable()?.min(bytes.len());
        let count = world.draw_count(count);
        world.connections[*into].outgoing.extend(&bytes[..count]);
        Ok(count)
    }

    fn shutdown_write(&mut self, socket: &usize) -> Result<()> {
        let connection = &mut self.0.borrow_mut().connections[*socket];
        if connection.is_aborted {
            return Err(Errno::NOTCONN);
        }
        connection.is_shut = true;
        connection.is_changed |= connection.is_ended;
        Ok(())
    }

    fn tcp_state(&self, socket: &usize) -> Result<TcpState> {
        let connection = &self.0.borrow().connections[*socket];
        Ok(match (connection.is_aborted || connection.is_shut, connection.is_ended) {
            (true, _) => TcpState::Other,
            (false, true) => TcpState::CloseWait,
            (false, false) => TcpState::Established,
        })
    }

    fn is_nonblocking(&self, _socket: &usize) -> Result<bool> {
        Ok(true)
    }

    fn take_error(&mut self, socket: &usize) -> Option<Errno> {
        self.0.borrow_mut().connections[*socket].error.take()
    }

    fn socket_id(&self, socket: &usize) -> u64 {
        *socket as u64
    }

    fn watch(&mut self, socket: &usize, token: u64) -> Result<()> {
        let connection = &mut self.0.borrow_mut().connections[*socket];
        assert_eq!(connection.watched, None, "a connection is watched once");
        connection.watched = Some(token);
        let found = connection.found(token);
        connection.is_changed = found.readable || found.writable;
        Ok(())
    }

    fn unwatch(&mut self, socket: &usize) {
        self.0.borrow_mut().connections[*socket].watched = None;
    }

    fn wait(&mut self, wait_ms_max: Option<u32>, found: &mut Vec<SocketEvent>) -> Result<()> {
        let mut world = self.0.borrow_mut();
        assert!(wait_ms_max.is_some() || world.is_readable(), "nothing would end this wait");
        world.is_woken = false;
        if world.pause == PauseState::Over {
            world.pause = PauseState::Found;
        }
        for index in 0..world.connections.len() {
            // The next wait finds events that did not fit into this one.
            let is_late = world.chance(4);
            let connection = &mut world.connections[index];
            if let Some(token) = connection.watched.filter(|_| connection.is_changed && !is_late) {
                connection.is_changed = false;
                found.push(connection.found(token));
            }
        }
        Ok(())
    }

    fn wake(&mut self) {
        self.0.borrow_mut().is_woken = true;
    }

    fn start_pause(&mut self, _ms: u32) {
        let pause = &mut self.0.borrow_mut().pause;
        assert!(*pause == PauseState::None, "one pause at a time");
        *pause = PauseState::Running;
    }

    fn take_pause_end(&mut self) -> bool {
        let pause = &mut self.0.borrow_mut().pause;
        let is_over = *pause == PauseState::Found;
        if is_over {
            *pause = PauseState::None;
        }
        is_over
    }
}
