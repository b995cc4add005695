//! A thread of the tracked process.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, sockopt};
use rustix::pipe::SpliceFlags;
use uselect::{PollFd, Shutdown, TrackedSocket, Tracker, TrackingMode};

use crate::{Dice, Stage, common};

const SOCKETS_MAX: usize = 150;

pub(crate) struct Player {
    tracker: Tracker,
    pub(crate) sockets: Vec<TrackedSocket>,
    dice: Dice,
    buffer: Vec<u8>,
    pipe: (OwnedFd, OwnedFd),
    file: File,
    pub(crate) steps: u64,
}

/// Steps until the stage says that it is over. Whatever a call says is right: ends and errors are
/// part of the play.
pub(crate) fn play(player: &Mutex<Player>, stage: &Stage) {
    while stage.goes_on() {
        player.lock().unwrap().step(stage);
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
        let (tracker, dice) = (tracker.clone(), Dice::new(seed));
        Self { tracker, sockets: Vec::new(), dice, buffer, pipe, file, steps: 0 }
    }

    fn step(&mut self, stage: &Stage) {
        self.steps += 1;
        match self.dice.below(40) {
            0 if self.sockets.len() < SOCKETS_MAX => self.accept(stage),
            1 if self.sockets.len() < SOCKETS_MAX && self.dice.below(2) == 0 => self.connect(stage),
            1 => self.look(),
            2 if self.dice.below(4) == 0 => self.close(),
            3 if self.dice.below(20) == 0 => self.end(),
            4 if self.dice.below(4) == 0 => self.tune(),
            5..=22 => self.receive(),
            23.. => self.send(),
            _ => {}
        }
    }

    fn accept(&mut self, stage: &Stage) {
        if let Ok((socket, _)) = stage.listener.accept(false) {
            assert!(socket.is_tracked());
            self.sockets.push(socket);
        }
    }

    /// To the peers, or to where nobody listens.
    fn connect(&mut self, stage: &Stage) {
        let socket = self.tracker.socket(false, false).unwrap();
        assert!(socket.is_tracked());
        let mut address = stage.elsewhere;
        if self.dice.below(8) == 0 {
            address.set_port(1);
        }
        if self.dice.below(8) > 0 {
            let _ = rustix::net::connect(&socket, &address);
        }
        self.sockets.push(socket);
    }

    /// What is asked of the kernel here changes what need not be asked later.
    fn look(&mut self) {
        const EVENTS: [u16; 5] = [0x001, 0x005, 0x004, 0x002, 0x2007];
        let events = EVENTS[self.dice.below(EVENTS.len())];
        let entry = |socket: &TrackedSocket| PollFd { fd: socket.as_raw_fd(), events, revents: 0 };
        let mut fds: Vec<_> = self.sockets.iter().map(entry).collect();
        self.tracker.upoll(&mut fds, Some(Duration::ZERO), None).unwrap();
    }

    fn close(&mut self) {
        if self.sockets.is_empty() {
            return;
        }
        let at = self.dice.below(self.sockets.len());
        let socket = self.sockets.swap_remove(at);
        if self.dice.below(2) == 0 {
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
        }
    }

    fn pick(&mut self) -> Option<usize> {
        (!self.sockets.is_empty()).then(|| self.dice.below(self.sockets.len()))
    }

    fn end(&mut self) {
        let Some(at) = self.pick() else { return };
        let how = [Shutdown::Write, Shutdown::Read, Shutdown::Both][self.dice.below(3)];
        let _ = self.sockets[at].shutdown(how);
    }

    /// What no hook tells of, and the library is therefore told of.
    fn tune(&mut self) {
        let Some(at) = self.pick() else { return };
        let socket = &self.sockets[at];
        match self.dice.below(4) {
            0 => drop(socket.take_error()),
            3 => {
                sockopt::set_socket_oobinline(socket, true).unwrap();
                socket.refresh();
            }
            1 => {
                let bytes = 4 << 10 << self.dice.below(6);
                sockopt::set_socket_send_buffer_size(socket, bytes).unwrap();
                socket.refresh();
            }
            _ => {
                let low = [1, 1, 100, 5000][self.dice.below(4)];
                set_low_mark(socket, low);
                socket.refresh();
            }
        }
    }

    fn receive(&mut self) {
        let Some(at) = self.pick() else { return };
        let (socket, count) = (&self.sockets[at], self.dice.bytes());
        let bytes = &mut self.buffer[..count];
        let way = self.dice.below(8);
        match way {
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
        if way != 7 && common::mode() == TrackingMode::Lean {
            socket.refresh();
        }
    }

    fn send(&mut self) {
        let Some(at) = self.pick() else { return };
        let (socket, count) = (&self.sockets[at], self.dice.bytes());
        let bytes = &self.buffer[..count];
        let flags = SendFlags::NOSIGNAL;
        let way = self.dice.below(7);
        match way {
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
        if way != 6 && common::mode() == TrackingMode::Lean {
            socket.refresh();
        }
    }
}

/// SO_RCVLOWAT.
fn set_low_mark(socket: &TrackedSocket, bytes: libc::c_int) {
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `bytes` is as long as `length` says and outlives the call.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const bytes).cast(), length)
    };
    assert_eq!(result, 0);
}
