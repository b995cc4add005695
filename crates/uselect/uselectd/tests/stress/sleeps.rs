//! Sleeps that a single event has to end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use uselect::{PollFd, TrackedSocket, Tracker};

use crate::RandomChoices;
use crate::compare::{StressCounts, poll_events};
use crate::player::Player;

const IN: u16 = 0x001;
const OUT: u16 = 0x004;
const HUP: u16 = 0x010;
/// Shorter than the time after which the library queries the kernel again on its own.
const SLEEP: Duration = Duration::from_millis(150);
/// If a sleeper is not woken within this time after the event, its wake-up counts as missed at
/// first.
const LATE: Duration = Duration::from_millis(50);

/// By then a sweep of the daemon has found an event for which the kernel skipped the program.
const SWEEP_TIME: Duration = Duration::from_secs(3);

/// Sleeps on a new connection until data, send space or a reset comes. The poll set also has all
/// other sockets that report no error and no hang-up, with events that they do not report now.
pub(crate) fn sleep(
    tracker: &Tracker,
    players: &[MutexGuard<'_, Player>],
    counts: &mut StressCounts,
    random: &mut RandomChoices,
) {
    let sockets = || players.iter().flat_map(|player| player.sockets.iter());
    let mut fds: Vec<PollFd> = sockets()
        .filter(|socket| poll_events(socket.as_fd()) & (0x008 | HUP) == 0)
        .map(|socket| {
            let events = (IN | OUT) & !poll_events(socket.as_fd());
            PollFd { fd: socket.as_raw_fd(), events, revents: 0 }
        })
        .collect();
    for wanted in [IN, OUT, HUP] {
        let Some((socket, mut peer)) = pair(tracker) else { return };
        match wanted {
            OUT => while send(&socket, &[0; 65536], SendFlags::NOSIGNAL).is_ok() {},
            // A hang-up is reported without being requested, and although there are unread bytes.
            HUP => peer.write_all(b"x").unwrap(),
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(5));
        let events = if wanted == HUP { 0 } else { wanted };
        fds.push(PollFd { fd: socket.as_raw_fd(), events, revents: 0 });
        let delay = Duration::from_micros(random.below(1500) as u64);
        let other = std::thread::spawn(move || {
            std::thread::sleep(delay);
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
        let revents = fds.pop().map(|entry| entry.revents).unwrap_or_default();
        let (peer, done) = other.join().unwrap();
        // Timers of other connections may end the sleep early. The other thread may run late. On a
        // busy machine the kernel may deliver late, and then poll(2) does not report the event
        // either. Such sleeps do not count.
        let is_reported = poll_events(socket.as_fd()) & wanted != 0;
        let is_late = count == 0 && is_reported && end.saturating_duration_since(done) > LATE;
        counts.slept += u64::from(is_late || revents & wanted != 0);
        if is_late {
            let mut fds = [PollFd { fd: socket.as_raw_fd(), events, revents: 0 }];
            let is_swept = tracker.upoll(&mut fds, Some(SWEEP_TIME), None) == Ok(1);
            let counter = if is_swept { &mut counts.swept } else { &mut counts.lost };
            *counter += 1;
            println!(
                "late: {wanted:#x}, swept {is_swept}, poll {:#x}",
                poll_events(socket.as_fd())
            );
        }
        drop(peer);
        let _ = recv(&socket, &mut [0; 8][..], RecvFlags::DONTWAIT);
    }
}

/// Returns a new connection without any event.
fn pair(tracker: &Tracker) -> Option<(TrackedSocket, TcpStream)> {
    let (listener, address) = crate::listener::listener(tracker);
    let peer = TcpStream::connect(address).ok()?;
    let (socket, _) = listener.accept(false).ok()?;
    assert!(socket.is_tracked());
    Some((socket, peer))
}
