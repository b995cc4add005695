//! Sleeping while one thing happens.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use uselect::{PollFd, TrackedSocket, Tracker};

use crate::Dice;
use crate::compare::{Counts, polled};
use crate::player::Player;

const IN: u16 = 0x001;
const OUT: u16 = 0x004;
const HUP: u16 = 0x010;
/// Shorter than what the library lets pass without looking again, where it looks again.
const SLEEP: Duration = Duration::from_millis(150);
/// Who is not woken so long after what is waited for was done has missed it, at first.
const LATE: Duration = Duration::from_millis(50);

/// By then the daemon has swept what the kernel called no program for.
const SWEPT: Duration = Duration::from_secs(3);

/// Sleeps among all sockets that say nothing of what is asked, on a connection of its own, until
/// bytes, room or a reset come.
pub(crate) fn sleep(
    tracker: &Tracker,
    players: &[MutexGuard<'_, Player>],
    counts: &mut Counts,
    dice: &mut Dice,
) {
    let sockets = || players.iter().flat_map(|player| player.sockets.iter());
    let mut fds: Vec<PollFd> = sockets()
        .filter(|socket| polled(socket.as_fd()) & (0x008 | HUP) == 0)
        .map(|socket| {
            let events = (IN | OUT) & !polled(socket.as_fd());
            PollFd { fd: socket.as_raw_fd(), events, revents: 0 }
        })
        .collect();
    for wanted in [IN, OUT, HUP] {
        let Some((socket, mut peer)) = pair(tracker) else { return };
        match wanted {
            OUT => while send(&socket, &[0; 65536], SendFlags::NOSIGNAL).is_ok() {},
            // A hang-up is told though nobody asks, and though there are bytes that nobody wants.
            HUP => peer.write_all(b"x").unwrap(),
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(5));
        let events = if wanted == HUP { 0 } else { wanted };
        fds.push(PollFd { fd: socket.as_raw_fd(), events, revents: 0 });
        let wait = Duration::from_micros(dice.below(1500) as u64);
        let other = std::thread::spawn(move || {
            std::thread::sleep(wait);
            match wanted {
                IN => peer.write_all(b"x").unwrap(),
                OUT => drop(peer.read(&mut vec![0; 1 << 20])),
                _ => {
                    sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
                    drop(peer);
                    return (None, Instant::now());
                }
            }
            let done = Instant::now();
            if wanted == OUT {
                peer.set_nonblocking(true).unwrap();
                while done.elapsed() < SLEEP {
                    let _ = peer.read(&mut vec![0; 1 << 20]);
                }
            }
            (Some(peer), done)
        });
        let count = tracker.upoll(&mut fds, Some(SLEEP), None).unwrap();
        let end = Instant::now();
        let found = fds.pop().map(|entry| entry.revents).unwrap_or_default();
        let (peer, done) = other.join().unwrap();
        // Timers of other connections may end it before, the other thread may come late, and so may
        // the kernel on a busy machine, which poll(2) then does not know of either: that shows
        // nothing.
        let is_there = polled(socket.as_fd()) & wanted != 0;
        let is_late = count == 0 && is_there && end.saturating_duration_since(done) > LATE;
        counts.slept += u64::from(is_late || found & wanted != 0);
        if is_late {
            let mut fds = [PollFd { fd: socket.as_raw_fd(), events, revents: 0 }];
            let is_swept = tracker.upoll(&mut fds, Some(SWEPT), None) == Ok(1);
            let said = if is_swept { &mut counts.swept } else { &mut counts.lost };
            *said += 1;
            println!("late: {wanted:#x}, swept {is_swept}, poll {:#x}", polled(socket.as_fd()));
        }
        drop(peer);
        let _ = recv(&socket, &mut [0; 8][..], RecvFlags::DONTWAIT);
    }
}

/// A connection of which nothing has been heard yet.
fn pair(tracker: &Tracker) -> Option<(TrackedSocket, TcpStream)> {
    let (listener, address) = crate::listener::listener(tracker);
    let peer = TcpStream::connect(address).ok()?;
    let (socket, _) = listener.accept(false).ok()?;
    assert!(socket.is_tracked());
    Some((socket, peer))
}
