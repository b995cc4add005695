//! A thread of the tracked process: random operations on tracked sockets.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, sockopt};
use rustix::pipe::SpliceFlags;
use uselect::{PollFd, Shutdown, TrackedSocket, Tracker, TrackingMode};

use crate::{RandomChoices, SharedState, common};

const SOCKETS_MAX: usize = 150;

pub(crate) struct Player {
    tracker: Tracker,
    pub(crate) sockets: Vec<TrackedSocket>,
    random: RandomChoices,
    buffer: Vec<u8>,
    pipe: (OwnedFd, OwnedFd),
    file: File,
    pub(crate) steps: u64,
}

/// Runs random steps until the test is over. Results of calls are ignored, because ends and errors
/// are part of the test.
pub(crate) fn play(player: &Mutex<Player>, shared: &SharedState) {
    while shared.wait_for_next_step() {
        player.lock().unwrap().step(shared);
    }
}

impl Player {
    pub(crate) fn new(tracker: &Tracker, seed: u64) -> Self {
        let flags = rustix::pipe::PipeFlags::NONBLOCK | rustix::pipe::PipeFlags::CLOEXEC;
        let pipe = rustix::pipe::pipe_with(flags).unwrap();
        let file = rustix::fs::memfd_create("sent", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(file);
        file.write_all(&vec![7; 300 << 10]).unwrap();
        let buffer = vec![1; 300 << 10];
        let (tracker, random) = (tracker.clone(), RandomChoices::new(seed));
        Self { tracker, sockets: Vec::new(), random, buffer, pipe, file, steps: 0 }
    }

    fn step(&mut self, shared: &SharedState) {
        self.steps += 1;
        match self.random.below(40) {
            0 if self.sockets.len() < SOCKETS_MAX => self.accept(shared),
            1 if self.sockets.len() < SOCKETS_MAX && self.random.below(2) == 0 => {
                self.connect(shared)
            }
            1 => self.poll_all(),
            2 if self.random.below(4) == 0 => self.close(),
            3 if self.random.below(20) == 0 => self.shut_down(),
            4 if self.random.below(4) == 0 => self.tune(),
            5..=22 => self.receive(),
            23.. => self.send(),
            _ => {}
        }
    }

    fn accept(&mut self, shared: &SharedState) {
        if let Ok((socket, _)) = shared.listener.accept(false) {
            assert!(socket.is_tracked());
            self.sockets.push(socket);
        }
    }

    /// Connects to the peers, or to a port at which no process listens.
    fn connect(&mut self, shared: &SharedState) {
        let socket = self.tracker.socket(false, false).unwrap();
        assert!(socket.is_tracked());
        let mut address = shared.peer_address;
        if self.random.below(8) == 0 {
            address.set_port(1);
        }
        if self.random.below(8) > 0 {
            let _ = rustix::net::connect(&socket, &address);
        }
        self.sockets.push(socket);
    }

    /// Polls all sockets. The results of poll(2) here decide which sockets the library queries
    /// later.
    fn poll_all(&mut self) {
        const EVENTS: [u16; 5] = [0x001, 0x005, 0x004, 0x002, 0x2007];
        let events = EVENTS[self.random.below(EVENTS.len())];
        let entry = |socket: &TrackedSocket| PollFd { fd: socket.as_raw_fd(), events, revents: 0 };
        let mut fds: Vec<_> = self.sockets.iter().map(entry).collect();
        self.tracker.upoll(&mut fds, Some(Duration::ZERO), None).unwrap();
    }

    fn close(&mut self) {
        if self.sockets.is_empty() {
            return;
        }
        let at = self.random.below(self.sockets.len());
        let socket = self.sockets.swap_remove(at);
        if self.random.below(2) == 0 {
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
        }
    }

    fn pick(&mut self) -> Option<usize> {
        (!self.sockets.is_empty()).then(|| self.random.below(self.sockets.len()))
    }

    fn shut_down(&mut self) {
        let Some(at) = self.pick() else { return };
        let how = [Shutdown::Write, Shutdown::Read, Shutdown::Both][self.random.below(3)];
        let _ = self.sockets[at].shutdown(how);
    }

    /// Changes a socket in a way that no hook reports, and has the library refresh it.
    fn tune(&mut self) {
        let Some(at) = self.pick() else { return };
        let socket = &self.sockets[at];
        match self.random.below(4) {
            0 => drop(socket.take_error()),
            3 => {
                sockopt::set_socket_oobinline(socket, true).unwrap();
                socket.refresh();
            }
            1 => {
                let bytes = 4 << 10 << self.random.below(6);
                sockopt::set_socket_send_buffer_size(socket, bytes).unwrap();
                socket.refresh();
            }
            _ => {
                let bytes = [1, 1, 100, 5000][self.random.below(4)];
                set_rcvlowat(socket, bytes);
                socket.refresh();
            }
        }
    }

    fn receive(&mut self) {
        let Some(at) = self.pick() else { return };
        let (socket, count) = (&self.sockets[at], self.random.bytes());
        let bytes = &mut self.buffer[..count];
        let variant = self.random.below(8);
        match variant {
            7 => drop(socket.receive(bytes)),
            0 => drop(rustix::net::recv(socket, bytes, RecvFlags::PEEK)),
            6 => drop(rustix::net::recv(socket, bytes, RecvFlags::OOB)),
            1 => {
                let (one, two) = bytes.split_at_mut(count / 2);
                let mut parts = [IoSliceMut::new(one), IoSliceMut::new(two)];
                let _ = rustix::io::readv(socket, &mut parts);
            }
            2 => {
                let flags = SpliceFlags::NONBLOCK;
                let to = self.pipe.1.as_fd();
                let _ = rustix::pipe::splice(socket, None, to, None, count, flags);
                while rustix::io::read(&self.pipe.0, &mut self.buffer).is_ok_and(|count| count > 0)
                {
                }
            }
            3 => drop(rustix::net::recv(socket, bytes, RecvFlags::TRUNC)),
            _ => drop(rustix::io::read(socket, bytes)),
        }
        if variant != 7 && common::mode() == TrackingMode::Lean {
            socket.refresh();
        }
    }

    fn send(&mut self) {
        let Some(at) = self.pick() else { return };
        let (socket, count) = (&self.sockets[at], self.random.bytes());
        let bytes = &self.buffer[..count];
        let flags = SendFlags::NOSIGNAL;
        let variant = self.random.below(7);
        match variant {
            6 => drop(socket.send(bytes)),
            0 => {
                let (one, two) = bytes.split_at(count / 2);
                let mut none = Default::default();
                let parts = [IoSlice::new(one), IoSlice::new(two)];
                let _ = rustix::net::sendmsg(socket, &parts, &mut none, flags);
            }
            1 => {
                let _ = rustix::fs::sendfile(socket, &self.file, Some(&mut 0), count);
            }
            2 => drop(rustix::net::send(socket, bytes, flags | SendFlags::MORE)),
            _ => drop(rustix::net::send(socket, bytes, flags)),
        }
        if variant != 6 && common::mode() == TrackingMode::Lean {
            socket.refresh();
        }
    }
}

fn set_rcvlowat(socket: &TrackedSocket, bytes: libc::c_int) {
    let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `bytes` has `length` bytes and outlives the call.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const bytes).cast(), length)
    };
    assert_eq!(result, 0);
}
