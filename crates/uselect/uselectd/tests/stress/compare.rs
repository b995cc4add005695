//! Comparing every tracked descriptor.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::MutexGuard;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uselect::{FdSets, TrackedSocket, TrackingMode};

use crate::common;
use crate::player::Player;

/// All that poll(2) says of TCP: IN, PRI, OUT, ERR, HUP, RDNORM, WRNORM, RDHUP.
const ALL: u16 = 0x215F;

/// IN and RDNORM, OUT and WRNORM.
const READING: u16 = 0x041;
const WRITING: u16 = 0x104;

/// What is different and not so after this time was just on its way, or the kernel had called no
/// program for it, which the daemon's sweeps find within little more than a second.
const SOON: Duration = Duration::from_millis(1500);

#[derive(Default, Debug)]
pub(crate) struct Counts {
    pub(crate) compared: u64,
    pub(crate) different: u64,
    /// Different for longer than [`SOON`], and right within ten seconds although nothing moved there.
    pub(crate) late: u64,
    /// Different while the network was still at work there, and right later.
    pub(crate) moving: u64,
    pub(crate) slept: u64,
    /// Sleeps that only the daemon's sweep has ended.
    pub(crate) swept: u64,
    pub(crate) lost: u64,
    /// Of what was compared, how often each bit was set, as a check that the play reaches it.
    pub(crate) seen: std::collections::BTreeMap<u16, u64>,
}

pub(crate) fn polled(socket: BorrowedFd<'_>) -> u16 {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::from_bits_retain(ALL))];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    fds[0].revents().bits()
}

impl Counts {
    pub(crate) fn compare(&mut self, listener: &TrackedSocket, players: &[MutexGuard<'_, Player>]) {
        let sockets = players.iter().flat_map(|player| player.sockets.iter());
        let mut wrong = Vec::new();
        for socket in sockets.clone().chain([listener]).filter(|socket| socket.is_tracked()) {
            self.compared += 1;
            let view = View::of(socket);
            *self.seen.entry(view.found).or_default() += 1;
            if !view.is_right() {
                wrong.push((socket, view));
            }
        }
        if wrong.is_empty() {
            return;
        }
        // A packet may have come between a look at one and a look at the other.
        std::thread::sleep(SOON);
        wrong.iter_mut().for_each(|(socket, view)| *view = View::of(socket));
        for (socket, before) in wrong.into_iter().filter(|(_, view)| !view.is_right()) {
            let now = View::after_rest(socket);
            let (kind, count) = match (now.is_right(), now.is_like(&before)) {
                (false, _) => ("different", &mut self.different),
                (true, true) => ("late", &mut self.late),
                (true, false) => ("moving", &mut self.moving),
            };
            *count += 1;
            println!("{kind}: {}; then {}", before.told, now.told);
        }
    }
}

struct View {
    found: u16,
    /// What upoll says.
    said: u16,
    /// Whether the bitmaps say what poll(2) says.
    is_in_bitmaps: bool,
    /// Whether its bytes are what the kernel says.
    is_in_numbers: bool,
    readable: u32,
    /// All that may explain a difference.
    told: String,
}

impl View {
    /// The first that is right of those of the next ten seconds, or the last one.
    fn after_rest(socket: &TrackedSocket) -> Self {
        let mut views = (0..20).map(|_| {
            std::thread::sleep(Duration::from_millis(500));
            Self::of(socket)
        });
        let first = views.find(Self::is_right);
        first.unwrap_or_else(|| Self::of(socket))
    }

    fn of(socket: &TrackedSocket) -> Self {
        let found = polled(socket.as_fd());
        let state = socket.state();
        let readable = state.map_or(0, |state| state.readable);
        // Apart: where there is something to read, room is asked of the kernel now and then alone.
        let said = said(socket, ALL & !WRITING) | said(socket, WRITING);
        let is_in_bitmaps = is_in_bitmaps(socket, found);
        let bound = number(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, 3);
        let queued = number(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, 5);
        // A listener has none, an end counts as one until what is before it is received, and urgent
        // data counts else. Room is not compared: while a socket connects it changes without a word.
        let bytes = rustix::io::ioctl_fionread(socket).map(|bytes| bytes as u32);
        let end = u32::from(found & 0x2010 != 0);
        let is_in_numbers = bytes.is_err()
            // Bytes below the mark are not told of.
            || number(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 0) > 1
            || common::mode() == TrackingMode::Lean
            || state.is_none_or(|state| state.events & 0x002 != 0)
            || bytes.is_ok_and(|bytes| (bytes..=bytes + end).contains(&readable));
        let told = format!(
            "poll {found:#x}, upoll {said:#x}, bitmaps {is_in_bitmaps}, numbers {is_in_numbers}, \
             {state:x?}, bytes {bytes:x?}, sent anew {}, bound {bound:x}, queued {queued:x}",
            number(socket, libc::SOL_TCP, libc::TCP_INFO, 25),
        );
        Self { found, said, is_in_bitmaps, is_in_numbers, readable, told }
    }

    fn is_right(&self) -> bool {
        let said = match common::mode() {
            TrackingMode::Exact => self.said,
            // What came while a receive was on its way is told once more, and room until a send
            // falls short, though poll(2) waits for a third of it.
            TrackingMode::Lean => self.said & (self.found | !(READING | WRITING)),
        };
        said == self.found && self.is_in_bitmaps && self.is_in_numbers
    }

    /// Whether nothing has come or gone between the two.
    fn is_like(&self, other: &Self) -> bool {
        (self.found, self.readable) == (other.found, other.readable)
    }
}

/// What upoll says.
fn said(socket: &TrackedSocket, events: u16) -> u16 {
    let mut fds = [uselect::PollFd { fd: socket.as_raw_fd(), events, revents: 0 }];
    socket.tracker().upoll(&mut fds, Some(Duration::ZERO), None).unwrap();
    fds[0].revents
}

fn is_in_bitmaps(socket: &TrackedSocket, found: u16) -> bool {
    let fd = socket.as_raw_fd() as usize;
    let (mut read, mut write) = (vec![0; fd / 64 + 1], vec![0; fd / 64 + 1]);
    (read[fd / 64], write[fd / 64]) = (1 << (fd % 64), 1 << (fd % 64));
    let reading = FdSets { read: &mut read, ..FdSets::default() };
    let writing = FdSets { write: &mut write, ..FdSets::default() };
    for mut sets in [reading, writing] {
        socket.tracker().uselect(&mut sets, Some(Duration::ZERO), None).unwrap();
    }
    let has = |bits: &[u64]| bits[fd / 64] != 0;
    let is_right = |said, found| said == found || common::mode() == TrackingMode::Lean && said;
    is_right(has(&read), found & 0x019 != 0) && is_right(has(&write), found & 0x00C != 0)
}

/// A number of what getsockopt(2) gives: of TCP_INFO (linux/tcp.h) or SO_MEMINFO
/// (linux/sock_diag.h).
fn number(socket: &TrackedSocket, level: i32, name: i32, at: usize) -> u32 {
    let mut numbers = [0u32; 26];
    let mut length = size_of_val(&numbers) as libc::socklen_t;
    let (fd, place) = (socket.as_raw_fd(), (&raw mut numbers).cast());
    // SAFETY: `numbers` has room for `length` bytes, and both outlive the call.
    let result = unsafe { libc::getsockopt(fd, level, name, place, &raw mut length) };
    assert_eq!(result, 0);
    numbers[at]
}
