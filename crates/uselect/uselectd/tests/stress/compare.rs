//! Compares every tracked descriptor with poll(2).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::MutexGuard;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uselect::{FdSets, TrackedSocket, TrackingMode};

use crate::common;
use crate::player::Player;

/// All events that poll(2) reports for TCP: IN, PRI, OUT, ERR, HUP, RDNORM, WRNORM, RDHUP.
const ALL: u16 = 0x215F;

/// IN and RDNORM.
const READING: u16 = 0x041;
const WRITING: u16 = 0x104;

/// A difference that is gone after this time is no error: a packet was in flight, or the kernel had
/// skipped a program, which a sweep of the daemon corrects within little more than a second.
const SOON: Duration = Duration::from_millis(1500);

#[derive(Default, Debug)]
pub(crate) struct StressCounts {
    pub(crate) compared: u64,
    pub(crate) different: u64,
    /// Different for longer than [`SOON`], and equal within ten seconds although the socket did not
    /// change.
    pub(crate) late: u64,
    /// Different while the socket still changed, and equal later.
    pub(crate) moving: u64,
    pub(crate) slept: u64,
    /// Sleeps that only a sweep of the daemon ended.
    pub(crate) swept: u64,
    pub(crate) lost: u64,
    /// How often each result of poll(2) was compared, to check that the test reaches it.
    pub(crate) results: std::collections::BTreeMap<u16, u64>,
}

pub(crate) fn poll_events(socket: BorrowedFd<'_>) -> u16 {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::from_bits_retain(ALL))];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    fds[0].revents().bits()
}

impl StressCounts {
    pub(crate) fn compare(&mut self, listener: &TrackedSocket, players: &[MutexGuard<'_, Player>]) {
        let sockets = players.iter().flat_map(|player| player.sockets.iter());
        let mut wrong = Vec::new();
        for socket in sockets.clone().chain([listener]).filter(|socket| socket.is_tracked()) {
            self.compared += 1;
            let view = SocketView::of(socket);
            *self.results.entry(view.polled).or_default() += 1;
            if !view.agrees() {
                wrong.push((socket, view));
            }
        }
        if wrong.is_empty() {
            return;
        }
        // A packet may have arrived between the two reads.
        std::thread::sleep(SOON);
        wrong.iter_mut().for_each(|(socket, view)| *view = SocketView::of(socket));
        for (socket, before) in wrong.into_iter().filter(|(_, view)| !view.agrees()) {
            let now = SocketView::settled(socket);
            let (kind, count) = match (now.agrees(), now.is_unchanged_since(&before)) {
                (false, _) => ("different", &mut self.different),
                (true, true) => ("late", &mut self.late),
                (true, false) => ("moving", &mut self.moving),
            };
            *count += 1;
            println!("{kind}: {}; then {}", before.description, now.description);
        }
    }
}

struct SocketView {
    /// Events by poll(2).
    polled: u16,
    /// Events by upoll.
    upolled: u16,
    /// Whether the bitmaps agree with poll(2).
    bitmaps_agree: bool,
    /// Whether the number of readable bytes agrees with the kernel's.
    numbers_agree: bool,
    readable: u32,
    /// Everything that may explain a difference.
    description: String,
}

impl SocketView {
    /// Returns the first view of the next ten seconds that agrees, or else the last one.
    fn settled(socket: &TrackedSocket) -> Self {
        let mut views = (0..20).map(|_| {
            std::thread::sleep(Duration::from_millis(500));
            Self::of(socket)
        });
        let first = views.find(Self::agrees);
        first.unwrap_or_else(|| Self::of(socket))
    }

    fn of(socket: &TrackedSocket) -> Self {
        let polled = poll_events(socket.as_fd());
        let state = socket.state();
        let readable = state.map_or(0, |state| state.readable);
        // Two calls: while a socket is readable, the library queries the kernel for send space only
        // now and then.
        let upolled = upoll_events(socket, ALL & !WRITING) | upoll_events(socket, WRITING);
        let bitmaps_agree = bitmaps_agree(socket, polled);
        let sndbuf = sockopt_u32(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, 3);
        let queued = sockopt_u32(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, 5);
        // A listener has no bytes. The end of the stream counts as a byte until the data before it
        // is received. Urgent data is counted differently. Send space is not compared, because
        // while a socket connects it changes without any hook.
        let bytes = rustix::io::ioctl_fionread(socket).map(|bytes| bytes as u32);
        let end = u32::from(polled & 0x2010 != 0);
        let numbers_agree = bytes.is_err()
            // An arrival that leaves fewer bytes than SO_RCVLOWAT calls no hook.
            || sockopt_u32(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 0) > 1
            || common::mode() == TrackingMode::Lean
            || state.is_none_or(|state| state.events & 0x002 != 0)
            || bytes.is_ok_and(|bytes| (bytes..=bytes + end).contains(&readable));
        let description = format!(
            "poll {polled:#x}, upoll {upolled:#x}, bitmaps {bitmaps_agree}, numbers {numbers_agree}, \
             {state:x?}, bytes {bytes:x?}, retransmits {}, sndbuf {sndbuf:x}, queued {queued:x}",
            sockopt_u32(socket, libc::SOL_TCP, libc::TCP_INFO, 25),
        );
        Self { polled, upolled, bitmaps_agree, numbers_agree, readable, description }
    }

    fn agrees(&self) -> bool {
        let upolled = match common::mode() {
            TrackingMode::Exact => self.upolled,
            // Data that arrived during a receive is reported once more. Send space is reported
            // until a send falls short, although poll(2) reports it only when a third of the buffer
            // is free.
            TrackingMode::Lean => self.upolled & (self.polled | !(READING | WRITING)),
        };
        upolled == self.polled && self.bitmaps_agree && self.numbers_agree
    }

    /// Returns whether both views have the same events and number of readable bytes.
    fn is_unchanged_since(&self, other: &Self) -> bool {
        (self.polled, self.readable) == (other.polled, other.readable)
    }
}

/// Returns the events that upoll reports.
fn upoll_events(socket: &TrackedSocket, events: u16) -> u16 {
    let mut fds = [uselect::PollFd { fd: socket.as_raw_fd(), events, revents: 0 }];
    socket.tracker().upoll(&mut fds, Some(Duration::ZERO), None).unwrap();
    fds[0].revents
}

fn bitmaps_agree(socket: &TrackedSocket, polled: u16) -> bool {
    let fd = socket.as_raw_fd() as usize;
    let (mut read, mut write) = (vec![0; fd / 64 + 1], vec![0; fd / 64 + 1]);
    (read[fd / 64], write[fd / 64]) = (1 << (fd % 64), 1 << (fd % 64));
    let reading = FdSets { read: &mut read, ..FdSets::default() };
    let writing = FdSets { write: &mut write, ..FdSets::default() };
    for mut sets in [reading, writing] {
        socket.tracker().uselect(&mut sets, Some(Duration::ZERO), None).unwrap();
    }
    let has = |bits: &[u64]| bits[fd / 64] != 0;
    let agrees = |bit, expected| bit == expected || common::mode() == TrackingMode::Lean && bit;
    agrees(has(&read), polled & 0x019 != 0) && agrees(has(&write), polled & 0x00C != 0)
}

/// Returns an element of a socket option whose value is read as an array of u32: TCP_INFO
/// (linux/tcp.h) or SO_MEMINFO (linux/sock_diag.h).
fn sockopt_u32(socket: &TrackedSocket, level: i32, option: i32, index: usize) -> u32 {
    let mut values = [0u32; 26];
    let mut length = size_of_val(&values) as libc::socklen_t;
    let (fd, value) = (socket.as_raw_fd(), (&raw mut values).cast());
    // SAFETY: `values` has `length` bytes, and both outlive the call.
    let result = unsafe { libc::getsockopt(fd, level, option, value, &raw mut length) };
    assert_eq!(result, 0);
    values[index]
}
